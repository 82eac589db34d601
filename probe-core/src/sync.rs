//! The atomics that the core uses, in one place so that a model checker can be put under them: `tests/models` does.
#![allow(
    unexpected_cfgs,
    reason = "`probe_loom` is set by tests/models alone, `probe_tsan` by `cargo ci job tsan`"
)]

use crate::arch::NativeArch;

#[cfg(probe_loom)]
#[path = "../../tests/models/src/atomics.rs"]
mod atomics;
#[cfg(not(probe_loom))]
use core::sync::atomic as atomics;

// More than a word is not among them: see `counter`.
#[cfg(target_pointer_width = "64")]
pub(crate) use atomics::AtomicU64;
pub(crate) use atomics::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The cheap half of an asymmetric barrier: orders this context's earlier stores before its later loads as
/// seen by whoever runs the dear half, [`Host::sync_cores`](crate::host::Host::sync_cores). No instruction.
#[inline(always)]
pub(crate) fn light_barrier<A: NativeArch>() {
    if cfg!(any(miri, probe_loom)) {
        fence(SeqCst);
    } else {
        A::program_order();
    }
}

/// Loads a pointer that is only followed: what lies behind it is seen as it was when the pointer was stored, with release.
///
/// Relaxed, because every architecture that a backend can be written for (Alpha alone is different) orders a load after
/// the one that gave its address: SDM volume 3A, 9.2.2; Arm ARM DDI 0487J.a B2.3.6, "address dependency"; Power ISA 3.1,
/// Book II, 1.7.1. The compiler cannot know the address without that load. An acquire is three instructions more, and
/// a barrier, on ppc64. Miri and the thread sanitizer, which know the language's model and no processor, get the acquire.
#[inline(always)]
pub(crate) fn follow<T>(pointer: &AtomicPtr<T>) -> *mut T {
    pointer.load(if cfg!(any(miri, probe_loom, probe_tsan)) { Acquire } else { Relaxed })
}
