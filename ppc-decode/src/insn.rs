//! Named encodings, field extractors and the opcode tables of the Power ISA.
//!
//! Sources are given as book and section title of the Power ISA, version 3.1C (section numbers moved between
//! versions, titles did not). Instructions that only older versions have say so. Words are values, bit 0 of
//! the manual being the most significant one, whatever the byte order of the text they come from. Pure.

use crate::Reason;
use probe_core::CodeAddr;

/// `tw 31,0,0`, the unconditional trap: our breakpoint. Book I, "Trap Instructions".
pub const TRAP: u32 = 0x7fe0_0008;
/// `ori 0,0,0`, the preferred no-op. Book I, "Fixed-Point Logical Instructions".
pub const NOP: u32 = 0x6000_0000;
/// `xori 0,0,0`, the no-op for execution timing. Book I, "Fixed-Point Logical Instructions".
pub const XNOP: u32 = 0x6800_0000;
/// `mfspr 0,815`: the target address register into r0. Book I, "Move To/From System Register Instructions".
pub const MFTAR_R0: u32 = mfspr(0, SPR_TAR);

/// XER. Book I, "Move To/From System Register Instructions".
pub const SPR_XER: u32 = 1;
/// Link register.
pub const SPR_LR: u32 = 8;
/// Count register.
pub const SPR_CTR: u32 = 9;
/// Target address register.
pub const SPR_TAR: u32 = 815;

/// Primary opcode of an instruction prefix. Book I, "Instruction Prefix Formats".
pub const OP_PREFIX: u32 = 1;
/// Primary opcode of `bc`. Book I, "Branch Instructions".
pub const OP_BC: u32 = 16;
/// Primary opcode of `b`. Book I, "Branch Instructions".
pub const OP_B: u32 = 18;
/// Primary opcode of the XL-form instructions.
pub const OP_XL: u32 = 19;
/// Primary opcode of most X-form and XO-form instructions.
pub const OP_X: u32 = 31;

/// Extended opcode of `bclr`. Book I, "Branch Instructions".
pub const XO_BCLR: u32 = 16;
/// Extended opcode of `bcctr`.
pub const XO_BCCTR: u32 = 528;
/// Extended opcode of `bctar`.
pub const XO_BCTAR: u32 = 560;
/// Extended opcode (five bits) of `addpcis`. Book I, "Fixed-Point Arithmetic Instructions".
pub const XO_ADDPCIS: u32 = 2;

/// Bits 0:5, the primary opcode.
pub const fn opcd(word: u32) -> u32 {
    word >> 26
}

/// Bits 21:30, the extended opcode of X and XL forms.
pub const fn xo(word: u32) -> u32 {
    (word >> 1) & 0x3ff
}

/// Bits 26:30, the extended opcode of DX forms.
pub const fn xo5(word: u32) -> u32 {
    (word >> 1) & 0x1f
}

/// Bits 6:10: RT, RS, BO or TO.
pub const fn rt(word: u32) -> usize {
    (word >> 21) as usize & 31
}

/// Bits 11:15: RA or BI.
pub const fn ra(word: u32) -> usize {
    (word >> 16) as usize & 31
}

/// Bits 16:20: RB.
pub const fn rb(word: u32) -> usize {
    (word >> 11) as usize & 31
}

/// Bit 31 of a branch: it sets the link register.
pub const fn lk(word: u32) -> bool {
    word & 1 != 0
}

/// Bit 30 of a branch: its target is absolute.
pub const fn aa(word: u32) -> bool {
    word & 2 != 0
}

/// LI of an I-form branch, in bytes.
pub const fn li(word: u32) -> i64 {
    (((word << 6) as i32) >> 6 & !3) as i64
}

/// BD of a B-form branch, in bytes.
pub const fn bd(word: u32) -> i64 {
    (word & 0xfffc) as u16 as i16 as i64
}

/// D of `addpcis` (d0 || d1 || d2), shifted into place.
pub const fn addpcis_d(word: u32) -> i64 {
    let d = (word & 0xffc0) | (ra(word) as u32) << 1 | (word & 1);
    ((d as u16 as i16) as i64) << 16
}

