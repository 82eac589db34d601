//! Trampolines, the return trap of jprobes, cache maintenance: what must run on the architecture itself.
//!
//! All of it is A32 and lies in the section `.text.probe_arch_arm`, so that a host can keep probes out of it.
//!
//! **Return trampolines.** A stub's veneer arrives with four words at SP: the handler, nothing, IP as it was,
//! the stub's end (`crate::call`). The trampoline builds [`PtRegs`] below them, with pc = the stub and sp =
//! the stack pointer at the return, and calls the handler. Afterwards:
//! - where LR is still the stub's address, it becomes the final pc with its instruction set, as a return
//!   leaves it;
//! - all registers and flags are as `regs` says, and `pop {pc}` goes on, to either set;
//! - but where SP has been changed: IP holds pc.
//!
//! **Detour trampolines.** A detour arrives with R0 leading to its literals, LR behind its call, and the
//! frame made with R0 and LR in it (`crate::detour`). The trampoline fills the rest of [`PtRegs`], with pc =
//! the place, and calls the handler that the core's word leads to. SP may be any word, so the handler's is
//! aligned.
//!
//! [`SaveSet::Full`] saves what a handler may change of floating point: D0 to D7 and FPSCR, and D16 to D31 if
//! the host has said that they exist ([`Arm::set_doubles`]), as a process cannot ask the processor. Calls
//! preserve D8 to D15 (AAPCS32 6.1.2.1).
//!
//! **Publication** is a system call in a process, and instructions that only a kernel may execute elsewhere.

use crate::Arm;
use crate::regs::PtRegs;
use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::{NativeArch, NativeCalls, NativeJumps, SaveSet};

