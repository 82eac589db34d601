//! A thread whose block a child may be using while it waits: one of `vfork`, or of `clone` with CLONE_VFORK.
//!
//! Such a child has its parent's memory, and so its parent's block. Where it executes a program or dies in
//! the middle of a hit, nobody ends that: the parent's next hit finds it open, and closes it
//! ([`Block::close_gone`](super::block::Block::close_gone)). Only hits of a thread that has lent its block
//! ask the kernel which process they are in, and only until the parent has hit again.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// So many hits of its own may follow before a thread makes the child: of instructions on the way to the
/// system call.
const ON_THE_WAY: u32 = 16;

/// Who may be using a block that is lent.
pub(super) struct Lent {
    /// The process that has lent it.
    by: AtomicU32,
    /// Whether a child has begun a hit since.
    is_used: AtomicBool,
    /// How many hits of the lender's own tell nothing yet.
    on_the_way: AtomicU32,
}

/// The process that runs, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// A child: what it begins is its own.
    Child,
    /// The one that has lent; no child has begun anything.
    Lender,
    /// The one that has lent; whatever is open is a child's, which has gone.
    Again,
    /// The one that has lent, long ago: no child has come, or has begun anything.
    Over,
}

impl Lent {
    /// The block is lent by `process`.
    pub(super) fn begin(&self, process: u32) {
        self.is_used.store(false, Ordering::Relaxed);
        self.on_the_way.store(ON_THE_WAY, Ordering::Relaxed);
        self.by.store(process, Ordering::Relaxed);
    }

    /// Looks who runs: `process`.
    pub(super) fn look(&self, process: u32) -> Runs {
        if process != self.by.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
            return Runs::Child;
        }
        if self.is_used.load(Ordering::Relaxed) {
            return Runs::Again;
        }
        let left = self.on_the_way.load(Ordering::Relaxed).saturating_sub(1);
        self.on_the_way.store(left, Ordering::Relaxed);
        if left == 0 { Runs::Over } else { Runs::Lender }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lender_is_told_once_that_a_child_has_begun_something() {
        let lent =
            Lent { by: AtomicU32::new(0), is_used: AtomicBool::new(false), on_the_way: AtomicU32::new(0) };
        lent.begin(7);
        assert_eq!([7, 7].map(|process| lent.look(process)), [Runs::Lender; 2]);
        assert_eq!([8, 8, 7].map(|process| lent.look(process)), [Runs::Child, Runs::Child, Runs::Again]);
        lent.begin(7);
        assert!((1..ON_THE_WAY).all(|_| lent.look(7) == Runs::Lender));
        assert_eq!(lent.look(7), Runs::Over);
    }
}
