//! What has become of a thread that is traced.

use libc::{c_int, pid_t};
use std::io;
use std::time::{Duration, Instant};

/// What is waited between two looks.
pub(super) const MOMENT: Duration = Duration::from_micros(50);

/// Why a stop was reported.
pub(super) enum Stop {
    /// By our interruption.
    Interrupted,
    /// With the whole group, until somebody continues that.
    WithGroup,
    /// The thread is about to end.
    Ending,
    /// The thread has made another one.
    Cloned,
    /// The process has executed a program.
    Executed,
    /// A signal has come, and is not delivered yet.
    Signal(c_int),
    /// The thread is no more.
    Gone,
}

/// What has become of a thread, by `until`; `None`: nothing.
pub(super) fn wait(thread: pid_t, until: Instant) -> Option<Stop> {
    /// How often to look before sleeping.
    const EAGERLY: u32 = 200;
    for look in 0.. {
        let mut status = 0;
        // SAFETY: a place for the status.
        let done = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        if done == thread {
            if !libc::WIFSTOPPED(status) {
                return Some(Stop::Gone);
            }
            return Some(match status >> 16 {
                libc::PTRACE_EVENT_STOP if libc::WSTOPSIG(status) != libc::SIGTRAP => Stop::WithGroup,
                libc::PTRACE_EVENT_STOP => Stop::Interrupted,
                libc::PTRACE_EVENT_EXIT => Stop::Ending,
                libc::PTRACE_EVENT_CLONE => Stop::Cloned,
                libc::PTRACE_EVENT_EXEC => Stop::Executed,
                _ => Stop::Signal(libc::WSTOPSIG(status)),
            });
        }
        if done < 0 {
            return Some(Stop::Gone);
        }
        if Instant::now() >= until {
            return None;
        }
        if look < EAGERLY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(MOMENT);
        }
    }
    None
}

/// The threads of a process.
pub(super) fn threads_of(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Whether a thread has ended, and is only listed still.
pub(super) fn has_ended(pid: pid_t, thread: pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X', 'x']))
}
