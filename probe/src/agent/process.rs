//! This process: its number, whether it is traced, and which ring a thread writes into.
//!
//! A fork changes all of it, and nobody announces a fork. So the process's number lies in a page that the
//! kernel wipes in a fork's child (`MADV_WIPEONFORK`), and a handler that finds a zero there is in a new
//! process. Emulators accept that advice without following it: there every handler asks for the process's
//! number.

use super::confined;
use crate::began::Began;
use crate::wire::{Counting, Meta, Owner, Region, Ring};
use probe_host_linux::sys::{process_id, thread_id};
use probe_host_linux::threads;
use std::ffi::{c_int, c_long};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// What stands for "do not trace".
const MUTED: u32 = u32::MAX;

/// What the agent knows for good once it has started.
pub(super) struct Agent {
    /// The memory shared with the command.
    pub(super) region: Region,
    /// The number of this process image.
    pub(super) image: u32,
    /// Whether forked children are traced.
    pub(super) follow: bool,
    /// Whether hits are only counted.
    pub(super) no_events: bool,
    /// Plant breakpoints only.
    pub(super) no_jumps: bool,
    /// Whether a thread whose ring is full waits.
    pub(super) waits: bool,
}

impl Agent {
    /// What the command wants, in this process image.
    pub(super) fn new(region: Region, image: u32) -> Self {
        let flags = region.flags();
        Self {
            region,
            image,
            follow: flags.follow,
            no_events: flags.no_events,
            no_jumps: flags.no_jumps,
            waits: flags.wait,
        }
    }
}

static AGENT: OnceLock<Agent> = OnceLock::new();
/// The word that a fork wipes; null before [`start`].
static PROCESS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Whether a fork wipes that word.
static IS_WIPED: AtomicBool = AtomicBool::new(false);

/// Makes `agent` known and prepares for forks.
///
/// # Errors
/// No memory.
pub(super) fn start(agent: Agent) -> Result<&'static Agent, std::io::Error> {
    const PAGE: usize = 1 << 16;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    const NO_ADVICE: i32 = 0x7fff;
    // SAFETY: our own mapping, which is still all zero.
    let is_wiped = unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } == 0;
    // SAFETY: as above. No kernel knows this advice: an emulator that accepts it accepts any, and does
    // nothing.
    let is_ignored = unsafe { libc::madvise(page, PAGE, NO_ADVICE) } == 0;
    IS_WIPED.store(is_wiped && !is_ignored, Ordering::Relaxed);
    let word: *mut AtomicU32 = page.cast();
    // SAFETY: mapped and zero, a valid word, never unmapped.
    unsafe { (*word).store(process_id(), Ordering::Relaxed) };
    PROCESS.store(word, Ordering::Release);
    threads::on_thread_end(release_ring);
    Ok(AGENT.get_or_init(|| agent))
}

/// The agent, once it has started.
#[inline]
pub(super) fn agent() -> Option<&'static Agent> {
    AGENT.get()
}

/// The process that runs this code, or `None` if it is not traced. Fit for handlers.
#[inline]
pub(super) fn traced_process(agent: &Agent) -> Option<u32> {
    let word = PROCESS.load(Ordering::Relaxed);
    if word.is_null() {
        return None;
    }
    // SAFETY: not null, so it is the word of `start`.
    let word = unsafe { &*word };
    let known = word.load(Ordering::Relaxed);
    if known == MUTED {
        return None;
    }
    if known != 0 && (IS_WIPED.load(Ordering::Relaxed) || known == process_id()) {
        return Some(known);
    }
    let process = if agent.follow { process_id() } else { MUTED };
    word.store(process, Ordering::Relaxed);
    (process != MUTED).then_some(process)
}

/// The calling thread's `errno`, which is again what it was when this goes: the program's own.
pub(super) struct Errno {
    at: *mut c_int,
    value: c_int,
}

