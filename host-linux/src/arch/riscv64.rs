//! riscv64. `ucontext_t`: `uc_sigmask` at 40, `uc_mcontext` at 176: pc, x1-x31 (184), f0-f31 (432), fcsr.

pub(crate) use super::plain::{
    RESTORER_FLAG, WATCHPOINTS, branch_target, call_handler, check_watch, enter, function_entry,
    is_breakpoint_trap, is_step_trap, restorer, set_step, skip_counter, steps_itself, uncheck_alignment,
};
pub use probe_unwind::riscv64::FRAMES;

use super::assembly::shared_assembly;
use super::code::{Call, Leads, Load, SyscallCode, is_direct, word};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::asm;
use core::ffi::c_int;
use probe_core::arch::Memory;

pub(super) const PC: usize = 176;
const X1: usize = 184;
pub(super) const SP: usize = 192;
pub(super) const SIGMASK: usize = 40;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = X1 + 31 * 8;
/// A0 and A7: the first argument, and the number of a system call.
const A0: u8 = 10;
const A7: u8 = 17;

/// `li a0, 1; ret` and `li a0, 2; ret`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0x05, 0x45, 0x82, 0x80];
pub(crate) const RETURN_TWO: &[u8] = &[0x09, 0x45, 0x82, 0x80];

/// Code here addresses relative to the program counter.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    Regs {
        pc: frame.word(PC) as u64,
        x1_to_x31: core::array::from_fn(|index| frame.word(X1 + 8 * index) as u64),
        status: 0,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    frame.set_word(PC, regs.pc as usize);
    for (index, value) in regs.x1_to_x31.iter().enumerate() {
        frame.set_word(X1 + 8 * index, *value as usize);
    }
}

/// The signal's number: the frame does not tell `scause`.
pub(super) fn trap_number(_frame: Frame, signal: c_int) -> u32 {
    signal as u32
}

/// The frame does not tell the address.
pub(super) fn set_fault(_frame: Frame, _addr: usize, _is_write: bool) {}

pub(crate) use probe_unwind::riscv64::eh_frame;

/// How libc's code makes a system call. Jumps and branches: the Instruction Set Manual, I 2.5 and 27.4.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    // `addi a7, zero, number`
    loads: &[Load::new(4, |number| word((0x0000_0893 | (number & 0x7ff) << 20).to_le_bytes()))],
    // `ecall`
    // With optimisation the caller's instructions come in between.
    between: 24,
    calls: &[Call::new(&0x0000_0073_u32.to_le_bytes())],
    leads: |_, insn| {
        let [low, high, ..] = *insn else { return Leads::Away };
        let half = u16::from_le_bytes([low, high]);
        match half {
            // `jal` and `jalr`, unless it is `j`; the branches.
            _ if half & 0xfff == 0x06f || half & 0xe003 == 0xa001 => Leads::Elsewhere,
            _ if half & 0x7f == 0x06f || half & 0x7f == 0x067 => Leads::Away,
            _ if half & 0x7f == 0x063 || half & 0xc003 == 0xc001 => Leads::Either,
            // `c.jr`, `c.jalr`.
            _ if half & 0xe07f == 0x8002 => Leads::Away,
            _ => Leads::On,
        }
    },
    number: |regs, _| regs.x(A7) as usize,
    argument: |regs, index| if index < 6 { regs.x(A0 + index as u8) as usize } else { 0 },
    set_first: |regs, value| regs.set_x(A0, value as u64),
    set_result: |regs, _, result| regs.set_x(A0, result as u64),
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to a0, from a1, len a2): what is left over, also in a2. syscall(number a0, six arguments at a1).
shared_assembly!(
    word: 8,
    copy: [
        "li t0, 8",
        "bltu a2, t0, 3f",
        "2: ld t1, (a1)",
        "sd t1, (a0)",
        "addi a1, a1, 8",
        "addi a0, a0, 8",
        "addi a2, a2, -8",
        "bgeu a2, t0, 2b",
        "3: beqz a2, probe_host_linux_copy_end",
        "lbu t1, (a1)",
        "sb t1, (a0)",
        "addi a1, a1, 1",
        "addi a0, a0, 1",
        "addi a2, a2, -1",
        "j 3b",
    ],
    leave: [
        "mv a0, a2",
        "ret",
    ],
    syscall: [
        "mv a7, a0",
        "mv t0, a1",
        "ld a0, (t0)",
        "ld a1, 8(t0)",
        "ld a2, 16(t0)",
        "ld a3, 24(t0)",
        "ld a4, 32(t0)",
        "ld a5, 40(t0)",
        "ecall",
        "ret",
    ],
);

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, _memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    let number = u8::try_from(index).ok().filter(|index| *index < 8)?;
    regs.set_x(A0 + number, value as u64);
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
            "la.tls.ie {at}, probe_host_linux_thread",
            "add {at}, {at}, tp",
            at = out(reg) at,
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
            "mv {kept}, sp",
            "mv sp, {sp}",
            "ecall",
            "mv sp, {kept}",
            kept = out(reg) _,
            sp = in(reg) sp,
            in("a7") libc::SYS_sigaltstack,
            inlateout("a0") answer,
            in("a1") 0,
        );
    }
    answer
}

/// Tells the backend whether there are vector registers.
pub(crate) fn start() {
    const V: libc::c_ulong = 1 << (b'V' - b'A');
    // SAFETY: it has no preconditions.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
    super::Native::set_vectors(capabilities & V != 0);
}
