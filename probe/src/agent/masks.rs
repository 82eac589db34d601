//! Functions that must not be probed although their instructions could be.
//!
//! libc blocks all signals in several places by system calls of its own, and a breakpoint that is hit there
//! would end the process. Where [`probe_host_linux::guard`] finds these calls, it keeps SIGTRAP unblocked;
//! where it does not (an unknown C library), functions that libc is known to call in such places are refused.

use probe_core::{AnyProbe, CodeAddr};
use probe_host_linux::{Indirect, Native};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether libc's system calls are guarded.
static IS_GUARDED: AtomicBool = AtomicBool::new(false);

/// Notes what [`probe_host_linux::guard::probes`] has found. Call it before the first [`Refusals::new`].
pub(super) fn note_guard(guard: &[AnyProbe<Native>]) {
    IS_GUARDED.store(!guard.is_empty(), Ordering::Relaxed);
}

/// Whether the guard's probes are planted.
static IS_PLANTED: AtomicBool = AtomicBool::new(false);

/// Tells that the guard's probes are planted, for good.
pub(super) fn note_planted() {
    IS_PLANTED.store(true, Ordering::Relaxed);
}

/// Whether the guard handles libc's own calls, so that interposed functions have nothing to do for actions
/// and masks.
pub(super) fn is_planted() -> bool {
    IS_PLANTED.load(Ordering::Relaxed)
}

/// Functions that libc calls while it has blocked all signals, where those calls are not probed.
const CALLED_WITH_SIGNALS_BLOCKED: [&str; 10] = [
    "clone",
    "__clone",
    "__clone2",
    "clone3",
    "__clone3",
    "__clone_internal",
    "__ctype_init",
    "_setjmp",
    "madvise",
    "__madvise",
];

/// Functions that return more than once: a second return would come to a call that is over.
const RETURNS_TWICE: [&str; 15] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "vfork",
    "__vfork",
    "__libc_vfork",
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "getcontext",
    "swapcontext",
    "__clone_internal",
    "savectx",
];

/// Functions that tell by their return address who calls them.
const LOOKS_AT_CALLER: [&str; 6] =
    ["dlopen", "dlmopen", "dlsym", "dlvsym", "__libc_dlopen_mode", "__libc_dlsym"];

/// The functions that must not be probed whatever their instructions are, by address, as they have many
/// names.
pub(super) struct Refusals {
    at_return: HashMap<CodeAddr, &'static str>,
    always: HashMap<CodeAddr, &'static str>,
}

impl Refusals {
    /// Looks the functions up, in the program and in those of its objects that `is_meant`.
    pub(super) fn new(is_meant: &dyn Fn(&str) -> bool) -> Self {
        let is_meant = &|module: Option<&str>| module.is_none_or(is_meant);
        let mut at_return = HashMap::new();
        add(is_meant, &mut at_return, &RETURNS_TWICE, "it returns more than once");
        add(is_meant, &mut at_return, &LOOKS_AT_CALLER, "it tells by its return address who calls it");
        let mut always = HashMap::new();
        if !IS_GUARDED.load(Ordering::Relaxed) {
            let why = "libc calls it with all signals blocked, where a breakpoint would end the program";
            add(is_meant, &mut always, &CALLED_WITH_SIGNALS_BLOCKED, why);
        }
        Self { at_return, always }
    }

    /// Why the function at `at` must not be probed.
    pub(super) fn get(&self, at: CodeAddr, is_return: bool) -> Option<&'static str> {
        self.always.get(&at).or_else(|| self.at_return.get(&at).filter(|_| is_return)).copied()
    }
}

fn add(
    is_meant: &dyn Fn(Option<&str>) -> bool,
    refused: &mut HashMap<CodeAddr, &'static str>,
    names: &[&str],
    why: &'static str,
) {
    let host = probe_host_linux::probes().host();
    for name in names {
        host.find_functions_within(is_meant, name, Indirect::Resolve, &mut |symbol| {
            refused.insert(symbol.start.wrapping_add(usize::from(symbol.local_entry)), why);
        });
    }
}
