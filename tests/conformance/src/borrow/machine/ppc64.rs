use core::arch::asm;

/// BCTAR: the slot reads the target address register into r0.
#[inline(always)]
pub(crate) fn borrow(_: usize) -> usize {
    const MARK: usize = 0x1234_5678;
    let mut r0 = MARK;
    // SAFETY: jumps to its own label; nothing else here uses the target address register.
    unsafe {
        asm!(
            "bcl 20, 31, 3f",
            "3: mflr {t}",
            "addi {t}, {t}, 2f - 3b",
            "mtspr 815, {t}",
            // bctar 20, 0, 0
            ".long 0x4e800460",
            "trap",
            "2:",
            t = out(reg_nonzero) _, inout("r0") r0, out("lr") _,
            options(nostack),
        );
    }
    usize::from(r0 == MARK)
}
