//! HIT_11: POPF by a trap changes what it changes bare, NT and ID too, which a signal return does not take from its frame.
#![cfg(any(target_arch = "x86", target_arch = "x86_64"))]

mod common;

use common::alone;
use probe_core::Place;
use probe_host_linux::{Kprobe, probes};
use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.flags_pop,\"ax\",@progbits",
    ".globl flags_pop",
    ".type flags_pop, @function",
    "flags_pop:",
    "pushfq",
    "push rdi",
    "popfq",
    "pushfq",
    "pop rax",
    "popfq",
    "ret",
    ".size flags_pop, . - flags_pop",
    ".popsection",
);
#[cfg(target_arch = "x86")]
global_asm!(
    ".pushsection .text.flags_pop,\"ax\",@progbits",
    ".globl flags_pop",
    ".type flags_pop, @function",
    "flags_pop:",
    "pushfd",
    "push edi",
    "popfd",
    "pushfd",
    "pop eax",
    "popfd",
    "ret",
    ".size flags_pop, . - flags_pop",
    ".popsection",
);

unsafe extern "C" {
    fn flags_pop();
}

/// Behind PUSHF and PUSH.
const POPF: isize = 2;

/// What the flags are after POPF has loaded `flags`.
fn pop(flags: usize) -> usize {
    let popped: usize;
    // SAFETY: the function brings all flags back and changes the accumulator only.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("call {}", sym flags_pop, in("rdi") flags, out("rax") popped)
    };
    // SAFETY: as above.
    #[cfg(target_arch = "x86")]
    unsafe {
        std::arch::asm!("call {}", sym flags_pop, in("edi") flags, out("eax") popped)
    };
    popped
}

#[test]
fn hit_11_popf_by_a_trap_loads_nt_and_id() {
    let _alone = alone();
    let (nt, id, carry) = (1 << 14, 1 << 21, 1);
    let all: Vec<usize> = [0, nt, id, nt | id, carry, nt | carry].into_iter().cycle().take(24).collect();
    let bare: Vec<usize> = all.iter().map(|&flags| pop(0x202 | flags)).collect();
    // An emulator may not have them.
    assert!(std::env::var_os("PROBE_RUNNER").is_some() || bare[3] & (nt | id) == nt | id);
    let place = || Place::symbol("flags_pop").offset(POPF);
    let probe = probes().register(Kprobe::at(place()).pre(|_| ()).without_jump()).unwrap();
    let second = probes()
        .register(Kprobe::at(Place::symbol("flags_pop").offset(POPF + 1)).pre(|_| ()).without_jump())
        .unwrap();
    let probed: Vec<usize> = all.iter().map(|&flags| pop(0x202 | flags)).collect();
    assert_eq!(probed, bare);
    assert_eq!(probe.counters().hits, all.len() as u64);
    drop((probe, second));
}
