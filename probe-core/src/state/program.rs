//! The way from a running stub or detour back to its program.
//!
//! A stub or a detour leads a hit to the program's [`Probes`](crate::state::probes::Probes), which in turn
//! hold the records of all stubs and detours. Those records keep a bare address, so that their files need not
//! import `probes`, the only file that dereferences it.

use core::marker::PhantomData;
use core::ptr::NonNull;

/// The address of the one `Probes<H>` of a program.
pub(crate) struct Program<H> {
    probes: NonNull<()>,
    host: PhantomData<fn(H)>,
}

impl<H> Clone for Program<H> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for Program<H> {}

// SAFETY: the address of something that is there for good and made for sharing.
unsafe impl<H> Send for Program<H> {}
// SAFETY: as above.
unsafe impl<H> Sync for Program<H> {}

impl<H> Program<H> {
    /// The program whose probes lie there.
    ///
    /// # Safety
    /// A `Probes<H>` lies there for good.
    pub(crate) const unsafe fn new(probes: NonNull<()>) -> Self {
        Self { probes, host: PhantomData }
    }

    /// Where its probes lie.
    #[inline(always)]
    pub(crate) fn address(self) -> NonNull<()> {
        self.probes
    }
}

/// The functions of the lock-free half that trampolines call, as
/// [`NativeArch::handler`](crate::arch::NativeArch::handler) gives their addresses. The locked half puts them
/// into stubs and detours, and knows no more of the lock-free half.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    /// A jump has been taken.
    pub(crate) jumped: fn() -> usize,
    /// A jump has been taken where more is to be done than one pre handler.
    pub(crate) jumped_any: fn() -> usize,
    /// A jump has been taken where a return probe without an entry handler is the only probe.
    pub(crate) entered: fn() -> usize,
    /// A jump has been taken there, and an entry trampoline calls.
    pub(crate) entered_following: fn() -> usize,
    /// The first copy of a detour has run.
    pub(crate) copied: fn() -> usize,
    /// A followed call has returned to its stub.
    pub(crate) returned: fn() -> usize,
}
