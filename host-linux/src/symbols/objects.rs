//! The loaded objects: the program, its shared objects, the vDSO; kept up to date as they come and go.
//!
//! The loader counts its additions and removals (`dlpi_adds`, `dlpi_subs`), so a look at the counters before
//! every lookup is enough to stay right. Not for the hit path: it takes the loader's lock.

use super::copied::Copied;
use super::foreign;
use crate::lock::Lock;
use crate::{memory, sys};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicBool;
use probe_elf_symbols::building;
use probe_elf_symbols::file::{self, Mapped};
use probe_elf_symbols::index::Index;
use probe_elf_symbols::sequences::Sequences;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What an object is to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The main program.
    Program,
    /// A shared object.
    Library,
    /// The loader (ld.so).
    Loader,
    /// The kernel's own.
    Vdso,
    /// A C library of another namespace (`dlmopen`), which the loader does not name to this one. Nobody means
    /// its functions by their names.
    Foreign,
}

/// Whether an object of this name is a C library, or the part of one that starts threads.
pub(crate) fn is_libc(name: &str) -> bool {
    ["libc.so", "libpthread.so", "ld-musl"].into_iter().any(|libc| name.starts_with(libc))
}

/// One loadable segment, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) is_executable: bool,
}

/// One loaded object.
#[derive(Debug)]
pub(crate) struct Object {
    /// The file's name without its directory.
    pub(crate) name: String,
    path: PathBuf,
    pub(crate) role: Role,
    /// What is added to the file's addresses.
    pub(crate) bias: usize,
    pub(crate) segments: Vec<Segment>,
    /// The address of `.eh_frame_hdr`.
    pub(crate) eh_frame_header: Option<usize>,
    /// The unwind tables, copied when they are first asked for.
    pub(super) unwind: OnceLock<Option<Copied>>,
    build_id: Option<Vec<u8>>,
    index: OnceLock<Index>,
    sequences: OnceLock<Sequences>,
    /// Whether the guard has seen to its system calls.
    pub(crate) is_guarded: AtomicBool,
    /// The code that indirect functions have resolved to: (code, length, index of the symbol).
    pub(crate) resolved: Lock<Vec<(usize, usize, u32)>>,
}

impl Object {
    /// The object's symbols, read when they are first asked for.
    pub(crate) fn index(&self) -> &Index {
        if let Some(index) = self.index.get() {
            return index;
        }
        let _building = building::begin();
        self.index.get_or_init(|| self.read_index().unwrap_or_default())
    }

    fn read_index(&self) -> std::io::Result<Index> {
        if self.role == Role::Vdso {
            return file::symbols_of(&self.image(), None);
        }
        let data = self.file()?;
        let path = std::fs::read_link(&self.path).unwrap_or_else(|_| self.path.clone());
        file::symbols_of(&data, Some(&path))
    }

    /// The file that was loaded.
    fn file(&self) -> std::io::Result<Mapped> {
        let data = Mapped::open(&self.path)?;
        // It may have been replaced since.
        if self.build_id.is_some() && file::build_id(&data) != self.build_id {
            return Err(std::io::Error::other("not the file that was loaded"));
        }
        Ok(data)
    }

    /// The object's restartable sequences, searched for at the first request.
    pub(crate) fn sequences(&self) -> &Sequences {
        if let Some(sequences) = self.sequences.get() {
            return sequences;
        }
        let _building = building::begin();
        self.sequences.get_or_init(|| self.file().map(|data| Sequences::of_file(&data)).unwrap_or_default())
    }

    /// The first segment as it is in memory: all of a vDSO.
    fn image(&self) -> Vec<u8> {
        let Some(first) = self.segments.first() else { return Vec::new() };
        let len = (first.end - first.start).next_multiple_of(sys::page_len());
        let mut image = vec![0; len];
        let len = memory::read_some(first.start, &mut image);
        image.truncate(len);
        image
    }

    /// Whether `at` lies in the object.
    pub(crate) fn holds(&self, at: usize) -> bool {
        self.segments.iter().any(|segment| (segment.start..segment.end).contains(&at))
    }

