//! Counts how often each instruction is executed, by means that know nothing of probes.
//!
//! Natively: a forked child is single-stepped with ptrace, and the parent notes every program counter. Under
//! QEMU's user mode, which has no ptrace: a TCG plugin (`tests/user/plugin/counts.rs`) counts in the
//! translated code; the test executes itself again under the same QEMU with the plugin.

mod plugin;
mod steps;

pub(crate) use plugin::{is_under_qemu, restart_with_plugin};
use probe_core::CodeAddr;
use probe_core::arch::Arch;
use probe_host_linux::Native;
use std::collections::BTreeMap;
use std::hint::black_box;

/// Executions by address.
pub(crate) type Counts = BTreeMap<usize, u64>;

/// How executions are counted here.
#[derive(Clone, Copy)]
pub(crate) enum Counter {
    /// By single-stepping a forked child.
    Steps,
    /// By QEMU's plugin.
    Plugin,
}

/// What is counted at this moment.
pub(crate) enum Counting {
    /// Nothing, or what this process executes: go on, then ask [`Counting::end`].
    Here(Option<Counter>),
    /// What the child with this number executes: only [`Counting::end`] is left to be done.
    InChild(libc::pid_t),
}

impl Counter {
    /// Begins to count. With [`Counter::Steps`] this returns twice, as `fork` does.
    ///
    /// # Errors
    /// What was refused by the system.
    pub(crate) fn begin(self) -> Result<Counting, String> {
        match self {
            Self::Steps => steps::begin(),
            Self::Plugin => {
                plugin::announce(code_of(walk_counting_begins), code_of(walk_counting_ends));
                mark(walk_counting_begins);
                Ok(Counting::Here(Some(self)))
            }
        }
    }
}

impl Counting {
    /// Ends counting, and says what was counted. Does not return in the child of [`Counter::Steps`].
    ///
    /// # Errors
    /// What was refused by the system or came out wrong.
    pub(crate) fn end(self) -> Result<Counts, String> {
        match self {
            Self::Here(None) => Ok(Counts::new()),
            Self::Here(Some(Counter::Steps)) => steps::end_child(),
            Self::Here(Some(Counter::Plugin)) => plugin::end(),
            Self::InChild(child) => steps::trace(child),
        }
    }
}

/// Where counting begins: both means know this function's first instruction.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_counting_begins() {
    black_box(());
}

/// Where it ends. Not the same code as [`walk_counting_begins`], or a linker might make them one.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn walk_counting_ends() {
    black_box(1);
}

/// Executes a mark at the address that [`code_of`] says: a direct call may enter behind it (ppc64's local
/// entry).
fn mark(function: extern "C" fn()) {
    black_box(function)();
}

/// The code behind a function's address.
fn code_of(function: extern "C" fn()) -> usize {
    if cfg!(target_abi = "elfv1") {
        // SAFETY: on that ABI a function pointer points to its descriptor.
        unsafe { (function as *const usize).read() }
    } else {
        // Of which bit 0 may say the instruction set.
        Native::first_byte(CodeAddr::new(function as usize)).as_usize()
    }
}
