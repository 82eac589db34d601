//! Which registers a simulated instruction reads and writes: ours, found out by changing one register at a
//! time, against capstone's, over every instruction of two real C libraries.
//!
//! The libraries are the system's and the one of Debian's `libc6-i386-cross` (or `libc6-i386`); what is not
//! there is skipped and said. Where capstone disagrees, [`is_known`] has the reason.

#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

#[path = "../../tests/accesses.rs"]
mod shared;

use capstone::arch::x86::ArchMode;
use capstone::prelude::*;
use object::{Object, ObjectSection};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method, Regs as _};
use probe_x86_decode::decode::decode_bytes;
use probe_x86_decode::{
    Effect, FlagBits, MAX_INSN_LEN, MemoryOperand, Plan, Registers, Source, StackEffect, insn_len,
};
use shared::{Accesses, Everywhere, Simulated, accesses, mixed, mixed_or_edge};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;

/// A register: a general one by its number, or the flags.
type Register = u8;
const FLAGS: Register = 16;
const SP: Register = 4;

/// The flags that instructions compute and test.
const TESTED: u64 =
    FlagBits::CF | FlagBits::PF | FlagBits::AF | FlagBits::ZF | FlagBits::SF | FlagBits::OF | FlagBits::DF;

const PLACE: CodeAddr = CodeAddr::new(0x40_0000);

/// A plan of a backend.
struct Insn<'a, A>(&'a Plan, PhantomData<A>);

impl<A: Arch<Plan = Plan, Regs: Registers + Default>> Simulated for Insn<'_, A> {
    type Regs = A::Regs;
    const REGISTERS: u8 = FLAGS + 1;

    fn read(regs: &A::Regs, register: Register) -> u64 {
        if register == FLAGS { regs.flags() } else { regs.general(register) }
    }

    fn write(regs: &mut A::Regs, register: Register, seed: u64) {
        match register {
            FLAGS => regs.set_flags(mixed(seed) & TESTED),
            number => regs.set_general(number, mixed_or_edge(seed)),
        }
    }

    fn start(&self) -> A::Regs {
        let mut regs = A::Regs::default();
        regs.set_pc(PLACE);
        regs
    }

    fn simulate(&self, regs: &mut A::Regs, memory: &Everywhere) -> u64 {
        A::simulate(self.0, PLACE, regs, memory).expect("nothing faults");
        regs.pc().as_usize() as u64
    }
}

/// The register of a name, whatever its width; `None` for those that are not compared (segments, the
/// instruction pointer).
fn numbered(name: &str) -> Option<Register> {
    const NAMES: [&str; 8] = ["ax", "cx", "dx", "bx", "sp", "bp", "si", "di"];
    if name.ends_with("flags") {
        return Some(FLAGS);
    }
    if let Some(digits) = name.strip_prefix('r').map(|rest| rest.trim_end_matches(['d', 'w', 'b']))
        && let Ok(number) = digits.parse()
    {
        return Some(number);
    }
    let stem = name.strip_prefix(['r', 'e']).unwrap_or(name);
    NAMES.iter().position(|known| *known == stem).map(|number| number as Register)
}

fn theirs(capstone: &Capstone, insn: &[u8]) -> Option<(String, Accesses)> {
    let found = capstone.disasm_count(insn, PLACE.as_usize() as u64, 1).ok()?;
    let found = found.first().filter(|found| found.len() == insn.len())?;
    let detail = capstone.insn_detail(found).ok()?;
    let named = |registers: &[RegId]| {
        registers.iter().filter_map(|id| numbered(&capstone.reg_name(*id)?)).collect::<BTreeSet<_>>()
    };
    let accesses = Accesses { reads: named(detail.regs_read()), writes: named(detail.regs_write()) };
    Some((found.to_string(), accesses))
}

/// Whether a disagreement is capstone's, or none: the reasons.
fn is_known(plan: &Plan, ours: &Accesses, theirs: &Accesses) -> bool {
    let missing = |ours: &BTreeSet<Register>, theirs: &BTreeSet<Register>| -> Vec<Register> {
        ours.symmetric_difference(theirs).copied().collect()
    };
    let differ = (missing(&ours.reads, &theirs.reads), missing(&ours.writes, &theirs.writes));
    match plan.effect {
        // SDM: the stack pointer gets the frame pointer; its own value is of no interest.
        Effect::Stack(StackEffect::Leave) => differ == (vec![SP], vec![]),
        // A hint: the operand that it names is not accessed.
        Effect::Nop => ours.reads.is_empty() && ours.writes.is_empty(),
        // A register that gets its own value: no execution tells.
        Effect::MoveRegister { to, from, .. } => {
            to == from && ours.reads.is_empty() && ours.writes.is_empty()
        }
        Effect::LoadAddress { to, .. } => {
            ours.reads.is_empty() && ours.writes.is_empty() && theirs.writes == BTreeSet::from([to])
        }
        _ => false,
    }
}

