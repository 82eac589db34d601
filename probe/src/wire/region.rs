//! The memory that the command creates and the agents map.

use super::calls::Calls;
use super::futex;
use super::maps::{self, MapRoom, STATS_LEN};
use super::plan::MapPlan;
use super::ring::{From, Owner, Ring, RingControl};
use super::stats::{Counters, Durations};
use probe_bpf::Map;
use probe_bpf::map::{Line as MapLine, NoMemory};
use probe_host_linux::sys;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// "probetrc", and the version of this layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"probetr6");
/// Everything but the rings' bytes starts at a multiple of this.
const PAGE: usize = 4096;

/// The sizes of a region, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Layout {
    /// The plans.
    pub config_len: usize,
    /// Counters and histograms.
    pub stats_len: usize,
    /// How many rings there are: how many threads can write at the same time.
    pub ring_count: usize,
    /// The bytes of one ring.
    pub ring_len: usize,
    /// The first bytes of the statistics, which belong to the maps of rules.
    pub maps_len: usize,
}

/// What the agent is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Trace forked children and executed programs, too.
    pub follow: bool,
    /// Count only, send no events.
    pub no_events: bool,
    /// Plant breakpoints only, no jumps.
    pub no_jumps: bool,
    /// A thread whose ring is full waits instead of dropping its event.
    pub wait: bool,
}

/// The words that say where an agent lies (`super::placed`), and in which process.
pub(super) const PLACED_WORDS: usize = 7;

/// Into how many processes a command can put agents.
pub const MOST_PLACED: usize = 64;

const _: () = assert!(size_of::<Header>() <= PAGE);

/// The first page of a region.
#[repr(C)]
pub struct Header {
    pub(super) magic: u64,
    layout: Layout,
    /// One past the highest ring that was ever taken.
    rings_high: AtomicU32,
    /// The number of the next process image.
    next_image: AtomicU32,
    follow: u32,
    no_events: u32,
    no_jumps: u32,
    wait: u32,
    /// The command's process.
    pub(super) reader_process: u32,
    /// The debugger that the first program has had from its start, or 0.
    debugger: AtomicU32,
    /// The next free byte of the statistics.
    stats_next: AtomicU64,
    /// Events lost because all rings were taken.
    lost: AtomicU64,
    /// Raised when the command should look before its time; the command sleeps on it (futex).
    wake: AtomicU32,
    /// Whether the command sleeps.
    asleep: AtomicU32,
    /// Agents that call the command.
    calls: Calls,
    /// Where the command has mapped agents, if it has.
    pub(super) placed: [[AtomicU64; PLACED_WORDS]; MOST_PLACED],
    /// A thread of the command's; the kernel marks it when that has ended.
    pub(super) reader: Line<AtomicU32>,
}

/// Something that has a cache line of its own.
#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) T);

/// Why a region could not be mapped.
#[derive(Debug)]
pub enum MapError {
    /// The operating system refused.
    Os(std::io::Error),
    /// It is not a region, or of another version.
    NotARegion,
}

impl std::fmt::Display for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Os(error) => {
                write!(f, "the memory shared with the traced program cannot be mapped: {error}")
            }
            Self::NotARegion => f.write_str("the memory shared with the traced program has another layout"),
        }
    }
}

impl std::error::Error for MapError {}

/// A mapped region. It stays mapped for good: handlers may use it until the process ends.
#[derive(Clone, Copy)]
pub struct Region {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the mapping lives as long as the process; all shared words are atomics, the rings have their own
// protocol.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Layout {
    /// A layout with rings of `ring_len` bytes (rounded up to whole pages) for plans of `config_len`
    /// bytes and these maps.
    pub fn new(config_len: usize, maps: &MapRoom, ring_len: usize) -> Self {
        let ring_len = ring_len.max(PAGE).next_multiple_of(PAGE);
        let (stats_len, ring_count) = if cfg!(target_pointer_width = "64") {
            (STATS_LEN, 512)
        } else {
            (STATS_LEN, ((128 << 20) / ring_len).clamp(4, 64))
        };
        Self { config_len, stats_len, maps_len: maps.len(), ring_count, ring_len }
    }

