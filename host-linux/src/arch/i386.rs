//! i386. `ucontext_t`: `gregs` at 20 (gs fs es ds edi esi ebp esp ebx edx ecx eax trapno err eip cs efl uesp
//! ss), `uc_sigmask` at 108.

pub(crate) use super::plain::{RESTORER_FLAG, branch_target, enter, function_entry, restorer, start};
pub(super) use super::x86::call_handler;
pub(crate) use super::x86::{RETURN_ONE, RETURN_TWO, is_breakpoint_trap, is_step_trap, uncheck_alignment};

use super::assembly::shared_assembly;
use super::code::{Call, SyscallCode};
use super::frame::{Frame, Regs};
use super::x86;
use crate::abi::{AltStack, SigInfo};
use core::arch::{asm, global_asm};
use core::ffi::{c_int, c_void};
use probe_arch_native::backend::regs::Segment;
pub(crate) use probe_arch_native::backend::watch::{COUNT as WATCHPOINTS, check as check_watch};
use probe_core::CodeAddr;
use probe_core::arch::{Memory, Regs as _};
pub use probe_unwind::x86::PROTECTED_FRAMES as FRAMES;
use probe_unwind::{EhFrame, Stubs};

const fn greg(index: usize) -> usize {
    20 + 4 * index
}

pub(super) const PC: usize = greg(14);
pub(super) const SP: usize = greg(7);
pub(super) const FLAGS: usize = greg(16);
pub(super) const SIGMASK: usize = 108;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = SIGMASK + 8;

/// `mov r32, [esp]; ret`: what position-independent code calls to learn its own address
/// (`__x86.get_pc_thunk.bx`), and so do some variants of glibc's `memcpy`.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> =
    Some(|bytes| matches!(bytes, [0x8b, modrm, 0x24, 0xc3] if modrm & 0xc7 == 0x04));

pub(super) fn load_regs(frame: Frame) -> Regs {
    let get = |index| frame.word(greg(index)) as u32;
    let segment = |index| Segment::new(get(index) as u16);
    Regs {
        ebx: get(8),
        ecx: get(10),
        edx: get(9),
        esi: get(5),
        edi: get(4),
        ebp: get(6),
        eax: get(11),
        ds: segment(3),
        es: segment(2),
        fs: segment(1),
        gs: segment(0),
        orig_eax: u32::MAX,
        eip: get(14),
        cs: segment(15),
        eflags: get(16),
        esp: get(7),
        ss: segment(18),
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    let set = |index, value: u32| frame.set_word(greg(index), value as usize);
    set(8, regs.ebx);
    set(10, regs.ecx);
    set(9, regs.edx);
    set(5, regs.esi);
    set(4, regs.edi);
    set(6, regs.ebp);
    set(11, regs.eax);
    set(14, regs.eip);
    set(16, regs.eflags);
    x86::keep_lasting_flags(regs.eflags as usize);
    set(7, regs.esp);
}

pub(super) fn trap_number(frame: Frame, _signal: c_int) -> u32 {
    frame.word(greg(12)) as u32
}

/// A page fault (trap 14) at `addr`; error code: user mode, and whether it was a write. `cr2` follows
/// `fpstate` and `oldmask` behind the registers.
pub(super) fn set_fault(frame: Frame, addr: usize, is_write: bool) {
    frame.set_word(greg(12), 14);
    frame.set_word(greg(13), 4 | usize::from(is_write) << 1);
    frame.set_word(greg(21), addr);
}

/// Whether the program steps itself.
#[inline(always)]
pub(super) fn steps_itself(frame: Frame) -> bool {
    x86::has_trap_flag(frame.word(FLAGS))
}

/// Makes the frame that of the trap behind an instruction of a program that steps itself.
pub(super) fn set_step(frame: Frame) {
    frame.set_word(greg(13), 0);
    frame.set_word(greg(12), x86::STEP_VECTOR);
}

/// Describes a chunk of return stubs to unwinders.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    probe_unwind::x86::eh_frame(
        probe_unwind::x86::Mode::Protected,
        stubs,
        <probe_arch_native::Native as probe_core::arch::Calls<_>>::STUB_LEN,
    )
}

/// How libc's code makes a system call: through the vDSO, whose address is in the thread's control block, or
/// by itself.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    loads: &[x86::LOAD],
    // Few, as on x86-64; these numbers are rarer as constants.
    between: 8,
    calls: &[Call::new(&[0x65, 0xff, 0x15, 0x10, 0, 0, 0]), Call::new(&[0xcd, 0x80])],
    // With a number in EAX, what is called can only be what tells the address of the code.
    leads: |_, insn| x86::leads(insn),
    number: |regs, _| regs.eax as usize,
    argument: |regs, index| {
        let arguments = [regs.ebx, regs.ecx, regs.edx, regs.esi, regs.edi, regs.ebp];
        arguments.get(index).copied().unwrap_or(0) as usize
    },
    set_first: |regs, value| regs.ebx = value as u32,
    set_result: |regs, _, result| regs.eax = result as u32,
    make_directly: |regs, call, memory| {
        let (next, sp) = (regs.pc().wrapping_add(SYSCALL.calls[call].len_bytes), regs.sp().wrapping_sub(4));
        if call != THROUGH_VDSO || memory.write_usize(sp, next.as_usize()).is_err() {
            return false;
        }
        regs.esp = sp as u32;
        regs.set_pc(direct_call());
        true
    },
    leave_directly: |regs| {
        if regs.pc() == direct_call() {
            regs.esp = regs.esp.wrapping_add(4);
        }
    },
};

