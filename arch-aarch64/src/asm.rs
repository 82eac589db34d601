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

    // \pair: the offset from sp of the stub's address and the handler, and of the top of the frame less 16.
    .macro probe_a64_save pair
    hint #36                            // bti j: from the veneer's br
    sub sp, sp, #\pair
    .cfi_def_cfa sp, \pair + 16
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    str x30, [sp, #240]
    .cfi_offset x19, 152 - \pair - 16
    .cfi_offset x20, 160 - \pair - 16
    .cfi_offset x21, 168 - \pair - 16
    .cfi_offset x22, 176 - \pair - 16
    .cfi_offset x23, 184 - \pair - 16
    .cfi_offset x24, 192 - \pair - 16
    .cfi_offset x25, 200 - \pair - 16
    .cfi_offset x26, 208 - \pair - 16
    .cfi_offset x27, 216 - \pair - 16
    .cfi_offset x28, 224 - \pair - 16
    .cfi_offset x29, 232 - \pair - 16
    .cfi_offset x30, 240 - \pair - 16
    add x17, sp, #\pair + 16
    stp x17, x16, [sp, #248]            // sp, pc
    mrs x17, nzcv
    str x17, [sp, #264]
    .endm

    .macro probe_a64_call pair
    mov x0, sp
    ldr x1, [sp, #\pair]               // the stub
    ldr x16, [sp, #\pair + 8]           // the handler
    add x29, sp, #232
    .endm

    .macro probe_a64_resume pair
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
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    mov sp, x16
    ret x17
7:
    msr nzcv, x2
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    add sp, sp, #\pair + 16
    ret
    .endm

    // Detours: \pair is where X29 and X30 at the place lie, and X30 is where the detour goes on.
    .macro probe_a64_detour_save pair
    hint #34                            // bti c: from the detour's blr
    sub sp, sp, #\pair
    .cfi_def_cfa sp, \pair + 16
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    ldr x17, [sp, #\pair + 8]          // x30 at the place
    str x17, [sp, #240]
    .cfi_offset x19, 152 - \pair - 16
    .cfi_offset x20, 160 - \pair - 16
    .cfi_offset x21, 168 - \pair - 16
    .cfi_offset x22, 176 - \pair - 16
    .cfi_offset x23, 184 - \pair - 16
    .cfi_offset x24, 192 - \pair - 16
    .cfi_offset x25, 200 - \pair - 16
    .cfi_offset x26, 208 - \pair - 16
    .cfi_offset x27, 216 - \pair - 16
    .cfi_offset x28, 224 - \pair - 16
    .cfi_offset x29, 232 - \pair - 16
    .cfi_offset x30, 240 - \pair - 16
    add x17, sp, #\pair + 16
    str x17, [sp, #248]
    ldur x1, [x30, #-20]                // the detour's word
    mrs x17, nzcv
    str x17, [sp, #264]
    .endm

    .macro probe_a64_detour_call
    mov x0, sp
    ldr x16, [x1]                       // the handler
    add x29, sp, #232
    .endm

    .macro probe_a64_detour_resume pair
    cbz x0, 7f
    mov x30, x0
    ldp x0, x1, [sp, #232]
    add x2, sp, #\pair
    stp x0, x1, [x2]
    ldr x2, [sp, #264]
    msr nzcv, x2
    ldp x0, x1, [sp, #0]
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldr x28, [sp, #224]
    add sp, sp, #\pair
    ret
7:  mov x0, sp
    b probe_aarch64_detour_resume
    .endm

    // Without floating point. Frame: PtRegs (272), stub and handler.
    .p2align 4
    .globl probe_aarch64_return_general
    .hidden probe_aarch64_return_general
    .type probe_aarch64_return_general, %function
probe_aarch64_return_general:
    .cfi_startproc
    probe_a64_save 272
    probe_a64_call 272
    blr x16
    probe_a64_resume 272
    .cfi_endproc
    .size probe_aarch64_return_general, . - probe_aarch64_return_general

    // Q0-Q31, FPCR, FPSR. Frame: PtRegs (272), Q (512), FPCR and FPSR (16), stub and handler.
    .p2align 4
    .globl probe_aarch64_return_full
    .hidden probe_aarch64_return_full
    .type probe_aarch64_return_full, %function
probe_aarch64_return_full:
    .cfi_startproc
    probe_a64_save 800
    stp q0, q1, [sp, #272]
    stp q2, q3, [sp, #304]
    stp q4, q5, [sp, #336]
    stp q6, q7, [sp, #368]
    stp q8, q9, [sp, #400]
    stp q10, q11, [sp, #432]
    stp q12, q13, [sp, #464]
    stp q14, q15, [sp, #496]
    stp q16, q17, [sp, #528]
    stp q18, q19, [sp, #560]
    stp q20, q21, [sp, #592]
    stp q22, q23, [sp, #624]
    stp q24, q25, [sp, #656]
    stp q26, q27, [sp, #688]
    stp q28, q29, [sp, #720]
    stp q30, q31, [sp, #752]
    mrs x2, fpcr
    mrs x3, fpsr
    add x4, sp, #784
    stp x2, x3, [x4]
    probe_a64_call 800
    blr x16
    add x4, sp, #784
    ldp x2, x3, [x4]
    msr fpcr, x2
    msr fpsr, x3
    ldp q0, q1, [sp, #272]
    ldp q2, q3, [sp, #304]
    ldp q4, q5, [sp, #336]
    ldp q6, q7, [sp, #368]
    ldp q8, q9, [sp, #400]
    ldp q10, q11, [sp, #432]
    ldp q12, q13, [sp, #464]
    ldp q14, q15, [sp, #496]
    ldp q16, q17, [sp, #528]
    ldp q18, q19, [sp, #560]
    ldp q20, q21, [sp, #592]
    ldp q22, q23, [sp, #624]
    ldp q24, q25, [sp, #656]
    ldp q26, q27, [sp, #688]
    ldp q28, q29, [sp, #720]
    ldp q30, q31, [sp, #752]
    probe_a64_resume 800
    .cfi_endproc
    .size probe_aarch64_return_full, . - probe_aarch64_return_full

    // Z0-Z31, P0-P15, FPCR, FPSR. Frame: P (2 vector lengths), Z (32), then PtRegs (272), FPCR and FPSR (16), stub and
    // handler; X19 points at PtRegs.
    .p2align 4
    .globl probe_aarch64_return_sve
    .hidden probe_aarch64_return_sve
    .type probe_aarch64_return_sve, %function
probe_aarch64_return_sve:
    .cfi_startproc
    probe_a64_save 288
    mrs x2, fpcr
    mrs x3, fpsr
    stp x2, x3, [sp, #272]
    probe_a64_call 288
    mov x19, sp
    .cfi_def_cfa_register x19
    addvl sp, sp, #-32
    addvl sp, sp, #-2
    str p0, [sp, #0, mul vl]
    str p1, [sp, #1, mul vl]
    str p2, [sp, #2, mul vl]
    str p3, [sp, #3, mul vl]
    str p4, [sp, #4, mul vl]
    str p5, [sp, #5, mul vl]
    str p6, [sp, #6, mul vl]
    str p7, [sp, #7, mul vl]
    str p8, [sp, #8, mul vl]
    str p9, [sp, #9, mul vl]
    str p10, [sp, #10, mul vl]
    str p11, [sp, #11, mul vl]
    str p12, [sp, #12, mul vl]
    str p13, [sp, #13, mul vl]
    str p14, [sp, #14, mul vl]
    str p15, [sp, #15, mul vl]
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str z\n, [sp, #\n + 2, mul vl]
    .endr
    blr x16
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr z\n, [sp, #\n + 2, mul vl]
    .endr
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    ldr p\n, [sp, #\n, mul vl]
    .endr
    mov sp, x19
    .cfi_def_cfa_register sp
    ldp x2, x3, [sp, #272]
    msr fpcr, x2
    msr fpsr, x3
    probe_a64_resume 288
    .cfi_endproc
    .size probe_aarch64_return_sve, . - probe_aarch64_return_sve

    // Without floating point. Frame: PtRegs (272), stub and handler.
    .p2align 4
    .globl probe_aarch64_detour_general
    .hidden probe_aarch64_detour_general
    .type probe_aarch64_detour_general, %function
probe_aarch64_detour_general:
    .cfi_startproc
    probe_a64_detour_save 272
    probe_a64_detour_call
    blr x16
    probe_a64_detour_resume 272
    .cfi_endproc
    .size probe_aarch64_detour_general, . - probe_aarch64_detour_general

    // Q0-Q31, FPCR, FPSR. Frame: PtRegs (272), Q (512), FPCR and FPSR (16), stub and handler.
    .p2align 4
    .globl probe_aarch64_detour_full
    .hidden probe_aarch64_detour_full
    .type probe_aarch64_detour_full, %function
probe_aarch64_detour_full:
    .cfi_startproc
    probe_a64_detour_save 800
    stp q0, q1, [sp, #272]
    stp q2, q3, [sp, #304]
    stp q4, q5, [sp, #336]
    stp q6, q7, [sp, #368]
    stp q8, q9, [sp, #400]
    stp q10, q11, [sp, #432]
    stp q12, q13, [sp, #464]
    stp q14, q15, [sp, #496]
    stp q16, q17, [sp, #528]
    stp q18, q19, [sp, #560]
    stp q20, q21, [sp, #592]
    stp q22, q23, [sp, #624]
    stp q24, q25, [sp, #656]
    stp q26, q27, [sp, #688]
    stp q28, q29, [sp, #720]
    stp q30, q31, [sp, #752]
    mrs x2, fpcr
    mrs x3, fpsr
    add x4, sp, #784
    stp x2, x3, [x4]
    probe_a64_detour_call
    blr x16
    add x4, sp, #784
    ldp x2, x3, [x4]
    msr fpcr, x2
    msr fpsr, x3
    ldp q0, q1, [sp, #272]
    ldp q2, q3, [sp, #304]
    ldp q4, q5, [sp, #336]
    ldp q6, q7, [sp, #368]
    ldp q8, q9, [sp, #400]
    ldp q10, q11, [sp, #432]
    ldp q12, q13, [sp, #464]
    ldp q14, q15, [sp, #496]
    ldp q16, q17, [sp, #528]
    ldp q18, q19, [sp, #560]
    ldp q20, q21, [sp, #592]
    ldp q22, q23, [sp, #624]
    ldp q24, q25, [sp, #656]
    ldp q26, q27, [sp, #688]
    ldp q28, q29, [sp, #720]
    ldp q30, q31, [sp, #752]
    probe_a64_detour_resume 800
    .cfi_endproc
    .size probe_aarch64_detour_full, . - probe_aarch64_detour_full

    // Z0-Z31, P0-P15, FPCR, FPSR. Frame: P (2 vector lengths), Z (32), then PtRegs (272), FPCR and FPSR (16), stub and
    // handler; X19 points at PtRegs.
    .p2align 4
    .globl probe_aarch64_detour_sve
    .hidden probe_aarch64_detour_sve
    .type probe_aarch64_detour_sve, %function
probe_aarch64_detour_sve:
    .cfi_startproc
    probe_a64_detour_save 288
    mrs x2, fpcr
    mrs x3, fpsr
    stp x2, x3, [sp, #272]
    probe_a64_detour_call
    mov x19, sp
    .cfi_def_cfa_register x19
    addvl sp, sp, #-32
    addvl sp, sp, #-2
    str p0, [sp, #0, mul vl]
    str p1, [sp, #1, mul vl]
    str p2, [sp, #2, mul vl]
    str p3, [sp, #3, mul vl]
    str p4, [sp, #4, mul vl]
    str p5, [sp, #5, mul vl]
    str p6, [sp, #6, mul vl]
    str p7, [sp, #7, mul vl]
    str p8, [sp, #8, mul vl]
    str p9, [sp, #9, mul vl]
    str p10, [sp, #10, mul vl]
    str p11, [sp, #11, mul vl]
    str p12, [sp, #12, mul vl]
    str p13, [sp, #13, mul vl]
    str p14, [sp, #14, mul vl]
    str p15, [sp, #15, mul vl]
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str z\n, [sp, #\n + 2, mul vl]
    .endr
    blr x16
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr z\n, [sp, #\n + 2, mul vl]
    .endr
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    ldr p\n, [sp, #\n, mul vl]
    .endr
    mov sp, x19
    .cfi_def_cfa_register sp
    ldp x2, x3, [sp, #272]
    msr fpcr, x2
    msr fpsr, x3
    probe_a64_detour_resume 288
    .cfi_endproc
    .size probe_aarch64_detour_sve, . - probe_aarch64_detour_sve

    // Where a detour's trampoline traps, with X0 pointing to the registers to go on with.
    .globl probe_aarch64_detour_resume
    .hidden probe_aarch64_detour_resume
probe_aarch64_detour_resume:
    brk #{jprobe_imm}

    .purgem probe_a64_detour_save
    .purgem probe_a64_detour_call
    .purgem probe_a64_detour_resume
    .purgem probe_a64_save
    .purgem probe_a64_call
    .purgem probe_a64_resume

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
