//! Agents that call the command: a program is about to be executed that they cannot be loaded into, and
//! that the command can put one into.
//!
//! A call takes one of the places in the region's first page, or waits for one. The caller sleeps until the
//! command has answered, which it does as soon as it debugs the caller.

use super::futex;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many processes can call at the same time.
const MOST_CALLS: usize = 32;

/// How long a caller waits for a place and an answer, and the steps of both, in milliseconds.
const LIMIT_MS: u32 = 5000;
const PLACE_STEP_MS: u32 = 10;
const STEP_MS: u32 = 100;

// What the first word of a place says.
const FREE: u32 = 0;
/// It is being written.
const TAKEN: u32 = 1;
/// The second word is the process that calls.
const CALLS: u32 = 2;
/// The command has seen the call.
const SEEN: u32 = 3;
/// The caller may execute the program.
const ANSWERED: u32 = 4;
/// The caller is not followed.
const REFUSED: u32 = 5;

/// The words of all calls.
#[repr(C)]
pub struct Calls {
    /// Whether the command answers.
    are_answered: AtomicU32,
    /// Counts calls; the command sleeps on it.
    made: AtomicU32,
    /// For each call what has become of it, and the process.
    all: [[AtomicU32; 2]; MOST_CALLS],
}

impl Calls {
    pub(super) const fn new() -> Self {
        Self {
            are_answered: AtomicU32::new(0),
            made: AtomicU32::new(0),
            all: [const { [AtomicU32::new(FREE), AtomicU32::new(0)] }; MOST_CALLS],
        }
    }
}

/// A call that the command has seen.
pub struct Call {
    state: &'static AtomicU32,
    /// The process that calls, as it says.
    pub pid: u32,
}

impl Call {
    /// Lets the caller go on: what it executes is followed, or is not.
    pub fn answer(&self, is_followed: bool) {
        let answer = if is_followed { ANSWERED } else { REFUSED };
        // One that has given up has freed its place.
        if self.state.compare_exchange(SEEN, answer, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            futex::wake(self.state);
        }
    }
}

impl Calls {
    /// Calls the command, for this process `pid`, which is about to execute a program; whether the command
    /// will put an agent into that. `is_over`: nobody answers any more. Fit for handlers.
    pub fn make(&self, pid: u32, is_over: impl Fn() -> bool) -> bool {
        if self.are_answered.load(Ordering::Acquire) == 0 {
            return false;
        }
        let take = |[state, _]: &&[AtomicU32; 2]| {
            state.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let mut left_ms = LIMIT_MS;
        let [state, caller] = loop {
            if let Some(place) = self.all.iter().find(take) {
                break place;
            }
            if left_ms == 0 || is_over() {
                return false;
            }
            // Nobody wakes this one: all who wait for a place would come at each that is free.
            futex::wait(&AtomicU32::new(0), 0, PLACE_STEP_MS);
            left_ms -= PLACE_STEP_MS;
        };
        caller.store(pid, Ordering::Relaxed);
        state.store(CALLS, Ordering::Release);
        self.made.fetch_add(1, Ordering::Release);
        futex::wake(&self.made);
        for _ in 0..left_ms.div_ceil(STEP_MS) {
            let now = state.load(Ordering::Acquire);
            if !matches!(now, CALLS | SEEN) || is_over() {
                break;
            }
            futex::wait(state, now, STEP_MS);
        }
        state.swap(FREE, Ordering::AcqRel) == ANSWERED
    }

    /// From now on calls are answered.
    pub fn begin(&self) {
        self.are_answered.store(1, Ordering::Release);
    }

    /// How many have been made, for [`Calls::wait`].
    pub fn made(&self) -> u32 {
        self.made.load(Ordering::Acquire)
    }

    /// One that nobody has seen.
    pub fn next(&'static self) -> Option<Call> {
        self.all.iter().find_map(|[state, caller]| {
            state.compare_exchange(CALLS, SEEN, Ordering::AcqRel, Ordering::Relaxed).ok()?;
            Some(Call { state, pid: caller.load(Ordering::Relaxed) })
        })
    }

    /// Sleeps while so many have been made, until [`Calls::end`].
    pub fn wait(&self, made: u32) {
        const LONG_MS: u32 = 1000;
        futex::wait(&self.made, made, LONG_MS);
    }

    /// No call is answered any more; wakes who sleeps in [`Calls::wait`].
    pub fn end(&self) {
        self.are_answered.store(0, Ordering::Release);
        self.made.fetch_add(1, Ordering::Release);
        futex::wake(&self.made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_answered_and_its_place_is_free_again() {
        static CALLS: Calls = Calls::new();
        assert!(!CALLS.make(7, || false), "nobody answers");
        CALLS.begin();
        for round in 0..3 * MOST_CALLS as u32 {
            let made = CALLS.made();
            let caller = std::thread::spawn(move || CALLS.make(round, || false));
            let call = loop {
                match CALLS.next() {
                    Some(call) => break call,
                    None => CALLS.wait(made),
                }
            };
            assert_eq!(call.pid, round);
            call.answer(round % 2 == 0);
            assert_eq!(caller.join().unwrap(), round % 2 == 0);
        }
        assert!(CALLS.next().is_none());
        assert!(!CALLS.make(8, || true), "nobody is there any more");
    }

    #[test]
    fn who_finds_no_place_waits_for_one() {
        static CALLS: Calls = Calls::new();
        const ALL: u32 = MOST_CALLS as u32;
        CALLS.begin();
        let mut callers: Vec<_> =
            (0..ALL).map(|pid| std::thread::spawn(move || CALLS.make(pid, || false))).collect();
        while CALLS.made() < ALL {
            std::thread::yield_now();
        }
        let (tell, told) = std::sync::mpsc::channel();
        let waits = move || tell.send(()).is_err();
        callers.push(std::thread::spawn(move || CALLS.make(ALL, waits)));
        told.recv().expect("it waits");
        for _ in 0..=ALL {
            let call = loop {
                let made = CALLS.made();
                match CALLS.next() {
                    Some(call) => break call,
                    None => CALLS.wait(made),
                }
            };
            call.answer(true);
        }
        assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
        drop(told);
    }
}
