//! Return trampolines, the jprobe's return trap, cache maintenance: the code that must run on the
//! architecture.
//!
//! The trampolines are plain assembly with labels that are not function symbols: `#[unsafe(naked)]` makes no
//! function descriptor on ELFv1. None of them needs a TOC of its own: the handler is called through its
//! function pointer, which brings the TOC (ELFv1: from the descriptor; ELFv2: computed from r12), and r2 of
//! the interrupted code is kept in the registers and restored from there.
//!
//! ```text
//! frame of a veneer or a detour, from r1 upwards              offset   size
//! back chain, CR, LR, TOC, parameter save area of the handler      0    112
//! PtRegs                                                         112    352
//!
//! frame below it, with vectors
//! the same as above                                                0    112
//! FPSCR; VSCR                                                    112     32
//! vs0-vs31 (or f0-f31)                                           144    512
//! v0-v19                                                         656    320
//! ```

use crate::call::{REGS, VENEER_FRAME};
use crate::regs::{MSR_SF, PtRegs};
use crate::{Abi, Endian, NativeAbi, NativeEndian, Ppc64};
use crate::{detour, patch};
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, NativeJumps, SaveSet};

const _: () = {
    assert!(VENEER_FRAME.is_multiple_of(16) && VENEER_FRAME >= REGS + size_of::<PtRegs>());
    assert!(MSR_SF == 1 << 63);
};

// How a handler is called through the function pointer in r11; arguments in r3 and r4. The three words of a
// descriptor are code, TOC and environment.
#[cfg(target_abi = "elfv1")]
macro_rules! call_handler {
    () => {
        "ld 12,0(11); ld 2,8(11); ld 11,16(11); mtctr 12; bctrl"
    };
}
#[cfg(not(target_abi = "elfv1"))]
macro_rules! call_handler {
    () => {
        "mr 12,11; mtctr 12; bctrl"
    };
}

/// One trampoline, entered from a veneer, which has made the frame: r12 is the stub's end, r11 the handler,
/// and r0, r11, r12 and CTR are saved already.
///
/// The trampoline does not write the LR save doubleword and the TOC doubleword of the caller's frame. After
/// the handler, LR is the return address, as the function's own `blr` would have left it. Registers that
/// calls preserve are loaded only where the handler may have changed them.
macro_rules! trampoline {
    ($name:literal, $save:expr, $restore:expr) => {
        global_asm!(
            ".pushsection .text.probe_arch_ppc64,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            ".cfi_def_cfa_offset {frame}",
            ".irp r,2,3,4,5,6,7,8,9,10,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "std \\r,{regs}+8*\\r(1)",
            ".endr",
            "addi 0,1,{frame}; std 0,{regs}+8(1)",
            "addi 3,12,-4; std 3,{regs}+{nip}(1); std 3,{regs}+{link}(1)",
            ".cfi_offset 65,{regs}+{nip}-{frame}",
            "mfxer 0; std 0,{regs}+{xer}(1)",
            "mfcr 0; std 0,{regs}+{ccr}(1)",
            "li 0,1; sldi 0,0,63; std 0,{regs}+{msr}(1)",
            "addi 4,1,{regs}",
            $save,
            call_handler!(),
            $restore,
            "cmpdi 3,0; bne 9f",
            "6: ld 0,{regs}+{nip}(1); mtlr 0",
            "ld 0,{regs}+{ctr}(1); mtctr 0",
            "ld 0,{regs}+{xer}(1); mtxer 0",
            "ld 0,{regs}+{ccr}(1); mtcrf 255,0",
            ".irp r,0,2,3,4,5,6,7,8,9,10,11,12",
            "ld \\r,{regs}+8*\\r(1)",
            ".endr",
            ".cfi_remember_state",
            "ld 1,{regs}+8(1)",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore 65",
            "blr",
            ".cfi_restore_state",
            "9:",
            ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "ld \\r,{regs}+8*\\r(1)",
            ".endr",
            "b 6b",
            ".cfi_endproc",
            ".popsection",
            frame = const VENEER_FRAME,
            regs = const REGS,
            nip = const offset_of!(PtRegs, nip),
            msr = const offset_of!(PtRegs, msr),
            ctr = const offset_of!(PtRegs, ctr),
            link = const offset_of!(PtRegs, link),
            xer = const offset_of!(PtRegs, xer),
            ccr = const offset_of!(PtRegs, ccr),
        );
    };
}

