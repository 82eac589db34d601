//! Exception generation, hints, barriers, PSTATE and system registers: an allow-list.
//!
//! An instruction that is not in one of the tables is refused. Section numbers are those of DDI 0487J.a. The
//! tables hold what a process may execute, and those system registers of a kernel that neither the probe's
//! trap nor the masking of interrupts around a slot can change between the original place and the slot.

use super::{PAUTH_LR, Plan, UNALLOCATED};
use crate::insn::{self, sysreg};
use probe_core::arch::Method;
use probe_core::error::Refusal;

const RUN: Result<(Plan, Method), Refusal> = Ok((Plan::OutOfLine, Method::Boost));
const NOP: Result<(Plan, Method), Refusal> = Ok((Plan::Nop, Method::Simulate));

pub(super) fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
    if insn::HINT.matches(word) {
        hint(word)
    } else if insn::TCOMMIT.matches(word) || insn::TSTART_TTEST.matches(word) || insn::TCANCEL.matches(word) {
        Err(TRANSACTION)
    } else if insn::BARRIER.matches(word) {
        barrier(word)
    } else if insn::WFXT.matches(word) {
        // Like WFE and WFI.
        RUN
    } else if insn::SVC.matches(word) {
        // The kernel sees the slot's address only where a signal restarts the system call: in the slot, then.
        Ok((Plan::SystemCall, Method::Boost))
    } else if insn::MSR_IMMEDIATE.matches(word) {
        msr_immediate(word)
    } else if insn::MRS.matches(word) {
        system_register(word, Direction::Read)
    } else if insn::MSR.matches(word) {
        system_register(word, Direction::Write)
    } else if insn::SYS.matches(word) {
        system_operation(word)
    } else {
        Err(exception(word))
    }
}

fn exception(word: u32) -> Refusal {
    if insn::BRK.matches(word) || insn::HLT.matches(word) {
        BREAKPOINT
    } else if insn::HVC.matches(word) || insn::SMC.matches(word) {
        HYPERCALL
    } else if insn::DCPS.matches(word) {
        DEBUG_STATE
    } else {
        UNALLOCATED
    }
}

/// C6.2.116 HINT and the instructions that alias it. Unallocated hints are refused: FEAT_PAuth_LR has shown
/// that a new one may depend on what stands next to it.
fn hint(word: u32) -> Result<(Plan, Method), Refusal> {
    match insn::hint_number(word) {
        // NOP; BTI, BTI c, BTI j, BTI jc: no effect but to clear BTYPE, which every simulation does.
        0 | 32 | 34 | 36 | 38 => NOP,
        // YIELD WFE WFI SEV SEVL DGH XPACLRI. WFE and WFI may wake at any time; an interrupt wakes them,
        // masked or not.
        1..=7 => RUN,
        // PACIA1716 PACIB1716 AUTIA1716 AUTIB1716, PAC/AUT of X30 with zero and SP: keys, X16, X17, X30, SP
        // only.
        8 | 10 | 12 | 14 | 24..=31 => RUN,
        // ESB, PSB CSYNC, TSB CSYNC, GCSB DSYNC, CSDB, CLRBHB, CHKFEAT X16.
        16..=20 | 22 | 40 => RUN,
        39 => Err(PAUTH_LR),
        _ => Err(HINT),
    }
}

/// C4.1.68: DSB nXS, CLREX, DSB, DMB, ISB, SB by op2.
fn barrier(word: u32) -> Result<(Plan, Method), Refusal> {
    match insn::op1_crm_op2(word).2 {
        1 | 2 | 4 | 5 | 6 | 7 => RUN,
        _ => Err(UNALLOCATED),
    }
}

/// C5.2, accessing PSTATE fields by immediate.
fn msr_immediate(word: u32) -> Result<(Plan, Method), Refusal> {
    match insn::op1_crm_op2(word) {
        // CFINV, XAFLAG, AXFLAG: flags only.
        (0, 0, 0..=2) => RUN,
        // SSBS, DIT, TCO: saved in the SPSR, given back by the exception return.
        (3, _, 1 | 2 | 4) => RUN,
        // SPSel, DAIFSet, DAIFClr, UAO, PAN, ALLINT, PM, and SVCR (streaming mode).
        _ => Err(PSTATE),
    }
}

/// The two directions of a system register access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// What may be done to a system register in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

/// One or several registers: op0:op1:CRn:CRm:op2 under a mask.
struct Row {
    mask: u16,
    value: u16,
    access: Access,
}

const ALL: u16 = 0xffff;
/// Any op2.
const CRM: u16 = 0xfff8;
/// Any CRm and op2.
const CRN: u16 = 0xff80;

