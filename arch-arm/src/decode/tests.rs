use super::*;
use crate::testing::Bytes;
use probe_core::arch::Text;
use rstest::rstest;
use std::vec::Vec;

const AT: usize = 0x10_0000;

/// The bytes of instructions, as they lie in memory.
fn bytes(set: Set, insns: &[u32]) -> Vec<u8> {
    let mut all = Vec::new();
    for &word in insns {
        match (set, insn::len_bytes(set, word)) {
            (Set::A32, _) => all.extend(word.to_le_bytes()),
            (Set::T32, 2) => all.extend((word as u16).to_le_bytes()),
            (Set::T32, _) => {
                all.extend(((word >> 16) as u16).to_le_bytes());
                all.extend((word as u16).to_le_bytes());
            }
        }
    }
    all
}

/// Bytes whose addresses may say a set.
struct Code(Bytes);

impl Text for Code {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        Text::read(&self.0, CodeAddr::new(at.as_usize() & !1), out)
    }
}

fn code(set: Set, insns: &[u32]) -> Code {
    Code(Bytes::new(AT, &bytes(set, insns)))
}

/// The address `offset` bytes into the code.
fn at(set: Set, offset: usize) -> CodeAddr {
    CodeAddr::new(AT + offset + usize::from(set == Set::T32))
}

/// The decision about the instruction `index` of the function `insns`, or of text that no function covers.
fn decode_in(set: Set, insns: &[u32], index: usize, is_function: bool) -> Result<Decoded<Plan>, Refusal> {
    let end = at(set, bytes(set, insns).len());
    let function = is_function.then_some((at(set, 0), end));
    let place = at(set, bytes(set, &insns[..index]).len());
    decode(&Site { at: place, function, text: &code(set, insns) })
}

fn code_at(set: Set, insns: &[u32], index: usize) -> &'static str {
    decode_in(set, insns, index, true).map_or_else(|refusal| refusal.code, |_| "ok")
}

const NOP: u32 = 0xe320_f000;
const T_NOP: u32 = 0xbf00;
const T_NOP_W: u32 = 0xf3af_8000;
/// `add r0, r1, r2` of A32; `adds r0, r1, r2`, `add.w r0, r1, r2`.
const ADD: u32 = 0xe081_0002;
const T_ADD: u32 = 0x1888;
const T_ADD_W: u32 = 0xeb01_0002;
/// `bx lr`.
const RETURN: u32 = 0xe12f_ff1e;
const T_RETURN: u32 = 0x4770;
/// `ldrex r0, [r1]`, `strex r0, r2, [r1]`.
const LDREX: u32 = 0xe191_0f9f;
const STREX: u32 = 0xe181_0f92;
const T_LDREX: u32 = 0xe851_0f00;
const T_STREX: u32 = 0xe841_2000;
const INSIDE: &str = "arm.reservation_region";

/// `bne` over `offset` bytes, of A32.
const fn bne(offset: i32) -> u32 {
    0x1a00_0000 | insn::field((offset - 8).cast_unsigned(), 2, 24)
}

/// `bne.n` over `offset` bytes, of T32.
const fn t_bne(offset: i32) -> u32 {
    0xd100 | insn::field((offset - 4).cast_unsigned(), 1, 8)
}

#[test]
fn a_loop_is_refused_from_ldrex_to_strex() {
    let insns = [NOP, LDREX, ADD, STREX, bne(-12), NOP, RETURN];
    let codes: Vec<_> = (0..insns.len()).map(|index| code_at(Set::A32, &insns, index)).collect();
    assert_eq!(codes, ["ok", "arm.reservation", INSIDE, "arm.reservation", "ok", "ok", "ok"]);
    let insns = [T_NOP, T_LDREX, T_ADD, T_NOP_W, T_STREX, t_bne(-14), T_NOP, T_RETURN];
    let codes: Vec<_> = (0..insns.len()).map(|index| code_at(Set::T32, &insns, index)).collect();
    assert_eq!(codes, ["ok", "arm.reservation", INSIDE, INSIDE, "arm.reservation", "ok", "ok", "ok"]);
}

#[test]
fn a_compare_and_swap_loop_is_refused_where_the_store_may_follow() {
    // 1: ldrex; bne 2f; strex; bne 1b; 2: bx lr
    let insns = [LDREX, bne(12), STREX, bne(-12), RETURN];
    assert_eq!(code_at(Set::A32, &insns, 1), INSIDE);
    assert_eq!(code_at(Set::A32, &insns, 3), "ok");
    assert_eq!(code_at(Set::A32, &insns, 4), "ok");
}

