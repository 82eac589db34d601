//! arm (A32 and T32). `ucontext_t`: `uc_mcontext` at 20: trap_no, error_code, oldmask, r0-r15 (32), cpsr
//! (96), fault_address; `uc_sigmask` at 104.
//!
//! The breakpoint is BKPT. It is `TRAP_BRKPT` of QEMU's user mode and of an aarch64 kernel (32-bit programs),
//! `TRAP_HWBKPT` of an arm kernel with hardware breakpoints.

pub(crate) use super::plain::{
    RESTORER_FLAG, WATCHPOINTS, call_handler, check_watch, enter, function_entry, is_step_trap, restorer,
    set_step, skip_counter, steps_itself, uncheck_alignment,
};
pub use probe_unwind::arm::FRAMES;

use super::assembly::shared_assembly;
use super::code::{Leads, SyscallCode, is_direct};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::asm;
use core::ffi::c_int;
use probe_core::arch::Memory;
use probe_core::arch::Regs as _;

const TRAP: usize = 20;
const ERROR: usize = 24;
const R0: usize = 32;
pub(super) const SP: usize = 84;
pub(super) const PC: usize = 92;
const CPSR: usize = 96;
const FAULT_ADDRESS: usize = 100;
pub(super) const SIGMASK: usize = 104;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = SIGMASK + 8;
/// The number of a system call.
const R7: u8 = 7;

/// `mov r0, #1; bx lr` and `mov r0, #2; bx lr`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0x01, 0x00, 0xa0, 0xe3, 0x1e, 0xff, 0x2f, 0xe1];
pub(crate) const RETURN_TWO: &[u8] = &[0x02, 0x00, 0xa0, 0xe3, 0x1e, 0xff, 0x2f, 0xe1];

/// Code here addresses relative to the program counter.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    Regs {
        r: core::array::from_fn(|index| frame.word(R0 + 4 * index) as u32),
        pc: frame.word(PC) as u32,
        cpsr: frame.word(CPSR) as u32,
        orig_r0: u32::MAX,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    for (index, value) in regs.r.iter().enumerate() {
        frame.set_word(R0 + 4 * index, *value as usize);
    }
    frame.set_word(PC, regs.pc as usize);
    frame.set_word(CPSR, regs.cpsr as usize);
}

/// The kernel's `trap_no`; QEMU's user mode tells none.
pub(super) fn trap_number(frame: Frame, signal: c_int) -> u32 {
    match frame.word(TRAP) as u32 {
        0 => signal as u32,
        number => number,
    }
}

/// A page fault (trap 14) at `addr`; error code: the fault status, with bit 11 for a write (DDI 0406C.d
/// B4.1.52), of a translation fault.
pub(super) fn set_fault(frame: Frame, addr: usize, is_write: bool) {
    const TRANSLATION_FAULT: usize = 0b0111;
    frame.set_word(TRAP, 14);
    frame.set_word(ERROR, TRANSLATION_FAULT | usize::from(is_write) << 11);
    frame.set_word(FAULT_ADDRESS, addr);
}

/// `TRAP_BRKPT`, `TRAP_HWBKPT`.
pub(crate) const fn is_breakpoint_trap(code: c_int) -> bool {
    matches!(code, 1 | 4)
}

/// The length in bytes of `mov r7, #number`.
pub(crate) const LOAD_LEN: usize = 4;

