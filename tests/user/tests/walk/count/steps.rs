//! A forked child, single-stepped.

use super::{Counter, Counting, Counts, code_of, mark, walk_counting_begins, walk_counting_ends};
use std::collections::HashMap;
use std::io;

/// The program counter's place among the words of the kernel's `user_regs_struct` or `pt_regs`.
const PC_WORD: usize = if cfg!(target_arch = "x86_64") {
    16
} else if cfg!(target_arch = "x86") {
    12
} else if cfg!(target_arch = "riscv64") {
    0
} else {
    // aarch64: after x0 to x30 and sp; ppc64 and ppc32: after gpr0 to gpr31.
    32
};

/// The register set with the program counter (ELF's `NT_PRSTATUS`).
const GENERAL_REGISTERS: usize = 1;

fn checked<T: PartialOrd + Default>(what: &str, result: T) -> Result<T, String> {
    if result < T::default() { Err(format!("{what}: {}", io::Error::last_os_error())) } else { Ok(result) }
}

/// Forks; in the child, counting begins when this returns.
pub(super) fn begin() -> Result<Counting, String> {
    stay_on_one_cpu()?;
    // SAFETY: this process has one thread, and the child only computes and leaves by `_exit`.
    let child = checked("fork", unsafe { libc::fork() })?;
    if child != 0 {
        return Ok(Counting::InChild(child));
    }
    // SAFETY: asks to be traced by the parent; no memory is involved.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME as _, 0, 0, 0) };
    // SAFETY: stops until the parent steps on.
    unsafe { libc::raise(libc::SIGSTOP) };
    mark(walk_counting_begins);
    Ok(Counting::Here(Some(Counter::Steps)))
}

/// From now on this process and its children run on the CPU where it runs: each step is two switches between
/// parent and child, which cost ten times as much from one CPU to another.
fn stay_on_one_cpu() -> Result<(), String> {
    // SAFETY: an all-zero set is an empty one.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: asks for a number.
    let cpu = checked("sched_getcpu", unsafe { libc::sched_getcpu() })?;
    // SAFETY: writes to `cpus` only, and checks the index against its size.
    unsafe { libc::CPU_SET(cpu as usize, &mut cpus) };
    // SAFETY: reads `cpus`, which has the size that is said.
    checked("sched_setaffinity", unsafe { libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus) })?;
    Ok(())
}

/// What the child does last.
pub(super) fn end_child() -> ! {
    mark(walk_counting_ends);
    // SAFETY: nothing is left to be done in the child.
    unsafe { libc::_exit(0) }
}

/// Steps the child from begin to end.
pub(super) fn trace(child: libc::pid_t) -> Result<Counts, String> {
    let counts = step_through(child);
    // SAFETY: kills the child, which has not been reaped: its number is its own.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: reaps it; its status is of no interest.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    counts
}

/// Steps the child from [`walk_counting_begins`] to [`walk_counting_ends`].
fn step_through(child: libc::pid_t) -> Result<Counts, String> {
    let (begins, ends) = (code_of(walk_counting_begins), code_of(walk_counting_ends));
    wait_for(child, libc::SIGSTOP)?;
    let mut counts: HashMap<usize, u64> = HashMap::new();
    let mut last = None;
    loop {
        // SAFETY: steps a stopped child.
        checked("PTRACE_SINGLESTEP", unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP as _, child, 0, 0) })?;
        wait_for(child, libc::SIGTRAP)?;
        let pc = program_counter(child)?;
        if pc == ends {
            return Ok(counts.into_iter().collect());
        }
        if last.is_none() && pc != begins {
            continue;
        }
        // The processor's single step stops between the iterations of a repeated string instruction.
        if last != Some(pc) || !is_repeated(pc) {
            *counts.entry(pc).or_default() += 1;
        }
        last = Some(pc);
    }
}

fn wait_for(child: libc::pid_t, signal: i32) -> Result<(), String> {
    let mut status = 0;
    // SAFETY: `status` lives across the call.
    checked("waitpid", unsafe { libc::waitpid(child, &raw mut status, 0) })?;
    if libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal {
        Ok(())
    } else {
        Err(format!("the stepped child has status {status:#x} instead of stopping with signal {signal}"))
    }
}

fn program_counter(child: libc::pid_t) -> Result<usize, String> {
    let mut words = [0_usize; 64];
    let mut vector = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    // SAFETY: the kernel writes at most the vector's length into `words`.
    let read =
        unsafe { libc::ptrace(libc::PTRACE_GETREGSET as _, child, GENERAL_REGISTERS, &raw mut vector) };
    checked("PTRACE_GETREGSET", read)?;
    Ok(words[PC_WORD])
}

/// Whether a repeated string instruction stands at `pc` (x86). The child is a fork: its text is this
/// process's.
fn is_repeated(pc: usize) -> bool {
    if !cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
        return false;
    }
    for at in pc..pc + 14 {
        // SAFETY: the child has just executed it, so it is mapped and, as all text here, readable.
        match unsafe { (at as *const u8).read() } {
            0xf2 | 0xf3 => return true,
            0x66 | 0x67 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            _ => return false,
        }
    }
    false
}
