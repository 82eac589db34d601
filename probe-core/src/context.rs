//! Per-context and per-task state: the stack of active hits, the list of pending returns.

use crate::arch::Arch;
use core::marker::PhantomData;

/// One context's state (a CPU, a thread): the host keeps one for each, zero-cost to create.
pub struct Context<A: Arch> {
    _arch: PhantomData<fn(A)>,
}

/// One task's state: its pending returns.
pub struct Task<A: Arch> {
    _arch: PhantomData<fn(A)>,
}

impl<A: Arch> Context<A> {
    /// An idle context.
    pub const fn new() -> Self {
        Self { _arch: PhantomData }
    }
}

impl<A: Arch> Task<A> {
    /// A task without pending returns.
    pub const fn new() -> Self {
        Self { _arch: PhantomData }
    }
}