/// The index in [`SYSCALL`]'s calls of the one that leads through the vDSO.
const THROUGH_VDSO: usize = 0;

/// A system call, and the return to its caller.
fn direct_call() -> CodeAddr {
    CodeAddr::new((&raw const probe_host_linux_direct_call) as usize)
}

unsafe extern "C" {
    static probe_host_linux_direct_call: u8;
}

// On the stack. copy(to, from, len): what is left over, also in ecx. syscall(number, where six arguments
// are).
shared_assembly!(
    word: 4,
    enter: [
        "push esi",
        "push edi",
        "mov edi, [esp + 12]",
        "mov esi, [esp + 16]",
        "mov ecx, [esp + 20]",
    ],
    copy: [
        "cmp ecx, 4",
        "jne 2f",
        "mov eax, [esi]",
        "mov [edi], eax",
        "xor ecx, ecx",
        "jmp probe_host_linux_copy_end",
        "2:",
        "rep movsb",
    ],
    leave: [
        "mov eax, ecx",
        "pop edi",
        "pop esi",
        "ret",
    ],
    syscall: [
        "push ebx",
        "push esi",
        "push edi",
        "push ebp",
        "mov eax, [esp + 20]",
        "mov ebp, [esp + 24]",
        "mov ebx, [ebp]",
        "mov ecx, [ebp + 4]",
        "mov edx, [ebp + 8]",
        "mov esi, [ebp + 12]",
        "mov edi, [ebp + 16]",
        "mov ebp, [ebp + 20]",
        "int 0x80",
        "pop ebp",
        "pop edi",
        "pop esi",
        "pop ebx",
        "ret",
    ],
);

global_asm!(
    ".pushsection .text.probe_host_linux,\"ax\",@progbits",
    // What `SYSCALL` makes a call by. Threads that are cancelled in it are unwound.
    ".hidden probe_host_linux_direct_call",
    ".globl probe_host_linux_direct_call",
    ".type probe_host_linux_direct_call, @function",
    ".cfi_startproc",
    "probe_host_linux_direct_call:",
    "int 0x80",
    "ret",
    ".cfi_endproc",
    ".size probe_host_linux_direct_call, . - probe_host_linux_direct_call",
    ".popsection",
);

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    // Behind the return address.
    let at = regs.sp().wrapping_add((index + 1) * size_of::<usize>());
    memory.write_usize(at, value).ok()
}

/// The calling thread's word of storage, zero at first.
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: finds the GOT from the program counter, then reads the thread pointer (gs:0) and the negative
    // offset that the linker or loader put into the GOT. Pushes and pops one word: not `nostack`.
    unsafe {
        asm!(
            "call 2f",
            "2: popl {at}",
            "addl $_GLOBAL_OFFSET_TABLE_+(.-2b), {at}",
            "movl probe_host_linux_thread@GOTNTPOFF({at}), {at}",
            "addl %gs:0, {at}",
            at = out(reg) at,
            options(pure, readonly, att_syntax)
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
    // SAFETY: the stack pointer and ebx are back before the compiler's code goes on; no signal comes between.
    // The system call takes what the caller vouches for.
    unsafe {
        asm!(
            "xchg ebx, edi",
            "xchg esp, edx",
            "int 0x80",
            "xchg esp, edx",
            "xchg ebx, edi",
            inlateout("eax") answer,
            inout("edi") new => _,
            in("ecx") 0,
            inout("edx") sp => _,
        );
    }
    answer
}

/// Goes on behind an instruction that reads the time-stamp counter, as if that were 0.
pub(super) fn skip_counter(frame: Frame, insn: [u8; 4]) -> bool {
    x86::Counter { ax: greg(11), dx: greg(9), pc: PC }.skip(frame, insn)
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
            "sub esp, 4",
            "push {frame}",
            "push {info}",
            "push {signal}",
            "pushfd",
            "or dword ptr [esp], {check}",
            "popfd",
            "call {handler}",
            "add esp, 16",
            "pushfd",
            "and dword ptr [esp], ~{check}",
            "popfd",
            check = const x86::ALIGNMENT_CHECK,
            handler = in(reg) handler,
            signal = in(reg) signal,
            info = in(reg) info,
            frame = in(reg) frame.at::<c_void>(0),
            clobber_abi("C"),
        );
    }
}
