//! The decoder against GNU objdump: over every instruction of a real C library, and over random ones.
//!
//! What is compared: the lengths, which instructions jump, branch or read the program counter, where they
//! point and which registers they name; and that nothing is refused as unknown that objdump knows. The
//! library is `libc.so.6` of Debian's `libc6-riscv64-cross`, objdump that of `binutils-riscv64-linux-gnu`;
//! `cargo ci setup` installs both.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use probe_arch_riscv64::{Condition, Plan, Riscv64};
use probe_core::arch::Method;
use std::path::Path;
use std::process::Command;

const OBJDUMP: &str = "riscv64-linux-gnu-objdump";
const LIBC: &str = "/usr/riscv64-linux-gnu/lib/libc.so.6";

/// An instruction as objdump prints it.
struct Line<'a> {
    at: u64,
    word: u32,
    len_bytes: usize,
    mnemonic: &'a str,
    /// Without comments and symbols.
    operands: &'a str,
}

/// What objdump prints about a file.
fn disassembled(arguments: &[&str], file: &Path) -> String {
    let output = Command::new(OBJDUMP)
        .args(["-M", "no-aliases"])
        .args(arguments)
        .arg(file)
        .output()
        .unwrap_or_else(|error| panic!("{OBJDUMP}: {error}; run: cargo ci setup"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter_map(|line| {
        let mut columns = line.trim_start().split('\t');
        let at = u64::from_str_radix(columns.next()?.strip_suffix(':')?, 16).ok()?;
        let digits = columns.next()?.trim();
        let word = u32::from_str_radix(digits, 16).ok()?;
        let mnemonic = columns.next()?.trim();
        let operands = columns.next().unwrap_or("").split([' ', '#']).next()?;
        Some(Line { at, word, len_bytes: digits.len() / 2, mnemonic, operands })
    })
}

/// The registers by their numbers.
const NAMES: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6",
    "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
];

/// What a plan says, as objdump would: the mnemonic without `c.`, and the operands.
fn spelt(plan: &Plan, line: &Line<'_>) -> Option<(&'static str, String)> {
    let name = |number: u8| NAMES[usize::from(number)];
    let target = |offset: i64| format!("{:x}", line.at.wrapping_add_signed(offset));
    let is_full = line.len_bytes == 4;
    Some(match *plan {
        Plan::OutOfLine | Plan::SystemCall => return None,
        Plan::Nop { .. } if is_full => ("addi", "zero,zero,0".into()),
        // GNU objdump calls it so.
        Plan::Nop { .. } => ("addi", "zero,0".into()),
        Plan::Address { rd, offset } => ("auipc", format!("{},{:#x}", name(rd), offset as u32 >> 12)),
        Plan::Jump { rd, offset } if is_full => ("jal", format!("{},{}", name(rd), target(offset.into()))),
        Plan::Jump { offset, .. } => ("j", target(offset.into())),
        Plan::JumpRegister { rd, rs1, offset, .. } if is_full => {
            ("jalr", format!("{},{offset}({})", name(rd), name(rs1)))
        }
        Plan::JumpRegister { rd: 0, rs1, .. } => ("jr", name(rs1).into()),
        Plan::JumpRegister { rs1, .. } => ("jalr", name(rs1).into()),
        Plan::Branch { condition, rs1, rs2, offset, .. } => {
            let mnemonic = match (condition, is_full) {
                (Condition::Equal, true) => "beq",
                (Condition::Equal, false) => "beqz",
                (Condition::NotEqual, true) => "bne",
                (Condition::NotEqual, false) => "bnez",
                (Condition::Less, _) => "blt",
                (Condition::GreaterOrEqual, _) => "bge",
                (Condition::Below, _) => "bltu",
                (Condition::AboveOrEqual, _) => "bgeu",
            };
            let second = if is_full { format!("{},", name(rs2)) } else { String::new() };
            (mnemonic, format!("{},{second}{}", name(rs1), target(offset.into())))
        }
    })
}

/// Whether objdump's instruction reads or writes the program counter.
fn is_relative(mnemonic: &str) -> bool {
    let all = ["auipc", "jal", "jalr", "j", "jr", "beq", "bne", "blt", "bge", "bltu", "bgeu", "beqz", "bnez"];
    all.contains(&mnemonic)
}

/// What the two disagree about, if anything.
fn disagreement(line: &Line<'_>) -> Option<String> {
    let mnemonic = line.mnemonic.trim_start_matches("c.");
    // What objdump does not know is printed as data.
    let is_known = !line.mnemonic.starts_with('.') && !line.operands.contains("unknown");
    // Without symbols, addresses have a prefix.
    let theirs = line.operands.replace("0x", "");
    let wrong = |why: String| Some(format!("{:#x} {} {}: {why}", line.word, line.mnemonic, line.operands));
    match Riscv64::classify(line.word) {
        Err(refusal) if refusal.code == "riscv64.unallocated" && is_known && line.word != RESERVED => {
            wrong("refused as unknown".into())
        }
        Err(refusal) if is_known && is_relative(mnemonic) && refusal.code != "riscv64.landing_pad" => {
            wrong(format!("refused: {}", refusal.code))
        }
        Err(_) => None,
        Ok((plan, method)) => match spelt(&plan, line) {
            None if is_known && is_relative(mnemonic) => wrong(format!("{plan:?}")),
            Some((name, operands))
                if is_known && (name, operands.replace("0x", "")) != (mnemonic, theirs) =>
            {
                wrong(format!("{plan:?}, as {name} {operands}"))
            }
            Some(_) if method != Method::Simulate => wrong(format!("{plan:?} by {method:?}")),
            _ => None,
        },
    }
}

/// What objdump names and the manual reserves: `c.addi16sp` by nothing (I 27.5.1).
const RESERVED: u32 = 0x6101;

fn compare(text: &str, least: usize) {
    let mut count = 0;
    let mut wrong = Vec::new();
    for line in lines(text) {
        count += 1;
        let length = if line.word & 0b11 == 0b11 { 4 } else { 2 };
        assert_eq!(line.len_bytes, length, "{:#x}", line.word);
        wrong.extend(disagreement(&line));
    }
    assert!(count >= least, "{count} instructions");
    assert!(wrong.is_empty(), "{} of {count}: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
}

#[test]
fn a_c_library_is_decoded_as_objdump_does() {
    assert!(Path::new(LIBC).exists(), "{LIBC} is not installed; run: cargo ci setup");
    compare(&disassembled(&["-d", "-j", ".text"], Path::new(LIBC)), 200_000);
}

/// The assembly of each row is objdump's for its bytes, with `.` for the instruction's own address: of those
/// that it knows without being told of extensions.
#[test]
fn the_vectors_are_spelt_as_objdump_does() {
    let rows = include_str!("../../tests/vectors/riscv64.txt").lines();
    let rows = rows.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
    for row in rows {
        let mut columns = row.split('|').map(str::trim);
        let (hex, asm) = (columns.next().expect("bytes"), columns.next().expect("assembly"));
        wanted.push((bytes.len() as u64, asm));
        bytes.extend(hex.split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")));
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vectors.bin");
    std::fs::write(&file, bytes).expect("written");
    let text = disassembled(&["-D", "-b", "binary", "-m", "riscv:rv64"], &file);
    let found: Vec<_> = lines(&text).collect();
    assert_eq!(found.len(), wanted.len());
    let (mut wrong, mut compared) = (Vec::new(), 0);
    for (line, (at, asm)) in found.iter().zip(wanted) {
        assert_eq!(line.at, at, "{asm}");
        // Hints of an extension are ORI or FENCE without it; what is reserved has no name in the table.
        let has_no_name = line.mnemonic.starts_with('.') || line.operands.contains("unknown");
        if has_no_name || asm.starts_with(['.']) || asm.starts_with("prefetch") {
            continue;
        }
        compared += 1;
        let is_branch =
            is_relative(line.mnemonic.trim_start_matches("c.")) && asm.contains(",.") || asm.contains(" .");
        let operands = match line.operands.rsplit_once(',').or(Some(("", line.operands))) {
            Some((before, target)) if is_branch => {
                let target = u64::from_str_radix(target.trim_start_matches("0x"), 16).expect("a target");
                let offset = target.wrapping_sub(at) as i64;
                let sign = if offset < 0 { '-' } else { '+' };
                let comma = if before.is_empty() { "" } else { "," };
                format!("{before}{comma}.{sign}{:#x}", offset.unsigned_abs())
            }
            _ => line.operands.to_owned(),
        };
        let spelt = format!("{} {operands}", line.mnemonic);
        if spelt.trim() != asm {
            wrong.push(format!("{asm}: {spelt}"));
        }
    }
    assert!(wrong.is_empty() && compared > 200, "of {compared}: {wrong:#?}");
}

/// The same words every time: xorshift.
#[test]
fn random_instructions_are_decoded_as_objdump_does() {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut bytes = Vec::new();
    for index in 0..400_000u32 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let word = (random >> 16) as u32;
        // A jump, a branch, auipc; anything; a compressed one.
        let heads = [0x6f, 0x67, 0x63, 0x17, 0x73, 0x33, 0x13, 0x53];
        match index % 4 {
            0 => bytes.extend((word & !0x7f | heads[index as usize / 4 % 8]).to_le_bytes()),
            // Not the prefixes of longer instructions.
            1 if word & 0b1_1100 != 0b1_1100 => bytes.extend((word | 0b11).to_le_bytes()),
            _ if word & 0b11 != 0b11 => bytes.extend((word as u16).to_le_bytes()),
            _ => bytes.extend((word as u16 & !0b11 | 0b01).to_le_bytes()),
        }
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("random.bin");
    std::fs::write(&file, bytes).expect("written");
    compare(&disassembled(&["-D", "-b", "binary", "-m", "riscv:rv64"], &file), 390_000);
}