#[test]
fn what_ends_a_region_ends_it() {
    let (svc, clrex, bl) = (0xef00_0000, 0xf57f_f01f, 0xeb00_0040);
    assert_eq!(code_at(Set::A32, &[LDREX, svc, ADD, STREX], 2), "ok");
    assert_eq!(code_at(Set::A32, &[LDREX, clrex, ADD, STREX], 2), "ok");
    assert_eq!(code_at(Set::A32, &[LDREX, RETURN, ADD, STREX], 2), "ok");
    assert_eq!(code_at(Set::A32, &[LDREX, 0x012f_ff1e, ADD, STREX], 2), INSIDE, "bxeq lr may go on");
    assert_eq!(code_at(Set::A32, &[LDREX, ADD, ADD, RETURN], 2), "ok", "no store follows");
    assert_eq!(code_at(Set::A32, &[ADD, ADD, STREX, RETURN], 1), "ok", "no load precedes");
    assert_eq!(code_at(Set::A32, &[LDREX, bl, ADD, STREX], 2), INSIDE, "a call returns");
    assert_eq!(code_at(Set::T32, &[T_LDREX, T_RETURN, T_ADD, T_STREX], 2), INSIDE, "it may be in a block");
}

#[test]
fn a_region_does_not_leave_its_function() {
    let text = code(Set::A32, &[LDREX, ADD, STREX]);
    let site = |function| Site { at: at(Set::A32, 4), function, text: &text };
    assert!(decode(&site(Some((at(Set::A32, 4), at(Set::A32, 8))))).is_ok());
    assert_eq!(decode(&site(None)).unwrap_err().code, INSIDE, "without a symbol all of the text counts");
}

/// ITE EQ before three instructions: two of them are in the block.
#[test]
fn an_it_block_has_as_many_instructions_as_its_mask_says() {
    let insns = [T_NOP, 0xbf0c, T_ADD, T_ADD_W, T_ADD, T_RETURN];
    let plan_of = |index: usize| decode_in(Set::T32, &insns, index, true).expect("not refused");
    assert_eq!(plan_of(1).plan, Plan::If { state: 0x0c });
    for (index, is_inside) in [(2, true), (3, true), (4, false)] {
        let want = if is_inside { Method::Step } else { Method::Boost };
        let got = plan_of(index);
        assert_eq!((got.plan, got.method), (Plan::OutOfLine { may_be_in_it: is_inside }, want), "{index}");
    }
}

/// 0xbf0c is `ite eq`, and here the second half of a load; where boundaries are known it begins no block.
#[test]
fn what_only_looks_like_it_begins_no_block_where_boundaries_are_known() {
    // ldr.w fp, [r0, #3852]
    let load = [0xf8d0_bf0c, T_ADD];
    assert_eq!(decode_in(Set::T32, &load, 1, true).expect("ok").method, Method::Boost);
    assert_eq!(decode_in(Set::T32, &load, 1, false).expect("ok").method, Method::Step);
}

/// REG_6: constants are loaded by word, pair, halfword and floating-point loads.
#[rstest]
#[case::a32(Set::A32, 0xe59f_0000, 2)]
#[case::a32_pair(Set::A32, 0xe1cf_00d0, 3)]
#[case::a32_half(Set::A32, 0xe1df_00b0, 2)]
#[case::a32_float(Set::A32, 0xed9f_0a00, 2)]
#[case::a32_double(Set::A32, 0xed9f_0b00, 3)]
#[case::t32(Set::T32, 0x4800, 3)]
#[case::t32_wide(Set::T32, 0xf8df_0000, 2)]
fn reg_6_what_an_instruction_of_the_function_loads_is_no_instruction(
    #[case] set: Set,
    #[case] load: u32,
    #[case] last: usize,
) {
    let add = if set == Set::A32 { ADD } else { T_ADD };
    let insns = [load, add, add, add, add, add];
    let first = if load == 0xf8df_0000 { 1 } else { 2 };
    for index in 1..insns.len() {
        let want = if (first..=last).contains(&index) { "arm.constant" } else { "ok" };
        assert_eq!(code_at(set, &insns, index), want, "{index}");
    }
    assert!(decode_in(set, &insns, first, false).is_ok(), "without a symbol it cannot be told");
}

