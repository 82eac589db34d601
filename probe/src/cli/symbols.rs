//! Names for addresses of traced programs: the symbols of the files that they have mapped, read at the first
//! request.
//!
//! A program names its files itself, may have replaced them since, or may see other files under these names
//! (another mount namespace). So a file's symbols are taken only if it is the mapped file: by its build id,
//! or without one by device and number. All reading for this has one common bound.

use super::elf::{demangled, segments, with_offset};
use super::foreign::Foreign;
use super::functions::{Function, Lines};
use super::open::{FileId, Regular};
use object::Object;
use probe_elf_symbols::file::symbols_of;
use probe_elf_symbols::index::{Entry, Index};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// How many bytes of files are read for names.
const MOST_BYTES: u64 = if cfg!(target_pointer_width = "64") { 4 << 30 } else { 256 << 20 };
/// How many files are remembered.
const MOST_FILES: usize = 1 << 12;

/// A file as a program has named it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NamedFile {
    pub(super) path: PathBuf,
    pub(super) id: MappedId,
    /// Its build id in hexadecimal digits; empty where it has none, or where only the kernel was asked.
    pub(super) build_id: String,
}

/// Which file it was when it was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct MappedId {
    /// `None` where only `/proc/PID/maps` tells: for btrfs it shows another device than `stat` does.
    pub(super) device: Option<u64>,
    pub(super) inode: u64,
}

/// What is known of a file.
struct Known {
    /// Its debugging information, looked for when a frame is in it.
    lines: OnceCell<Option<Lines>>,
    path: PathBuf,
    index: Index,
    /// Offset, address in the file's own numbering, and length of what is loaded.
    segments: Vec<(u64, u64, u64)>,
}

impl Known {
    /// The symbol that covers an address. One without a length ends with its segment at the latest: `_fini`
    /// does not name ELFv1's descriptors.
    fn covering(&self, addr: usize) -> Option<&Entry> {
        let entry = self.index.covering(addr)?;
        let segment = |addr: usize| {
            let starts = self.segments.iter().map(|(_, start, _)| *start);
            starts.filter(|start| *start <= addr as u64).max()
        };
        Some(entry).filter(|entry| segment(entry.addr) == segment(addr))
    }
}

/// The symbols of files.
pub(super) struct Symbols {
    files: RefCell<Files>,
    /// The memory that every traced program has mapped.
    region: FileId,
}

struct Files {
    known: HashMap<NamedFile, Option<Rc<Known>>>,
    room: u64,
}

// SAFETY: the reader of events owns its `Symbols` and moves to another thread once, before it has read any
// file.
unsafe impl Send for Symbols {}

impl Symbols {
    /// None are known yet. Processes are asked only if they have mapped `region`.
    pub(super) fn new(region: FileId) -> Self {
        Self { files: RefCell::new(Files { known: HashMap::new(), room: MOST_BYTES }), region }
    }

    /// The symbol that covers an address, in the file's own numbering.
    pub(super) fn name(&self, file: &NamedFile, addr: u64) -> Option<Foreign<String>> {
        let known = self.files.borrow_mut().known(file)?;
        let addr = usize::try_from(addr).ok()?;
        let entry = known.covering(addr)?;
        Some(with_offset(demangled(known.index.name(entry)), (addr - entry.addr) as u64))
    }

    /// The name of the function that covers an address, in the file's own numbering.
    pub(super) fn function(&self, file: &NamedFile, addr: u64) -> Option<Foreign<String>> {
        let known = self.files.borrow_mut().known(file)?;
        let entry = known.index.covering(usize::try_from(addr).ok()?)?;
        Some(demangled(known.index.name(entry)))
    }

    /// The functions at the place of a frame, in the file's own numbering: each inlined in the one behind it;
    /// none where nothing is known of it.
    pub(super) fn functions(&self, file: &NamedFile, addr: u64) -> Vec<Function> {
        let Some(known) = self.files.borrow_mut().known(file) else { return Vec::new() };
        let lines = known.lines.get_or_init(|| self.files.borrow_mut().lines(&known.path, file));
        let all = lines.as_ref().map(|lines| lines.functions(addr)).unwrap_or_default();
        if !all.is_empty() {
            return all;
        }
        let Some((entry, at)) = usize::try_from(addr).ok().and_then(|at| Some((known.covering(at)?, at)))
        else {
            return Vec::new();
        };
        let name = demangled(known.index.name(entry));
        let distance = at - entry.addr;
        let distance = if distance == 0 { String::new() } else { format!("+{distance:#x}") };
        vec![Function::new(name.raw(), &distance)]
    }

    /// The name of an address in a living process, if that is a traced one.
    pub(super) fn name_in_process(&self, pid: u32, addr: u64) -> Option<Foreign<String>> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let mappings = || maps.lines().filter_map(Mapping::parse);
        if !mappings()
            .any(|mapping| mapping.inode == self.region.inode && mapping.path.starts_with("/memfd:"))
        {
            return None;
        }
        let mapping = mappings().find(|mapping| (mapping.start..mapping.end).contains(&addr))?;
        let id = MappedId { device: None, inode: mapping.inode };
        let file = NamedFile { path: mapping.path.into(), id, build_id: String::new() };
        let at = mapping.offset.checked_add(addr - mapping.start)?;
        let known = self.files.borrow_mut().known(&file)?;
        let (offset, start, _) = known
            .segments
            .iter()
            .find(|(offset, _, len)| at.checked_sub(*offset).is_some_and(|at| at < *len))?;
        self.name(&file, start.wrapping_add(at - offset))
    }
}

