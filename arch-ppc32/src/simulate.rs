//! The effect of a simulated instruction: shared, see [`probe_ppc_decode::simulate`].

pub(crate) use probe_ppc_decode::simulate::simulate;