/// The SPR number of `mfspr` and `mtspr`, its halves put in order.
pub const fn spr(word: u32) -> u32 {
    (word >> 16) & 0x1f | (word >> 6) & 0x3e0
}

/// Whether a BO field tests the condition register bit: BO bit 0 is 0. Book I, "Branch Instructions".
pub const fn bo_tests_cr(bo: usize) -> bool {
    bo & 0x10 == 0
}

/// Whether a BO field decrements CTR: BO bit 2 is 0.
pub const fn bo_decrements(bo: usize) -> bool {
    bo & 0x04 == 0
}

/// Whether a BO field branches always.
pub const fn bo_is_always(bo: usize) -> bool {
    !bo_tests_cr(bo) && !bo_decrements(bo)
}

/// Where the direct branch `word` of `at` leads when it is taken.
#[must_use]
pub fn branch_target(word: u32, at: CodeAddr) -> Option<CodeAddr> {
    let distance = match opcd(word) {
        OP_B => li(word),
        OP_BC => bd(word),
        _ => return None,
    };
    Some(if aa(word) { CodeAddr::new(distance as usize) } else { at.wrapping_offset(distance as isize) })
}

/// `b` by `offset` bytes, or `None` out of its reach.
pub const fn b(offset: i64) -> Option<u32> {
    if offset & 3 != 0 || offset < -0x200_0000 || offset > 0x1ff_fffc {
        return None;
    }
    Some(OP_B << 26 | (offset as u32) & 0x03ff_fffc)
}

/// `mfspr rt,spr`.
pub const fn mfspr(rt: u32, spr: u32) -> u32 {
    OP_X << 26 | rt << 21 | (spr & 0x1f) << 16 | (spr >> 5) << 11 | 339 << 1
}

/// `mtspr spr,rs`.
pub const fn mtspr(spr: u32, rs: u32) -> u32 {
    OP_X << 26 | rs << 21 | (spr & 0x1f) << 16 | (spr >> 5) << 11 | 467 << 1
}

/// R of a prefix: the access is relative to the prefix's own address. Book I, "Instruction Prefix Formats".
pub const fn prefix_is_pc_relative(prefix: u32) -> bool {
    prefix & 0x0010_0000 != 0
}

/// The 34-bit displacement of an 8LS or MLS instruction (d0 || d1).
pub const fn prefix_displacement(prefix: u32, suffix: u32) -> i64 {
    let d = ((prefix & 0x3_ffff) as u64) << 16 | (suffix & 0xffff) as u64;
    ((d << 30) as i64) >> 30
}

/// Prefix and suffix with another displacement, or `None` where it does not fit into 34 bits.
pub const fn with_prefix_displacement(prefix: u32, suffix: u32, d: i64) -> Option<(u32, u32)> {
    if d < -(1 << 33) || d >= 1 << 33 {
        return None;
    }
    Some((prefix & !0x3_ffff | (d >> 16) as u32 & 0x3_ffff, suffix & !0xffff | d as u32 & 0xffff))
}

/// Whether a trap instruction traps always: TO is all ones, or asks for equality of a register with itself.
///
/// Every debugger's breakpoint is of this kind (`tw 31,0,0`; gdb's `twge 2,2`). Book I, "Trap Instructions".
pub const fn is_unconditional_trap(word: u32) -> bool {
    match opcd(word) {
        2 | 3 => rt(word) == 31,
        OP_X if xo(word) == 4 || xo(word) == 68 => {
            rt(word) == 31 || (rt(word) & 4 != 0 && ra(word) == rb(word))
        }
        _ => false,
    }
}

/// Whether `word` loads r2 from where a caller's TOC pointer is kept: `ld r2,24(r1)` (ELFv2) or `ld
/// r2,40(r1)` (ELFv1).
pub const fn is_toc_restore(word: u32) -> bool {
    matches!(word, 0xe841_0018 | 0xe841_0028)
}

/// Whether `word` is a branch that sets the link register. Book I, "Branch Instructions".
pub const fn is_call(word: u32) -> bool {
    let is_branch = match opcd(word) {
        OP_B | OP_BC => true,
        OP_XL => matches!(xo(word), XO_BCLR | XO_BCCTR | XO_BCTAR),
        _ => false,
    };
    is_branch && lk(word)
}