    fn stats_start(&self) -> usize {
        (PAGE + self.config_len).next_multiple_of(PAGE)
    }

    fn ring_start(&self, index: usize) -> usize {
        self.stats_start() + self.stats_len + index * (PAGE + self.ring_len)
    }

    fn total(&self) -> usize {
        self.ring_start(self.ring_count)
    }
}

impl Region {
    /// Creates a region in a new memfd, which the caller keeps open as long as new processes may want to map
    /// it.
    ///
    /// # Errors
    /// The operating system refused memory or address space.
    pub fn create(layout: Layout, config: &[u8], flags: Flags) -> Result<(Self, OwnedFd), MapError> {
        // SAFETY: a NUL-terminated name and flags.
        let fd = unsafe {
            libc::memfd_create(c"probe-trace".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if fd < 0 {
            return Err(last_os());
        }
        // SAFETY: a descriptor just created and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: our own descriptor.
        if unsafe { libc::ftruncate64(fd.as_raw_fd(), layout.total() as i64) } != 0 {
            return Err(last_os());
        }
        // A traced program must not cut it off below the command, which would die of the next access.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: our own descriptor.
        if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(last_os());
        }
        let base = map(&fd, layout.total())?;
        let header = Header {
            magic: MAGIC,
            layout,
            rings_high: AtomicU32::new(0),
            next_image: AtomicU32::new(1),
            follow: flags.follow.into(),
            no_events: flags.no_events.into(),
            no_jumps: flags.no_jumps.into(),
            wait: flags.wait.into(),
            reader_process: std::process::id(),
            debugger: AtomicU32::new(0),
            stats_next: AtomicU64::new(layout.maps_len as u64),
            lost: AtomicU64::new(0),
            wake: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            calls: Calls::new(),
            placed: [const { [const { AtomicU64::new(0) }; PLACED_WORDS] }; MOST_PLACED],
            reader: Line(AtomicU32::new(0)),
        };
        // SAFETY: the mapping is larger than a header, page aligned, and nobody else knows it yet.
        unsafe { base.cast::<Header>().write(header) };
        let len = config.len().min(layout.config_len);
        // SAFETY: the plans have `config_len` bytes behind the first page.
        let to = unsafe { base.add(PAGE) };
        // SAFETY: as above; `len <= config_len`.
        unsafe { std::ptr::copy_nonoverlapping(config.as_ptr(), to.as_ptr(), len) };
        Ok((Self { base, layout }, fd))
    }

    /// Maps the region whose memfd is reachable at `path` (`/proc/PID/fd/N`).
    ///
    /// # Errors
    /// The file cannot be opened or mapped, or is not a region.
    pub fn open(path: &CStr) -> Result<Self, MapError> {
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(last_os());
        }
        // SAFETY: a descriptor just opened and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a `stat` is plain numbers.
        let mut stat: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: our own descriptor and a buffer of the right size.
        if unsafe { libc::fstat64(fd.as_raw_fd(), &mut stat) } != 0 {
            return Err(last_os());
        }
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        if len < PAGE {
            return Err(MapError::NotARegion);
        }
        let base = map(&fd, len)?;
        // SAFETY: at least a page is mapped; all words of a header are valid with any bits. Those that are
        // read here were written once, before anybody could open the memfd.
        let header: &Header = unsafe { base.cast().as_ref() };
        let (magic, layout) = (header.magic, header.layout);
        if magic != MAGIC || layout.total() != len {
            return Err(MapError::NotARegion);
        }
        Ok(Self { base, layout })
    }

    pub(super) fn header(&self) -> &'static Header {
        // SAFETY: mapped for good and initialised by `create`; what changes is atomic.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// What the agent is to do.
    pub fn flags(&self) -> Flags {
        let header = self.header();
        Flags {
            follow: header.follow != 0,
            no_events: header.no_events != 0,
            no_jumps: header.no_jumps != 0,
            wait: header.wait != 0,
        }
    }

    /// The command's process.
    pub fn reader_process(&self) -> u32 {
        self.header().reader_process
    }

