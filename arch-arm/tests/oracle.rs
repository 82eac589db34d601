//! The decoder against GNU objdump: over every instruction of a real C library, and over random ones of both
//! sets.
//!
//! What is compared: the lengths, which instructions branch or name the program counter, where branches
//! lead; that what names it does not run out of line; and that nothing is refused as unknown that objdump
//! knows. The library is `libc.so.6` of Debian's `libc6-armhf-cross`, whose code is T32, objdump that of
//! `binutils-arm-linux-gnueabihf`; `cargo ci setup` installs both.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use probe_arch_arm::{Arm, Plan, Set};
use std::path::Path;
use std::process::Command;

const OBJDUMP: &str = "arm-linux-gnueabihf-objdump";
const LIBC: &str = "/usr/arm-linux-gnueabihf/lib/libc.so.6";

/// An instruction as objdump prints it.
struct Line<'a> {
    at: u64,
    set: Set,
    word: u32,
    len_bytes: usize,
    mnemonic: &'a str,
    /// Without comments and symbols.
    operands: &'a str,
    /// The line's comment.
    comment: &'a str,
}

/// What objdump prints about a file, taken for code of `set`.
fn disassembled(set: Set, arguments: &[&str], file: &Path) -> String {
    let force = if set == Set::T32 { "force-thumb" } else { "no-force-thumb" };
    let output = Command::new(OBJDUMP)
        .args(["-M", force])
        .args(arguments)
        .arg(file)
        .output()
        .unwrap_or_else(|error| panic!("{OBJDUMP}: {error}; run: cargo ci setup"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn lines(set: Set, text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter_map(move |line| {
        let mut columns = line.trim_start().splitn(4, '\t');
        let at = u64::from_str_radix(columns.next()?.strip_suffix(':')?, 16).ok()?;
        let digits = columns.next()?.trim();
        let len_bytes = digits.bytes().filter(u8::is_ascii_hexdigit).count() / 2;
        let word = u32::from_str_radix(&digits.replace(' ', ""), 16).ok()?;
        let mnemonic = columns.next()?.trim();
        let rest = columns.next().unwrap_or("");
        let (operands, comment) = rest.split_once([';', '@']).unwrap_or((rest, ""));
        let operands = operands.split('<').next()?.trim();
        Some(Line { at, set, word, len_bytes, mnemonic, operands, comment })
    })
}

/// Whether the text names the program counter as an operand.
fn names_pc(operands: &str) -> bool {
    operands.split(|c: char| !c.is_ascii_alphanumeric()).any(|name| name == "pc")
}

/// Whether objdump's instruction branches to a distance, a register, a table, or begins an IT block.
fn is_branch(mnemonic: &str) -> bool {
    let stem = mnemonic.split('.').next().unwrap_or("");
    let is_it = stem.starts_with("it") && stem.bytes().skip(1).all(|letter| matches!(letter, b't' | b'e'));
    let conditions =
        ["", "eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al"];
    let is_one = ["b", "bl", "blx", "bx", "bxj"]
        .iter()
        .any(|name| stem.strip_prefix(name).is_some_and(|rest| conditions.contains(&rest)));
    is_it || is_one || ["cbz", "cbnz", "tbb", "tbh"].contains(&stem)
}

/// Where a plan branches to, if it says so.
fn target(plan: &Plan, line: &Line<'_>) -> Option<u64> {
    let ahead = if line.set == Set::T32 { 4 } else { 8 };
    let target = match *plan {
        Plan::Branch { exchanges: true, offset, .. } if line.set == Set::T32 => {
            ((line.at + ahead) & !3).wrapping_add_signed(offset.into())
        }
        Plan::Branch { offset, .. } => (line.at + ahead).wrapping_add_signed(offset.into()),
        Plan::CompareBranch { offset, .. } => line.at + ahead + u64::from(offset),
        _ => return None,
    };
    Some(target & 0xffff_ffff)
}

/// What the two disagree about, if anything.
fn disagreement(line: &Line<'_>) -> Option<String> {
    let wrong = |why: String| {
        Some(format!("{:?} {:#x} {} {}: {why}", line.set, line.word, line.mnemonic, line.operands))
    };
    // What objdump does not know it prints as data or with marks; it knows extensions that no ARMv7 and no
    // ARMv8-A in AArch32 has, and encodings whose reserved bits are not as they should be.
    let is_known = !line.mnemonic.starts_with(['.', '<'])
        && !line.mnemonic.contains(['?', '<'])
        && !line.mnemonic.starts_with("undefined")
        && !line.operands.contains(['?'])
        && !line.comment.contains("UNDEFINED");
    let is_predictable = !line.comment.contains("UNPREDICTABLE");
    match Arm::classify(line.set, line.word) {
        Ok((Plan::OutOfLine { .. } | Plan::SystemCall { .. }, _)) => {
            // A signed halfword to Rt 15 is a hint without an effect (A6.3.8).
            let is_hint = line.mnemonic == "ldrsh.w";
            let relative = names_pc(line.operands) && !is_hint || is_branch(line.mnemonic);
            if is_known && is_predictable && relative { wrong("runs out of line".into()) } else { None }
        }
        Ok((plan, _)) if is_known && is_predictable => {
            let operands = line.operands.rsplit([' ', ',']).next().unwrap_or("");
            let theirs = u64::from_str_radix(operands.trim_start_matches("0x"), 16).ok();
            let is_simple = names_pc(line.operands) || is_branch(line.mnemonic);
            // The last is of ARMv8-M, in the place of VLDM.
            let others = ["nop", "mrs", "adr", "pld", "pli", "vscclrm"];
            match target(&plan, line) {
                Some(ours) if theirs != Some(ours) => wrong(format!("{plan:?}, to {ours:#x}")),
                None if !is_simple && !others.iter().any(|name| line.mnemonic.starts_with(name)) => {
                    wrong(format!("{plan:?}"))
                }
                _ => None,
            }
        }
        Err(refusal) if refusal.code == "arm.unallocated" && is_known && is_predictable => {
            wrong("refused as unknown".into())
        }
        _ => None,
    }
}

/// What a backend for ARMv7-A and ARMv8-A in AArch32 does not have to know, though objdump does: other
/// coprocessors (of old processors, or of other profiles), instructions of other profiles and later
/// extensions, and encodings whose reserved bits it does not look at.
fn is_foreign(line: &Line<'_>) -> bool {
    let word = line.word;
    let has_coprocessor = match line.set {
        Set::A32 => matches!(word >> 24 & 0xf, 0xc..=0xe),
        Set::T32 => word >> 26 & 0b11_1011 == 0b11_1011 && word >> 24 & 0xf != 0xf,
    };
    // Compares without S are other instructions; preloads have reserved bits.
    let is_reserved = line.set == Set::A32 && (word >> 23 & 0x1f == 0b00010 && word >> 20 & 1 == 0)
        || line.set == Set::A32 && word & 0x0f00_00f0 == 0x0100_0090
        || line.set == Set::A32 && word >> 26 == 0b11_1101
        || line.set == Set::T32 && word >> 25 == 0b111_1100 && word >> 23 & 1 == 0 && word >> 11 & 1 == 0 && word >> 6 & 0x1f != 0
        // Where the form of an address is reserved, objdump stops in the middle.
        || line.operands.ends_with(',')
        || line.set == Set::T32 && word >> 8 == 0x47;
    let stem = line.mnemonic.split('.').next().unwrap_or("");
    let others = [
        "sb", "setpan", "bf", "bfl", "bflx", "bfx", "bfcsel", "wls", "wlstp", "dls", "le", "msr", "mcrr2",
        "mrrc2",
    ];
    has_coprocessor && !matches!(word >> 8 & 0xf, 10 | 11) || is_reserved || others.contains(&stem)
}

fn compare(set: Set, text: &str, least: usize) {
    let mut count = 0;
    let mut wrong = Vec::new();
    for line in lines(set, text) {
        count += 1;
        let is_narrow = set == Set::T32 && line.word < 0xe800_0000;
        assert_eq!(line.len_bytes, if is_narrow { 2 } else { 4 }, "{:#x}", line.word);
        let refused = matches!(Arm::classify(set, line.word), Err(why) if why.code == "arm.unallocated");
        if !(refused && is_foreign(&line)) {
            wrong.extend(disagreement(&line));
        }
    }
    assert!(count >= least, "{count} instructions");
    assert!(wrong.is_empty(), "{} of {count}: {:#?}", wrong.len(), &wrong[..wrong.len().min(40)]);
}

#[test]
fn a_c_library_is_decoded_as_objdump_does() {
    assert!(Path::new(LIBC).exists(), "{LIBC} is not installed; run: cargo ci setup");
    compare(Set::T32, &disassembled(Set::T32, &["-d", "-j", ".text"], Path::new(LIBC)), 300_000);
}

/// The same words every time: xorshift.
fn random(count: usize) -> impl Iterator<Item = u32> {
    let mut random = 0x2545_f491_4f6c_dd1du64;
    (0..count).map(move |_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as u32
    })
}

fn write(name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&file, bytes).expect("written");
    file
}

const BINARY: [&str; 5] = ["-D", "-z", "-b", "binary", "-marm"];

#[test]
fn random_words_are_decoded_as_objdump_does() {
    let mut bytes = Vec::new();
    for (index, word) in random(400_000).enumerate() {
        // Every other one names the program counter.
        let fields = [0, 0xf << 16, 0, 0xf << 12, 0, 0xf << 16, 0, 0xf];
        // "Always", mostly.
        let condition = if index % 5 == 0 { word } else { word & 0x0fff_ffff | 0xe000_0000 };
        bytes.extend((condition | fields[index % 8]).to_le_bytes());
    }
    let file = write("a32.bin", &bytes);
    compare(Set::A32, &disassembled(Set::A32, &BINARY, &file), 400_000);
}

/// One instruction in sixteen bytes, so that none is in an IT block of another.
#[test]
fn random_halfwords_are_decoded_as_objdump_does() {
    let mut bytes = Vec::new();
    for (index, word) in random(200_000).enumerate() {
        let first = if index % 4 == 0 { (word >> 16) as u16 } else { (word >> 16) as u16 | 0xe800 };
        let fields = [0, 0xf000, 0, 0x0f00, 0, 0xf, 0, 0];
        bytes.extend(first.to_le_bytes());
        if first >= 0xe800 {
            bytes.extend((word as u16 | fields[index % 8]).to_le_bytes());
        }
        while bytes.len() % 16 != 0 {
            bytes.extend(0xbf00_u16.to_le_bytes());
        }
    }
    let file = write("t32.bin", &bytes);
    compare(Set::T32, &disassembled(Set::T32, &BINARY, &file), 1_000_000);
}

/// The assembly of each row is objdump's for its bytes, with `.` for the instruction's own address.
#[test]
fn the_vectors_are_spelt_as_objdump_does() {
    for set in [Set::A32, Set::T32] {
        let rows = include_str!("../../tests/vectors/arm.txt").lines();
        let rows = rows.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
        for row in rows {
            let columns: Vec<_> = row.split('|').map(str::trim).collect();
            if columns[3].starts_with("T32") != (set == Set::T32) {
                continue;
            }
            wanted.push((bytes.len() as u64, columns[1]));
            bytes.extend(columns[0].split(' ').map(|byte| u8::from_str_radix(byte, 16).expect("a byte")));
            while bytes.len() % 16 != 0 {
                let nop: &[u8] = if set == Set::T32 { &[0x00, 0xbf] } else { &[0x00, 0xf0, 0x20, 0xe3] };
                bytes.extend(nop);
            }
        }
        let file = write("vectors.bin", &bytes);
        let text = disassembled(set, &BINARY, &file);
        let found: Vec<_> = lines(set, &text).filter(|line| line.at % 16 == 0).collect();
        assert_eq!(found.len(), wanted.len());
        let (mut wrong, mut compared) = (Vec::new(), 0);
        for (line, (at, asm)) in found.iter().zip(wanted) {
            assert_eq!(line.at, at, "{asm}");
            // What has no name there.
            if asm.starts_with(".inst") {
                continue;
            }
            compared += 1;
            let operands = match line.operands.rsplit_once("0x") {
                Some((before, digits)) if is_branch(line.mnemonic) => {
                    let target = u64::from_str_radix(digits, 16).expect("a target");
                    let offset = i64::from(target.wrapping_sub(at) as i32);
                    let sign = if offset < 0 { '-' } else { '+' };
                    format!("{before}.{sign}{:#x}", offset.unsigned_abs())
                }
                _ => line.operands.to_owned(),
            };
            let spelt = format!("{} {operands}", line.mnemonic);
            if spelt.trim() != asm {
                wrong.push(format!("{asm}: {spelt}"));
            }
        }
        assert!(wrong.is_empty() && compared > 250, "of {compared}: {wrong:#?}");
    }
}