/// One trampoline of detours, entered from a detour's call, which has made the frame. LR is the address to go
/// on at, and the detour's word lies before it. The detour has saved r0, r12, LR and CTR, and loads them
/// again itself.
macro_rules! detour_trampoline {
    ($name:literal, $save:expr, $restore:expr) => {
        global_asm!(
            ".pushsection .text.probe_arch_ppc64,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            ".cfi_def_cfa_offset {frame}",
            ".irp r,2,3,4,5,6,7,8,9,10,11,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "std \\r,{regs}+8*\\r(1)",
            ".endr",
            "mflr 31",
            ".cfi_offset 65,{regs}+{link}-{frame}",
            ".cfi_offset 31,{regs}+8*31-{frame}",
            "addi 0,1,{frame}; std 0,{regs}+8(1)",
            "mfxer 0; std 0,{regs}+{xer}(1)",
            "mfcr 0; std 0,{regs}+{ccr}(1)",
            "li 0,1; sldi 0,0,63; std 0,{regs}+{msr}(1)",
            "ld 3,-{word_distance}(31); ld 11,0(3); ld 0,8(3); std 0,{regs}+{nip}(1)",
            "addi 4,1,{regs}",
            $save,
            call_handler!(),
            $restore,
            "cmpdi 3,0; bne 9f",
            "6: mtlr 31",
            "ld 0,{regs}+{xer}(1); mtxer 0",
            "ld 0,{regs}+{ccr}(1); mtcrf 255,0",
            ".irp r,2,3,4,5,6,7,8,9,10,11,31",
            "ld \\r,{regs}+8*\\r(1)",
            ".endr",
            "blr",
            "9: cmpdi 3,2",
            "addi 3,1,{regs}",
            "blt 7f",
            "bgt probe_ppc64_detour_resume",
            "addi 31,31,{to_copy}; std 31,{regs}+{nip}(1)",
            "b probe_ppc64_detour_resume",
            "7:",
            ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30",
            "ld \\r,{regs}+8*\\r(1)",
            ".endr",
            "b 6b",
            ".cfi_endproc",
            ".popsection",
            frame = const detour::FRAME,
            regs = const REGS,
            to_copy = const detour::AFTER * 4,
            word_distance = const detour::WORD_DISTANCE,
            nip = const offset_of!(PtRegs, nip),
            msr = const offset_of!(PtRegs, msr),
            link = const offset_of!(PtRegs, link),
            xer = const offset_of!(PtRegs, xer),
            ccr = const offset_of!(PtRegs, ccr),
        );
    };
}

macro_rules! repeat_0_to_31 {
    ($body:literal) => {
        concat!(
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n",
            $body,
            "\n.endr\n"
        )
    };
}

