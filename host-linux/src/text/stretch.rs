//! A stretch of writes: what each write needs is looked at once for several, and where nobody else runs in
//! this memory, neighbouring writes become one.
//!
//! Other threads may close our descriptor or unload an object between a look and a write, in a stretch as
//! without one; so there one look is for a few writes only.

use super::run::Runs;
use crate::lock::Quiet;
use crate::symbols::objects;
use crate::sys;

/// How many writes follow one look while other threads run: they take some ten microseconds.
const WRITES_PER_LOOK: usize = 16;

/// Whether no other thread or process runs in this memory. None can come meanwhile: only this one could start
/// it.
fn is_alone() -> bool {
    // The kernel has nothing to part, but refuses where memory is shared (unshare(2)).
    // SAFETY: for CLONE_VM the call only checks.
    let ask = || unsafe { sys::call(libc::SYS_unshare, [libc::CLONE_VM as usize]) }.is_ok();
    sys::may_ask() && ask()
}

/// A stretch of writes, or none.
pub(super) struct Stretch {
    /// How many are begun, one in the other.
    depth: usize,
    /// Ends with the outermost one.
    quiet: Option<Quiet>,
    /// How many writes were not put off.
    written: usize,
    /// How many may follow the last look.
    left: usize,
    /// Whether nobody else runs in this memory.
    is_alone: bool,
    /// The text of objects that had gone at the last look.
    gone: Vec<(usize, usize)>,
    /// What waits to be stored.
    pub(super) runs: Runs,
}

/// What was seen in one look.
pub(super) struct Look {
    is_alone: bool,
    gone: Vec<(usize, usize)>,
}

impl Look {
    /// Looks. Takes locks of the loader.
    pub(super) fn take(asks: bool) -> Self {
        // First: what is seen by who is alone stays so.
        let is_alone = asks && is_alone();
        Self { is_alone, gone: objects::gone_ranges() }
    }
}

impl Stretch {
    pub(super) const fn none() -> Self {
        let runs = Runs::none();
        Self { depth: 0, quiet: None, written: 0, left: 0, is_alone: false, gone: Vec::new(), runs }
    }

    /// Begins one, or one within another.
    pub(super) fn begin(&mut self, quiet: Quiet) {
        self.depth += 1;
        if self.depth == 1 {
            (self.written, self.left, self.is_alone) = (0, 0, false);
            self.quiet = Some(quiet);
        }
    }

    /// Ends it. Where it was the outermost one, the program's signals come again when what is returned is
    /// dropped.
    pub(super) fn end(&mut self) -> Option<Quiet> {
        self.depth -= 1;
        if self.depth == 0 { self.quiet.take() } else { None }
    }

    /// Whether one has begun.
    pub(super) fn is_begun(&self) -> bool {
        self.depth != 0
    }

    /// Whether a look has to come before the next write.
    pub(super) fn wants_look(&self) -> bool {
        self.left == 0 || self.wants_to_know_company()
    }

    /// Whether that look has to find out who else runs here: a second write may be one of many.
    pub(super) fn wants_to_know_company(&self) -> bool {
        self.written == 1
    }

    /// Notes what was seen.
    pub(super) fn looked(&mut self, Look { is_alone, gone }: Look) {
        self.is_alone = is_alone;
        self.left = if is_alone { usize::MAX } else { WRITES_PER_LOOK };
        self.gone = gone;
    }

    /// Whether nobody else runs in this memory.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Counts a write that is not put off.
    pub(super) fn count(&mut self) {
        self.written += 1;
        self.left = self.left.saturating_sub(1);
    }

    /// Whether the text at `at` had gone at the last look.
    pub(super) fn is_gone(&self, at: usize) -> bool {
        self.gone.iter().any(|&(start, end)| (start..end).contains(&at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_shares_memory_is_not_alone() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || told.recv().is_err());
            assert!(!is_alone(), "another thread waits");
            drop(tell);
        });
    }

    #[test]
    fn looks_come_before_the_first_two_writes_and_then_where_others_run_again_and_again() {
        let looks = |is_alone: bool| -> Vec<usize> {
            let mut stretch = Stretch::none();
            stretch.begin(Quiet::begin());
            let at = (0..50).filter(|_| {
                let wants = stretch.wants_look();
                if wants {
                    let is_alone = is_alone && stretch.wants_to_know_company();
                    stretch.looked(Look { is_alone, gone: Vec::new() });
                }
                stretch.count();
                wants
            });
            at.collect()
        };
        assert_eq!(looks(false), [0, 1, 17, 33, 49]);
        assert_eq!(looks(true), [0, 1]);
    }
}
