use super::*;
use crate::testing::Bytes;
use probe_core::CodeAddr;
use probe_core::arch::Text;
use rstest::rstest;
use std::cell::Cell;
use std::vec::Vec;

const AT: usize = 0x10_0000;

/// The bytes of instructions, as they lie in memory.
fn bytes(insns: &[u32]) -> Vec<u8> {
    let halves = |word: &u32| word.to_le_bytes().into_iter().take(insn::len_bytes(*word).into());
    insns.iter().flat_map(halves).collect()
}

/// The decision about the instruction `index` of the function `insns`.
fn decode_at(insns: &[u32], index: usize) -> Result<Decoded<Plan>, Refusal> {
    let text = bytes(insns);
    let at = CodeAddr::new(AT + bytes(&insns[..index]).len());
    let function = Some((CodeAddr::new(AT), CodeAddr::new(AT + text.len())));
    decode(&Site { at, function, text: &Bytes::new(AT, &text) })
}

fn code_at(insns: &[u32], index: usize) -> &'static str {
    decode_at(insns, index).map_or_else(|refusal| refusal.code, |_| "ok")
}

const NOP: u32 = 0x0000_0013;
const C_NOP: u32 = 0x0001;
const C_ADD: u32 = 0x952e;
const RET: u32 = 0x8082;
/// `lr.w a0, (a1)`, `sc.w a0, a2, (a1)`.
const LR: u32 = 0x1005_a52f;
const SC: u32 = 0x18c5_a52f;
const INSIDE: &str = "riscv64.reservation_region";

/// `bnez a0, offset`, of four bytes.
const fn bnez(offset: i32) -> u32 {
    let bits = offset as u32;
    let high = insn::field(bits, 12, 1) << 31 | insn::field(bits, 5, 6) << 25;
    high | insn::field(bits, 1, 4) << 8 | insn::field(bits, 11, 1) << 7 | 0x0005_1063
}

/// `j offset`, of four bytes.
fn j(offset: isize) -> u32 {
    insn::jump(offset).expect("in reach")
}

#[test]
fn a_loop_is_refused_from_lr_to_sc() {
    let insns = [C_NOP, LR, C_ADD, SC, bnez(-10), NOP, RET];
    let codes: Vec<_> = (0..insns.len()).map(|index| code_at(&insns, index)).collect();
    assert_eq!(codes[0], "ok");
    assert_eq!(codes[1..4], ["riscv64.reservation", INSIDE, "riscv64.reservation"]);
    // The branch back comes after the store: nothing is held there.
    assert_eq!(codes[4..], ["ok"; 3]);
}

#[test]
fn a_compare_and_swap_loop_is_refused_where_the_store_may_follow() {
    // 1: lr; bne 2f; sc; bnez 1b; 2: ret
    let insns = [LR, bnez(12), SC, bnez(-12), RET];
    assert_eq!(code_at(&insns, 1), INSIDE);
    for outside in [3, 4] {
        assert_eq!(code_at(&insns, outside), "ok", "{outside}");
    }
}

#[test]
fn a_region_is_followed_through_branches_in_both_directions() {
    // The load is behind its store in the text.
    let insns = [j(14), C_NOP, SC, RET, NOP, LR, NOP, j(-24), NOP];
    let at = |index: usize| bytes(&insns[..index]).len() as isize;
    let insns = [insns[0], C_NOP, SC, RET, NOP, LR, NOP, j(at(1) - at(7)), NOP];
    for (index, code) in [(0, "ok"), (1, INSIDE), (3, "ok"), (4, "ok"), (6, INSIDE), (7, INSIDE), (8, "ok")] {
        assert_eq!(code_at(&insns, index), code, "{index}");
    }
}

#[test]
fn what_ends_a_region_ends_it() {
    let ecall = 0x0000_0073;
    assert_eq!(code_at(&[LR, ecall, NOP, SC], 2), "ok");
    assert_eq!(code_at(&[LR, RET, NOP, SC], 2), "ok");
    assert_eq!(code_at(&[LR, NOP, NOP, RET], 2), "ok", "no store follows");
    assert_eq!(code_at(&[NOP, C_NOP, SC, RET], 1), "ok", "no load precedes");
    let (jal_ra, jalr_ra) = (0x0800_00ef, 0x9502);
    assert_eq!(code_at(&[LR, jal_ra, NOP, SC], 2), INSIDE, "a call returns");
    assert_eq!(code_at(&[LR, jalr_ra, NOP, SC], 2), INSIDE, "a call returns");
}

#[test]
fn the_window_is_128_bytes_to_either_side() {
    let place_after = |count: usize| {
        let mut insns = std::vec![NOP; 100];
        insns[0] = LR;
        insns[count + 10] = SC;
        code_at(&insns, count)
    };
    assert_eq!(place_after(32), INSIDE);
    assert_eq!(place_after(33), "ok");
}

#[test]
fn a_region_does_not_leave_its_function() {
    let text = Bytes::new(AT, &bytes(&[LR, NOP, SC]));
    let site = |function| Site { at: CodeAddr::new(AT + 4), function, text: &text };
    let own = Some((CodeAddr::new(AT + 4), CodeAddr::new(AT + 8)));
    assert!(decode(&site(own)).is_ok());
    assert!(decode(&site(None)).is_err(), "without a symbol all of the text counts");
}

