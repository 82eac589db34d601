use super::*;
use crate::testing::Bytes;
use rstest::rstest;
use std::vec::Vec;

const A32: CodeAddr = CodeAddr::new(0x40_1000);
/// An instruction at the second half of a word.
const T32: CodeAddr = CodeAddr::new(0x40_1003);
const CALLS: DetourCalls =
    DetourCalls { trampoline: CodeAddr::new(0x7000_1000), word: 0x1234, post_word: None };

/// Instructions as they lie in memory.
fn text(set: Set, words: &[u32]) -> Vec<u8> {
    let mut image = Image { set, bytes: [0; LEN], len: 0, start: CodeAddr::new(0) };
    image.code(words).expect("there is room");
    image.bytes[..image.len].to_vec()
}

fn displaced(place: CodeAddr, words: &[u32]) -> Result<Displaced, Refusal> {
    let bytes = text(Set::of(place), words);
    let text = Bytes::new(place.as_usize(), &bytes);
    let function = Some((place, place.wrapping_add(bytes.len())));
    displace(&Site { at: place, function, text: &text })
}

/// The detour of what is displaced, at the lowest entry from 0x30_0000 on.
fn filled(place: CodeAddr, words: &[u32], calls: &DetourCalls) -> (DetourLayout, CodeAddr, [u8; LEN]) {
    let displaced = displaced(place, words).expect("it has a copy");
    let entry = entry(place, &displaced, CodeAddr::new(0x30_0000)).expect("in reach");
    let mut out = [0; LEN];
    let bytes = text(Set::of(place), words);
    let layout = fill(&displaced, &bytes, place, entry, calls, &mut out).expect("in reach");
    (layout, entry, out)
}

/// The copies of one instruction, as words.
fn copies(place: CodeAddr, word: u32) -> Result<Vec<u32>, Refusal> {
    let at = CodeAddr::new(0x30_0000 | place.as_usize() & 1);
    let (plan, _) = decode::classify(Set::of(place), word)?;
    copy(plan, word, place, at).map(|copied| copied.words().to_vec())
}

fn starts(displaced: &Displaced) -> Vec<usize> {
    displaced.starts().collect()
}

const ADD_A32: u32 = 0xe280_0001;
const ADDS: u32 = 0x3001;
const MOVS: u32 = 0x2001;
const ADD_W: u32 = 0xf100_0001;

#[test]
fn as_many_instructions_are_displaced_as_the_branch_covers() {
    let of = |place, words: &[u32]| displaced(place, words).map(|found| (found.len_bytes, starts(&found)));
    assert_eq!(of(A32, &[ADD_A32, ADD_A32]), Ok((4, std::vec![0])));
    assert_eq!(of(T32, &[ADD_W, ADDS]), Ok((4, std::vec![0])));
    assert_eq!(of(T32, &[ADDS, MOVS]), Ok((4, std::vec![0, 2])));
    assert_eq!(of(T32, &[ADDS, ADD_W]), Ok((6, std::vec![0, 2])));
}

/// `bx lr` and `pop {pc}` first; half an instruction; `ldrex` and `tbb` second; `it` first, and what is in a
/// block.
#[rstest]
#[case::after_a_return(T32, &[0x4770, ADDS])]
#[case::after_a_pop(T32, &[0xbd00, ADDS])]
#[case::cut_off(T32, &[ADDS])]
#[case::reserves(T32, &[ADDS, 0xe850_0f00])]
#[case::a_table(T32, &[ADDS, 0xe8df_f001])]
#[case::begins_a_block(T32, &[0xbf08, ADDS])]
#[case::calls_the_other_set(A32, &[0xfa00_0000])]
#[case::adds_the_counter_to_itself(A32, &[0xe08f_0000])]
#[case::calls_its_link(A32, &[0xe12f_ff3e])]
#[case::a_literal_for_sp(A32, &[0xe59f_d000])]
#[case::stores_the_counter(A32, &[0xe92d_8001])]
#[case::extends_the_counter(A32, &[0xe1a0_406f])]
fn what_has_no_copy_keeps_its_breakpoint(#[case] place: CodeAddr, #[case] words: &[u32]) {
    assert!(displaced(place, words).is_err());
}

