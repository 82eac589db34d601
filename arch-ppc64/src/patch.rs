//! Write order and publication: shared, see [`probe_ppc_decode::patch`].

pub use probe_ppc_decode::patch::CACHE_STEP;
#[cfg(target_arch = "powerpc64")]
pub(crate) use probe_ppc_decode::patch::blocks;