/// The effect without what changes no access: how far a branch leads, which number is moved.
fn shape(effect: Effect) -> Effect {
    let near = |operand: MemoryOperand| {
        let displacement = if operand.displacement == 0 { 0 } else { 64 };
        MemoryOperand { displacement, ..operand }
    };
    match effect {
        Effect::Jump { .. } => Effect::Jump { displacement: 64 },
        Effect::Call { .. } => Effect::Call { displacement: 64 },
        Effect::Branch { condition, .. } => Effect::Branch { condition, displacement: 64 },
        Effect::Loop { kind, counter, .. } => Effect::Loop { kind, counter, displacement: 64 },
        Effect::Stack(StackEffect::PushImmediate(_)) => Effect::Stack(StackEffect::PushImmediate(64)),
        Effect::MoveImmediate { to, width, .. } => Effect::MoveImmediate { to, width, value: 64 },
        Effect::LoadAddress { to, width, operand } => {
            Effect::LoadAddress { to, width, operand: near(operand) }
        }
        Effect::JumpIndirect(Source::Memory(operand)) => Effect::JumpIndirect(Source::Memory(near(operand))),
        Effect::CallIndirect(Source::Memory(operand)) => Effect::CallIndirect(Source::Memory(near(operand))),
        other => other,
    }
}

/// The distinct simulated instructions of a file's text, and its disagreements.
fn compare<A: Arch<Plan = Plan, Regs: Registers + Default>>(path: &str, mode: ArchMode) -> Option<usize> {
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let section = file.section_by_name(".text").expect("it has text");
    let text = section.data().expect("text is in the file");
    let capstone = Capstone::new().x86().mode(mode).detail(true).build().expect("capstone");
    let (mut seen, mut wrong, mut at) = (HashSet::new(), Vec::new(), 0);
    let mut known = HashMap::new();
    while at < text.len() {
        let window = &text[at..text.len().min(at + MAX_INSN_LEN)];
        let len = length::<A>(window).unwrap_or(1);
        at += len;
        let Ok(decoded) = decoded::<A>(window) else { continue };
        let insn = &window[..len];
        if decoded.method != Method::Simulate || !seen.insert(insn.to_vec()) {
            continue;
        }
        let Some((asm, theirs)) = theirs(&capstone, insn) else { continue };
        let plan = Plan { effect: shape(decoded.plan.effect), len_bytes: 4 };
        let ours =
            known.entry(format!("{plan:?}")).or_insert_with(|| accesses(&Insn::<A>(&plan, PhantomData)));
        if *ours != theirs && !is_known(&plan, ours, &theirs) {
            wrong.push(format!("{insn:02x?} {asm} {:?}: {ours:?}, capstone {theirs:?}", decoded.plan.effect));
        }
    }
    wrong.sort_by_key(String::len);
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
    Some(seen.len())
}

fn length<A: Arch<Regs: Registers>>(window: &[u8]) -> Option<usize> {
    insn_len::<<A::Regs as Registers>::Mode>(window)
}

fn decoded<A: Arch<Regs: Registers>>(
    window: &[u8],
) -> Result<probe_core::arch::Decoded<Plan>, probe_core::error::Refusal> {
    decode_bytes::<<A::Regs as Registers>::Mode>(window)
}

#[test]
fn a_simulated_instruction_reads_and_writes_what_capstone_says() {
    let long = |path| compare::<probe_arch_x86_64::X86_64>(path, ArchMode::Mode64);
    let protected = |path| compare::<probe_arch_i386::I386>(path, ArchMode::Mode32);
    let first = |paths: &[&'static str], compare: &dyn Fn(&'static str) -> Option<usize>| {
        let compared = paths.iter().find_map(|path| compare(path).map(|count| (path, count)));
        match compared {
            Some((path, count)) => {
                println!("{path}: {count} distinct simulated instructions");
                assert!(count > 10_000, "only {count}");
            }
            None => println!("skipped: none of {paths:?} (apt-get install libc6-i386-cross)"),
        }
    };
    first(&["/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib64/libc.so.6"], &long);
    first(&["/usr/i686-linux-gnu/lib/libc.so.6", "/lib/i386-linux-gnu/libc.so.6"], &protected);
}