impl Errno {
    pub(super) fn keep() -> Self {
        // SAFETY: has no preconditions.
        let at = unsafe { libc::__errno_location() };
        // SAFETY: the calling thread's own.
        Self { at, value: unsafe { at.read() } }
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above: a pointer goes to no other thread.
        unsafe { self.at.write(self.value) };
    }
}

/// What a function of libc returns that has failed.
pub(super) fn failed(errno: c_int) -> c_long {
    // SAFETY: has no preconditions.
    let own = unsafe { libc::__errno_location() };
    // SAFETY: the calling thread's own.
    unsafe { *own = errno };
    -1
}

/// While it lives, this thread does the agent's own work, which is not traced. Its end brings `errno` back
/// and closes the descriptor for writing text, so that the program finds none but its own.
pub(super) struct Muted {
    was_muted: bool,
    _errno: Errno,
}

impl Muted {
    pub(super) fn new() -> Self {
        let errno = Errno::keep();
        let was_muted = threads::words().is_some_and(|words| words[MUTE].swap(1, Ordering::Relaxed) != 0);
        Self { was_muted, _errno: errno }
    }
}

impl Drop for Muted {
    fn drop(&mut self) {
        if let (Some(words), false) = (threads::words(), self.was_muted) {
            probe_host_linux::close_descriptor();
            words[MUTE].store(0, Ordering::Relaxed);
        }
    }
}

/// While it lives, this thread's hits are no events. As [`Muted`], fit for handlers.
pub(super) struct Alone {
    was_muted: bool,
}

impl Alone {
    pub(super) fn new() -> Self {
        let was_muted = threads::words().is_some_and(|words| words[MUTE].swap(1, Ordering::SeqCst) != 0);
        Self { was_muted }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let (Some(words), false) = (threads::words(), self.was_muted) {
            words[MUTE].store(0, Ordering::SeqCst);
        }
    }
}

/// Whether this process ends: what a thread leaves now, it leaves with it.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The calling thread ends the process, and returns from none of its calls.
pub(super) fn end_calls() {
    // A child that runs in its parent's memory has its parent's calls.
    if !threads::is_guest() {
        IS_ENDING.store(true, Ordering::Relaxed);
        threads::end_calls();
        IS_ENDING.store(false, Ordering::Relaxed);
    }
}

/// Whether the process ends in what the calling thread has called.
pub(super) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed)
}

/// From here to [`unmute`], this thread does the agent's own work.
pub(super) fn mute() {
    std::mem::forget(Muted::new());
}

/// See [`mute`].
pub(super) fn unmute() {
    drop(Muted { was_muted: false, _errno: Errno::keep() });
}

/// The index of the thread's word that says whether it is muted. Words 0 and 1 are its ring.
const MUTE: usize = 2;

/// The indices of the thread's words that name it for counting: its process and its number.
const COUNTING: [usize; 2] = [4, 5];

/// The index of the thread's word that is the mask of its wait (`super::waits`); the next one is the
/// address of the program's own.
#[cfg(feature = "mapped")]
pub(super) const WAIT: usize = {
    const FREE: usize = 6;
    assert!(FREE > COUNTING[1] && FREE > LENT && FREE > MUTE);
    FREE
};

/// The indices of the thread's words that say when the time between two places has begun.
const BEGAN: [usize; 2] = [8, 9];

/// A time between two places begins in this thread. Fit for handlers.
pub(super) fn begin_time(now_ns: u64) {
    if let Some(words) = threads::words() {
        Began(BEGAN.map(|index| &words[index])).begin(now_ns);
    }
}

/// It ends; when it began, if it has begun. Fit for handlers.
pub(super) fn end_time() -> Option<u64> {
    let words = threads::words()?;
    Began(BEGAN.map(|index| &words[index])).end()
}

/// Whose hit it is.
#[derive(Clone, Copy)]
pub(super) struct Here {
    /// The process whose memory this is.
    pub(super) process: u32,
    /// Its child that runs in that memory; its events are its own, while [`threads::words`] are its
    /// parent's.
    pub(super) child: Option<Owner>,
    /// How the thread is called where it counts; `None` for one that counts in words of all.
    pub(super) counting: Option<Counting>,
    /// Whether it does the agent's own work.
    pub(super) is_muted: bool,
}

