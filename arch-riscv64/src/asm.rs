//! Trampolines, the jump probe's return trap, FENCE.I: what must run on the architecture itself.
//!
//! All of it lies in the section `.text.probe_arch_riscv64`, so that a host can keep probes out of it.
//!
//! **Return trampolines.** A stub's veneer arrives with T0, the stub's end and the handler at SP, in 32 bytes. The trampoline
//! builds [`PtRegs`] below them, with pc = the stub and sp = the stack pointer at the return, and calls the
//! handler. Afterwards:
//! - where RA still is the stub's address, it becomes the final pc, as a return leaves it;
//! - pc = RA and SP unchanged (every normal return): *all* registers are as `regs` says, and `ret` goes on; those that calls
//!   preserve are loaded only where a handler may have changed them;
//! - else (a handler has redirected the return): T0 holds pc.
//!
//! [`SaveSet::Full`] saves F0 to F31 and FCSR around the handler. Vector registers are not saved: calls preserve none
//! and return in none (psABI 1.0), but for the vector variant of the convention, which is not supported.

use crate::Riscv64;
use crate::regs::PtRegs;
use core::arch::{asm, global_asm};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, SaveSet};

global_asm!(
    r#"
    .pushsection .text.probe_arch_riscv64, "ax", @progbits
    .option push
    .option arch, +d, +c
    .option norelax

    // What calls do not preserve, but for RA: \op is SD or LD.
    .macro probe_rv64_volatile op
    .irp n, 5,6,7,10,11,12,13,14,15,16,17,28,29,30,31
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
    probe_rv64_floating fsd
    frcsr t1
    sd t1, 256(sp)
    jalr t2
    ld t1, 256(sp)
    fscsr t1
    probe_rv64_floating fld
    addi sp, sp, 272
    .endm

    // The frame: PtRegs (256), T0 (later nothing), the stub's end (later the stub), the handler, nothing.
    .macro probe_rv64_return state
    .p2align 4
    .globl probe_riscv64_return_\state
    .hidden probe_riscv64_return_\state
    .type probe_riscv64_return_\state, @function
probe_riscv64_return_\state:
    .cfi_startproc
    .cfi_def_cfa sp, 32
    addi sp, sp, -256
    .cfi_def_cfa_offset 288
    probe_rv64_volatile sd
    probe_rv64_preserved sd
    sd ra, 8(sp)
    .irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27
    .cfi_offset \n, 8*\n - 288
    .endr
    ld t1, 256(sp)
    sd t1, 40(sp)
    ld a0, 264(sp)
    addi a0, a0, -8                     // the stub
    sd a0, 264(sp)
    sd a0, 0(sp)
    addi t1, sp, 288
    sd t1, 16(sp)
    mv a1, sp
    ld t2, 272(sp)                      // the handler
    probe_rv64_\state\()_call
    ld t0, 264(sp)                      // the stub
    ld t1, 8(sp)                        // RA
    ld ra, 0(sp)                        // pc
    bnez a0, 8f
    bne t0, t1, 8f
6:  probe_rv64_volatile ld
    addi sp, sp, 288
    .cfi_remember_state
    .cfi_def_cfa_offset 0
    ret
    .cfi_restore_state
8:  probe_rv64_preserved ld
    mv t2, ra
    beq t0, t1, 9f
    mv ra, t1
9:  ld t1, 16(sp)                       // sp
    addi t0, sp, 288
    bne ra, t2, 7f
    beq t0, t1, 6b
7:  probe_rv64_volatile ld
    ld t0, 0(sp)
    ld sp, 16(sp)
    jr t0
    .cfi_endproc
    .size probe_riscv64_return_\state, . - probe_riscv64_return_\state
    .endm

    probe_rv64_return general
    probe_rv64_return full

    .irp name, volatile,preserved,floating,general_call,full_call,return
    .purgem probe_rv64_\name
    .endr

    // The trap that a jump probe's handler returns to; the NOP before it is what an unwinder looks up.
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
    static probe_riscv64_jprobe_return: [u8; 0];
}

// SAFETY: FENCE.I makes this hart's stores visible to its fetches (I 6.1).
unsafe impl NativeArch for Riscv64 {
    unsafe fn publish(_at: CodeAddr, _len_bytes: usize) {
        // SAFETY: it changes nothing but what this hart fetches.
        unsafe { asm!("fence.i", options(nostack, preserves_flags)) };
    }
}

// SAFETY: the module's description is the protocol that the trait asks for.
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
