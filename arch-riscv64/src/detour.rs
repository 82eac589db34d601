//! Jumps instead of breakpoints: there are none yet, [`NoJumps`](probe_core::arch::NoJumps).
//!
//! `jal x0` is one word, but reaches 1 MiB only, and a probe's detour seldom lies so near. `auipc` and `jr` reach 2 GiB
//! with eight bytes and a register that is free at the place. An indirect jump may land on the second of the two, so
//! that has to be something that traps there and still is the second half of the first jump.