    /// Calls of agents.
    pub fn calls(&self) -> &'static Calls {
        &self.header().calls
    }

    /// The debugger that the first program has had from its start, or 0.
    pub fn debugger(&self) -> u32 {
        self.header().debugger.load(Ordering::Relaxed)
    }

    /// Tells it to the programs that come later.
    pub fn set_debugger(&self, process: u32) {
        self.header().debugger.store(process, Ordering::Relaxed);
    }

    /// The plans.
    pub fn config(&self) -> &'static [u8] {
        // SAFETY: `config_len` bytes behind the first page, written before anybody else could map them.
        let start = unsafe { self.base.add(PAGE) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.layout.config_len) }
    }

    /// A number for a process image (a program between two execs) that no other has.
    pub fn new_image(&self) -> u32 {
        self.header().next_image.fetch_add(1, Ordering::Relaxed)
    }

    /// Room for one point's counters, as its offset; `None` when the statistics are full.
    pub fn alloc_counters(&self) -> Option<u32> {
        self.alloc(size_of::<Counters>())
    }

    /// Room for one point's durations, as its offset; `None` when the statistics are full.
    pub fn alloc_durations(&self) -> Option<u32> {
        self.alloc(size_of::<Durations>())
    }

    /// A map that [`MapRoom::place`] has placed.
    ///
    /// # Errors
    /// It does not lie in the statistics.
    pub fn map(&self, plan: MapPlan) -> Result<Map, NoMemory> {
        let count = maps::map_lines(plan.kind).ok_or(NoMemory)?;
        let len = count.checked_mul(size_of::<MapLine>()).ok_or(NoMemory)?;
        let is_aligned = (plan.offset as usize).is_multiple_of(align_of::<MapLine>());
        let at = self.stats_at(plan.offset, len).filter(|_| is_aligned).ok_or(NoMemory)?;
        // SAFETY: `len` bytes of the statistics, which begin at a page, aligned as lines are, mapped for
        // good; all words of a line are atomics and any bits are valid.
        maps::over(plan.kind, unsafe { std::slice::from_raw_parts(at.cast().as_ptr(), count) })
    }

    fn alloc(&self, len: usize) -> Option<u32> {
        let len = len.next_multiple_of(64) as u64;
        let limit = self.layout.stats_len as u64;
        let take = |next: u64| (next + len <= limit).then_some(next + len);
        let at = self.header().stats_next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        u32::try_from(at).ok()
    }

    /// The counters at an offset that [`Region::alloc_counters`] gave; `None` where no counters can be.
    pub fn counters(&self, offset: u32) -> Option<&'static Counters> {
        let at = self.stats_at(offset, size_of::<Counters>())?;
        // SAFETY: within the statistics, aligned to 64; all words are atomics and any bits are valid.
        Some(unsafe { at.cast::<Counters>().as_ref() })
    }

    /// The durations at an offset that [`Region::alloc_durations`] gave; `None` where none can be.
    pub fn durations(&self, offset: u32) -> Option<&'static Durations> {
        let at = self.stats_at(offset, size_of::<Durations>())?;
        // SAFETY: within the statistics, aligned to 64; all words are atomics and any bits are valid.
        Some(unsafe { at.cast::<Durations>().as_ref() })
    }

    fn stats_at(&self, offset: u32, len: usize) -> Option<NonNull<u8>> {
        let offset = offset as usize;
        if !offset.is_multiple_of(64) || offset.checked_add(len).is_none_or(|end| end > self.layout.stats_len)
        {
            return None;
        }
        // SAFETY: within the mapping, as just checked.
        Some(unsafe { self.base.add(self.layout.stats_start() + offset) })
    }

    /// The ring number `index`, below [`Region::ring_count`].
    ///
    /// # Panics
    /// Where there is no such ring.
    pub fn ring(&self, index: usize) -> Ring<'static> {
        assert!(index < self.layout.ring_count, "ring {index} does not exist");
        // SAFETY: within the mapping by the layout.
        let control = unsafe { self.base.add(self.layout.ring_start(index)) };
        // SAFETY: a page is reserved for the control words, the ring's bytes follow.
        let data = unsafe { control.add(PAGE) };
        // SAFETY: page aligned; atomics, any bits are valid; mapped for good.
        let control: &'static RingControl = unsafe { control.cast().as_ref() };
        // SAFETY: `ring_len` bytes of the mapping that belong to this ring alone.
        unsafe { Ring::new(control, data.as_ptr(), self.layout.ring_len) }
    }

    /// Everything, as words: for tests that write what no agent does.
    #[doc(hidden)]
    pub fn words(&self) -> &'static [AtomicU64] {
        // SAFETY: page aligned, mapped for good with so many bytes, a multiple of a page; any bits are valid,
        // the words are atomic. What is read without atomics was written before anybody else knew of the
        // mapping.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.layout.total() / 8) }
    }

    /// Where a ring's words begin in [`Region::words`]: a page for its indices, then its bytes.
    #[doc(hidden)]
    pub fn words_of_ring(&self, index: usize) -> usize {
        self.layout.ring_start(index) / 8
    }

    /// How many rings there are.
    pub fn ring_count(&self) -> usize {
        self.layout.ring_count
    }

    /// The bytes of one ring.
    pub(super) fn ring_len(&self) -> usize {
        self.layout.ring_len
    }

    /// How many rings, from the first, have ever been taken.
    pub fn rings_used(&self) -> usize {
        (self.header().rings_high.load(Ordering::Acquire) as usize).min(self.layout.ring_count)
    }

    /// Takes a ring for a thread and returns it with its number: a free one, else one that a thread of the
    /// same process has released, else one of a thread that has died. No lock, no allocation; system calls
    /// only when rings are few.
    pub fn claim_ring(&self, owner: Owner, comm: [u8; 16]) -> Option<(usize, Ring<'static>)> {
        for from in [From::Free, From::Released, From::Dead] {
            for index in 0..self.layout.ring_count {
                let ring = self.ring(index);
                if ring.claim(owner, comm, from) {
                    self.header().rings_high.fetch_max(index as u32 + 1, Ordering::AcqRel);
                    if index > self.layout.ring_count / 2 {
                        // The command must give back rings of threads that have ended.
                        self.wake();
                    }
                    return Some((index, ring));
                }
            }
        }
        None
    }

    /// Counts an event that found no free ring.
    pub fn count_lost(&self) {
        self.header().lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Events that found no free ring so far.
    pub fn lost(&self) -> u64 {
        self.header().lost.load(Ordering::Relaxed)
    }

    /// Wakes the command if it sleeps. One load where it does not.
    #[inline]
    pub fn wake(&self) {
        let header = self.header();
        if header.asleep.load(Ordering::Relaxed) != 0 && header.asleep.swap(0, Ordering::AcqRel) != 0 {
            self.wake_now();
        }
    }

    /// Wakes the command. One system call.
    pub fn wake_now(&self) {
        let wake = &self.header().wake;
        wake.fetch_add(1, Ordering::Release);
        futex::wake(wake);
    }

    /// Declares that this process reads as long as the calling thread lives. When the thread ends, for
    /// whatever reason, nobody waits any more. Call it before anybody writes.
    pub fn read_here(&self) {
        futex::mark_when_this_thread_ends(&self.header().reader.0);
    }

    /// Whether nobody reads any more. One load; fit for handlers.
    #[inline]
    pub fn is_orphaned(&self) -> bool {
        futex::has_ended(&self.header().reader.0)
    }

    /// The same, for a thread that has waited: asks the kernel if the kernel does not mark threads that have
    /// ended.
    pub fn is_orphaned_for_sure(&self) -> bool {
        if self.header().reader.0.load(Ordering::Relaxed) != 0 {
            return self.is_orphaned();
        }
        // SAFETY: signal 0 sends nothing.
        let result = unsafe { sys::call(libc::SYS_kill, [self.header().reader_process as usize, 0]) };
        result == Err(libc::ESRCH)
    }

    /// Sleeps until [`Region::wake`] or for `timeout_ms`. For the command.
    pub fn sleep(&self, timeout_ms: u32) {
        let header = self.header();
        let seen = header.wake.load(Ordering::Acquire);
        header.asleep.store(1, Ordering::Release);
        futex::wait(&header.wake, seen, timeout_ms);
        header.asleep.store(0, Ordering::Release);
    }
}

