//! Programs that forbid themselves system calls (seccomp): from then on, events are named without asking the
//! kernel.
//!
//! Only the kernel knows a thread's name, and a filter may end the program for the question. So probes on the
//! functions by which programs confine themselves note that they have; a program that is executed in a
//! confined one's place learns it at its start. From then on every thread goes by the name that the program
//! had at its start. A program that confines itself by a system call instruction of its own is not noticed.

use super::places;
use probe_core::AnyProbe;
use probe_core::handler::Flow;
use probe_host_linux::{Hit, Kprobe, Native, sys};
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether a filter may be in force.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// The program's name at its start.
static NAME: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Notes the program's name, and whether it is confined from the start.
pub(super) fn start() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let is_confined = line("Seccomp:").is_some_and(|mode| mode != "0");
    IS_CONFINED.store(is_confined, Ordering::Relaxed);
    if is_confined {
        probe_host_linux::spare_system_calls();
    }
    let told = line("Name:").unwrap_or_default().as_bytes();
    let name =
        if is_confined { std::array::from_fn(|at| told.get(at).copied().unwrap_or(0)) } else { ask_name() };
    let (low, high) = name.split_at(8);
    for (word, half) in NAME.iter().zip([low, high]) {
        word.store(u64::from_ne_bytes(half.try_into().unwrap_or_default()), Ordering::Relaxed);
    }
}

/// Whether the kernel must not be asked.
pub(super) fn is_confined() -> bool {
    IS_CONFINED.load(Ordering::Relaxed)
}

/// The name that the calling thread goes by.
pub(super) fn thread_name() -> [u8; 16] {
    if !is_confined() {
        return ask_name();
    }
    let mut name = [0; 16];
    for (half, word) in name.chunks_exact_mut(8).zip(&NAME) {
        half.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    name
}

/// The calling thread's name. One system call.
pub(super) fn ask_name() -> [u8; 16] {
    let mut name = [0; 16];
    let at = name.as_mut_ptr().expose_provenance();
    // SAFETY: PR_GET_NAME writes up to 16 bytes.
    let _ = unsafe { sys::call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, at]) };
    name
}

/// The probes on the functions.
pub(super) fn probes_on_functions() -> Vec<AnyProbe<Native>> {
    let confines = |option: Option<usize>| option == Some(libc::PR_SET_SECCOMP as usize);
    let prctl = move |hit: &mut Hit<'_>| note(confines(hit.argument(0)));
    let syscall = move |hit: &mut Hit<'_>| {
        let number = hit.argument(0).map(|number| number as c_long);
        note(
            number == Some(libc::SYS_seccomp) || number == Some(libc::SYS_prctl) && confines(hit.argument(1)),
        )
    };
    let prctls = places::in_libc(&["prctl"]).into_iter().map(|at| Kprobe::at(at).pre(prctl).into());
    prctls
        .chain(places::in_libc(&["syscall"]).into_iter().map(|at| Kprobe::at(at).pre(syscall).into()))
        .collect()
}

/// The program is about to confine itself, if `is_wanted`.
fn note(is_wanted: bool) -> Flow {
    if is_wanted {
        IS_CONFINED.store(true, Ordering::Relaxed);
    }
    Flow::Continue
}
