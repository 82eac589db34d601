use super::*;
use crate::testing::Bytes;
use rstest::rstest;

const AT: usize = 0x10_0000;

/// The decision about the word at `index` of the function `words`.
fn decode_at(words: &[u32], index: usize) -> Result<Decoded<Plan>, Refusal> {
    let text = Bytes::words(AT, words);
    let function = Some((CodeAddr::new(AT), CodeAddr::new(AT + words.len() * 4)));
    decode(&Site { at: CodeAddr::new(AT + index * 4), function, text: &text })
}

fn code_at(words: &[u32], index: usize) -> &'static str {
    decode_at(words, index).map_or_else(|refusal| refusal.code, |_| "ok")
}

const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;
/// `ldxr w0, [x1]`, `stxr w2, w0, [x1]`, `cbnz w2, .-8`, `clrex`.
const LDXR: u32 = 0x885f_7c20;
const STXR: u32 = 0x8802_7c20;
const CBNZ_BACK_2: u32 = 0x35ff_ffc2;
const CLREX: u32 = 0xd503_3f5f;
const ADD: u32 = 0x1100_0400;

#[test]
fn an_exclusive_loop_is_refused_from_the_load_to_the_store() {
    let words = [NOP, LDXR, ADD, STXR, CBNZ_BACK_2, NOP, RET];
    let codes: std::vec::Vec<_> = (0..words.len()).map(|i| code_at(&words, i)).collect();
    let inside = ["aarch64.exclusive", "aarch64.exclusive_region", "aarch64.exclusive"];
    assert_eq!(codes[0], "ok");
    assert_eq!(codes[1..4], inside);
    // The branch back comes after the store: the region is closed.
    assert_eq!(codes[4..], ["ok"; 3]);
}

#[test]
fn a_compare_and_swap_loop_is_open_until_clrex() {
    // 1: ldxr; cmp; b.ne 2f; stxr; cbnz 1b; ret; 2: clrex; ret
    let cmp = 0x6b03_001f;
    let b_ne_4 = 0x5400_0081;
    let cbnz_back_4 = 0x35ff_ff82;
    let words = [LDXR, cmp, b_ne_4, STXR, cbnz_back_4, RET, CLREX, RET];
    assert_eq!(code_at(&words, 1), "aarch64.exclusive_region");
    assert_eq!(code_at(&words, 2), "aarch64.exclusive_region");
    for outside in [4, 5, 6, 7] {
        assert_eq!(code_at(&words, outside), "ok", "{outside}");
    }
}

#[test]
fn a_region_is_followed_through_branches_in_both_directions() {
    // 0: b 3f | 1: nop 2: stxr 3': ret … the load is behind its store in the text.
    let b = |words: i32| 0x1400_0000 | words as u32 & 0x3ff_ffff;
    let words = [b(4), NOP, STXR, RET, LDXR, NOP, b(-5), NOP];
    assert_eq!(code_at(&words, 0), "ok");
    assert_eq!(code_at(&words, 1), "aarch64.exclusive_region");
    assert_eq!(code_at(&words, 5), "aarch64.exclusive_region");
    assert_eq!(code_at(&words, 6), "aarch64.exclusive_region");
    assert_eq!(code_at(&words, 3), "ok");
    assert_eq!(code_at(&words, 7), "ok");
}

#[test]
fn what_ends_a_region_ends_it() {
    let svc = 0xd400_0001;
    assert_eq!(code_at(&[LDXR, CLREX, NOP, STXR], 2), "ok");
    assert_eq!(code_at(&[LDXR, svc, NOP, STXR], 2), "ok");
    assert_eq!(code_at(&[LDXR, RET, NOP, STXR], 2), "ok");
    assert_eq!(code_at(&[LDXR, NOP, NOP, RET], 2), "ok", "no store follows");
    assert_eq!(code_at(&[NOP, NOP, STXR, RET], 1), "ok", "no load precedes");
    let bl = 0x9400_0100;
    assert_eq!(code_at(&[LDXR, bl, NOP, STXR], 2), "aarch64.exclusive_region", "a call returns");
}

#[test]
fn the_window_is_64_instructions_to_either_side() {
    let place_after = |distance: usize| {
        let mut words = std::vec![NOP; 200];
        words[0] = LDXR;
        words[distance + 10] = STXR;
        code_at(&words, distance)
    };
    assert_eq!(place_after(64), "aarch64.exclusive_region");
    assert_eq!(place_after(65), "ok");
}

