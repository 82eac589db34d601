//! Write order and publication: shared, see [`probe_ppc_decode::patch`]. Of a prefixed instruction only the
//! prefix is replaced; a core that has fetched the old prefix has fetched its suffix with it, and the suffix
//! does not change.

/// The step in bytes of cache maintenance: a divisor of every ppc64 processor's cache block size (32 to 128).
pub const CACHE_STEP: usize = 32;

/// The first address of cache maintenance and the number of steps for `len_bytes` bytes at `at`.
#[allow(dead_code, reason = "used by `asm`, which is built for ppc64 only")]
pub(crate) const fn blocks(at: usize, len_bytes: usize) -> (usize, usize) {
    probe_ppc_decode::patch::blocks(at, len_bytes, CACHE_STEP)
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
