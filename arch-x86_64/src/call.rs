//! The calling convention, System V with six integer arguments in registers: shared, see
//! [`probe_x86_decode::call`].
