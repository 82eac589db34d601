//! What a stop has interrupted in a thread: a signal of its own, a system call, a restartable sequence.

use super::request::{address_of, ptrace};
use libc::{c_int, c_long, pid_t};

/// `PTRACE_GET_RSEQ_CONFIGURATION`.
const GET_SEQUENCE: libc::c_uint = 0x420f;

/// Signals that a fault raises, which are never blocked while something runs in a thread: the kernel
/// would end the process.
pub(super) const RAISED: [c_int; 5] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP, libc::SIGILL, libc::SIGFPE];

/// Whether a signal is on its way to a thread that it has raised itself: by a breakpoint, or a fault.
pub(super) fn has_raised(thread: pid_t) -> bool {
    /// `struct ptrace_peeksiginfo_args`: the thread's own queue, from its start.
    #[repr(C)]
    struct Queue {
        offset: u64,
        flags: u32,
        count: i32,
    }
    const MOST: usize = 64;
    let mut queue = Queue { offset: 0, flags: 0, count: MOST as i32 };
    // SAFETY: plain data that the call fills.
    let mut signals: [libc::siginfo_t; MOST] = unsafe { std::mem::zeroed() };
    let found = ptrace(libc::PTRACE_PEEKSIGINFO, thread, address_of(&mut queue), address_of(&mut signals));
    let found = found.map_or(0, |count| count as usize);
    signals.iter().take(found).any(|info| info.si_code > 0 && RAISED.contains(&info.si_signo))
}

/// Begins a system call again that the stop has ended (signal(7) has a list of those that the kernel does not
/// begin again itself), unless a signal has ended it that the program handles.
pub(super) fn begin_again(pid: pid_t, thread: pid_t, regs: &mut libc::user_regs_struct, mask: u64) {
    /// These have done their work, or go on with it, when they say that they were interrupted.
    const DONE: [c_long; 2] = [libc::SYS_close, libc::SYS_connect];
    let is_ended = regs.orig_rax != u64::MAX && regs.rax as i64 == -i64::from(libc::EINTR);
    if is_ended && !DONE.contains(&(regs.orig_rax as c_long)) && !has_pending(pid, thread, mask) {
        regs.rax = regs.orig_rax;
        regs.orig_rax = u64::MAX;
        regs.rip -= 2;
    }
}

/// Whether a signal waits that the thread takes.
fn has_pending(pid: pid_t, thread: pid_t, mask: u64) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).unwrap_or_default();
    let set = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !mask != 0
}

/// A thread in a restartable sequence has to begin it again, as if it had been preempted: the kernel forgets
/// the sequence while something else runs in the thread.
pub(super) fn leave_sequence(pid: pid_t, thread: pid_t, regs: &mut libc::user_regs_struct) {
    // `struct ptrace_rseq_configuration`: pointer, size and signature, flags.
    let mut area = [0_u64; 3];
    if ptrace(GET_SEQUENCE, thread, size_of_val(&area), address_of(&mut area)).is_err() || area[0] == 0 {
        return;
    }
    let word = |at: u64| super::memory::read_word(pid, at as usize).unwrap_or(0) as u64;
    // `struct rseq`: two numbers of the processor, then the address of a `struct rseq_cs`, in which two words
    // follow a version: where the sequence starts, how long it is, where it is left to.
    let sequence = word(area[0] + 8);
    if sequence != 0 && regs.rip.wrapping_sub(word(sequence + 8)) < word(sequence + 16) {
        regs.rip = word(sequence + 24);
    }
}
