//! Out-of-line copies: shared, see [`probe_ppc_decode::slot`].

pub(crate) use probe_ppc_decode::slot::{Kept, LEN, REACH, abort_step, after_step, before_step, fill, tail};
