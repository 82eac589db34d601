//! Two independent decoders read the same programs: iced-x86 everywhere, capstone on x86-64 Linux.
//!
//! What is read: this test's own text (in the mode that it is built for) and, where the machine has it, the
//! system's libc. Every instruction is compared: length, class of branch, branch target, whether memory is
//! addressed relative to the instruction. Where the decoders disagree, the reason is listed here.

#![cfg(any(target_arch = "x86_64", target_arch = "x86"))]

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use object::{Object, ObjectSection};
use probe_x86_decode::decode::decode_bytes;
use probe_x86_decode::{Effect, Insn, LongMode, MAX_INSN_LEN, Mode, ProtectedMode, insn_len, refusal};
use std::path::Path;

/// The text of an ELF file and its address.
fn text_of(path: &Path) -> Option<(u64, Vec<u8>, bool)> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let text = file.section_by_name(".text")?;
    Some((text.address(), text.data().ok()?.to_vec(), file.is_64()))
}

fn programs() -> Vec<(u64, Vec<u8>, bool)> {
    let own = std::env::current_exe().expect("this test has a path");
    let own = text_of(&own).expect("this test is an ELF file with text");
    let others = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib/i386-linux-gnu/libc.so.6", "/lib32/libc.so.6"];
    [own].into_iter().chain(others.iter().filter_map(|path| text_of(Path::new(path)))).collect()
}

#[test]
fn iced_agrees_on_every_instruction() {
    for (address, text, is_long) in programs() {
        let compared =
            if is_long { sweep::<LongMode>(address, &text) } else { sweep::<ProtectedMode>(address, &text) };
        assert!(compared > 50_000, "only {compared} instructions");
    }
}

/// Compares all instructions of `text` and returns how many there were.
fn sweep<M: Mode>(address: u64, text: &[u8]) -> usize {
    let bitness = if M::IS_LONG { 64 } else { 32 };
    let mut decoder = Decoder::with_ip(bitness, text, address, DecoderOptions::NONE);
    let mut insn = Instruction::default();
    let mut compared = 0;
    let mut wrong = Vec::new();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut insn);
        if insn.is_invalid() {
            continue;
        }
        compared += 1;
        let window = &text[at..text.len().min(at + MAX_INSN_LEN)];
        if let Some(complaint) = compare::<M>(&insn, window) {
            wrong.push(format!(
                "{:#x}: {:02x?} {:?}: {complaint}",
                insn.ip(),
                &window[..insn.len()],
                insn.code()
            ));
        }
    }
    wrong.truncate(40);
    assert!(wrong.is_empty(), "{wrong:#?}");
    compared
}

/// What is wrong about our view of an instruction, if anything.
fn compare<M: Mode>(insn: &Instruction, window: &[u8]) -> Option<String> {
    let len = insn_len::<M>(window);
    if len.is_none() && is_justly_rejected::<M>(insn, window) {
        return None;
    }
    if len != Some(insn.len()) {
        return Some(format!("length {len:?}"));
    }
    let ours = Insn::parse::<M>(window)?;
    // NOP and MPX instructions have a memory operand only by form; iced does not count it.
    if ours.is_ip_relative::<M>() != insn.is_ip_rel_memory_operand() {
        return Some("IP-relative or not".into());
    }
    let decoded = match decode_bytes::<M>(window) {
        Ok(decoded) => decoded,
        // What is decided by what follows: a system call, or with `pop` one more move.
        Err(refusal::SIGNAL_RETURN)
            if matches!(window[insn.len()..], [0x0f, 0x05, ..] | [0xcd, 0x80, ..] | [0xb8, ..]) =>
        {
            return None;
        }
        Err(refusal) => return (!may_refuse(insn)).then(|| refusal.code.into()),
    };
    let next = insn.ip().wrapping_add(insn.len() as u64);
    let target = |displacement: i64| {
        let target = next.wrapping_add(displacement as u64);
        if M::IS_LONG { target } else { target & 0xffff_ffff }
    };
    let is_right = match decoded.plan.effect {
        Effect::Jump { displacement } => {
            insn.flow_control() == FlowControl::UnconditionalBranch
                && insn.near_branch_target() == target(displacement.into())
        }
        Effect::Branch { displacement, .. } => {
            insn.flow_control() == FlowControl::ConditionalBranch
                && insn.near_branch_target() == target(displacement.into())
        }
        Effect::Loop { displacement, .. } => {
            insn.flow_control() == FlowControl::ConditionalBranch
                && insn.near_branch_target() == target(displacement.into())
        }
        Effect::Call { displacement } => {
            insn.flow_control() == FlowControl::Call
                && insn.near_branch_target() == target(displacement.into())
        }
        Effect::JumpIndirect(_) | Effect::SegmentJump { .. } => {
            insn.flow_control() == FlowControl::IndirectBranch
        }
        Effect::CallIndirect(_) | Effect::SegmentCall { .. } => {
            insn.flow_control() == FlowControl::IndirectCall
        }
        Effect::Return { .. } => insn.flow_control() == FlowControl::Return,
        // iced counts the system calls among the calls and interrupts.
        Effect::SystemCall => matches!(insn.mnemonic(), Mnemonic::Syscall | Mnemonic::Int),
        Effect::Copy if matches!(insn.mnemonic(), Mnemonic::Xabort | Mnemonic::Xend) => true,
        _ => insn.flow_control() == FlowControl::Next,
    };
    (!is_right).then(|| format!("{:?} against {:?}", decoded.plan.effect, insn.flow_control()))
}

