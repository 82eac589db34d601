//! The effect of a simulated instruction: shared, see
//! [`probe_x86_decode::simulate`](mod@probe_x86_decode::simulate).
