//! Return trampolines, the jprobe's return trap, cache maintenance: the code that must run on the
//! architecture.
//!
//! ```text
//! frame of a veneer, from r1 upwards                          offset   size
//! back chain, LR save word of the handler                          0     16
//! PtRegs                                                          16    176
//!
//! frame below it, with floating point and vectors
//! the same as above                                                0     16
//! FPSCR; VSCR                                                     16     32
//! f0-f13, or vs0-vs31                                             48    512
//! v0-v19                                                         560    320
//! ```

use crate::Ppc32;
use crate::call::{REGS, VENEER_FRAME};
use crate::patch;
use crate::regs::PtRegs;
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, SaveSet};

const _: () = assert!(VENEER_FRAME.is_multiple_of(16) && VENEER_FRAME >= REGS + size_of::<PtRegs>());

/// One trampoline, entered from a veneer, which has made the frame: r12 is the stub's end, r11 the handler,
/// and r0, r11, r12 and CTR are saved already.
///
/// The trampoline does not write the LR save word of the caller's frame. After the handler, LR is the return
/// address, as the function's own `blr` would have left it. Registers that calls preserve are loaded only
/// where the handler may have changed them.
macro_rules! trampoline {
    ($name:literal, $save:expr, $restore:expr) => {
        global_asm!(
            ".pushsection .text.probe_arch_ppc32,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!($name, ":"),
            ".cfi_startproc",
            ".cfi_def_cfa_offset {frame}",
            "stw 2,{regs}+8(1); stmw 13,{regs}+52(1)",
            ".irp r,3,4,5,6,7,8,9,10",
            "stw \\r,{regs}+4*\\r(1)",
            ".endr",
            "addi 0,1,{frame}; stw 0,{regs}+4(1)",
            "addi 3,12,-4; stw 3,{regs}+{nip}(1); stw 3,{regs}+{link}(1)",
            ".cfi_offset 65,{regs}+{nip}-{frame}",
            "mfxer 0; stw 0,{regs}+{xer}(1)",
            "mfcr 0; stw 0,{regs}+{ccr}(1)",
            "addi 4,1,{regs}",
            $save,
            "mtctr 11; bctrl",
            $restore,
            "cmpwi 3,0; bne 9f",
            "6: lwz 0,{regs}+{nip}(1); mtlr 0",
            "lwz 0,{regs}+{ctr}(1); mtctr 0",
            "lwz 0,{regs}+{xer}(1); mtxer 0",
            "lwz 0,{regs}+{ccr}(1); mtcrf 255,0",
            ".irp r,0,2,3,4,5,6,7,8,9,10,11,12",
            "lwz \\r,{regs}+4*\\r(1)",
            ".endr",
            ".cfi_remember_state",
            "lwz 1,{regs}+4(1)",
            ".cfi_def_cfa_offset 0",
            ".cfi_restore 65",
            "blr",
            ".cfi_restore_state",
            "9: lmw 13,{regs}+52(1)",
            "b 6b",
            ".cfi_endproc",
            ".popsection",
            frame = const VENEER_FRAME,
            regs = const REGS,
            nip = const offset_of!(PtRegs, nip),
            ctr = const offset_of!(PtRegs, ctr),
            link = const offset_of!(PtRegs, link),
            xer = const offset_of!(PtRegs, xer),
            ccr = const offset_of!(PtRegs, ccr),
        );
    };
}

