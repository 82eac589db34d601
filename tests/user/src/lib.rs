//! The conformance suite and the rest, run in a Linux process.
//!
//! | test | what it is |
//! |---|---|
//! | `conformance` | the suite of `tests/conformance`, one case after the other |
//! | `jumps` | jumps instead of breakpoints: how many there can be, and that they come and go while threads run in them |
//! | `faults` | faults, forks, signals and ends of threads around a hit, as without probes |
//! | `storm` | threads that hit, register, unregister, fork, raise signals and load libraries, all at once |
//! | `walk` | a probe on every instruction of real algorithms, all at once, against an independent count |
//! | benchmark `hit` | what a hit, a registration and a probe cost (docs/benchmarks.md) |
//!
//! # What of the contract only a kernel can show
//!
//! Every rule of the contract has a test that runs in a process, but these aspects of some rules exist in a
//! kernel only; the test kernels (`tests/system`) hold them:
//!
//! - HIT_1, HIT_12: the interrupt state is restored exactly; probes in interrupt handlers and in code with
//!   interrupts off; an interrupt between breakpoint and post handler.
//! - HIT_6: handlers run with preemption disabled.
//! - HIT_9: a page fault in a stepped instruction or a handler that the kernel's exception table repairs.
//! - REG_3: a context-switch function on the blacklist.
//! - RET_7: a task that is killed while returns are pending, and a context switch inside a followed call.
//! - CTL_5: kernel modules; and probes that are packaged as a module.
//! - SAFE_1: no page is writable and executable, seen in the page tables.

pub mod heap;
