//! Trampolines, the jump probe's return trap, cache maintenance: what must run on the architecture itself.
//!
//! All of it lies in the section `.text.probe_arch_aarch64`, so that a host can keep probes out of it, and every entry
//! starts with a BTI landing pad (a NOP before ARMv8.5).
//!
//! **Return trampolines.** A stub's veneer arrives with the stub's address and the handler pushed on the stack. The trampoline
//! builds [`PtRegs`] below them, with pc = the stub and sp = the stack pointer at the return, and
//! calls the handler; X29 then heads a frame record of (X29, X30) at the return, so that a walk by frame pointers finds the
//! stub as a return address; the CFI says the same. PSTATE holds NZCV only: nothing else of it can be read or set
//! from a process. Afterwards:
//! - where X30 still is the stub's address, it becomes the final pc, as a return leaves it;
//! - pc = X30 and SP unchanged (every normal return): *all* registers, X16 and X17 too, are as `regs` says, and `ret`
//!   goes on (no landing pad is needed at its target);
//! - else (a handler has redirected the return): X16 and X17, which the ABI gives to veneers, hold SP and pc.
//!
//! [`SaveSet::Full`] saves Q0-Q31, FPCR and FPSR around the handler. Where the core has SVE, writing a Q register clears the
//! rest of its Z register, so there Z0-Z31 and P0-P15 are saved at the present vector length instead (FFR is not:
//! no call preserves or returns it). In streaming mode (FEAT_SME) a process's handler cannot use Advanced SIMD;
//! returning from a probed function with PSTATE.SM = 1 is not supported.

use crate::Aarch64;
use crate::insn;
use core::arch::{asm, global_asm};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, SaveSet};

/// The immediate of the jump probe's return trap: next to that of places, to be told apart in a dump.
const JPROBE_IMM: u16 = insn::PROBE_IMM + 1;

