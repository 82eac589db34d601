//! Which stack is running: what [`Host::task`](probe_core::host::Host::task) answers.
//!
//! The probes list a followed call in the [`Task`] of the stack that it was made on. A scheduler's "current"
//! is no such thing: it changes before the stack does, and an interrupt may run on a stack of its own. A
//! [`Stack`] is one that no task owns (an interrupt's, of the interrupt stack table, a CPU's first): it has
//! bounds, a `Task`, and says whether its CPU is on it.

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::arch::Arch;
use probe_core::host::Task;

/// A stack that no task owns, of one CPU.
pub struct Stack<A: Arch> {
    task: UnsafeCell<Task<A>>,
    runs: AtomicBool,
}

// SAFETY: the task is changed by `set_bounds` alone, whose caller lets nobody look meanwhile.
unsafe impl<A: Arch> Sync for Stack<A> where Task<A>: Sync {}

impl<A: Arch> Stack<A> {
    /// A stack whose bounds are not known yet.
    pub const fn new() -> Self {
        Self { task: UnsafeCell::new(Task::new()), runs: AtomicBool::new(false) }
    }

    /// Says where it lies, first byte to one past the last.
    ///
    /// # Safety
    /// Nobody calls [`Stack::running`] meanwhile: before the first probe.
    pub unsafe fn set_bounds(&self, bounds: Range<usize>) {
        // SAFETY: nobody looks, says the caller.
        let task = unsafe { &mut *self.task.get() };
        task.set_stack(bounds);
    }

    /// Calls `work`, which goes to this stack and comes back, on the CPU that owns it, with interrupts
    /// disabled.
    ///
    /// # Panics
    /// The CPU is on it already.
    pub fn run(&self, work: impl FnOnce()) {
        assert!(!self.runs.swap(true, Ordering::Relaxed), "this CPU is on its stack already");
        work();
        self.runs.store(false, Ordering::Relaxed);
    }

    /// Its task, if the CPU that owns it, and that asks, is on it. In a hit.
    pub fn running(&self) -> Option<&Task<A>> {
        // SAFETY: not changed any more.
        self.runs.load(Ordering::Relaxed).then(|| unsafe { &*self.task.get() })
    }
}

impl<A: Arch> Default for Stack<A> {
    fn default() -> Self {
        Self::new()
    }
}
