use super::*;
use std::vec::Vec;

const OUT_OF_LINE: Plan = Plan::OutOfLine { may_be_in_it: false };
const IN_BLOCK: Plan = Plan::OutOfLine { may_be_in_it: true };
const A32: CodeAddr = CodeAddr::new(0x40_1004);
const T32: CodeAddr = CodeAddr::new(0x40_1003);
/// The same slot in either set.
const SLOT: usize = 0x41_0000;

fn slot_of(place: CodeAddr) -> CodeAddr {
    CodeAddr::new(SLOT | place.as_usize() & 1)
}

fn filled(plan: &Plan, bytes: &[u8], place: CodeAddr, tail: Tail) -> Vec<u8> {
    let mut out = [0xff; LEN - 8];
    fill(plan, bytes, place, slot_of(place), tail, &mut out).expect("it fits");
    out.into()
}

/// `add r0, r1, r2`; `adds r0, r1, r2`; `add.w r0, r1, r2`.
const ADD: [u8; 4] = 0xe081_0002_u32.to_le_bytes();
const ADDS: [u8; 2] = 0x1888_u16.to_le_bytes();
const ADD_W: [u8; 4] = [0x01, 0xeb, 0x02, 0x00];

#[test]
fn an_a32_slot_is_the_copy_and_its_tail() {
    let slot = filled(&OUT_OF_LINE, &ADD, A32, Tail::Breakpoint);
    assert_eq!(slot[..4], ADD);
    assert!(slot[4..].chunks(4).all(|word| word == BREAKPOINT_A32));
    let slot = filled(&OUT_OF_LINE, &ADD, A32, Tail::Jump);
    // From 0x41000c back to 0x401008.
    assert_eq!(slot[4..8], (0xea00_0000_u32 | 0x00ff_c3ff).to_le_bytes());
}

#[test]
fn a_t32_slot_goes_on_by_a_nop_where_its_breakpoint_was() {
    for (insn, next) in [(&ADDS[..], 0x40_1004_isize), (&ADD_W, 0x40_1006)] {
        let trapping = filled(&OUT_OF_LINE, insn, T32, Tail::Breakpoint);
        let jumping = filled(&OUT_OF_LINE, insn, T32, Tail::Jump);
        assert_eq!(trapping[..insn.len()], *insn);
        if insn.len() == 2 {
            assert_eq!(trapping[2..4], NOP);
        }
        assert_eq!((&trapping[4..6], &jumping[4..6]), (&BREAKPOINT_T32[..], &NOP[..]));
        assert_eq!(trapping[6..], jumping[6..]);
        let halves = [6, 8].map(|at| u32::from(u16::from_le_bytes([jumping[at], jumping[at + 1]])));
        let word = halves[0] << 16 | halves[1];
        assert!(insn::T_WIDE_B.matches(word), "{word:#x}");
        assert_eq!(SLOT as isize + 10 + insn::wide_offset(word) as isize, next);
    }
}

#[test]
fn in_a_block_the_breakpoint_follows_at_once_and_stays() {
    for insn in [&ADDS[..], &ADD_W] {
        let slot = filled(&IN_BLOCK, insn, T32, Tail::Jump);
        assert_eq!(slot[..insn.len()], *insn);
        assert!(slot[insn.len()..].chunks(2).all(|half| half == BREAKPOINT_T32), "{slot:x?}");
        assert_eq!(tail(&IN_BLOCK, insn.len(), T32, slot_of(T32), Tail::Jump), None);
        let patch = tail(&IN_BLOCK, insn.len(), T32, slot_of(T32), Tail::Breakpoint).expect("always");
        assert_eq!((usize::from(patch.offset), patch.len_bytes), (insn.len(), 2));
    }
}

#[test]
fn a_tail_is_switched_by_one_store() {
    for (place, insn) in [(A32, &ADD[..]), (T32, &ADDS), (T32, &ADD_W)] {
        for kind in [Tail::Breakpoint, Tail::Jump] {
            let other = if kind == Tail::Jump { Tail::Breakpoint } else { Tail::Jump };
            let patch = tail(&OUT_OF_LINE, insn.len(), place, slot_of(place), kind).expect("in reach");
            let (from, len) = (usize::from(patch.offset), usize::from(patch.len_bytes));
            assert!(from.is_multiple_of(len));
            let mut slot = filled(&OUT_OF_LINE, insn, place, other);
            slot[from..from + len].copy_from_slice(&patch.bytes[..len]);
            assert_eq!(slot, filled(&OUT_OF_LINE, insn, place, kind));
        }
    }
}

#[test]
fn a_slot_out_of_reach_keeps_its_breakpoint() {
    for (place, insn, reach) in [(A32, &ADD[..], 1 << 25), (T32, &ADDS, 1 << 24)] {
        let far = CodeAddr::new((SLOT + reach) | place.as_usize() & 1);
        assert_eq!(tail(&OUT_OF_LINE, insn.len(), place, far, Tail::Jump), None);
        assert!(tail(&OUT_OF_LINE, insn.len(), place, far, Tail::Breakpoint).is_some());
        let mut out = [[0; LEN - 8]; 2];
        fill(&OUT_OF_LINE, insn, place, far, Tail::Jump, &mut out[0]).expect("it fits");
        fill(&OUT_OF_LINE, insn, place, far, Tail::Breakpoint, &mut out[1]).expect("it fits");
        assert_eq!(out[0], out[1]);
    }
}

/// `vldr d0, [pc, #16]`: R0 is lent, and given back whether it ran or faulted.
#[test]
fn floating_point_addresses_by_a_register_that_is_lent() {
    let load = [0x9f, 0xed, 0x04, 0x0b];
    let slot = filled(&Plan::Borrow, &load, T32, Tail::Breakpoint);
    assert_eq!(slot[..6], [0x90, 0xed, 0x04, 0x0b, 0x7f, 0xbe]);
    let slot = filled(&Plan::Borrow, &[0x04, 0x0b, 0x9f, 0xed], A32, Tail::Breakpoint);
    assert_eq!(slot[..4], [0x04, 0x0b, 0x90, 0xed]);
    for (place, base) in [(T32, 0x40_1004), (A32, 0x40_100c)] {
        let mut start = PtRegs { cpsr: 0x10, ..PtRegs::default() };
        start.set_r(0, 7);
        start.set_pc(place);
        let mut regs = start;
        let state = before(&Plan::Borrow, place, slot_of(place), &mut regs);
        assert_eq!((regs.r(0), regs.pc()), (base, slot_of(place)));
        let mut aborted = regs;
        abort(place, &mut aborted, &state);
        assert_eq!(aborted, start);
        after(4, place, &mut regs, &state);
        start.set_pc(place.wrapping_add(4));
        assert_eq!(regs, start);
    }
}

#[test]
fn half_an_instruction_is_none() {
    let mut out = [0; LEN - 8];
    for place in [A32, T32] {
        let filled = fill(&OUT_OF_LINE, &ADD_W[..2], place, slot_of(place), Tail::Breakpoint, &mut out);
        assert_eq!((filled, out), (Err(TRUNCATED), [0; LEN - 8]));
    }
}
