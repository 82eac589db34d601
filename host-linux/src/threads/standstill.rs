//! All other threads stand still, so that one that executes a program may ignore what their hits raise.
//!
//! Each is sent a signal, whose handler says that the thread stands ([`Halt`]) and waits there. One that is
//! in a hit goes on and is sent the next one: nobody stands with anything of ours in its hands. A thread that
//! begins meanwhile was made by one that did not stand yet, so two looks in a row that find everybody
//! standing have found everybody. One that cannot stand (it waits for a child of `vfork`) is waited for in
//! vain, for a while: then nobody stands.

use super::copy;
use crate::signals::owned::NEVER_BLOCKED;
use crate::sys::{self, SigInfo, SignalSet};
use crate::text;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

/// The standstill that others are asked for; 0: none.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// The number of the last one. Written by who has changed [`ASKED`] from 0.
static LAST: AtomicU32 = AtomicU32::new(0);

/// Rises whenever a thread stands.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

/// How long it is waited for who arrives next, before all that are missing are asked once more: those that
/// were in a hit.
const PATIENCE_NS: libc::c_long = 1_000_000;

/// So often nobody arrives in that time before the standstill is given up.
const MOST_IN_VAIN: usize = 1_000;

/// What a thread is sent: never blocked, as any hit may raise it.
const SIGNAL: c_int = libc::SIGBUS;
const _: () = assert!(NEVER_BLOCKED.has(SIGNAL));

/// `SI_QUEUE`: sent with a value.
const WITH_VALUE: c_int = -1;

/// In a thread's block: in which standstill it stands, and which thread it is; 0: it does not.
pub(crate) struct Halt {
    number: AtomicU32,
    thread: AtomicU32,
}

/// A thread that stands, in one standstill.
#[derive(Clone, Copy)]
pub(crate) struct Standing {
    number: u32,
    thread: u32,
}

/// Answers whether a thread stands so: who knows all blocks.
pub(crate) type IsStanding = fn(Standing) -> bool;

impl Standing {
    fn of(number: u32, thread: u32) -> Self {
        Self { number, thread }
    }
}

/// Whether [`SIGNAL`] came to ask for a standstill.
#[inline]
pub(crate) fn is_asked(info: &SigInfo) -> bool {
    let asking = asking();
    (info.signal, info.code, info.addr) == (asking.signal, asking.code, asking.addr)
}

fn asking() -> SigInfo {
    SigInfo::fault(SIGNAL, WITH_VALUE, (&raw const ASKED).expose_provenance())
}

impl Halt {
    /// The calling thread, whose block this is in, and which has nothing of ours in its hands, stands still
    /// as long as it is asked to. All signals are blocked from then on; a handler's return brings the mask
    /// back. Before that, the next question would be another frame on the program's stack, and the one after
    /// it the next.
    #[cold]
    pub(crate) fn stand(&self) {
        sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
        let number = ASKED.load(Ordering::SeqCst);
        if number != 0 {
            // The number last: who reads it reads this thread's name then.
            self.thread.store(sys::thread_id(), Ordering::SeqCst);
            self.number.store(number, Ordering::SeqCst);
            ARRIVED.fetch_add(1, Ordering::SeqCst);
            sys::wake(&ARRIVED);
            while ASKED.load(Ordering::SeqCst) == number {
                sys::wait_while(&ASKED, number, None);
            }
            self.number.store(0, Ordering::SeqCst);
        }
    }

    /// Whether its thread is the one that stands so.
    pub(super) fn is(&self, standing: Standing) -> bool {
        self.number.load(Ordering::SeqCst) == standing.number
            && self.thread.load(Ordering::SeqCst) == standing.thread
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.number.store(0, Ordering::Relaxed);
    }
}

/// No other thread of this process runs until this is dropped.
pub(crate) struct Standstill(());

impl Standstill {
    /// Waits until all other threads stand still; `None`: one does not. Where another thread asks for a
    /// standstill, this one stands first. All signals are blocked, and nothing of ours is in its hands.
    pub(super) fn begin(own: &Halt, is_standing: IsStanding) -> Option<Self> {
        // The words are another process's, or the system calls are not allowed, or an emulator has threads of
        // its own and keeps the signal.
        if copy::is_guest() || sys::is_confined() || text::is_unprotecting() {
            return None;
        }
        while ASKED.compare_exchange(0, u32::MAX, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            own.stand();
        }
        let number = LAST.load(Ordering::Relaxed) % (u32::MAX - 1) + 1;
        LAST.store(number, Ordering::Relaxed);
        ASKED.store(number, Ordering::SeqCst);
        let standstill = Self(());
        let (mut looks, mut in_vain) = (0, 0);
        while looks < 2 {
            let before = ARRIVED.load(Ordering::SeqCst);
            let missing = ask(number, is_standing)?;
            looks = if missing == 0 { looks + 1 } else { 0 };
            in_vain = if wait_for(missing, before) || missing == 0 { 0 } else { in_vain + 1 };
            if in_vain == MOST_IN_VAIN {
                return None;
            }
        }
        Some(standstill)
    }
}

/// Waits until so many threads have arrived, or nobody does any more; whether somebody has.
fn wait_for(missing: u32, before: u32) -> bool {
    loop {
        let now = ARRIVED.load(Ordering::SeqCst);
        let arrived = now.wrapping_sub(before);
        if arrived >= missing {
            return arrived != 0;
        }
        sys::wait_while(&ARRIVED, now, Some(PATIENCE_NS));
        if ARRIVED.load(Ordering::SeqCst) == now {
            return arrived != 0;
        }
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        ASKED.store(0, Ordering::SeqCst);
        sys::wake(&ASKED);
    }
}

/// In a fork's child, which has one thread.
pub(super) fn forked() {
    ASKED.store(0, Ordering::Relaxed);
}

/// Asks every thread that does not stand yet, and tells how many those are; `None`: nobody tells which
/// threads there are.
fn ask(number: u32, is_standing: IsStanding) -> Option<u32> {
    let own = sys::thread_id();
    let mut missing = 0;
    sys::for_each_thread(&mut |thread| {
        if thread != own && !is_standing(Standing::of(number, thread)) {
            missing += 1;
            sys::queue_to_thread(thread, &asking());
        }
    })?;
    Some(missing)
}
