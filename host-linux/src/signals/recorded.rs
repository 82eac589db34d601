//! The program's actions, behind handlers of ours.
//!
//! The kernel knows which action is in force: the installed handler is one of the [`Entries`], which are
//! equal but for the number of the [`Version`] that each calls. A child that still shares the program's
//! memory (`vfork`, `posix_spawn`) has kernel actions of its own. Its new actions go into another version and
//! leave the parent's alone, so that no code has to ask which process it is in. A child that installs as many
//! handlers for one signal as there are versions overwrites its parent's.

use crate::sys::{Action, Restorer, SigInfo, SignalSet};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering, fence};

/// How many actions there are for each signal.
pub(super) const VERSIONS: usize = 4;

/// The number of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(usize);

/// The first one.
pub(super) const FIRST: Version = Version(0);

impl Version {
    /// The one with this number, below [`VERSIONS`].
    #[inline(always)]
    pub(super) const fn of(number: usize) -> Self {
        Self(number % VERSIONS)
    }

    /// The version that a new action goes into while this one is in force.
    pub(super) const fn next(self) -> Self {
        Self::of(self.0 + 1)
    }
}

/// A handler as the kernel calls it.
pub(super) type Handler = unsafe extern "C" fn(c_int, *mut SigInfo, *mut c_void);

/// The same handler once for each version.
pub(super) struct Entries(pub(super) [Handler; VERSIONS]);

/// The [`Entries`] of a handler that is generic over the version. Make each only once: a function may have
/// several addresses.
macro_rules! entries {
    ($handler:ident $(, $begins_quietly:literal)?) => {
        $crate::signals::recorded::Entries([
            $handler::<0 $(, $begins_quietly)?>,
            $handler::<1 $(, $begins_quietly)?>,
            $handler::<2 $(, $begins_quietly)?>,
            $handler::<3 $(, $begins_quietly)?>,
        ])
    };
}
pub(super) use entries;

impl Entries {
    /// The handler to be given to the kernel.
    pub(super) fn address(&self, version: Version) -> usize {
        self.0[version.0] as usize
    }

    /// The version whose handler has this address; `None` if it is not one of ours.
    pub(super) fn version(&self, handler: usize) -> Option<Version> {
        self.0.iter().position(|&entry| entry as usize == handler).map(Version)
    }
}

/// How a handler begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begins {
    /// With our signals open.
    Open,
    /// With all signals blocked.
    Quiet,
}

/// The handlers of a signal that is ours.
pub(super) struct OwnEntries {
    pub(super) open: Entries,
    pub(super) quiet: Entries,
}

impl OwnEntries {
    /// The handler to be given to the kernel.
    pub(super) fn address(&self, version: Version, begins: Begins) -> usize {
        let entries = if begins == Begins::Quiet { &self.quiet } else { &self.open };
        entries.address(version)
    }

    /// As [`Entries::version`].
    pub(super) fn version(&self, handler: usize) -> Option<Version> {
        self.open.version(handler).or_else(|| self.quiet.version(handler))
    }
}

/// The handler that the kernel has called: one of ours, with the program's action of this version behind it.
#[derive(Clone, Copy)]
pub(super) struct Called {
    pub(super) signal: c_int,
    pub(super) version: Version,
    /// The handlers of ours for this signal.
    pub(super) entries: &'static OwnEntries,
}

/// The actions of one signal.
pub(super) struct Versions([Recorded; VERSIONS]);

impl Versions {
    /// Default actions.
    pub(super) const fn new() -> Self {
        Self([const { Recorded::new() }; VERSIONS])
    }

    /// An action.
    pub(super) fn read(&self, version: Version) -> Action {
        self.0[version.0].read()
    }

    /// Whether one of them is such.
    pub(super) fn any(&self, mut is_such: impl FnMut(Action) -> bool) -> bool {
        self.0.iter().any(|recorded| is_such(recorded.read()))
    }

    /// Replaces the action of a version that is not in force in this process. One writer at a time.
    pub(super) fn write(&self, version: Version, action: &Action) {
        self.0[version.0].write(action);
    }
}

/// An action that a signal handler can read while another thread changes it: a sequence lock.
struct Recorded {
    /// Odd while it is being changed.
    sequence: AtomicUsize,
    handler: AtomicUsize,
    flags: AtomicUsize,
    restorer: AtomicUsize,
    mask: [AtomicUsize; 2],
}

impl Recorded {
    /// The default action.
    const fn new() -> Self {
        Self {
            sequence: AtomicUsize::new(0),
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicUsize::new(0),
            restorer: AtomicUsize::new(0),
            mask: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// The action.
    fn read(&self) -> Action {
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            let [low, high] = &self.mask;
            let mask = low.load(Ordering::Relaxed) as u64 | (high.load(Ordering::Relaxed) as u64) << 32;
            let action = Action {
                handler: self.handler.load(Ordering::Relaxed),
                flags: self.flags.load(Ordering::Relaxed),
                restorer: Restorer::new(self.restorer.load(Ordering::Relaxed)),
                mask: SignalSet::from_bits(mask),
            };
            fence(Ordering::Acquire);
            if before & 1 == 0 && self.sequence.load(Ordering::Relaxed) == before {
                return action;
            }
            core::hint::spin_loop();
        }
    }

    /// Replaces the action, normalised as the kernel does. One writer at a time; no handler that the writer's
    /// thread runs meanwhile reads it.
    fn write(&self, action: &Action) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.handler.store(action.handler, Ordering::Relaxed);
        self.flags.store(action.flags, Ordering::Relaxed);
        self.restorer.store(action.restorer.address(), Ordering::Relaxed);
        // Nobody blocks these two.
        let bits = action.mask.without(libc::SIGKILL).without(libc::SIGSTOP).bits();
        let [low, high] = &self.mask;
        low.store(bits as u32 as usize, Ordering::Relaxed);
        high.store((bits >> 32) as usize, Ordering::Relaxed);
        self.sequence.store(before + 2, Ordering::Release);
    }
}