/// How code of A32 makes a system call. glibc's is T32, and calls a function of its own for most: the guard
/// finds none there yet.
pub(crate) const SYSCALL: SyscallCode<LOAD_LEN> = SyscallCode {
    load: |number| (0xe3a0_7000 | number & 0xff).to_le_bytes(),
    between: 24,
    // `svc #0`
    calls: &[&0xef00_0000_u32.to_le_bytes()],
    // Branches: A32, DDI 0406C.d A5.5.
    leads: |insn| {
        let Some(&word) = insn.first_chunk() else { return Leads::Away };
        let word = u32::from_le_bytes(word);
        match word {
            _ if word & 0xff00_0000 == 0xea00_0000 => Leads::Elsewhere,
            _ if word & 0x0f00_0000 == 0x0a00_0000 => Leads::Either,
            // `bl`; `bx` and `blx` to registers.
            _ if word & 0x0f00_0000 == 0x0b00_0000 || word & 0x0fff_ffd0 == 0x012f_ff10 => Leads::Away,
            _ => Leads::On,
        }
    },
    number: |regs| regs.r(R7) as usize,
    argument: |regs, index| if index < 6 { regs.r(index as u8) as usize } else { 0 },
    set_first: |regs, value| regs.set_r(0, value as u32),
    set_result: |regs, _, result| regs.set_r(0, result as u32),
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to r0, from r1, len r2): what is left over, also in r2. syscall(number r0, six arguments at r1). In
// either instruction set.
shared_assembly!(
    word: 4,
    copy: [
        "2: cmp r2, #4",
        "blo 3f",
        "ldr r3, [r1], #4",
        "str r3, [r0], #4",
        "sub r2, r2, #4",
        "b 2b",
        "3: cmp r2, #0",
        "beq probe_host_linux_copy_end",
        "ldrb r3, [r1], #1",
        "strb r3, [r0], #1",
        "sub r2, r2, #1",
        "b 3b",
    ],
    leave: [
        "mov r0, r2",
        "bx lr",
    ],
    syscall: [
        "push {{r4, r5, r7, lr}}",
        "mov r7, r0",
        "mov ip, r1",
        "ldm ip, {{r0-r5}}",
        "svc #0",
        "pop {{r4, r5, r7, pc}}",
    ],
);

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    match u8::try_from(index).ok()? {
        index @ 0..4 => regs.set_r(index, value as u32),
        index => memory.write_usize(regs.sp().wrapping_add(4 * usize::from(index - 4)), value).ok()?,
    }
    Some(())
}

/// The calling thread's word of storage, zero at first.
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: reads the thread pointer and the offset that the linker or loader put into the GOT; no memory
    // of the program is touched.
    unsafe {
        asm!(
            "ldr {at}, 3f",
            "2: add {at}, pc, {at}",
            "b 4f",
            ".p2align 2",
            "3: .word probe_host_linux_thread(gottpoff) - (2b + 8 - 3b)",
            "4: ldr {at}, [{at}]",
            "mrc p15, 0, {tp}, c13, c0, 3",
            "add {at}, {at}, {tp}",
            at = out(reg) at,
            tp = out(reg) _,
            options(pure, readonly, nostack)
        );
    }
    at
}

/// `sigaltstack(new, NULL)` with the stack pointer at `sp` meanwhile; returns the kernel's answer.
///
/// # Safety
/// All asynchronous signals are blocked, and the memory below `sp` is nobody's. `new` is as for
/// `sigaltstack`.
pub(crate) unsafe fn sigaltstack_from(new: *const AltStack, sp: usize) -> isize {
    let mut answer = new as isize;
    // SAFETY: the stack pointer and r7 are back before the compiler's code goes on; no signal comes between.
    // The system call takes what the caller vouches for.
    unsafe {
        asm!(
            "mov {kept}, sp",
            "mov {kept7}, r7",
            "mov sp, {sp}",
            "mov r7, {number}",
            "svc #0",
            "mov r7, {kept7}",
            "mov sp, {kept}",
            kept = out(reg) _,
            kept7 = out(reg) _,
            sp = in(reg) sp,
            number = in(reg) libc::SYS_sigaltstack,
            inlateout("r0") answer,
            in("r1") 0,
        );
    }
    answer
}

/// Tells the backend whether there are D16 to D31.
pub(crate) fn start() {
    /// `HWCAP_VFPD32`.
    const D32: libc::c_ulong = 1 << 19;
    // SAFETY: it has no preconditions.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
    super::Native::set_doubles(capabilities & D32 != 0);
}
