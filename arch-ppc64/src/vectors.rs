//! `tests/vectors/ppc64.txt` held against decode, in both byte orders, and against every row of the tables.

use crate::{Big, ElfV1, ElfV2, Endian, Little, Plan, Ppc64, insn};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method, Site, Tail, Text};
use probe_core::error::Refusal;
use std::format;
use std::string::String;
use std::vec::Vec;

/// One line of the file.
struct Vector {
    words: Vec<u32>,
    asm: &'static str,
    plan: &'static str,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../tests/vectors/ppc64.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split('|').map(str::trim);
            let words = fields.next().unwrap().split(' ');
            let words = words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect();
            Vector { words, asm: fields.next().unwrap(), plan: fields.next().unwrap() }
        })
        .collect()
}

/// Text that starts at an address, with nothing around it.
pub(crate) struct At {
    pub(crate) start: usize,
    pub(crate) bytes: Vec<u8>,
}

impl At {
    pub(crate) fn new<E: Endian>(start: usize, words: &[u32]) -> Self {
        Self { start, bytes: words.iter().flat_map(|word| E::bytes(*word)).collect() }
    }
}

impl Text for At {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let Some(from) = at.as_usize().checked_sub(self.start) else { return 0 };
        let bytes = self.bytes.get(from..).unwrap_or_default();
        let len = bytes.len().min(out.len());
        out[..len].copy_from_slice(&bytes[..len]);
        len
    }
}

const PLACE: usize = 0x1000_0000;
const SLOT: usize = 0x1100_0000;

fn decode<A: Arch>(text: &At, at: usize) -> Result<probe_core::arch::Decoded<A::Plan>, Refusal> {
    A::decode(&Site { at: CodeAddr::new(at), function: None, text })
}

fn text_of(decoded: &Result<probe_core::arch::Decoded<Plan>, Refusal>) -> String {
    match decoded {
        Ok(decoded) => match decoded.method {
            Method::Simulate => "simulate".into(),
            Method::Boost => "boost".into(),
            Method::Step => "step".into(),
        },
        Err(refusal) => format!("refuse {}", refusal.code),
    }
}

fn check<E: Endian, A: crate::Abi>(vectors: &[Vector]) {
    for Vector { words, asm, plan } in vectors {
        let text = At::new::<E>(PLACE, words);
        let decoded = decode::<Ppc64<E, A>>(&text, PLACE);
        assert_eq!(text_of(&decoded), *plan, "{words:08x?} {asm}");
        assert_eq!(
            Ppc64::<E, A>::insn_len(CodeAddr::new(0x1000), &text.bytes),
            Some(words.len() * 4),
            "{asm}"
        );
        if let Ok(decoded) = decoded {
            assert_eq!(usize::from(decoded.len_bytes), words.len() * 4, "{asm}");
            if decoded.method != Method::Simulate {
                check_slot::<E, A>(&decoded.plan, &text, asm);
            }
        }
    }
}

/// The slot holds the instruction, the tail where `tail` says, traps behind; both tails are one store apart.
fn check_slot<E: Endian, A: crate::Abi>(plan: &Plan, text: &At, asm: &str) {
    let (place, slot) = (CodeAddr::new(PLACE), CodeAddr::new(SLOT));
    let len = text.bytes.len();
    let fill = |tail| {
        let mut out = [0; 24];
        Ppc64::<E, A>::fill_slot(plan, &text.bytes, place, slot, tail, &mut out).unwrap();
        out
    };
    let with_trap = fill(Tail::Breakpoint);
    assert!(with_trap[len..].chunks(4).all(|word| word == E::BREAKPOINT), "{asm}");
    if *plan == Plan::Copy {
        assert_eq!(with_trap[..len], text.bytes, "{asm}");
    }
    let patch = Ppc64::<E, A>::tail(plan, len, place, slot, Tail::Breakpoint).unwrap();
    assert_eq!((usize::from(patch.offset), patch.len_bytes, &patch.bytes), (len, 4, E::BREAKPOINT), "{asm}");
    match Ppc64::<E, A>::tail(plan, len, place, slot, Tail::Jump) {
        Some(patch) => {
            let mut patched = with_trap;
            patched[len..len + 4].copy_from_slice(&patch.bytes);
            assert_eq!(patched, fill(Tail::Jump), "{asm}");
            // b -0x1000000: from slot + len to place + len.
            assert_eq!(E::word(patch.bytes), 0x4b00_0000, "{asm}");
        }
        None => assert_eq!(plan.method(), Method::Step, "{asm}"),
    }
}