impl Here {
    /// The number of the thread that owns the words.
    #[inline]
    pub(super) fn thread(&self) -> u32 {
        self.counting.map_or_else(|| threads::number(self.process), Counting::thread)
    }
}

/// Who runs this code; `None` if it is not traced. Fit for handlers.
// Always inlined: to copy the result in wider pieces than it was written in stalls (30.3 ns a counting hit by
// jump instead of 25.3).
#[inline(always)]
pub(super) fn here(agent: &Agent) -> Option<Here> {
    let process = traced_process(agent)?;
    let Some(words) = threads::words() else {
        return Some(Here { process, child: None, counting: None, is_muted: false });
    };
    let child = lent_to(words, process);
    if child.is_some() && !agent.follow {
        return None;
    }
    let counting = if child.is_none() { counting(words, process) } else { None };
    Some(Here { process, child, counting, is_muted: words[MUTE].load(Ordering::Relaxed) != 0 })
}

/// How the thread that owns the words is called.
#[inline]
fn counting(words: &threads::Words, process: u32) -> Option<Counting> {
    let [of, number] = COUNTING.map(|index| &words[index]);
    if of.load(Ordering::Relaxed) != process as usize {
        // A new thread, or a forked process.
        number.store(threads::number(process) as usize, Ordering::Relaxed);
        of.store(process as usize, Ordering::Relaxed);
    }
    Counting::new(process, number.load(Ordering::Relaxed) as u32)
}

/// Whether this is the traced process itself and neither a forked child nor one that still shares its memory
/// (vfork).
pub(super) fn is_traced_process_itself() -> bool {
    let word = PROCESS.load(Ordering::Relaxed);
    // SAFETY: not null, so it is the word of `start`.
    !word.is_null() && unsafe { (*word).load(Ordering::Relaxed) } == process_id()
}

/// The index of the thread's word that says whether a child which shares its memory may be running: 1, or the
/// child's number if the child has asked to be debugged ([`ask_at_execution`]).
const LENT: usize = 3;

/// This thread is about to make a child that shares its memory. Fit for handlers.
pub(super) fn expect_child() {
    if let Some(words) = threads::words() {
        words[LENT].store(1, Ordering::Relaxed);
    }
}

/// Makes this child, which shares its parent's memory, ask to be debugged when it executes a program.
pub(super) fn ask_at_execution() {
    if let Some(words) = threads::words() {
        words[LENT].store(process_id() as usize, Ordering::Relaxed);
    }
}

/// Whether [`ask_at_execution`] was called in this child. Fit for handlers.
pub(super) fn asks_at_execution() -> bool {
    threads::words().is_some_and(|words| {
        let child = words[LENT].load(Ordering::Relaxed);
        child > 1 && child == process_id() as usize
    })
}

/// Whether this process has been restored for good to what it would be without the agent.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Stops tracing in this process, and keeping signals and masks from it, for good.
pub(super) fn give_up() {
    IS_GIVEN_UP.store(true, Ordering::Relaxed);
    let word = PROCESS.load(Ordering::Relaxed);
    // SAFETY: null, or the word of `start`.
    if let Some(word) = unsafe { word.as_ref() } {
        word.store(MUTED, Ordering::Relaxed);
    }
}

/// Whether [`give_up`] was called, here or in an ancestor before the fork.
pub(super) fn is_given_up() -> bool {
    IS_GIVEN_UP.load(Ordering::Relaxed)
}

/// The child that runs this code in its parent's memory, if it is one. Asks the kernel only from the moment
/// that such a child is expected until the parent is back.
#[inline]
fn lent_to(words: &threads::Words, process: u32) -> Option<Owner> {
    if words[LENT].load(Ordering::Relaxed) == 0 {
        return None;
    }
    let pid = process_id();
    if pid == process {
        words[LENT].store(0, Ordering::Relaxed);
        return None;
    }
    Some(Owner { pid, tid: thread_id() })
}

