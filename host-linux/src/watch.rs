//! Watchpoints in a process: breakpoint events of `perf_event_open`, one for each thread.
//!
//! Each event raises SIGTRAP in the thread that has made the reference, right after the instruction
//! (`sigtrap`, Linux 5.13), and is inherited by the threads that this one starts later. A thread that starts
//! while a watchpoint is being armed may be missed; references that the kernel makes in system calls are not
//! seen. Source: perf_event_open(2), `include/uapi/linux/perf_event.h`, Linux 6.12.

use crate::arch::{WATCHPOINTS, check_watch};
use crate::lock::{Lock, found_once};
use crate::sys::{self, SigInfo};
use core::ffi::c_int;
use core::sync::atomic::{AtomicUsize, Ordering};
use probe_core::error::Refusal;
use probe_core::host::Watchpoints;
use probe_core::limits::MAX_WATCHPOINTS;
use probe_core::{Trigger, WatchRange};
use std::sync::OnceLock;

/// The `si_code` of a SIGTRAP that such an event raises.
const TRAP_PERF: c_int = 6;

/// The upper half of an event's word, by which our events differ from the program's own.
const OURS: usize = 0x9b0b << 16;
/// The number of times that a register has been armed or disarmed, in the word's bits from 4 on.
const GENERATION: usize = 0xfff;

const REFUSED: Refusal =
    Refusal::unsupported("linux.watch_refused", "the system gives no breakpoint event for that memory now");
const NO_EVENTS: Refusal = Refusal::unsupported(
    "linux.no_watchpoints",
    "the system gives no breakpoint events that raise SIGTRAP (Linux 5.13, perf_event_paranoid, an emulator)",
);

/// The events of each register's number.
static EVENTS: Lock<[Vec<c_int>; MAX_WATCHPOINTS]> = Lock::new([const { Vec::new() }; MAX_WATCHPOINTS]);
/// Counts up to [`GENERATION`] and again, so that a trap of an event that was closed a moment ago is
/// recognised.
static GENERATIONS: [AtomicUsize; MAX_WATCHPOINTS] = [const { AtomicUsize::new(0) }; MAX_WATCHPOINTS];

/// Before a fork.
pub(crate) fn hold() {
    EVENTS.take();
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread has called [`hold`] before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { EVENTS.give() };
}

/// After a fork, in the child: its threads are not watched, and the parent's events must be the parent's
/// alone.
pub(crate) fn forked() {
    EVENTS.lock().iter_mut().for_each(|events| events.drain(..).for_each(sys::close));
}

/// The power that the process has, where the system gives it.
pub(crate) struct BreakpointEvents;

/// The power, or why there is none.
///
/// # Errors
/// The processor is not supported, or the system does not let a process have such events.
pub(crate) fn power() -> Result<&'static dyn Watchpoints, Refusal> {
    static FOUND: OnceLock<Result<(), Refusal>> = OnceLock::new();
    static CELL: AtomicUsize = AtomicUsize::new(0);
    let found = found_once(&FOUND, || {
        let range = WatchRange {
            addr: (&raw const CELL).addr(),
            len_bytes: size_of::<usize>(),
            trigger: Trigger::Write,
        };
        check_watch(&range)?;
        let event = open(&range, 0, sys::thread_id()).map_err(|_| NO_EVENTS)?;
        sys::close(event);
        Ok(())
    });
    (*found).map(|()| &BreakpointEvents as &dyn Watchpoints)
}

// SAFETY: `disarm` closes the events, and what is on its way is told by its generation.
unsafe impl Watchpoints for BreakpointEvents {
    fn count(&self) -> usize {
        WATCHPOINTS
    }

    fn check(&self, range: &WatchRange) -> Result<(), Refusal> {
        check_watch(range)
    }

    fn arm(&self, index: usize, range: &WatchRange) -> Result<(), Refusal> {
        let Some(generation) = GENERATIONS.get(index) else { return Err(REFUSED) };
        let mut events = EVENTS.lock();
        let generation = generation.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        let word = OURS | (generation & GENERATION) << 4 | index;
        let Some(events) = events.get_mut(index) else { return Err(REFUSED) };
        for thread in threads()? {
            match open(range, word, thread) {
                Ok(event) => events.push(event),
                // It has ended meanwhile.
                Err(libc::ESRCH) => {}
                Err(_) => {
                    events.drain(..).for_each(sys::close);
                    return Err(REFUSED);
                }
            }
        }
        Ok(())
    }

    fn disarm(&self, index: usize) {
        let Some(generation) = GENERATIONS.get(index) else { return };
        generation.fetch_add(1, Ordering::SeqCst);
        if let Some(events) = EVENTS.lock().get_mut(index) {
            events.drain(..).for_each(sys::close);
        }
    }
}

/// What a SIGTRAP says about watchpoints.
pub(crate) enum Signal {
    /// Nothing.
    NotOurs,
    /// It comes from one that was disarmed meanwhile.
    Late,
    /// The instruction before the interrupted one has accessed the range of this register.
    Of(usize),
}

/// Decides whether one of our events has raised the SIGTRAP with this `info`. In the signal handler.
pub(crate) fn signal(info: &SigInfo) -> Signal {
    let word = info.data();
    if info.code != TRAP_PERF || word & !0xffff != OURS {
        return Signal::NotOurs;
    }
    let index = word & 0xf;
    let now = GENERATIONS.get(index).map(|generation| generation.load(Ordering::SeqCst) & GENERATION);
    if now == Some(word >> 4 & GENERATION) { Signal::Of(index) } else { Signal::Late }
}

/// Opens the event of one thread.
fn open(range: &WatchRange, word: usize, thread: u32) -> Result<c_int, c_int> {
    const TYPE_BREAKPOINT: u64 = 5;
    const SIZE: u64 = 128;
    const INHERIT: u64 = 1 << 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const INHERIT_THREAD: u64 = 1 << 35;
    const REMOVE_ON_EXEC: u64 = 1 << 36;
    const SIGTRAP: u64 = 1 << 37;
    const READ: u64 = 1;
    const WRITE: u64 = 2;
    let kind = match range.trigger {
        Trigger::Write => WRITE,
        Trigger::ReadWrite => READ | WRITE,
    };
    // `struct perf_event_attr` as doublewords, in the byte order of the machines that this is for.
    let mut attributes = [0_u64; 16];
    attributes[0] = TYPE_BREAKPOINT | SIZE << 32;
    // At every reference.
    attributes[2] = 1;
    attributes[5] = INHERIT | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR | INHERIT_THREAD | REMOVE_ON_EXEC | SIGTRAP;
    attributes[6] = kind << 32;
    attributes[7] = range.addr as u64;
    attributes[8] = range.len_bytes as u64;
    attributes[15] = word as u64;
    sys::perf_event_open(&attributes, thread)
}

/// The process's threads.
fn threads() -> Result<Vec<u32>, Refusal> {
    let folder = std::fs::read_dir("/proc/self/task").map_err(|_| REFUSED)?;
    Ok(folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}
