//! The decoder against capstone, over every word of a real C library's text.
//!
//! What is compared: which words are branches, where direct ones lead, which move LR, CTR or XER, which are
//! traps, system calls, reservations and no-ops. The library is `libc.so.6` of Debian's
//! `libc6-powerpc-cross`; without it that part is skipped and says so.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use capstone::arch::ArchOperand;
use capstone::arch::ppc::{ArchMode, PpcOperand};
use capstone::prelude::*;
use capstone::{Capstone, Endian as CapstoneEndian};
use probe_arch_ppc32::{Plan, Ppc32, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, Decoded, MemFault, Memory, Site, Text};
use probe_core::error::Refusal;
use std::collections::BTreeMap;

const LIBC: &str = "/usr/powerpc-linux-gnu/lib/libc.so.6";

/// The words of the section `.text` of an ELF32 file, and its address.
fn text_of(file: &[u8]) -> (usize, Vec<u32>) {
    let u32_at = |at: usize| u32::from_be_bytes(*file[at..].first_chunk().unwrap()) as usize;
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([file[at], file[at + 1]]));
    assert_eq!(file[..6], *b"\x7fELF\x01\x02");
    let (sections, size, count) = (u32_at(0x20), u16_at(0x2e), u16_at(0x30));
    let header = |index: usize| sections + index * size;
    let names = u32_at(header(u16_at(0x32)) + 0x10);
    let text = (0..count)
        .map(header)
        .find(|at| file[names + u32_at(*at)..].starts_with(b".text\0"))
        .expect("a section .text");
    let (offset, len) = (u32_at(text + 0x10), u32_at(text + 0x14));
    let words = file[offset..offset + len].as_chunks::<4>().0;
    (u32_at(text + 0xc), words.iter().map(|word| u32::from_be_bytes(*word)).collect())
}

struct Library {
    start: usize,
    bytes: Vec<u8>,
}

impl Text for Library {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let Some(from) = at.as_usize().checked_sub(self.start).and_then(|offset| self.bytes.get(offset..))
        else {
            return 0;
        };
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

struct NoMemory;

// SAFETY: it has no effect and fails always.
unsafe impl Memory for NoMemory {
    fn read(&self, addr: usize, _: &mut [u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Read })
    }
    fn write(&self, addr: usize, _: &[u8]) -> Result<(), MemFault> {
        Err(MemFault { addr, access: Access::Write })
    }
}

/// What an instruction is, as far as probing cares.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A direct branch and its target, from place 0x10000.
    Direct(u64),
    ToLink,
    ToCount,
    MoveSpecial,
    SystemCall,
    Trap,
    Reservation,
    Nop,
    Other,
}

const PLACE: usize = 0x1_0000;

fn ours(decoded: &Result<Decoded<Plan>, Refusal>) -> Kind {
    match decoded {
        Ok(decoded) => match decoded.plan {
            plan @ (Plan::B(_) | Plan::Bc(_)) => Kind::Direct(target(&plan)),
            Plan::Bclr(_) => Kind::ToLink,
            Plan::Bcctr(_) => Kind::ToCount,
            Plan::Mfspr(_) | Plan::Mtspr(_) => Kind::MoveSpecial,
            Plan::Sc => Kind::SystemCall,
            Plan::Nop => Kind::Nop,
            _ => Kind::Other,
        },
        Err(refusal) => match refusal.code {
            "ppc32.trap" => Kind::Trap,
            "ppc32.reservation" => Kind::Reservation,
            _ => Kind::Other,
        },
    }
}

/// Where a direct branch leads when it is taken: found by simulating it until it is.
fn target(plan: &Plan) -> u64 {
    for (ctr, ccr) in [(1, 0), (1, u32::MAX), (2, 0), (2, u32::MAX)] {
        let mut regs = PtRegs { ctr, ccr, ..PtRegs::default() };
        let place = CodeAddr::new(PLACE);
        Ppc32::simulate(plan, place, &mut regs, &NoMemory).expect("faults on nothing");
        if regs.nip != PLACE as u32 + 4 {
            return regs.nip.into();
        }
    }
    PLACE as u64 + 4
}