/// The kind of instruction of an opcode, which decode turns into a plan.
#[derive(Clone, Copy, Debug)]
pub enum Class {
    /// Depends on nothing but registers and memory: runs as a copy.
    Plain,
    /// `b` and its forms.
    B,
    /// `bc` and its forms.
    Bc,
    /// `bclr`.
    Bclr,
    /// `bcctr`.
    Bcctr,
    /// `bctar`.
    Bctar,
    /// `addpcis`.
    Addpcis,
    /// `sc`.
    Sc,
    /// `scv`: leaves its own address in the link register.
    Scv,
    /// `mfmsr`.
    Mfmsr,
    /// `mfspr`: [`SPRS`] says more.
    Mfspr,
    /// `mtspr`: [`SPRS`] says more.
    Mtspr,
    /// Cannot be probed.
    Refuse(Reason),
    /// The extended opcode decides: [`SYSTEM_CALL`].
    SystemCall,
    /// The extended opcode decides: [`XL`].
    Xl,
    /// The extended opcode decides: [`X`]; what is not listed there is [`Class::Plain`].
    X,
    /// The first word of a prefixed instruction: [`PREFIXED`].
    Prefix,
}

/// A row of an opcode table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The primary or extended opcode, or the SPR number.
    pub code: u16,
    /// The mnemonic, or a word for the group.
    pub name: &'static str,
    /// What decode does with it.
    pub class: Class,
}

const fn row(code: u16, name: &'static str, class: Class) -> Row {
    Row { code, name, class }
}

/// Looks up an extended opcode.
pub fn find(table: &'static [Row], code: u32) -> Option<Class> {
    table.iter().find(|row| u32::from(row.code) == code).map(|row| row.class)
}

/// Looks up an extended opcode in two tables, of which the second is short; what is in neither is
/// [`Class::Plain`].
pub fn find_also(table: &'static [Row], also: &'static [Row], code: u32) -> Class {
    find(table, code).or_else(|| find(also, code)).unwrap_or(Class::Plain)
}

use Class::{Plain, Refuse};

