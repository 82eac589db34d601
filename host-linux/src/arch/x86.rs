//! The common part of i386 and x86-64.

use super::code::{Leads, Load};
use super::frame::Frame;
use super::{native, plain};
use crate::abi::SigInfo;
use core::arch::asm;
use core::ffi::c_int;

/// `mov eax, 1; ret` and `mov eax, 2; ret`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0xb8, 1, 0, 0, 0, 0xc3];
pub(crate) const RETURN_TWO: &[u8] = &[0xb8, 2, 0, 0, 0, 0xc3];

/// Only INT3 gives `SI_KERNEL`; TF gives `TRAP_TRACE`, a debug register `TRAP_HWBKPT`, INT1 `TRAP_BRKPT`.
pub(crate) const fn is_breakpoint_trap(code: c_int) -> bool {
    code == 0x80
}

/// `mov $number, %eax`.
pub(super) const LOAD: Load = Load::new(5, |number| {
    let [a, b, c, d] = number.to_le_bytes();
    Some([0xb8, a, b, c, d])
});

/// Where an instruction leads that is no call.
pub(super) fn leads(insn: &[u8]) -> Leads {
    match insn {
        [0x70..=0x7f | 0xe0..=0xe3, ..] | [0x0f, 0x80..=0x8f, ..] => Leads::Either,
        [0xe9 | 0xeb, ..] => Leads::Elsewhere,
        [] | [0xc2 | 0xc3 | 0xcc | 0xff, ..] => Leads::Away,
        _ => Leads::On,
    }
}

/// Where the program counter and the registers lie that an instruction reads the counter into.
pub(super) struct Counter {
    pub(super) ax: usize,
    pub(super) dx: usize,
    pub(super) pc: usize,
}

impl Counter {
    /// Skips an instruction that reads the time-stamp counter (RDTSC, RDTSCP), with the result 0.
    pub(super) fn skip(&self, frame: Frame, insn: [u8; 4]) -> bool {
        let len = match insn {
            [0x0f, 0x31, ..] => 2,
            [0x0f, 0x01, 0xf9, _] => 3,
            _ => return false,
        };
        frame.set_word(self.ax, 0);
        frame.set_word(self.dx, 0);
        frame.set_word(self.pc, frame.word(self.pc) + len);
        true
    }
}

/// NT and ID, which the signal return does not take from the frame: they stay as the handler has them.
const LASTING_FLAGS: usize = 1 << 14 | 1 << 21;

/// Gives the running handler NT and ID of `wanted`: the signal return leaves them as they are, so the program
/// gets them. Compiled code leaves them alone, too.
#[inline]
pub(super) fn keep_lasting_flags(wanted: usize) {
    let now: usize;
    // SAFETY: reads the flags through one word of the stack. In this syntax the mnemonic is that of the
    // mode's word.
    unsafe { asm!("pushf", "pop {}", out(reg) now, options(preserves_flags, att_syntax)) };
    if (now ^ wanted) & LASTING_FLAGS == 0 {
        return;
    }
    let flags = now & !LASTING_FLAGS | wanted & LASTING_FLAGS;
    // SAFETY: through one word of the stack; only these two flags change, which no instruction of a program's
    // heeds but POPF and IRET.
    unsafe { asm!("push {}", "popf", in(reg) flags, options(att_syntax)) };
}

/// TF: a trap behind each instruction.
const TRAP_FLAG: usize = 1 << 8;

/// Whether TF is set among these flags.
pub(super) const fn has_trap_flag(flags: usize) -> bool {
    flags & TRAP_FLAG != 0
}

/// `TRAP_TRACE`: the trap behind an instruction of a program that steps itself.
pub(crate) const fn is_step_trap(code: c_int) -> bool {
    code == libc::TRAP_TRACE
}

/// The vector of such a trap, which has no error code.
pub(super) const STEP_VECTOR: usize = 1;

/// AC: an unaligned access is a fault (SIGBUS).
pub(super) const ALIGNMENT_CHECK: usize = 1 << 18;

/// Whether AC is set among these flags.
const fn has_alignment_check(flags: usize) -> bool {
    flags & ALIGNMENT_CHECK != 0
}

/// Calls a signal handler of the program's. It runs with AC as the program had it, and nothing of ours does.
///
/// # Safety
/// The program has given this function to be called with these arguments.
#[inline(always)]
pub(super) unsafe fn call_handler(handler: usize, signal: c_int, info: *mut SigInfo, frame: Frame) {
    if has_alignment_check(frame.word(native::FLAGS)) {
        // SAFETY: as promised.
        unsafe { native::call_checked(handler, signal, info, frame) };
    } else {
        // SAFETY: as promised.
        unsafe { plain::call_handler(handler, signal, info, frame) };
    }
}

/// Clears AC in the running code. The kernel leaves the program's AC to a handler; the signal return restores
/// it.
#[inline(always)]
pub(crate) fn uncheck_alignment() {
    let now: usize;
    // SAFETY: reads the flags through one word of the stack, which the stack pointer's alignment suits.
    unsafe { asm!("pushf", "pop {}", out(reg) now, options(preserves_flags, att_syntax)) };
    if has_alignment_check(now) {
        // SAFETY: as above; no compiled code heeds this flag but by faulting.
        unsafe { asm!("push {}", "popf", in(reg) now ^ ALIGNMENT_CHECK, options(att_syntax)) };
    }
}
