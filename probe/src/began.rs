//! When the time between two places has begun, in two words of a thread, one of which may be all there is of
//! it. The thread's own signal handlers may come to such places between any two accesses: they find a whole
//! time, or none.

use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

/// The words of a time; zero where none has begun.
#[derive(Clone, Copy)]
pub(crate) struct Began<'a>(pub(crate) [&'a AtomicUsize; 2]);

/// Whether a word holds a time.
const IS_WIDE: bool = usize::BITS == u64::BITS;

impl Began<'_> {
    /// One begins. Fit for handlers.
    pub(crate) fn begin(self, now_ns: u64) {
        if IS_WIDE {
            self.0[0].store(now_ns as usize, Ordering::Relaxed);
        } else {
            self.begin_halves(now_ns, || compiler_fence(Ordering::SeqCst));
        }
    }

    /// It ends; when it began, if it has begun. Fit for handlers.
    pub(crate) fn end(self) -> Option<u64> {
        if IS_WIDE {
            let began_ns = self.0[0].swap(0, Ordering::Relaxed) as u64;
            (began_ns != 0).then_some(began_ns)
        } else {
            self.end_halves(|| compiler_fence(Ordering::SeqCst))
        }
    }

    /// The lower half counts while there is an upper one, which is stored as 1 + itself. `between` stands
    /// where a handler may come.
    fn begin_halves(self, now_ns: u64, mut between: impl FnMut()) {
        let [low, high] = self.0;
        high.store(0, Ordering::Relaxed);
        between();
        low.store(now_ns as u32 as usize, Ordering::Relaxed);
        between();
        high.store((now_ns >> 32) as usize + 1, Ordering::Relaxed);
    }

    /// See [`Self::begin_halves`]. None, too, if a handler has begun another in between.
    fn end_halves(self, mut between: impl FnMut()) -> Option<u64> {
        let [low, high] = self.0;
        let lower = low.load(Ordering::Relaxed);
        between();
        let upper = high.swap(0, Ordering::Relaxed).checked_sub(1)?;
        between();
        (low.load(Ordering::Relaxed) == lower).then_some((upper as u64) << 32 | lower as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // With other halves, both.
    const OLD: u64 = 0x1_ffff_fff0;
    const NEW: u64 = 0x2_0000_0010;

    /// Calls `at` where a handler comes for the `gap`th time.
    fn once(gap: usize, mut at: impl FnMut()) -> impl FnMut() {
        let mut count = 0;
        move || {
            if count == gap {
                at();
            }
            count += 1;
        }
    }

    #[test]
    fn a_time_ends_once() {
        let words = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let began = Began(words.each_ref());
        assert_eq!((began.end(), began.end_halves(|| ())), (None, None));
        began.begin(OLD);
        began.begin(NEW);
        assert_eq!((began.end(), began.end()), (Some(NEW), None));
        // The first of 2^32 nanoseconds have no upper half.
        for now_ns in [OLD, NEW, 7] {
            began.begin_halves(now_ns, || ());
            assert_eq!((began.end_halves(|| ()), began.end_halves(|| ())), (Some(now_ns), None));
        }
    }

    #[test]
    fn a_handler_within_a_beginning_finds_no_half_of_a_time() {
        for gap in 0..2 {
            let words = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let began = Began(words.each_ref());
            began.begin_halves(OLD, || ());
            began.begin_halves(NEW, once(gap, || assert_eq!(began.end_halves(|| ()), None, "gap {gap}")));
            assert_eq!(began.end_halves(|| ()), Some(NEW));
        }
    }

    #[test]
    fn a_handler_within_an_end_leaves_no_half_of_a_time() {
        for gap in 0..2 {
            let words = [AtomicUsize::new(0), AtomicUsize::new(0)];
            let began = Began(words.each_ref());
            began.begin_halves(OLD, || ());
            let found = began.end_halves(once(gap, || began.begin_halves(NEW, || ())));
            assert_eq!(found, None, "gap {gap}");
            assert!(matches!(began.end_halves(|| ()), None | Some(NEW)));
        }
    }
}
