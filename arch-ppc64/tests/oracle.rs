//! The decoder against capstone, over every word of two real C libraries' text, big-endian and little-endian.
//!
//! What is compared: which words are branches, where direct ones lead, which move LR, CTR or XER, which are
//! traps, system calls, reservations and no-ops. The libraries are `libc.so.6` of Debian's
//! `libc6-ppc64-cross` and `libc6-ppc64el-cross`; without them that part is skipped and says so.
//!
//! capstone 5 does not know `scv`, `rfscv`, `bctar`, prefixed instructions, nor some of POWER9's and
//! POWER10's; those words are counted and must be of one of the kinds that `is_known_gap` lists.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use capstone::arch::ArchOperand;
use capstone::arch::ppc::{ArchMode, PpcOperand};
use capstone::prelude::*;
use capstone::{Capstone, Endian as CapstoneEndian};
use probe_arch_ppc64::{Big, ElfV1, ElfV2, Endian, Little, Plan, Ppc64, PtRegs, regs::MSR_SF};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, Decoded, MemFault, Memory, Site, Text};
use probe_core::error::Refusal;
use std::collections::BTreeMap;

const LIBC_BIG: &str = "/usr/powerpc64-linux-gnu/lib/libc.so.6";
const LIBC_LITTLE: &str = "/usr/powerpc64le-linux-gnu/lib/libc.so.6";

/// The words of the section `.text` of an ELF64 file, and its address.
fn text_of<E: Endian>(file: &[u8]) -> (u64, Vec<u32>) {
    let u32_at = |at: usize| E::word(*file[at..].first_chunk().unwrap());
    let u64_at = |at: usize| E::doubleword(*file[at..].first_chunk().unwrap());
    // A half-word, from the word that it is the first half of.
    let u16_at = |at: usize| {
        let pair = [file[at], file[at + 1]];
        let is_big = E::bytes(1)[3] == 1;
        usize::from(if is_big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
    };
    assert_eq!(file[..5], *b"\x7fELF\x02");
    let (sections, size, count) = (u64_at(0x28) as usize, u16_at(0x3a), u16_at(0x3c));
    let header = |index: usize| sections + index * size;
    let names = u64_at(header(u16_at(0x3e)) + 0x18) as usize;
    let text = (0..count)
        .map(header)
        .find(|at| file[names + u32_at(*at) as usize..].starts_with(b".text\0"))
        .expect("a section .text");
    let (offset, len) = (u64_at(text + 0x18) as usize, u64_at(text + 0x20) as usize);
    let words = file[offset..offset + len].as_chunks::<4>().0;
    (u64_at(text + 0x10), words.iter().map(|word| E::word(*word)).collect())
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
            Plan::Sc | Plan::Scv => Kind::SystemCall,
            Plan::Nop => Kind::Nop,
            _ => Kind::Other,
        },
        Err(refusal) => match refusal.code {
            "ppc64.trap" => Kind::Trap,
            "ppc64.reservation" => Kind::Reservation,
            _ => Kind::Other,
        },
    }
}

/// Where a direct branch leads when it is taken: found by simulating it until it is.
fn target(plan: &Plan) -> u64 {
    for (ctr, ccr) in [(1, 0), (1, 0xffff_ffff), (2, 0), (2, 0xffff_ffff)] {
        let mut regs = PtRegs { msr: MSR_SF, ctr, ccr, ..PtRegs::default() };
        let place = CodeAddr::new(PLACE);
        Ppc64::<Big, ElfV1>::simulate(plan, place, &mut regs, &NoMemory).expect("faults on nothing");
        if regs.nip != PLACE as u64 + 4 {
            return regs.nip;
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
        ArchOperand::PpcOperand(PpcOperand::Imm(target)) => Some(*target as u64),
        _ => None,
    });
    target.map(Kind::Direct)
}

