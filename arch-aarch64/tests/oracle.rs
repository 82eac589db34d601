//! The decoder against two others, capstone and yaxpeax-arm: over every word of a real C library's text, and
//! over random words.
//!
//! What is compared: which words are PC-relative and where they point (yaxpeax-arm), which are branches,
//! calls, returns and which general registers they write (capstone). The library is `libc.so.6` of Debian's
//! `libc6-arm64-cross`; without it that part is skipped and says so.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use capstone::arch::ArchOperand;
use capstone::arch::arm64::{ArchMode, Arm64OperandType};
use capstone::prelude::*;
use capstone::{Capstone, RegAccessType};
use probe_arch_aarch64::{Aarch64, BranchKind, Plan};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method, Site, Text};
use yaxpeax_arch::{Decoder, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Opcode, Operand};

const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";

/// The words of the section `.text` of a little-endian ELF64 file, and its address.
fn text_of(file: &[u8]) -> (u64, Vec<u32>) {
    let u16_at = |at: usize| u16::from_le_bytes(file[at..at + 2].try_into().unwrap());
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!(file[..6], *b"\x7fELF\x02\x01");
    let (sections, size, count) = (u64_at(0x28) as usize, u16_at(0x3a), u16_at(0x3c));
    let header = |index: u16| sections + usize::from(index) * usize::from(size);
    let names = u64_at(header(u16_at(0x3e)) + 0x18) as usize;
    let text = (0..count)
        .map(header)
        .find(|at| file[names + u32_at(*at) as usize..].starts_with(b".text\0"))
        .expect("a section .text");
    let (offset, len) = (u64_at(text + 0x18) as usize, u64_at(text + 0x20) as usize);
    let words = file[offset..offset + len].chunks_exact(4);
    (u64_at(text + 0x10), words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

/// What `plan` adds to the program counter (for ADRP: to its page) to find its label.
fn label(plan: &Plan) -> Option<i64> {
    match *plan {
        Plan::Branch { offset }
        | Plan::BranchLink { offset }
        | Plan::BranchCondition { offset, .. }
        | Plan::CompareBranch { offset, .. }
        | Plan::TestBranch { offset, .. }
        | Plan::Address { offset, .. }
        | Plan::LoadLiteral { offset, .. }
        | Plan::LoadLiteralSimd { offset, .. } => Some(offset.into()),
        Plan::PageAddress { pages, .. } => Some(i64::from(pages) << 12),
        _ => None,
    }
}

/// The same from yaxpeax-arm; `None` where it does not know the word at all.
fn yaxpeax(word: u32) -> Option<(Opcode, Option<i64>)> {
    let bytes = word.to_le_bytes();
    let decoded = InstDecoder::default().decode(&mut U8Reader::new(&bytes)).ok()?;
    if decoded.opcode == Opcode::Invalid {
        return None;
    }
    let label = decoded.operands.iter().find_map(|operand| match operand {
        Operand::PCOffset(offset) => Some(*offset),
        _ => None,
    });
    Some((decoded.opcode, label))
}

/// Checks one word that is not refused; returns what disagrees.
fn disagreement(word: u32) -> Option<String> {
    let (plan, _) = Aarch64::classify(word).ok()?;
    let (opcode, theirs) = yaxpeax(word)?;
    // PRFM (literal) is a NOP here: it has a label that nobody needs.
    let ours = if opcode == Opcode::PRFM && plan == Plan::Nop { theirs } else { label(&plan) };
    let kind = match opcode {
        Opcode::BR => Some(BranchKind::Jump),
        Opcode::BLR => Some(BranchKind::Call),
        Opcode::RET => Some(BranchKind::Return),
        _ => None,
    };
    let our_kind = match plan {
        Plan::BranchRegister { kind, .. } => Some(kind),
        _ => None,
    };
    (ours != theirs || kind != our_kind)
        .then(|| format!("{word:#010x}: {plan:?}, yaxpeax {opcode:?} {theirs:?}"))
}

#[test]
fn libc_is_decided_as_two_other_decoders_see_it() {
    let Ok(file) = std::fs::read(LIBC) else {
        println!("skipped: no {LIBC} (apt-get install libc6-arm64-cross)");
        return;
    };
    let (_, words) = text_of(&file);
    let mut words: Vec<_> = words;
    words.sort_unstable();
    words.dedup();
    let capstone = Capstone::new().arm64().mode(ArchMode::Arm).detail(true).build().expect("capstone");
    let mut wrong: Vec<String> = words.iter().filter_map(|word| disagreement(*word)).collect();
    let mut counts = [0usize; 4];
    for word in &words {
        let method = Aarch64::classify(*word).map(|(_, method)| method);
        counts[match method {
            Ok(Method::Simulate) => 0,
            Ok(Method::Boost) => 1,
            Ok(Method::Step) => 2,
            Err(_) => 3,
        }] += 1;
        wrong.extend(class_disagreement(&capstone, *word));
    }
    println!("{} distinct words: simulate, boost, step, refuse: {counts:?}", words.len());
    assert!(words.len() > 50_000);
    // This library has no SIMD&FP literals and no authenticated branches: nothing is stepped.
    assert!(counts[0] > 20_000 && counts[1] > 30_000 && counts[3] < 100, "{counts:?}");
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
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

/// Every place of the library, with its surroundings: a region is refused around every exclusive pair, and
/// nothing else is.
#[test]
fn exclusive_regions_of_libc_are_as_short_as_they_are() {
    let Ok(file) = std::fs::read(LIBC) else {
        println!("skipped: no {LIBC} (apt-get install libc6-arm64-cross)");
        return;
    };
    let (start, words) = text_of(&file);
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let library = Library { start: start as usize, bytes };
    let mut refusals = std::collections::BTreeMap::new();
    for index in 0..words.len() {
        let at = CodeAddr::new(library.start + index * 4);
        if let Err(refusal) = Aarch64::decode(&Site { at, function: None, text: &library }) {
            *refusals.entry(refusal.code).or_insert(0usize) += 1;
        }
    }
    println!("{} places: {refusals:?}", words.len());
    // Loads and stores come in pairs or more; a loop has at most a handful of instructions between them.
    let (ends, between) = (refusals["aarch64.exclusive"], refusals["aarch64.exclusive_region"]);
    assert!(ends > 20 && between < 4 * ends, "{refusals:?}");
    // Beside these: `brk` after what does not return, and the zeros between functions.
    let others = refusals.keys().filter(|code| !code.starts_with("aarch64.exclusive"));
    assert!(others.eq(&["aarch64.breakpoint", "aarch64.undefined"]), "{refusals:?}");
}

/// Branch, call and return by capstone's groups, and the general registers that a simulated instruction
/// writes.
fn class_disagreement(capstone: &Capstone, word: u32) -> Option<String> {
    use capstone::arch::arm64::Arm64InsnGroup;
    let instructions = capstone.disasm_count(&word.to_le_bytes(), 0, 1).ok()?;
    let instruction = instructions.first()?;
    let detail = capstone.insn_detail(instruction).ok()?;
    let Ok((plan, method)) = Aarch64::classify(word) else { return None };
    let in_group = |group: u32| detail.groups().iter().any(|id| u32::from(id.0) == group);
    let transfers = in_group(Arm64InsnGroup::ARM64_GRP_JUMP)
        || in_group(Arm64InsnGroup::ARM64_GRP_CALL)
        || in_group(Arm64InsnGroup::ARM64_GRP_RET);
    let our_transfer = matches!(
        plan,
        Plan::Branch { .. }
            | Plan::BranchLink { .. }
            | Plan::BranchCondition { .. }
            | Plan::CompareBranch { .. }
            | Plan::TestBranch { .. }
            | Plan::BranchRegister { .. }
            | Plan::AuthenticatedBranch { .. }
    );
    let text = || format!("{word:#010x} {instruction}: {plan:?}");
    if transfers != our_transfer {
        return Some(format!("{}: capstone says transfer {transfers}", text()));
    }
    if method != Method::Simulate {
        return None;
    }
    let written: Vec<String> = detail
        .arch_detail()
        .operands()
        .into_iter()
        .filter_map(|operand| match operand {
            ArchOperand::Arm64Operand(operand) => Some(operand),
            #[allow(
                unreachable_patterns,
                reason = "another crate of the build may ask for more architectures"
            )]
            _ => None,
        })
        .filter(|operand| matches!(operand.access, Some(RegAccessType::WriteOnly | RegAccessType::ReadWrite)))
        .filter_map(|operand| match operand.op_type {
            Arm64OperandType::Reg(register) => capstone.reg_name(register),
            _ => None,
        })
        .collect();
    let ours = match plan {
        Plan::Address { rd, .. } | Plan::PageAddress { rd, .. } => Some(rd),
        Plan::LoadLiteral { rt, .. } => Some(rt),
        _ => None,
    };
    let theirs = written.first().map(|name| register_number(name));
    // BL and BLR write X30, which capstone lists as implicit.
    (ours != theirs).then(|| format!("{}: capstone writes {written:?}", text()))
}

fn register_number(name: &str) -> u8 {
    match name {
        "xzr" | "wzr" => 31,
        "lr" => 30,
        "fp" => 29,
        name => name[1..].parse().expect("a register"),
    }
}

/// All of the PC-relative encodings' neighbourhood, and anything: xorshift, so the same words every time.
#[test]
fn random_words_have_the_labels_that_yaxpeax_sees() {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut wrong = Vec::new();
    for index in 0..2_000_000u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let word = random as u32;
        let heads = [0x1000_0000, 0x1800_0000, 0x1400_0000, 0x3400_0000, 0x5400_0000, 0xd600_0000];
        let word = match index % 4 {
            0 => word,
            // The top bits choose sizes and links.
            1 => heads[index as usize / 4 % 6] | word & 0x83ff_ffff,
            2 => heads[index as usize / 4 % 6] | word & 0xe0ff_ffff,
            _ => 0xd600_0000 | word & 0x01ff_ffff | if random >> 40 & 1 == 0 { 0x001f_0000 } else { 0 },
        };
        wrong.extend(disagreement(word));
    }
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}
