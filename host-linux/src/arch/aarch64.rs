//! aarch64. `ucontext_t`: `uc_sigmask` at 40, `uc_mcontext` at 176: fault_address, x0-x30 (184), sp (432), pc
//! (440), pstate (448), then records of (magic, size) from 464.

pub(crate) use super::plain::{
    RESTORER_FLAG, WATCHPOINTS, branch_target, call_handler, check_watch, enter, function_entry,
    is_breakpoint_trap, is_step_trap, restorer, set_step, skip_counter, start, steps_itself,
    uncheck_alignment,
};
pub use probe_unwind::aarch64::FRAMES;

use super::assembly::shared_assembly;
use super::code::{Call, Leads, Load, SyscallCode, is_direct, word};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::asm;
use core::ffi::c_int;
use probe_core::arch::Memory;

const X0: usize = 184;
pub(super) const PC: usize = 440;
pub(super) const SP: usize = 432;
const PSTATE: usize = 448;
const RECORDS: usize = 464;
const RECORDS_LEN: usize = 4096;
pub(super) const SIGMASK: usize = 40;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = RECORDS + RECORDS_LEN;

/// The record that carries `ESR_EL1`: magic, size, esr.
const ESR_MAGIC: u32 = 0x4553_5201;

/// `mov w0, #1; ret` and `mov w0, #2; ret`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0x20, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6];
pub(crate) const RETURN_TWO: &[u8] = &[0x40, 0x00, 0x80, 0x52, 0xc0, 0x03, 0x5f, 0xd6];

/// Code here addresses relative to the program counter.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    Regs {
        x: core::array::from_fn(|i| frame.word(X0 + 8 * i) as u64),
        sp: frame.word(SP) as u64,
        pc: frame.word(PC) as u64,
        pstate: frame.word(PSTATE) as u64,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    for (i, value) in regs.x.iter().enumerate() {
        frame.set_word(X0 + 8 * i, *value as usize);
    }
    frame.set_word(SP, regs.sp as usize);
    frame.set_word(PC, regs.pc as usize);
    frame.set_word(PSTATE, regs.pstate as usize);
}

/// The exception class of `ESR_EL1` where the frame has it, else the signal's number.
pub(super) fn trap_number(frame: Frame, signal: c_int) -> u32 {
    let mut at = RECORDS;
    while at + 16 <= RECORDS + RECORDS_LEN {
        let head = frame.word(at);
        let (magic, len) = (head as u32, head >> 32);
        if magic == ESR_MAGIC {
            return (frame.word(at + 8) >> 26) as u32 & 0x3f;
        }
        if magic == 0 || len < 16 || len % 16 != 0 {
            break;
        }
        at += len;
    }
    signal as u32
}

/// `fault_address`.
pub(super) fn set_fault(frame: Frame, addr: usize, _is_write: bool) {
    frame.set_word(176, addr);
}

pub(crate) use probe_unwind::aarch64::eh_frame;

/// How libc's code makes a system call. Branches: DDI 0487J.a C4.1.86.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    // `movz x8, #number`
    loads: &[Load::new(4, |number| word((0xd280_0008 | (number & 0xffff) << 5).to_le_bytes()))],
    // `svc #0`
    // With optimisation the caller's instructions come in between.
    between: 24,
    calls: &[Call::new(&0xd400_0001_u32.to_le_bytes())],
    leads: |_, insn| {
        let Some(&word) = insn.first_chunk() else { return Leads::Away };
        let word = u32::from_le_bytes(word);
        match word {
            _ if word & 0xfc00_0000 == 0x1400_0000 => Leads::Elsewhere,
            // `b.cond`; `cbz`, `cbnz`, `tbz`, `tbnz`.
            _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7c00_0000 == 0x3400_0000 => Leads::Either,
            // `bl`; all branches to registers.
            _ if word & 0xfc00_0000 == 0x9400_0000 || word & 0xfe00_0000 == 0xd600_0000 => Leads::Away,
            _ => Leads::On,
        }
    },
    number: |regs, _| regs.x[8] as usize,
    argument: |regs, index| regs.x[..6].get(index).copied().unwrap_or(0) as usize,
    set_first: |regs, value| regs.x[0] = value as u64,
    set_result: |regs, _, result| regs.x[0] = result as u64,
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to x0, from x1, len x2): what is left over, also in x2. syscall(number x0, six arguments at x1).
shared_assembly!(
    word: 8,
    copy: [
        "cmp x2, #8",
        "b.lo 3f",
        "2: ldr x3, [x1], #8",
        "str x3, [x0], #8",
        "sub x2, x2, #8",
        "cmp x2, #8",
        "b.hs 2b",
        "3: cbz x2, probe_host_linux_copy_end",
        "ldrb w3, [x1], #1",
        "strb w3, [x0], #1",
        "sub x2, x2, #1",
        "b 3b",
    ],
    leave: [
        "mov x0, x2",
        "ret",
    ],
    syscall: [
        "mov x8, x0",
        "mov x9, x1",
        "ldp x0, x1, [x9]",
        "ldp x2, x3, [x9, #16]",
        "ldp x4, x5, [x9, #32]",
        "svc #0",
        "ret",
    ],
);

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, _memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    *regs.x[..8].get_mut(index)? = value as u64;
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
            "adrp {at}, :gottprel:probe_host_linux_thread",
            "ldr {at}, [{at}, #:gottprel_lo12:probe_host_linux_thread]",
            "mrs {tp}, tpidr_el0",
            "add {at}, {at}, {tp}",
            at = out(reg) at,
            tp = out(reg) _,
            options(pure, nomem, nostack)
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
    // SAFETY: the stack pointer is back before the compiler's code goes on; no signal comes between. The
    // system call takes what the caller vouches for.
    unsafe {
        asm!(
            "mov {kept}, sp",
            "mov sp, {sp}",
            "svc #0",
            "mov sp, {kept}",
            kept = out(reg) _,
            sp = in(reg) sp,
            in("x8") libc::SYS_sigaltstack,
            inlateout("x0") answer,
            in("x1") 0,
        );
    }
    answer
}