global_asm!(
    r#"
    .pushsection .text.probe_arch_aarch64, "ax", %progbits
    .arch_extension fp
    .arch_extension simd
    .arch_extension sve

    // X0 to X15 and X18 to X27, which every sequence stores or loads alike: \op is STP or LDP.
    .macro probe_a64_pairs op
    \op x0, x1, [sp, #0]
    \op x2, x3, [sp, #16]
    \op x4, x5, [sp, #32]
    \op x6, x7, [sp, #48]
    \op x8, x9, [sp, #64]
    \op x10, x11, [sp, #80]
    \op x12, x13, [sp, #96]
    \op x14, x15, [sp, #112]
    \op x18, x19, [sp, #144]
    \op x20, x21, [sp, #160]
    \op x22, x23, [sp, #176]
    \op x24, x25, [sp, #192]
    \op x26, x27, [sp, #208]
    .endm

    // Makes the frame, and saves what was in the registers but x30. \pair: the offset from sp of what the veneer or the detour
    // has pushed, and of the top of the frame less 16.
    .macro probe_a64_save pair
    sub sp, sp, #\pair
    .cfi_def_cfa sp, \pair + 16
    probe_a64_pairs stp
    stp x16, x17, [sp, #128]
    stp x28, x29, [sp, #224]
    .endm

    .macro probe_a64_describe pair
    .irp n, 19,20,21,22,23,24,25,26,27,28,29,30
    .cfi_offset x\n, \n * 8 - \pair - 16
    .endr
    .endm

    // Returns: \pair is where the stub's address and the handler lie.
    .macro probe_a64_return_begin pair
    hint #36                            // bti j: from the veneer's br
    probe_a64_save \pair
    str x30, [sp, #240]
    probe_a64_describe \pair
    add x17, sp, #\pair + 16
    stp x17, x16, [sp, #248]            // sp, pc
    mrs x17, nzcv
    str x17, [sp, #264]
    mov x0, sp
    ldr x1, [sp, #\pair]               // the stub
    ldr x16, [sp, #\pair + 8]           // the handler
    add x29, sp, #232
    .endm

    .macro probe_a64_return_end pair
    ldr x16, [sp, #\pair]               // the stub
    ldp x1, x17, [sp, #248]             // sp, pc
    ldr x30, [sp, #240]
    cmp x30, x16
    csel x30, x17, x30, eq
    ldr x2, [sp, #264]
    add x0, sp, #\pair + 16
    cmp x0, x1
    ccmp x30, x17, #0, eq
    mov x16, x1
    b.eq 7f
    msr nzcv, x2
    probe_a64_pairs ldp
    ldp x28, x29, [sp, #224]
    mov sp, x16
    ret x17
7:
    msr nzcv, x2
    probe_a64_pairs ldp
    ldp x16, x17, [sp, #128]
    ldp x28, x29, [sp, #224]
    add sp, sp, #\pair + 16
    ret
    .endm

    // Detours: \pair is where X29 and X30 at the place lie, and X30 is where the detour goes on.
    .macro probe_a64_detour_begin pair
    hint #34                            // bti c: from the detour's blr
    probe_a64_save \pair
    ldr x17, [sp, #\pair + 8]          // x30 at the place
    str x17, [sp, #240]
    probe_a64_describe \pair
    add x17, sp, #\pair + 16
    str x17, [sp, #248]
    ldur x1, [x30, #-20]                // the detour's word
    mrs x17, nzcv
    str x17, [sp, #264]
    mov x0, sp
    ldr x16, [x1]                       // the handler
    add x29, sp, #232
    .endm

    .macro probe_a64_detour_end pair
    cbz x0, 7f
    mov x30, x0
    ldp x0, x1, [sp, #232]
    add x2, sp, #\pair
    stp x0, x1, [x2]
    ldr x2, [sp, #264]
    msr nzcv, x2
    probe_a64_pairs ldp
    ldp x16, x17, [sp, #128]
    ldr x28, [sp, #224]
    add sp, sp, #\pair
    ret
7:  mov x0, sp
    b probe_aarch64_detour_resume
    .endm

    // Without floating point. Frame: PtRegs (272), the pair.
    .macro probe_a64_general_call
    blr x16
    .endm

    // Q0-Q31, FPCR, FPSR. Frame: PtRegs (272), Q (512), FPCR and FPSR (16), the pair.
    .macro probe_a64_q op
    \op q0, q1, [sp, #272]
    \op q2, q3, [sp, #304]
    \op q4, q5, [sp, #336]
    \op q6, q7, [sp, #368]
    \op q8, q9, [sp, #400]
    \op q10, q11, [sp, #432]
    \op q12, q13, [sp, #464]
    \op q14, q15, [sp, #496]
    \op q16, q17, [sp, #528]
    \op q18, q19, [sp, #560]
    \op q20, q21, [sp, #592]
    \op q22, q23, [sp, #624]
    \op q24, q25, [sp, #656]
    \op q26, q27, [sp, #688]
    \op q28, q29, [sp, #720]
    \op q30, q31, [sp, #752]
    .endm

    .macro probe_a64_full_call
    probe_a64_q stp
    mrs x2, fpcr
    mrs x3, fpsr
    add x4, sp, #784
    stp x2, x3, [x4]
    blr x16
    add x4, sp, #784
    ldp x2, x3, [x4]
    msr fpcr, x2
    msr fpsr, x3
    probe_a64_q ldp
    .endm

    // Z0-Z31, P0-P15, FPCR, FPSR. Frame: P (2 vector lengths), Z (32), then PtRegs (272), FPCR and FPSR (16), the pair;
    // X19 points at PtRegs.
    .macro probe_a64_z op
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    \op p\n, [sp, #\n, mul vl]
    .endr
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    \op z\n, [sp, #\n + 2, mul vl]
    .endr
    .endm

    .macro probe_a64_sve_call
    mrs x2, fpcr
    mrs x3, fpsr
    stp x2, x3, [sp, #272]
    mov x19, sp
    .cfi_def_cfa_register x19
    addvl sp, sp, #-32
    addvl sp, sp, #-2
    probe_a64_z str
    blr x16
    probe_a64_z ldr
    mov sp, x19
    .cfi_def_cfa_register sp
    ldp x2, x3, [sp, #272]
    msr fpcr, x2
    msr fpsr, x3
    .endm

    // \kind: return or detour. \state: what is kept around the handler's call.
    .macro probe_a64_trampoline kind, state, pair
    .p2align 4
    .globl probe_aarch64_\kind\()_\state
    .hidden probe_aarch64_\kind\()_\state
    .type probe_aarch64_\kind\()_\state, %function
probe_aarch64_\kind\()_\state:
    .cfi_startproc
    probe_a64_\kind\()_begin \pair
    probe_a64_\state\()_call
    probe_a64_\kind\()_end \pair
    .cfi_endproc
    .size probe_aarch64_\kind\()_\state, . - probe_aarch64_\kind\()_\state
    .endm

    .irp kind, return,detour
    probe_a64_trampoline \kind, general, 272
    probe_a64_trampoline \kind, full, 800
    probe_a64_trampoline \kind, sve, 288
    .endr

    .irp name, pairs,save,describe,return_begin,return_end,detour_begin,detour_end,general_call,q,full_call,z,sve_call,trampoline
    .purgem probe_a64_\name
    .endr

    // Where a detour's trampoline traps, with X0 pointing to the registers to go on with.
    .globl probe_aarch64_detour_resume
    .hidden probe_aarch64_detour_resume
probe_aarch64_detour_resume:
    brk #{jprobe_imm}

    // The trap that a jump probe's handler returns to; the NOP before it is what an unwinder looks up.
    .globl probe_aarch64_jprobe_return
    .hidden probe_aarch64_jprobe_return
    nop
probe_aarch64_jprobe_return:
    brk #{jprobe_imm}

    // publish(x0: start, x1: length in bytes).
    .p2align 4
    .globl probe_aarch64_publish
    .hidden probe_aarch64_publish
    .type probe_aarch64_publish, %function
probe_aarch64_publish:
    .cfi_startproc
    hint #34                            // bti c
    cbz x1, 5f
    add x1, x0, x1
    mrs x2, ctr_el0
    tbnz x2, #28, 2f                    // IDC: no cleaning
    ubfx x3, x2, #16, #4                // DminLine
    mov x4, #4
    lsl x4, x4, x3
    sub x5, x4, #1
    bic x5, x0, x5
1:  dc cvau, x5
    add x5, x5, x4
    cmp x5, x1
    b.lo 1b
2:  dsb ish
    tbnz x2, #29, 4f                    // DIC: no invalidation
    and x3, x2, #0xf                    // IminLine
    mov x4, #4
    lsl x4, x4, x3
    sub x5, x4, #1
    bic x5, x0, x5
3:  ic ivau, x5
    add x5, x5, x4
    cmp x5, x1
    b.lo 3b
    dsb ish
4:  isb
5:  ret
    .cfi_endproc
    .size probe_aarch64_publish, . - probe_aarch64_publish
    .globl probe_aarch64_publish_end
    .hidden probe_aarch64_publish_end
probe_aarch64_publish_end:
    .popsection
    "#,
    jprobe_imm = const JPROBE_IMM,
);

unsafe extern "C" {
    static probe_aarch64_return_general: [u8; 0];
    static probe_aarch64_return_full: [u8; 0];
    static probe_aarch64_return_sve: [u8; 0];
    static probe_aarch64_detour_general: [u8; 0];
    static probe_aarch64_detour_full: [u8; 0];
    static probe_aarch64_detour_sve: [u8; 0];
    static probe_aarch64_detour_resume: [u8; 0];
    static probe_aarch64_jprobe_return: [u8; 0];
    fn probe_aarch64_publish(at: usize, len_bytes: usize);
}

// SAFETY: the module's description is the protocol that the trait asks for; the native tests run it.
unsafe impl NativeArch for Aarch64 {
    /// For [`SaveSet::Full`] this reads ID_AA64PFR0_EL1, which Linux (4.11 and later) lets a process read.
    fn return_trampoline(save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_aarch64_return_general,
            SaveSet::Full if has_sve() => &raw const probe_aarch64_return_sve,
            SaveSet::Full => &raw const probe_aarch64_return_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn detour_trampoline(save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_aarch64_detour_general,
            SaveSet::Full if has_sve() => &raw const probe_aarch64_detour_sve,
            SaveSet::Full => &raw const probe_aarch64_detour_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn detour_resume_trap() -> CodeAddr {
        CodeAddr::new((&raw const probe_aarch64_detour_resume).addr())
    }

    fn jprobe_return_trap() -> CodeAddr {
        CodeAddr::new((&raw const probe_aarch64_jprobe_return).addr())
    }

    unsafe fn publish(at: CodeAddr, len_bytes: usize) {
        // SAFETY: the caller promises that the range is mapped and readable; nothing but caches is changed.
        unsafe { probe_aarch64_publish(at.as_usize(), len_bytes) }
    }
}

/// Whether Z and P registers exist: ID_AA64PFR0_EL1.SVE (DDI 0487J.a D17.2.68).
fn has_sve() -> bool {
    let features: u64;
    // SAFETY: reads an identification register; a process's read is emulated by the operating system.
    unsafe {
        asm!("mrs {}, id_aa64pfr0_el1", out(reg) features, options(nomem, nostack, preserves_flags));
    }
    features >> 32 & 0xf != 0
}
