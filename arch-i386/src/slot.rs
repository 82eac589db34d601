//! Out-of-line copies: shared, see [`probe_x86_decode::slot`].