/// Primary opcodes. Power ISA 3.1C, Appendix "Opcode Maps", and the sections given beside the rows.
#[rustfmt::skip]
pub static PRIMARY: [Row; 64] = [
    row(0, "attn", Refuse(Reason::Attn)),           // Book I, "Illegal Instruction Class"
    row(1, "prefix", Class::Prefix),                // Book I, "Instruction Prefix Formats"
    row(2, "tdi", Refuse(Reason::Trap)),            // Book I, "Trap Instructions"
    row(3, "twi", Refuse(Reason::Trap)),
    row(4, "vector", Plain),                         // Book I, "Vector Facility"
    row(5, "", Refuse(Reason::Unallocated)),
    row(6, "lxvp/stxvp", Plain),                     // Book I, "VSX Load/Store Instructions"
    row(7, "mulli", Plain),                          // Book I, "Fixed-Point Arithmetic Instructions"
    row(8, "subfic", Plain),
    row(9, "", Refuse(Reason::Unallocated)),
    row(10, "cmpli", Plain),                         // Book I, "Fixed-Point Compare Instructions"
    row(11, "cmpi", Plain),
    row(12, "addic", Plain),                         // Book I, "Fixed-Point Arithmetic Instructions"
    row(13, "addic.", Plain),
    row(14, "addi", Plain),
    row(15, "addis", Plain),
    row(16, "bc", Class::Bc),                       // Book I, "Branch Instructions"
    row(17, "sc", Class::SystemCall),               // Book I, "System Call Instructions"
    row(18, "b", Class::B),                         // Book I, "Branch Instructions"
    row(19, "XL", Class::Xl),
    row(20, "rlwimi", Plain),                        // Book I, "Fixed-Point Rotate and Shift Instructions"
    row(21, "rlwinm", Plain),
    row(22, "", Refuse(Reason::Unallocated)),
    row(23, "rlwnm", Plain),
    row(24, "ori", Plain),                           // Book I, "Fixed-Point Logical Instructions"
    row(25, "oris", Plain),
    row(26, "xori", Plain),
    row(27, "xoris", Plain),
    row(28, "andi.", Plain),
    row(29, "andis.", Plain),
    row(30, "rld", Plain),                           // Book I, "Fixed-Point Rotate and Shift Instructions"
    row(31, "X", Class::X),
    row(32, "lwz", Plain),                           // Book I, "Fixed-Point Load Instructions", "… Store …"
    row(33, "lwzu", Plain),
    row(34, "lbz", Plain),
    row(35, "lbzu", Plain),
    row(36, "stw", Plain),
    row(37, "stwu", Plain),
    row(38, "stb", Plain),
    row(39, "stbu", Plain),
    row(40, "lhz", Plain),
    row(41, "lhzu", Plain),
    row(42, "lha", Plain),
    row(43, "lhau", Plain),
    row(44, "sth", Plain),
    row(45, "sthu", Plain),
    row(46, "lmw", Plain),                           // Book I, "Fixed-Point Load and Store Multiple Instructions"
    row(47, "stmw", Plain),
    row(48, "lfs", Plain),                           // Book I, "Floating-Point Load Instructions", "… Store …"
    row(49, "lfsu", Plain),
    row(50, "lfd", Plain),
    row(51, "lfdu", Plain),
    row(52, "stfs", Plain),
    row(53, "stfsu", Plain),
    row(54, "stfd", Plain),
    row(55, "stfdu", Plain),
    row(56, "lq", Plain),                            // Book I, "Load/Store Quadword"
    row(57, "lxsd", Plain),                          // Book I, "VSX Load/Store Instructions", and lfdp, lxssp
    row(58, "ld", Plain),                            // Book I, "64-bit Fixed-Point Load Instructions"
    row(59, "fadds", Plain),                         // Book I, "Floating-Point Facility", DFP, MMA
    row(60, "vsx", Plain),                           // Book I, "Vector-Scalar Extension Facility"
    row(61, "lxv", Plain),                           // Book I, "VSX Load/Store Instructions", and stfdp, stxsd
    row(62, "std", Plain),                           // Book I, "64-bit Fixed-Point Store Instructions", and stq
    row(63, "fadd", Plain),                          // Book I, "Floating-Point Facility", DFP, quad precision
];

/// Bits 30:31 of primary opcode 17. Book I, "System Call Instructions"; what is not listed is refused.
pub static SYSTEM_CALL: [Row; 2] = [row(2, "sc", Class::Sc), row(1, "scv", Class::Scv)];

/// Primary opcode 19; what is not listed (and is not `addpcis`) is refused.
#[rustfmt::skip]
pub static XL: [Row; 29] = [
    row(0, "mcrf", Plain),                           // Book I, "Condition Register Instructions"
    row(16, "bclr", Class::Bclr),                   // Book I, "Branch Instructions"
    row(18, "rfid", Refuse(Reason::ReturnFromInterrupt)),          // Book III, "System Linkage Instructions"
    row(33, "crnor", Plain),
    row(38, "rfmci", Refuse(Reason::ReturnFromInterrupt)),         // Book E (2.07, Book III-E), as the next four
    row(39, "rfdi", Refuse(Reason::ReturnFromInterrupt)),
    row(50, "rfi", Refuse(Reason::ReturnFromInterrupt)),
    row(51, "rfci", Refuse(Reason::ReturnFromInterrupt)),
    row(102, "rfgi", Refuse(Reason::ReturnFromInterrupt)),
    row(82, "rfscv", Refuse(Reason::ReturnFromInterrupt)),         // Book III, "System Linkage Instructions"
    row(129, "crandc", Plain),
    row(146, "rfebb", Refuse(Reason::ReturnFromInterrupt)),        // Book II, "Event-Based Branch Instructions"
    row(150, "isync", Plain),                        // Book II, "Synchronization Instructions"
    row(193, "crxor", Plain),
    row(198, "dnh", Refuse(Reason::Stop)),          // Book E (2.07, Book III-E)
    row(225, "crnand", Plain),
    row(257, "crand", Plain),
    row(274, "hrfid", Refuse(Reason::ReturnFromInterrupt)),        // Book III, "System Linkage Instructions"
    row(289, "creqv", Plain),
    row(306, "urfid", Refuse(Reason::ReturnFromInterrupt)),        // Book III, "System Linkage Instructions"
    row(370, "stop", Refuse(Reason::Stop)),         // Book III, "Power-Saving Mode Instruction"
    row(402, "doze", Refuse(Reason::Stop)),         // 2.07, Book III-S, as the next three
    row(434, "nap", Refuse(Reason::Stop)),
    row(466, "sleep", Refuse(Reason::Stop)),
    row(498, "rvwinkle", Refuse(Reason::Stop)),
    row(417, "crorc", Plain),
    row(449, "cror", Plain),
    row(528, "bcctr", Class::Bcctr),                // Book I, "Branch Instructions"
    row(560, "bctar", Class::Bctar),
];

