//! The program that a thread is about to execute in its process's place: what the kernel has been told for
//! that.

use super::standstill::{Halt, IsStanding, Standstill};
use crate::signals::owned::{NEVER_BLOCKED, OWNED};
use crate::signals::writer::{installing_in_quiet, try_installing_in_quiet};
use crate::sys::{self, Action, SignalSet};
use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering, compiler_fence};

/// The kernel's actions, ours, that others have replaced for the time of one execution: of each signal of
/// [`OWNED`].
pub(crate) struct Replaced {
    actions: [Cell<Option<Action>>; OWNED.len()],
    /// Which are to be replaced, and by what.
    choose: Choice,
    /// The other threads, where they stand meanwhile.
    standstill: Cell<Option<Standstill>>,
    /// Whether they have to.
    is_alone: IsAlone,
}

/// Answers the kernel's action of a signal, and what is to take its place, where these threads run.
type Choice = fn(c_int, Others) -> Option<(Action, Action)>;

/// The other threads of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// There are none, or they stand still.
    Stand,
    /// Some run.
    Run,
}

/// How a thread that executes a program gets to be the only one.
#[derive(Clone, Copy)]
pub(crate) enum IsAlone {
    /// It is.
    Already,
    /// The others are to stand still.
    MakeSo(IsStanding),
    /// It need not be.
    No,
}

/// So often the others stand and one of them has the lock of those who install actions.
const MOST_TRIES: usize = 100;

impl Replaced {
    /// None yet.
    pub(crate) const fn new(choose: Choice, is_alone: IsAlone) -> Self {
        let actions = [const { Cell::new(None) }; OWNED.len()];
        Self { actions, choose, standstill: Cell::new(None), is_alone }
    }

    /// `own` is the calling thread's.
    fn replace(&self, own: &Halt) {
        let others = match self.is_alone {
            IsAlone::MakeSo(is_standing) if self.replace_in_standstill(own, is_standing).is_some() => return,
            IsAlone::Already => Others::Stand,
            _ => Others::Run,
        };
        installing_in_quiet(|| self.replace_now(others));
    }

    /// As [`Replaced::replace`], with all others standing; `None`: nothing has changed.
    fn replace_in_standstill(&self, own: &Halt, is_standing: IsStanding) -> Option<()> {
        for _ in 0..MOST_TRIES {
            let standstill = Standstill::begin(own, is_standing)?;
            // Who has the lock may stand with it: before a fork.
            if try_installing_in_quiet(|| self.replace_now(Others::Stand)).is_some() {
                self.standstill.set(Some(standstill));
                return Some(());
            }
        }
        None
    }

    fn replace_now(&self, others: Others) {
        for (signal, kept) in OWNED.into_iter().zip(&self.actions) {
            if let Some((ours, instead)) = (self.choose)(signal, others) {
                kept.set(Some(ours));
                // SAFETY: no handler: the kernel ignores the signal.
                let _ = unsafe { sys::sigaction(signal, Some(&instead)) };
            }
        }
    }

    /// What another thread has installed meanwhile stays.
    fn give_back(&self) {
        installing_in_quiet(|| {
            for (signal, kept) in OWNED.into_iter().zip(&self.actions) {
                // SAFETY: asks only.
                let now = unsafe { sys::sigaction(signal, None) };
                let is_left = now.is_ok_and(|now| now.handler == libc::SIG_IGN);
                if let Some(ours) = kept.take().filter(|_| is_left) {
                    // SAFETY: what was there before: ours.
                    let _ = unsafe { sys::sigaction(signal, Some(&ours)) };
                }
            }
        });
        drop(self.standstill.take());
    }
}

/// Whether a thread is executing a program.
pub(crate) struct Executing {
    /// In the frame of the function that does; null else.
    replaced: AtomicPtr<Replaced>,
    /// The process that does: a child of `vfork` that has executed one leaves both words to its parent.
    process: AtomicU32,
    /// Whether it stands still, as another one does.
    pub(crate) halt: Halt,
}

impl Executing {
    /// Lets others be the kernel's actions until [`Executing::end`]. All signals are blocked.
    pub(crate) fn begin(&self, replaced: &Replaced) {
        replaced.replace(&self.halt);
        self.process.store(sys::process_id(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        self.replaced.store(core::ptr::from_ref(replaced).cast_mut(), Ordering::Relaxed);
    }

    /// Ends what [`Executing::begin`] began. All signals are blocked.
    pub(crate) fn end(&self, replaced: &Replaced) {
        self.replaced.store(core::ptr::null_mut(), Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        replaced.give_back();
    }

    /// Whether [`Executing::begin`] was called, and not its end.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        !self.replaced.load(Ordering::Relaxed).is_null()
    }

    /// Runs a handler of the program's. Where it has interrupted an execution, the kernel's actions are ours
    /// meanwhile, as what the handler runs may be probed, and none of them is blocked. One that leaves by a
    /// longjmp leaves the execution, too.
    #[inline]
    pub(crate) fn interrupt(&self, handler: impl FnOnce()) {
        if !self.is_under_way() {
            return handler();
        }
        self.interrupt_execution(handler);
    }

    #[cold]
    fn interrupt_execution(&self, handler: impl FnOnce()) {
        let all = || sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
        let mask = all();
        let is_own = self.process.load(Ordering::Relaxed) == sys::process_id();
        let replaced = self.replaced.swap(core::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: null, or, as it is this process's, in the frame of a function that this signal has
        // interrupted.
        let replaced = unsafe { replaced.as_ref() }.filter(|_| is_own);
        if let Some(replaced) = replaced {
            replaced.give_back();
        }
        let mask = mask.bits() & !NEVER_BLOCKED.bits();
        sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::from_bits(mask)));
        handler();
        if let Some(replaced) = replaced {
            all();
            self.begin(replaced);
        }
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.halt.reset();
        self.replaced.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}
