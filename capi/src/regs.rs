//! The saved registers, whatever the architecture. All functions may be called in handlers.

use crate::Native;
use crate::host;
use crate::types::pt_regs;
use core::ffi::{c_uint, c_ulong};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, Regs};
use probe_core::host::Host;

/// The calling convention that C's kretprobes, jprobes and `regs_*` functions use.
pub(crate) const CALLS: <Native as Arch>::Calls = Native::CALLS.expect("the backend has the power of calls");

/// The program counter: in a pre handler the probed place.
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn instruction_pointer(regs: *const pt_regs) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe { &*regs }.pc().as_usize() as c_ulong
}

/// Sets the program counter. A pre handler that does so answers non-zero.
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn instruction_pointer_set(regs: *mut pt_regs, at: c_ulong) {
    // SAFETY: the caller's promise.
    unsafe { &mut *regs }.set_pc(CodeAddr::new(at as usize));
}

/// The stack pointer.
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kernel_stack_pointer(regs: *const pt_regs) -> c_ulong {
    // SAFETY: the caller's promise.
    unsafe { &*regs }.sp() as c_ulong
}

/// The ABI's integer return value, in a return handler.
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn regs_return_value(regs: *const pt_regs) -> c_ulong {
    // SAFETY: the caller's promise.
    CALLS.return_value(unsafe { &*regs }) as c_ulong
}

/// Changes the integer return value; the caller of the probed function sees it (RET_4).
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn regs_set_return_value(regs: *mut pt_regs, value: c_ulong) {
    // SAFETY: the caller's promise.
    CALLS.set_return_value(unsafe { &mut *regs }, value as usize);
}

/// The integer argument number `n`, from 0, in a handler at a function's entry. 0 where it cannot be read.
///
/// # Safety
/// `regs` is what a handler was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn regs_get_kernel_argument(regs: *const pt_regs, n: c_uint) -> c_ulong {
    // SAFETY: the caller's promise.
    let regs = unsafe { &*regs };
    let argument =
        host::started().and_then(|probes| CALLS.argument(regs, n as usize, probes.host().memory()));
    argument.unwrap_or(0) as c_ulong
}
