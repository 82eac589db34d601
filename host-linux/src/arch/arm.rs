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
use super::code::{Call, Leads, Load, SyscallCode, word};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use probe_arch_native::Native;
use probe_core::CodeAddr;
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
const R7: u8 = 7;
const IP: u8 = 12;
const LR: u8 = 14;

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

/// How libc's code makes a system call: A32 by `svc` with the number in R7; T32, where R7 may be the frame
/// pointer, by `svc` in functions that are written so, and elsewhere by glibc's `__libc_do_syscall`, which
/// takes the number in IP.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    loads: &[
        // `mov r7, #number`, `movw r7, #number`
        Load::of_set(0, 4, Load::new(4, |number| a32(0xe3a0_7000, 0x100, number))),
        Load::of_set(0, 4, Load::new(4, |number| a32(0xe300_7000, 0x1000, number))),
        // `movs r7, #number`; `mov.w`, `movw` to R7 and IP
        Load::of_set(T32, 2, Load::new(2, |number| t32(&[0x2700 | number], 0x100, number))),
        Load::of_set(T32, 2, Load::new(4, |number| t32(&[0xf04f, 0x0700 | number], 0x100, number))),
        Load::of_set(T32, 2, Load::new(4, |number| t32(&[0xf240, 0x0700 | high(number)], 0x800, number))),
        Load::of_set(T32, 2, Load::new(4, |number| t32(&[0xf04f, 0x0c00 | number], 0x100, number))),
        Load::of_set(T32, 2, Load::new(4, |number| t32(&[0xf240, 0x0c00 | high(number)], 0x800, number))),
    ],
    between: 24,
    calls: &[
        // `svc #0`
        Call::of_set(0, &0xef00_0000_u32.to_le_bytes()),
        Call::of_set(T32, &0xdf00_u16.to_le_bytes()),
        // `bl` to `push {r7, lr}; mov r7, ip; svc #0; pop {r7, pc}`
        Call::function(T32, 4, called, &[0x80, 0xb5, 0x67, 0x46, 0x00, 0xdf, 0x80, 0xbd]),
    ],
    leads: |at, insn| {
        if leads_away(at, insn) {
            return Leads::Away;
        }
        match Native::direct_branch(at, insn) {
            Some((_, true)) => Leads::Either,
            Some((_, false)) => Leads::Elsewhere,
            None => Leads::On,
        }
    },
    number: |regs, call| match call {
        // A branch that is not taken makes no call.
        _ if !Native::it_condition_holds(regs) => usize::MAX,
        BY_FUNCTION => regs.r(IP) as usize,
        _ => regs.r(R7) as usize,
    },
    argument: |regs, index| if index < 6 { regs.r(index as u8) as usize } else { 0 },
    set_first: |regs, value| regs.set_r(0, value as u32),
    set_result: |regs, _, result| regs.set_r(0, result as u32),
    make_directly: |regs, call, _| {
        if call != BY_FUNCTION {
            return false;
        }
        // A call may change IP and LR.
        regs.set_r(LR, regs.pc().wrapping_add(SYSCALL.calls[call].len_bytes).as_usize() as u32);
        swap_number(regs);
        regs.set_pc(direct_call());
        true
    },
    leave_directly: |regs| {
        if regs.pc() == direct_call() {
            swap_number(regs);
        }
    },
};

/// Bit 0 of an address of T32.
const T32: usize = 1;
/// The index in [`SYSCALL`]'s calls of the one that leads to `__libc_do_syscall`.
const BY_FUNCTION: usize = 2;

/// A word of A32 with a number in it, if that is less than `end`.
const fn a32(insn: u32, end: u32, number: u32) -> Option<[u8; 5]> {
    if number < end { word((insn | (number >> 12) << 16 | number & 0xfff).to_le_bytes()) } else { None }
}

/// Halfwords of T32, if their number is less than `end`.
const fn t32(insn: &[u32], end: u32, number: u32) -> Option<[u8; 5]> {
    let second = if insn.len() > 1 { insn[1] } else { 0 };
    if number < end { word((insn[0] | second << 16).to_le_bytes()) } else { None }
}

/// The number's bits as MOVW of T32 has them in its second halfword (DDI 0406C.d A8.8.102, T3).
const fn high(number: u32) -> u32 {
    number & 0xff | (number >> 8 & 0b111) << 12
}

/// Where `bl` of T32 leads, from itself.
fn called(insn: &[u8]) -> Option<isize> {
    let at = CodeAddr::new(T32);
    let is_call = matches!(*insn, [_, b, _, d] if b & 0xf8 == 0xf0 && d & 0xd0 == 0xd0);
    let (target, _) = Native::direct_branch(at, insn).filter(|_| is_call)?;
    Some(target.offset_from(at))
}

/// Whether the instruction returns, calls, or branches to what it has computed. A5.5, A6.2, A6.3.
fn leads_away(at: CodeAddr, insn: &[u8]) -> bool {
    if at.as_usize() & T32 == 0 {
        let Some(&word) = insn.first_chunk() else { return true };
        let word = u32::from_le_bytes(word);
        // `bl`; `bx` and `blx` to registers; `ldm`, `pop` with the program counter.
        return word & 0x0f00_0000 == 0x0b00_0000
            || word & 0xffff_ffd0 == 0xe12f_ff10
            || word & 0xfe10_8000 == 0xe810_8000;
    }
    let Some(&[a, b]) = insn.first_chunk() else { return true };
    let first = u16::from_le_bytes([a, b]);
    let second = insn[2..].first_chunk().map_or(0, |half| u16::from_le_bytes(*half));
    // `bx`, `blx`; `pop`, `mov` to the program counter; `bl`, `blx`; tables; `ldm`, `ldr` to it.
    first & 0xff00 == 0x4700
        || first & 0xff00 == 0xbd00
        || first & 0xff87 == 0x4687
        || first & 0xf800 == 0xf000 && second & 0xc000 == 0xc000
        || first & 0xfff0 == 0xe8d0 && second & 0xffe0 == 0xf000
        || first & 0xffd0 == 0xe890 && second & 0x8000 != 0
        || first & 0xff70 == 0xf850 && second & 0xf000 == 0xf000
}

/// Gives the number of a call from IP to R7, or back, and keeps what R7 held.
fn swap_number(regs: &mut Regs) {
    let (number, kept) = (regs.r(IP), regs.r(R7));
    regs.set_r(R7, number);
    regs.set_r(IP, kept);
}

/// A system call, and the return to its caller.
fn direct_call() -> CodeAddr {
    CodeAddr::new((&raw const probe_host_linux_direct_call) as usize)
}

unsafe extern "C" {
    static probe_host_linux_direct_call: u8;
}

global_asm!(
    ".pushsection .text.probe_host_linux,\"ax\",%progbits",
    ".syntax unified",
    ".arm",
    // What `SYSCALL` makes a call by, with R7 kept in IP. Threads that are cancelled in it are unwound.
    ".balign 4",
    ".hidden probe_host_linux_direct_call",
    ".globl probe_host_linux_direct_call",
    ".type probe_host_linux_direct_call, %function",
    "probe_host_linux_direct_call:",
    ".fnstart",
    "svc #0",
    "mov r7, ip",
    "bx lr",
    ".fnend",
    ".size probe_host_linux_direct_call, . - probe_host_linux_direct_call",
    ".popsection",
);

/// Where the direct branch that `text` starts with leads, which lies at `at`.
pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    Native::direct_branch(at, text).map(|(target, _)| target)
}

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
    Native::set_doubles(capabilities & D32 != 0);
}