    /// One past the last byte of the segment that `at` lies in.
    pub(super) fn segment_end(&self, at: usize) -> Option<usize> {
        let holds = |segment: &&Segment| (segment.start..segment.end).contains(&at);
        self.segments.iter().find(holds).map(|segment| segment.end)
    }

    /// Whether `at` lies in the object's text.
    pub(crate) fn holds_text(&self, at: usize) -> bool {
        self.segments
            .iter()
            .any(|segment| segment.is_executable && (segment.start..segment.end).contains(&at))
    }

    /// The module's name as listings print it: none for the program itself.
    pub(crate) fn module(&self) -> Option<&str> {
        (self.role != Role::Program).then_some(&self.name)
    }

    fn is_same_load(&self, other: &Self) -> bool {
        self.bias == other.bias && self.segments == other.segments && self.path == other.path
    }
}

/// The loaded objects at one moment.
pub(crate) type Snapshot = Arc<Vec<Arc<Object>>>;

struct State {
    counters: (u64, u64),
    snapshot: Option<Snapshot>,
    /// The text of objects that have been unloaded and not yet reported.
    gone: Vec<Gone>,
    /// How many ranges have ever gone: the newest one's number.
    last_gone: u64,
}

/// A range of text that was unloaded.
#[derive(Clone, Copy)]
struct Gone {
    /// Tells it from a later one at the same addresses.
    number: u64,
    start: usize,
    end: usize,
    /// The thread that is reporting it, or [`NOBODY`].
    reporter: u32,
}

/// No thread has this number.
const NOBODY: u32 = 0;

static STATE: Lock<State> =
    Lock::new(State { counters: (0, 0), snapshot: None, gone: Vec::new(), last_gone: 0 });

/// The objects that are loaded now.
pub(crate) fn snapshot() -> Snapshot {
    STATE.lock().refresh()
}

/// Makes sure that every range of text that was unloaded before the call is reported: by a call of `report`,
/// or by another thread's, which this waits for. A range is reported once, and counts as gone ([`is_gone`])
/// until the report is done, so an object that is loaded there after this has returned is not reported as
/// gone.
pub(crate) fn report_gone(report: &mut dyn FnMut(usize, usize)) {
    STATE.lock().refresh();
    let this = sys::thread_id();
    loop {
        let mut state = STATE.lock();
        if let Some(gone) = state.gone.iter_mut().find(|gone| gone.reporter == NOBODY) {
            gone.reporter = this;
            let Gone { number, start, end, .. } = *gone;
            drop(state);
            report(start, end);
            STATE.lock().gone.retain(|gone| gone.number != number);
        } else if state.gone.iter().any(|gone| gone.reporter != this) {
            drop(state);
            std::thread::yield_now();
        } else {
            // What is left are reports that this call comes out of.
            return;
        }
    }
}

/// Whether the text at `at` belongs to an object that was unloaded and not yet reported: the memory there now
/// is somebody else's.
pub(crate) fn is_gone(at: usize) -> bool {
    let mut state = STATE.lock();
    state.refresh();
    state.gone.iter().any(|gone| (gone.start..gone.end).contains(&at))
}

/// The ranges for which [`is_gone`] is true now.
pub(crate) fn gone_ranges() -> Vec<(usize, usize)> {
    let mut state = STATE.lock();
    state.refresh();
    state.gone.iter().map(|gone| (gone.start, gone.end)).collect()
}

/// The object that `at` lies in.
pub(crate) fn at(at: usize) -> Option<Arc<Object>> {
    snapshot().iter().find(|object| object.holds(at)).cloned()
}

/// Before a fork.
pub(crate) fn hold() {
    building::hold();
    STATE.take();
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread has called [`hold`] before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { STATE.give() };
    // SAFETY: as above.
    unsafe { building::release() };
}

/// In a fork's child: repeats the reports that threads of the parent had not finished, as these threads are
/// not in the child. That is safe: the registry's lock was held over the fork, so a report had changed
/// everything or nothing.
pub(crate) fn forked() {
    STATE.lock().gone.iter_mut().for_each(|gone| gone.reporter = NOBODY);
}