#[test]
fn every_vector_has_its_plan_in_both_byte_orders_and_abis() {
    // Under Miri, which takes minutes for all of them, what the rows have in common is enough.
    let vectors: Vec<_> = vectors().into_iter().step_by(if cfg!(miri) { 29 } else { 1 }).collect();
    check::<Big, ElfV1>(&vectors);
    check::<Big, ElfV2>(&vectors);
    check::<Little, ElfV1>(&vectors);
    check::<Little, ElfV2>(&vectors);
}

/// REG_9: every row is covered, so that none can be wrong unseen.
#[test]
#[cfg(not(miri))]
fn every_table_row_has_a_vector() {
    let vectors = vectors();
    let covers = |what: &str, matches: &dyn Fn(&[u32]) -> bool| {
        assert!(vectors.iter().any(|vector| matches(&vector.words)), "no vector for {what}");
    };
    for row in &insn::PRIMARY {
        covers(&format!("opcode {} {}", row.code, row.name), &|words| {
            insn::opcd(words[0]) == u32::from(row.code)
        });
    }
    let extended = |op, row: &insn::Row| {
        covers(&format!("{op}/{} {}", row.code, row.name), &|words| {
            insn::opcd(words[0]) == op && insn::xo(words[0]) == u32::from(row.code)
        });
    };
    insn::XL.iter().for_each(|row| extended(19, row));
    insn::X.iter().for_each(|row| extended(31, row));
    for row in &insn::SYSTEM_CALL {
        covers(row.name, &|words| insn::opcd(words[0]) == 17 && words[0] & 3 == u32::from(row.code));
    }
    for row in &insn::SPRS {
        covers(row.name, &|words| {
            insn::opcd(words[0]) == 31
                && insn::xo(words[0]) == 339
                && insn::spr(words[0]) == u32::from(row.code)
        });
    }
    for row in &insn::PREFIXED {
        covers(row.name, &|words| {
            words.len() == 2
                && (words[0] >> 24 & 3) as u8 == row.kind
                && insn::opcd(words[1]) == u32::from(row.suffix)
        });
    }
}

/// The tables are in order and without doubles: a row behind its double would never be found.
#[test]
fn no_code_is_listed_twice() {
    for table in [&insn::PRIMARY[..], &insn::XL, &insn::X, &insn::SPRS] {
        for (index, row) in table.iter().enumerate() {
            assert!(!table[..index].iter().any(|other| other.code == row.code), "{}", row.name);
        }
    }
    assert!(insn::PRIMARY.iter().enumerate().all(|(index, row)| usize::from(row.code) == index));
}

fn code_at(start: usize, words: &[u32], index: usize) -> String {
    let text = At::new::<Big>(start, words);
    let end = start + words.len() * 4;
    let function = Some((CodeAddr::new(start), CodeAddr::new(end)));
    let site = Site { at: CodeAddr::new(start + index * 4), function, text: &text };
    text_of(&Ppc64::<Big, ElfV1>::decode(&site))
}

const NOP: u32 = 0x6000_0000;
const LWARX: u32 = 0x7d20_1828;
const STWCX: u32 = 0x7d20_192d;
/// `bne .+8`, `bne .-12`, `b .+12`, `bl .+0x100`, `blr`.
const BNE_8: u32 = 0x4082_0008;
const BNE_BACK_12: u32 = 0x4082_fff4;
const B_12: u32 = 0x4800_000c;
const BL: u32 = 0x4800_0101;
const BLR: u32 = 0x4e80_0020;

const REGION: &str = "refuse ppc64.reservation-region";

/// HIT_11: only what lies between the two is refused.
#[test]
fn what_lies_between_a_reservation_and_its_store_is_refused() {
    //           0    1      2    3      4            5    6
    let code = [NOP, LWARX, NOP, STWCX, BNE_BACK_12, NOP, BLR];
    let plans: Vec<_> = (0..7).map(|index| code_at(PLACE, &code, index)).collect();
    let reservation = "refuse ppc64.reservation";
    let want = ["simulate", reservation, REGION, reservation, "simulate", "simulate", "simulate"];
    assert_eq!(plans, want);
}

#[test]
fn a_region_is_followed_through_branches_and_calls() {
    // Compare and exchange with the failure path in the middle: it leaves the region.
    //           0      1       2     3    4      5
    let code = [LWARX, BNE_8 + 4, NOP, STWCX, NOP, BLR];
    assert_eq!(code_at(PLACE, &code, 1), REGION);
    assert_eq!(code_at(PLACE, &code, 2), REGION);
    assert_eq!(code_at(PLACE, &code, 4), "simulate");
    // The store stands before the load in memory: reached by a jump.
    //           0     1      2    3      4     5              6
    let code = [B_12, STWCX, BLR, LWARX, BL, 0x4bff_fff0, NOP];
    assert_eq!(code_at(PLACE, &code, 4), REGION, "a call in it");
    assert_eq!(code_at(PLACE, &code, 5), REGION, "the jump back");
    assert_eq!(code_at(PLACE, &code, 0), "simulate");
    assert_eq!(code_at(PLACE, &code, 6), "simulate");
}

