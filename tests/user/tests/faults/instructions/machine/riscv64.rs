//! riscv64: functions whose fourth instruction faults.

use crate::instructions::Case;

/// Where in `ucontext_t` the registers are.
pub(crate) const REGISTERS_AT: usize = 176;
/// Those that the functions set: RA, T0, T1, T3, A0, A1.
pub(crate) const REGISTERS: &[usize] = &[1, 5, 6, 28, 10, 11];
/// The program counter.
pub(crate) const PC: usize = 0;
/// All instructions up to the one that faults.
pub(crate) const STEPPED: &[isize] = &[0, 2, 4, 8];
/// A jump at the first displaces the second, too.
pub(crate) const JUMPED: &[isize] = &[0, 4, 8];

functions! {
    // Two compressed instructions, a full one.
    "mv t3, ra\nli t0, 9\nsub t1, a1, a0", "mv ra, t3\nret";
    flt_load flt_load_end "ld t0, (a0)";
    flt_store flt_store_end "sd a1, (a0)";
    // Compressed.
    flt_word flt_word_end "c.lw a0, (a0)";
    flt_float flt_float_end "fld ft0, 16(a0)";
    flt_atomic flt_atomic_end "amoadd.d t0, a1, (a0)";
    flt_call flt_call_end "jalr a0";
    flt_jump flt_jump_end "jr a0";
    flt_undefined flt_undefined_end "sfence.vma";
    // clone(SIGCHLD, 0, 0, 0, 0), behind what the other functions begin with.
    flt_fork flt_fork_end
        "li a0, 17\nli a1, 0\nli a2, 0\nli a3, 0\nli a4, 0\nli a7, 220\necall";
    // clone(CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0); the child ends itself with status 7.
    flt_vfork flt_vfork_end concat!(
        "li a0, 0x4111\nli a1, 0\nli a2, 0\nli a3, 0\nli a4, 0\nli a7, 220\necall\n",
        "bnez a0, flt_vfork_end\nli a0, 7\nli a7, 94\necall"
    );
}
/// The system call.
pub(crate) const FORK_PLACE: isize = 22;

/// `beyond`: a page of a file that ends before it.
pub(crate) fn cases(beyond: usize) -> Vec<Case> {
    vec![
        Case::new("flt_load", 16, 0, libc::SIGSEGV),
        Case::new("flt_load", beyond, 0, libc::SIGBUS),
        Case::new("flt_store", 24, 1, libc::SIGSEGV),
        Case::new("flt_word", 32, 0, libc::SIGSEGV),
        Case::new("flt_float", beyond, 0, libc::SIGBUS),
        Case::new("flt_atomic", 48, 1, libc::SIGSEGV),
        Case::new("flt_call", 32, 0, libc::SIGSEGV),
        Case::new("flt_jump", 40, 0, libc::SIGSEGV),
        Case::new("flt_load", 1 << 62, 0, libc::SIGSEGV),
        Case::new("flt_undefined", 0, 0, libc::SIGILL),
    ]
}
