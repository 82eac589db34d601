//! REG_9: `explain` says where the detour of a jump may lie, and there it lies.
#![cfg(target_arch = "x86_64")]

mod common;

use probe_core::{CodeAddr, Explanation};
use probe_host_linux::{Kprobe, probes};
use std::arch::global_asm;

global_asm!(
    ".globl starts_at_four",
    ".type starts_at_four, @function",
    "starts_at_four:",
    "lea rax, [rdi + 4]",
    ".rept 16",
    "nop",
    ".endr",
    "ret",
    ".size starts_at_four, . - starts_at_four",
    ".globl starts_at_three",
    ".type starts_at_three, @function",
    "starts_at_three:",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "ret",
    ".size starts_at_three, . - starts_at_three",
    ".globl starts_at_five",
    ".type starts_at_five, @function",
    "starts_at_five:",
    "mov eax, 5",
    "ret",
    ".size starts_at_five, . - starts_at_five",
);

unsafe extern "C" {
    safe fn starts_at_four(a: usize) -> usize;
    safe fn starts_at_five() -> usize;
}

fn explained(name: &str) -> Explanation {
    probes().explain(&name.into()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Where the jump at the place leads, if one stands there.
fn detour(at: CodeAddr) -> Option<CodeAddr> {
    // SAFETY: text of this program.
    let text = unsafe { std::ptr::with_exposed_provenance::<[u8; 5]>(at.as_usize()).read_volatile() };
    let [0xe9, distance @ ..] = text else { return None };
    Some(at.wrapping_offset(i32::from_le_bytes(distance) as isize + 5))
}

#[test]
fn reg_9_a_jumps_detour_lies_where_explain_says() {
    let _alone = common::alone();
    let run = || (starts_at_four(1), starts_at_five());
    let mut jumps = 0;
    for name in ["starts_at_four", "starts_at_five", "getppid", "qsort", "opendir", "fopen", "strtol"] {
        let explained = explained(name);
        assert_eq!(explained.room.is_empty(), explained.jump.is_err(), "{name}: {explained:?}");
        let probe = probes().register(Kprobe::at(name).pre(|_| ())).unwrap();
        probes().jumps().lay().unwrap();
        assert_eq!(run(), (5, 5));
        if let Some(detour) = detour(probe.addr()) {
            jumps += 1;
            // Of many stretches a few are told; the others lie as these do, 16 MiB or 64 KiB apart.
            let room = &explained.room;
            let lies_so = || {
                let len = room[0].start.abs_diff(room[0].end);
                let apart = if len > 0x2000 { 1 << 24 } else { 1 << 16 };
                detour.as_usize().wrapping_sub(room[0].start.as_usize()) % apart < len
            };
            let is_told = room.iter().any(|room| room.contains(&detour));
            assert!(is_told || room.len() == 4 && lies_so(), "{name}: {detour} {explained:?}");
        }
    }
    assert!(jumps >= 3, "{jumps} jumps");
    let (four, five) = (explained("starts_at_four"), explained("starts_at_five"));
    // The last byte of the displacement is a breakpoint's: 0x34000000 bytes below, and nowhere near.
    let below = four.at.wrapping_offset(-0x3400_0000);
    assert!(four.room[0].start.abs_diff(below) < 0x100, "{four:?}");
    assert!(four.room[0].end <= below.wrapping_add(0x100_1000), "{four:?}");
    // 64 KiB of each 16 MiB.
    let three = explained("starts_at_three");
    let is_short = three.room.iter().all(|room| room.start.abs_diff(room.end) <= 0x1_1000);
    assert!(is_short && three.room.len() == 4, "{three:?}");
    assert!(five.room[0].contains(&five.at), "{five:?}");
}
