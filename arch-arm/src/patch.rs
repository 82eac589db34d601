//! Write order and publication.
//!
//! The breakpoint is BKPT: `bkpt #0xfbef` over a word of A32, `bkpt #0x7f` over a halfword of T32, which is
//! the whole of an instruction or the first half of one. Each is one aligned store, which touches no
//! neighbour, so there is no order of writes to keep. BKPT has no condition: in A32 its condition field is
//! "always", and an IT block of T32 does not skip it (A8.8.24). UDF, which Linux uses, has one in A32 and
//! obeys IT; and Linux has taken its immediates: 1 and 16 for debuggers, 24 for kprobes, 25 for uprobes.
//!
//! A processor that executes text while it is written sees the old instruction or the new one only if both
//! are B, BL, NOP, BKPT, SVC, HVC or SMC, in T32 of two bytes (A3.5.4). That is so for the tail of a slot
//! (`slot`). A place holds any instruction: there the manual promises nothing, and Linux stores over it all
//! the same, as every implementation fetches an aligned word or halfword whole. A T32 instruction of four
//! bytes whose halves are fetched apart has the old first half, and then its old second half, or BKPT, whose
//! length its own half tells.
//!
//! The jump of an optimised probe takes the place of its breakpoint, and makes way for it again. In A32 that
//! is B for BKPT and back, one word, which the list allows. In T32 it is B.W, which is not in the list: BKPT
//! stands in the first half until every processor has synchronised with the second half, and one halfword is
//! stored then. What a processor then fetches is BKPT or the whole of B.W, where it fetches each halfword
//! once. A machine for which either of these is not so needs its processors to wait meanwhile, which a host
//! does in [`Host::write_text`](probe_core::host::Host::write_text), as the test kernels do for QEMU's
//! threads.
//!
//! The store is cleaned to the point of unification, and the instruction cache and the branch predictor are
//! invalidated there for all processors of the inner shareable domain (A3.5.4, B2.2.7). On the others a host
//! executes an ISB, too: a kernel by an interrupt to each, a process by `membarrier`. That is
//! [`Host::sync_cores`](probe_core::host::Host::sync_cores); until then a processor executes the old
//! instruction (no hit) or the new one (a hit), which the core's life of a point allows for.