/// The same from capstone; `None` where it does not know the word.
fn theirs(capstone: &Capstone, word: u32) -> Option<Kind> {
    let bytes = word.to_be_bytes();
    let instructions = capstone.disasm_count(&bytes, PLACE as u64, 1).ok()?;
    let instruction = instructions.first()?;
    let name = instruction.mnemonic()?.trim_end_matches(['+', '-']);
    if matches!(name, "trap") || (name.starts_with("tw") || name.starts_with("td")) {
        return Some(Kind::Trap);
    }
    if matches!(name, "nop" | "xnop") {
        return Some(Kind::Nop);
    }
    if matches!(name, "sc") {
        return Some(Kind::SystemCall);
    }
    if matches!(name, "mflr" | "mtlr" | "mfctr" | "mtctr" | "mfxer") {
        return Some(Kind::MoveSpecial);
    }
    if name.ends_with("arx") || name.ends_with("cx.") {
        return Some(Kind::Reservation);
    }
    // bcdadd., bpermd, brd, … are no branches.
    let is_branch = name.starts_with('b') && !["bcd", "bp", "br"].iter().any(|other| name.starts_with(other));
    if !is_branch {
        return Some(Kind::Other);
    }
    let stem = name.trim_end_matches('l');
    if stem.ends_with("lr") {
        return Some(Kind::ToLink);
    }
    if stem.ends_with("ctr") {
        return Some(Kind::ToCount);
    }
    let detail = capstone.insn_detail(instruction).ok()?;
    let operands = detail.arch_detail().operands();
    let target = operands.iter().rev().find_map(|operand| match operand {
        ArchOperand::PpcOperand(PpcOperand::Imm(target)) => Some(u64::from(*target as u32)),
        _ => None,
    });
    target.map(Kind::Direct)
}

/// Data, and a conditional branch to itself before it is linked (`beq .`), which capstone 5 rejects.
fn is_known_gap(word: u32) -> bool {
    word >> 26 == 0 || word == 0x4182_0000
}

#[test]
fn libc_is_decided_as_capstone_sees_it() {
    let Ok(file) = std::fs::read(LIBC) else {
        println!("skipped: no {LIBC} (apt-get install libc6-powerpc-cross)");
        return;
    };
    let (_, mut words) = text_of(&file);
    words.sort_unstable();
    words.dedup();
    let capstone = Capstone::new()
        .ppc()
        .mode(ArchMode::Mode32)
        .endian(CapstoneEndian::Big)
        .detail(true)
        .build()
        .expect("capstone");
    let (mut wrong, mut gaps) = (Vec::new(), BTreeMap::new());
    for &word in &words {
        let Some(theirs) = theirs(&capstone, word) else {
            *gaps.entry(word >> 26).or_insert(0usize) += 1;
            if !is_known_gap(word) {
                wrong.push(format!("{word:#010x}: capstone does not know it"));
            }
            continue;
        };
        let text = Library { start: PLACE, bytes: word.to_be_bytes().into() };
        let site = Site { at: CodeAddr::new(PLACE), function: None, text: &text };
        let decoded = Ppc32::decode(&site);
        if ours(&decoded) != theirs {
            wrong.push(format!("{word:#010x}: {decoded:x?}, capstone {theirs:x?}"));
        }
    }
    println!("{}: {} distinct words, unknown to capstone by opcode: {gaps:?}", LIBC, words.len());
    assert!(words.len() > 30_000);
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
}

/// Every place of the library, with its surroundings: what is refused, and how much of it.
fn refusals() -> Option<(usize, BTreeMap<&'static str, usize>)> {
    let file = std::fs::read(LIBC).ok()?;
    let (start, words) = text_of(&file);
    let bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let library = Library { start, bytes };
    let mut refusals = BTreeMap::new();
    for index in 0..words.len() {
        let at = CodeAddr::new(library.start + index * 4);
        if let Err(refusal) = Ppc32::decode(&Site { at, function: None, text: &library }) {
            *refusals.entry(refusal.code).or_insert(0) += 1;
        }
    }
    Some((words.len(), refusals))
}

#[test]
fn what_is_refused_in_libc_is_little_and_has_its_reasons() {
    let Some((words, refusals)) = refusals() else {
        println!("skipped: no cross libc");
        return;
    };
    println!("{words} words: {refusals:?}");
    let count = |code: &str| refusals.get(code).copied().unwrap_or(0);
    let regions = count("ppc32.reservation-region");
    assert!(count("ppc32.reservation") > 100, "{refusals:?}");
    // A region is a handful of instructions to each pair.
    assert!(regions > 0 && regions < 4 * count("ppc32.reservation"), "{refusals:?}");
    // Beside data (attn, unallocated) nothing else to speak of.
    let data = count("ppc32.attn") + count("ppc32.unallocated");
    let rest: usize = refusals.values().sum::<usize>() - data - regions - count("ppc32.reservation");
    assert!(rest * 100 < words, "{refusals:?}");
}
