//! `tests/vectors/ppc32.txt` held against decode, and against every row of the tables.

use crate::{Plan, Ppc32, insn};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Decoded, Method, Site, Tail, Text};
use probe_core::error::Refusal;
use std::format;
use std::string::String;
use std::vec::Vec;

/// One line of the file.
struct Vector {
    word: u32,
    asm: &'static str,
    plan: &'static str,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("../../tests/vectors/ppc32.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split('|').map(str::trim);
            let word = u32::from_str_radix(fields.next().unwrap(), 16).unwrap();
            Vector { word, asm: fields.next().unwrap(), plan: fields.next().unwrap() }
        })
        .collect()
}

/// Text that starts at an address, with nothing around it.
struct At {
    start: usize,
    bytes: Vec<u8>,
}

impl At {
    fn new(start: usize, words: &[u32]) -> Self {
        Self { start, bytes: words.iter().flat_map(|word| word.to_be_bytes()).collect() }
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

fn decode(text: &At, at: usize) -> Result<Decoded<Plan>, Refusal> {
    Ppc32::decode(&Site { at: CodeAddr::new(at), function: None, text })
}

fn text_of(decoded: &Result<Decoded<Plan>, Refusal>) -> String {
    match decoded {
        Ok(decoded) => match decoded.method {
            Method::Simulate => "simulate".into(),
            Method::Boost => "boost".into(),
            Method::Step => "step".into(),
        },
        Err(refusal) => format!("refuse {}", refusal.code),
    }
}

#[test]
fn every_vector_has_its_plan() {
    // Under Miri, which takes minutes for all of them, what the rows have in common is enough.
    for Vector { word, asm, plan } in vectors().into_iter().step_by(if cfg!(miri) { 29 } else { 1 }) {
        let text = At::new(PLACE, &[word]);
        let decoded = decode(&text, PLACE);
        assert_eq!(text_of(&decoded), plan, "{word:08x} {asm}");
        assert_eq!(Ppc32::insn_len(CodeAddr::new(PLACE), &text.bytes), Some(4), "{asm}");
        if let Ok(decoded) = decoded {
            assert_eq!(decoded.len_bytes, 4, "{asm}");
            assert_eq!(Ppc32::is_system_call(&decoded.plan), asm.starts_with("sc"), "{asm}");
            if decoded.method != Method::Simulate {
                check_slot(&decoded.plan, &text, asm);
            }
        }
    }
}

/// The slot holds the instruction, the tail where `tail` says, traps behind; both tails are one store apart.
fn check_slot(plan: &Plan, text: &At, asm: &str) {
    let (place, slot) = (CodeAddr::new(PLACE), CodeAddr::new(SLOT));
    let fill = |tail| {
        let mut out = [0; 24];
        Ppc32::fill_slot(plan, &text.bytes, place, slot, tail, &mut out).unwrap();
        out
    };
    let with_trap = fill(Tail::Breakpoint);
    assert!(with_trap[4..].chunks(4).all(|word| word == Ppc32::BREAKPOINT), "{asm}");
    assert_eq!(with_trap[..4], text.bytes, "{asm}");
    let patch = Ppc32::tail(plan, 4, place, slot, Tail::Breakpoint).unwrap();
    assert_eq!((patch.offset, patch.len_bytes, &patch.bytes[..]), (4, 4, Ppc32::BREAKPOINT), "{asm}");
    match Ppc32::tail(plan, 4, place, slot, Tail::Jump) {
        Some(patch) => {
            let mut patched = with_trap;
            patched[4..8].copy_from_slice(&patch.bytes);
            assert_eq!(patched, fill(Tail::Jump), "{asm}");
            // b -0x1000000: from slot + 4 to place + 4.
            assert_eq!(u32::from_be_bytes(patch.bytes), 0x4b00_0000, "{asm}");
        }
        None => assert_eq!(plan.method(), Method::Step, "{asm}"),
    }
}

/// REG_9: every row is covered, so that none can be wrong unseen.
#[test]
#[cfg(not(miri))]
fn every_table_row_has_a_vector() {
    let vectors = vectors();
    let covers = |what: &str, matches: &dyn Fn(u32) -> bool| {
        assert!(vectors.iter().any(|vector| matches(vector.word)), "no vector for {what}");
    };
    for row in &insn::PRIMARY {
        covers(row.name, &|word| insn::opcd(word) == u32::from(row.code));
    }
    let extended = |op, row: &insn::Row| {
        covers(row.name, &|word| insn::opcd(word) == op && insn::xo(word) == u32::from(row.code));
    };
    insn::XL.iter().for_each(|row| extended(19, row));
    insn::X.iter().chain(&insn::X_32).for_each(|row| extended(31, row));
    for row in &insn::SYSTEM_CALL {
        covers(row.name, &|word| insn::opcd(word) == 17 && word & 3 == u32::from(row.code));
    }
    for row in insn::SPRS.iter().chain(&insn::SPRS_32) {
        covers(row.name, &|word| {
            insn::opcd(word) == 31 && insn::xo(word) == 339 && insn::spr(word) == u32::from(row.code)
        });
    }
}

/// A row behind its double would never be found.
#[test]
fn no_code_is_listed_twice() {
    let tables = [(&insn::X[..], &insn::X_32[..]), (&insn::SPRS, &insn::SPRS_32)];
    for (table, also) in tables {
        let rows: Vec<_> = table.iter().chain(also).collect();
        for (index, row) in rows.iter().enumerate() {
            assert!(!rows[..index].iter().any(|other| other.code == row.code), "{}", row.name);
        }
    }
}

fn code_at(words: &[u32], index: usize) -> String {
    let text = At::new(PLACE, words);
    let function = Some((CodeAddr::new(PLACE), CodeAddr::new(PLACE + words.len() * 4)));
    text_of(&Ppc32::decode(&Site { at: CodeAddr::new(PLACE + index * 4), function, text: &text }))
}

const NOP: u32 = 0x6000_0000;
const LWARX: u32 = 0x7d20_1828;
const STWCX: u32 = 0x7d20_192d;
const BNE_BACK_12: u32 = 0x4082_fff4;
const BLR: u32 = 0x4e80_0020;

/// HIT_11: only what lies between the two is refused. The regions' other forms are in arch-ppc64's tests.
#[test]
fn what_lies_between_a_reservation_and_its_store_is_refused() {
    let code = [NOP, LWARX, NOP, STWCX, BNE_BACK_12, NOP, BLR];
    let plans: Vec<_> = (0..7).map(|index| code_at(&code, index)).collect();
    let (reservation, region) = ("refuse ppc32.reservation", "refuse ppc32.reservation-region");
    let want = ["simulate", reservation, region, reservation, "simulate", "simulate", "simulate"];
    assert_eq!(plans, want);
}

/// What looks like a prefix or a TOC pointer's reload is neither: the words around do not matter.
#[test]
fn words_of_64_bit_programs_mean_nothing_here() {
    assert_eq!(code_at(&[0x0410_0000, NOP], 1), "simulate");
    assert_eq!(code_at(&[0x4800_0101, 0xe841_0018, BLR], 1), "boost");
}

/// REG_4: a misaligned address, text that ends.
#[test]
fn reg_4_places_that_are_no_instruction_are_refused() {
    let text = At::new(PLACE, &[NOP]);
    let code = |at| decode(&text, at).map(|decoded| decoded.len_bytes).map_err(|refusal| refusal.code);
    assert_eq!(code(PLACE), Ok(4));
    assert_eq!(code(PLACE + 4), Err("ppc32.truncated"));
    assert_eq!(code(PLACE + 2), Err("ppc32.misaligned"));
    assert_eq!(Ppc32::insn_len(CodeAddr::new(PLACE), &[1, 2, 3]), None);
}

/// REG_7: every debugger's breakpoint, and no conditional trap.
#[test]
fn reg_7_breakpoints_of_others_are_recognised() {
    let is = |word: u32| Ppc32::is_breakpoint(CodeAddr::new(PLACE), &word.to_be_bytes());
    for word in [0x7fe0_0008, 0x7d82_1008, 0x0fe0_0000, 0x7c83_1808] {
        assert!(is(word), "{word:#x}");
    }
    // tweq 3,4; twnei 3,0; nop; add.
    for word in [0x7c83_2008, 0x0f03_0000, NOP, 0x7c64_2a14] {
        assert!(!is(word), "{word:#x}");
    }
    assert!(!Ppc32::is_breakpoint(CodeAddr::new(PLACE), &[0x7f, 0xe0]));
}

/// Registers of 32 bits in the simulation of 64: addresses and CTR wrap.
#[test]
fn branches_wrap_at_32_bits() {
    struct No;
    // SAFETY: it has no effect and fails always.
    unsafe impl probe_core::arch::Memory for No {
        fn read(&self, addr: usize, _: &mut [u8]) -> Result<(), probe_core::arch::MemFault> {
            Err(probe_core::arch::MemFault { addr, access: probe_core::arch::Access::Read })
        }
        fn write(&self, addr: usize, _: &[u8]) -> Result<(), probe_core::arch::MemFault> {
            Err(probe_core::arch::MemFault { addr, access: probe_core::arch::Access::Write })
        }
    }
    let run = |place: usize, word: u32, ctr| {
        let mut regs = crate::PtRegs { ctr, link: 0x2003, ..Default::default() };
        let text = At::new(place, &[word]);
        let plan = decode(&text, place).unwrap().plan;
        Ppc32::simulate(&plan, CodeAddr::new(place), &mut regs, &No).unwrap();
        (regs.nip, regs.link, regs.ctr)
    };
    // bl .+8; bla -0x100; bdnz .+8 with CTR 0 and 1; blrl.
    assert_eq!(run(0xffff_fffc, 0x4800_0009, 7), (4, 0, 7));
    assert_eq!(run(PLACE, 0x4bff_ff03, 7), (0xffff_ff00, PLACE as u32 + 4, 7));
    assert_eq!(run(PLACE, 0x4200_0008, 0), (PLACE as u32 + 8, 0x2003, u32::MAX));
    assert_eq!(run(PLACE, 0x4200_0008, 1), (PLACE as u32 + 4, 0x2003, 0));
    assert_eq!(run(PLACE, BLR | 1, 7), (0x2000, PLACE as u32 + 4, 7));
}
