//! Encodings: opcodes of every map with every prefix and addressing form, as a seeded generator has them.

use super::Native;
use super::state::Random;
use probe_x86_decode::insn::{Insn, Map, Prefixes};
use probe_x86_decode::{Mode, Registers};

type NativeMode = <Native as Registers>::Mode;

/// Fifteen bytes that begin with prefixes and an opcode.
pub(crate) fn encoding(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let chance = |random: &mut Random, percent: usize| random.below(100) < percent;
    for (prefix, percent) in
        [(0x66, 20), (0x67, 8), (0xf2, 8), (0xf3, 10), (segment(), 8), (0xf0, 5), (0x2e, 3)]
    {
        if chance(random, percent) {
            bytes.push(prefix);
        }
    }
    if NativeMode::IS_LONG && chance(random, 50) {
        bytes.push(0x40 | random.next() as u8 & 15);
    }
    match random.below(20) {
        0..=10 => {}
        11..=15 => bytes.push(0x0f),
        16 => bytes.extend([0x0f, 0x38]),
        17 => bytes.extend([0x0f, 0x3a]),
        18 => bytes.extend([0xc5, random.next() as u8]),
        _ => bytes.extend([
            0xc4,
            (random.next() as u8 & 0xe3) | (1 + random.below(3) as u8),
            random.next() as u8,
        ]),
    }
    // The opcode, ModRM, SIB, and what follows: mostly small numbers.
    for index in 0..12 {
        let byte = random.next() as u8;
        bytes.push(if index > 2 && chance(random, 70) { byte & 7 } else { byte });
    }
    bytes.truncate(15);
    bytes
}

/// The segment that the tests have a base for.
fn segment() -> u8 {
    if NativeMode::IS_LONG { 0x65 } else { 0x64 }
}

/// Whether a process can execute the instruction and go on as before, with the same result each time.
pub(crate) fn may_run(bytes: &[u8], insn: &Insn) -> bool {
    if is_thread_relative(bytes) {
        return false;
    }
    let is_register = insn.modrm.is_some_and(|modrm| modrm.is_register());
    let extension = insn.modrm.map_or(8, |modrm| modrm.reg());
    match (insn.map, insn.opcode) {
        // Segment registers, which the C library lives on.
        (Map::Primary, 0x07 | 0x17 | 0x1f | 0x8e) => false,
        (Map::Primary, 0xc4 | 0xc5) => false,
        (Map::Escape0F, 0xa1 | 0xa9 | 0xb2 | 0xb4 | 0xb5) => false,
        // The trap flag may come from anywhere in memory.
        (Map::Primary, 0x9d) => false,
        // The x87 environment: exceptions that would come later, and the address of the last instruction.
        (Map::Primary, 0xd9) => is_register || extension < 4 || extension == 7,
        (Map::Primary, 0xdd) => is_register || extension < 4 || extension == 7,
        // Absolute branches through memory, which in 32 bits lead anywhere.
        (Map::Primary, 0xff) => NativeMode::IS_LONG || is_register || extension != 2 && extension != 4,
        // System calls.
        (Map::Primary, 0xcd) | (Map::Escape0F, 0x05 | 0x34) => false,
        // Descriptor tables, protection keys, the monitor; hardware state that differs between processors.
        (Map::Escape0F, 0x00 | 0x01 | 0xa2 | 0x31 | 0x33) => false,
        // Control and debug registers, privileged: their ModRM byte has no memory form, which the test would
        // move.
        (Map::Escape0F, 0x20..=0x23) => false,
        // Random numbers, the processor's number, the extended state. CMPXCHG8B and its larger sister remain.
        (Map::Escape0F, 0xc7) => !is_register && extension == 1,
        // The extended state with the address of the last x87 instruction, the control word of SSE, the bases
        // of segments.
        (Map::Escape0F | Map::Vex(1), 0xae) => false,
        // Non-temporal and direct stores of the future: whether there are any is the processor's affair.
        (Map::Evex(_) | Map::Xop(_), _) => false,
        _ => true,
    }
}

/// Whether it addresses through the segment of the C library's thread control block.
fn is_thread_relative(bytes: &[u8]) -> bool {
    let segment = if NativeMode::IS_LONG { 0x64 } else { 0x65 };
    let is_prefix = |byte: &u8| match byte {
        0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => true,
        // REX; a void one, too.
        0x40..=0x4f => NativeMode::IS_LONG,
        _ => false,
    };
    bytes.iter().take_while(|byte| is_prefix(byte)).any(|byte| *byte == segment)
}

/// The same with a direct branch that stays in the code region, and in 32 bits, where most addresses are
/// somebody's, with displacements that stay where the registers point.
pub(crate) fn tame(mut bytes: Vec<u8>, insn: &Insn) -> Vec<u8> {
    let is_long_branch =
        matches!((insn.map, insn.opcode), (Map::Primary, 0xe8 | 0xe9) | (Map::Escape0F, 0x80..=0x8f));
    if is_long_branch && !insn.has(Prefixes::OPERAND_SIZE) {
        let at = bytes.len() - 4;
        let displacement = i32::from(bytes[at] as i8);
        bytes[at..].copy_from_slice(&displacement.to_le_bytes());
    }
    if let Some(modrm) = insn.modrm.filter(|modrm| modrm.mode() == 2)
        && !NativeMode::IS_LONG
        && !insn.has(Prefixes::ADDRESS_SIZE)
    {
        let at = usize::from(insn.modrm_at) + if modrm.rm() == 4 { 2 } else { 1 };
        let displacement = i32::from(bytes[at] as i8);
        bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    }
    bytes
}
