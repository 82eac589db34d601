//! Stopping: why not all has stopped, and what remains where it has.

use super::{Errno, IN_HANDLER, TEXT, TextError, numbered};
use crate::addr::CodeAddr;
use core::fmt;

/// Why not all probes have stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopError {
    /// Not possible from a probe's handler. Nothing has changed.
    InHandler,
    /// Text could not be written there: a breakpoint stands, without handlers. All else has stopped; stopping
    /// again tries again.
    Text(TextError),
}

numbered!(StopError {
    Self::InHandler => IN_HANDLER,
    Self::Text(_) => TEXT,
});

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InHandler => f.write_str("not possible from a handler"),
            Self::Text(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StopError {}

/// What cannot be freed yet of stopped probes, and why (CTL_7): it says so when it is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remains {
    /// Followed calls that have not returned. Each still returns by way of its stub.
    pub calls: usize,
    /// Where one of them returns to.
    pub call: Option<CodeAddr>,
    /// Stubs of calls that were given up, but may return yet.
    pub stubs: usize,
    /// Probes whose handles have not been dropped.
    pub probes: usize,
    /// Places whose slots a context may be in: it was interrupted there, and nobody is told when it goes on.
    pub slots: usize,
    /// Jumps whose detours a context may be in, as above.
    pub detours: usize,
}

impl Remains {
    /// Whether nothing leads into the library any more: all of its memory has been given back, and its code
    /// may go away once no CPU runs it.
    pub const fn is_nothing(&self) -> bool {
        self.calls == 0 && self.stubs == 0 && self.probes == 0 && self.slots == 0 && self.detours == 0
    }
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_nothing() {
            return f.write_str("nothing remains");
        }
        let all = [
            (self.calls, "calls that have not returned"),
            (self.stubs, "return stubs of calls that were given up and may return yet"),
            (self.probes, "probes whose handles have not been dropped"),
            (self.slots, "slots that an interrupted context may be in"),
            (self.detours, "detours that an interrupted context may be in"),
        ];
        let mut before = "";
        for (count, what) in all.into_iter().filter(|(count, _)| *count != 0) {
            write!(f, "{before}{what}: {count}")?;
            before = "; ";
        }
        match self.call {
            Some(home) => write!(f, "; one of the calls returns to {home}"),
            None => Ok(()),
        }
    }
}