fn last_os() -> MapError {
    MapError::Os(std::io::Error::last_os_error())
}

/// The hint for our large mappings: far from the objects of a program, whose jumps to detours need the two
/// gigabytes around them. 0 where addresses are too few for that.
pub(crate) const OUT_OF_THE_WAY: usize =
    if cfg!(target_pointer_width = "64") { 0x3000_0000_0000_u64 as usize } else { 0 };

fn map(fd: &OwnedFd, len: usize) -> Result<NonNull<u8>, MapError> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
    let hint = std::ptr::without_provenance_mut(OUT_OF_THE_WAY);
    // SAFETY: a new mapping; where the address is taken, the kernel chooses another one.
    let base = unsafe { libc::mmap64(hint, len, prot, flags, fd.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(last_os());
    }
    NonNull::new(base.cast()).ok_or(MapError::NotARegion)
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::super::stats::Count;
    use super::*;

    fn small() -> Layout {
        Layout { config_len: 10, stats_len: 1 << 16, maps_len: 0, ring_count: 3, ring_len: 4096 }
    }

    fn create() -> (Region, OwnedFd) {
        Region::create(
            small(),
            b"p f\0r g $r",
            Flags { follow: true, no_events: false, no_jumps: true, wait: true },
        )
        .unwrap()
    }

    #[test]
    fn what_one_side_writes_the_other_reads() {
        let (mine, fd) = create();
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let theirs = Region::open(&path).unwrap();
        assert_eq!(theirs.config(), b"p f\0r g $r");
        assert_eq!(theirs.flags(), Flags { follow: true, no_events: false, no_jumps: true, wait: true });
        let counters = theirs.alloc_counters().unwrap();
        theirs.counters(counters).unwrap().share(None).add(Count::Hits, 3);
        assert_eq!(mine.counters(counters).unwrap().get(Count::Hits), 3);
        let (number, ring) = theirs.claim_ring(Owner { pid: 1, tid: 2 }, [0; 16]).unwrap();
        assert_eq!(number, 0);
        // SAFETY: this thread owns the ring.
        let mut room = unsafe { ring.reserve(12) }.unwrap();
        room.put(b"hello");
        room.commit();
        let mut seen = Vec::new();
        assert_eq!(mine.rings_used(), 1);
        Reader::new(mine).read(0, usize::MAX, |record| seen.push(record.to_vec()));
        assert_eq!(seen, [b"hello"]);
    }

    #[test]
    fn rings_run_out_and_come_back() {
        let (region, _fd) = create();
        let owner = Owner { pid: 1, tid: 1 };
        // Process 1 lives as long as the machine runs.
        let rings: Vec<_> = (0..3).map(|_| region.claim_ring(owner, [0; 16]).unwrap().1).collect();
        assert!(region.claim_ring(owner, [0; 16]).is_none());
        rings[1].release();
        assert!(Reader::new(region).free_if_drained(1, false));
        assert!(region.claim_ring(owner, [0; 16]).is_some());
    }

    #[test]
    fn statistics_run_out_without_harm() {
        let (region, _fd) = create();
        let n = (0..).take_while(|_| region.alloc_durations().is_some()).count();
        assert_eq!(n, (1 << 16) / size_of::<Durations>().next_multiple_of(64));
        assert!(region.counters(u32::MAX).is_none() && region.counters(1).is_none());
        assert!(region.durations(1 << 16).is_none());
    }

    #[test]
    fn another_file_is_not_a_region() {
        assert!(matches!(Region::open(c"/proc/self/exe"), Err(MapError::NotARegion | MapError::Os(_))));
        assert!(matches!(Region::open(c"/does/not/exist"), Err(MapError::Os(_))));
    }

    #[test]
    fn a_region_keeps_its_length() {
        let (_region, fd) = create();
        let file = std::fs::File::from(fd);
        let len = file.metadata().unwrap().len();
        assert!(file.set_len(0).is_err() && file.set_len(len + 1).is_err());
        assert_eq!(file.metadata().unwrap().len(), len);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let (region, _fd) = create();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| region.sleep(60_000));
            while !sleeper.is_finished() {
                region.wake();
                std::thread::yield_now();
            }
        });
    }
}
