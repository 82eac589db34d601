//! x86-64. `ucontext_t`: `gregs` at 40, `uc_sigmask` at 296.

pub(crate) use super::plain::{branch_target, enter, function_entry, start};
pub(super) use super::x86::call_handler;
pub(crate) use super::x86::{RETURN_ONE, RETURN_TWO, is_breakpoint_trap, is_step_trap, uncheck_alignment};

use super::assembly::shared_assembly;
use super::code::{Call, Leads, SyscallCode, is_direct};
use super::frame::{Frame, Regs};
use super::x86;
use crate::abi::{AltStack, SigInfo};
use core::arch::{asm, global_asm};
use core::ffi::{c_int, c_void};
pub(crate) use probe_arch_native::backend::watch::{COUNT as WATCHPOINTS, check as check_watch};
use probe_core::arch::Memory;
pub use probe_unwind::x86::FRAMES;
use probe_unwind::{EhFrame, Stubs};

const fn greg(index: usize) -> usize {
    40 + 8 * index
}

pub(super) const PC: usize = greg(16);
pub(super) const SP: usize = greg(15);
pub(super) const FLAGS: usize = greg(17);
pub(super) const SIGMASK: usize = 296;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = SIGMASK + 8;

/// `SA_RESTORER`: the kernel insists on one here.
pub(crate) const RESTORER_FLAG: usize = 0x0400_0000;

/// Code here addresses relative to the instruction pointer.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    let get = |index| frame.word(greg(index)) as u64;
    Regs {
        r15: get(7),
        r14: get(6),
        r13: get(5),
        r12: get(4),
        rbp: get(10),
        rbx: get(11),
        r11: get(3),
        r10: get(2),
        r9: get(1),
        r8: get(0),
        rax: get(13),
        rcx: get(14),
        rdx: get(12),
        rsi: get(9),
        rdi: get(8),
        orig_rax: u64::MAX,
        rip: get(16),
        cs: get(18) & 0xffff,
        eflags: get(17),
        rsp: get(15),
        ss: get(18) >> 48,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    let set = |index, value: u64| frame.set_word(greg(index), value as usize);
    set(7, regs.r15);
    set(6, regs.r14);
    set(5, regs.r13);
    set(4, regs.r12);
    set(10, regs.rbp);
    set(11, regs.rbx);
    set(3, regs.r11);
    set(2, regs.r10);
    set(1, regs.r9);
    set(0, regs.r8);
    set(13, regs.rax);
    set(14, regs.rcx);
    set(12, regs.rdx);
    set(9, regs.rsi);
    set(8, regs.rdi);
    set(16, regs.rip);
    set(17, regs.eflags);
    x86::keep_lasting_flags(regs.eflags as usize);
    set(15, regs.rsp);
}

pub(super) fn trap_number(frame: Frame, _signal: c_int) -> u32 {
    frame.word(greg(20)) as u32
}

/// A page fault (trap 14) at `addr`; error code: user mode, and whether it was a write.
pub(super) fn set_fault(frame: Frame, addr: usize, is_write: bool) {
    frame.set_word(greg(19), 4 | usize::from(is_write) << 1);
    frame.set_word(greg(20), 14);
    frame.set_word(greg(22), addr);
}

/// Whether the program steps itself.
#[inline(always)]
pub(super) fn steps_itself(frame: Frame) -> bool {
    x86::has_trap_flag(frame.word(FLAGS))
}

/// Makes the frame that of the trap behind an instruction of a program that steps itself.
pub(super) fn set_step(frame: Frame) {
    frame.set_word(greg(19), 0);
    frame.set_word(greg(20), x86::STEP_VECTOR);
}

/// Describes a chunk of return stubs to unwinders.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    probe_unwind::x86::eh_frame(
        probe_unwind::x86::Mode::Long,
        stubs,
        <probe_arch_native::Native as probe_core::arch::Calls<_>>::STUB_LEN,
    )
}