/// Instructions whose length we do not vouch for although iced does.
fn is_justly_rejected<M: Mode>(insn: &Instruction, window: &[u8]) -> bool {
    // The vendor's choice: see `length`.
    let is_vendor_dependent =
        M::IS_LONG && window.contains(&0x66) && insn.flow_control() != FlowControl::Next;
    // Newer than our decoder, or undocumented: none is in compiled code.
    let is_exotic = matches!(insn.mnemonic(), Mnemonic::Reservednop | Mnemonic::Ud0);
    is_vendor_dependent || is_exotic
}

/// Whether a refusal is right: whatever leaves the slot, loads the stack segment, or is listed.
fn may_refuse(insn: &Instruction) -> bool {
    use Mnemonic::*;
    let is_listed = matches!(
        insn.mnemonic(),
        Hlt | Xbegin | Sysenter | Getsec | Getsecq | Enclv | Encls | Enclu | Vmrun | Skinit | Swapgs | Lss
    );
    let loads_stack_segment = insn.op_count() > 0
        && insn.op0_kind() == iced_x86::OpKind::Register
        && insn.op0_register() == iced_x86::Register::SS;
    insn.flow_control() != FlowControl::Next || is_listed || loads_stack_segment
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn capstone_agrees_on_every_instruction() {
    use capstone::prelude::*;
    for (address, text, is_long) in programs() {
        let mode = if is_long { arch::x86::ArchMode::Mode64 } else { arch::x86::ArchMode::Mode32 };
        let capstone = Capstone::new().x86().mode(mode).build().unwrap();
        let mut compared = 0;
        let mut wrong = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let window = &text[at..text.len().min(at + MAX_INSN_LEN)];
            let theirs = capstone.disasm_count(window, address + at as u64, 1).unwrap();
            let Some(theirs) = theirs.iter().next() else {
                at += 1;
                continue;
            };
            let ours = if is_long { insn_len::<LongMode>(window) } else { insn_len::<ProtectedMode>(window) };
            compared += 1;
            // capstone does not know that UD1 has a ModRM byte.
            let is_known_wrong = matches!(theirs.mnemonic(), Some("ud1" | "ud0"));
            if ours != Some(theirs.len()) && !is_known_wrong {
                wrong.push(format!("{theirs}: {ours:?}"));
            }
            at += ours.unwrap_or(theirs.len());
        }
        wrong.truncate(40);
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(compared > 50_000, "only {compared} instructions");
    }
}

/// Encodings that no compiler makes: every opcode of every map behind common prefixes, with varied ModRM and
/// SIB bytes.
///
/// Where both have a length it is the same. What only one of the two decodes is counted, not compared:
/// reserved encodings are a matter of version.
#[rstest::rstest]
#[case::x86_64(synthetic::<LongMode>)]
#[case::i386(synthetic::<ProtectedMode>)]
fn lengths_agree_on_synthetic_encodings(#[case] sweep: fn() -> (usize, Vec<String>)) {
    let (compared, mut wrong) = sweep();
    // One of a kind is enough.
    wrong.sort_by(|a, b| a.split_once(':').cmp(&b.split_once(':')));
    wrong.dedup_by(|a, b| a.rsplit(']').next() == b.rsplit(']').next());
    wrong.truncate(60);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 100_000, "only {compared} encodings");
}

fn synthetic<M: Mode>() -> (usize, Vec<String>) {
    const PREFIXES: [&[u8]; 13] = [
        &[],
        &[0x66],
        &[0x67],
        &[0xf2],
        &[0xf3],
        &[0x64],
        &[0x66, 0x67],
        &[0x66, 0xf2],
        &[0x66, 0xf3],
        &[0x48],
        &[0x41],
        &[0x66, 0x48],
        &[0x48, 0x66],
    ];
    let vex = [
        [0xc5, 0xf8].as_slice(),
        &[0xc5, 0x7d],
        &[0xc4, 0xe1, 0x79],
        &[0xc4, 0xe2, 0x7d],
        &[0xc4, 0x63, 0xfb],
    ];
    let evex = [
        [0x62, 0xf1, 0x7c, 0x48].as_slice(),
        &[0x62, 0xf2, 0x7d, 0x08],
        &[0x62, 0xf3, 0xfd, 0x29],
        &[0x62, 0xf5, 0x7c, 0x48],
        &[0x62, 0xf6, 0x7d, 0x48],
    ];
    let xop = [[0x8f, 0xe8, 0x78].as_slice(), &[0x8f, 0xe9, 0x78], &[0x8f, 0xea, 0x78]];
    let legacy = [[].as_slice(), &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let mut compared = 0;
    let mut wrong = Vec::new();
    for prefix in PREFIXES {
        for map in legacy.iter().chain(&vex).chain(&evex).chain(&xop) {
            for opcode in 0..=255u8 {
                for modrm in
                    [0x00, 0x04, 0x05, 0x0d, 0x15, 0x44, 0x46, 0x84, 0x86, 0xc0, 0xc8, 0xd1, 0xe8, 0xf8, 0xfa]
                {
                    let mut bytes = prefix.to_vec();
                    bytes.extend_from_slice(map);
                    bytes.extend_from_slice(&[opcode, modrm, 0x25]);
                    bytes.resize(MAX_INSN_LEN, 0x11);
                    let insn =
                        Decoder::new(if M::IS_LONG { 64 } else { 32 }, &bytes, DecoderOptions::NONE).decode();
                    let Some(len) = insn_len::<M>(&bytes) else { continue };
                    if insn.is_invalid() {
                        continue;
                    }
                    compared += 1;
                    if len != insn.len() {
                        wrong.push(format!("{bytes:02x?}: {len}, iced {:?} {}", insn.code(), insn.len()));
                    } else if let Some(complaint) = compare::<M>(&insn, &bytes) {
                        wrong.push(format!("{bytes:02x?}: {:?} {complaint}", insn.code()));
                    }
                }
            }
        }
    }
    (compared, wrong)
}
