//! Memory access on i386.

words_that_may_fault!(reg, "mov {word}, [{word}]", "mov [{to}], {word}", "mov {failed}, 1", "jmp");

/// Copies `len` bytes from the lowest on; returns how many were left when a byte faulted. A word that faults
/// is done again byte by byte.
///
/// # Safety
/// The bytes at `to`, if there are any, may be overwritten.
#[inline(never)]
pub(super) unsafe fn copy(to: usize, from: usize, len: usize) -> usize {
    let left;
    // SAFETY: the caller lets them be written; a fault goes on in here. The direction flag is clear; ESI,
    // which is the compiler's, is put back.
    unsafe {
        core::arch::asm!(
            "xchg {from}, esi",
            "6: rep movsd",
            "7: and {rest}, 3",
            "lea ecx, [{rest} + ecx * 4]",
            "4: rep movsb",
            "5: xchg {from}, esi",
            super::entry!("4b", "5b"),
            super::entry!("6b", "7b"),
            rest = inout(reg) len => _,
            inout("edi") to => _,
            from = inout(reg) from => _,
            inout("ecx") len / 4 => left,
            options(nostack),
        );
    }
    left
}