/// How libc's code makes a system call.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    loads: &[x86::LOAD],
    // Few: what looks like the number may be the end of another instruction.
    between: 3,
    calls: &[Call::new(&[0x0f, 0x05])],
    leads: |_, insn| match insn {
        [0xe8, ..] => Leads::Away,
        _ => x86::leads(insn),
    },
    number: |regs, _| regs.rax as usize,
    argument: |regs, index| {
        let arguments = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        arguments.get(index).copied().unwrap_or(0) as usize
    },
    set_first: |regs, value| regs.rdi = value as u64,
    set_result: |regs, _, result| regs.rax = result as u64,
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to rdi, from rsi, len rdx): what is left over, also in rcx. syscall(number rdi, six arguments at rsi).
shared_assembly!(
    word: 8,
    copy: [
        "mov rcx, rdx",
        "cmp rdx, 8",
        "jne 2f",
        "mov rax, [rsi]",
        "mov [rdi], rax",
        "xor ecx, ecx",
        "jmp probe_host_linux_copy_end",
        "2:",
        "rep movsb",
    ],
    leave: [
        "mov rax, rcx",
        "ret",
    ],
    syscall: [
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "syscall",
        "ret",
    ],
);

global_asm!(
    ".pushsection .text.probe_host_linux,\"ax\",@progbits",
    // Debuggers and unwinders know a signal frame by these very bytes; the byte before must have no unwind
    // information of its own.
    "nop",
    ".hidden probe_host_linux_restorer",
    ".globl probe_host_linux_restorer",
    ".type probe_host_linux_restorer, @function",
    "probe_host_linux_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", // mov rax, 15 (rt_sigreturn)
    "syscall",
    ".size probe_host_linux_restorer, . - probe_host_linux_restorer",
    ".popsection",
);

unsafe extern "C" {
    static probe_host_linux_restorer: u8;
}

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, _memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    let regs = [&mut regs.rdi, &mut regs.rsi, &mut regs.rdx, &mut regs.rcx, &mut regs.r8, &mut regs.r9];
    *regs.into_iter().nth(index)? = value as u64;
    Some(())
}

/// Where signal handlers return to.
pub(crate) fn restorer() -> usize {
    (&raw const probe_host_linux_restorer) as usize
}

/// The thread pointer: quicker than from the register, which a kernel may forbid to read, too.
#[cfg(any(feature = "mapped", all(test, target_env = "gnu")))]
#[inline(always)]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a word that the ABI keeps at fs:0 for every thread's life.
    unsafe {
        asm!("mov {}, qword ptr fs:[0]", out(reg) pointer, options(pure, nomem, nostack, preserves_flags))
    };
    pointer
}

/// The calling thread's word of storage, zero at first.
#[cfg(feature = "mapped")]
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    crate::threads::pointer::word()
}

/// The calling thread's word of storage, zero at first.
#[cfg(not(feature = "mapped"))]
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: reads the thread pointer (which the ABI keeps at fs:0) and the offset that the linker or loader
    // put into the GOT; no memory of the program is touched.
    unsafe {
        asm!(
            "mov {at}, qword ptr fs:[0]",
            "add {at}, qword ptr [rip + probe_host_linux_thread@GOTTPOFF]",
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
    let mut answer = libc::SYS_sigaltstack as isize;
    // SAFETY: the stack pointer is back before the compiler's code goes on; no signal comes between. The
    // system call takes what the caller vouches for, and changes rcx and r11.
    unsafe {
        asm!(
            "mov {kept}, rsp",
            "mov rsp, {sp}",
            "syscall",
            "mov rsp, {kept}",
            kept = out(reg) _,
            sp = in(reg) sp,
            inlateout("rax") answer,
            in("rdi") new,
            in("rsi") 0,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    answer
}

/// Goes on behind an instruction that reads the time-stamp counter, as if that were 0.
pub(super) fn skip_counter(frame: Frame, insn: [u8; 4]) -> bool {
    x86::Counter { ax: greg(13), dx: greg(12), pc: PC }.skip(frame, insn)
}

/// As [`call_handler`], with AC set from the call to the return.
///
/// # Safety
/// As there.
#[cold]
pub(super) unsafe fn call_checked(handler: usize, signal: c_int, info: *mut SigInfo, frame: Frame) {
    // SAFETY: the caller's promise; the stack pointer is aligned as for a call, and AC is clear behind it.
    unsafe {
        asm!(
            "pushfq",
            "or dword ptr [rsp], {check}",
            "popfq",
            "call {handler}",
            "pushfq",
            "and dword ptr [rsp], ~{check}",
            "popfq",
            check = const x86::ALIGNMENT_CHECK,
            handler = in(reg) handler,
            in("rdi") signal,
            in("rsi") info,
            in("rdx") frame.at::<c_void>(0),
            clobber_abi("C"),
        );
    }
}