global_asm!(
    r#"
    .pushsection .text.probe_arch_arm, "ax", %progbits
    .syntax unified
    .arm
    .fpu neon

    .macro probe_arm_general_call
    blx r2
    .endm

    .macro probe_arm_full_call
    vpush {{d0-d7}}
    vmrs r3, fpscr
    push {{r3, r4}}
    blx r2
    pop {{r3, r4}}
    vmsr fpscr, r3
    vpop {{d0-d7}}
    .endm

    .macro probe_arm_doubles_call
    vpush {{d16-d31}}
    probe_arm_full_call
    vpop {{d16-d31}}
    .endm

    // The frame: PtRegs (72), the handler, nothing, IP, the stub's end (later where to go on).
    .macro probe_arm_return state
    .p2align 4
    .globl probe_arm_return_\state
    .hidden probe_arm_return_\state
    .type probe_arm_return_\state, %function
probe_arm_return_\state:
    .fnstart
    .cantunwind
    sub sp, sp, #72
    stmia sp, {{r0-r11}}
    mrs r4, cpsr
    ldr r0, [sp, #80]
    str r0, [sp, #48]                   // ip
    add r6, sp, #88
    str r6, [sp, #52]                   // sp
    str lr, [sp, #56]
    ldr r0, [sp, #84]
    sub r0, r0, #8
    mov r5, r0                          // the stub
    str r0, [sp, #60]                   // pc
    str r4, [sp, #64]                   // cpsr
    mvn r1, #0
    str r1, [sp, #68]                   // no system call
    mov r1, sp
    ldr r2, [sp, #72]
    probe_arm_\state\()_call
    ldr r1, [sp, #64]
    ldr r2, [sp, #60]
    tst r1, #0x20
    orrne r2, r2, #1                    // where to go on, with its set
    ldr lr, [sp, #56]
    cmp lr, r5
    moveq lr, r2
    ldr r3, [sp, #52]
    cmp r3, r6
    bne 7f
    str r2, [sp, #84]
    msr cpsr_fs, r1
    ldmia sp, {{r0-r12}}
    add sp, sp, #84
    pop {{pc}}
7:  str r2, [sp, #48]
    msr cpsr_fs, r1
    ldmia sp, {{r0-r12}}
    ldr sp, [sp, #52]
    bx ip
    .fnend
    .size probe_arm_return_\state, . - probe_arm_return_\state
    .endm

    probe_arm_return general
    probe_arm_return full
    probe_arm_return doubles

    // The frame, which the detour has made: PtRegs (72), where the detour goes on, nothing.
    .macro probe_arm_detour state
    .p2align 4
    .globl probe_arm_detour_\state
    .hidden probe_arm_detour_\state
    .type probe_arm_detour_\state, %function
probe_arm_detour_\state:
    .fnstart
    .cantunwind
    stmib sp, {{r1-r12}}
    mrs r4, cpsr
    str lr, [sp, #72]
    ldr r0, [r0, #4]                    // the word
    ldr r2, [r0]                        // the handler
    ldr r1, [r0, #4]                    // the place, with its set
    add r6, sp, #80
    str r6, [sp, #52]                   // sp
    bfi r4, r1, #5, #1
    bic r1, r1, #1
    mvn r5, #0                          // no system call
    add r3, sp, #60
    stmia r3, {{r1, r4, r5}}            // pc, cpsr
    mov r1, sp
    mov r5, sp
    bic sp, sp, #7
    probe_arm_\state\()_call
    mov sp, r5
    cmp r0, #2
    bhs 7f
    ldr r1, [sp, #64]
    ldr lr, [sp, #72]
    msr cpsr_fs, r1
    ldmia sp, {{r0-r12}}
    bx lr
7:  bne 8f
    ldr r1, [sp, #72]
    tst r1, #1
    addeq r1, r1, #8                    // the first copy, behind two instructions
    addne r1, r1, #5
    str r1, [sp, #60]
8:  mov r0, sp
    b probe_arm_detour_resume
    .fnend
    .size probe_arm_detour_\state, . - probe_arm_detour_\state
    .endm

    probe_arm_detour general
    probe_arm_detour full
    probe_arm_detour doubles

    .irp name, general_call,full_call,doubles_call,return,detour
    .purgem probe_arm_\name
    .endr

    // Where a detour's trampoline traps, with R0 pointing to the registers to go on with.
    .globl probe_arm_detour_resume
    .hidden probe_arm_detour_resume
probe_arm_detour_resume:
    bkpt #0xfbef

    // The trap that a jprobe's handler returns to; the NOP before it is what an unwinder looks up.
    .globl probe_arm_jprobe_return
    .hidden probe_arm_jprobe_return
    nop
probe_arm_jprobe_return:
    bkpt #0xfbef
    .popsection
    "#,
);

#[cfg(target_os = "linux")]
global_asm!(
    r#"
    .pushsection .text.probe_arch_arm, "ax", %progbits
    .syntax unified
    .arm
    // probe_arm_publish(r0: start, r1: end): Linux's cacheflush.
    .p2align 2
    .globl probe_arm_publish
    .hidden probe_arm_publish
    .type probe_arm_publish, %function
probe_arm_publish:
    .fnstart
    .cantunwind
    push {{r7, lr}}
    mov r2, #0
    movw r7, #0x0002
    movt r7, #0x000f
    svc #0
    pop {{r7, pc}}
    .fnend
    .popsection
    "#,
);

#[cfg(not(target_os = "linux"))]
global_asm!(
    r#"
    .pushsection .text.probe_arch_arm, "ax", %progbits
    .syntax unified
    .arm
    // probe_arm_publish(r0: start, r1: end): B2.2.7, for the inner shareable domain.
    .p2align 2
    .globl probe_arm_publish
    .hidden probe_arm_publish
    .type probe_arm_publish, %function
probe_arm_publish:
    .fnstart
    .cantunwind
    mrc p15, 0, r2, c0, c0, 1           // CTR: words of the smallest line, as powers of two
    and r3, r2, #0xf                    // IminLine
    lsr r2, r2, #16
    and r2, r2, #0xf                    // DminLine
    cmp r2, r3
    movhi r2, r3
    mov r3, #4
    lsl r3, r3, r2
    sub r2, r3, #1
    bic r0, r0, r2
    mov r2, r0
1:  mcr p15, 0, r2, c7, c11, 1          // DCCMVAU
    add r2, r2, r3
    cmp r2, r1
    blo 1b
    dsb ish
1:  mcr p15, 0, r0, c7, c5, 1           // ICIMVAU
    add r0, r0, r3
    cmp r0, r1
    blo 1b
    mov r0, #0
    mcr p15, 0, r0, c7, c1, 6           // BPIALLIS
    dsb ish
    isb
    bx lr
    .fnend
    .popsection
    "#,
);

unsafe extern "C" {
    static probe_arm_return_general: [u8; 0];
    static probe_arm_return_full: [u8; 0];
    static probe_arm_return_doubles: [u8; 0];
    static probe_arm_detour_general: [u8; 0];
    static probe_arm_detour_full: [u8; 0];
    static probe_arm_detour_doubles: [u8; 0];
    static probe_arm_detour_resume: [u8; 0];
    static probe_arm_jprobe_return: [u8; 0];
    fn probe_arm_publish(start: usize, end: usize);
}

// SAFETY: caches are cleaned and invalidated as B2.2.7 asks, and the context is synchronised.
unsafe impl NativeArch for Arm {
    unsafe fn publish(at: CodeAddr, len_bytes: usize) {
        let start = at.as_usize() & !1;
        // SAFETY: the range is mapped and readable, as the caller promises.
        unsafe { probe_arm_publish(start, start.wrapping_add(len_bytes)) };
    }
}

/// Whether there are D16 to D31, as far as the host has said.
static DOUBLES: AtomicBool = AtomicBool::new(false);

impl Arm {
    /// Says whether there are D16 to D31, which handlers may use (Linux: bit `VFPD32` of `AT_HWCAP`). A host
    /// whose handlers are not built without floating point calls this before it registers return probes.
    pub fn set_doubles(exist: bool) {
        DOUBLES.store(exist, Ordering::Relaxed);
    }
}

// SAFETY: the module's description is the protocol that the trait asks for; the native tests run it.
unsafe impl NativeCalls<PtRegs> for Arm {
    fn return_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_arm_return_general,
            SaveSet::Full if DOUBLES.load(Ordering::Relaxed) => &raw const probe_arm_return_doubles,
            SaveSet::Full => &raw const probe_arm_return_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_arm_jprobe_return).addr())
    }
}

// SAFETY: as above.
unsafe impl NativeJumps<PtRegs> for Arm {
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr {
        let trampoline = match save {
            SaveSet::General => &raw const probe_arm_detour_general,
            SaveSet::Full if DOUBLES.load(Ordering::Relaxed) => &raw const probe_arm_detour_doubles,
            SaveSet::Full => &raw const probe_arm_detour_full,
        };
        CodeAddr::new(trampoline.addr())
    }

    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const probe_arm_detour_resume).addr())
    }
}