#[test]
fn a_region_does_not_leave_its_function() {
    let text = Bytes::words(AT, &[LDXR, NOP, STXR]);
    let site = |function| Site { at: CodeAddr::new(AT + 4), function, text: &text };
    let own = Some((CodeAddr::new(AT + 4), CodeAddr::new(AT + 8)));
    assert!(decode(&site(own)).is_ok());
    assert!(decode(&site(None)).is_err(), "without a symbol all of the text counts");
}

#[test]
fn text_may_begin_and_end_anywhere() {
    let text = Bytes::words(AT, &[NOP]);
    let whole = Some((CodeAddr::new(0), CodeAddr::new(AT * 2)));
    assert!(decode(&Site { at: CodeAddr::new(AT), function: whole, text: &text }).is_ok());
    let text = Bytes::words(AT, &[LDXR, NOP, STXR]);
    let inside = decode(&Site { at: CodeAddr::new(AT + 4), function: whole, text: &text });
    assert_eq!(inside.unwrap_err().code, "aarch64.exclusive_region");
    let beyond = decode(&Site { at: CodeAddr::new(AT + 12), function: whole, text: &text });
    assert_eq!(beyond.unwrap_err().code, "aarch64.unreadable");
}

/// REG_6: and neither word without the other.
#[test]
fn reg_6_the_way_out_of_a_signals_handler_is_refused() {
    // mov x8, #139; svc #0; mov x8, #138; svc #1.
    let [mov, svc] = insn::SIGNAL_RETURN;
    let (other_mov, other_svc) = (0xd280_1148, 0xd400_0021);
    for at in [0, 1] {
        assert_eq!(code_at(&[mov, svc], at), "aarch64.signal_return");
        for other in [[mov, NOP], [NOP, svc], [other_mov, svc], [mov, other_svc], [svc, mov]] {
            assert_eq!(code_at(&other, at), "ok", "{other:08x?}");
        }
    }
}

#[test]
fn a_misaligned_address_is_no_instruction() {
    let text = Bytes::words(AT, &[NOP, NOP]);
    let refusal = decode(&Site { at: CodeAddr::new(AT + 2), function: None, text: &text }).unwrap_err();
    assert_eq!((refusal.errno, refusal.code), (probe_core::error::Errno::EILSEQ, "aarch64.misaligned"));
}

#[rstest]
#[case::movprfx(0x0420_bc20, "aarch64.movprfx")]
#[case::movprfx_merging(0x0411_2020, "aarch64.movprfx")]
#[case::pacm(0xd503_24ff, "aarch64.pauth_lr")]
#[case::nop(NOP, "ok")]
fn the_second_half_of_a_pair_is_refused(#[case] first: u32, #[case] code: &str) {
    let words = [first, ADD];
    assert_eq!(code_at(&words, 1), code);
    let text = Bytes::words(AT, &words);
    let alone = Some((CodeAddr::new(AT + 4), CodeAddr::new(AT + 8)));
    let alone = decode(&Site { at: CodeAddr::new(AT + 4), function: alone, text: &text });
    assert!(alone.is_ok(), "the word before belongs to another function");
}

#[rstest]
#[case::bti_c(0xd503_245f, 4)]
#[case::bti_jc(0xd503_24df, 4)]
#[case::paciasp(0xd503_233f, 0)]
#[case::stp(0xa9bf_7bfd, 0)]
fn the_entry_is_past_a_landing_pad_and_before_the_signature(#[case] first: u32, #[case] offset: usize) {
    assert_eq!(entry_offset(&first.to_le_bytes()), offset);
    assert_eq!(entry_offset(&first.to_le_bytes()[..3]), 0);
}

#[rstest]
#[case::paciasp(&[0xd503_233f, NOP], 4)]
#[case::pacibsp(&[0xd503_237f, NOP], 4)]
#[case::bti_c(&[0xd503_245f, NOP], 4)]
#[case::bti_c_paciasp(&[0xd503_245f, 0xd503_233f], 8)]
#[case::paciasp_is_not_looked_for(&[NOP, 0xd503_233f], 0)]
#[case::paciaz_has_no_modifier_to_keep(&[0xd503_231f, NOP], 0)]
fn the_entry_ends_behind_the_signing(#[case] first: &[u32], #[case] end: usize) {
    let bytes: std::vec::Vec<u8> = first.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(entry_end(&bytes), end);
    assert_eq!(entry_end(&bytes[..3]), 0);
}

/// Hundreds of rows of text, minutes under Miri; what they exercise is the code of the tests above, without
/// `unsafe`.
#[cfg(not(miri))]
mod table {
    use super::*;

