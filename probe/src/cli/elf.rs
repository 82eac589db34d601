//! ELF files as `list` and `explain` see them, and names for addresses of the traced program.

use super::Failure;
use super::program::did_you_mean;
use crate::def::near_matches;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, elf};
use probe_host_linux::symbols::arrival::InFile;
use probe_host_linux::symbols::file::read_symbols;
use probe_host_linux::symbols::index::{Entry, Index, Kind};
use probe_host_linux::symbols::sequences::Sequences;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// One file: its bytes, its symbols, what it needs.
pub(super) struct ObjectFile {
    /// Where it is.
    pub(super) path: PathBuf,
    /// The file name, as definitions name it.
    pub(super) name: String,
    /// Its symbols.
    pub(super) index: Index,
    data: Vec<u8>,
    facts: Facts,
    sequences: OnceCell<Sequences>,
}

/// What the headers say.
#[derive(Default)]
struct Facts {
    machine: elf::Machine,
    is_big_endian: bool,
    segments: Vec<Segment>,
    needed: Vec<String>,
    run_path: Vec<String>,
}

struct Segment {
    addr: u64,
    offset: u64,
    len_bytes: u64,
    is_executable: bool,
}

impl ObjectFile {
    /// Reads a file and its symbols.
    ///
    /// # Errors
    /// It cannot be read, or is no ELF file of this machine's word size.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let data = std::fs::read(path)
            .map_err(|error| Failure::new(format!("`{shown}` cannot be read: {error}")))?;
        let facts = facts::<elf::FileHeader64<Endianness>>(&data)
            .or_else(|| facts::<elf::FileHeader32<Endianness>>(&data))
            .ok_or_else(|| Failure::new(format!("`{shown}` is not an ELF file")))?;
        let index = read_symbols(path)
            .map_err(|error| Failure::new(format!("the symbols of `{shown}` cannot be read: {error}")))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { path: path.to_owned(), name, index, data, facts, sequences: OnceCell::new() })
    }

    /// The machine (`EM_…`) and whether it is big-endian.
    pub(super) fn machine(&self) -> (elf::Machine, bool) {
        (self.facts.machine, self.facts.is_big_endian)
    }

    /// Its restartable sequences.
    pub(super) fn sequences(&self) -> &Sequences {
        self.sequences.get_or_init(|| Sequences::of_file(&self.data))
    }

    /// How its functions are come to.
    pub(super) fn arrivals(&self) -> InFile<'_> {
        InFile::new(&self.data)
    }

    /// The shared objects that it names as needed.
    pub(super) fn needed(&self) -> &[String] {
        &self.facts.needed
    }

    /// Copies bytes at an address in the file's own numbering; returns how many there were.
    pub(super) fn read(&self, addr: u64, out: &mut [u8]) -> usize {
        for segment in &self.facts.segments {
            let Some(from) = addr.checked_sub(segment.addr).filter(|&from| from < segment.len_bytes) else {
                continue;
            };
            let len = (segment.len_bytes - from).min(out.len() as u64) as usize;
            let start = (segment.offset + from) as usize;
            let Some(bytes) = self.data.get(start..start + len) else { return 0 };
            out[..len].copy_from_slice(bytes);
            return len;
        }
        0
    }

    /// Whether an address is code.
    pub(super) fn is_text(&self, addr: u64) -> bool {
        let mut text = self.facts.segments.iter().filter(|segment| segment.is_executable);
        text.any(|segment| (segment.addr..segment.addr + segment.len_bytes).contains(&addr))
    }

    /// The address in the file's own numbering of an offset into the file.
    pub(super) fn addr_of_offset(&self, offset: u64) -> Option<u64> {
        let mut segments = self.facts.segments.iter();
        segments.find_map(|segment| {
            offset
                .checked_sub(segment.offset)
                .filter(|&from| from < segment.len_bytes)
                .map(|from| segment.addr + from)
        })
    }

    /// All functions, by address; of several names for one the best.
    pub(super) fn functions(&self) -> impl Iterator<Item = &Entry> {
        let mut last = None;
        self.index.entries().iter().filter(move |entry| {
            let is_new = last != Some(entry.addr);
            let is_code = entry.kind != Kind::Data && self.is_text(entry.addr as u64);
            if is_code && is_new {
                last = Some(entry.addr);
            }
            is_code && is_new
        })
    }

    /// All code symbols, each name.
    pub(super) fn code_symbols(&self) -> impl Iterator<Item = &Entry> {
        self.index
            .entries()
            .iter()
            .filter(|entry| entry.kind != Kind::Data && self.is_text(entry.addr as u64))
    }
}

