//! Write order and publication.
//!
//! The breakpoint is `c.ebreak`, two bytes, wherever it is planted: over a compressed instruction, or over
//! the first half of a full one, which lies at a multiple of two bytes and perhaps across a line or a page.
//! So the store is one aligned halfword, it touches no neighbour, and there is no order of writes to keep. A
//! hart that fetches the halves of a full instruction apart has the old first half, and then the old
//! instruction (the second half never changes), or the new one, and then the breakpoint, whose length the
//! first half tells (I 1.5). The backend therefore needs the extension C, which the privileged and the
//! process's ABI of RV64GC have.
//!
//! The tail of a slot is one aligned word that changes between `c.ebreak` twice and `jal`. A hart that
//! fetched its halves apart could see a jump of neither: Ziccif excludes that (naturally aligned, up to 32
//! bits, in main memory that is cacheable and coherent), which every application profile asks for from
//! RVA20U64 on.
//!
//! FENCE.I makes stores visible to the fetches of its own hart only (I 6.1). On the others a host executes
//! one, too: a kernel by an interrupt to each or the SBI's RFENCE extension, a process by
//! `riscv_flush_icache`, which does the same. That is
//! [`Host::sync_cores`](probe_core::host::Host::sync_cores); until then a hart executes the old instruction
//! (no hit) or the new one (a hit), which the core's life of a point allows for.
