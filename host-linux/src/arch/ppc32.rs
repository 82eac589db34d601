//! ppc32, big endian. `ucontext_t`: `uc_regs` at 48, a pointer to `uc_mcontext`; `uc_sigmask` at 52, 128
//! bytes of it and padding; `uc_mcontext` at 192: r0-r31, nip, msr, orig_r3, ctr, link, xer, ccr, mq, trap,
//! dar, dsisr, result. (libc's `ucontext_t` is not the kernel's.)

pub(crate) use super::plain::{
    RESTORER_FLAG, WATCHPOINTS, call_handler, check_watch, enter, function_entry, is_breakpoint_trap,
    is_step_trap, restorer, set_step, skip_counter, start, steps_itself, uncheck_alignment,
};
pub use probe_unwind::ppc32::FRAMES;

use super::assembly::shared_assembly;
use super::code::{Call, Leads, Load, SyscallCode, is_direct, word};
use super::frame::{Frame, Regs};
use crate::abi::AltStack;
use core::arch::asm;
use core::ffi::c_int;
use probe_core::CodeAddr;
use probe_core::arch::Memory;
use probe_unwind::{EhFrame, Stubs};

const fn gp(index: usize) -> usize {
    192 + 4 * index
}

pub(super) const PC: usize = gp(32);
pub(super) const SP: usize = gp(1);
pub(super) const SIGMASK: usize = 52;
/// How long the kernel's structure is, at the least.
pub(super) const FRAME_LEN: usize = gp(48);

/// `li r3, 1; blr` and `li r3, 2; blr`: for the self-test of text writes.
pub(crate) const RETURN_ONE: &[u8] = &[0x38, 0x60, 0, 1, 0x4e, 0x80, 0x00, 0x20];
pub(crate) const RETURN_TWO: &[u8] = &[0x38, 0x60, 0, 2, 0x4e, 0x80, 0x00, 0x20];
/// Code here addresses through the GOT, whose address `bcl` gives in place.
pub(crate) const IS_ADDRESS_THUNK: Option<fn([u8; 4]) -> bool> = None;

pub(super) fn load_regs(frame: Frame) -> Regs {
    let get = |index| frame.word(gp(index)) as u32;
    Regs {
        gpr: core::array::from_fn(get),
        nip: get(32),
        msr: get(33),
        orig_gpr3: get(34),
        ctr: get(35),
        link: get(36),
        xer: get(37),
        ccr: get(38),
        mq: 0,
        // The next three are not filled in by emulators: 0x700 is what the kernel gives for a breakpoint.
        trap: 0x700,
        dar: 0,
        dsisr: 0,
        result: 0,
    }
}

pub(super) fn store_regs(frame: Frame, regs: &Regs) {
    let set = |index, value: u32| frame.set_word(gp(index), value as usize);
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

/// Describes a chunk of return stubs to unwinders.
pub(crate) fn eh_frame(stubs: &Stubs) -> EhFrame {
    probe_unwind::ppc32::eh_frame(stubs)
}

/// Where the direct branch that `text` starts with leads, which lies at `at`.
pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    probe_arch_native::Native::direct_branch(text, at)
}

/// How libc's code makes a system call: by `sc`, which reports an errno as a positive number with CR0.SO set.
pub(crate) const SYSCALL: SyscallCode = SyscallCode {
    loads: &[Load::new(4, |number| word((0x3800_0000 | number & 0x7fff).to_be_bytes()))],
    between: 24,
    calls: &[Call::new(&0x4400_0002_u32.to_be_bytes())],
    leads: |_, insn| {
        let Some(&word) = insn.first_chunk() else { return Leads::Away };
        let word = u32::from_be_bytes(word);
        let is_call = word & 1 != 0;
        match word >> 26 {
            16 | 18 if is_call => Leads::Away,
            16 => Leads::Either,
            18 => Leads::Elsewhere,
            // `bclr`, `bcctr`.
            19 if matches!(word >> 1 & 0x3ff, 16 | 528) => Leads::Away,
            _ => Leads::On,
        }
    },
    number: |regs, _| regs.gpr[0] as usize,
    argument: |regs, index| regs.gpr[3..9].get(index).copied().unwrap_or(0) as usize,
    set_first: |regs, value| regs.gpr[3] = value as u32,
    set_result: |regs, _, result| {
        const CR0_SO: u32 = 0x1000_0000;
        let is_error = result < 0;
        regs.gpr[3] = if is_error { -result } else { result } as u32;
        regs.ccr = if is_error { regs.ccr | CR0_SO } else { regs.ccr & !CR0_SO };
    },
    make_directly: is_direct,
    leave_directly: |_| {},
};

// copy(to r3, from r4, len r5): what is left over, also in r5. syscall(number r3, six arguments at r4), which
// gives an error as a positive errno, with CR0.SO set.
shared_assembly!(
    word: 4,
    copy: [
        "2: cmplwi 5, 4",
        "blt 3f",
        "lwz 6, 0(4)",
        "stw 6, 0(3)",
        "addi 4, 4, 4",
        "addi 3, 3, 4",
        "addi 5, 5, -4",
        "b 2b",
        "3: cmplwi 5, 0",
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
        "lwz 3, 0(9)",
        "lwz 4, 4(9)",
        "lwz 5, 8(9)",
        "lwz 6, 12(9)",
        "lwz 7, 16(9)",
        "lwz 8, 20(9)",
        "sc",
        "bnslr",
        "neg 3, 3",
        "blr",
    ],
);

/// Writes argument number `index` at a function's entry; `None` where it cannot be written.
pub(crate) fn set_argument(regs: &mut Regs, memory: &impl Memory, index: usize, value: usize) -> Option<()> {
    match regs.gpr[3..11].get_mut(index) {
        Some(register) => *register = value as u32,
        None => memory.write_usize(regs.gpr[1] as usize + 8 + 4 * (index - 8), value).ok()?,
    }
    Some(())
}

/// The calling thread's word of storage, zero at first.
#[inline(always)]
pub(crate) fn thread_slot() -> *mut usize {
    let at: *mut usize;
    // SAFETY: reads the offset that the linker or loader put into the GOT and adds the thread pointer r2; no
    // memory of the program is touched.
    unsafe {
        asm!(
            "bcl 20, 31, 2f",
            "2: mflr {at}",
            "addis {at}, {at}, _GLOBAL_OFFSET_TABLE_-2b@ha",
            "addi {at}, {at}, _GLOBAL_OFFSET_TABLE_-2b@l",
            "lwz {at}, probe_host_linux_thread@got@tprel({at})",
            "add {at}, {at}, probe_host_linux_thread@tls",
            at = out(reg_nonzero) at,
            out("lr") _,
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