fn facts<E: FileHeader<Endian = Endianness>>(data: &[u8]) -> Option<Facts> {
    let header = E::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut facts = Facts {
        machine: header.e_machine(endian),
        is_big_endian: endian == Endianness::Big,
        ..Facts::default()
    };
    for segment in header.program_headers(endian, data).ok()? {
        if segment.p_type(endian) == elf::PT_LOAD {
            facts.segments.push(Segment {
                addr: segment.p_vaddr(endian).into(),
                offset: segment.p_offset(endian).into(),
                len_bytes: segment.p_filesz(endian).into(),
                is_executable: segment.p_flags(endian).contains(elf::PF_X),
            });
        }
    }
    let sections = header.sections(endian, data).ok()?;
    if let Ok(Some((entries, strings))) = sections.dynamic(endian, data) {
        let strings = sections.strings(endian, data, strings).unwrap_or_default();
        for entry in entries {
            let list = match entry.tag(endian) {
                elf::DT_NEEDED => &mut facts.needed,
                elf::DT_RPATH | elf::DT_RUNPATH => &mut facts.run_path,
                _ => continue,
            };
            if let Ok(text) = entry.string(endian, strings) {
                list.push(String::from_utf8_lossy(text).into_owned());
            }
        }
    }
    Some(facts)
}

/// Finds shared objects as the dynamic linker would, from its configuration.
pub(super) struct Libraries {
    folders: Vec<PathBuf>,
}

impl Libraries {
    /// The folders that are searched on this machine.
    pub(super) fn new() -> Self {
        let mut folders: Vec<PathBuf> = Vec::new();
        if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
            folders.extend(std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()));
        }
        read_configuration(Path::new("/etc/ld.so.conf"), &mut folders, 0);
        for folder in ["/lib64", "/usr/lib64", "/lib", "/usr/lib"] {
            folders.push(folder.into());
        }
        Self { folders }
    }

    /// The file of a shared object that `by` needs: of the same machine, in `by`'s run path first.
    fn find(&self, soname: &str, by: &ObjectFile) -> Option<PathBuf> {
        if soname.contains('/') {
            return Some(soname.into());
        }
        let origin = by.path.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let run_path =
            by.facts.run_path.iter().flat_map(|paths| paths.split(':')).map(|folder| {
                PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))
            });
        let mut candidates = run_path.chain(self.folders.iter().cloned()).map(|folder| folder.join(soname));
        candidates.find(|path| machine_of(path) == Some(by.machine()))
    }

    /// The program and everything it loads at start, each once, in the order of loading.
    ///
    /// # Errors
    /// The first file cannot be read. Libraries that cannot be found are left out.
    pub(super) fn closure(&self, path: &Path) -> Result<Vec<ObjectFile>, Failure> {
        let mut loaded = vec![ObjectFile::open(path)?];
        let mut next = 0;
        while next < loaded.len() {
            for soname in loaded[next].needed().to_vec() {
                if loaded.iter().any(|object| object.name == soname) {
                    continue;
                }
                if let Some(object) =
                    self.find(&soname, &loaded[next]).and_then(|path| ObjectFile::open(&path).ok())
                {
                    loaded.push(ObjectFile { name: soname, ..object });
                }
            }
            next += 1;
        }
        Ok(loaded)
    }

    /// The file that `name` means: a path, a shared object's file name, or a program in PATH.
    ///
    /// # Errors
    /// There is none; with near matches.
    pub(super) fn object(&self, name: &str) -> Result<PathBuf, Failure> {
        if name.contains('/') {
            if Path::new(name).is_file() {
                return Ok(name.into());
            }
            return Err(Failure::new(format!("there is no object `{name}`")));
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let all = || self.folders.iter().chain(&programs);
        let files = || all().map(|folder| folder.join(name));
        // The libraries of several machines may stand side by side.
        let own = machine_of(Path::new("/proc/self/exe"));
        let found = files().find(|path| own.is_some() && machine_of(path) == own);
        if let Some(found) = found.or_else(|| files().find(|path| machine_of(path).is_some())) {
            return Ok(found);
        }
        let entries = all().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let near = near_matches(name, names.iter().map(String::as_str), 3);
        Err(Failure::new(format!("there is no object `{name}`{}", did_you_mean(&near))))
    }
}

/// Machine and byte order of an ELF file, from its first bytes.
fn machine_of(path: &Path) -> Option<(elf::Machine, bool)> {
    let mut head = [0; 20];
    std::io::Read::read_exact(&mut std::fs::File::open(path).ok()?, &mut head).ok()?;
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    let is_big_endian = head[5] == 2;
    let bytes = [head[18], head[19]];
    let machine = if is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) };
    Some((elf::Machine(machine), is_big_endian))
}

