//! Write order and publication.
//!
//! Every patch of this architecture is one aligned word, stored at once: the breakpoint, the original word
//! back, and a slot's tail. Book II, "Concurrent Modification and Execution of Instructions", allows it
//! between any instruction and `trap` or `b`: another core executes the old or the new word. (Of a prefixed
//! instruction only the prefix is replaced; a core that has fetched the old prefix has fetched its suffix
//! with it, and the suffix does not change.) So there is no order to keep here but publication, for which
//! `asm` has the sequence of Book II, "Instruction Cache Block Invalidate": `dcbst`, `sync`, `icbi`, `sync`,
//! `isync`.

/// The step in bytes of cache maintenance: a divisor of every processor's cache block size (32 to 128).
pub const CACHE_STEP: usize = 32;

/// The first address of cache maintenance and the number of steps for `len_bytes` bytes at `at`.
#[must_use]
pub const fn blocks(at: usize, len_bytes: usize) -> (usize, usize) {
    let start = at & !(CACHE_STEP - 1);
    if len_bytes == 0 {
        return (start, 0);
    }
    (start, (at + len_bytes - start).div_ceil(CACHE_STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_range_and_nothing_else() {
        assert_eq!(blocks(0x1000, 0), (0x1000, 0));
        assert_eq!(blocks(0x1000, 4), (0x1000, 1));
        assert_eq!(blocks(0x101c, 4), (0x1000, 1));
        assert_eq!(blocks(0x101c, 8), (0x1000, 2));
        assert_eq!(blocks(0x1001, 32), (0x1000, 2));
        assert_eq!(blocks(0x1fe0, 4096), (0x1fe0, 128));
    }
}