/// Primary opcode 31: what does not simply run as a copy.
#[rustfmt::skip]
pub static X: [Row; 36] = [
    row(4, "tw", Refuse(Reason::Trap)),             // Book I, "Trap Instructions"
    row(68, "td", Refuse(Reason::Trap)),
    row(754, "hashchk", Refuse(Reason::Trap)),      // Book I, "Fixed-Point Hash Instructions": may trap
    row(690, "hashchkp", Refuse(Reason::Trap)),     // Book III, the same
    row(20, "lwarx", Refuse(Reason::Reservation)),  // Book II, "Load And Reserve and Store Conditional Instructions"
    row(52, "lbarx", Refuse(Reason::Reservation)),
    row(84, "ldarx", Refuse(Reason::Reservation)),
    row(116, "lharx", Refuse(Reason::Reservation)),
    row(276, "lqarx", Refuse(Reason::Reservation)),
    row(150, "stwcx.", Refuse(Reason::Reservation)),
    row(182, "stqcx.", Refuse(Reason::Reservation)),
    row(214, "stdcx.", Refuse(Reason::Reservation)),
    row(694, "stbcx.", Refuse(Reason::Reservation)),
    row(726, "sthcx.", Refuse(Reason::Reservation)),
    row(774, "copy", Refuse(Reason::CopyPaste)),   // Book II, "Copy-Paste Facility"
    row(838, "cpabort", Refuse(Reason::CopyPaste)),
    row(902, "paste.", Refuse(Reason::CopyPaste)),
    row(30, "wait", Refuse(Reason::Stop)),          // Book II, "Wait Instruction"
    row(62, "wait", Refuse(Reason::Stop)),          // the same in 2.06 and 2.07 (embedded)
    row(83, "mfmsr", Class::Mfmsr),                 // Book III, "Move To/From System Register Instructions"
    row(146, "mtmsr", Refuse(Reason::Mtmsr)),
    row(178, "mtmsrd", Refuse(Reason::Mtmsr)),
    row(339, "mfspr", Class::Mfspr),
    row(467, "mtspr", Class::Mtspr),
    row(654, "tbegin.", Refuse(Reason::Transaction)),        // 3.0B, Book II, "Transactional Memory Facility"
    row(686, "tend.", Refuse(Reason::Transaction)),
    row(718, "tcheck", Refuse(Reason::Transaction)),
    row(750, "tsr.", Refuse(Reason::Transaction)),
    row(782, "tabortwc.", Refuse(Reason::Transaction)),
    row(814, "tabortdc.", Refuse(Reason::Transaction)),
    row(846, "tabortwci.", Refuse(Reason::Transaction)),
    row(878, "tabortdci.", Refuse(Reason::Transaction)),
    row(910, "tabort.", Refuse(Reason::Transaction)),
    row(942, "treclaim.", Refuse(Reason::Transaction)),      // 3.0B, Book III, the same
    row(1006, "trechkpt.", Refuse(Reason::Transaction)),
    row(270, "ehpriv", Refuse(Reason::Trap)),       // Book E (2.07, Book III-E)
];