/// A branch in an IT block would be conditional.
#[test]
fn what_may_be_in_a_block_keeps_its_breakpoint() {
    let bytes = text(Set::T32, &[0xbf08, ADD_W]);
    let text = Bytes::new(T32.as_usize() - 2, &bytes);
    assert_eq!(displace(&Site { at: T32, function: None, text: &text }), Err(NOT_COPIED));
}

#[test]
fn the_next_function_is_not_displaced() {
    let bytes = text(Set::T32, &[ADDS, MOVS]);
    let text = Bytes::new(T32.as_usize(), &bytes);
    let site = Site { at: T32, function: Some((T32, T32.wrapping_add(2))), text: &text };
    assert_eq!(displace(&site), Err(NOT_COPIED));
}

/// A system call, or a call by register, that does not return, with the function's constant right behind it:
/// `ldr r3, [pc, #4]; nop; svc #0` or `blx r3` in the second half of a word.
#[rstest]
#[case::system_call(0xdf00)]
#[case::call(0x4798)]
fn a_constant_is_not_displaced(#[case] last: u32) {
    let start = T32.wrapping_offset(-4);
    let bytes = text(Set::T32, &[0x4b01, 0xbf00, last, ADDS, MOVS]);
    let text = Bytes::new(start.as_usize(), &bytes);
    let end = start.wrapping_add(bytes.len());
    let site = Site { at: start.wrapping_add(4), function: Some((start, end)), text: &text };
    assert_eq!(displace(&site), Err(NOT_COPIED));
}

/// Only in a known function can be told what is data.
#[test]
fn what_stands_behind_it_is_displaced_in_a_known_function_only() {
    let bytes = text(Set::T32, &[ADDS, MOVS]);
    let text = Bytes::new(T32.as_usize(), &bytes);
    assert_eq!(displace(&Site { at: T32, function: None, text: &text }), Err(NOT_COPIED));
}

/// Whoever comes to a second displaced instruction finds a breakpoint there (SAFE_3).
#[test]
fn every_displaced_start_is_a_breakpoint() {
    let displaced = displaced(T32, &[ADDS, MOVS]).unwrap();
    let (mut from, mut found) = (CodeAddr::new(0), 0);
    while let Some(entry) = entry(T32, &displaced, from) {
        let [a, b, c, d, ..] = jump(T32, entry);
        assert_eq!([c, d], insn::BREAKPOINT_T32.to_le_bytes());
        let word = u32::from_le_bytes([c, d, a, b]);
        assert!(insn::T_WIDE_B.matches(word));
        let target = T32.wrapping_add(4).wrapping_offset(insn::wide_offset(word) as isize);
        assert_eq!(target.as_usize() & !1, entry.as_usize());
        from = entry.wrapping_add(1);
        found += 1;
    }
    // From 4 MiB below, or where memory begins, to 4 MiB above.
    assert_eq!(found, 2048);
}

#[rstest]
#[case::a32(A32, ADD_A32, 1 << 25)]
#[case::t32(T32, ADD_W, 1 << 24)]
fn a_branch_out_of_reach_has_no_entry(#[case] place: CodeAddr, #[case] word: u32, #[case] reach: usize) {
    let place = place.wrapping_add(1 << 28);
    let displaced = displaced(place, &[word]).unwrap();
    assert_eq!(entry(place, &displaced, place.wrapping_add(reach)), None);
    let lowest = entry(place, &displaced, CodeAddr::new(0)).unwrap();
    assert!(branch(Set::of(place), place, lowest).is_ok());
    assert!(place.as_usize() - lowest.as_usize() > reach - 3 * LEN);
    assert!(lowest.as_usize().is_multiple_of(4));
}

