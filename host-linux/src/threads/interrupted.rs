//! The contexts that our handlers in a thread have interrupted.

use crate::arch::UContext;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The signal frame of the innermost handler of ours in a thread.
pub(crate) struct Interrupted {
    /// Null outside of handlers.
    frame: AtomicPtr<c_void>,
}

/// The signal frame of the next outer handler of ours, or null.
#[must_use]
pub(crate) struct Outer(*mut c_void);

impl Interrupted {
    /// Notes that a handler has been called with `context`. Pass the result to [`Interrupted::leave`] before
    /// the handler ends.
    #[inline]
    pub(crate) fn enter(&self, context: UContext) -> Outer {
        Outer(self.frame.swap(context.as_ptr(), Ordering::Relaxed))
    }

    /// Ends what [`Interrupted::enter`] began.
    #[inline]
    pub(crate) fn leave(&self, outer: Outer) {
        self.frame.store(outer.0, Ordering::Relaxed);
    }

    /// The context that the innermost handler has interrupted; `None` outside of handlers.
    pub(crate) fn innermost(&self) -> Option<UContext> {
        let raw = self.frame.load(Ordering::Relaxed);
        // SAFETY: the handler that has put it there is still running and takes it away before it returns.
        (!raw.is_null()).then(|| unsafe { UContext::new(raw) })
    }

    /// The thread is dead.
    pub(super) fn reset(&self) {
        self.frame.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}
