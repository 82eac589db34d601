//! Detours: this backend has none yet ([`NoJumps`](probe_core::arch::NoJumps)), and every probe keeps its
//! breakpoint.
