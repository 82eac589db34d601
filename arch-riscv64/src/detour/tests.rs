use super::*;
use crate::testing::Bytes;
use rstest::rstest;

const PLACE: CodeAddr = CodeAddr::new(0x40_1002);
const CALLS: DetourCalls =
    DetourCalls { trampoline: CodeAddr::new(0x7000_1000), word: 0x1234, post_word: None };

fn displaced(bytes: &[u8]) -> Result<Displaced, Refusal> {
    let text = Bytes::new(PLACE.as_usize(), bytes);
    displace(&Site { at: PLACE, function: None, text: &text })
}

/// What is displaced, and the detour of that at the lowest entry from 64 KiB below on.
fn filled(bytes: &[u8], calls: &DetourCalls) -> (DetourLayout, CodeAddr, [u8; LEN]) {
    let displaced = displaced(bytes).expect("it has a copy");
    let entry = entry(PLACE, &displaced, CodeAddr::new(0x30_0000)).expect("in reach");
    let mut out = [0; LEN];
    let layout = fill(&displaced, bytes, PLACE, entry, calls, &mut out).expect("in reach");
    (layout, entry, out)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// `add t0, t1, t2`, `c.add t0, t1`, `c.li a0, 1`, `c.beqz a0, .+16`, `jal ra, .+16`.
const ADD: u32 = 0x0073_02b3;
const C_ADD: u16 = 0x929a;
const C_LI: u16 = 0x4505;
const C_BEQZ: u16 = 0xc901;
const JAL: u32 = 0x0100_00ef;

fn text(parts: &[&[u8]]) -> std::vec::Vec<u8> {
    parts.concat()
}

#[test]
fn a_full_instruction_is_displaced_alone() {
    let found = displaced(&text(&[&ADD.to_le_bytes(), &[0xff; 4]])).unwrap();
    assert_eq!((found.len_bytes, found.starts().count()), (4, 1));
}

#[test]
fn a_compressed_instruction_takes_the_next_one_along() {
    let pair = displaced(&text(&[&C_ADD.to_le_bytes(), &C_LI.to_le_bytes(), &[0; 4]])).unwrap();
    assert_eq!((pair.len_bytes, pair.starts().collect::<std::vec::Vec<_>>()), (4, std::vec![0, 2]));
    let longer = displaced(&text(&[&C_ADD.to_le_bytes(), &ADD.to_le_bytes(), &[0; 2]])).unwrap();
    assert_eq!((longer.len_bytes, longer.starts().collect::<std::vec::Vec<_>>()), (6, std::vec![0, 2]));
}

/// `c.ret` first; half an instruction; what cannot be copied second: `c.jalr ra`, `lr.w`, the function's end.
#[rstest]
#[case::after_a_return(&[0x82, 0x80, 0x05, 0x45])]
#[case::cut_off(&[0x9a, 0x92, 0x33])]
#[case::writes_its_target(&[0x9a, 0x92, 0x82, 0x90])]
#[case::reserves(&[0x9a, 0x92, 0x2f, 0xa5, 0x05, 0x10])]
fn what_has_no_copy_keeps_its_breakpoint(#[case] bytes: &[u8]) {
    assert!(displaced(bytes).is_err());
}

#[test]
fn the_next_function_is_not_displaced() {
    let bytes = text(&[&C_ADD.to_le_bytes(), &C_LI.to_le_bytes(), &[0; 4]]);
    let text = Bytes::new(PLACE.as_usize(), &bytes);
    let site = Site { at: PLACE, function: Some((PLACE, PLACE.wrapping_add(2))), text: &text };
    assert_eq!(displace(&site), Err(NOT_COPIED));
}

/// Whoever comes to a second displaced instruction finds a breakpoint there (SAFE_3).
#[test]
fn every_displaced_start_is_a_breakpoint() {
    let displaced = displaced(&text(&[&C_ADD.to_le_bytes(), &C_LI.to_le_bytes(), &[0; 4]])).unwrap();
    let (mut from, mut found) = (CodeAddr::new(0), 0);
    while let Some(entry) = entry(PLACE, &displaced, from) {
        let jump = jump(PLACE, entry);
        assert_eq!(jump[2..4], insn::BREAKPOINT.to_le_bytes());
        assert_eq!(insn::immediate_j(word(&jump, 0)) as isize, entry.offset_from(PLACE));
        from = entry.wrapping_add(1);
        found += 1;
    }
    assert_eq!(found, 16);
}

#[test]
fn a_jump_out_of_reach_has_no_entry() {
    let displaced = displaced(&text(&[&ADD.to_le_bytes(), &[0; 4]])).unwrap();
    assert_eq!(entry(PLACE, &displaced, PLACE.wrapping_add(1 << 20)), None);
    let lowest = entry(PLACE, &displaced, CodeAddr::new(0)).unwrap();
    assert!(insn::jump(lowest.offset_from(PLACE)).is_some());
    assert!(lowest.as_usize().is_multiple_of(8));
}

#[test]
fn a_detour_calls_copies_and_jumps_back() {
    let bytes = text(&[&C_ADD.to_le_bytes(), &ADD.to_le_bytes(), &[0; 2]]);
    let (layout, entry, out) = filled(&bytes, &CALLS);
    let start = entry.wrapping_offset(-(HEADER_LEN as isize));
    assert_eq!(layout.copies[..2], [68, 72]);
    assert_eq!(word(&out, 68), u32::from(C_ADD) | C_NOP << 16);
    assert_eq!(word(&out, 72), ADD);
    let back = start.wrapping_add(76).wrapping_offset(insn::immediate_j(word(&out, 76)) as isize);
    assert_eq!((layout.back, back, layout.len_bytes), (76, PLACE.wrapping_add(6), 80));
    // The literals lie at a multiple of 8.
    let literals = start.as_usize().next_multiple_of(8) - start.as_usize();
    assert_eq!((word(&out, literals), word(&out, literals + 8)), (0x7000_1000, 0x1234));
}

#[test]
fn the_second_call_is_behind_the_first_copy() {
    let bytes = text(&[&C_ADD.to_le_bytes(), &C_LI.to_le_bytes(), &[0; 4]]);
    let (layout, _, out) = filled(&bytes, &DetourCalls { post_word: Some(0x5678), ..CALLS });
    assert_eq!(layout.copies[..2], [68, 100]);
    assert_eq!(word(&out, 100), u32::from(C_LI) | C_NOP << 16);
    let single = filled(&ADD.to_le_bytes(), &DetourCalls { post_word: Some(0x5678), ..CALLS });
    assert_eq!((single.0.copies[0], single.0.back), (68, 100));
}

/// A branch goes to its target, or on; a call links to behind the original.
#[test]
fn copies_of_what_jumps_lead_where_the_original_leads() {
    let bytes = text(&[&C_BEQZ.to_le_bytes(), &JAL.to_le_bytes(), &[0; 2]]);
    let (layout, entry, out) = filled(&bytes, &CALLS);
    let start = entry.wrapping_offset(-(HEADER_LEN as isize));
    let target =
        |at: usize| start.wrapping_add(at).wrapping_offset(insn::immediate_j(word(&out, at)) as isize);
    let [branch, call] = [layout.copies[0], layout.copies[1]].map(usize::from);
    assert_eq!(insn::immediate_b(word(&out, branch)), 8);
    assert_eq!(target(branch + 4), start.wrapping_add(call));
    assert_eq!(target(branch + 8), PLACE.wrapping_add(16));
    // auipc ra, addi ra, ra
    let link = start
        .wrapping_add(call)
        .wrapping_offset(insn::immediate_u(word(&out, call)) as isize)
        .wrapping_offset(isize::from(insn::immediate_i(word(&out, call + 4))));
    assert_eq!(link, PLACE.wrapping_add(6));
    assert_eq!(target(call + 8), PLACE.wrapping_add(2 + 16));
}

#[test]
fn direct_jumps_have_targets() {
    assert_eq!(branch_target(&JAL.to_le_bytes(), PLACE), Some(PLACE.wrapping_add(16)));
    assert_eq!(branch_target(&C_BEQZ.to_le_bytes(), PLACE), Some(PLACE.wrapping_add(16)));
    assert_eq!(branch_target(&ADD.to_le_bytes(), PLACE), None);
    assert_eq!(branch_target(&[0x6f], PLACE), None);
}