macro_rules! repeat_0_to_19 {
    ($body:literal) => {
        concat!(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n", $body, "\n.endr\n")
    };
}

// r0 and r10 are saved already and restored later; r3, r4 and r11 are kept.
macro_rules! save_floats {
    () => {
        concat!(
            "stdu 1,-976(1); .cfi_adjust_cfa_offset 976\n",
            repeat_0_to_31!("stfd \\r,144+16*\\r(1)"),
            "mffs 0; stfd 0,112(1)\n"
        )
    };
}
macro_rules! restore_floats {
    () => {
        concat!(
            "lfd 0,112(1); mtfsf 255,0\n",
            repeat_0_to_31!("lfd \\r,144+16*\\r(1)"),
            "addi 1,1,976; .cfi_adjust_cfa_offset -976\n"
        )
    };
}
macro_rules! save_vectors {
    () => {
        concat!(repeat_0_to_19!("li 10,656+16*\\r; stvx \\r,1,10"), "mfvscr 0; li 10,128; stvx 0,1,10\n")
    };
}
macro_rules! restore_vectors {
    () => {
        concat!("li 10,128; lvx 0,1,10; mtvscr 0\n", repeat_0_to_19!("li 10,656+16*\\r; lvx \\r,1,10"))
    };
}
// vs0-vs31 hold f0-f31 in their first doublewords; the second ones are volatile in all of them.
macro_rules! save_vsx {
    () => {
        concat!(
            "stdu 1,-976(1); .cfi_adjust_cfa_offset 976\n",
            repeat_0_to_31!("li 10,144+16*\\r; stxvd2x \\r,1,10"),
            "mffs 0; stfd 0,112(1)\n"
        )
    };
}
macro_rules! restore_vsx {
    () => {
        concat!(
            "lfd 0,112(1); mtfsf 255,0\n",
            repeat_0_to_31!("li 10,144+16*\\r; lxvd2x \\r,1,10"),
            "addi 1,1,976; .cfi_adjust_cfa_offset -976\n"
        )
    };
}

trampoline!("probe_ppc64_return_general", "", "");
trampoline!("probe_ppc64_return_float", save_floats!(), restore_floats!());
trampoline!(
    "probe_ppc64_return_altivec",
    concat!(save_floats!(), save_vectors!()),
    concat!(restore_vectors!(), restore_floats!())
);
trampoline!(
    "probe_ppc64_return_vsx",
    concat!(save_vsx!(), save_vectors!()),
    concat!(restore_vectors!(), restore_vsx!())
);

detour_trampoline!("probe_ppc64_detour_general", "", "");
detour_trampoline!("probe_ppc64_detour_float", save_floats!(), restore_floats!());
detour_trampoline!(
    "probe_ppc64_detour_altivec",
    concat!(save_floats!(), save_vectors!()),
    concat!(restore_vectors!(), restore_floats!())
);
detour_trampoline!(
    "probe_ppc64_detour_vsx",
    concat!(save_vsx!(), save_vectors!()),
    concat!(restore_vectors!(), restore_vsx!())
);

global_asm!(
    ".pushsection .text.probe_arch_ppc64,\"ax\",@progbits",
    ".p2align 2",
    ".globl probe_ppc64_jprobe_return",
    ".hidden probe_ppc64_jprobe_return",
    "probe_ppc64_jprobe_return:",
    "trap",
    // Nobody gets here: the trap is taken over by the core.
    "b probe_ppc64_jprobe_return",
    // Where a detour's trampoline traps, with r3 pointing to the registers to go on with.
    ".globl probe_ppc64_detour_resume",
    ".hidden probe_ppc64_detour_resume",
    "probe_ppc64_detour_resume:",
    "trap",
    "b probe_ppc64_detour_resume",
    ".popsection",
);

// Labels of code, not functions: declared as data so that their addresses are not those of descriptors.
unsafe extern "C" {
    static probe_ppc64_return_general: u32;
    static probe_ppc64_return_float: u32;
    static probe_ppc64_return_altivec: u32;
    static probe_ppc64_return_vsx: u32;
    static probe_ppc64_detour_general: u32;
    static probe_ppc64_detour_float: u32;
    static probe_ppc64_detour_altivec: u32;
    static probe_ppc64_detour_vsx: u32;
    static probe_ppc64_detour_resume: u32;
    static probe_ppc64_jprobe_return: u32;
}

/// The vector registers that this processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VectorUnit {
    None,
    Altivec,
    Vsx,
}

/// Reads the processor version register, which Linux lets programs read, and tells which vector registers
/// there are.
///
/// The handlers may have been built without them, but a C library chooses its `memcpy` by processor.
fn vector_unit() -> VectorUnit {
    if cfg!(target_feature = "vsx") {
        return VectorUnit::Vsx;
    }
    let pvr: u64;
    // SAFETY: reads a register that problem state may read (Linux emulates it), and changes nothing else.
    unsafe { asm!("mfspr {}, 287", out(reg) pvr, options(nomem, nostack, preserves_flags)) };
    match (pvr >> 16) as u16 {
        // POWER7 to POWER9; from POWER10 on the versions are 0x80 and up, e6500 is 0x8040.
        0x3f | 0x4a..=0x4f | 0x80..=0x8f => VectorUnit::Vsx,
        // 970, Cell, POWER6, PA6T, e6500.
        0x39 | 0x3c | 0x44 | 0x45 | 0x70 | 0x3e | 0x90 | 0x8040 => VectorUnit::Altivec,
        _ => VectorUnit::None,
    }
}