/// The second half of `lui a0, 0x5a52f` and what follows it look like LR; where boundaries are known they are
/// not taken for it.
#[test]
fn instructions_start_where_those_before_them_end() {
    let lui_whose_end_looks_like_lr = 0xa52f_0537;
    let insns = [lui_whose_end_looks_like_lr, 0x1005, NOP, SC];
    assert_eq!(code_at(&insns, 2), "ok");
    let text = Bytes::new(AT, &bytes(&insns));
    let unknown = decode(&Site { at: CodeAddr::new(AT + 6), function: None, text: &text });
    assert_eq!(unknown.map_err(|refusal| refusal.code), Err(INSIDE), "every halfword may be a start");
}

/// Text that counts how often it is read.
struct Counted {
    text: Bytes,
    reads: Cell<usize>,
}

impl Text for Counted {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        self.text.read(at, out)
    }
}

/// Ten thousand probes on one function of as many instructions read each of them once, not ten thousand
/// times.
#[test]
fn a_place_far_from_lr_and_sc_does_not_walk_its_function() {
    const COUNT: usize = 10_000;
    let mut insns = std::vec![NOP; COUNT];
    let text = |insns: &[u32]| Counted { text: Bytes::new(AT, &bytes(insns)), reads: Cell::new(0) };
    let reads_at = |text: &Counted, index: usize| {
        let function = Some((CodeAddr::new(AT), CodeAddr::new(AT + COUNT * 4)));
        text.reads.set(0);
        let decided = decode(&Site { at: CodeAddr::new(AT + index * 4), function, text });
        (decided.map(|_| text.reads.get()).map_err(|refusal| refusal.code), text.reads.get())
    };
    for index in [0, COUNT / 2, COUNT - 1] {
        let (decided, reads) = reads_at(&text(&insns), index);
        assert!(decided.is_ok() && reads < 10, "{decided:?}, {reads} reads at {index}");
    }
    // Near a pair it has to.
    insns[COUNT - 3] = LR;
    insns[COUNT - 1] = SC;
    let text = text(&insns);
    assert_eq!(reads_at(&text, COUNT - 2).0, Err(INSIDE));
    assert!(reads_at(&text, COUNT - 4).1 > COUNT / 2);
    assert!(reads_at(&text, 0).1 < 10);
}

#[test]
fn text_may_begin_and_end_anywhere() {
    let text = Bytes::new(AT, &bytes(&[C_NOP]));
    let whole = Some((CodeAddr::new(0), CodeAddr::new(AT * 2)));
    assert!(decode(&Site { at: CodeAddr::new(AT), function: whole, text: &text }).is_ok());
    let text = Bytes::new(AT, &bytes(&[LR, NOP, SC]));
    let inside = decode(&Site { at: CodeAddr::new(AT + 4), function: None, text: &text });
    assert_eq!(inside.unwrap_err().code, INSIDE);
    let beyond = decode(&Site { at: CodeAddr::new(AT + 12), function: None, text: &text });
    assert_eq!(beyond.unwrap_err().code, "riscv64.unreadable");
    let text = Bytes::new(AT, &bytes(&[NOP])[..2]);
    let half = decode(&Site { at: CodeAddr::new(AT), function: None, text: &text });
    assert_eq!(half.unwrap_err().code, "riscv64.unreadable");
}

/// REG_6: and neither instruction without the other.
#[test]
fn reg_6_the_way_out_of_a_signals_handler_is_refused() {
    // li a7, 139; ecall; li a7, 138.
    let [li, ecall] = insn::SIGNAL_RETURN;
    let other_li = 0x08a0_0893;
    for at in [0, 1] {
        assert_eq!(code_at(&[li, ecall], at), "riscv64.signal_return");
        for other in [[li, NOP], [NOP, ecall], [other_li, ecall], [ecall, li]] {
            assert_eq!(code_at(&other, at), "ok", "{other:08x?}");
        }
    }
}

#[test]
fn an_odd_address_is_no_instruction() {
    let text = Bytes::new(AT, &bytes(&[NOP, NOP]));
    let refusal = decode(&Site { at: CodeAddr::new(AT + 1), function: None, text: &text }).unwrap_err();
    assert_eq!((refusal.errno, refusal.code), (probe_core::error::Errno::EILSEQ, "riscv64.misaligned"));
}

#[test]
fn lengths_are_two_and_four_and_no_more() {
    assert_eq!(decode_at(&[C_NOP, NOP], 0).map(|decoded| decoded.len_bytes), Ok(2));
    assert_eq!(decode_at(&[C_NOP, NOP], 1).map(|decoded| decoded.len_bytes), Ok(4));
    assert_eq!(code_at(&[0x1f, NOP], 0), "riscv64.unallocated", "six bytes");
}

