//! Functions that wait with a signal mask of their own, in a program that runs already: nothing interposes
//! them ([`super::hooks`]), so a probe where they begin has them wait with a mask that lets breakpoints be.

use super::places;
use super::process::WAIT;
use probe_core::AnyProbe;
use probe_core::arch::Memory as _;
use probe_core::host::Host as _;
use probe_host_linux::signals::NEVER_BLOCKED;
use probe_host_linux::{Hit, Kprobe, Native, probes, set_argument, threads};
use std::sync::atomic::Ordering;

/// The functions, and which of their arguments is the address of the mask.
const FUNCTIONS: [(&str, usize); 5] =
    [("sigsuspend", 0), ("ppoll", 3), ("pselect", 5), ("epoll_pwait", 4), ("epoll_pwait2", 4)];

/// The probes on them.
pub(super) fn probes_on_functions() -> Vec<AnyProbe<Native>> {
    let places = FUNCTIONS
        .iter()
        .flat_map(|&(name, index)| places::in_libc(&[name]).into_iter().map(move |at| (at, index)));
    places.map(|(at, index)| Kprobe::at(at).pre(move |hit| clean(hit, index)).into()).collect()
}

/// Leads the function to another mask, if its own blocks what must never be blocked.
fn clean(hit: &mut Hit<'_>, index: usize) {
    let Some(at) = hit.argument(index).filter(|&at| at != 0) else { return };
    // What cannot be read the kernel refuses itself.
    let Ok(mask) = probes().host().memory().read_usize(at) else { return };
    let cleaned = mask & !(NEVER_BLOCKED.bits() as usize);
    if cleaned != mask
        && let Some(words) = threads::words()
    {
        words[WAIT].store(cleaned, Ordering::Relaxed);
        words[WAIT + 1].store(at, Ordering::Relaxed);
        set_argument(hit.regs_mut(), index, words[WAIT].as_ptr().expose_provenance());
    }
}