/// Where the core's walk finds instructions, but for those that are data, and what it steps over.
fn walked(insns: &[u32]) -> (Vec<usize>, Vec<(usize, usize)>) {
    let text = code(Set::T32, insns);
    let all = bytes(Set::T32, insns);
    let function = Some((at(Set::T32, 0), at(Set::T32, all.len())));
    let (mut found, mut behind, mut offset) = (Vec::new(), Vec::new(), 0);
    while offset < all.len() {
        let site = Site { at: at(Set::T32, offset), function, text: &text };
        if !data::is_at(&site) {
            found.push(offset);
        }
        let Some(word) = insn::word_at(Set::T32, &all[offset..]) else { break };
        let len = usize::from(insn::len_bytes(Set::T32, word));
        let data = len_behind(&site, len);
        behind.extend((data != 0).then_some((offset, data)));
        offset += len + data;
    }
    (found, behind)
}

/// REG_4: the upper half of a constant, or a table's end, would be the beginning of a longer instruction.
#[test]
fn reg_4_a_walk_steps_over_constants_and_tables() {
    // ldr r0, [pc, #4]; b over the constant; two that nobody reaches; 0xffff1234
    let constant = [0x4801, 0xe003, T_NOP, T_NOP, 0x1234, 0xffff, T_ADD, T_RETURN];
    assert_eq!(walked(&constant), ([0, 2, 4, 6, 12, 14].into(), [(8, 2)].into()));
    // ldr.w r0, [pc, #4]; b over the constant
    let constant = [0xf8df_0004, 0xe002, T_NOP, 0x1234, 0xffff, T_ADD, T_RETURN];
    assert_eq!(walked(&constant), ([0, 4, 6, 12, 14].into(), [(8, 2)].into()));
    // tbb [pc, r0]; tbh [pc, r0, lsl #1]
    let table = [0xe8df_f000, 0x0302, 0xf803, T_ADD, T_RETURN];
    assert_eq!(walked(&table), ([0, 8, 10].into(), [(0, 4)].into()));
    let table = [0xe8df_f010, 2, 0xf003, T_ADD, T_RETURN];
    assert_eq!(walked(&table), ([0, 8, 10].into(), [(0, 4)].into()));
    let text = code(Set::T32, &table);
    let within =
        Site { at: at(Set::T32, 6), function: Some((at(Set::T32, 0), at(Set::T32, 12))), text: &text };
    assert!(data::is_at(&within), "a place in a table, boundary or not");
    // Entries that lead behind the text, and none.
    assert_eq!(walked(&[0xe8df_f010, 0xf800]).1, []);
    assert_eq!(walked(&[0xe8df_f000]).1, []);
}

/// What an instruction's second half only looks like loads nothing: `ldr r0, [pc, #4]`.
#[test]
fn a_half_that_looks_like_a_load_loads_nothing() {
    let insns = [0xf8d1_4801, T_ADD, T_ADD, T_ADD, T_ADD, T_RETURN];
    assert_eq!(walked(&insns), ([0, 4, 6, 8, 10, 12].into(), [].into()));
}

/// A bit for each word ahead: those behind are forgotten before another word has their bits. A place behind
/// one is looked at, as the second half of a load of its own looks like another load.
#[test]
fn what_was_loaded_long_ago_is_not_mistaken_for_an_instruction() {
    let mut insns = std::vec![0x4801, 0xe003, T_NOP, T_NOP, 0x1234, 0xffff];
    insns.resize(8194 / 2, T_ADD);
    // ldr.w r4, [r1, #2049] at 8194; the word at 8200 has the constant's bit; bl at 8202.
    insns.extend([0xf8d1_4801, T_ADD, T_ADD, 0xf000_f800, T_ADD, T_RETURN]);
    let (found, behind) = walked(&insns);
    assert_eq!(behind, [(8, 2)]);
    assert_eq!(found.len(), insns.len() - 2);
}

#[test]
fn an_a32_place_is_in_no_block() {
    let decoded = decode_in(Set::A32, &[0xbf0c_bf0c, ADD], 1, true).expect("ok");
    assert_eq!((decoded.method, decoded.len_bytes), (Method::Boost, 4));
}

