//! Counts how often each instruction of a program is executed, without probes: natively the program is
//! single-stepped with ptrace; under QEMU's user mode a plugin counts in the translated code.

use std::collections::HashMap;
use std::io;
use std::process::Child;

/// What single steps have shown of one address.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stepped {
    /// Steps that came here from elsewhere.
    pub(crate) arrivals: u64,
    /// Steps that stayed here: iterations of a string instruction, or a jump to itself.
    pub(crate) stays: u64,
}

/// The program counter's place among the words of the kernel's `user_regs_struct`.
const PC_WORD: usize = if cfg!(target_arch = "x86_64") { 16 } else { 12 };
/// The register set with the program counter (ELF's `NT_PRSTATUS`).
const GENERAL_REGISTERS: usize = 1;

fn checked<T: PartialOrd + Default>(what: &str, result: T) -> Result<T, String> {
    if result < T::default() { Err(format!("{what}: {}", io::Error::last_os_error())) } else { Ok(result) }
}

/// In the child before it executes the program: it is going to be stepped.
pub(crate) fn be_stepped() -> io::Result<()> {
    // SAFETY: asks to be traced by the parent; no memory is involved.
    unsafe { libc::ptrace(libc::PTRACE_TRACEME as _, 0, 0, 0) };
    Ok(())
}

/// Puts this thread and its children on the CPU where it runs, and says where they were: each step is two
/// switches between parent and child, which cost ten times as much from one CPU to another.
pub(crate) fn stay_on_one_cpu() -> Result<libc::cpu_set_t, String> {
    // SAFETY: an all-zero set is an empty one.
    let mut before: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut one = before;
    // SAFETY: writes to `before`, which has the size that is said.
    checked("sched_getaffinity", unsafe {
        libc::sched_getaffinity(0, size_of_val(&before), &raw mut before)
    })?;
    // SAFETY: asks for a number.
    let cpu = checked("sched_getcpu", unsafe { libc::sched_getcpu() })?;
    // SAFETY: writes to `one` only, and checks the index against its size.
    unsafe { libc::CPU_SET(cpu as usize, &mut one) };
    go_where(&one)?;
    Ok(before)
}

/// Puts this thread and its children on these CPUs.
pub(crate) fn go_where(cpus: &libc::cpu_set_t) -> Result<(), String> {
    // SAFETY: reads `cpus`, which has the size that is said.
    checked("sched_setaffinity", unsafe {
        libc::sched_setaffinity(0, size_of_val(cpus), std::ptr::from_ref(cpus))
    })?;
    Ok(())
}

/// Steps a child that has called [`be_stepped`] from where it stops itself to its end. `bounds` says, at the
/// stop, where counting begins and ends.
pub(crate) fn trace(
    child: &Child,
    bounds: impl Fn() -> Result<(usize, usize), String>,
) -> Result<HashMap<usize, Stepped>, String> {
    let pid = child.id().cast_signed();
    let mut signal = wait(pid)?;
    // The stop at `execve` comes first.
    while signal != libc::SIGSTOP {
        resume(libc::PTRACE_CONT as _, pid, if signal == libc::SIGTRAP { 0 } else { signal })?;
        signal = wait(pid)?;
    }
    let (begins, ends) = bounds()?;
    let mut counts: HashMap<usize, Stepped> = HashMap::new();
    let (mut last, mut pending) = (0, 0);
    loop {
        resume(libc::PTRACE_SINGLESTEP as _, pid, pending)?;
        let signal = wait(pid)?;
        pending = if signal == libc::SIGTRAP { 0 } else { signal };
        let pc = program_counter(pid)?;
        if pc == ends {
            break;
        }
        if pending != 0 || last == 0 && pc != begins {
            continue;
        }
        let count = counts.entry(pc).or_default();
        if pc == last {
            count.stays += 1
        } else {
            count.arrivals += 1
        }
        last = pc;
    }
    resume(libc::PTRACE_DETACH as _, pid, 0)?;
    Ok(counts)
}

fn resume(how: libc::c_uint, pid: libc::pid_t, signal: i32) -> Result<(), String> {
    // SAFETY: goes on with a stopped child.
    checked("ptrace", unsafe { libc::ptrace(how as _, pid, 0, libc::c_long::from(signal)) })?;
    Ok(())
}

/// Waits for the next stop; the signal.
fn wait(pid: libc::pid_t) -> Result<i32, String> {
    let mut status = 0;
    // SAFETY: `status` lives across the call.
    checked("waitpid", unsafe { libc::waitpid(pid, &raw mut status, 0) })?;
    if libc::WIFSTOPPED(status) {
        Ok(libc::WSTOPSIG(status))
    } else {
        Err(format!("it ended with status {status:#x}"))
    }
}

fn program_counter(pid: libc::pid_t) -> Result<usize, String> {
    let mut words = [0_usize; 64];
    let mut vector = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
    // SAFETY: the kernel writes at most the vector's length into `words`.
    let read = unsafe { libc::ptrace(libc::PTRACE_GETREGSET as _, pid, GENERAL_REGISTERS, &raw mut vector) };
    checked("PTRACE_GETREGSET", read)?;
    Ok(words[PC_WORD])
}
