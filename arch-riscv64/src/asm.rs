//! Trampolines, the jprobe's return trap, FENCE.I: the code that must run on the architecture itself.
//!
//! All of it lies in the section `.text.probe_arch_riscv64`, so that a host can keep probes out of it.
//!
//! **Return trampolines.** A stub's veneer arrives with T0, the stub's end and the handler at SP, in 32
//! bytes. The trampoline builds [`PtRegs`] below them, with pc = the stub and sp = the stack pointer at the
//! return, and calls the handler. Afterwards:
//! - where RA is still the stub's address, it becomes the final pc, as a return leaves it;
//! - pc = RA and SP unchanged (every normal return): *all* registers are as `regs` says, and `ret` goes on;
//!   the registers that calls preserve are loaded only where a handler may have changed them;
//! - else (a handler has redirected the return): T0 holds pc.
//!
//! **Detour trampolines.** A detour arrives with T0 leading to its word and with the frame made
//! (`crate::detour`). The trampoline fills the rest of [`PtRegs`], with pc = the place, and calls the handler
//! that the word leads to.
//!
//! [`SaveSet::Full`] saves F0 to F31 and FCSR around the handler. Vector registers are not saved at a return:
//! calls preserve none and return in none (psABI 1.0), except in the vector variant of the convention, which
//! is not supported. They are saved in a detour if the host has said that they exist
//! ([`Riscv64::set_vectors`]), as a process cannot ask the processor.

use crate::Riscv64;
use crate::regs::PtRegs;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, NativeJumps, SaveSet};

global_asm!(
    r#"
    .pushsection .text.probe_arch_riscv64, "ax", @progbits
    .option push
    .option arch, +d, +c
    .option norelax

    // What calls do not preserve, but for RA and T0: \op is SD or LD.
    .macro probe_rv64_volatile op
    .irp n, 6,7,10,11,12,13,14,15,16,17,28,29,30,31
    \op x\n, 8*\n(sp)
    .endr
    .endm

    .macro probe_rv64_preserved op
    .irp n, 3,4,8,9,18,19,20,21,22,23,24,25,26,27
    \op x\n, 8*\n(sp)
    .endr
    .endm

    .macro probe_rv64_floating op
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    \op f\n, 8*\n(sp)
    .endr
    .endm

    .macro probe_rv64_general_call
    jalr t2
    .endm

    .macro probe_rv64_full_call
    addi sp, sp, -272
    .cfi_adjust_cfa_offset 272
    probe_rv64_floating fsd
    frcsr t1
    sd t1, 256(sp)
    jalr t2
    ld t1, 256(sp)
    fscsr t1
    probe_rv64_floating fld
    addi sp, sp, 272
    .cfi_adjust_cfa_offset -272
    .endm

    // As above, and V0 to V31 with VL, VTYPE, VCSR and VSTART below.
    .macro probe_rv64_v op
    addi t0, sp, 32
    csrr t1, vlenb
    slli t1, t1, 3
    .irp n, 0,8,16,24
    \op v\n, (t0)
    add t0, t0, t1
    .endr
    .endm

    // S0 tells unwinders where the frame is, which has its value.
    .macro probe_rv64_vector_call
    mv s0, sp
    .cfi_def_cfa_register s0
    addi sp, sp, -272
    probe_rv64_floating fsd
    frcsr t1
    sd t1, 256(sp)
    csrr t3, vl
    csrr t4, vtype
    csrr t5, vcsr
    csrr t6, vstart
    csrw vstart, zero
    csrr t1, vlenb
    slli t1, t1, 5
    sub sp, sp, t1
    addi sp, sp, -32
    sd t3, 0(sp)
    sd t4, 8(sp)
    sd t5, 16(sp)
    sd t6, 24(sp)
    probe_rv64_v vs8r.v
    jalr t2
    probe_rv64_v vl8re8.v
    ld t3, 0(sp)
    ld t4, 8(sp)
    ld t5, 16(sp)
    ld t6, 24(sp)
    vsetvl zero, t3, t4
    csrw vcsr, t5
    csrw vstart, t6
    addi sp, s0, -272
    ld t1, 256(sp)
    fscsr t1
    probe_rv64_floating fld
    mv sp, s0
    .cfi_def_cfa_register sp
    ld s0, 64(sp)
    .endm

    // The frame: PtRegs (264), nothing (8), T0 (later nothing), the stub's end (later the stub), the handler,
    // nothing.
    .macro probe_rv64_return state
    .p2align 4
    .globl probe_riscv64_return_\state
    .hidden probe_riscv64_return_\state
    .type probe_riscv64_return_\state, @function
probe_riscv64_return_\state:
    .cfi_startproc
    .cfi_def_cfa sp, 32
    addi sp, sp, -272
    .cfi_def_cfa_offset 304
    probe_rv64_volatile sd
    probe_rv64_preserved sd
    sd ra, 8(sp)
    .irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27
    .cfi_offset \n, 8*\n - 304
    .endr
    sd zero, 256(sp)                    // status
    ld t1, 272(sp)
    sd t1, 40(sp)
    ld a0, 280(sp)
    addi a0, a0, -8                     // the stub
    sd a0, 280(sp)
    sd a0, 0(sp)
    addi t1, sp, 304
    sd t1, 16(sp)
    mv a1, sp
    ld t2, 288(sp)                      // the handler
    probe_rv64_\state\()_call
    ld t0, 280(sp)                      // the stub
    ld t1, 8(sp)                        // RA
    ld ra, 0(sp)                        // pc
    bnez a0, 8f
    bne t0, t1, 8f
6:  probe_rv64_volatile ld
    ld t0, 40(sp)
    addi sp, sp, 304
    .cfi_remember_state
    .cfi_def_cfa_offset 0
    ret
    .cfi_restore_state
8:  probe_rv64_preserved ld
    mv t2, ra
    beq t0, t1, 9f
    mv ra, t1
9:  ld t1, 16(sp)                       // sp
    addi t0, sp, 304
    bne ra, t2, 7f
    beq t0, t1, 6b
7:  probe_rv64_volatile ld
    ld t0, 0(sp)
    ld sp, 16(sp)
    jr t0
    .cfi_endproc
    .size probe_riscv64_return_\state, . - probe_riscv64_return_\state
    .endm

    // The frame, which the detour has made: PtRegs, with RA and T0 where they belong, where the detour goes
    // on. T0 leads to the core's word; RA is where the detour goes on: `crate::detour`.
    .macro probe_rv64_detour state
    .p2align 4
    .globl probe_riscv64_detour_\state
    .hidden probe_riscv64_detour_\state
    .type probe_riscv64_detour_\state, @function
probe_riscv64_detour_\state:
    .cfi_startproc
    // As a trap: what is returned to is the place itself, not what follows a call.
    .cfi_signal_frame
    .cfi_def_cfa sp, 304
    probe_rv64_volatile sd
    probe_rv64_preserved sd
    sd ra, 264(sp)
    .cfi_return_column 64
    .cfi_offset 64, -304
    .irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27
    .cfi_offset \n, 8*\n - 304
    .endr
    ld a0, 8(t0)                        // the word
    ld t2, (a0)                         // the handler
    ld t1, 8(a0)                        // the place
    sd t1, 0(sp)
    addi t1, sp, 304
    sd t1, 16(sp)
    sd zero, 256(sp)                    // status
    mv a1, sp
    probe_rv64_\state\()_call
    ld ra, 264(sp)
    bnez a0, 8f
6:  probe_rv64_volatile ld
    ret
8:  li t0, 2
    bltu a0, t0, 7f
    bne a0, t0, 9f
    addi ra, ra, 8                      // the first copy
    sd ra, 0(sp)
9:  mv a0, sp
    j probe_riscv64_detour_resume
7:  probe_rv64_preserved ld
    j 6b
    .cfi_endproc
    .size probe_riscv64_detour_\state, . - probe_riscv64_detour_\state
    .endm

    probe_rv64_return general
    probe_rv64_return full
    probe_rv64_detour general
    probe_rv64_detour full
    .option push
    .option arch, +v
    probe_rv64_detour vector
    .option pop

    .irp name, volatile,preserved,floating,general_call,full_call,v,vector_call,return,detour
    .purgem probe_rv64_\name
    .endr

    // Where a detour's trampoline traps, with A0 pointing to the registers to go on with.
    .globl probe_riscv64_detour_resume
    .hidden probe_riscv64_detour_resume
probe_riscv64_detour_resume:
    c.ebreak

    // The trap that a jprobe's handler returns to; the NOP before it is what an unwinder looks up.
    .globl probe_riscv64_jprobe_return
    .hidden probe_riscv64_jprobe_return
    nop
probe_riscv64_jprobe_return:
    c.ebreak
    .option pop
    .popsection
    "#,
);