#[test]
fn the_address_says_the_set() {
    let text = code(Set::A32, &[ADD, ADD]);
    let decided = |at: usize| {
        decode(&Site { at: CodeAddr::new(at), function: None, text: &text }).map(|decoded| decoded.len_bytes)
    };
    assert_eq!(decided(AT), Ok(4));
    assert_eq!(decided(AT + 1), Ok(2), "movs r2, r0");
    let refusal = decided(AT + 2).unwrap_err();
    assert_eq!((refusal.errno, refusal.code), (probe_core::error::Errno::EILSEQ, "arm.misaligned"));
    assert_eq!(decided(AT + 8).unwrap_err().code, "arm.unreadable");
}

#[test]
fn half_an_instruction_cannot_be_read() {
    let text = Code(Bytes::new(AT, &bytes(Set::T32, &[T_ADD_W])[..2]));
    let half = decode(&Site { at: at(Set::T32, 0), function: None, text: &text });
    assert_eq!(half.unwrap_err().code, "arm.unreadable");
}

#[test]
fn reg_6_the_kernels_helpers_are_refused() {
    let text = Bytes::new(0xffff_0fa0, &[0; 64]);
    let site = Site { at: CodeAddr::new(0xffff_0fc0), function: None, text: &text };
    assert_eq!(decode(&site).unwrap_err().code, "arm.kernel_helper");
}

/// REG_6: and neither instruction without the other.
#[rstest]
#[case::a32(Set::A32, 0xe3a0_70ad, 0xef00_0000, NOP)]
#[case::a32_without_siginfo(Set::A32, 0xe3a0_7077, 0xef00_0000, NOP)]
#[case::old_convention(Set::A32, 0xe3a0_70ad, 0xef90_00ad, NOP)]
#[case::t32(Set::T32, 0x27ad, 0xdf00, T_NOP)]
#[case::t32_without_siginfo(Set::T32, 0x2777, 0xdf00, T_NOP)]
fn reg_6_the_way_out_of_a_signals_handler_is_refused(
    #[case] set: Set,
    #[case] number: u32,
    #[case] call: u32,
    #[case] nop: u32,
) {
    for index in [0, 1] {
        assert_eq!(code_at(set, &[number, call], index), "arm.signal_return");
        for other in [[number, nop], [nop, call], [call, number]] {
            assert_eq!(code_at(set, &other, index), "ok", "{other:x?}");
        }
    }
}

#[rstest]
#[case(Set::A32, 0xe12f_be7f, true)]
#[case(Set::A32, 0xe120_0070, true)]
#[case(Set::A32, 0x07f0_01f8, true)]
#[case(Set::A32, 0xe590_be7f, false)]
#[case(Set::T32, 0xbe7f, true)]
#[case(Set::T32, 0xde01, true)]
#[case(Set::T32, 0xf7f0_a000, true)]
#[case(Set::T32, 0xdefe, false)]
fn breakpoints_are_known_in_their_set(#[case] set: Set, #[case] word: u32, #[case] is: bool) {
    assert_eq!(is_breakpoint(set, &bytes(set, &[word])), is);
}

/// Hundreds of rows of text, minutes under Miri; what they exercise is the code of the tests above, without
/// `unsafe`.
#[cfg(not(miri))]
mod table {
    use super::*;
    use std::collections::BTreeSet;
    use std::string::String;

    /// A row of `tests/vectors/arm.txt`.
    struct Vector {
        set: Set,
        word: u32,
        asm: &'static str,
        plan: &'static str,
    }

