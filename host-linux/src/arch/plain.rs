//! The parts that most architectures share. An architecture that differs has its own in its file.
#![allow(dead_code, reason = "each architecture takes what it does not differ in")]

use super::frame::{Frame, Regs};
use crate::abi::SigInfo;
use core::ffi::{c_int, c_void};
use probe_arch_native::Native;
use probe_core::arch::{Arch, Jumps, Regs as _};
use probe_core::error::Refusal;
use probe_core::{CodeAddr, WatchRange};

/// No restorer: the kernel's vDSO has one.
pub(crate) const RESTORER_FLAG: usize = 0;

/// None: see [`RESTORER_FLAG`].
pub(crate) fn restorer() -> usize {
    0
}

/// Turns the entry of a function into that of `function`, a pointer, with the same arguments.
pub(crate) fn enter(regs: &mut Regs, function: usize) {
    regs.set_pc(CodeAddr::new(function));
}

/// Where the direct branch that `text` starts with leads, which lies at `at`.
pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    Native::JUMPS.and_then(|jumps| Jumps::<Regs>::branch_target(jumps, text, at))
}

/// A callable address for the code whose address is the descriptor's first word: the code's own.
pub(crate) fn function_entry(descriptor: &[usize; 3]) -> usize {
    descriptor[0]
}

/// The breakpoint instruction gives `TRAP_BRKPT`.
pub(crate) const fn is_breakpoint_trap(code: core::ffi::c_int) -> bool {
    code == 1
}

/// Does nothing: no program asks for faults at unaligned accesses.
#[inline(always)]
pub(crate) const fn uncheck_alignment() {}

/// Calls a signal handler of the program's.
///
/// # Safety
/// The program has given this function to be called with these arguments.
#[inline(always)]
pub(crate) unsafe fn call_handler(handler: usize, signal: c_int, info: *mut SigInfo, frame: Frame) {
    // SAFETY: as promised.
    let handler = unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int, *mut SigInfo, *mut c_void)>(handler)
    };
    // SAFETY: as promised.
    unsafe { handler(signal, info, frame.at::<c_void>(0)) };
}

/// No program can step itself.
#[inline(always)]
pub(crate) const fn steps_itself(_frame: Frame) -> bool {
    false
}

/// Never: no program can step itself.
pub(crate) const fn is_step_trap(_code: core::ffi::c_int) -> bool {
    false
}

/// Does nothing: no program can step itself.
pub(crate) const fn set_step(_frame: Frame) {}

/// Never: nothing that processes are forbidden to read gives a handler the time.
pub(crate) const fn skip_counter(_frame: Frame, _insn: [u8; 4]) -> bool {
    false
}

/// Does nothing: the backend asks the processor itself.
pub(crate) const fn start() {}

/// None: `watch` has been tried on x86 only.
pub(crate) const WATCHPOINTS: usize = 0;

/// Whether the processor can watch `range`.
///
/// # Errors
/// Always.
pub(crate) const fn check_watch(_range: &WatchRange) -> Result<(), Refusal> {
    Err(Refusal::unsupported("linux.no_watchpoints_here", "a process has watchpoints on x86 only"))
}
