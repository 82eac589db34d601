//! i386. `ucontext_t`: `gregs` at 20 (gs fs es ds edi esi ebp esp ebx edx ecx eax trapno err eip cs efl uesp ss),
//! `uc_sigmask` at 108.

use super::{Leads, Regs, SyscallCode, UContext};
use crate::sys::AltStack;
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use probe_arch_native::backend::regs::Segment;
pub(crate) use probe_arch_native::backend::watch::{COUNT as WATCHPOINTS, check as check_watch};
use probe_unwind::{EhFrame, Stubs};

const fn greg(index: usize) -> usize {
    20 + 4 * index
}

pub(super) const PC: usize = greg(14);
pub(super) const SP: usize = greg(7);
pub(super) const SIGMASK: usize = 108;

/// `mov eax, 1; ret` and `mov eax, 2; ret`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0xb8, 1, 0, 0, 0, 0xc3];
pub(crate) const RETURN_TWO: &[u8] = &[0xb8, 2, 0, 0, 0, 0xc3];

/// No restorer: the kernel's vDSO has one.
pub(crate) const RESTORER_FLAG: usize = 0;

/// `mov r32, [esp]; ret`: what position-independent code calls to learn its own address (`__x86.get_pc_thunk.bx`), and
/// so do some variants of glibc's `memcpy`.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> =
    Some(|bytes| matches!(bytes, [0x8b, modrm, 0x24, 0xc3] if modrm & 0xc7 == 0x04));

pub(super) fn load_regs(context: UContext) -> Regs {
    let get = |index| context.word(greg(index)) as u32;
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

pub(super) fn store_regs(context: UContext, regs: &Regs) {
    let set = |index, value: u32| context.set_word(greg(index), value as usize);
    set(8, regs.ebx);
    set(10, regs.ecx);
    set(9, regs.edx);
    set(5, regs.esi);
    set(4, regs.edi);
    set(6, regs.ebp);
    set(11, regs.eax);
    set(14, regs.eip);
    set(16, regs.eflags);
    keep_lasting_flags(regs.eflags);
    set(7, regs.esp);
}

pub(super) fn trap_number(context: UContext, _signal: c_int) -> u32 {
    context.word(greg(12)) as u32
}

/// A page fault (trap 14) at `addr`; error code: user mode, and whether it was a write. `cr2` follows `fpstate` and
/// `oldmask` behind the registers.
pub(super) fn set_fault(context: UContext, addr: usize, is_write: bool) {
    context.set_word(greg(12), 14);
    context.set_word(greg(13), 4 | usize::from(is_write) << 1);
    context.set_word(greg(21), addr);
}

/// Only INT3 gives `SI_KERNEL`; TF gives `TRAP_TRACE`, a debug register `TRAP_HWBKPT`, INT1 `TRAP_BRKPT`.
pub(crate) const fn is_breakpoint_trap(code: c_int) -> bool {
    code == 0x80
}

/// The address of code, the first word of a descriptor, as something that can be called: itself.
pub(crate) fn function_entry(descriptor: &[usize; 3]) -> usize {
    descriptor[0]
}

/// Describes a chunk of return stubs to unwinders.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    probe_unwind::x86::eh_frame(
        probe_unwind::x86::Mode::Protected,
        stubs,
        <probe_arch_native::Native as probe_core::arch::Calls<_>>::STUB_LEN,
    )
}

/// The length in bytes of `mov $number, %eax`.
pub(crate) const LOAD_LEN: usize = 5;

/// How libc's code makes a system call: through the vDSO, whose address is in the thread's control block, or by itself.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    load: |number| {
        let [a, b, c, d] = number.to_le_bytes();
        [0xb8, a, b, c, d]
    },
    // Few, as on x86-64; these numbers are rarer as constants.
    between: 8,
    calls: &[&[0x65, 0xff, 0x15, 0x10, 0, 0, 0], &[0xcd, 0x80]],
    leads: |insn| match insn {
        [0x70..=0x7f | 0xe0..=0xe3, ..] | [0x0f, 0x80..=0x8f, ..] => Leads::Either,
        [0xe9 | 0xeb, ..] => Leads::Elsewhere,
        [] | [0xc2 | 0xc3 | 0xcc | 0xff, ..] => Leads::Away,
        // With a number in EAX, what is called can only be what tells the address of the code.
        _ => Leads::On,
    },
    number: |regs| regs.eax as usize,
    argument: |regs, index| {
        let arguments = [regs.ebx, regs.ecx, regs.edx, regs.esi, regs.edi, regs.ebp];
        arguments.get(index).copied().unwrap_or(0) as usize
    },
    set_result: |regs, _, result| regs.eax = result as u32,
};

