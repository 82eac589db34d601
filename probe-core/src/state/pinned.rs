//! Pins: the stretches during which the host keeps a context where it is.
//!
//! A [`Pinned`] is one as a value, with one owner, as a [`Stay`](crate::state::section::Stay) is a section. A
//! function that begins one ends it, or hands it to the function that does. A hit that lets code of the
//! program run, or a jprobe's handler, puts its pin into its [frame](crate::state::frame), and has it back
//! when the frame is emptied.

use crate::state::host::Host;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

/// A stretch between [`Host::pin`] and [`Host::unpin`] as a value without size.
///
/// It ends where it is given back to the host: the hit path has no code for a value that is dropped.
#[must_use = "a pin ends where it is given back"]
pub(crate) struct Pinned(PhantomData<*const ()>);

impl Pinned {
    /// Pins the running context.
    #[inline(always)]
    #[allow(clippy::disallowed_methods, reason = "the one place that pins")]
    pub(crate) fn begin(host: &impl Host) -> Self {
        host.pin();
        Self(PhantomData)
    }

    /// Ends what [`Pinned::begin`] began, with the same host on the same context.
    #[inline(always)]
    #[allow(clippy::disallowed_methods, reason = "the one place that unpins")]
    pub(crate) fn end(self, host: &impl Host) {
        let _ = ManuallyDrop::new(self);
        host.unpin();
    }

    /// Pins the running context while `run` runs.
    #[inline(always)]
    pub(crate) fn during<R>(host: &impl Host, run: impl FnOnce() -> R) -> R {
        let pinned = Self::begin(host);
        let result = run();
        pinned.end(host);
        result
    }

    /// Puts the pin into a frame that is being filled.
    #[inline(always)]
    pub(super) fn put_away(self) {
        let _ = ManuallyDrop::new(self);
    }

    /// Takes the pin out of a frame that is being emptied.
    ///
    /// # Safety
    /// One was [put away](Pinned::put_away) when the frame was filled, by this context, and none has been
    /// taken out since.
    #[inline(always)]
    pub(super) const unsafe fn take_out() -> Self {
        Self(PhantomData)
    }
}

#[cfg(debug_assertions)]
impl Drop for Pinned {
    fn drop(&mut self) {
        debug_assert!(false, "a pin that is never given back");
    }
}