// SAFETY: `publish` has the sequence of Book II, "Instruction Cache Block Invalidate".
unsafe impl NativeArch for Ppc64<NativeEndian, NativeAbi> {
    // LLVM makes `sync` of the default: a barrier for other processors, which nobody needs here.
    #[inline(always)]
    fn program_order() {
        // SAFETY: no instruction; it may have read and written any memory, as far as the compiler knows.
        unsafe { asm!("", options(nostack, preserves_flags)) };
    }

    unsafe fn publish(at: CodeAddr, len_bytes: usize) {
        let (start, steps) = patch::blocks(at.as_usize(), len_bytes);
        if steps == 0 {
            return;
        }
        // SAFETY: the caller promises that the range is mapped and readable, so its cache blocks are; the
        // instructions write no memory that Rust knows of. Book II, "Instruction Cache Block Invalidate", has
        // this sequence.
        unsafe {
            asm!(
                "mr {at}, {start}",
                "mtctr {steps}",
                "2: dcbst 0, {at}",
                "addi {at}, {at}, {step}",
                "bdnz 2b",
                "sync",
                "mr {at}, {start}",
                "mtctr {steps}",
                "3: icbi 0, {at}",
                "addi {at}, {at}, {step}",
                "bdnz 3b",
                "sync",
                "isync",
                start = in(reg_nonzero) start,
                steps = in(reg_nonzero) steps,
                at = out(reg_nonzero) _,
                step = const patch::CACHE_STEP,
                out("ctr") _,
                options(nostack),
            );
        }
    }
}

// SAFETY: the trampolines above keep the protocol of `return_trampoline`; `probe_ppc64_jprobe_return` is a
// `trap`, whose nip is its own address.
unsafe impl NativeCalls<PtRegs> for Ppc64<NativeEndian, NativeAbi> {
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        let label = match (save, vector_unit_for(save)) {
            (SaveSet::General, _) => &raw const probe_ppc64_return_general,
            (SaveSet::Full, VectorUnit::None) => &raw const probe_ppc64_return_float,
            (SaveSet::Full, VectorUnit::Altivec) => &raw const probe_ppc64_return_altivec,
            (SaveSet::Full, VectorUnit::Vsx) => &raw const probe_ppc64_return_vsx,
        };
        CodeAddr::new(label.addr())
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_ppc64_jprobe_return).addr())
    }
}

// SAFETY: the trampolines above keep the protocol of `detour_trampoline`.
unsafe impl NativeJumps<PtRegs> for Ppc64<NativeEndian, NativeAbi> {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        let label = match (save, vector_unit_for(save)) {
            (SaveSet::General, _) => &raw const probe_ppc64_detour_general,
            (SaveSet::Full, VectorUnit::None) => &raw const probe_ppc64_detour_float,
            (SaveSet::Full, VectorUnit::Altivec) => &raw const probe_ppc64_detour_altivec,
            (SaveSet::Full, VectorUnit::Vsx) => &raw const probe_ppc64_detour_vsx,
        };
        CodeAddr::new(label.addr())
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_ppc64_detour_resume).addr())
    }
}

/// The answer of [`vector_unit`], asked for only where vectors are saved: a kernel that saves none need not
/// care.
fn vector_unit_for(save: SaveSet) -> VectorUnit {
    match save {
        SaveSet::General => VectorUnit::None,
        SaveSet::Full => vector_unit(),
    }
}

// The trampolines are written for the variant that this is compiled for.
const _: () = assert!(NativeAbi::HAS_LOCAL_ENTRY == cfg!(not(target_abi = "elfv1")));
const _: () = assert!(NativeEndian::BREAKPOINT.len() == 4);