/// Special-purpose registers that the probe's trap itself overwrites. Book III, "Interrupt Registers" and
/// "Software-use SPRs".
#[rustfmt::skip]
pub static SPRS: [Row; 17] = [
    row(18, "DSISR", Refuse(Reason::TrapRegister)),
    row(19, "DAR", Refuse(Reason::TrapRegister)),
    row(22, "DEC", Refuse(Reason::TrapRegister)),
    row(26, "SRR0", Refuse(Reason::TrapRegister)),
    row(27, "SRR1", Refuse(Reason::TrapRegister)),
    row(28, "CFAR", Refuse(Reason::TrapRegister)),
    row(272, "SPRG0", Refuse(Reason::TrapRegister)),
    row(273, "SPRG1", Refuse(Reason::TrapRegister)),
    row(274, "SPRG2", Refuse(Reason::TrapRegister)),
    row(275, "SPRG3", Refuse(Reason::TrapRegister)),
    row(304, "HSPRG0", Refuse(Reason::TrapRegister)),
    row(305, "HSPRG1", Refuse(Reason::TrapRegister)),
    row(306, "HDSISR", Refuse(Reason::TrapRegister)),
    row(307, "HDAR", Refuse(Reason::TrapRegister)),
    row(314, "HSRR0", Refuse(Reason::TrapRegister)),
    row(315, "HSRR1", Refuse(Reason::TrapRegister)),
    row(339, "HEIR", Refuse(Reason::TrapRegister)),
];

/// Primary opcode 31: what Book E has, and 32-bit processors with it. 2.07, Book III-E, "Move To/From System
/// Register Instructions".
pub static X_32: [Row; 2] =
    [row(131, "wrtee", Refuse(Reason::Mtmsr)), row(163, "wrteei", Refuse(Reason::Mtmsr))];

/// Special-purpose registers of Book E that the probe's trap itself, or its step, overwrites. 2.07, Book
/// III-E, "Interrupt Registers" and "Debug Facility".
#[rustfmt::skip]
pub static SPRS_32: [Row; 3] = [
    row(61, "DEAR", Refuse(Reason::TrapRegister)),
    row(62, "ESR", Refuse(Reason::TrapRegister)),
    row(308, "DBCR0", Refuse(Reason::TrapRegister)),
];

/// A prefixed instruction: prefix type (bits 6:7 of the prefix) and primary opcode of the suffix.
#[derive(Clone, Copy, Debug)]
pub struct PrefixedRow {
    /// 0 8LS, 1 8RR, 2 MLS, 3 MRR.
    pub kind: u8,
    /// Primary opcode of the suffix.
    pub suffix: u8,
    /// The mnemonic.
    pub name: &'static str,
}

const fn prefixed(kind: u8, suffix: u8, name: &'static str) -> PrefixedRow {
    PrefixedRow { kind, suffix, name }
}

/// The no-op of two words: MRR with subtype 0, any suffix. Book I, "Prefixed No-Operation Instruction".
pub const PNOP_PREFIX: u32 = 0x0700_0000;

/// Prefixed instructions. Book I, "Instruction Prefix Formats", and Appendix "Opcode Maps".
#[rustfmt::skip]
pub static PREFIXED: [PrefixedRow; 31] = [
    prefixed(0, 41, "plwa"),   prefixed(0, 42, "plxsd"),  prefixed(0, 43, "plxssp"), prefixed(0, 46, "pstxsd"),
    prefixed(0, 47, "pstxssp"), prefixed(0, 50, "plxv"),  prefixed(0, 51, "plxv"),   prefixed(0, 54, "pstxv"),
    prefixed(0, 55, "pstxv"),  prefixed(0, 56, "plq"),    prefixed(0, 57, "pld"),    prefixed(0, 58, "plxvp"),
    prefixed(0, 60, "pstq"),   prefixed(0, 61, "pstd"),   prefixed(0, 62, "pstxvp"),
    prefixed(1, 32, "xxspltiw"), prefixed(1, 33, "xxblendvb"), prefixed(1, 34, "xxpermx"),
    prefixed(2, 14, "paddi"),  prefixed(2, 32, "plwz"),   prefixed(2, 34, "plbz"),   prefixed(2, 36, "pstw"),
    prefixed(2, 38, "pstb"),   prefixed(2, 40, "plhz"),   prefixed(2, 42, "plha"),   prefixed(2, 44, "psth"),
    prefixed(2, 48, "plfs"),   prefixed(2, 50, "plfd"),   prefixed(2, 52, "pstfs"),  prefixed(2, 54, "pstfd"),
    prefixed(3, 59, "pmxvi4ger8"),
];
