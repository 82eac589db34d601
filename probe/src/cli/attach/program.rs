//! A running program: whether the agent can be put into it, and what has to be known of it.

use super::failure::{self, untraceable};
use super::image::PAGE;
use super::memory::{self, Mapping};
use super::stacks;
use crate::cli::errno::{self, ErrnoAt};
use crate::cli::failure::Failure;
use crate::cli::{foreign, open, program};
use libc::pid_t;
use object::{Object, ObjectSymbol};
use std::io;
use std::path::{Path, PathBuf};

/// What is known of it.
pub(super) struct Program {
    pid: pid_t,
    /// Where an instruction makes a system call.
    pub(super) system_call: usize,
    /// Where `errno` is: `__errno_location` by its address, or the distance from each thread pointer.
    pub(super) errno: ErrnoAt,
    /// What signal handlers return to.
    pub(super) restorers: Vec<usize>,
    /// Where the loader tells debuggers whether its list of objects is complete; a static program has none.
    pub(super) loading: Option<usize>,
}

/// Since when a program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// It was there already.
    Earlier,
    /// The command starts it.
    Now,
}

/// Types of the auxiliary vector.
const AT_PHDR: usize = 3;
const AT_PHNUM: usize = 5;
const AT_ENTRY: usize = 9;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_PHDR: u32 = 6;
const DT_DEBUG: usize = 21;

impl Program {
    /// Looks at process `pid`. `follows`: there are return probes.
    ///
    /// # Errors
    /// It cannot be traced, and why.
    pub(super) fn look(pid: pid_t, follows: bool, since: Since) -> Result<Self, Failure> {
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
        let own = object::File::parse(&*data)
            .map_err(|error| untraceable(format!("the program of process {pid} cannot be read: {error}")))?;
        if program::is_go(&own) {
            return Err(untraceable(format!(
                "process {pid} is a Go program: such cannot be attached to yet, as its threads have stacks that a hit does not fit on"
            )));
        }
        let libc = mapping_of(&maps, is_libc);
        if follows && (mapping_of(&maps, is_unwinder).is_some() || libc.is_none() && catches(&own)) {
            // The agent that a dynamic linker loads knows the unwinder.
            let remedy = match since {
                Since::Earlier if libc.is_some_and(is_glibc) => ", or start it by `probe`",
                _ => "",
            };
            return Err(untraceable(format!(
                "process {pid} can throw exceptions, which do not pass followed calls where the agent is put into a program: use probes without %return{remedy}"
            )));
        }
        let headers = Headers::of(pid);
        let (errno, home) = if headers.has(PT_INTERP) {
            errno_of_shared(pid, libc)?
        } else {
            errno_of_static(pid, libc, &own, &headers, &maps)?
        };
        let system_call = system_call(pid, &maps).ok_or_else(|| {
            untraceable(format!("process {pid} has no vDSO, where system calls could be made"))
        })?;
        let loading = if headers.has(PT_INTERP) { Some(headers.loading(pid)?) } else { None };
        let restorers = restorers(pid, &home.name, &maps);
        Ok(Self { pid, system_call, errno, restorers, loading })
    }

    /// Where shared memory of `probe`'s is mapped: that of other traces.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) fn regions(&self) -> io::Result<Vec<usize>> {
        let maps = memory::maps(self.pid)?;
        Ok(maps.iter().filter(|map| map.is_region()).map(|map| map.start).collect())
    }

    /// Whether a thread is in the middle of loading or unloading an object.
    pub(super) fn is_loading(&self) -> bool {
        is_loading(self.pid, self.loading)
    }
}

/// As [`Program::is_loading`], by the loader's word at `loading`.
pub(super) fn is_loading(pid: pid_t, loading: Option<usize>) -> bool {
    // `RT_CONSISTENT` is 0.
    loading.is_some_and(|at| memory::read_word(pid, at).is_none_or(|state| state as u32 != 0))
}