    /// A row of `tests/vectors/aarch64.txt`.
    struct Vector {
        word: u32,
        asm: &'static str,
        plan: &'static str,
    }

    fn vectors() -> impl Iterator<Item = Vector> {
        let lines = include_str!("../../../tests/vectors/aarch64.txt").lines();
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let mut columns = line.split('|').map(str::trim);
            let mut column = || columns.next().expect("four columns");
            let bytes = column().split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
            let bytes: std::vec::Vec<u8> = bytes.collect();
            assert_eq!(bytes.len(), 4, "{line}");
            Vector { word: insn::word_at(&bytes).unwrap(), asm: column(), plan: column() }
        })
    }

    /// The decision about `word` as the vectors spell it.
    fn decision(word: u32) -> std::string::String {
        match classify(word) {
            Ok((_, Method::Simulate)) => "simulate".into(),
            Ok((_, Method::Boost)) => "boost".into(),
            Ok((_, Method::Step)) => "step".into(),
            Err(refusal) => std::format!("refuse {}", refusal.code),
        }
    }

    #[test]
    fn every_vector_is_decided_as_its_row_says() {
        let wrong: std::vec::Vec<_> = vectors()
            .filter(|vector| decision(vector.word) != vector.plan)
            .map(|vector| std::format!("{:08x} {}: {}", vector.word, vector.asm, decision(vector.word)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(vectors().count() > 450);
    }

    #[test]
    fn every_refusal_has_a_vector_or_a_test_above() {
        let codes: std::collections::BTreeSet<_> =
            vectors().filter_map(|vector| vector.plan.strip_prefix("refuse aarch64.")).collect();
        let want = [
            "breakpoint",
            "debug_state",
            "exception_return",
            "exclusive",
            "hint",
            "hypercall",
            "mops",
            "movprfx",
            "pauth_lr",
            "pstate",
            "system_operation",
            "system_register",
            "transaction",
            "unallocated",
            "undefined",
        ];
        assert!(codes.into_iter().eq(want));
    }

    #[test]
    fn every_row_of_the_system_tables_has_a_vector() {
        let words: std::vec::Vec<_> = vectors().map(|vector| vector.word).collect();
        assert_eq!(system::rows_without_a_vector(&words), [0u16; 0]);
    }

    /// The classes of `insn.rs`, as its text defines them: name, mask, value.
    fn classes() -> std::vec::Vec<(&'static str, u32, u32)> {
        let number = |text: &str| {
            let digits = text.trim().trim_start_matches("0x").replace('_', "");
            u32::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("{text} is no number"))
        };
        let source = include_str!("../insn.rs");
        let constants = source.split("const ").filter_map(|rest| rest.split_once(": Class ="));
        let definitions = constants.map(|(name, rest)| {
            let (constructor, rest) = rest.trim_start().split_once('(').expect("a constructor");
            let (arguments, _) = rest.split_once(')').expect("its arguments");
            match (constructor, arguments.split_once(',')) {
                ("Class::new", Some((mask, value))) => {
                    (name, number(mask), number(value.trim().trim_end_matches(',')))
                }
                ("Class::exactly", None) => (name, u32::MAX, number(arguments)),
                _ => panic!("{name} is defined in an unknown way"),
            }
        });
        definitions.collect()
    }

    #[test]
    fn every_class_has_a_vector() {
        let words: std::vec::Vec<_> = vectors().map(|vector| vector.word).collect();
        let classes = classes();
        assert!(classes.len() > 45, "{} classes", classes.len());
        let missing: std::vec::Vec<_> = classes
            .iter()
            .filter(|(_, mask, value)| !words.iter().any(|word| word & mask == *value))
            .map(|(name, ..)| *name)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// A change of one bit of a refused or special word must not make it something that runs in a slot
    /// unnoticed: each class of the branch, exception and system space is decided by all of its fixed bits.
    #[test]
    fn the_branch_exception_and_system_space_is_an_allow_list() {
        let mut run = [0u32; 3];
        for word in (0..1u32 << 26).step_by(61).map(|low| 0xd400_0000 | low & 0x03ff_ffff) {
            match classify(word) {
                Ok((Plan::OutOfLine | Plan::SystemCall, _)) => run[0] += 1,
                Ok(_) => run[1] += 1,
                Err(_) => run[2] += 1,
            }
        }
        assert!(run[2] > 20 * (run[0] + run[1]), "{run:?}");
    }
}
