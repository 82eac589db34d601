//! The atomics that the core uses, in one place so that a model checker can be put under them: `tests/models`
//! does. What has a caller here tells it to the models, which weaken the orderings of one line.
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

/// What one context at a time touches, as a lock, an exchange or the context itself says.
#[cfg(probe_loom)]
pub(crate) use atomics::UnsafeCell;
#[cfg(not(probe_loom))]
pub(crate) use core::cell::UnsafeCell;

// More than a word is not among them: see `counter`.
#[cfg(target_pointer_width = "64")]
pub(crate) use atomics::AtomicU64;
pub(crate) use atomics::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The cheap half of an asymmetric barrier: orders this context's earlier stores before its later loads, as
/// seen by the context that runs the dear half, [`Host::sync_cores`](crate::host::Host::sync_cores). No
/// instruction.
#[inline(always)]
#[track_caller]
pub(crate) fn light_barrier<A: NativeArch>() {
    if cfg!(any(miri, probe_loom)) {
        fence(SeqCst);
    } else {
        A::program_order();
    }
}

/// Loads a published pointer; the memory behind it is seen as it was when the pointer was stored, with
/// release.
///
/// Relaxed, because every architecture that a backend can be written for (Alpha alone differs) orders a load
/// after the load that gave its address: SDM volume 3A, 9.2.2; Arm ARM DDI 0487J.a B2.3.6, "address
/// dependency"; Power ISA 3.1, Book II, 1.7.1. The compiler cannot know the address without that load. An
/// acquire would cost three more instructions, and a barrier, on ppc64. Miri and the thread sanitizer model
/// the language and no processor, so they get the acquire.
#[inline(always)]
#[track_caller]
pub(crate) fn dereference<T>(pointer: &AtomicPtr<T>) -> *mut T {
    pointer.load(if cfg!(any(miri, probe_loom, probe_tsan)) { Acquire } else { Relaxed })
}

/// Stores what comes behind a store with release of the same context in the same word: whoever acquires this
/// value sees what came before that store, too.
///
/// Relaxed, because every processor keeps the order: x86 that of all stores (SDM volume 3A, 9.2.2); aarch64
/// that of what comes before a store-release and the stores behind it in the same word (Arm ARM DDI 0487J.a
/// B2.3, barrier-ordered-before); on ppc64 and riscv64 the release is a fence, which all later stores lie
/// behind. C++ had this as release sequences, and gave it up in 2020 (P0982). Miri and the models know the
/// language and no processor, so they get the release.
#[inline(always)]
#[track_caller]
pub(crate) fn store_behind(word: &AtomicUsize, value: usize) {
    word.store(value, if cfg!(any(miri, probe_loom)) { Release } else { Relaxed });
}
