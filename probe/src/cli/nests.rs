//! Which calls were made inside of which, from their returns alone.
//!
//! A call that returns has all calls inside of it that have returned before and began after it, in the same
//! thread. What no call has claimed yet waits; where much waits, what is oldest is put together, so that any
//! number of events takes bounded memory.

use crate::file::Event;
use std::collections::HashMap;

/// The most calls that wait in all threads.
const MOST: usize = if cfg!(target_pointer_width = "64") { 1 << 20 } else { 1 << 17 };
/// As many may wait in each thread, however many there are.
const LEAST: usize = 64;

/// A call, or several, that nobody has claimed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Done<T> {
    pub(super) start_ns: u64,
    pub(super) what: T,
}

/// When the last call of each thread began and ended that was left without a return.
///
/// A call that was left is found once something else lies on its stack, which may be later than for the call
/// that it was made in: a longjmp leaves both at once, and what follows uses the outer one's part first.
#[derive(Default)]
pub(super) struct Left(HashMap<(u32, u32), (u64, u64)>);

impl Left {
    /// When the call of this event ended, if it was found later than a call that it was made in.
    pub(super) fn ended_before(&mut self, event: &Event<'_>) -> Option<u64> {
        let start_ns = event.time_ns.saturating_sub(event.left_ns?);
        let span = self.0.entry((event.pid, event.tid)).or_insert((u64::MAX, 0));
        if span.0 < start_ns && start_ns <= span.1 {
            return Some(span.1);
        }
        *span = (start_ns, event.time_ns);
        None
    }
}

/// The calls that wait, by process and thread.
pub(super) struct Nests<T> {
    threads: HashMap<(u32, u32), Vec<Done<T>>>,
}

impl<T> Default for Nests<T> {
    fn default() -> Self {
        Self { threads: HashMap::new() }
    }
}

impl<T: Default> Nests<T> {
    /// What was called inside of a call that began at `start_ns` and returns now, oldest first.
    pub(super) fn claim(&mut self, task: (u32, u32), start_ns: u64) -> impl Iterator<Item = Done<T>> {
        let waiting = self.threads.entry(task).or_default();
        let outside = waiting.iter().rposition(|done| done.start_ns < start_ns);
        waiting.drain(outside.map_or(0, |last| last + 1)..)
    }

    /// Adds a call that has returned. `join` adds a later one's what to an earlier one's.
    pub(super) fn wait(&mut self, task: (u32, u32), done: Done<T>, mut join: impl FnMut(&mut T, T)) {
        let most = (MOST / self.threads.len().max(1)).max(LEAST);
        let waiting = self.threads.entry(task).or_default();
        if waiting.len() >= most {
            // Two by two: only a caller that began between two of a pair does not get the second. In place: a
            // second list of this size leaves holes that no later one fits.
            let pairs = waiting.len() / 4;
            for pair in 0..pairs {
                let second = std::mem::take(&mut waiting[2 * pair + 1].what);
                waiting.swap(pair, 2 * pair);
                join(&mut waiting[pair].what, second);
            }
            waiting.drain(pairs..2 * pairs);
        }
        waiting.push(done);
    }

    /// What nobody has claimed, by thread, oldest first.
    pub(super) fn rest(self) -> impl Iterator<Item = ((u32, u32), Vec<Done<T>>)> {
        let mut all: Vec<_> = self.threads.into_iter().collect();
        all.sort_by_key(|(task, waiting)| (waiting.first().map(|done| done.start_ns), *task));
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: (u32, u32) = (1, 1);

    fn add(nests: &mut Nests<u64>, start_ns: u64, ns: u64) -> u64 {
        let inside = nests.claim(TASK, start_ns).map(|done| done.what).sum();
        nests.wait(TASK, Done { start_ns, what: ns }, |to, more| *to += more);
        inside
    }

    #[test]
    fn a_call_claims_what_began_after_it_and_nothing_twice() {
        let mut nests = Nests::default();
        assert_eq!(add(&mut nests, 10, 5), 0);
        assert_eq!(add(&mut nests, 20, 5), 0);
        assert_eq!(nests.claim((1, 2), 0).count(), 0, "another thread");
        assert_eq!(add(&mut nests, 15, 20), 5);
        assert_eq!(add(&mut nests, 5, 100), 25);
        assert_eq!(add(&mut nests, 200, 1), 0);
        assert_eq!(add(&mut nests, 220, 5), 0);
        assert_eq!(add(&mut nests, 210, 20), 5, "two were called before it");
        assert_eq!(nests.rest().map(|(_, waiting)| waiting.len()).sum::<usize>(), 3);
    }

    #[test]
    fn any_number_of_calls_takes_bounded_memory_and_loses_no_time() {
        let mut nests = Nests::default();
        let calls = 4 * MOST as u64;
        for call in 0..calls {
            add(&mut nests, 10 + call, 1);
        }
        assert!(nests.threads[&TASK].len() <= MOST);
        assert_eq!(add(&mut nests, 5, calls + 100), calls);
    }
}
