//! A point's record of what stands in text at its place. Only [`text`](super) changes it.

use crate::sync::{AtomicPtr, Relaxed};
use core::ptr;

/// [`Standing`](super::Standing) in one word: null, [`BREAKPOINT`], or the address of a detour with the stage
/// in its low bits.
pub(crate) struct TextWord(pub(super) AtomicPtr<()>);

/// No detour lies there.
pub(super) const BREAKPOINT: usize = 1;
/// The bits of the stage.
pub(super) const STAGE: usize = 0b11;

impl TextWord {
    /// Original text.
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Whether something of ours stands in text.
    #[inline(always)]
    pub(crate) fn is_planted(&self) -> bool {
        !self.0.load(Relaxed).is_null()
    }

    /// Whether that is a jump, or a part of one.
    #[inline]
    pub(crate) fn has_jump(&self) -> bool {
        self.0.load(Relaxed).addr() > BREAKPOINT
    }
}
