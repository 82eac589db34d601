//! The threads that have lost events because their buffers were full.

use crate::wire::Owner;
use std::collections::HashMap;

/// The most threads that are told apart, as the program itself says who they are.
const MOST: usize = 1 << 12;

/// A thread that has lost events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) pid: u32,
    pub(super) tid: u32,
    /// Its name, NUL padded.
    pub(super) comm: [u8; 16],
    pub(super) events: u64,
}

/// The threads that have.
#[derive(Default)]
pub(super) struct Losses(HashMap<(u32, u32), Loss>);

impl Losses {
    /// Adds to a thread's.
    pub(super) fn add(&mut self, (owner, comm): (Owner, [u8; 16]), events: u64) {
        let Owner { pid, tid } = owner;
        if self.0.len() >= MOST && !self.0.contains_key(&(pid, tid)) {
            return;
        }
        let loss = self.0.entry((pid, tid)).or_insert(Loss { pid, tid, comm, events: 0 });
        loss.events = loss.events.saturating_add(events);
    }

    /// All, the greatest first.
    pub(super) fn sorted(self) -> Vec<Loss> {
        let mut all: Vec<Loss> = self.0.into_values().collect();
        all.sort_by_key(|loss| (std::cmp::Reverse(loss.events), loss.pid, loss.tid));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evt_1_losses_are_told_apart_by_thread_and_bounded() {
        let mut losses = Losses::default();
        let owner = |tid| (Owner { pid: 1, tid }, [0; 16]);
        losses.add(owner(2), 3);
        losses.add(owner(3), 4);
        losses.add(owner(2), 5);
        losses.add(owner(3), u64::MAX);
        (10..20_000).for_each(|tid| losses.add(owner(tid), 1));
        let all = losses.sorted();
        assert_eq!(all.len(), MOST);
        assert_eq!((all[0].tid, all[0].events), (3, u64::MAX));
        assert_eq!((all[1].tid, all[1].events), (2, 8));
    }
}
