//! Children that would lack something a hit needs: a thread block of their own, or our signal handlers.
//!
//! A child that shares its parent's memory and thread-local storage, and runs beside it, would use the
//! parent's block; so the parent's thread declares before that it shares its storage ([`threads::share`]). A
//! `vfork` child uses it while its parent waits, and may leave a hit open in it: the parent lends it
//! ([`threads::lend`]). A child that the kernel strips of all signal handlers
//! (`CLONE_CLEAR_SIGHAND`) would die at its first breakpoint. So `clone3` fails there as before Linux 5.3,
//! which had no such system call, and callers fall back (glibc's `posix_spawn` then resets the handlers
//! itself).
//!
//! Also a program that forbids itself system calls (seccomp) is noticed here, in the same functions: before
//! the filter is in force.
//!
//! The probes stand on libc's functions and not on their system calls, so that no child wakes up in a slot.

use super::execution::{before_execution_by_number, before_execve, before_execveat, before_fexecve};
use super::{by_number, waits};
use crate::arch::{self, SYSCALL};
use crate::symbols::objects::Object;
use crate::{Hit, Kprobe, Native, process, signals, sys, threads};
use core::ffi::c_long;
use probe_core::arch::{Memory, Regs as _};
use probe_core::handler::Flow;
use probe_core::{AnyProbe, CodeAddr, Place};
use probe_elf_symbols::index::Kind;
use std::sync::Arc;

/// `CLONE_CLEAR_SIGHAND`.
const CLEAR_SIGHAND: u64 = 1 << 32;

/// Whether a child that is made with `flags` runs beside its parent and on its parent's thread-local storage.
fn shares_storage(flags: u64) -> bool {
    let [vm, waits, own] = [libc::CLONE_VM, libc::CLONE_VFORK, libc::CLONE_SETTLS].map(|flag| flag as u64);
    flags & (vm | waits | own) == vm
}

/// What a probe on such a function calls.
type Handler = fn(&mut Hit<'_>) -> Flow;

/// The probes on the functions of `libc` that make children, or execute programs, or wait by a call that was
/// not found.
pub(super) fn probes_on_functions(libc: &[&Arc<Object>], has_hidden_waits: bool) -> Vec<AnyProbe<Native>> {
    let mut handlers: Vec<(&str, Handler)> = vec![
        ("clone", before_clone),
        ("vfork", before_vfork),
        ("syscall", before_syscall),
        ("prctl", before_prctl),
        ("execve", before_execve),
        ("execveat", before_execveat),
        ("fexecve", before_fexecve),
    ];
    handlers.extend(has_hidden_waits.then_some((waits::FUNCTION, waits::before_wait as Handler)));
    let mut found = Vec::new();
    for (object, (name, handler)) in
        libc.iter().flat_map(|object| handlers.iter().map(move |&named| (object, named)))
    {
        object.index().find(name, &mut |entry| {
            let at = object.bias.wrapping_add(entry.addr).wrapping_add(usize::from(entry.local_entry));
            if entry.kind == Kind::Function && found.iter().all(|&(other, _)| other != at) {
                found.push((at, handler));
            }
        });
    }
    let place = |&(at, _): &(usize, _)| Place::addr(CodeAddr::new(at));
    let wanted: Vec<_> = found.iter().map(|found| (place(found), false)).collect();
    let checked = process::probes().check_all(&wanted);
    let can_be_probed = found.iter().zip(checked).filter(|(_, checked)| checked.is_ok());
    can_be_probed.map(|(at, _)| Kprobe::at(place(at)).pre(at.1).into()).collect()
}

/// `vfork()`.
fn before_vfork(_hit: &mut Hit<'_>) -> Flow {
    threads::lend();
    Flow::Continue
}

/// Sees to what a child made with `flags` would take from its maker.
fn note(flags: u64) {
    if shares_storage(flags) {
        threads::share();
    }
    if flags & libc::CLONE_VFORK as u64 != 0 {
        threads::lend();
    }
}

/// `clone(function, stack, flags, …)`.
fn before_clone(hit: &mut Hit<'_>) -> Flow {
    note(hit.argument(2).unwrap_or(0) as u64);
    Flow::Continue
}

/// `syscall(number, …)`.
fn before_syscall(hit: &mut Hit<'_>) -> Flow {
    let Some(number) = hit.argument(0) else { return Flow::Continue };
    let flags = match number as c_long {
        libc::SYS_clone => hit.argument(1).map(|flags| flags as u64),
        libc::SYS_clone3 => hit.argument(1).and_then(|arguments| flags_at(&hit.memory(), arguments)),
        libc::SYS_seccomp => return confines(true),
        libc::SYS_prctl => return confines(hit.argument(1) == Some(libc::PR_SET_SECCOMP as usize)),
        libc::SYS_rt_sigprocmask => return by_number::before_mask(hit),
        libc::SYS_rt_sigaction => return by_number::before_action(hit),
        libc::SYS_sigaltstack => return by_number::before_stack(hit),
        libc::SYS_execve | libc::SYS_execveat => return before_execution_by_number(hit),
        _ => return Flow::Continue,
    };
    let flags = flags.unwrap_or(0);
    if number as c_long == libc::SYS_clone3 && flags & CLEAR_SIGHAND != 0 {
        arch::enter(hit.regs_mut(), has_no_clone3 as *const () as usize);
        return Flow::Redirected;
    }
    note(flags);
    Flow::Continue
}

/// `prctl(option, …)`.
fn before_prctl(hit: &mut Hit<'_>) -> Flow {
    confines(hit.argument(0) == Some(libc::PR_SET_SECCOMP as usize))
}

/// Notes that the program forbids itself system calls, if `is_wanted`. A child that shares its parent's
/// memory says nothing of its parent.
fn confines(is_wanted: bool) -> Flow {
    if is_wanted && !threads::is_guest() {
        signals::confine();
    }
    Flow::Continue
}

/// The flags in a `struct clone_args`.
fn flags_at(memory: &impl Memory, arguments: usize) -> Option<u64> {
    let mut flags = [0; 8];
    memory.read(arguments, &mut flags).ok().map(|()| u64::from_ne_bytes(flags))
}

/// Does what `syscall` does where the kernel does not know the call.
extern "C" fn has_no_clone3() -> c_long {
    // SAFETY: the calling thread's own.
    unsafe { sys::errno_location().write(libc::ENOSYS) };
    -1
}

/// A probe on an instruction of libc that loads the number of `clone3` right before the system call, call
/// number `call` of [`SYSCALL`]: there the arguments are in place. The two have `len_bytes`.
pub(super) fn probe_on_clone3(at: usize, len_bytes: usize, call: usize) -> AnyProbe<Native> {
    // SAFETY: the guard has found it by its code: what it says may be called.
    let place = unsafe { Place::unchecked(CodeAddr::new(at)) };
    let pre = move |hit: &mut Hit<'_>| {
        let arguments = (SYSCALL.argument)(hit.regs(), 0);
        let flags = flags_at(&hit.memory(), arguments).unwrap_or(0);
        if flags & CLEAR_SIGHAND == 0 {
            note(flags);
            return Flow::Continue;
        }
        let behind = hit.regs().pc().wrapping_add(len_bytes);
        let regs = hit.regs_mut();
        (SYSCALL.set_result)(regs, call, -(libc::ENOSYS as isize));
        regs.set_pc(behind);
        Flow::Redirected
    };
    Kprobe::at(place).pre(pre).without_jump().into()
}