/// The ring of the running thread, with the owner of its events; `None` if all rings are taken. Fit for
/// handlers.
#[inline]
pub(super) fn thread_ring(
    agent: &Agent,
    process: u32,
    child: Option<Owner>,
) -> Option<(Ring<'static>, Owner)> {
    let [ring, of, ..] = threads::words()?;
    let number = ring.load(Ordering::Relaxed);
    if number != 0 && of.load(Ordering::Relaxed) == process as usize {
        let ring = agent.region.ring(number - 1);
        // Not its own any more: taken for a dead thread's.
        if let Some(owner) = ring.owner().filter(|owner| owner.pid == process) {
            if child.is_none() && owner.tid == CHILD {
                ring.belong_to(Owner { pid: process, tid: threads::number(process) });
            }
            return Some((ring, child.or(ring.owner())?));
        }
    }
    claim_for_thread(agent, process, child)
}

/// The thread number of an owner that is not known yet: a child has taken the ring of its parent's thread.
const CHILD: u32 = 0;

/// Takes a ring for the thread that owns the words. For a child that shares its parent's memory, that is its
/// parent's thread, which lives on: if the ring were the child's, the command would free it as soon as the
/// child has ended.
#[cold]
fn claim_for_thread(agent: &Agent, process: u32, child: Option<Owner>) -> Option<(Ring<'static>, Owner)> {
    let words = threads::words()?;
    let tid = if child.is_some() { CHILD } else { threads::number(process) };
    let owner = Owner { pid: process, tid };
    let (number, taken) = agent.region.claim_ring(owner, confined::thread_name())?;
    words[0].store(number + 1, Ordering::Relaxed);
    words[1].store(process as usize, Ordering::Relaxed);
    Some((taken, child.unwrap_or(owner)))
}

/// A thread has ended: its ring may be taken by another when it has been read.
fn release_ring(words: &threads::Words) {
    let (Some(agent), [ring, of, ..]) = (agent(), words) else { return };
    let number = ring.swap(0, Ordering::Relaxed);
    let process = PROCESS.load(Ordering::Relaxed);
    if number == 0 || process.is_null() {
        return;
    }
    // SAFETY: not null, so it is the word of `start`.
    let process = unsafe { (*process).load(Ordering::Relaxed) };
    // A ring of the parent process stays the parent's.
    if of.load(Ordering::Relaxed) == process as usize {
        agent.region.ring(number - 1).release();
    }
}

/// A ring for the constructor's messages. Given back when it is dropped.
pub(super) struct Reporter {
    region: Region,
    ring: Option<Ring<'static>>,
}

impl Reporter {
    /// Takes a ring; without one, nothing is said.
    pub(super) fn new(region: Region) -> Self {
        let owner = Owner { pid: process_id(), tid: thread_id() };
        Self { region, ring: region.claim_ring(owner, confined::ask_name()).map(|(_, ring)| ring) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(ring) = &self.ring {
            ring.release();
        }
    }
}

impl Reporter {
    /// Sends a record; waits until there is room, or nobody who reads.
    pub(super) fn send(&self, meta: &Meta) {
        if let Some(ring) = &self.ring {
            send(&self.region, ring, meta);
        }
    }
}

/// How long a thread waits for room before it asks whether anybody reads.
pub(super) const WAIT_MS: u32 = 50;

fn send(region: &Region, ring: &Ring<'static>, meta: &Meta) {
    let bytes = meta.encode();
    loop {
        // SAFETY: the ring is the reporter's own; handlers use another one.
        if let Some(mut room) = unsafe { ring.reserve(4 + bytes.len()) } {
            room.put(&bytes);
            room.commit();
            return;
        }
        if region.is_orphaned_for_sure() || !ring.can_hold(4 + bytes.len()) {
            return;
        }
        region.wake_now();
        ring.wait(4 + bytes.len(), WAIT_MS);
    }
}
