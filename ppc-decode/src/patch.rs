//! Write order and publication.
//!
//! Every patch of this architecture is one aligned word, stored at once: the breakpoint, the original word
//! back, and a slot's tail. Book II, "Concurrent Modification and Execution of Instructions", allows it
//! between any instruction and `trap` or `b`: another core executes the old or the new word. So there is no
//! order to keep here but publication, for which the backends' `asm` has the sequence of Book II,
//! "Instruction Cache Block Invalidate": `dcbst`, `sync`, `icbi`, `sync`,
//! `isync`.

/// The first address of cache maintenance and the number of steps of `step` bytes, a power of two, for
/// `len_bytes` bytes at `at`.
#[must_use]
pub const fn blocks(at: usize, len_bytes: usize, step: usize) -> (usize, usize) {
    let start = at & !(step - 1);
    if len_bytes == 0 {
        return (start, 0);
    }
    (start, (at + len_bytes - start).div_ceil(step))
}