/// The words that capstone 5 rejects and that are instructions all the same, or data between functions.
fn is_known_gap(word: u32) -> bool {
    match word >> 26 {
        // Padding and the trace-back tables behind functions: data.
        0 => true,
        // Prefixes; vector instructions of POWER10; lxvp and stxvp; quad-precision and POWER10's moves.
        1 | 4 | 6 | 63 => true,
        // scv.
        17 => word & 3 == 1,
        // A conditional branch to itself, before it is linked (beq .).
        16 => word == 0x4182_0000,
        _ => false,
    }
}

/// The names of functions in trace-back tables: data in the text, which may look like anything.
fn is_text(word: u32) -> bool {
    word.to_be_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(byte))
}

fn compare<E: Endian>(path: &str) {
    let Ok(file) = std::fs::read(path) else {
        println!("skipped: no {path} (apt-get install libc6-ppc64-cross libc6-ppc64el-cross)");
        return;
    };
    let (_, mut words) = text_of::<E>(&file);
    words.sort_unstable();
    words.dedup();
    let capstone = Capstone::new()
        .ppc()
        .mode(ArchMode::Mode64)
        .endian(CapstoneEndian::Big)
        .detail(true)
        .build()
        .expect("capstone");
    let (mut wrong, mut gaps) = (Vec::new(), BTreeMap::new());
    for &word in &words {
        let Some(theirs) = theirs(&capstone, word) else {
            *gaps.entry(word >> 26).or_insert(0usize) += 1;
            if !is_known_gap(word) && !is_text(word) {
                wrong.push(format!("{word:#010x}: capstone does not know it"));
            }
            continue;
        };
        let text = Library { start: PLACE, bytes: E::bytes(word).into() };
        let site = Site { at: CodeAddr::new(PLACE), function: None, text: &text };
        let decoded = Ppc64::<E, ElfV2>::decode(&site);
        if ours(&decoded) != theirs && !is_text(word) {
            wrong.push(format!("{word:#010x}: {decoded:x?}, capstone {theirs:x?}"));
        }
    }
    println!("{}: {} distinct words, unknown to capstone by opcode: {gaps:?}", path, words.len());
    assert!(words.len() > 50_000);
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
}

#[test]
fn big_endian_libc_is_decided_as_capstone_sees_it() {
    compare::<Big>(LIBC_BIG);
}

#[test]
fn little_endian_libc_is_decided_as_capstone_sees_it() {
    compare::<Little>(LIBC_LITTLE);
}

/// Every place of the library, with its surroundings: what is refused, and how much of it.
fn refusals<E: Endian>(path: &str) -> Option<(usize, BTreeMap<&'static str, usize>)> {
    let file = std::fs::read(path).ok()?;
    let (start, words) = text_of::<E>(&file);
    let bytes = words.iter().flat_map(|word| E::bytes(*word)).collect();
    let library = Library { start: start as usize, bytes };
    let mut refusals = BTreeMap::new();
    for index in 0..words.len() {
        let at = CodeAddr::new(library.start + index * 4);
        if let Err(refusal) = Ppc64::<E, ElfV2>::decode(&Site { at, function: None, text: &library }) {
            *refusals.entry(refusal.code).or_insert(0) += 1;
        }
    }
    Some((words.len(), refusals))
}

#[test]
fn what_is_refused_in_libc_is_little_and_has_its_reasons() {
    for counted in [refusals::<Big>(LIBC_BIG), refusals::<Little>(LIBC_LITTLE)] {
        let Some((words, refusals)) = counted else {
            println!("skipped: no cross libc");
            continue;
        };
        println!("{words} words: {refusals:?}");
        let count = |code: &str| refusals.get(code).copied().unwrap_or(0);
        let regions = count("ppc64.reservation-region");
        assert!(count("ppc64.reservation") > 100, "{refusals:?}");
        // A region is a handful of instructions to each pair.
        assert!(regions > 0 && regions < 4 * count("ppc64.reservation"), "{refusals:?}");
        // Beside data (attn, unallocated) nothing else to speak of.
        let data = count("ppc64.attn") + count("ppc64.unallocated");
        let rest: usize = refusals.values().sum::<usize>() - data - regions - count("ppc64.reservation");
        assert!(rest * 100 < words, "{refusals:?}");
    }
}
