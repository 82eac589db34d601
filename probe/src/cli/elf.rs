//! ELF files as `list` and `explain` see them, and names for addresses of the traced program.

use super::failure::{Failure, did_you_mean};
use super::foreign::{self, Foreign};
use super::open;
use crate::def::{Fit, Glob, HasFile, fit, near_matches};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, elf};
use probe_elf_symbols::arrival::InFile;
use probe_elf_symbols::demangle::in_its_language;
use probe_elf_symbols::file::symbols_of;
use probe_elf_symbols::index::{Entry, Index, Kind};
use probe_elf_symbols::sequences::Sequences;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One file: its bytes, its symbols, what it needs.
pub(super) struct ObjectFile {
    /// Where it is.
    pub(super) path: PathBuf,
    /// The file name, as definitions name it.
    pub(super) name: Foreign<String>,
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
        let shown = foreign::path(path);
        let data =
            open::read(path).map_err(|error| Failure::new(format!("`{shown}` cannot be read: {error}")))?;
        let facts = facts::<elf::FileHeader64<Endianness>>(&data)
            .or_else(|| facts::<elf::FileHeader32<Endianness>>(&data))
            .ok_or_else(|| Failure::new(format!("`{shown}` is not an ELF file")))?;
        let index = symbols_of(&data, Some(path))
            .map_err(|error| Failure::new(format!("the symbols of `{shown}` cannot be read: {error}")))?;
        let name = Foreign::new(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
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
            let start = usize::try_from(segment.offset + from).unwrap_or(usize::MAX);
            let Some(bytes) = self.data.get(start..).and_then(|rest| rest.get(..len)) else { return 0 };
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

    /// The offset in the file of an address in the file's own numbering.
    pub(super) fn offset_of_addr(&self, addr: u64) -> Option<u64> {
        let mut segments = self.facts.segments.iter();
        segments.find_map(|segment| {
            let from = addr.checked_sub(segment.addr).filter(|&from| from < segment.len_bytes)?;
            Some(segment.offset + from)
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

impl HasFile for ObjectFile {
    fn file_name(&self) -> &str {
        self.name.raw()
    }

    fn path(&self) -> &Path {
        &self.path
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
        let (addr, offset, len_bytes): (u64, u64, u64) = (
            segment.p_vaddr(endian).into(),
            segment.p_offset(endian).into(),
            segment.p_filesz(endian).into(),
        );
        // What wraps around is nowhere (EVT_2).
        let has_ends = addr.checked_add(len_bytes).and(offset.checked_add(len_bytes)).is_some();
        if segment.p_type(endian) == elf::PT_LOAD && has_ends {
            let is_executable = segment.p_flags(endian).contains(elf::PF_X);
            facts.segments.push(Segment { addr, offset, len_bytes, is_executable });
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

/// Offset, address and length of each loaded part of an ELF file.
pub(super) fn segments(data: &[u8]) -> Option<Vec<(u64, u64, u64)>> {
    let facts = facts::<elf::FileHeader64<Endianness>>(data)
        .or_else(|| facts::<elf::FileHeader32<Endianness>>(data))?;
    Some(facts.segments.iter().map(|segment| (segment.offset, segment.addr, segment.len_bytes)).collect())
}

/// The shared objects that a file's bytes name as needed.
pub(super) fn needed(data: &[u8]) -> Vec<String> {
    let facts =
        facts::<elf::FileHeader64<Endianness>>(data).or_else(|| facts::<elf::FileHeader32<Endianness>>(data));
    facts.map(|facts| facts.needed).unwrap_or_default()
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
                if loaded.iter().any(|object| *object.name.raw() == soname) {
                    continue;
                }
                if let Some(object) =
                    self.find(&soname, &loaded[next]).and_then(|path| ObjectFile::open(&path).ok())
                {
                    loaded.push(ObjectFile { name: Foreign::new(soname), ..object });
                }
            }
            next += 1;
        }
        Ok(loaded)
    }

    /// The shared objects of this machine that match a pattern, by their paths if it has a `/`; each once.
    pub(super) fn matching(&self, pattern: &Glob) -> Vec<PathBuf> {
        let is_path = pattern.as_str().contains('/');
        let own = machine_of(Path::new("/proc/self/exe"));
        let named = match pattern.as_str().rsplit_once('/') {
            Some((folder, _)) if !Glob::is_pattern(folder) => vec![PathBuf::from(folder)],
            _ => self.folders.clone(),
        };
        let entries = named.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let is_match = |path: &PathBuf| match path.file_name() {
            Some(_) if is_path => pattern.matches(&path.to_string_lossy()),
            Some(name) => pattern.matches(&name.to_string_lossy()),
            None => false,
        };
        let mut files: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
        for path in entries.map(|entry| entry.path()).filter(is_match) {
            if own.is_some() && machine_of(&path) == own {
                let real = path.canonicalize().unwrap_or_else(|_| path.clone());
                files
                    .entry(real)
                    .and_modify(|known| *known = known.clone().min(path.clone()))
                    .or_insert(path);
            }
        }
        files.into_values().collect()
    }

    /// The file that `name` means: a path, the file name of a shared object or of a program in PATH, or the
    /// beginning of one up to a dot, if only one file begins so ([`object_named`](crate::def::object_named)
    /// is the same for what is loaded).
    ///
    /// # Errors
    /// There is none, with near matches; or several begin so.
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
        let entries = || all().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let file_name = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let begins = entries().filter(|entry| fit(&file_name(entry), name) == Fit::Begins);
        let begins = begins.map(|entry| entry.path()).filter(|path| machine_of(path).is_some()).collect();
        match one_file(begins, |path| own.is_some() && machine_of(path) == own) {
            Ok(Some(path)) => return Ok(path),
            Ok(None) => {}
            Err(several) => {
                let names: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
                return Err(Failure::new(format!("`{name}` may be {}; name one", names.join(" or "))));
            }
        }
        let names: Vec<String> = entries().map(|entry| file_name(&entry)).collect();
        let near = near_matches(name, names.iter().map(String::as_str), 3);
        Err(Failure::new(format!("there is no object `{name}`{}", did_you_mean(&near))))
    }
}

/// The one file that all of `paths` lead to; of several, those that are preferred.
fn one_file(
    paths: Vec<PathBuf>,
    is_preferred: impl Fn(&Path) -> bool,
) -> Result<Option<PathBuf>, Vec<PathBuf>> {
    let mut files: Vec<(PathBuf, PathBuf)> = Vec::new();
    for path in paths {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        match files.iter_mut().find(|(other, _)| *other == real) {
            // `libc.so.6` rather than `libc-2.36.so`, and the same at each call.
            Some((_, known)) => *known = known.clone().min(path),
            None => files.push((real, path)),
        }
    }
    if files.len() > 1 && files.iter().any(|(_, path)| is_preferred(path)) {
        files.retain(|(_, path)| is_preferred(path));
    }
    let mut paths: Vec<PathBuf> = files.into_iter().map(|(_, path)| path).collect();
    if paths.len() > 1 { Err(paths) } else { Ok(paths.pop()) }
}

/// Machine and byte order of an ELF file, from its first bytes.
fn machine_of(path: &Path) -> Option<(elf::Machine, bool)> {
    let head = open::Regular::open(path).ok()?.head::<20>().ok()?;
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

/// `name`, `name+0x10`.
pub(super) fn with_offset(name: Foreign<String>, offset: u64) -> Foreign<String> {
    if offset == 0 { name } else { Foreign::new(format!("{}+{offset:#x}", name.raw())) }
}

/// The name as its programming language writes it.
pub(super) fn demangled(name: &str) -> Foreign<String> {
    Foreign::new(in_its_language(name).unwrap_or_else(|| name.to_owned()))
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
        let libc =
            loaded.iter().find(|object| object.name.raw().starts_with("libc.so")).expect("libc is loaded");
        assert!(libc.functions().any(|entry| libc.index.name(entry) == "opendir"));
        let mut found = None;
        libc.index.find("opendir", &mut |entry| found = Some(entry.addr as u64));
        let addr = found.unwrap();
        assert!(libc.is_text(addr) && libc.read(addr, &mut [0; 4]) == 4);
    }

    #[test]
    fn a_mistyped_object_gets_a_suggestion() {
        let error = Libraries::new().object("libc.so.7").unwrap_err().to_string();
        assert!(error.contains("no object `libc.so.7`") && error.contains("libc.so.6"), "{error}");
    }

    /// A file whose segments end behind the last address, or lie behind its end: no arithmetic overflows.
    #[test]
    #[cfg(all(target_env = "gnu", target_pointer_width = "64", target_endian = "little"))]
    fn evt_2_segments_that_wrap_around_are_nowhere() {
        let whole = open::read(&Libraries::new().object("libc.so.6").unwrap()).unwrap();
        let word = |at: usize| u64::from_le_bytes(*whole[at..].first_chunk().unwrap());
        // `e_phoff`, `e_phnum`; `p_offset`, `p_vaddr` and `p_filesz` of 56 bytes (gABI, "Program Header").
        let (headers, count) = (word(0x20) as usize, usize::from(whole[0x38]));
        let file = std::env::temp_dir().join(format!("probe-elf-{}", std::process::id()));
        for field in [8, 16, 32] {
            for value in [u64::MAX, u64::MAX - 8, i64::MAX as u64] {
                let mut data = whole.clone();
                for header in (0..count).map(|index| headers + 56 * index) {
                    data[header + field..][..8].copy_from_slice(&value.to_le_bytes());
                }
                std::fs::write(&file, &data).unwrap();
                let Ok(object) = ObjectFile::open(&file) else { continue };
                let _ = object.functions().count();
                for addr in [0, 0x1000, i64::MAX as u64, u64::MAX - 8, u64::MAX] {
                    let mut bytes = [0; 16];
                    object.read(addr, &mut bytes);
                    let _ = (object.is_text(addr), object.addr_of_offset(addr), object.offset_of_addr(addr));
                }
            }
        }
        std::fs::remove_file(&file).unwrap();
    }
}
