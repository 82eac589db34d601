//! Threads as CPUs: what is asked of all of them has happened on all of them when the caller goes on.
#![cfg(feature = "rendezvous")]

use probe_kernel_kit::rendezvous::{Cpus, Rendezvous};
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

const CPUS: usize = 4;

thread_local! {
    static ME: Cell<usize> = const { Cell::new(0) };
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Each CPU's pending interrupt, and how often it has synchronised.
struct Threads {
    pending: [AtomicBool; CPUS],
    synchronised: [AtomicUsize; CPUS],
}

static SEEN: Threads = Threads {
    pending: [const { AtomicBool::new(false) }; CPUS],
    synchronised: [const { AtomicUsize::new(0) }; CPUS],
};

struct Machine;

// SAFETY: threads are numbered, a flag is an interrupt, and atomics of `SeqCst` are barriers.
unsafe impl Cpus for Machine {
    fn this(&self) -> usize {
        ME.get()
    }

    fn interrupt(&self, number: usize) {
        SEEN.pending[number].store(true, SeqCst);
    }

    fn disable_interrupts(&self) -> bool {
        ENABLED.replace(false)
    }

    fn enable_interrupts(&self) {
        ENABLED.set(true);
        take_interrupt();
    }

    fn synchronise(&self) {
        SEEN.synchronised[ME.get()].fetch_add(1, SeqCst);
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

static ALL: Rendezvous<Machine, CPUS> = Rendezvous::new(Machine);

/// What a CPU does between two instructions.
fn take_interrupt() {
    if ENABLED.get() && SEEN.pending[ME.get()].swap(false, SeqCst) {
        ENABLED.set(false);
        ALL.answer();
        ENABLED.set(true);
    }
}

/// All CPUs but one ask and stop the others, with interrupts enabled and disabled, all at the same time.
#[test]
fn everybody_has_synchronised_and_nobody_runs_beside_a_stop() {
    const ROUNDS: usize = 100;
    // Counted: a thread that ends in between would keep the others waiting.
    static NOT_SYNCHRONISED: AtomicUsize = AtomicUsize::new(0);
    static RAN: AtomicUsize = AtomicUsize::new(0);
    static PROGRESS: [AtomicUsize; CPUS] = [const { AtomicUsize::new(0) }; CPUS];
    static DONE: AtomicUsize = AtomicUsize::new(0);
    let joined = Barrier::new(CPUS);
    thread::scope(|scope| {
        for (number, mine) in PROGRESS.iter().enumerate() {
            let joined = &joined;
            scope.spawn(move || {
                ME.set(number);
                ENABLED.set(false);
                ALL.join();
                ENABLED.set(true);
                joined.wait();
                let progress = || PROGRESS.each_ref().map(|count| count.load(SeqCst));
                // The first one only works: it has nothing else to wait for.
                while number == 0 && DONE.load(SeqCst) < CPUS - 1 {
                    mine.fetch_add(1, SeqCst);
                    take_interrupt();
                }
                for round in 0..if number == 0 { 0 } else { ROUNDS } {
                    mine.fetch_add(1, SeqCst);
                    ENABLED.set(round % 3 != 0);
                    if (round + number) % 2 == 0 {
                        let before: Vec<_> =
                            SEEN.synchronised.iter().map(|count| count.load(SeqCst)).collect();
                        ALL.synchronise();
                        let after = SEEN.synchronised.iter().map(|count| count.load(SeqCst));
                        let missing = after.zip(before).filter(|(after, before)| after == before);
                        NOT_SYNCHRONISED.fetch_add(missing.count(), SeqCst);
                    } else {
                        ALL.stopped(|| {
                            let before = progress();
                            // Long enough, now and then, for somebody who does not wait.
                            let turns = if round % 20 < 2 { 200 } else { 1 };
                            (0..turns).for_each(|_| thread::yield_now());
                            RAN.fetch_add(usize::from(progress() != before), SeqCst);
                        });
                    }
                    ENABLED.set(true);
                    take_interrupt();
                }
                DONE.fetch_add(1, SeqCst);
                while DONE.load(SeqCst) < CPUS {
                    take_interrupt();
                    thread::yield_now();
                }
            });
        }
    });
    assert_eq!((NOT_SYNCHRONISED.load(SeqCst), RAN.load(SeqCst)), (0, 0));
    assert_eq!(ALL.online().collect::<Vec<_>>(), [0, 1, 2, 3]);
}
