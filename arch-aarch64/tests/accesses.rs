//! Which registers a simulated instruction reads and writes: ours against capstone's, over every instruction
//! of a real C library.
//!
//! The library is `libc.so.6` of Debian's `libc6-arm64-cross`; without it the test is skipped and says so.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

#[path = "../../tests/accesses.rs"]
mod shared;

use capstone::arch::arm64::ArchMode;
use capstone::prelude::*;
use object::{Object, ObjectSection};
use probe_arch_aarch64::regs::PSTATE_NZCV;
use probe_arch_aarch64::{Aarch64, BranchKind, Plan, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Method};
use shared::{Accesses, Everywhere, Simulated, accesses, mixed, mixed_or_edge};
use std::collections::{BTreeSet, HashMap};

const LIBC: &str = "/usr/aarch64-linux-gnu/lib/libc.so.6";
const PLACE: CodeAddr = CodeAddr::new(0x40_0000);
const SP: u8 = 31;
const NZCV: u8 = 32;

struct Insn(Plan);

impl Simulated for Insn {
    type Regs = PtRegs;
    const REGISTERS: u8 = NZCV + 1;

    fn read(regs: &PtRegs, register: u8) -> u64 {
        match register {
            SP => regs.sp,
            NZCV => regs.pstate & PSTATE_NZCV,
            number => regs.x[usize::from(number)],
        }
    }

    fn write(regs: &mut PtRegs, register: u8, seed: u64) {
        match register {
            SP => regs.sp = mixed(seed),
            NZCV => regs.pstate = mixed(seed) & PSTATE_NZCV,
            number => regs.x[usize::from(number)] = mixed_or_edge(seed),
        }
    }

    fn start(&self) -> PtRegs {
        PtRegs { pc: PLACE.as_usize() as u64, ..PtRegs::default() }
    }

    fn simulate(&self, regs: &mut PtRegs, memory: &Everywhere) -> u64 {
        Aarch64::simulate(&self.0, PLACE, regs, memory).expect("nothing faults");
        regs.pc
    }
}

/// The register of a name; `None` for the zero register and what is not general.
fn numbered(name: &str) -> Option<u8> {
    match name {
        "sp" | "wsp" => Some(SP),
        "nzcv" => Some(NZCV),
        "fp" => Some(29),
        "lr" => Some(30),
        name => name.strip_prefix(['x', 'w'])?.parse().ok(),
    }
}

fn theirs(capstone: &Capstone, word: u32) -> Option<(String, Accesses)> {
    let found = capstone.disasm_count(&word.to_le_bytes(), PLACE.as_usize() as u64, 1).ok()?;
    let found = found.first()?;
    let detail = capstone.insn_detail(found).ok()?;
    let named = |registers: &[RegId]| {
        registers.iter().filter_map(|id| numbered(&capstone.reg_name(*id)?)).collect::<BTreeSet<_>>()
    };
    Some((
        found.to_string(),
        Accesses { reads: named(detail.regs_read()), writes: named(detail.regs_write()) },
    ))
}

/// The plan without what changes no access: how far a label is, which bit is tested.
fn shape(plan: Plan) -> Plan {
    const OFFSET: i32 = 64;
    match plan {
        Plan::Branch { .. } => Plan::Branch { offset: OFFSET },
        Plan::BranchLink { .. } => Plan::BranchLink { offset: OFFSET },
        Plan::BranchCondition { cond, .. } => Plan::BranchCondition { cond, offset: OFFSET },
        Plan::CompareBranch { rt, width, when, .. } => {
            Plan::CompareBranch { rt, width, when, offset: OFFSET }
        }
        Plan::TestBranch { rt, when, .. } => Plan::TestBranch { rt, bit: 3, when, offset: OFFSET },
        Plan::Address { rd, .. } => Plan::Address { rd, offset: OFFSET },
        Plan::PageAddress { rd, .. } => Plan::PageAddress { rd, pages: OFFSET },
        Plan::LoadLiteral { rt, literal, .. } => Plan::LoadLiteral { rt, literal, offset: OFFSET },
        other => other,
    }
}

/// Where capstone differs from the manual (C6.2): CBZ, CBNZ, TBZ and TBNZ do not look at the flags, and RET
/// without an operand reads X30.
fn corrected(plan: Plan, mut theirs: Accesses) -> Accesses {
    if matches!(plan, Plan::CompareBranch { .. } | Plan::TestBranch { .. }) {
        theirs.reads.remove(&NZCV);
    }
    if matches!(plan, Plan::BranchRegister { rn: 30, kind: BranchKind::Return }) {
        theirs.reads.insert(30);
    }
    theirs
}

#[test]
fn a_simulated_instruction_reads_and_writes_what_capstone_says() {
    let Ok(bytes) = std::fs::read(LIBC) else {
        println!("skipped: no {LIBC} (apt-get install libc6-arm64-cross)");
        return;
    };
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let text = file.section_by_name(".text").and_then(|text| text.data().ok()).expect("it has text");
    let words: BTreeSet<u32> = text.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let capstone = Capstone::new().arm64().mode(ArchMode::Arm).detail(true).build().expect("capstone");
    let (mut known, mut wrong, mut compared) = (HashMap::new(), Vec::new(), 0);
    for word in words {
        let Ok((plan, Method::Simulate)) = Aarch64::classify(word) else { continue };
        let Some((asm, theirs)) = theirs(&capstone, word) else { continue };
        let theirs = corrected(plan, theirs);
        compared += 1;
        let insn = Insn(shape(plan));
        let ours = known.entry(format!("{:?}", insn.0)).or_insert_with(|| accesses(&insn));
        if *ours != theirs {
            wrong.push(format!("{word:#010x} {asm} {plan:?}: {ours:?}, capstone {theirs:?}"));
        }
    }
    println!("{LIBC}: {compared} distinct simulated instructions");
    assert!(compared > 10_000, "only {compared}");
    assert!(wrong.is_empty(), "{} disagreements: {:#?}", wrong.len(), &wrong[..wrong.len().min(30)]);
}
