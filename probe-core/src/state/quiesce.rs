//! Grace periods: the end of all sections that were open.
//!
//! A context that goes inside stores its word and then reads tables and lists, with no barrier between but
//! the compiler's. Code that wants to free something first takes it off the tables and lists, and then calls
//! [`Probes::quiesce`]: [`Host::sync_cores`] is a full barrier on every context, so a context either went
//! inside before it, and its word shows that, or it will not find what was taken off.
//!
//! A context in a slot is not inside, as it may stay there for long. Its frames name its points; the frames
//! are read after the grace period, and the points in them are kept until a later one.

use crate::state::context::Context;
use crate::state::host::Host;
use crate::state::pinned::Pinned;
use crate::state::probes::Probes;
use crate::state::section::Anonymous;
use crate::sync::{Acquire, SeqCst, fence};

impl<H: Host> Probes<H> {
    /// Goes inside without a context.
    pub(crate) fn anonymous(&self) -> Anonymous<'_> {
        self.common.enter()
    }

    /// Returns when every context that was inside at the call has left. Not called from inside.
    pub(crate) fn quiesce(&self) {
        debug_assert!(!self.host.context().is_some_and(Context::is_inside), "waits for itself");
        fence(SeqCst);
        self.host.sync_cores();
        fence(SeqCst);
        self.host.for_each_context(&mut |context| {
            let seen = context.word().load(Acquire);
            if !Context::<H::Arch>::says_inside(seen) {
                return;
            }
            while Context::<H::Arch>::is_same_section(seen, context.word().load(Acquire)) {
                self.host.relax();
            }
        });
        while self.common.has_anonymous() {
            self.host.relax();
        }
    }

    /// Whether a handler is running, or code that interrupts the core: a hit, or a registration in its own
    /// task. For faces that have something to do before they would be refused.
    #[doc(hidden)]
    pub fn is_in_handler(&self) -> bool {
        Pinned::during(&self.host, || {
            self.host.context().is_some_and(Context::is_inside) || self.has_interrupted_holder()
        })
    }
}
