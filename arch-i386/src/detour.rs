//! Detours of optimised probes: shared, see [`probe_x86_decode::detour`].
