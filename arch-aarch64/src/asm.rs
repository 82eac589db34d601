//! Trampolines, the jprobe's return trap, cache maintenance: the code that must run on the architecture
//! itself.
//!
//! All of it lies in the section `.text.probe_arch_aarch64`, so that a host can keep probes out of it, and
//! every entry starts with a BTI landing pad (a NOP before ARMv8.5).
//!
//! **Return trampolines.** A stub's veneer arrives with the stub's address and the handler pushed on the
//! stack. The trampoline builds [`PtRegs`] there, with pc = the stub and sp = the stack pointer at the
//! return, and calls the handler. X29 then heads a frame record of (X29, X30) at the return, so that a walk
//! by frame pointers finds the stub as a return address; the CFI says the same. PSTATE holds NZCV only: a
//! process can read and set no other part of it. Afterwards:
//! - where X30 is still the stub's address, it becomes the final pc, as a return leaves it;
//! - pc = X30 and SP unchanged (every normal return): *all* registers, X16 and X17 too, are as `regs` says,
//!   and `ret` goes on (its target needs no landing pad); the registers that calls preserve are loaded only
//!   where a handler may have changed them;
//! - else (a handler has redirected the return): X16 and X17, which the ABI gives to veneers, hold SP and pc.
//!
//! [`SaveSet::Full`] saves Q0-Q31, FPCR and FPSR around the handler. Where the core has SVE, writing a Q
//! register clears the rest of its Z register, so Z0-Z31 and P0-P15 are saved at the present vector length
//! instead (FFR is not: no call preserves or returns it). In streaming mode (FEAT_SME) a process's handler
//! cannot use Advanced SIMD; returning from a probed function with PSTATE.SM = 1 is not supported.

use crate::Aarch64;
use crate::insn;
use crate::regs::PtRegs;
use core::arch::{asm, global_asm};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, NativeJumps, SaveSet};

/// The immediate of the jprobe's return trap: next to that of places, to be told apart in a dump.
const JPROBE_IMM: u16 = insn::PROBE_IMM + 1;

