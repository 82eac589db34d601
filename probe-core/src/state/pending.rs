//! Probes that are to be registered, of any kind.

use crate::arch::Arch;
use crate::place::Place;
use crate::state::handler::{Ending, EntryHandler, FaultHandler, JprobeEntry, PostFn, Pre};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::fmt;

/// The most bytes of private data that a return instance may have.
pub const MAX_DATA_LEN: usize = 4096;

/// A probe of any kind, to be registered.
pub struct AnyProbe<A: Arch> {
    pub(crate) place: Place,
    pub(crate) handlers: Pending<A>,
    /// What its node's flags are to be.
    pub(crate) flags: u32,
}

/// The handlers of a probe that is not registered yet.
pub(crate) enum Pending<A: Arch> {
    Kprobe { pre: Option<Pre<A>>, post: Option<Box<PostFn<A>>>, fault: Option<Box<FaultHandler<A>>> },
    Jprobe(JprobeEntry),
    Return { handlers: ReturnHandlers<A>, active: Active },
}

impl<A: Arch> Pending<A> {
    /// Whether it may only be set on a function's entry (REG_17).
    pub(crate) fn wants_entry(&self) -> bool {
        !matches!(self, Self::Kprobe { .. })
    }
}

impl<A: Arch> AnyProbe<A> {
    /// Where it goes.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

impl<A: Arch> fmt::Debug for AnyProbe<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.handlers {
            Pending::Kprobe { .. } => "Kprobe",
            Pending::Jprobe(_) => "Jprobe",
            Pending::Return { .. } => "Kretprobe",
        };
        f.debug_struct(kind).field("place", &self.place).finish_non_exhaustive()
    }
}

/// The number of calls of a return probe that can be followed at the same time, as its user has set it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Active {
    /// From the beginning; 0 or less: the default.
    pub(crate) now: i32,
    /// After growing.
    pub(crate) most: usize,
}

/// A return probe's handlers without their types, and the memory that they need for each call.
pub(crate) struct ReturnHandlers<A: Arch> {
    /// A call's private data.
    pub(crate) layout: Layout,
    /// Whether the data are bytes, whose exit handler is there from the beginning.
    pub(crate) has_bytes: bool,
    /// Without one every call is followed, and the data is `()`.
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    /// Without an exit handler the data is dropped.
    pub(crate) ending: Ending<A>,
}

impl<A: Arch> ReturnHandlers<A> {
    /// Handlers with data of type `D`; no exit handler yet.
    pub(crate) fn typed<D>(entry: Option<Box<dyn EntryHandler<A>>>) -> Self {
        Self { layout: Layout::new::<D>(), has_bytes: false, entry, ending: Ending::dropping(drop_data::<D>) }
    }
}

/// Drops the private data of a call.
///
/// # Safety
/// A `D` lies there, which nobody uses again.
unsafe fn drop_data<D>(data: *mut u8) {
    // SAFETY: it lies there, and nobody uses it again.
    unsafe { data.cast::<D>().drop_in_place() }
}
