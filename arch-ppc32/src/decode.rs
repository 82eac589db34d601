//! Words to a decision: shared, see [`probe_ppc_decode::decode`](mod@probe_ppc_decode::decode).

pub use probe_ppc_decode::Plan;
pub(crate) use probe_ppc_decode::decode::decode;