global_asm!(
    r#"
    .pushsection .text.probe_arch_aarch64, "ax", %progbits
    .arch_extension fp
    .arch_extension simd
    .arch_extension sve

    // X1 to X14: \op is STP or LDP.
    .macro probe_a64_low op
    \op x1, x2, [sp, #16]
    \op x3, x4, [sp, #32]
    \op x5, x6, [sp, #48]
    \op x7, x8, [sp, #64]
    \op x9, x10, [sp, #80]
    \op x11, x12, [sp, #96]
    \op x13, x14, [sp, #112]
    .endm

    // X19 to X28.
    .macro probe_a64_high op
    \op x19, x20, [sp, #160]
    \op x21, x22, [sp, #176]
    \op x23, x24, [sp, #192]
    \op x25, x26, [sp, #208]
    \op x27, x28, [sp, #224]
    .endm

    // Makes \size bytes of frame and saves all registers there but X29 and X30.
    .macro probe_a64_save size
    stp xzr, x0, [sp, #-\size]!
    .cfi_def_cfa sp, 288
    probe_a64_low stp
    stp x15, x16, [sp, #128]
    stp x17, x18, [sp, #144]
    probe_a64_high stp
    .endm

    // All the registers that calls do not preserve, but for X30; \size bytes of frame go.
    .macro probe_a64_volatile size
    probe_a64_low ldp
    ldp x15, x16, [sp, #128]
    ldp x17, x18, [sp, #144]
    ldp xzr, x0, [sp], #\size
    .endm

    // Makes the frame: a word, PtRegs, and the \last word; PSTATE and that are stored at once, in x17 and
    // \last.
    .macro probe_a64_finish last
    .cfi_def_cfa x29, 48
    .irp n, 19,20,21,22,23,24,25,26,27,28,29,30
    .cfi_offset x\n, \n * 8 - 280
    .endr
    mrs x17, nzcv
    stp x17, \last, [sp, #272]
    add x1, sp, #8
    .endm

    // Returns: the veneer has left the stub's address and the handler where PSTATE and the last word belong,
    // which then is the stub's address.
    .macro probe_a64_return_begin
    hint #36                            // bti j: from the veneer's br
    probe_a64_save 272
    stp x29, x30, [sp, #240]
    ldp x0, x16, [sp, #272]             // the stub, the handler
    add x17, sp, #288
    stp x17, x0, [sp, #256]             // sp, pc
    add x29, sp, #240
    probe_a64_finish x0
    .endm

    .macro probe_a64_return_end
    ldp x2, x16, [sp, #272]             // PSTATE, the stub
    ldp x29, x30, [sp, #240]
    cbnz x0, 8f
    cmp x30, x16
    b.ne 8f
6:  ldr x30, [sp, #264]
    msr nzcv, x2
    probe_a64_volatile 288
    ret
8:  ldp x1, x17, [sp, #256]             // sp, pc
    cmp x30, x16
    csel x30, x17, x30, eq
    add x0, sp, #288
    cmp x0, x1
    ccmp x30, x17, #0, eq
    mov x16, x1
    probe_a64_high ldp
    b.eq 6b
    msr nzcv, x2
    ldr x0, [sp, #8]
    probe_a64_low ldp
    ldr x15, [sp, #128]
    ldr x18, [sp, #152]
    mov sp, x16
    ret x17
    .endm

    // Detours have stored X29 and X30 where they belong; X30 is where the detour goes on, which is kept in
    // the last word. A detour that is near does what the first two do, and calls what follows:
    // `crate::detour`.
    .macro probe_a64_detour_begin
    hint #34                            // bti c: from the detour's blr
    probe_a64_save 240
    add x17, sp, #288
    ldur x0, [x30, #-20]                // the detour's word
    add x29, sp, #240
    ldp x16, x15, [x0]                  // the handler, the place
    stp x17, x15, [sp, #256]            // sp, pc
    probe_a64_finish x30
    .endm

    .macro probe_a64_detour_end
    ldp x2, x30, [sp, #272]
    cbnz x0, 8f
6:  msr nzcv, x2
    probe_a64_volatile 240
    ret
8:  cmp x0, #2
    add x0, sp, #8
    b.lo 7f
    b.hi probe_aarch64_detour_resume
    add x30, x30, #4                    // the first copy
    str x30, [sp, #264]
    b probe_aarch64_detour_resume
7:  probe_a64_high ldp
    b 6b
    .endm

    // Without floating point.
    .macro probe_a64_general_call
    blr x16
    .endm

    // Q0-Q31, FPCR, FPSR: Q (512), FPCR and FPSR (16).
    .macro probe_a64_q op
    \op q0, q1, [sp, #0]
    \op q2, q3, [sp, #32]
    \op q4, q5, [sp, #64]
    \op q6, q7, [sp, #96]
    \op q8, q9, [sp, #128]
    \op q10, q11, [sp, #160]
    \op q12, q13, [sp, #192]
    \op q14, q15, [sp, #224]
    \op q16, q17, [sp, #256]
    \op q18, q19, [sp, #288]
    \op q20, q21, [sp, #320]
    \op q22, q23, [sp, #352]
    \op q24, q25, [sp, #384]
    \op q26, q27, [sp, #416]
    \op q28, q29, [sp, #448]
    \op q30, q31, [sp, #480]
    .endm

    .macro probe_a64_full_call
    sub sp, sp, #528
    probe_a64_q stp
    mrs x2, fpcr
    mrs x3, fpsr
    add x4, sp, #512
    stp x2, x3, [x4]
    blr x16
    add x4, sp, #512
    ldp x2, x3, [x4]
    msr fpcr, x2
    msr fpsr, x3
    probe_a64_q ldp
    add sp, sp, #528
    .endm

    // Z0-Z31, P0-P15, FPCR, FPSR: P (2 vector lengths), Z (32), FPCR and FPSR (16).
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
    stp x2, x3, [sp, #-16]!
    addvl sp, sp, #-32
    addvl sp, sp, #-2
    probe_a64_z str
    blr x16
    probe_a64_z ldr
    sub sp, x29, #256
    ldp x2, x3, [sp], #16
    msr fpcr, x2
    msr fpsr, x3
    .endm

    // \kind: return or detour. \state: what is kept around the handler's call.
    .macro probe_a64_trampoline kind, state
    .p2align 4
    .globl probe_aarch64_\kind\()_\state
    .hidden probe_aarch64_\kind\()_\state
    .type probe_aarch64_\kind\()_\state, %function
probe_aarch64_\kind\()_\state:
    .cfi_startproc
    probe_a64_\kind\()_begin
    probe_a64_\state\()_call
    probe_a64_\kind\()_end
    .cfi_endproc
    .size probe_aarch64_\kind\()_\state, . - probe_aarch64_\kind\()_\state
    .endm

    .irp kind, return,detour
    .irp state, general,full,sve
    probe_a64_trampoline \kind, \state
    .endr
    .endr

    .irp name, low,high,save,volatile,finish,return_begin,return_end,detour_begin,detour_end,general_call,q,full_call,z,sve_call,trampoline
    .purgem probe_a64_\name
    .endr

    // Where a detour's trampoline traps, with X0 pointing to the registers to go on with.
    .globl probe_aarch64_detour_resume
    .hidden probe_aarch64_detour_resume
probe_aarch64_detour_resume:
    brk #{jprobe_imm}

    // The trap that a jprobe's handler returns to; the NOP before it is what an unwinder looks up.
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

// SAFETY: `probe_aarch64_publish` cleans and invalidates by address, as DDI 0487J.a B2.7.4 asks.
unsafe impl NativeArch for Aarch64 {
    unsafe fn publish(at: CodeAddr, len_bytes: usize) {
        // SAFETY: the caller promises that the range is mapped and readable; nothing but caches is changed.
        unsafe { probe_aarch64_publish(at.as_usize(), len_bytes) }
    }
}

// SAFETY: the module's description is the protocol that the trait asks for; the native tests run it.
unsafe impl NativeCalls<PtRegs> for Aarch64 {
    /// For [`SaveSet::Full`] this reads ID_AA64PFR0_EL1, which Linux (4.11 and later) lets a process read.
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_aarch64_return_general,
            SaveSet::Full if has_sve() => &raw const probe_aarch64_return_sve,
            SaveSet::Full => &raw const probe_aarch64_return_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_aarch64_jprobe_return).addr())
    }
}

// SAFETY: as above.
unsafe impl NativeJumps<PtRegs> for Aarch64 {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_aarch64_detour_general,
            SaveSet::Full if has_sve() => &raw const probe_aarch64_detour_sve,
            SaveSet::Full => &raw const probe_aarch64_detour_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_aarch64_detour_resume).addr())
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
