//! Write order and publication: shared, see [`probe_ppc_decode::patch`].

/// The step in bytes of cache maintenance: a divisor of every 32-bit processor's cache block size (16 on an
/// MPC8xx, 32 on most).
pub const CACHE_STEP: usize = 16;

/// The first address of cache maintenance and the number of steps for `len_bytes` bytes at `at`.
#[allow(dead_code, reason = "used by `asm`, which is built for ppc32 only")]
pub(crate) const fn blocks(at: usize, len_bytes: usize) -> (usize, usize) {
    probe_ppc_decode::patch::blocks(at, len_bytes, CACHE_STEP)
}