impl State {
    /// Asks the loader under the lock, which a fork waits for: glibc does not reset its own lock
    /// (`_dl_load_write_lock`) in a fork's child, which would wait for ever if another thread had held it.
    fn refresh(&mut self) -> Snapshot {
        let counters = counters();
        if let Some(snapshot) = self.snapshot.as_ref().filter(|_| self.counters == counters) {
            return snapshot.clone();
        }
        let (counters, mut loaded) = enumerate();
        let before = self.snapshot.take().unwrap_or_default();
        for object in &mut loaded {
            if let Some(known) = before.iter().find(|known| known.is_same_load(object)) {
                *object = known.clone();
            }
        }
        for old in before.iter() {
            if !loaded.iter().any(|now| Arc::ptr_eq(now, old)) {
                for text in old.segments.iter().filter(|segment| segment.is_executable) {
                    self.last_gone += 1;
                    let (number, start, end) = (self.last_gone, text.start, text.end);
                    self.gone.push(Gone { number, start, end, reporter: NOBODY });
                }
            }
        }
        self.counters = counters;
        let snapshot = Arc::new(loaded);
        self.snapshot = Some(snapshot.clone());
        snapshot
    }
}

/// How often objects were added and removed.
fn counters() -> (u64, u64) {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid structure.
        let info = unsafe { &*info };
        // SAFETY: `out` is the pair below.
        unsafe { out.cast::<(u64, u64)>().write((info.dlpi_adds, info.dlpi_subs)) };
        1
    }
    let mut counters = (0_u64, 0_u64);
    // SAFETY: `first` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut counters).cast()) };
    counters
}

/// All loaded objects and the counters that go with them.
fn enumerate() -> ((u64, u64), Vec<Arc<Object>>) {
    struct Found {
        counters: (u64, u64),
        objects: Vec<Arc<Object>>,
    }
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, out: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid structure.
        let info = unsafe { &*info };
        // SAFETY: `out` is the structure below, used by nobody else meanwhile.
        let found = unsafe { &mut *out.cast::<Found>() };
        found.counters = (info.dlpi_adds, info.dlpi_subs);
        let is_first = found.objects.is_empty();
        found.objects.push(Arc::new(describe(info, is_first)));
        0
    }
    let mut found = Found { counters: (0, 0), objects: Vec::new() };
    // SAFETY: `each` takes what it is given here.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    let (added, removed) = found.counters;
    // The loader counts the objects of all its namespaces.
    if added.wrapping_sub(removed) > found.objects.len() as u64 {
        let is_known = |at: usize| found.objects.iter().any(|object| object.holds(at));
        let others = foreign::objects(is_libc, &is_known);
        let other = |other: &foreign::Found| Object { role: Role::Foreign, ..describe(&other.info, false) };
        found.objects.extend(others.iter().map(other).map(Arc::new));
    }
    // Musl names the program alone where that is static.
    let vdso = vdso_start();
    if vdso != 0 && found.objects.iter().all(|object| object.role != Role::Vdso) {
        let vdso = foreign::vdso(vdso);
        found.objects.extend(vdso.map(|vdso| Arc::new(describe(&vdso.info, false))));
    }
    (found.counters, found.objects)
}

/// Where the vDSO is mapped, 0 where there is none.
fn vdso_start() -> usize {
    // SAFETY: it has no preconditions.
    unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) as usize }
}

fn describe(info: &libc::dl_phdr_info, is_first: bool) -> Object {
    let bias = info.dlpi_addr as usize;
    // SAFETY: the loader's table of program headers lives as long as the object.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let range = |header: &Phdr| {
        let start = bias.wrapping_add(header.p_vaddr as usize);
        (start, start.wrapping_add(header.p_memsz as usize))
    };
    let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
        let (start, end) = range(header);
        Segment { start, end, is_executable: header.p_flags & libc::PF_X != 0 }
    });
    let segments: Vec<_> = segments.collect();
    let eh_frame = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
    let notes = headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    let given = if info.dlpi_name.is_null() {
        ""
    } else {
        // SAFETY: a C string of the loader's, alive during the callback.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_str().unwrap_or("")
    };
    let vdso = vdso_start();
    // SAFETY: it has no preconditions.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) } as usize;
    let role = if segments.first().is_some_and(|first| vdso != 0 && first.start == vdso) {
        Role::Vdso
    } else if is_first || given.is_empty() {
        Role::Program
    } else if segments.first().is_some_and(|first| loader != 0 && first.start == loader) {
        Role::Loader
    } else {
        Role::Library
    };
    let path = if role == Role::Program { Path::new("/proc/self/exe") } else { Path::new(given) };
    let shown = if role == Role::Program { std::env::current_exe().unwrap_or_default() } else { path.into() };
    Object {
        name: shown.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        path: path.to_owned(),
        role,
        bias,
        eh_frame_header: eh_frame.map(|header| range(header).0),
        build_id: notes.map(range).find_map(|(start, end)| build_id(start, end)),
        segments,
        index: OnceLock::new(),
        unwind: OnceLock::new(),
        sequences: OnceLock::new(),
        is_guarded: AtomicBool::new(false),
        resolved: Lock::new(Vec::new()),
    }
}

