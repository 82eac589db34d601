use core::arch::asm;

/// VLDR of a constant: the slot addresses by R0 what lies at a distance from the program counter. Code that
/// is compiled without floating point runs it, too; its processor has to have it.
#[inline(always)]
pub(crate) fn borrow(_: usize) -> usize {
    const MARK: usize = 0x1234_5678;
    let mut r0 = MARK;
    let loaded: usize;
    // SAFETY: it loads its own constant, and S0 is as before.
    unsafe {
        asm!(
            ".fpu vfpv2",
            "vmov {kept}, s0",
            "vldr s0, 2f",
            "b 3f",
            ".p2align 2",
            "2: .word 0x00c0ffee",
            "3: vmov {loaded}, s0",
            "vmov s0, {kept}",
            inout("r0") r0, loaded = out(reg) loaded, kept = out(reg) _,
            options(nostack),
        );
    }
    usize::from(r0 == MARK && loaded == 0x00c0_ffee)
}
