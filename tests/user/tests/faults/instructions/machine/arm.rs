//! arm: functions of A32 whose fourth instruction faults.

use crate::instructions::Case;

/// Where in `ucontext_t` the registers are.
pub(crate) const REGISTERS_AT: usize = 32;
/// Those that the functions set: R0, R1, R2, R3, LR, CPSR.
pub(crate) const REGISTERS: &[usize] = &[0, 1, 2, 3, 14, 16];
/// The program counter.
pub(crate) const PC: usize = 15;
/// All instructions up to the one that faults.
pub(crate) const STEPPED: &[isize] = &[0, 4, 8, 12];
/// A jump displaces one instruction.
pub(crate) const JUMPED: &[isize] = STEPPED;

functions! {
    "mov ip, lr\nmov r2, #9\nsubs r3, r1, r0", "mov lr, ip\nbx lr";
    flt_load flt_load_end "ldr r2, [r0]";
    flt_store flt_store_end "str r1, [r0]";
    // Written back only if nothing faults.
    flt_pair flt_pair_end "ldmia r0!, {{r2, r3}}";
    flt_vector flt_vector_end "vldmia r0!, {{d0}}";
    flt_call flt_call_end "blx r0";
    flt_jump flt_jump_end "bx r0";
    flt_return flt_return_end "ldr pc, [r0]";
    flt_undefined flt_undefined_end "mrc p15, 0, r2, c13, c0, 4";
    // clone(SIGCHLD, 0, …), behind what the other functions begin with.
    flt_fork flt_fork_end "mov r3, r7\nmov r0, #17\nmov r1, #0\nmov r7, #120\nsvc #0\nmov r7, r3";
    // clone(CLONE_VM | CLONE_VFORK | SIGCHLD, 0, …); the child ends itself with status 7.
    flt_vfork flt_vfork_end concat!(
        "mov r3, r7\nmovw r0, #0x4111\nmov r1, #0\nmov r2, #0\nmov r7, #120\nsvc #0\n",
        "cmp r0, #0\nbne 1f\nmov r0, #7\nmov r7, #248\nsvc #0\n1: mov r7, r3"
    );
}
/// The system call.
pub(crate) const FORK_PLACE: isize = 28;

/// `beyond`: a page of a file that ends before it.
pub(crate) fn cases(beyond: usize) -> Vec<Case> {
    vec![
        Case::new("flt_load", 16, 0, libc::SIGSEGV),
        Case::new("flt_load", beyond, 0, libc::SIGBUS),
        Case::new("flt_store", 24, 1, libc::SIGSEGV),
        Case::new("flt_pair", 32, 0, libc::SIGSEGV),
        Case::new("flt_pair", beyond, 0, libc::SIGBUS),
        Case::new("flt_vector", 48, 0, libc::SIGSEGV),
        Case::new("flt_call", 32, 0, libc::SIGSEGV),
        Case::new("flt_jump", 40, 0, libc::SIGSEGV),
        Case::new("flt_return", 40, 0, libc::SIGSEGV),
        Case::new("flt_undefined", 0, 0, libc::SIGILL),
    ]
}
