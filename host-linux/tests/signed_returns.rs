//! Return probes on functions that sign their return address (aarch64, FEAT_PAuth).
#![cfg(target_arch = "aarch64")]

mod common;

use common::alone;
use probe_core::Place;
use probe_host_linux::{Kprobe, Kretprobe, probes};
use std::arch::global_asm;

// Words, as the assembler knows some of these instructions only when it is told of a processor that has them;
// a processor that has not runs the first two pairs as hints.
global_asm!(
    ".pushsection .text.signed_returns,\"ax\",@progbits",
    ".balign 4",
    // x + 1, by way of the next: signed with key A.
    ".globl signed_outer",
    ".type signed_outer, @function",
    "signed_outer:",
    ".inst 0xd503233f", // paciasp
    "stp x29, x30, [sp, #-16]!",
    "bl signed_inner",
    "add x0, x0, #1",
    "ldp x29, x30, [sp], #16",
    ".inst 0xd50323bf", // autiasp
    "ret",
    ".size signed_outer, . - signed_outer",
    // x + 10: a landing pad, then signed with key B.
    ".globl signed_inner",
    ".type signed_inner, @function",
    "signed_inner:",
    ".inst 0xd503245f", // bti c
    ".inst 0xd503237f", // pacibsp
    "sub sp, sp, #32",
    "stp x29, x30, [sp, #16]",
    "add x0, x0, #10",
    "ldp x29, x30, [sp, #16]",
    "add sp, sp, #32",
    ".inst 0xd50323ff", // autibsp
    "ret",
    ".size signed_inner, . - signed_inner",
    ".popsection",
);

unsafe extern "C" {
    fn signed_outer(x: usize) -> usize;
    fn signed_inner(x: usize) -> usize;
}

fn outer(x: usize) -> usize {
    // SAFETY: the assembly above keeps to the calling convention.
    unsafe { signed_outer(x) }
}

/// The places at each function's entry: its symbol, the one behind the landing pad, the one behind the
/// signing.
const ENTRIES: [(&str, &[isize]); 2] = [("signed_outer", &[0, 4]), ("signed_inner", &[0, 4, 8])];

#[test]
fn reg_17_a_return_probe_behind_the_signing_of_the_return_address_returns() {
    let _alone = alone();
    assert_eq!(outer(1), 12);
    for (name, offsets) in ENTRIES {
        for &offset in offsets {
            let place = Place::symbol(name).offset(offset);
            let probe = Kretprobe::at(place).entry(|call| call.argument(0)).exit(|ret, argument| {
                assert!(argument <= 2);
                ret.set_value(ret.value() + 100);
            });
            let probe = probes().register(probe).unwrap();
            for _ in 0..100 {
                assert_eq!(outer(1), 112, "{name}+{offset}");
            }
            assert_eq!(probe.counters().hits, 100);
            drop(probe);
            assert_eq!(outer(1), 12);
        }
        let beyond = Place::symbol(name).offset(offsets.len() as isize * 4);
        let refused = probes().register(Kretprobe::<()>::at(beyond)).unwrap_err();
        assert_eq!(refused.code(), "place.not_entry");
    }
}

#[test]
fn reg_17_return_probes_at_every_place_of_an_entry_and_kprobes_behind_the_signing() {
    let _alone = alone();
    let at = |offset| Place::symbol("signed_inner").offset(offset);
    let returns = [0, 4, 8].map(|offset| probes().register(Kretprobe::<()>::at(at(offset))).unwrap());
    let steps = [4, 8].map(|offset| probes().register(Kprobe::at(at(offset)).pre(|_| ())).unwrap());
    // SAFETY: as in `outer`.
    assert_eq!((outer(1), unsafe { signed_inner(1) }), (12, 11));
    assert!(returns.iter().chain(&steps).all(|probe| probe.counters().hits == 2));
    drop((returns, steps));
    assert_eq!(outer(1), 12);
}