/// Whether this is the file name of a C library.
fn is_libc(name: &str) -> bool {
    ["libc.so", "libc-2.", "ld-musl-"].iter().any(|known| name.starts_with(known))
}

/// Whether this is glibc.
fn is_glibc(libc: &Mapping) -> bool {
    libc.name.contains("/libc.so.6") || libc.name.contains("/libc-2.")
}

/// Whether this is the file name of an object that throws exceptions.
fn is_unwinder(name: &str) -> bool {
    ["libgcc_s.so", "libunwind.so", "libc++abi.so"].iter().any(|known| name.starts_with(known))
}

/// `__errno_location` of a shared C library, and a mapping of that.
fn errno_of_shared(pid: pid_t, libc: Option<&Mapping>) -> Result<(ErrnoAt, &Mapping), Failure> {
    let libc = libc.ok_or_else(|| {
        untraceable(format!("process {pid} has loaded no C library that `probe` knows (glibc, musl)"))
    })?;
    let at = symbol(pid, libc, "__errno_location")
        .ok_or_else(|| untraceable(format!("the C library of process {pid} cannot be read")))?;
    Ok((ErrnoAt::Told(at), libc))
}

/// The same of a static program, whose C library is in it.
fn errno_of_static<'a>(
    pid: pid_t,
    libc: Option<&Mapping>,
    own: &object::File<'_>,
    headers: &Headers,
    maps: &'a [Mapping],
) -> Result<(ErrnoAt, &'a Mapping), Failure> {
    if let Some(libc) = libc {
        let loaded = foreign::path(Path::new(&libc.name));
        return Err(untraceable(format!(
            "process {pid} is a static program that has loaded `{loaded}`, a C library besides its own: such cannot be attached to"
        )));
    }
    let at = errno::find(own).ok_or_else(|| {
        untraceable(format!(
            "process {pid} is a static program whose C library is none that `probe` knows (glibc, musl)"
        ))
    })?;
    let at = match at {
        ErrnoAt::Told(address) => ErrnoAt::Told(headers.bias.wrapping_add(address)),
        behind @ ErrnoAt::Behind(_) => behind,
    };
    let home = maps.iter().find(|map| (map.start..map.end).contains(&headers.at)).ok_or_else(|| {
        untraceable(format!("the program of process {pid} is not where its headers are said to be"))
    })?;
    Ok((at, home))
}

/// Whether code of a static program may be unwound by an exception: it has tables of handlers, and more reads
/// them than C's own clean-up, which only a thread's cancellation runs.
fn catches(file: &object::File<'_>) -> bool {
    let mut personalities = file.symbols().filter(|symbol| {
        let name = symbol.name().unwrap_or_default();
        name.contains("_personality") && !name.contains("__gcc_personality_v0")
    });
    let is_stripped = file.symbols().next().is_none();
    if is_stripped && file.sections().next().is_none() {
        // Without section headers nothing says that it has no such tables.
        return true;
    }
    file.section_by_name(".gcc_except_table").is_some() && (is_stripped || personalities.next().is_some())
}

/// The first mapping of a file whose name is one that `is_wanted`.
fn mapping_of(maps: &[Mapping], is_wanted: impl Fn(&str) -> bool) -> Option<&Mapping> {
    maps.iter().find(|map| {
        let name = map.name.strip_suffix(" (deleted)").unwrap_or(&map.name);
        name.starts_with('/') && name.rsplit('/').next().is_some_and(&is_wanted)
    })
}

/// The longest C library that is read: the largest ones have 4 MiB, and some hold their debug information.
const MOST_LIBRARY: usize = 256 << 20;
/// How many stretches of text it has at the most.
const MOST_TEXTS: usize = 16;

