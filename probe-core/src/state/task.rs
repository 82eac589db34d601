//! Per-task state: the stack that a task owns, and the list of its pending returns.
//!
//! A return needs neither, as its stub names its call. The list only tells which calls will *not* return, so
//! that their instances come back (RET_7). The core trusts the host's `task` as far as it can check (RET_11):
//! a call enters a task's list only if the stack pointer lies on that task's stack, and is dropped only from
//! there. So all code that changes a list runs on the one stack, and two contexts never change it at the same
//! time. If the host names no task, or one that the stack pointer contradicts (on an interrupt's own stack;
//! with a `current` that changes before or after the stack does), the call is followed without a list: it
//! returns like all others, and only a call that never returns loses its instance.

use crate::arch::Arch;
use crate::state::instance::Instance;
use crate::sync::{AtomicPtr, Relaxed};
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr;

/// One task's state: its stack, and the calls on it that are followed.
///
/// The host keeps one for each stack that runs code, returns it from [`Host::task`](crate::host::Host::task)
/// while that stack runs, and calls [`Events::task_exit`](crate::events::Events::task_exit) before the stack
/// is used for something else.
pub struct Task<A: Arch> {
    /// The newest pending return. Only code on the task's stack changes the list.
    pub(crate) pending: AtomicPtr<Instance<A>>,
    /// Its stack: empty if it is not known, all memory for [`Task::own_every_stack`]. No atomics: a load can
    /// be a part of the instruction that uses it.
    stack: UnsafeCell<Stack>,
}

/// Where a stack lies.
#[derive(Clone, Copy)]
struct Stack {
    start: usize,
    len_bytes: usize,
}

// SAFETY: the cell is written by whoever has the task alone, or who promises that nobody else looks; all else
// is atomic.
unsafe impl<A: Arch> Sync for Task<A> {}

impl<A: Arch> Task<A> {
    /// A task without pending returns and with an unknown stack: until [`Task::set_stack`], calls are
    /// followed, but calls that never return are not noticed.
    pub const fn new() -> Self {
        Self::with(0, 0)
    }

    /// A task that owns this stack. Both ends may be rounded outwards, as long as no other stack lies between
    /// them.
    pub const fn on_stack(stack: Range<usize>) -> Self {
        Self::with(stack.start, stack.end.saturating_sub(stack.start))
    }

    const fn with(stack: usize, stack_len: usize) -> Self {
        let stack = Stack { start: stack, len_bytes: stack_len };
        Self { pending: AtomicPtr::new(ptr::null_mut()), stack: UnsafeCell::new(stack) }
    }

    /// Sets the task's stack, as [`Task::on_stack`] does; before the task runs.
    pub fn set_stack(&mut self, stack: Range<usize>) {
        *self.stack.get_mut() = Stack { start: stack.start, len_bytes: stack.len() };
    }

    /// Declares that the task owns every stack that runs while [`Host::task`](crate::host::Host::task)
    /// returns it: it is a thread of a process, which may have coroutines and signal stacks. The contents of
    /// those stacks then decide which calls will not return.
    ///
    /// # Safety
    /// [`Host::task`](crate::host::Host::task) returns this task wherever this thread runs, on whatever
    /// stack, and nowhere else: it finds it by a register that the thread alone has. It has not returned it
    /// yet.
    pub unsafe fn own_every_stack(&self) {
        // SAFETY: nobody looks yet, says the caller.
        unsafe { self.stack.get().write(Stack { start: 0, len_bytes: usize::MAX }) };
    }

    #[inline(always)]
    fn stack(&self) -> Stack {
        // SAFETY: written before anybody is given the task to look at.
        unsafe { *self.stack.get() }
    }

    /// Whether the task has one stack, and its place is known.
    pub(crate) fn has_one_stack(&self) -> bool {
        self.stack().len_bytes != usize::MAX
    }

    /// Whether `sp` lies on the task's stack, which may be empty; never where nothing is known.
    #[inline(always)]
    pub(crate) fn runs_at(&self, sp: usize) -> bool {
        let Stack { start, len_bytes } = self.stack();
        sp.wrapping_sub(start) <= len_bytes
    }

    /// The newest pending return.
    #[inline(always)]
    pub(crate) fn newest(&self) -> Option<&Instance<A>> {
        // SAFETY: what is on the task's list is not freed.
        unsafe { self.pending.load(Relaxed).as_ref() }
    }

    /// What its calls know it by.
    #[inline(always)]
    pub(crate) fn identity(&self) -> *const () {
        ptr::from_ref(self).cast()
    }

    /// Whether no return is pending.
    pub fn is_idle(&self) -> bool {
        self.pending.load(Relaxed).is_null()
    }
}

impl<A: Arch> Default for Task<A> {
    fn default() -> Self {
        Self::new()
    }
}
