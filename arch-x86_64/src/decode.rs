//! Bytes to a plan or a refusal: shared, see [`probe_x86_decode::decode`](mod@probe_x86_decode::decode); here
//! in 64-bit mode.