#[rstest]
#[case::lpad(0x0000_0017, 4)]
#[case::lpad_1(0x0000_1017, 4)]
#[case::auipc_a0(0x0000_0517, 0)]
#[case::c_nop(0x0001, 0)]
fn the_entry_is_past_a_landing_pad(#[case] first: u32, #[case] offset: usize) {
    assert_eq!(entry_offset(&first.to_le_bytes()), offset);
    assert_eq!(entry_offset(&first.to_le_bytes()[..1]), 0);
}

/// Hundreds of rows of text, minutes under Miri; what they exercise is the code of the tests above, without
/// `unsafe`.
#[cfg(not(miri))]
mod table {
    use super::*;
    use std::collections::BTreeSet;
    use std::string::String;

    /// A row of `tests/vectors/riscv64.txt`.
    struct Vector {
        word: u32,
        asm: &'static str,
        plan: &'static str,
    }

    fn vectors() -> impl Iterator<Item = Vector> {
        let lines = include_str!("../../../tests/vectors/riscv64.txt").lines();
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| {
            let mut columns = line.split('|').map(str::trim);
            let mut column = || columns.next().expect("four columns");
            let bytes = column().split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte"));
            let bytes: Vec<u8> = bytes.collect();
            let word = insn::word_at(&bytes).expect("an instruction");
            assert_eq!(bytes.len(), usize::from(insn::len_bytes(word)), "{line}");
            Vector { word, asm: column(), plan: column() }
        })
    }

    /// The decision about `word` as the vectors spell it.
    fn decision(word: u32) -> String {
        match classify(word) {
            Ok((_, Method::Simulate)) => "simulate".into(),
            Ok((_, Method::Boost)) => "boost".into(),
            Ok((_, Method::Step)) => "step".into(),
            Err(refusal) => std::format!("refuse {}", refusal.code),
        }
    }

    #[test]
    fn every_vector_is_decided_as_its_row_says() {
        let wrong: Vec<_> = vectors()
            .filter(|vector| decision(vector.word) != vector.plan)
            .map(|vector| std::format!("{:08x} {}: {}", vector.word, vector.asm, decision(vector.word)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(vectors().count() > 400);
    }

    /// The distances that the text of a row names, as `.+0x10` or the upper immediate of AUIPC.
    #[test]
    fn every_distance_is_the_one_that_objdump_prints() {
        let mut seen = 0;
        for vector in vectors().filter(|vector| vector.plan == "simulate") {
            let hex = |text: &str| i64::from_str_radix(text.trim_start_matches("0x"), 16).expect(text);
            let last = vector.asm.rsplit(['.', ',', ' ']).next().expect("an operand");
            let want = match last.split_at(1) {
                ("+", distance) => hex(distance),
                ("-", distance) if !vector.asm.contains('(') => -hex(distance),
                _ if vector.asm.starts_with("auipc") => i64::from((hex(last) << 12) as i32),
                _ => continue,
            };
            let got = match classify(vector.word).expect("simulated").0 {
                Plan::Address { offset, .. } | Plan::Jump { offset, .. } => i64::from(offset),
                Plan::Branch { offset, .. } => i64::from(offset),
                plan => panic!("{}: {plan:?}", vector.asm),
            };
            assert_eq!(got, want, "{}", vector.asm);
            seen += 1;
        }
        assert!(seen > 30, "{seen}");
    }

    #[test]
    fn every_refusal_has_a_vector_or_a_test_above() {
        let codes: BTreeSet<_> =
            vectors().filter_map(|vector| vector.plan.strip_prefix("refuse riscv64.")).collect();
        let want = [
            "breakpoint",
            "exception_return",
            "landing_pad",
            "reservation",
            "system_register",
            "unallocated",
            "undefined",
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
        let words: Vec<_> = vectors().map(|vector| vector.word).collect();
        let classes = classes();
        assert!(classes.len() > 25, "{} classes", classes.len());
        let missing: Vec<_> = classes
            .iter()
            .filter(|(_, mask, value)| !words.iter().any(|word| word & mask == *value))
            .map(|(name, ..)| *name)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// A change of one bit of a refused or special word must not make it something that runs in a slot
    /// unnoticed.
    #[test]
    fn the_system_space_is_an_allow_list() {
        let mut run = [0u32; 2];
        for low in (0..1u32 << 25).step_by(7) {
            run[usize::from(classify(low << 7 | 0x73).is_err())] += 1;
        }
        assert!(run[1] > 20 * run[0], "{run:?}");
    }

    /// In 65,536 halfwords each quadrant's reserved ones are refused, and every jump is simulated.
    #[test]
    fn every_compressed_instruction_is_decided() {
        let mut counts = [0u32; 3];
        for word in (0..=0xffff_u32).filter(|word| word & 0b11 != 0b11) {
            counts[match classify(word) {
                Ok((_, Method::Simulate)) => 0,
                Ok(_) => 1,
                Err(_) => 2,
            }] += 1;
        }
        // c.j 2048, c.beqz and c.bnez 4096, c.jr and c.jalr 31 each, c.nop 1.
        assert_eq!(counts[0], 2048 + 4096 + 62 + 1);
        assert_eq!(counts.iter().sum::<u32>(), 3 << 14);
        assert!(counts[2] < 3000, "{counts:?}");
    }
}