/// A line of `/proc/PID/maps`.
struct Mapping<'a> {
    start: u64,
    end: u64,
    offset: u64,
    inode: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = hex(fields.nth(1)?)?;
        let inode = fields.nth(1)?.parse().ok()?;
        let path = line.get(line.find('/')?..)?;
        Some(Self { start: hex(start)?, end: hex(end)?, offset, inode, path })
    }
}

impl Files {
    /// A file's debugging information: its own, or in the file that its distribution has put that into.
    fn lines(&mut self, path: &Path, file: &NamedFile) -> Option<Lines> {
        let apart = file
            .build_id
            .split_at_checked(2)
            .map(|(folder, rest)| PathBuf::from(format!("/usr/lib/debug/.build-id/{folder}/{rest}.debug")));
        let is_id = file.build_id.bytes().all(|byte| byte.is_ascii_hexdigit());
        [Some(path.to_owned()), apart.filter(|_| is_id)].into_iter().flatten().find_map(|path| {
            let opened = Regular::open(&path).ok()?;
            self.room = self.room.checked_sub(opened.len_bytes())?;
            let data = opened.read().ok()?;
            Lines::of(&object::File::parse(&*data).ok()?)
        })
    }

    /// What is known of a file; read at the first time.
    fn known(&mut self, file: &NamedFile) -> Option<Rc<Known>> {
        if let Some(known) = self.known.get(file) {
            return known.clone();
        }
        if self.known.len() >= MOST_FILES {
            return None;
        }
        let known = self.read(file).map(Rc::new);
        self.known.insert(file.clone(), known.clone());
        known
    }

    fn read(&mut self, file: &NamedFile) -> Option<Known> {
        let opened = Regular::open(&file.path).ok()?;
        let is_same = opened.id.inode == file.id.inode
            && file.id.device.is_none_or(|device| device == opened.id.device);
        if file.build_id.is_empty() && !is_same {
            return None;
        }
        self.room = self.room.checked_sub(opened.len_bytes())?;
        let data = opened.read().ok()?;
        let parsed = object::File::parse(&*data).ok()?;
        let build_id = parsed.build_id().ok().flatten().unwrap_or_default();
        let build_id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        if !file.build_id.is_empty() && build_id != file.build_id {
            return None;
        }
        let (lines, path) = (OnceCell::new(), file.path.clone());
        Some(Known { lines, path, index: symbols_of(&data, None).ok()?, segments: segments(&data)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> NamedFile {
        let path = std::fs::read_link("/proc/self/exe").unwrap();
        let FileId { device, inode } = Regular::open(&path).unwrap().id;
        let id = MappedId { device: Some(device), inode };
        NamedFile { path, id, build_id: String::new() }
    }

    fn symbols() -> Symbols {
        Symbols::new(FileId { device: 0, inode: 0 })
    }

    #[test]
    fn a_symbol_without_a_length_ends_with_its_segment() {
        let mut files = Files { known: HashMap::new(), room: MOST_BYTES };
        let known = files.known(&own()).unwrap();
        let mut named = 0;
        for (_, start, _) in &known.segments {
            let start = usize::try_from(*start).unwrap();
            named += usize::from(known.index.covering(start).is_some());
            assert!(known.covering(start).is_none_or(|entry| entry.addr >= start), "{start:#x}");
        }
        assert!(named > 0, "nothing to tell apart");
    }

    #[test]
    fn evt_2_another_file_under_that_name_gives_no_names() {
        let files = || Files { known: HashMap::new(), room: MOST_BYTES };
        assert!(files().known(&own()).is_some());
        let id = MappedId { inode: own().id.inode + 1, ..own().id };
        assert!(files().known(&NamedFile { id, ..own() }).is_none(), "another number, and no build id");
        assert!(files().known(&NamedFile { build_id: "00".into(), ..own() }).is_none(), "another build id");
        assert!(Files { room: 100, ..files() }.known(&own()).is_none(), "too much to read");
    }

    /// A process that has not mapped the region is none of ours, whatever an event says.
    #[test]
    fn evt_2_only_traced_processes_are_asked_for_their_mappings() {
        let here = evt_2_only_traced_processes_are_asked_for_their_mappings as *const () as u64;
        assert_eq!(symbols().name_in_process(std::process::id(), here), None);
    }

    #[test]
    fn names_of_a_traced_process_are_found_by_address() {
        let layout = crate::wire::Layout {
            config_len: 0,
            stats_len: 4096,
            maps_len: 0,
            ring_count: 1,
            ring_len: 4096,
        };
        let (_region, fd) = crate::wire::Region::create(layout, b"", Default::default()).unwrap();
        let function = names_of_a_traced_process_are_found_by_address as *const ();
        // SAFETY: on that ABI a function pointer points to its descriptor.
        let addr = if cfg!(target_abi = "elfv1") { unsafe { *function.cast() } } else { function as u64 };
        let symbols = Symbols::new(FileId::of(&fd).unwrap());
        let name = symbols.name_in_process(std::process::id(), addr).unwrap();
        assert!(name.raw().contains("names_of_a_traced_process_are_found_by_address"), "{name:?}");
    }
}
