use core::arch::asm;

/// VLDR of a constant: the slot addresses by R0 what lies at a distance from the program counter.
#[inline(always)]
pub(crate) fn borrow(_: usize) -> usize {
    const MARK: usize = 0x1234_5678;
    let mut r0 = MARK;
    let loaded: usize;
    // SAFETY: it loads its own constant.
    unsafe {
        asm!(
            "vldr s0, 2f",
            "b 3f",
            ".p2align 2",
            "2: .word 0x00c0ffee",
            "3: vmov {loaded}, s0",
            inout("r0") r0, loaded = out(reg) loaded, out("s0") _,
            options(nostack),
        );
    }
    usize::from(r0 == MARK && loaded == 0x00c0_ffee)
}