global_asm!(
    ".pushsection .tbss.probe_host_linux,\"awT\",@nobits",
    ".balign 4",
    ".hidden probe_host_linux_thread",
    ".globl probe_host_linux_thread",
    ".type probe_host_linux_thread, @object",
    "probe_host_linux_thread: .zero 4",
    ".size probe_host_linux_thread, 4",
    ".popsection",
    // usize nofault_copy(to, from, len), all on the stack: what is left over. A fault goes on at `_end`, with ecx =
    // what is left.
    ".pushsection .text.probe_host_linux,\"ax\",@progbits",
    ".hidden probe_host_linux_copy",
    ".globl probe_host_linux_copy",
    ".hidden probe_host_linux_copy_begin",
    ".globl probe_host_linux_copy_begin",
    ".hidden probe_host_linux_copy_end",
    ".globl probe_host_linux_copy_end",
    ".type probe_host_linux_copy, @function",
    "probe_host_linux_copy:",
    "push esi",
    "push edi",
    "mov edi, [esp + 12]",
    "mov esi, [esp + 16]",
    "mov ecx, [esp + 20]",
    "probe_host_linux_copy_begin:",
    "cmp ecx, 4",
    "jne 2f",
    "mov eax, [esi]",
    "mov [edi], eax",
    "xor ecx, ecx",
    "jmp probe_host_linux_copy_end",
    "2:",
    "rep movsb",
    "probe_host_linux_copy_end:",
    "mov eax, ecx",
    "pop edi",
    "pop esi",
    "ret",
    ".size probe_host_linux_copy, . - probe_host_linux_copy",
    // isize syscall(number, six arguments behind a pointer), on the stack: a function, so that the guard does not find it in a
    // static program.
    ".hidden probe_host_linux_syscall",
    ".globl probe_host_linux_syscall",
    ".type probe_host_linux_syscall, @function",
    "probe_host_linux_syscall:",
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
    ".size probe_host_linux_syscall, . - probe_host_linux_syscall",
    ".popsection",
);

unsafe extern "C" {
    fn probe_host_linux_copy(to: *mut u8, from: *const u8, len: usize) -> usize;
    fn probe_host_linux_syscall(number: usize, arguments: *const usize) -> isize;
    static probe_host_linux_copy_begin: u8;
    static probe_host_linux_copy_end: u8;
}

/// Copies until it is done or faults; returns how many bytes were not copied.
///
/// # Safety
/// What is written at `to` is the caller's to change. `from` and `to` may be any addresses as long as this crate's
/// SIGSEGV and SIGBUS handlers are in place.
pub(crate) unsafe fn nofault_copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller's promise; faults end the copy through `nofault_fixup`.
    unsafe { probe_host_linux_copy(to, from, len) }
}

/// Makes a system call without libc, whose functions may be probed; returns the kernel's answer, below 0 an errno.
///
/// # Safety
/// As for the system call.
pub(crate) unsafe fn syscall(number: libc::c_long, arguments: &[usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    unsafe { probe_host_linux_syscall(number as usize, arguments.as_ptr()) }
}

/// Where to go on after a fault at `pc`, if that was in [`nofault_copy`]. `ecx` holds what is left there.
pub(crate) fn nofault_fixup(pc: usize) -> Option<usize> {
    let start = (&raw const probe_host_linux_copy_begin) as usize;
    let end = (&raw const probe_host_linux_copy_end) as usize;
    (start..end).contains(&pc).then_some(end)
}

/// Turns the entry of a function into that of `function`, a pointer, with the same arguments.
pub(crate) fn enter(regs: &mut Regs, function: usize) {
    use probe_core::arch::Regs as _;
    regs.set_pc(probe_core::CodeAddr::new(function));
}

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub fn set_argument(regs: &mut Regs, index: usize, value: usize) -> Option<()> {
    use probe_core::arch::{Memory as _, Regs as _};
    use probe_core::host::Host as _;
    // Behind the return address.
    let at = regs.sp().wrapping_add((index + 1) * size_of::<usize>());
    crate::process::probes().host().memory().write_usize(at, value).ok()
}

/// None: see [`RESTORER_FLAG`].
pub(crate) fn restorer() -> usize {
    0
}

/// The calling thread's word of storage, zero at first.
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: finds the GOT from the program counter, then reads the thread pointer (gs:0) and the negative offset
    // that the linker or loader put into the GOT. Pushes and pops one word: not `nostack`.
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
/// All asynchronous signals are blocked, and the memory below `sp` is nobody's. `new` is as for `sigaltstack`.
pub(crate) unsafe fn sigaltstack_from(new: *const AltStack, sp: usize) -> isize {
    let mut answer = libc::SYS_sigaltstack as isize;
    // SAFETY: the stack pointer and ebx are back before the compiler's code goes on; no signal comes between. The
    // system call takes what the caller vouches for.
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

/// Where the counter comes.
const AX: usize = greg(11);
const DX: usize = greg(9);

/// Goes on behind an instruction that reads the time-stamp counter (RDTSC, RDTSCP), as if that were 0.
pub(super) fn skip_counter(context: UContext, insn: [u8; 4]) -> bool {
    let len = match insn {
        [0x0f, 0x31, ..] => 2,
        [0x0f, 0x01, 0xf9, _] => 3,
        _ => return false,
    };
    context.set_word(AX, 0);
    context.set_word(DX, 0);
    context.set_pc(context.pc() + len);
    true
}

/// NT and ID, which the signal return does not take from the frame: they stay as the handler has them.
const LASTING_FLAGS: u32 = 1 << 14 | 1 << 21;

/// Gives the handler itself the flags in `wanted` that it hands on to what it has interrupted. Compiled code leaves them alone.
fn keep_lasting_flags(wanted: u32) {
    let now: u32;
    // SAFETY: reads the flags through one word of the stack.
    unsafe { asm!("pushfd", "pop {}", out(reg) now, options(preserves_flags)) };
    if (now ^ wanted) & LASTING_FLAGS == 0 {
        return;
    }
    let flags = now & !LASTING_FLAGS | wanted & LASTING_FLAGS;
    // SAFETY: through one word of the stack; only these two flags change, which no instruction of a program's heeds but POPF and IRET.
    unsafe { asm!("push {}", "popfd", in(reg) flags) };
}
