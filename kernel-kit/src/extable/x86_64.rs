//! Memory access on x86-64.

words_that_may_fault!(reg, "mov {word}, [{word}]", "mov [{to}], {word}", "mov {failed:e}, 1", "jmp");

/// Copies `len` bytes from the lowest on; returns how many were left when a byte faulted. A word that faults
/// is done again byte by byte.
///
/// # Safety
/// The bytes at `to`, if there are any, may be overwritten.
#[inline(never)]
pub(super) unsafe fn copy(to: usize, from: usize, len: usize) -> usize {
    let left;
    // SAFETY: the caller lets them be written; a fault goes on in here. The direction flag is clear.
    unsafe {
        core::arch::asm!(
            "6: rep movsq",
            "7: and {rest:e}, 7",
            "lea rcx, [{rest} + rcx * 8]",
            "4: rep movsb",
            "5:",
            super::entry!("4b", "5b"),
            super::entry!("6b", "7b"),
            rest = inout(reg) len => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") len / 8 => left,
            options(nostack),
        );
    }
    left
}