macro_rules! repeat_0_to_13 {
    ($body:literal) => {
        concat!(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13\n", $body, "\n.endr\n")
    };
}

macro_rules! repeat_0_to_19 {
    ($body:literal) => {
        concat!(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n", $body, "\n.endr\n")
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

// r0 and r10 are saved already and restored later; r3, r4 and r11 are kept.
macro_rules! save_floats {
    ($registers:expr) => {
        concat!("stwu 1,-880(1); .cfi_adjust_cfa_offset 880\n", $registers, "mffs 0; stfd 0,16(1)\n")
    };
}
macro_rules! restore_floats {
    ($registers:expr) => {
        concat!("lfd 0,16(1); mtfsf 255,0\n", $registers, "addi 1,1,880; .cfi_adjust_cfa_offset -880\n")
    };
}
macro_rules! save_vectors {
    () => {
        concat!(
            ".machine push; .machine power7\n",
            repeat_0_to_19!("li 10,560+16*\\r; stvx \\r,1,10"),
            "mfvscr 0; li 10,32; stvx 0,1,10\n.machine pop\n"
        )
    };
}
macro_rules! restore_vectors {
    () => {
        concat!(
            ".machine push; .machine power7\nli 10,32; lvx 0,1,10; mtvscr 0\n",
            repeat_0_to_19!("li 10,560+16*\\r; lvx \\r,1,10"),
            ".machine pop\n"
        )
    };
}
// vs0-vs31 hold f0-f31 in their first doublewords; the second ones are volatile in all of them.
macro_rules! vsx {
    ($body:literal) => {
        concat!(".machine push; .machine power7\n", repeat_0_to_31!($body), ".machine pop\n")
    };
}

trampoline!("probe_ppc32_return_general", "", "");
trampoline!(
    "probe_ppc32_return_float",
    save_floats!(repeat_0_to_13!("stfd \\r,48+16*\\r(1)")),
    restore_floats!(repeat_0_to_13!("lfd \\r,48+16*\\r(1)"))
);
trampoline!(
    "probe_ppc32_return_altivec",
    concat!(save_floats!(repeat_0_to_13!("stfd \\r,48+16*\\r(1)")), save_vectors!()),
    concat!(restore_vectors!(), restore_floats!(repeat_0_to_13!("lfd \\r,48+16*\\r(1)")))
);
trampoline!(
    "probe_ppc32_return_vsx",
    concat!(save_floats!(vsx!("li 10,48+16*\\r; stxvd2x \\r,1,10")), save_vectors!()),
    concat!(restore_vectors!(), restore_floats!(vsx!("li 10,48+16*\\r; lxvd2x \\r,1,10")))
);

global_asm!(
    ".pushsection .text.probe_arch_ppc32,\"ax\",@progbits",
    ".p2align 2",
    ".globl probe_ppc32_jprobe_return",
    ".hidden probe_ppc32_jprobe_return",
    "probe_ppc32_jprobe_return:",
    "trap",
    // Nobody gets here: the trap is taken over by the core.
    "b probe_ppc32_jprobe_return",
    ".popsection",
);

unsafe extern "C" {
    static probe_ppc32_return_general: u32;
    static probe_ppc32_return_float: u32;
    static probe_ppc32_return_altivec: u32;
    static probe_ppc32_return_vsx: u32;
    static probe_ppc32_jprobe_return: u32;
}

/// The trampoline that saves all that this processor has and a handler may change.
///
/// The processor version register says what it has, which Linux lets programs read. The handlers may have
/// been built without vectors, but a C library chooses its `memcpy` by processor.
fn full_trampoline() -> *const u32 {
    let pvr: u32;
    // SAFETY: reads a register that problem state may read (Linux emulates it), and changes nothing else.
    unsafe { asm!("mfspr {}, 287", out(reg) pvr, options(nomem, nostack, preserves_flags)) };
    match (pvr >> 16) as u16 {
        // POWER7 to POWER9; from POWER10 on the versions are 0x80 and up.
        0x3f | 0x4a..=0x4f | 0x82..=0x8f => &raw const probe_ppc32_return_vsx,
        // 7400, 7410, 745x; 970, Cell, POWER6, PA6T, e6500.
        0x0c | 0x800c | 0x8000..=0x8004 => &raw const probe_ppc32_return_altivec,
        0x39 | 0x3c | 0x44 | 0x45 | 0x70 | 0x3e | 0x90 | 0x8040 => &raw const probe_ppc32_return_altivec,
        _ => &raw const probe_ppc32_return_float,
    }
}

// SAFETY: `publish` has the sequence of Book II, "Instruction Cache Block Invalidate".
unsafe impl NativeArch for Ppc32 {
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

// SAFETY: the trampolines above keep the protocol of `return_trampoline`; `probe_ppc32_jprobe_return` is a
// `trap`, whose nip is its own address.
unsafe impl NativeCalls<PtRegs> for Ppc32 {
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        let label = match save {
            SaveSet::General => &raw const probe_ppc32_return_general,
            SaveSet::Full => full_trampoline(),
        };
        CodeAddr::new(label.addr())
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_ppc32_jprobe_return).addr())
    }
}