const fn read_only(mask: u16, value: u16) -> Row {
    Row { mask, value, access: Access::ReadOnly }
}

const fn read_write(mask: u16, value: u16) -> Row {
    Row { mask, value, access: Access::ReadWrite }
}

/// D17.2 and D17.3 (register encodings). Not here, so refused: DAIF, ALLINT, SPSel, PMR (masked around a
/// slot); SPSR, ELR, ESR, FAR, AFSR, SP_ELx, PAR (overwritten by the trap or a handler); all debug and trace
/// registers (op0 = 2); writes to what configures translation, vectors or the core.
static REGISTERS: [Row; 31] = [
    // A process: NZCV, SVCR, DIT, SSBS, TCO.
    read_write(ALL, sysreg(3, 3, 4, 2, 0)),
    read_only(ALL, sysreg(3, 3, 4, 2, 2)),
    read_write(ALL, sysreg(3, 3, 4, 2, 5)),
    read_write(ALL, sysreg(3, 3, 4, 2, 6)),
    read_write(ALL, sysreg(3, 3, 4, 2, 7)),
    // FPCR, FPSR, FPMR.
    read_write(ALL, sysreg(3, 3, 4, 4, 0)),
    read_write(ALL, sysreg(3, 3, 4, 4, 1)),
    read_write(ALL, sysreg(3, 3, 4, 4, 2)),
    // TPIDR_EL0, TPIDRRO_EL0, TPIDR2_EL0, SCXTNUM_EL0.
    read_write(ALL, sysreg(3, 3, 13, 0, 2)),
    read_only(ALL, sysreg(3, 3, 13, 0, 3)),
    read_write(ALL, sysreg(3, 3, 13, 0, 5)),
    read_write(ALL, sysreg(3, 3, 13, 0, 7)),
    // CTR_EL0, DCZID_EL0.
    read_only(ALL, sysreg(3, 3, 0, 0, 1)),
    read_only(ALL, sysreg(3, 3, 0, 0, 7)),
    // RNDR, RNDRRS; GCSPR_EL0.
    read_only(ALL, sysreg(3, 3, 2, 4, 0)),
    read_only(ALL, sysreg(3, 3, 2, 4, 1)),
    read_only(ALL, sysreg(3, 3, 2, 5, 1)),
    // CNTFRQ, CNTPCT, CNTVCT and their self-synchronised forms; CNTP_*, CNTV_*.
    read_only(CRM, sysreg(3, 3, 14, 0, 0)),
    read_write(CRM, sysreg(3, 3, 14, 2, 0)),
    read_write(CRM, sysreg(3, 3, 14, 3, 0)),
    // PMCCNTR_EL0 and its group; PMEVCNTR<n>, PMEVTYPER<n>, PMCCFILTR (CRm 8 to 15).
    read_only(CRN, sysreg(3, 3, 9, 0, 0)),
    read_only(0xffc0, sysreg(3, 3, 14, 8, 0)),
    // A kernel: the identification registers (which Linux also emulates for processes), CCSIDR, CLIDR,
    // CSSELR.
    read_only(CRN, sysreg(3, 0, 0, 0, 0)),
    read_only(CRM, sysreg(3, 1, 0, 0, 0)),
    read_write(ALL, sysreg(3, 2, 0, 0, 0)),
    // CurrentEL; SCTLR, ACTLR, CPACR; TTBR0, TTBR1, TCR; MAIR and its kin.
    read_only(ALL, sysreg(3, 0, 4, 2, 2)),
    read_only(CRM, sysreg(3, 0, 1, 0, 0)),
    read_only(CRM, sysreg(3, 0, 2, 0, 0)),
    read_only(CRN, sysreg(3, 0, 10, 0, 0)),
    // VBAR; CONTEXTIDR, TPIDR_EL1 and their kin.
    read_only(ALL, sysreg(3, 0, 12, 0, 0)),
    read_only(CRM, sysreg(3, 0, 13, 0, 0)),
];

fn system_register(word: u32, direction: Direction) -> Result<(Plan, Method), Refusal> {
    let register = insn::system_register(word);
    let row = REGISTERS.iter().find(|row| register & row.mask == row.value);
    match (direction, row) {
        (Direction::Read, Some(_)) => RUN,
        (Direction::Write, Some(Row { access: Access::ReadWrite, .. })) => RUN,
        _ => Err(SYSTEM_REGISTER),
    }
}