#[rstest]
#[case::a32(A32, &[ADD_A32], &[50])]
#[case::t32(T32, &[ADDS, MOVS], &[42, 44])]
fn a_detour_calls_copies_and_goes_back(#[case] place: CodeAddr, #[case] words: &[u32], #[case] found: &[u8]) {
    let (layout, entry, out) = filled(place, words, &CALLS);
    let start = entry.as_usize() - HEADER_LEN;
    assert_eq!(layout.copies[..words.len()], *found);
    let bytes = text(Set::of(place), words);
    let at = usize::from(found[0]);
    assert_eq!(out[at..at + bytes.len()], bytes);
    let back = usize::from(layout.back);
    let next = place.wrapping_add(bytes.len());
    let from = CodeAddr::new(start + back + (place.as_usize() & 1));
    let set = Set::of(place);
    assert_eq!(out[back..back + 4], text(set, &[branch(set, from, next).unwrap()]));
    assert_eq!(usize::from(layout.len_bytes), back + 4);
    // The literals lie at a multiple of 4.
    let literals = start.next_multiple_of(4) - start;
    let literal = |at: usize| u32::from_le_bytes(out[literals + at..][..4].try_into().unwrap());
    assert_eq!((literal(0), literal(4)), (0x7000_1000, 0x1234));
}

#[test]
fn the_second_call_is_behind_the_first_copy() {
    let calls = DetourCalls { post_word: Some(0x5678), ..CALLS };
    let (layout, _, _) = filled(T32, &[ADDS, MOVS], &calls);
    assert_eq!((layout.copies[..2].to_vec(), layout.back), (std::vec![42, 68], 70));
    let (layout, _, _) = filled(A32, &[ADD_A32], &calls);
    assert_eq!((layout.copies[0], layout.back), (50, 86));
}

/// Branches lead where the original ones lead, calls link to behind the original, what is addressed by the
/// program counter is a number: by objdump, at 0x30_0000.
#[rstest]
#[case::beq(A32, 0x0a00_0002, &[0x0a04_0402])]
#[case::blne(A32, 0x1b00_0002, &[0x1301_e004, 0x1340_e040, 0x1a04_0400])]
#[case::blx_r3(A32, 0xe12f_ff33, &[0xe301_e004, 0xe340_e040, 0xe12f_ff13])]
#[case::ldr_literal(A32, 0xe59f_3010, &[0xe301_3018, 0xe340_3040, 0xe593_3000])]
#[case::ldrbne_literal(A32, 0x15df_3010, &[0x1301_3018, 0x1340_3040, 0x15d3_3000])]
#[case::adr_forward(A32, 0xe28f_1004, &[0xe301_100c, 0xe340_1040])]
#[case::adr_back(A32, 0xe24f_1004, &[0xe301_1004, 0xe340_1040])]
#[case::mov_from_pc(A32, 0xe1a0_400f, &[0xe301_4008, 0xe340_4040])]
#[case::mov_pc_lr(A32, 0xe1a0_f00e, &[0xe1a0_f00e])]
#[case::pop_pc(A32, 0xe8bd_8010, &[0xe8bd_8010])]
#[case::t_beq(T32, 0xd002, &[0xd101, 0xf101_b802])]
#[case::t_b(T32, 0xe002, &[0xf101_b803])]
#[case::t_bl(T32, 0xf000_f802, &[0xf241_0e07, 0xf2c0_0e40, 0xf100_bfff])]
#[case::t_cbz(T32, 0xb118, &[0xb908, 0xf101_b803])]
#[case::t_cbnz(T32, 0xb918, &[0xb108, 0xf101_b803])]
#[case::t_blx_r3(T32, 0x4798, &[0xf241_0e05, 0xf2c0_0e40, 0x4718])]
#[case::t_ldr_literal(T32, 0x4a01, &[0xf241_0208, 0xf2c0_0240, 0xf8d2_2000])]
#[case::t_adr(T32, 0xa101, &[0xf241_0108, 0xf2c0_0140])]
#[case::t_ldrh_literal(T32, 0xf8bf_3010, &[0xf241_0314, 0xf2c0_0340, 0xf8b3_3000])]
#[case::t_mov_from_pc(T32, 0x467b, &[0xf241_0306, 0xf2c0_0340])]
fn copies_do_what_the_original_does(#[case] place: CodeAddr, #[case] word: u32, #[case] want: &[u32]) {
    assert_eq!(copies(place, word).as_deref(), Ok(want));
}
