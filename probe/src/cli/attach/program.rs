//! A running program: whether the agent can be put into it, and what has to be known of it.

use super::failure::{self, untraceable};
use super::image::PAGE;
use super::memory::{self, Mapping};
use super::stacks;
use crate::cli::failure::Failure;
use crate::cli::{open, program};
use libc::pid_t;
use object::{Object, ObjectSymbol};
use std::io;
use std::path::{Path, PathBuf};

/// What is known of it.
pub(super) struct Program {
    pid: pid_t,
    /// Where an instruction makes a system call.
    pub(super) system_call: usize,
    /// `__errno_location`.
    pub(super) errno_location: usize,
    /// What signal handlers return to.
    pub(super) restorers: Vec<usize>,
    /// Where the loader tells debuggers whether its list of objects is complete.
    pub(super) loading: usize,
}

/// Types of the auxiliary vector.
const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;

const PT_DYNAMIC: usize = 2;
const PT_PHDR: usize = 6;
const DT_DEBUG: usize = 21;

impl Program {
    /// Looks at process `pid`. `follows`: there are return probes.
    ///
    /// # Errors
    /// It cannot be traced, and why.
    pub(super) fn look(pid: pid_t, follows: bool) -> Result<Self, Failure> {
        if pid.unsigned_abs() == std::process::id() {
            return Err(Failure::new("`probe` cannot trace itself"));
        }
        let file = PathBuf::from(format!("/proc/{pid}/exe"));
        if !Path::new(&format!("/proc/{pid}")).exists() {
            return Err(failure::ended(pid));
        }
        let maps = memory::maps(pid).map_err(|error| failure::refused(pid, &error))?;
        if maps.is_empty() {
            return Err(untraceable(format!(
                "process {pid} is the kernel's, or has ended: it has no memory"
            )));
        }
        let data = open::read(&file).map_err(|error| failure::refused(pid, &error))?;
        program::check_machine(&file, &data)?;
        let Some(libc) =
            mapping_of(&maps, |name| name.starts_with("libc.so.6") || name.starts_with("libc-2."))
        else {
            return Err(untraceable(format!(
                "process {pid} runs without glibc's shared library: static programs, Go and musl cannot be attached to yet"
            )));
        };
        let unwinds = |name: &str| {
            ["libgcc_s.so", "libunwind.so", "libc++abi.so"].iter().any(|known| name.starts_with(known))
        };
        if follows && mapping_of(&maps, unwinds).is_some() {
            return Err(untraceable(format!(
                "process {pid} can throw exceptions, which do not pass followed calls in a program that runs already: use probes without %return, or start it by `probe`"
            )));
        }
        let auxiliary = auxiliary(pid);
        let errno_location = symbol(pid, libc, "__errno_location").ok_or_else(|| {
            untraceable(format!(
                "the C library of process {pid} cannot be read, or is none that `probe` knows"
            ))
        })?;
        let system_call = system_call(pid, &maps).ok_or_else(|| {
            untraceable(format!("process {pid} has no vDSO, where system calls could be made"))
        })?;
        let loading = loading(pid, &auxiliary).ok_or_else(|| {
            untraceable(format!("process {pid} has no dynamic linker that tells what is loaded: static programs cannot be attached to yet"))
        })?;
        let restorers = restorers(pid, &libc.name, &maps);
        Ok(Self { pid, system_call, errno_location, restorers, loading })
    }

    /// Where shared memory of `probe`'s is mapped: that of other traces.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) fn regions(&self) -> io::Result<Vec<usize>> {
        let maps = memory::maps(self.pid)?;
        let is_region = |map: &&Mapping| map.name.starts_with("/memfd:probe-trace") && map.offset == 0;
        Ok(maps.iter().filter(is_region).map(|map| map.start).collect())
    }

    /// Whether a thread is in the middle of loading or unloading an object.
    pub(super) fn is_loading(&self) -> bool {
        is_loading(self.pid, self.loading)
    }
}

