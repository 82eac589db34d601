//! Children that run in their parent's memory until they execute a program: of vfork, `posix_spawn` and what is built on it.
//!
//! Such a child has its parent's thread-local memory, so it finds its parent's ring, which it may use: the parent's thread waits
//! meanwhile. But its events are its own. Asking the kernel at every hit whose they are would be dear, so a probe on the
//! functions that make such children says when to ask: from there on until the parent has asked and found itself.

use super::{places, process};
use probe_core::AnyProbe;
use probe_host_linux::{Kprobe, Native};

/// The functions of libc that make such children. What they are built on has no name.
const MAKERS: [&str; 6] = ["vfork", "__vfork", "posix_spawn", "posix_spawnp", "system", "popen"];

/// The probes on them.
pub(super) fn probes_on_makers() -> Vec<AnyProbe<Native>> {
    let places = places::in_libc(&MAKERS).into_iter();
    places.map(|at| Kprobe::at(at).pre(|_| process::expect_child()).without_jump().into()).collect()
}