#[test]
fn a_reservation_of_another_function_or_without_a_store_does_not_matter() {
    assert_eq!(code_at(PLACE, &[LWARX, NOP, BLR], 1), "simulate");
    assert_eq!(code_at(PLACE, &[NOP, STWCX, BLR], 0), "simulate");
    // Far apart, with a return between.
    let mut code = [NOP; 300];
    (code[0], code[2], code[299]) = (LWARX, BLR, STWCX);
    assert_eq!(code_at(PLACE, &code, 150), "simulate");
}

/// REG_4: the second word of a prefixed instruction, a misaligned address, text that ends.
#[test]
fn reg_4_places_that_are_no_instruction_are_refused() {
    let pld = [NOP, 0x0410_0000, 0xe480_0008, NOP];
    assert_eq!(code_at(PLACE, &pld, 1), "boost");
    assert_eq!(code_at(PLACE, &pld, 2), "refuse ppc64.suffix");
    assert_eq!(code_at(PLACE, &pld, 3), "simulate");
    let text = At::new::<Little>(PLACE, &pld[..2]);
    type Le = Ppc64<Little, ElfV2>;
    let code = |at| decode::<Le>(&text, at).map(|decoded| decoded.len_bytes).map_err(|refusal| refusal.code);
    assert_eq!(code(PLACE), Ok(4));
    assert_eq!(code(PLACE + 4), Err("ppc64.truncated"));
    assert_eq!(code(PLACE + 8), Err("ppc64.truncated"));
    assert_eq!(code(PLACE + 2), Err("ppc64.misaligned"));
    assert_eq!(Le::insn_len(CodeAddr::new(0x1000), &[1, 2, 3]), None);
}

/// REG_6: what unwinders look for at a return address stays readable, in both ABIs' forms, and nothing else
/// is refused for it.
#[test]
fn reg_6_the_toc_restore_behind_a_call_is_refused() {
    // bl, bla, bcl, blrl, bctrl, btarl.
    let calls = [BL, 0x4800_0103, 0x429f_0005, 0x4e80_0021, 0x4e80_0421, 0x4e80_0461];
    // b, bctr, a load, crorc with the last bit set.
    let others = [B_12, 0x4e80_0420, 0xe941_0019, 0x4c00_0343];
    for restore in [0xe841_0018, 0xe841_0028] {
        for call in calls {
            assert_eq!(code_at(PLACE, &[call, restore, BLR], 1), "refuse ppc64.toc-restore", "{call:#x}");
            assert_eq!(code_at(PLACE, &[call, NOP, restore], 2), "boost", "{call:#x}");
        }
        for other in others {
            assert_eq!(code_at(PLACE, &[other, restore, BLR], 1), "boost", "{other:#x}");
        }
        // Another function's call returns to the other function.
        let text = At::new::<Big>(PLACE - 4, &[BL, restore, BLR]);
        let function = Some((CodeAddr::new(PLACE), CodeAddr::new(PLACE + 8)));
        let site = Site { at: CodeAddr::new(PLACE), function, text: &text };
        assert_eq!(text_of(&Ppc64::<Big, ElfV1>::decode(&site)), "boost");
    }
    // ld r2,32(r1); ld r3,24(r1); std r2,24(r1).
    for word in [0xe841_0020, 0xe861_0018, 0xf841_0018] {
        assert_eq!(code_at(PLACE, &[BL, word], 1), "boost", "{word:#x}");
    }
}

#[test]
fn a_prefixed_instruction_across_64_bytes_is_refused() {
    let pld = [0x0410_0000, 0xe480_0008];
    assert_eq!(code_at(PLACE + 60, &pld, 0), "refuse ppc64.prefixed-crossing");
    assert_eq!(code_at(PLACE + 56, &pld, 0), "boost");
}

/// REG_7: every debugger's breakpoint, and no conditional trap.
#[test]
fn reg_7_breakpoints_of_others_are_recognised() {
    let is = |word: u32| Ppc64::<Little, ElfV2>::is_breakpoint(CodeAddr::new(0x1000), &word.to_le_bytes());
    for word in [0x7fe0_0008, 0x7d82_1008, 0x0fe0_0000, 0x0be0_0000, 0x7fe0_0088, 0x7c83_1808] {
        assert!(is(word), "{word:#x}");
    }
    // tweq 3,4; twnei 3,0; nop; add.
    for word in [0x7c83_2008, 0x0f03_0000, NOP, 0x7c64_2a14] {
        assert!(!is(word), "{word:#x}");
    }
    assert!(!Ppc64::<Big, ElfV1>::is_breakpoint(CodeAddr::new(0x1000), &[0x7f, 0xe0]));
}