unsafe extern "C" {
    static probe_riscv64_return_general: [u8; 0];
    static probe_riscv64_return_full: [u8; 0];
    static probe_riscv64_detour_general: [u8; 0];
    static probe_riscv64_detour_full: [u8; 0];
    static probe_riscv64_detour_vector: [u8; 0];
    static probe_riscv64_detour_resume: [u8; 0];
    static probe_riscv64_jprobe_return: [u8; 0];
}

// SAFETY: FENCE.I makes this hart's stores visible to its fetches (I 6.1).
unsafe impl NativeArch for Riscv64 {
    unsafe fn publish(_at: CodeAddr, _len_bytes: usize) {
        // SAFETY: it changes nothing but what this hart fetches.
        unsafe { asm!("fence.i", options(nostack, preserves_flags)) };
    }
}

// SAFETY: the module's description is the protocol that the trait asks for; the native tests run it.
unsafe impl NativeCalls<PtRegs> for Riscv64 {
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_riscv64_return_general,
            SaveSet::Full => &raw const probe_riscv64_return_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_riscv64_jprobe_return).addr())
    }
}

/// Whether there are vector registers, as far as the host has said.
static VECTORS: AtomicBool = AtomicBool::new(false);

impl Riscv64 {
    /// Says whether there are vector registers that handlers may use (Linux: bit `V` of `AT_HWCAP`). A host
    /// whose handlers are not built without floating point calls this before the first probe gets a jump.
    pub fn set_vectors(exist: bool) {
        VECTORS.store(exist, Ordering::Relaxed);
    }
}

// SAFETY: as above.
unsafe impl NativeJumps<PtRegs> for Riscv64 {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_riscv64_detour_general,
            SaveSet::Full if VECTORS.load(Ordering::Relaxed) => &raw const probe_riscv64_detour_vector,
            SaveSet::Full => &raw const probe_riscv64_detour_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_riscv64_detour_resume).addr())
    }
}
