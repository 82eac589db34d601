//! ppc64, both byte orders, ELFv1 and ELFv2. `ucontext_t`: `uc_sigmask` at 40, `gp_regs` at 232 (r0-r31, nip,
//! msr, orig_r3, ctr, link, xer, ccr, softe, trap, dar, dsisr, result).

pub(crate) use super::plain::{
    RESTORER_FLAG, WATCHPOINTS, branch_target, call_handler, check_watch, is_breakpoint_trap, is_step_trap,
    restorer, set_step, skip_counter, start, steps_itself, uncheck_alignment,
};
pub use probe_unwind::ppc64::FRAMES;

use super::assembly::shared_assembly;
use super::code::{Call, Leads, Load, SyscallCode, is_direct, word};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::{asm, global_asm};
use core::ffi::c_int;
use probe_core::arch::Memory;
use probe_unwind::{ByteOrder, EhFrame, Stubs};

const fn gp(index: usize) -> usize {
    232 + 8 * index
}

pub(super) const PC: usize = gp(32);
pub(super) const SP: usize = gp(1);
pub(super) const SIGMASK: usize = 40;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = gp(48);

/// `li r3, 1; blr` and `li r3, 2; blr`: for the self-test of text writes.
#[cfg(target_endian = "big")]
pub(crate) const RETURN_ONE: &[u8] = &[0x38, 0x60, 0, 1, 0x4e, 0x80, 0x00, 0x20];
#[cfg(target_endian = "big")]
pub(crate) const RETURN_TWO: &[u8] = &[0x38, 0x60, 0, 2, 0x4e, 0x80, 0x00, 0x20];
#[cfg(target_endian = "little")]
pub(crate) const RETURN_ONE: &[u8] = &[1, 0, 0x60, 0x38, 0x20, 0x00, 0x80, 0x4e];
#[cfg(target_endian = "little")]
pub(crate) const RETURN_TWO: &[u8] = &[2, 0, 0x60, 0x38, 0x20, 0x00, 0x80, 0x4e];

/// Code here addresses through the TOC.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    let get = |index| frame.word(gp(index)) as u64;
    Regs {
        gpr: core::array::from_fn(get),
        nip: get(32),
        msr: get(33),
        orig_gpr3: get(34),
        ctr: get(35),
        link: get(36),
        xer: get(37),
        ccr: get(38),
        softe: 1,
        // The next three are not filled in by emulators: 0x700 is what the kernel gives for a breakpoint.
        trap: 0x700,
        dar: 0,
        dsisr: 0,
        result: 0,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    let set = |index, value: u64| frame.set_word(gp(index), value as usize);
    for (i, value) in regs.gpr.iter().enumerate() {
        set(i, *value);
    }
    set(32, regs.nip);
    set(35, regs.ctr);
    set(36, regs.link);
    set(37, regs.xer);
    set(38, regs.ccr);
}

/// The interrupt vector that raises `signal`: the frame's own `trap` is not filled in by emulators.
pub(super) fn trap_number(_frame: Frame, signal: c_int) -> u32 {
    match signal {
        libc::SIGSEGV => 0x300,
        libc::SIGBUS => 0x600,
        libc::SIGILL | libc::SIGFPE | libc::SIGTRAP => 0x700,
        other => other as u32,
    }
}

/// A data storage interrupt: `trap`, `dar`, and the store bit of `dsisr`.
pub(super) fn set_fault(frame: Frame, addr: usize, is_write: bool) {
    frame.set_word(gp(40), 0x300);
    frame.set_word(gp(41), addr);
    frame.set_word(gp(42), usize::from(is_write) << 25);
}

/// A callable address for the code whose address is the descriptor's first word: the code's own on ELFv2, the
/// descriptor's on ELFv1.
pub(crate) fn function_entry(descriptor: &[usize; 3]) -> usize {
    if cfg!(target_abi = "elfv1") { core::ptr::from_ref(descriptor) as usize } else { descriptor[0] }
}

/// Describes a chunk of return stubs to unwinders.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    use probe_core::arch::Calls as _;
    let order = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };
    let toc_at = if cfg!(target_abi = "elfv1") { 40 } else { 24 };
    probe_unwind::ppc64::eh_frame(order, toc_at, stubs, probe_arch_native::Native::STUB_LEN)
}

/// An instruction for the TOC's register: the first on ELFv1, the second on ELFv2.
#[cfg(target_abi = "elfv1")]
macro_rules! toc {
    ($first:literal, $second:literal) => {
        $first
    };
}
#[cfg(not(target_abi = "elfv1"))]
macro_rules! toc {
    ($first:literal, $second:literal) => {
        $second
    };
}

/// The index in [`SYSCALL`]'s calls of `sc`, which reports an errno as a positive number with CR0.SO set;
/// `scv` gives a negative number.
const SC: usize = 0;