/// As [`Program::is_loading`], by the loader's word at `loading`.
pub(super) fn is_loading(pid: pid_t, loading: usize) -> bool {
    // `RT_CONSISTENT` is 0.
    memory::read_word(pid, loading).is_none_or(|state| state as u32 != 0)
}

/// The first mapping of a file whose name is one that `is_wanted`.
fn mapping_of(maps: &[Mapping], is_wanted: impl Fn(&str) -> bool) -> Option<&Mapping> {
    maps.iter().find(|map| {
        let name = map.name.strip_suffix(" (deleted)").unwrap_or(&map.name);
        name.starts_with('/') && name.rsplit('/').next().is_some_and(&is_wanted)
    })
}

/// What handlers return to, in the text of the file `name`.
fn restorers(pid: pid_t, name: &str, maps: &[Mapping]) -> Vec<usize> {
    let text = maps.iter().filter(|map| map.is_executable && map.name == name);
    text.flat_map(|map| {
        let mut code = vec![0; map.end - map.start];
        memory::read(pid, map.start, &mut code)
            .map_or_else(|_| Vec::new(), |()| stacks::restorers(map.start, &code))
    })
    .collect()
}

/// The address of a function of an object, whose first mapping this is.
fn symbol(pid: pid_t, first: &Mapping, name: &str) -> Option<usize> {
    let file = format!("/proc/{pid}/map_files/{:x}-{:x}", first.start, first.end);
    let data = open::read(Path::new(&file)).or_else(|_| {
        // The program's own root.
        open::read(Path::new(&format!("/proc/{pid}/root{}", first.name)))
    });
    let data = data.ok()?;
    let file = object::File::parse(&*data).ok()?;
    let found = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name) && symbol.address() != 0)?;
    // Shared objects are linked from address 0 on.
    Some(first.start + found.address() as usize)
}

/// An instruction of the vDSO that makes a system call.
fn system_call(pid: pid_t, maps: &[Mapping]) -> Option<usize> {
    let vdso = maps.iter().find(|map| map.name == "[vdso]" && map.is_executable)?;
    let mut code = vec![0; (vdso.end - vdso.start).min(16 * PAGE)];
    memory::read(pid, vdso.start, &mut code).ok()?;
    code.windows(2).position(|bytes| bytes == [0x0f, 0x05]).map(|at| vdso.start + at)
}

/// The auxiliary vector: types and values.
fn auxiliary(pid: pid_t) -> Vec<[usize; 2]> {
    let bytes = std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, usize::from_ne_bytes);
    bytes.chunks_exact(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect()
}

fn value(auxiliary: &[[usize; 2]], kind: usize) -> usize {
    auxiliary.iter().find(|entry| entry[0] == kind).map_or(0, |entry| entry[1])
}

/// The address of `r_state` of the loader's `struct r_debug` (`<link.h>`), which the program's dynamic
/// section leads to.
fn loading(pid: pid_t, auxiliary: &[[usize; 2]]) -> Option<usize> {
    const HEADER_LEN: usize = 56;
    let (at, count) = (value(auxiliary, AT_PHDR), value(auxiliary, AT_PHNUM));
    let mut headers = vec![0; count.min(256) * HEADER_LEN];
    memory::read(pid, at, &mut headers).ok()?;
    // `Elf64_Phdr`: type and flags, offset, address.
    let header = |wanted: usize| {
        let found = headers.chunks_exact(HEADER_LEN).find(|header| {
            u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize == wanted
        })?;
        Some(usize::from_le_bytes(found[16..24].try_into().ok()?))
    };
    let bias = at.wrapping_sub(header(PT_PHDR)?);
    let mut entry = bias.wrapping_add(header(PT_DYNAMIC)?);
    // No dynamic section is longer.
    for _ in 0..256 {
        let tag = memory::read_word(pid, entry)?;
        if tag == DT_DEBUG {
            let debug = memory::read_word(pid, entry + 8)?;
            // Behind the version, the list and the function, each of one word.
            return (debug != 0).then_some(debug + 24);
        }
        if tag == 0 {
            return None;
        }
        entry += 16;
    }
    None
}