/// `/etc/ld.so.conf` with its `include` lines.
fn read_configuration(path: &Path, folders: &mut Vec<PathBuf>, depth: u32) {
    let Ok(text) = std::fs::read_to_string(path) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(pattern) = line.strip_prefix("include").map(str::trim) {
            let (folder, names) = pattern.rsplit_once('/').unwrap_or(("/etc", pattern));
            let glob = crate::def::Glob::new(names);
            let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| glob.matches(&entry.file_name().to_string_lossy()))
                .map(|entry| entry.path())
                .collect();
            files.sort();
            if depth < 4 {
                files.iter().for_each(|file| read_configuration(file, folders, depth + 1));
            }
        } else if !line.is_empty() {
            folders.push(line.into());
        }
    }
}

/// Names for addresses: the symbols of files, read when they are first asked for.
#[derive(Default)]
pub(super) struct Symbols {
    files: RefCell<HashMap<PathBuf, Option<Rc<Index>>>>,
}

// SAFETY: the reader of events owns its `Symbols` and moves to another thread once, before it has read any file.
unsafe impl Send for Symbols {}

impl Symbols {
    /// The symbol that covers an address of a file.
    pub(super) fn name(&self, path: &Path, addr: u64) -> Option<String> {
        let mut files = self.files.borrow_mut();
        let index = match files.get(path) {
            Some(index) => index.clone(),
            None => {
                let index = read_symbols(path).ok().map(Rc::new);
                files.insert(path.to_owned(), index.clone());
                index
            }
        }?;
        let addr = usize::try_from(addr).ok()?;
        let entry = index.covering(addr)?;
        Some(with_offset(&demangled(index.name(entry)), (addr - entry.addr) as u64))
    }

    /// The same for an address of a living process.
    pub(super) fn name_in_process(&self, pid: u32, addr: u64) -> Option<String> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            if !(start..end).contains(&addr) {
                continue;
            }
            let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
            let path = PathBuf::from(fields.nth(2)?);
            let file = std::fs::read(&path).ok()?;
            let facts = facts::<elf::FileHeader64<Endianness>>(&file)
                .or_else(|| facts::<elf::FileHeader32<Endianness>>(&file))?;
            let at = offset + (addr - start);
            let segment = facts
                .segments
                .iter()
                .find(|segment| (segment.offset..segment.offset + segment.len_bytes).contains(&at))?;
            return self.name(&path, segment.addr + (at - segment.offset));
        }
        None
    }
}

/// `name`, `name+0x10`.
pub(super) fn with_offset(name: &str, offset: u64) -> String {
    if offset == 0 { name.to_owned() } else { format!("{name}+{offset:#x}") }
}

/// The name as its programming language writes it.
pub(super) fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
    {
        let options = cpp_demangle::DemangleOptions::default().no_return_type();
        if let Ok(text) = symbol.demangle_with_options(&options) {
            return text;
        }
    }
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This program is one of this machine; with a static C library nothing is loaded for it.
    #[test]
    #[cfg(target_env = "gnu")]
    fn a_program_needs_libc() {
        let libraries = Libraries::new();
        let loaded = libraries.closure(Path::new("/proc/self/exe")).unwrap();
        let libc = loaded.iter().find(|object| object.name.starts_with("libc.so")).expect("libc is loaded");
        assert!(libc.functions().any(|entry| libc.index.name(entry) == "opendir"));
        let mut found = None;
        libc.index.find("opendir", &mut |entry| found = Some(entry.addr as u64));
        let addr = found.unwrap();
        assert!(libc.is_text(addr) && libc.read(addr, &mut [0; 4]) == 4);
        assert_eq!(Symbols::default().name(&libc.path, addr + 2).unwrap(), "opendir+0x2");
    }

    #[test]
    fn a_mistyped_object_gets_a_suggestion() {
        let error = Libraries::new().object("libc.so.7").unwrap_err().to_string();
        assert!(error.contains("no object `libc.so.7`") && error.contains("libc.so.6"), "{error}");
    }

    #[test]
    fn names_of_this_process_are_found_by_address() {
        let function = names_of_this_process_are_found_by_address as *const ();
        // SAFETY: on that ABI a function pointer points to its descriptor.
        let addr = if cfg!(target_abi = "elfv1") { unsafe { *function.cast() } } else { function as u64 };
        let name = Symbols::default().name_in_process(std::process::id(), addr).unwrap();
        assert!(name.contains("names_of_this_process_are_found_by_address"), "{name}");
    }

    #[test]
    fn names_are_shown_as_their_language_writes_them() {
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
        assert_eq!(demangled("_ZN2ns1fEi"), "ns::f(int)");
        assert_eq!(demangled("malloc"), "malloc");
    }
}