/// How libc's code makes a system call: by `scv 0` where the kernel offers it, else by `sc`. Power ISA 3.1B,
/// book I, 2.4 (branches), book III, 4.3.1; the kernel's `Documentation/powerpc/syscall64-abi.rst`.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    loads: &[Load::new(4, |number| word((0x3800_0000 | number & 0x7fff).to_ne_bytes()))],
    // libc asks in between which of the two calls there is; with optimisation the caller's instructions come,
    // too.
    between: 24,
    calls: &[Call::new(&0x4400_0002_u32.to_ne_bytes()), Call::new(&0x4400_0001_u32.to_ne_bytes())],
    leads: |_, insn| {
        let Some(&word) = insn.first_chunk() else { return Leads::Away };
        let word = u32::from_ne_bytes(word);
        let is_call = word & 1 != 0;
        match word >> 26 {
            16 | 18 if is_call => Leads::Away,
            16 => Leads::Either,
            18 => Leads::Elsewhere,
            // `bclr`, `bcctr`, `bctar`.
            19 if matches!(word >> 1 & 0x3ff, 16 | 528 | 560) => Leads::Away,
            _ => Leads::On,
        }
    },
    number: |regs, _| regs.gpr[0] as usize,
    argument: |regs, index| regs.gpr[3..9].get(index).copied().unwrap_or(0) as usize,
    set_first: |regs, value| regs.gpr[3] = value as u64,
    set_result: |regs, call, result| {
        const CR0_SO: u64 = 0x1000_0000;
        let is_error = call == SC && result < 0;
        regs.gpr[3] = if is_error { -result } else { result } as u64;
        if call == SC {
            regs.ccr = if is_error { regs.ccr | CR0_SO } else { regs.ccr & !CR0_SO };
        }
    },
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to r3, from r4, len r5): what is left over, also in r5. syscall(number r3, six arguments at r4), which
// gives an error as a positive errno, with CR0.SO set.
shared_assembly!(
    word: 8,
    copy: [
        "2: cmpldi 5, 8",
        "blt 3f",
        "ld 6, 0(4)",
        "std 6, 0(3)",
        "addi 4, 4, 8",
        "addi 3, 3, 8",
        "addi 5, 5, -8",
        "b 2b",
        "3: cmpldi 5, 0",
        "beq probe_host_linux_copy_end",
        "lbz 6, 0(4)",
        "stb 6, 0(3)",
        "addi 4, 4, 1",
        "addi 3, 3, 1",
        "addi 5, 5, -1",
        "b 3b",
    ],
    leave: [
        "mr 3, 5",
        "blr",
    ],
    syscall: [
        "mr 0, 3",
        "mr 9, 4",
        "ld 3, 0(9)",
        "ld 4, 8(9)",
        "ld 5, 16(9)",
        "ld 6, 24(9)",
        "ld 7, 32(9)",
        "ld 8, 40(9)",
        "sc",
        "bnslr",
        "neg 3, 3",
        "blr",
    ],
);

global_asm!(
    ".pushsection .text.probe_host_linux,\"ax\",@progbits",
    // Calls the function at r12, whose TOC is r11 (ELFv1), and returns with the TOC that it was entered with,
    // as unwinders know of such calls. 64-bit PowerPC ELF ABI Supplement 1.9, 3.2; ELFv2 1.5, 2.2.
    ".balign 4",
    ".hidden probe_host_linux_enter",
    ".globl probe_host_linux_enter",
    ".type probe_host_linux_enter, @function",
    "probe_host_linux_enter:",
    ".cfi_startproc",
    "mflr 0",
    "std 0, 16(1)",
    "stdu 1, -128(1)",
    ".cfi_def_cfa_offset 128",
    ".cfi_offset 65, 16",
    toc!("std 2, 40(1)", "std 2, 24(1)"),
    toc!("mr 2, 11", "nop"),
    "mtctr 12",
    "bctrl",
    toc!("ld 2, 40(1)", "ld 2, 24(1)"),
    "addi 1, 1, 128",
    "ld 0, 16(1)",
    "mtlr 0",
    "blr",
    ".cfi_endproc",
    ".size probe_host_linux_enter, . - probe_host_linux_enter",
    ".popsection",
);

unsafe extern "C" {
    static probe_host_linux_enter: u8;
}

/// Turns the entry of a function into that of `function`, a pointer, with the same arguments, of up to eight
/// words. Who has called it may be of its own object, and wants its TOC back.
pub(crate) fn enter(regs: &mut Regs, function: usize) {
    let mut entry = function as u64;
    if cfg!(target_abi = "elfv1") {
        // SAFETY: on ELFv1 a function's pointer leads to its descriptor: where it starts, and its TOC.
        let [start, toc] = unsafe { *(function as *const [u64; 2]) };
        entry = start;
        regs.gpr[11] = toc;
    }
    regs.gpr[12] = entry;
    regs.nip = (&raw const probe_host_linux_enter).addr() as u64;
}

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, _memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    *regs.gpr[3..11].get_mut(index)? = value as u64;
    Some(())
}

/// The calling thread's word of storage, zero at first.
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: reads the offset that the linker or loader put into the TOC (r2 is this object's in all Rust
    // code) and adds the thread pointer r13; no memory of the program is touched.
    unsafe {
        asm!(
            "addis {at}, 2, probe_host_linux_thread@got@tprel@ha",
            "ld {at}, probe_host_linux_thread@got@tprel@l({at})",
            "add {at}, {at}, probe_host_linux_thread@tls",
            at = out(reg_nonzero) at,
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
    // system call takes what the caller vouches for; it may change the volatile registers. An error is a
    // positive errno here, with CR0.SO set.
    unsafe {
        asm!(
            "mr 14, 1",
            "mr 1, {sp}",
            "sc",
            "bns 2f",
            "neg 3, 3",
            "2: mr 1, 14",
            sp = in(reg_nonzero) sp,
            inout("r0") libc::SYS_sigaltstack => _,
            inout("r3") answer,
            inout("r4") 0 => _,
            out("r5") _, out("r6") _, out("r7") _, out("r8") _, out("r9") _, out("r10") _, out("r11") _, out("r12") _,
            out("r14") _, out("cr0") _, out("ctr") _, out("xer") _,
        );
    }
    answer
}
