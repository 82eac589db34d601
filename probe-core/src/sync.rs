//! The atomics that the core uses, in one place so that a model checker can be put under them.

pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

/// The cheap half of an asymmetric barrier: orders this context's earlier stores before its later loads as
/// seen by whoever runs the dear half, [`Host::sync_cores`](crate::host::Host::sync_cores). No instruction.
#[inline(always)]
pub(crate) fn light_barrier() {
    if cfg!(miri) {
        fence(SeqCst);
    } else {
        core::sync::atomic::compiler_fence(SeqCst);
    }
}

/// Keeps the compiler from moving stores across this point, as far as code that interrupts this context can see.
#[inline(always)]
pub(crate) fn program_order() {
    core::sync::atomic::compiler_fence(SeqCst);
}
