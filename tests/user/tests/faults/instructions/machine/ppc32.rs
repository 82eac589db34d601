//! ppc32: functions whose fifth instruction faults.

use crate::instructions::Case;

/// Where in `ucontext_t` the registers are.
pub(crate) const REGISTERS_AT: usize = 192;
/// Those that the functions set: r3, r4, r9, r10, CTR, LR.
pub(crate) const REGISTERS: &[usize] = &[3, 4, 9, 10, 35, 36];
/// The address of the next instruction.
pub(crate) const PC: usize = 32;
/// All instructions up to the one that faults.
pub(crate) const STEPPED: &[isize] = &[0, 4, 8, 12, 16];
/// A jump displaces one instruction.
pub(crate) const JUMPED: &[isize] = STEPPED;

functions! {
    "mflr 11\nmtctr 3\nli 9, 9\nsubf 10, 3, 4", "mtlr 11\nblr";
    flt_load flt_load_end "lwz 9, 0(3)";
    flt_store flt_store_end "stw 4, 0(3)";
    // The base register changes only if nothing faults.
    flt_update flt_update_end "lwzu 9, 16(3)";
    flt_float flt_float_end "lfdx 0, 3, 4";
    flt_zero flt_zero_end "dcbz 0, 3";
    flt_call flt_call_end "bctrl";
    flt_jump flt_jump_end "bctr";
    // SPRG4 is the kernel's.
    flt_privileged flt_privileged_end "mfspr 9, 276";
    // Behind what the other functions begin with.
    flt_fork flt_fork_end "li 0, 2\nsc";
    // The child ends itself with status 7.
    flt_vfork flt_vfork_end "li 0, 189\nsc\ncmpwi 3, 0\nbne flt_vfork_end\nli 3, 7\nli 0, 234\nsc";
}
/// The system call.
pub(crate) const FORK_PLACE: isize = 20;

/// `beyond`: a page of a file that ends before it.
pub(crate) fn cases(beyond: usize) -> Vec<Case> {
    vec![
        Case::new("flt_load", 16, 0, libc::SIGSEGV),
        Case::new("flt_load", beyond, 0, libc::SIGBUS),
        Case::new("flt_store", 24, 1, libc::SIGSEGV),
        Case::new("flt_update", 32, 0, libc::SIGSEGV),
        Case::new("flt_update", beyond, 0, libc::SIGBUS),
        Case::new("flt_float", 48, 8, libc::SIGSEGV),
        Case::new("flt_zero", 64, 0, libc::SIGSEGV),
        Case::new("flt_call", 32, 0, libc::SIGSEGV),
        Case::new("flt_jump", 40, 0, libc::SIGSEGV),
        Case::new("flt_privileged", 0, 0, libc::SIGILL),
    ]
}
