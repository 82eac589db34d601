//! Detours: this backend has none yet ([`NoJumps`](probe_core::arch::NoJumps)), and every probe keeps its
//! breakpoint.
//!
//! What they would be: `b` reaches 32 MiB in A32 and displaces one instruction. `b.w` reaches 16 MiB in T32
//! and displaces one or two; its second half is `bkpt` wherever the distance from the program counter has
//! 0b110 in its bits 11 to 9 and is less than 4 MiB (J1 and J2 are 1 then), so that a context that arrives at
//! a second displaced instruction traps.
