//! Why a running program cannot be traced, and what would help.

use crate::cli::failure::Failure;
use crate::cli::foreign;
use crate::cli::status::Status;
use libc::pid_t;
use std::io;
use std::os::unix::fs::MetadataExt;

/// The program is there, but cannot be traced.
pub(super) fn untraceable(sentence: String) -> Failure {
    Failure::new(sentence).with(Status::NotTraceable)
}

/// There is no such process, any more or at all.
pub(super) fn ended(pid: pid_t) -> Failure {
    Failure::new(format!("there is no process {pid}")).with(Status::NotFound)
}

/// A thread that stays in the kernel.
pub(super) fn does_not_stop(pid: pid_t, thread: pid_t) -> Failure {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan")).unwrap_or_default();
    let place = if stat.len() > 1 { format!(" (in {stat})") } else { String::new() };
    untraceable(format!(
        "thread {thread} of process {pid} does not stop: it waits in the kernel{place}; try again when that is over"
    ))
}

/// The kernel does not let `pid` be debugged.
pub(super) fn refused(pid: pid_t, error: &io::Error) -> Failure {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return ended(pid);
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if let Some(tracer) =
        field(&status, "TracerPid:").filter(|&tracer| tracer != 0 && tracer != std::process::id())
    {
        let name = std::fs::read(format!("/proc/{tracer}/comm")).unwrap_or_default();
        let name = foreign::Foreign::new(name.trim_ascii_end());
        return untraceable(format!(
            "process {pid} is debugged already, by {} (process {tracer}): end that first",
            name.shown()
        ));
    }
    // SAFETY: has no preconditions.
    let own = unsafe { libc::geteuid() };
    let owner = field(&status, "Uid:");
    if own != 0 && owner.is_some_and(|owner| owner != own) {
        let owner = owner.unwrap_or(0);
        return untraceable(format!("process {pid} is user {owner}'s: only that user and root can trace it"));
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" | "2" if own != 0 => untraceable(format!(
            "the kernel lets only root trace processes that run already (kernel.yama.ptrace_scope is {}): become root, or run \
             `sysctl kernel.yama.ptrace_scope=0` as root",
            scope.trim()
        )),
        "3" => untraceable(
            "the kernel lets nobody trace a process until it is booted again (kernel.yama.ptrace_scope is 3)"
                .into(),
        ),
        _ => {
            let owner = std::fs::metadata(format!("/proc/{pid}")).map_or(own, |metadata| metadata.uid());
            let why = if owner == own {
                "the kernel refuses: a sandbox, or a security module, forbids ptrace"
            } else {
                "it has changed its rights (set-uid, or prctl(PR_SET_DUMPABLE)), so that only root can trace it"
            };
            untraceable(format!("process {pid} cannot be traced: {why} ({error})"))
        }
    }
}

/// The first number behind `key`.
fn field(status: &str, key: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Something went wrong half-way; the program goes on as it was.
pub(super) fn half_way(pid: pid_t, what: &str, error: &io::Error) -> Failure {
    if error.raw_os_error() == Some(libc::ESRCH) {
        return ended(pid);
    }
    let forbids = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => "; a filter of system calls in it may forbid that",
        _ => "",
    };
    Failure::new(format!("{what} in process {pid} failed: {error}{forbids}")).with(Status::Failed)
}