    fn vectors() -> impl Iterator<Item = Vector> {
        let lines = include_str!("../../../tests/vectors/arm.txt").lines();
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let mut columns = line.split('|').map(str::trim);
            let mut column = || columns.next().expect("four columns");
            let bytes = column().split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
            let bytes: Vec<u8> = bytes.collect();
            let (asm, plan) = (column(), column());
            let set = if column().starts_with("T32") { Set::T32 } else { Set::A32 };
            let word = insn::word_at(set, &bytes).expect("an instruction");
            assert_eq!(bytes.len(), usize::from(insn::len_bytes(set, word)), "{line}");
            Vector { set, word, asm, plan }
        })
    }

    /// The decision about `word` as the vectors spell it.
    fn decision(set: Set, word: u32) -> String {
        match classify(set, word) {
            Ok((_, Method::Simulate)) => "simulate".into(),
            Ok((_, Method::Boost)) => "boost".into(),
            Ok((_, Method::Step)) => "step".into(),
            Err(refusal) => std::format!("refuse {}", refusal.code),
        }
    }

    #[test]
    fn every_vector_is_decided_as_its_row_says() {
        let wrong: Vec<_> = vectors()
            .filter(|vector| decision(vector.set, vector.word) != vector.plan)
            .map(|vector| {
                let Vector { set, word, asm, .. } = vector;
                std::format!("{set:?} {word:08x} {asm}: {}", decision(set, word))
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(vectors().count() > 600);
    }

    /// The distances that the text of a row names, as `.+0x10`.
    #[test]
    fn every_distance_is_the_one_that_objdump_prints() {
        let mut seen = 0;
        for vector in vectors().filter(|vector| vector.plan == "simulate") {
            let Some((_, distance)) = vector.asm.rsplit_once('.') else { continue };
            let (sign, digits) = distance.split_at(1);
            let Ok(distance) = i64::from_str_radix(digits.trim_start_matches("0x"), 16) else { continue };
            let want = if sign == "-" { -distance } else { distance };
            let ahead = i64::from(vector.set.ahead());
            let got = match classify(vector.set, vector.word).expect("simulated").0 {
                Plan::Branch { offset, .. } => i64::from(offset) + ahead,
                Plan::CompareBranch { offset, .. } => i64::from(offset) + ahead,
                plan => panic!("{}: {plan:?}", vector.asm),
            };
            assert_eq!(got, want, "{}", vector.asm);
            seen += 1;
        }
        assert!(seen > 20, "{seen}");
    }

    #[test]
    fn every_refusal_has_a_vector_or_a_test_above() {
        let codes: BTreeSet<_> =
            vectors().filter_map(|vector| vector.plan.strip_prefix("refuse arm.")).collect();
        let want = [
            "breakpoint",
            "exception_return",
            "other_call",
            "processor_state",
            "reservation",
            "system_register",
            "unallocated",
            "undefined",
            "unpredictable",
        ];
        assert!(codes.into_iter().eq(want));
    }

    /// The classes of `insn.rs`, as its text defines them: name, mask, value.
    fn classes() -> Vec<(&'static str, u32, u32)> {
        let number = |text: &str| {
            let digits = text.trim().trim_start_matches("0x").replace('_', "");
            u32::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("{text} is no number"))
        };
        let constants = include_str!("../insn.rs").split("const ");
        let definitions = constants.filter_map(|rest| rest.split_once(": Class = Class::new("));
        let definitions = definitions.map(|(name, rest)| {
            let (mask, value) = rest.split_once(')').expect("its arguments").0.split_once(',').expect("two");
            (name, number(mask), number(value))
        });
        definitions.collect()
    }

    #[test]
    fn every_class_has_a_vector() {
        let vectors: Vec<_> = vectors().map(|vector| (vector.set, vector.word)).collect();
        let classes = classes();
        assert!(classes.len() > 100, "{} classes", classes.len());
        let is_shown = |(name, mask, value): &(&str, u32, u32)| {
            let set = if name.starts_with("T_") { Set::T32 } else { Set::A32 };
            vectors.iter().any(|(other, word)| *other == set && word & mask == *value)
        };
        let missing: Vec<_> =
            classes.iter().filter(|class| !is_shown(class)).map(|(name, ..)| *name).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// In 59,392 halfwords (0xe800 on begins an instruction of four bytes) what names the program counter is
    /// simulated.
    #[test]
    fn every_t32_instruction_of_two_bytes_is_decided() {
        let mut counts = [0u32; 3];
        for word in 0..0xe800 {
            counts[match classify(Set::T32, word) {
                Ok((_, Method::Simulate)) => 0,
                Ok(_) => 1,
                Err(_) => 2,
            }] += 1;
        }
        let branches = 14 * 256 + 2048 + 16 + 15 + 1024;
        // add rd, pc; add pc, rm; mov rd, pc; mov pc, rm; pop with pc; IT of 14 conditions; al with one mask
        // each; nop.
        let others = 2048 + 2048 + 15 + 15 + 16 + 15 + 256 + 14 * 15 + 4 + 1;
        assert_eq!(counts[0], branches + others);
        assert_eq!(counts.iter().sum::<u32>(), 0xe800);
        assert!(counts[2] < 1700, "{counts:?}");
    }
}