#[cfg(target_pointer_width = "64")]
type Phdr = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type Phdr = libc::Elf32_Phdr;

/// The build id in the notes at `start..end`: name "GNU", type 3.
fn build_id(start: usize, end: usize) -> Option<Vec<u8>> {
    let mut notes = vec![0; (end - start).min(4096)];
    let len = memory::read_some(start, &mut notes);
    let mut rest = &notes[..len];
    loop {
        let word = |at: usize| Some(u32::from_ne_bytes(rest.get(at..at + 4)?.try_into().ok()?) as usize);
        let (name_len, data_len, kind) = (word(0)?, word(4)?, word(8)?);
        let data_at = 12 + name_len.next_multiple_of(4);
        let data = rest.get(data_at..data_at + data_len)?;
        if kind == 3 && rest.get(12..12 + name_len)? == b"GNU\0" {
            return Some(data.to_vec());
        }
        rest = rest.get(data_at + data_len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_comes_first_and_holds_this_function() {
        let objects = snapshot();
        assert_eq!(objects[0].role, Role::Program);
        let here = counters as *const () as usize;
        assert!(objects[0].holds(here));
        assert!(objects[0].module().is_none());
        let vdso = objects.iter().filter(|object| object.role == Role::Vdso).count();
        assert_eq!(vdso, usize::from(vdso_start() != 0), "the kernel's own is there, whoever names it");
        assert!(Arc::ptr_eq(&objects, &snapshot()), "nothing has changed, so nothing is read again");
    }

    #[test]
    fn what_has_gone_is_reported_once_and_nobody_goes_on_before_it_is() {
        use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
        // SAFETY: a C string; the library's constructors do nothing that matters.
        let library = unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            // A static program can load nothing; any other must.
            #[cfg(not(target_feature = "crt-static"))]
            panic!("a library that must be there is not");
            #[cfg(target_feature = "crt-static")]
            return;
        }
        let is_there = || snapshot().iter().any(|object| object.name.starts_with("libm.so"));
        assert!(is_there());
        // SAFETY: a live handle, closed once.
        unsafe { libc::dlclose(library) };
        assert!(!is_there());
        let (reports, is_reported) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (is_reporting, others) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                report_gone(&mut |start, _| {
                    reports.fetch_add(1, SeqCst);
                    assert!(is_gone(start));
                    is_reporting.store(true, SeqCst);
                    while others.load(SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    // Time for the other one to go on, if it does.
                    (0..1000).for_each(|_| std::thread::yield_now());
                    is_reported.store(true, SeqCst);
                });
            });
            while !is_reporting.load(SeqCst) {
                std::thread::yield_now();
            }
            others.fetch_add(1, SeqCst);
            report_gone(&mut |_, _| {
                reports.fetch_add(1, SeqCst);
            });
            assert!(is_reported.load(SeqCst), "somebody went on before it was reported");
        });
        assert_eq!(reports.load(SeqCst), 1);
        assert!(gone_ranges().is_empty());
    }

    #[test]
    fn no_object_is_held_twice() {
        let objects = snapshot();
        for (i, a) in objects.iter().enumerate() {
            for b in &objects[..i] {
                assert!(a.segments.iter().all(|s| !b.holds(s.start)), "{} and {}", a.name, b.name);
            }
        }
    }
}
