//! Children that run in their parent's memory until they execute a program: those of `vfork`, `posix_spawn`
//! and functions that use them.
//!
//! Such a child has its parent's thread-local memory, and so its parent's ring, which it may use while the
//! parent's thread waits. But its events are its own. Asking the kernel at every hit which process it is
//! would be dear, so a probe on the functions that make such children starts the asking; it stops when the
//! parent has asked and found itself.

use super::{places, process};
use probe_core::AnyProbe;
use probe_host_linux::{Kprobe, Native};

/// The functions of libc that make such children. The function underneath them has no name.
const MAKERS: [&str; 6] = ["vfork", "__vfork", "posix_spawn", "posix_spawnp", "system", "popen"];

/// The probes on them.
pub(super) fn probes_on_makers() -> Vec<AnyProbe<Native>> {
    let places = places::in_libc(&MAKERS).into_iter();
    places.map(|at| Kprobe::at(at).pre(|_| process::expect_child()).without_jump().into()).collect()
}
