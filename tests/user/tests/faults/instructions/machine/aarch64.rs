//! aarch64: functions whose fourth instruction faults.

use crate::instructions::Case;

/// Where in `ucontext_t` the registers are.
pub(crate) const REGISTERS_AT: usize = 184;
/// Those that the functions set: X0, X1, X9, X10, X30, PSTATE.
pub(crate) const REGISTERS: &[usize] = &[0, 1, 9, 10, 30, 33];
/// The program counter.
pub(crate) const PC: usize = 32;
/// All instructions up to the one that faults.
pub(crate) const STEPPED: &[isize] = &[0, 4, 8, 12];
/// A jump displaces one instruction.
pub(crate) const JUMPED: &[isize] = STEPPED;

functions! {
    "mov x12, x30\nmov x9, #9\nsubs x10, x1, x0", "mov x30, x12\nret";
    flt_load flt_load_end "ldr x9, [x0]";
    flt_store flt_store_end "str x1, [x0]";
    // Written back only if nothing faults.
    flt_pair flt_pair_end "ldp x9, x10, [x0], #16";
    flt_vector flt_vector_end "ldr q0, [x0, #16]!";
    flt_call flt_call_end "blr x0";
    flt_jump flt_jump_end "br x0";
    flt_return flt_return_end "ret x0";
    flt_undefined flt_undefined_end "mrs x9, sctlr_el1";
    // clone(SIGCHLD, 0, 0, 0, 0), behind what the other functions begin with.
    flt_fork flt_fork_end
        "mov x0, #17\nmov x1, #0\nmov x2, #0\nmov x3, #0\nmov x4, #0\nmov x8, #220\nsvc #0";
    // clone(CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0); the child ends itself with status 7.
    flt_vfork flt_vfork_end concat!(
        "mov x0, #0x4111\nmov x1, #0\nmov x2, #0\nmov x3, #0\nmov x4, #0\nmov x8, #220\nsvc #0\n",
        "cbnz x0, flt_vfork_end\nmov x0, #7\nmov x8, #94\nsvc #0"
    );
}
/// The system call.
pub(crate) const FORK_PLACE: isize = 36;

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
        Case::new("flt_load", 1 << 62, 0, libc::SIGSEGV),
        Case::new("flt_undefined", 0, 0, libc::SIGILL),
    ]
}