/// C5.3 to C5.6: cache maintenance, address translation, TLB maintenance, prediction restriction. Mask,
/// value.
static OPERATIONS: [(u16, u16); 20] = [
    // IC IALLUIS, IC IALLU, IC IVAU.
    (ALL, sysreg(1, 0, 7, 1, 0)),
    (ALL, sysreg(1, 0, 7, 5, 0)),
    (ALL, sysreg(1, 3, 7, 5, 1)),
    // DC IVAC, ISW and the MTE forms; DC CSW; DC CISW.
    (CRM, sysreg(1, 0, 7, 6, 0)),
    (CRM, sysreg(1, 0, 7, 10, 0)),
    (CRM, sysreg(1, 0, 7, 14, 0)),
    // DC ZVA, GVA, GZVA; CVAC; CVAU; CVAP; CVADP; CIVAC.
    (ALL, sysreg(1, 3, 7, 4, 1)),
    (ALL, sysreg(1, 3, 7, 4, 3)),
    (ALL, sysreg(1, 3, 7, 4, 4)),
    (CRM, sysreg(1, 3, 7, 10, 0)),
    (ALL, sysreg(1, 3, 7, 11, 1)),
    (CRM, sysreg(1, 3, 7, 12, 0)),
    (CRM, sysreg(1, 3, 7, 13, 0)),
    (CRM, sysreg(1, 3, 7, 14, 0)),
    // CFP, DVP, COSP, CPP RCTX (op2 4 to 7).
    (0xfffc, sysreg(1, 3, 7, 3, 4)),
    // AT S1E*, AT S12E*.
    (0xfff0, sysreg(1, 0, 7, 8, 0)),
    (0xfff0, sysreg(1, 4, 7, 8, 0)),
    // TLBI of EL1 and EL2 (CRn 8), and their nXS forms (CRn 9).
    (0xff00, sysreg(1, 0, 8, 0, 0)),
    (0xff00, sysreg(1, 4, 8, 0, 0)),
    // TLBI of EL3.
    (0xff00, sysreg(1, 6, 8, 0, 0)),
];

fn system_operation(word: u32) -> Result<(Plan, Method), Refusal> {
    let operation = insn::system_register(word);
    if OPERATIONS.iter().any(|(mask, value)| operation & mask == *value) {
        return RUN;
    }
    Err(SYSTEM_OPERATION)
}

const BREAKPOINT: Refusal = Refusal::not_an_instruction(
    "aarch64.breakpoint",
    "brk and hlt are breakpoints already: somebody else's, or an assertion that has failed",
);
const HYPERCALL: Refusal = Refusal::unsupported(
    "aarch64.hypercall",
    "hvc and smc enter a higher exception level, which may look at the address of the caller",
);
const DEBUG_STATE: Refusal =
    Refusal::unsupported("aarch64.debug_state", "dcps exists in debug state only, where nothing traps");
const TRANSACTION: Refusal = Refusal::unsupported(
    "aarch64.transaction",
    "the probe's trap ends every transaction, so that one with a probe in it could never commit",
);
const HINT: Refusal = Refusal::unsupported(
    "aarch64.hint",
    "the hint is not allocated in the manuals known to this backend, and a new one may depend on its address",
);
const PSTATE: Refusal = Refusal::unsupported(
    "aarch64.pstate",
    "the instruction changes interrupt masks, the stack pointer's choice or the streaming mode under the probe",
);
const SYSTEM_REGISTER: Refusal = Refusal::unsupported(
    "aarch64.system_register",
    "the system register is changed by the probe's trap, controls it, or is not known to this backend",
);
const SYSTEM_OPERATION: Refusal = Refusal::unsupported(
    "aarch64.system_operation",
    "the system operation is not known to be independent of its address and of the probe's trap",
);

/// The values of the rows of both tables, and the numbers of the hints, that none of `words` exercises.
#[cfg(all(test, not(miri)))]
pub(super) fn rows_without_a_vector(words: &[u32]) -> std::vec::Vec<u16> {
    let hits = |class: insn::Class, mask: u16, value: u16| {
        words.iter().any(|word| class.matches(*word) && insn::system_register(*word) & mask == value)
    };
    let missed_reads = REGISTERS.iter().filter(|row| !hits(insn::MRS, row.mask, row.value));
    let writable = REGISTERS.iter().filter(|row| row.access == Access::ReadWrite);
    let missed_writes = writable.filter(|row| !hits(insn::MSR, row.mask, row.value));
    let missed_operations = OPERATIONS.iter().filter(|(mask, value)| !hits(insn::SYS, *mask, *value));
    let is_known = |number: &u16| hint(0xd503_201f | u32::from(*number) << 5).is_ok();
    let has_vector = |number: &u16| words.contains(&(0xd503_201f | u32::from(*number) << 5));
    (missed_reads.chain(missed_writes).map(|row| row.value))
        .chain(missed_operations.map(|(_, value)| *value))
        .chain((0..128).filter(|number| is_known(number) && !has_vector(number)))
        .collect()
}
