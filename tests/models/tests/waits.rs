//! Models of a thread that waits for signals while others send them: host-linux's own files on loom's
//! atomics. A kernel of a few lines has, for the thread that waits, what is pending and whether it is
//! blocked; at each point where a pending signal would come, it comes. What is written down while the thread
//! is in the kernel, for good, is a lost signal (HIT_7, HIT_12).

#![allow(dead_code, reason = "the files have more than is modelled")]

mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};
}

mod sys {
    /// One signal is sent here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SignalSet(u64);

    impl SignalSet {
        pub(crate) const EMPTY: Self = Self(0);
        pub(crate) const fn bits(self) -> u64 {
            self.0
        }
        pub(crate) const fn from_bits(bits: u64) -> Self {
            Self(bits)
        }
        pub(crate) const fn with(self, signal: i32) -> Self {
            Self(self.0 | 1 << (signal - 1))
        }
        pub(crate) const fn has(self, signal: i32) -> bool {
            self.0 & 1 << (signal - 1) != 0
        }
    }

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct SigInfo {
        pub(crate) signal: i32,
    }

    impl SigInfo {
        pub(crate) const fn fault(signal: i32, _code: i32, _addr: usize) -> Self {
            Self { signal }
        }
    }
}

mod signals {
    pub(crate) mod owned {
        pub(crate) const NEVER: [i32; 3] = [5, 11, 7];
    }
}

#[path = "../../../host-linux/src/threads/sent.rs"]
mod sent;
#[path = "../../../host-linux/src/threads/wait.rs"]
mod wait;

use atomics::{AtomicU32, Ordering::SeqCst};
use loom::sync::Arc;
use loom::thread;
use sent::{Sent, WrittenDown};
use sys::{SigInfo, SignalSet};
use wait::{Begun, How, Takes, Wait};

const SIGNAL: i32 = 11;
const SET: SignalSet = SignalSet::EMPTY.with(SIGNAL);

/// A process with one thread that waits.
struct Process {
    wait: Wait,
    of_process: Sent,
    /// What is pending in the kernel for the thread that waits.
    pending: AtomicU32,
    /// How often it has been knocked at.
    knocks: AtomicU32,
}

// SAFETY: the cells in it are one thread's, or guarded by states.
unsafe impl Send for Process {}
// SAFETY: as above.
unsafe impl Sync for Process {}

impl Process {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            wait: Wait::new(),
            of_process: Sent::empty(),
            pending: AtomicU32::new(0),
            knocks: AtomicU32::new(0),
        })
    }

    fn write_down(&self) -> WrittenDown {
        self.of_process.put(&SigInfo::fault(SIGNAL, 0, 0))
    }

    /// What another thread does that the kernel has given the process's signal.
    fn pass_on(&self) {
        let written = self.write_down();
        let Some(how) = self.wait.waits_for(SET, &written) else { return };
        if self.of_process.take(SET).is_none() {
            return;
        }
        if how == How::Blocked { &self.pending } else { &self.knocks }.fetch_add(1, SeqCst);
    }

    /// Whether a handler of ours would write something down now, were the signal not blocked.
    fn take_pending(&self) -> bool {
        self.pending.swap(0, SeqCst) != 0
    }

    /// The thread's signals are not blocked: what is pending is written down, and passed on where it takes
    /// nothing itself.
    fn unblocked(&self) {
        if self.take_pending() {
            let written = self.write_down();
            assert_eq!(self.wait.takes(&written), Takes::Others);
        }
    }

    /// All signals are blocked until the call: begins, and looks. Whether it has been answered.
    fn begins_blocked(&self) -> bool {
        let _noted = self.wait.begin_blocked(SET);
        self.of_process.take(SET).is_some()
    }
}

fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A signal is where the kernel's wait finds it: nothing lies written down.
fn is_found(process: &Process) {
    let (is_written, pending) = (process.of_process.take(SET).is_some(), process.pending.load(SeqCst));
    assert!(!is_written, "a signal lies written down while the thread is in the kernel");
    assert_eq!(pending, 1, "the signal has gone");
}

#[test]
fn hit_7_a_wait_in_the_kernel_is_given_what_is_sent() {
    explore(|| {
        let process = Process::new();
        let other = process.clone();
        let sender = thread::spawn(move || other.pass_on());
        process.unblocked();
        let is_answered = process.begins_blocked();
        sender.join().unwrap();
        if !is_answered {
            is_found(&process);
        }
    });
}

#[test]
fn hit_12_a_wait_that_a_handler_interrupts_is_given_what_is_sent() {
    explore(|| {
        let process = Process::new();
        let other = process.clone();
        let sender = thread::spawn(move || other.pass_on());
        if process.begins_blocked() {
            return sender.join().unwrap();
        }
        // A handler of the program's runs before the call, and ours are not blocked meanwhile.
        let suspended = process.wait.suspend();
        process.unblocked();
        process.unblocked();
        let _noted = process.wait.resume(suspended);
        if process.of_process.take(SET).is_some() {
            process.pending.fetch_add(1, SeqCst);
        }
        sender.join().unwrap();
        is_found(&process);
    });
}

#[test]
fn hit_12_a_wait_at_the_probe_is_knocked_at_or_looks() {
    explore(|| {
        let process = Process::new();
        let other = process.clone();
        let sender = thread::spawn(move || other.pass_on());
        let mut hit = 0_u8;
        let begun = Begun { place: 0, of_program: 0 };
        let _noted = process.wait.begin(SET, SignalSet::EMPTY, begun, (&raw mut hit).cast());
        let is_answered = process.of_process.take(SET).is_some();
        process.wait.be_made();
        sender.join().unwrap();
        assert_eq!(process.knocks.load(SeqCst), u32::from(!is_answered));
        assert!(process.of_process.take(SET).is_none(), "nobody will look");
    });
}

#[test]
fn hit_12_a_wait_that_a_handler_leaves_is_over() {
    explore(|| {
        let process = Process::new();
        assert!(!process.begins_blocked());
        let _left = process.wait.suspend();
        let other = process.clone();
        thread::spawn(move || other.pass_on()).join().unwrap();
        assert!(process.of_process.take(SET).is_some(), "it was sent to a thread that does not wait");
    });
}