/// What handlers return to, in the text of the file `name`.
fn restorers(pid: pid_t, name: &str, maps: &[Mapping]) -> Vec<usize> {
    let text = maps.iter().filter(|map| map.is_executable && map.name == name);
    let text = text.filter(|map| map.end - map.start <= MOST_LIBRARY).take(MOST_TEXTS);
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
    // The program may have mapped what it likes under a library's name.
    let read = |path: &str| {
        open::Regular::open(path.as_ref()).and_then(|file| file.read_at_most(MOST_LIBRARY as u64))
    };
    let data = read(&file).or_else(|_| {
        // The program's own root.
        read(&format!("/proc/{pid}/root{}", first.name))
    });
    let data = data.ok()?;
    let file = object::File::parse(&*data).ok()?;
    let found = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name) && symbol.address() != 0)?;
    // Shared objects are linked from address 0 on.
    Some(first.start.wrapping_add(found.address() as usize))
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

/// Where the program itself is entered, behind its dynamic linker; `None`: it has none.
pub(super) fn entry_behind_linker(pid: pid_t) -> Option<usize> {
    Headers::of(pid).has(PT_INTERP).then(|| value(&auxiliary(pid), AT_ENTRY))
}

/// The program headers as the kernel has mapped them.
struct Headers {
    /// Where.
    at: usize,
    /// What is added to the file's addresses.
    bias: usize,
    all: Vec<Header>,
}

/// Of an `Elf64_Phdr`.
struct Header {
    kind: u32,
    offset: usize,
    addr: usize,
}

impl Headers {
    const LEN: usize = 56;

    /// Those of process `pid`; none, if they cannot be read.
    fn of(pid: pid_t) -> Self {
        let auxiliary = auxiliary(pid);
        let (at, count) = (value(&auxiliary, AT_PHDR), value(&auxiliary, AT_PHNUM));
        let mut bytes = vec![0; count.min(256) * Self::LEN];
        if memory::read(pid, at, &mut bytes).is_err() {
            bytes.clear();
        }
        let header = |header: &[u8]| {
            let word = |at: usize| header[at..at + 8].try_into().map_or(0, usize::from_le_bytes);
            // Its type and flags have a half of the first word each.
            Header { kind: word(0) as u32, offset: word(8), addr: word(16) }
        };
        let all: Vec<Header> = bytes.chunks_exact(Self::LEN).map(header).collect();
        let own = all.iter().find(|header| header.kind == PT_PHDR).map(|header| header.addr);
        // glibc's static programs do not name their headers, which lie in the page that the file begins with.
        let first = || all.iter().find(|header| header.kind == PT_LOAD && header.offset == 0);
        let bias = own
            .map(|own| at.wrapping_sub(own))
            .or_else(|| first().map(|first| (at & !(PAGE - 1)).wrapping_sub(first.addr)));
        Self { at, bias: bias.unwrap_or(0), all }
    }

    fn has(&self, kind: u32) -> bool {
        self.all.iter().any(|header| header.kind == kind)
    }

    /// The address of `r_state` of the loader's `struct r_debug` (`<link.h>`), which the program's dynamic
    /// section leads to.
    ///
    /// # Errors
    /// The loader has not come so far.
    fn loading(&self, pid: pid_t) -> Result<usize, Failure> {
        self.find_loading(pid).ok_or_else(|| {
            untraceable(format!(
                "the dynamic linker of process {pid} does not tell what is loaded, or not yet: try again"
            ))
        })
    }

    fn find_loading(&self, pid: pid_t) -> Option<usize> {
        let dynamic = self.all.iter().find(|header| header.kind == PT_DYNAMIC)?;
        let mut entry = self.bias.wrapping_add(dynamic.addr);
        // No dynamic section is longer.
        for _ in 0..256 {
            let tag = memory::read_word(pid, entry)?;
            if tag == DT_DEBUG {
                let debug = memory::read_word(pid, entry.wrapping_add(8))?;
                // Behind the version, the list and the function, each of one word.
                return (debug != 0).then_some(debug.wrapping_add(24));
            }
            if tag == 0 {
                return None;
            }
            entry = entry.wrapping_add(16);
        }
        None
    }
}
