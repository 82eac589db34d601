//! Out-of-line copies: shared, see [`probe_ppc_decode::slot`].

pub use probe_ppc_decode::slot::Kept;
pub(crate) use probe_ppc_decode::slot::{LEN, REACH, abort_step, after_step, before_step, fill, tail};
