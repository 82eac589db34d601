//! Named encodings, field extractors and the opcode tables of the Power ISA.
//!
//! Sources are given as book and section title of the Power ISA, version 3.1C (section numbers moved between
//! versions, titles did not). Instructions that only older versions have say so. Words are values, bit 0 of
//! the manual being the most significant one, whatever the byte order of the text they come from. Pure.

use probe_core::error::Refusal;

/// `tw 31,0,0`, the unconditional trap: our breakpoint. Book I, "Trap Instructions".
pub(crate) const TRAP: u32 = 0x7fe0_0008;
/// `ori 0,0,0`, the preferred no-op. Book I, "Fixed-Point Logical Instructions".
pub(crate) const NOP: u32 = 0x6000_0000;
/// `xori 0,0,0`, the no-op for execution timing. Book I, "Fixed-Point Logical Instructions".
pub(crate) const XNOP: u32 = 0x6800_0000;
/// `mfspr 0,815`: the target address register into r0. Book I, "Move To/From System Register Instructions".
pub(crate) const MFTAR_R0: u32 = mfspr(0, SPR_TAR);

/// XER. Book I, "Move To/From System Register Instructions".
pub(crate) const SPR_XER: u32 = 1;
/// Link register.
pub(crate) const SPR_LR: u32 = 8;
/// Count register.
pub(crate) const SPR_CTR: u32 = 9;
/// Target address register.
pub(crate) const SPR_TAR: u32 = 815;

/// Primary opcode of an instruction prefix. Book I, "Instruction Prefix Formats".
pub(crate) const OP_PREFIX: u32 = 1;
/// Primary opcode of `bc`. Book I, "Branch Instructions".
pub(crate) const OP_BC: u32 = 16;
/// Primary opcode of `b`. Book I, "Branch Instructions".
pub(crate) const OP_B: u32 = 18;
/// Primary opcode of the XL-form instructions.
pub(crate) const OP_XL: u32 = 19;
/// Primary opcode of most X-form and XO-form instructions.
pub(crate) const OP_X: u32 = 31;

/// Extended opcode of `bclr`. Book I, "Branch Instructions".
pub(crate) const XO_BCLR: u32 = 16;
/// Extended opcode of `bcctr`.
pub(crate) const XO_BCCTR: u32 = 528;
/// Extended opcode of `bctar`.
pub(crate) const XO_BCTAR: u32 = 560;
/// Extended opcode (five bits) of `addpcis`. Book I, "Fixed-Point Arithmetic Instructions".
pub(crate) const XO_ADDPCIS: u32 = 2;

/// Bits 0:5, the primary opcode.
pub(crate) const fn opcd(word: u32) -> u32 {
    word >> 26
}

/// Bits 21:30, the extended opcode of X and XL forms.
pub(crate) const fn xo(word: u32) -> u32 {
    (word >> 1) & 0x3ff
}

/// Bits 26:30, the extended opcode of DX forms.
pub(crate) const fn xo5(word: u32) -> u32 {
    (word >> 1) & 0x1f
}

/// Bits 6:10: RT, RS, BO or TO.
pub(crate) const fn rt(word: u32) -> usize {
    (word >> 21) as usize & 31
}

/// Bits 11:15: RA or BI.
pub(crate) const fn ra(word: u32) -> usize {
    (word >> 16) as usize & 31
}

/// Bits 16:20: RB.
pub(crate) const fn rb(word: u32) -> usize {
    (word >> 11) as usize & 31
}

/// Bit 31 of a branch: it sets the link register.
pub(crate) const fn lk(word: u32) -> bool {
    word & 1 != 0
}

/// Bit 30 of a branch: its target is absolute.
pub(crate) const fn aa(word: u32) -> bool {
    word & 2 != 0
}

/// LI of an I-form branch, in bytes.
pub(crate) const fn li(word: u32) -> i64 {
    (((word << 6) as i32) >> 6 & !3) as i64
}

/// BD of a B-form branch, in bytes.
pub(crate) const fn bd(word: u32) -> i64 {
    (word & 0xfffc) as u16 as i16 as i64
}

/// D of `addpcis` (d0 || d1 || d2), shifted into place.
pub(crate) const fn addpcis_d(word: u32) -> i64 {
    let d = (word & 0xffc0) | (ra(word) as u32) << 1 | (word & 1);
    ((d as u16 as i16) as i64) << 16
}

/// The SPR number of `mfspr` and `mtspr`, its halves put in order.
pub(crate) const fn spr(word: u32) -> u32 {
    (word >> 16) & 0x1f | (word >> 6) & 0x3e0
}

/// Whether a BO field tests the condition register bit: BO bit 0 is 0. Book I, "Branch Instructions".
pub(crate) const fn bo_tests_cr(bo: usize) -> bool {
    bo & 0x10 == 0
}

/// Whether a BO field decrements CTR: BO bit 2 is 0.
pub(crate) const fn bo_decrements(bo: usize) -> bool {
    bo & 0x04 == 0
}

/// Whether a BO field branches always.
pub(crate) const fn bo_is_always(bo: usize) -> bool {
    !bo_tests_cr(bo) && !bo_decrements(bo)
}

/// `b` by `offset` bytes, or `None` out of its reach.
pub(crate) const fn b(offset: i64) -> Option<u32> {
    if offset & 3 != 0 || offset < -0x200_0000 || offset > 0x1ff_fffc {
        return None;
    }
    Some(OP_B << 26 | (offset as u32) & 0x03ff_fffc)
}

/// `mfspr rt,spr`.
pub(crate) const fn mfspr(rt: u32, spr: u32) -> u32 {
    OP_X << 26 | rt << 21 | (spr & 0x1f) << 16 | (spr >> 5) << 11 | 339 << 1
}

/// `mtspr spr,rs`.
pub(crate) const fn mtspr(spr: u32, rs: u32) -> u32 {
    OP_X << 26 | rs << 21 | (spr & 0x1f) << 16 | (spr >> 5) << 11 | 467 << 1
}

/// R of a prefix: the access is relative to the prefix's own address. Book I, "Instruction Prefix Formats".
pub(crate) const fn prefix_is_pc_relative(prefix: u32) -> bool {
    prefix & 0x0010_0000 != 0
}

/// The 34-bit displacement of an 8LS or MLS instruction (d0 || d1).
pub(crate) const fn prefix_displacement(prefix: u32, suffix: u32) -> i64 {
    let d = ((prefix & 0x3_ffff) as u64) << 16 | (suffix & 0xffff) as u64;
    ((d << 30) as i64) >> 30
}

/// Prefix and suffix with another displacement, or `None` where it does not fit into 34 bits.
pub(crate) const fn with_prefix_displacement(prefix: u32, suffix: u32, d: i64) -> Option<(u32, u32)> {
    if d < -(1 << 33) || d >= 1 << 33 {
        return None;
    }
    Some((prefix & !0x3_ffff | (d >> 16) as u32 & 0x3_ffff, suffix & !0xffff | d as u32 & 0xffff))
}

/// Whether a trap instruction traps always: TO is all ones, or asks for equality of a register with itself.
///
/// Every debugger's breakpoint is of this kind (`tw 31,0,0`; gdb's `twge 2,2`). Book I, "Trap Instructions".
pub(crate) const fn is_unconditional_trap(word: u32) -> bool {
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
pub(crate) const fn is_toc_restore(word: u32) -> bool {
    matches!(word, 0xe841_0018 | 0xe841_0028)
}

/// Whether `word` is a branch that sets the link register. Book I, "Branch Instructions".
pub(crate) const fn is_call(word: u32) -> bool {
    let is_branch = match opcd(word) {
        OP_B | OP_BC => true,
        OP_XL => matches!(xo(word), XO_BCLR | XO_BCCTR | XO_BCTAR),
        _ => false,
    };
    is_branch && lk(word)
}

/// The kind of instruction of an opcode, which decode turns into a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
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
    Refuse(&'static Refusal),
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
pub(crate) struct Row {
    /// The primary or extended opcode, or the SPR number.
    pub(crate) code: u16,
    /// The mnemonic, or a word for the group.
    #[allow(dead_code, reason = "the tests hold the vectors against it")]
    pub(crate) name: &'static str,
    /// What decode does with it.
    pub(crate) class: Class,
}

const fn row(code: u16, name: &'static str, class: Class) -> Row {
    Row { code, name, class }
}

/// Looks up an extended opcode.
pub(crate) fn find(table: &'static [Row], code: u32) -> Option<Class> {
    table.iter().find(|row| u32::from(row.code) == code).map(|row| row.class)
}

/// Trap class: the trap of a copy would not be the trap of the place.
pub(crate) static REFUSE_TRAP: Refusal =
    Refusal::unsupported("ppc64.trap", "a trap instruction reports its own address and cannot run as a copy");
/// A return from an interrupt or event.
pub(crate) static REFUSE_RFID: Refusal = Refusal::unsupported(
    "ppc64.rfid",
    "a return from an interrupt takes its state from registers that a probe's trap overwrites",
);
/// Power-saving and halting instructions.
pub(crate) static REFUSE_STOP: Refusal = Refusal::unsupported(
    "ppc64.stop",
    "a power-saving or waiting instruction resumes in ways that a copy cannot follow",
);
/// Writes to the MSR.
pub(crate) static REFUSE_MTMSR: Refusal = Refusal::unsupported(
    "ppc64.mtmsr",
    "a write to the machine state register takes effect on the copy's surroundings, not on the place's",
);
/// Special-purpose registers that the probe's own trap overwrites.
pub(crate) static REFUSE_SPR: Refusal = Refusal::unsupported(
    "ppc64.trap-register",
    "this special-purpose register is overwritten by the probe's own trap",
);
/// Load-and-reserve and store-conditional.
pub(crate) static REFUSE_RESERVATION: Refusal = Refusal::unsupported(
    "ppc64.reservation",
    "a trap at a load-and-reserve or store-conditional instruction loses the reservation",
);
/// Anything between the two.
pub(crate) static REFUSE_RESERVATION_REGION: Refusal = Refusal::unsupported(
    "ppc64.reservation-region",
    "a trap between a load-and-reserve and its store-conditional instruction loses the reservation for ever",
);
/// The copy-paste facility.
pub(crate) static REFUSE_COPY_PASTE: Refusal =
    Refusal::unsupported("ppc64.copy-paste", "a trap between copy and paste loses the copy buffer");
/// Transactional memory.
pub(crate) static REFUSE_TM: Refusal =
    Refusal::unsupported("ppc64.transaction", "a transaction cannot be begun, ended or examined by a copy");
/// Opcodes that the architecture does not define.
pub(crate) static REFUSE_UNALLOCATED: Refusal =
    Refusal::unsupported("ppc64.unallocated", "the Power ISA 3.1C defines no instruction with this opcode");
/// Defined opcodes in a form that the architecture calls invalid.
pub(crate) static REFUSE_INVALID_FORM: Refusal = Refusal::unsupported(
    "ppc64.invalid-form",
    "the instruction form is invalid and its effect is not defined",
);
/// Zero words and `attn`.
pub(crate) static REFUSE_ATTN: Refusal = Refusal::unsupported(
    "ppc64.attn",
    "primary opcode 0 is attn or padding, not an instruction of a program",
);
/// A prefixed instruction across a 64-byte boundary.
pub(crate) static REFUSE_CROSSING: Refusal = Refusal::unsupported(
    "ppc64.prefixed-crossing",
    "a prefixed instruction that crosses a 64-byte boundary raises an alignment interrupt in place",
);
/// The second word of a prefixed instruction.
pub(crate) static REFUSE_SUFFIX: Refusal =
    Refusal::not_an_instruction("ppc64.suffix", "the address is the second word of a prefixed instruction");
/// A misaligned address.
pub(crate) static REFUSE_MISALIGNED: Refusal =
    Refusal::not_an_instruction("ppc64.misaligned", "instructions start at multiples of four bytes");
/// Text that ends early.
pub(crate) static REFUSE_TRUNCATED: Refusal =
    Refusal::not_an_instruction("ppc64.truncated", "the text ends inside the instruction");
/// A word that unwinders read.
pub(crate) static REFUSE_TOC_RESTORE: Refusal = Refusal::unsupported(
    "ppc64.toc-restore",
    "unwinders read this word behind a call to find the caller's TOC pointer; probe the next instruction",
);
/// A slot out of reach.
pub(crate) static REFUSE_SLOT_REACH: Refusal =
    Refusal::unsupported("ppc64.slot-reach", "what the instruction addresses is out of reach of its slot");

use Class::{Plain, Refuse};

/// Primary opcodes. Power ISA 3.1C, Appendix "Opcode Maps", and the sections given beside the rows.
#[rustfmt::skip]
pub(crate) static PRIMARY: [Row; 64] = [
    row(0, "attn", Refuse(&REFUSE_ATTN)),           // Book I, "Illegal Instruction Class"
    row(1, "prefix", Class::Prefix),                // Book I, "Instruction Prefix Formats"
    row(2, "tdi", Refuse(&REFUSE_TRAP)),            // Book I, "Trap Instructions"
    row(3, "twi", Refuse(&REFUSE_TRAP)),
    row(4, "vector", Plain),                         // Book I, "Vector Facility"
    row(5, "", Refuse(&REFUSE_UNALLOCATED)),
    row(6, "lxvp/stxvp", Plain),                     // Book I, "VSX Load/Store Instructions"
    row(7, "mulli", Plain),                          // Book I, "Fixed-Point Arithmetic Instructions"
    row(8, "subfic", Plain),
    row(9, "", Refuse(&REFUSE_UNALLOCATED)),
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
    row(22, "", Refuse(&REFUSE_UNALLOCATED)),
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
pub(crate) static SYSTEM_CALL: [Row; 2] = [row(2, "sc", Class::Sc), row(1, "scv", Class::Scv)];

/// Primary opcode 19; what is not listed (and is not `addpcis`) is refused.
#[rustfmt::skip]
pub(crate) static XL: [Row; 29] = [
    row(0, "mcrf", Plain),                           // Book I, "Condition Register Instructions"
    row(16, "bclr", Class::Bclr),                   // Book I, "Branch Instructions"
    row(18, "rfid", Refuse(&REFUSE_RFID)),          // Book III, "System Linkage Instructions"
    row(33, "crnor", Plain),
    row(38, "rfmci", Refuse(&REFUSE_RFID)),         // Book E (2.07, Book III-E), as the next four
    row(39, "rfdi", Refuse(&REFUSE_RFID)),
    row(50, "rfi", Refuse(&REFUSE_RFID)),
    row(51, "rfci", Refuse(&REFUSE_RFID)),
    row(102, "rfgi", Refuse(&REFUSE_RFID)),
    row(82, "rfscv", Refuse(&REFUSE_RFID)),         // Book III, "System Linkage Instructions"
    row(129, "crandc", Plain),
    row(146, "rfebb", Refuse(&REFUSE_RFID)),        // Book II, "Event-Based Branch Instructions"
    row(150, "isync", Plain),                        // Book II, "Synchronization Instructions"
    row(193, "crxor", Plain),
    row(198, "dnh", Refuse(&REFUSE_STOP)),          // Book E (2.07, Book III-E)
    row(225, "crnand", Plain),
    row(257, "crand", Plain),
    row(274, "hrfid", Refuse(&REFUSE_RFID)),        // Book III, "System Linkage Instructions"
    row(289, "creqv", Plain),
    row(306, "urfid", Refuse(&REFUSE_RFID)),        // Book III, "System Linkage Instructions"
    row(370, "stop", Refuse(&REFUSE_STOP)),         // Book III, "Power-Saving Mode Instruction"
    row(402, "doze", Refuse(&REFUSE_STOP)),         // 2.07, Book III-S, as the next three
    row(434, "nap", Refuse(&REFUSE_STOP)),
    row(466, "sleep", Refuse(&REFUSE_STOP)),
    row(498, "rvwinkle", Refuse(&REFUSE_STOP)),
    row(417, "crorc", Plain),
    row(449, "cror", Plain),
    row(528, "bcctr", Class::Bcctr),                // Book I, "Branch Instructions"
    row(560, "bctar", Class::Bctar),
];

/// Primary opcode 31: what does not simply run as a copy.
#[rustfmt::skip]
pub(crate) static X: [Row; 36] = [
    row(4, "tw", Refuse(&REFUSE_TRAP)),             // Book I, "Trap Instructions"
    row(68, "td", Refuse(&REFUSE_TRAP)),
    row(754, "hashchk", Refuse(&REFUSE_TRAP)),      // Book I, "Fixed-Point Hash Instructions": may trap
    row(690, "hashchkp", Refuse(&REFUSE_TRAP)),     // Book III, the same
    row(20, "lwarx", Refuse(&REFUSE_RESERVATION)),  // Book II, "Load And Reserve and Store Conditional Instructions"
    row(52, "lbarx", Refuse(&REFUSE_RESERVATION)),
    row(84, "ldarx", Refuse(&REFUSE_RESERVATION)),
    row(116, "lharx", Refuse(&REFUSE_RESERVATION)),
    row(276, "lqarx", Refuse(&REFUSE_RESERVATION)),
    row(150, "stwcx.", Refuse(&REFUSE_RESERVATION)),
    row(182, "stqcx.", Refuse(&REFUSE_RESERVATION)),
    row(214, "stdcx.", Refuse(&REFUSE_RESERVATION)),
    row(694, "stbcx.", Refuse(&REFUSE_RESERVATION)),
    row(726, "sthcx.", Refuse(&REFUSE_RESERVATION)),
    row(774, "copy", Refuse(&REFUSE_COPY_PASTE)),   // Book II, "Copy-Paste Facility"
    row(838, "cpabort", Refuse(&REFUSE_COPY_PASTE)),
    row(902, "paste.", Refuse(&REFUSE_COPY_PASTE)),
    row(30, "wait", Refuse(&REFUSE_STOP)),          // Book II, "Wait Instruction"
    row(62, "wait", Refuse(&REFUSE_STOP)),          // the same in 2.06 and 2.07 (embedded)
    row(83, "mfmsr", Class::Mfmsr),                 // Book III, "Move To/From System Register Instructions"
    row(146, "mtmsr", Refuse(&REFUSE_MTMSR)),
    row(178, "mtmsrd", Refuse(&REFUSE_MTMSR)),
    row(339, "mfspr", Class::Mfspr),
    row(467, "mtspr", Class::Mtspr),
    row(654, "tbegin.", Refuse(&REFUSE_TM)),        // 3.0B, Book II, "Transactional Memory Facility"
    row(686, "tend.", Refuse(&REFUSE_TM)),
    row(718, "tcheck", Refuse(&REFUSE_TM)),
    row(750, "tsr.", Refuse(&REFUSE_TM)),
    row(782, "tabortwc.", Refuse(&REFUSE_TM)),
    row(814, "tabortdc.", Refuse(&REFUSE_TM)),
    row(846, "tabortwci.", Refuse(&REFUSE_TM)),
    row(878, "tabortdci.", Refuse(&REFUSE_TM)),
    row(910, "tabort.", Refuse(&REFUSE_TM)),
    row(942, "treclaim.", Refuse(&REFUSE_TM)),      // 3.0B, Book III, the same
    row(1006, "trechkpt.", Refuse(&REFUSE_TM)),
    row(270, "ehpriv", Refuse(&REFUSE_TRAP)),       // Book E (2.07, Book III-E)
];

/// Special-purpose registers that the probe's trap itself overwrites. Book III, "Interrupt Registers" and
/// "Software-use SPRs".
#[rustfmt::skip]
pub(crate) static SPRS: [Row; 17] = [
    row(18, "DSISR", Refuse(&REFUSE_SPR)),
    row(19, "DAR", Refuse(&REFUSE_SPR)),
    row(22, "DEC", Refuse(&REFUSE_SPR)),
    row(26, "SRR0", Refuse(&REFUSE_SPR)),
    row(27, "SRR1", Refuse(&REFUSE_SPR)),
    row(28, "CFAR", Refuse(&REFUSE_SPR)),
    row(272, "SPRG0", Refuse(&REFUSE_SPR)),
    row(273, "SPRG1", Refuse(&REFUSE_SPR)),
    row(274, "SPRG2", Refuse(&REFUSE_SPR)),
    row(275, "SPRG3", Refuse(&REFUSE_SPR)),
    row(304, "HSPRG0", Refuse(&REFUSE_SPR)),
    row(305, "HSPRG1", Refuse(&REFUSE_SPR)),
    row(306, "HDSISR", Refuse(&REFUSE_SPR)),
    row(307, "HDAR", Refuse(&REFUSE_SPR)),
    row(314, "HSRR0", Refuse(&REFUSE_SPR)),
    row(315, "HSRR1", Refuse(&REFUSE_SPR)),
    row(339, "HEIR", Refuse(&REFUSE_SPR)),
];

/// A prefixed instruction: prefix type (bits 6:7 of the prefix) and primary opcode of the suffix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixedRow {
    /// 0 8LS, 1 8RR, 2 MLS, 3 MRR.
    pub(crate) kind: u8,
    /// Primary opcode of the suffix.
    pub(crate) suffix: u8,
    /// The mnemonic.
    #[allow(dead_code, reason = "the tests hold the vectors against it")]
    pub(crate) name: &'static str,
}

const fn prefixed(kind: u8, suffix: u8, name: &'static str) -> PrefixedRow {
    PrefixedRow { kind, suffix, name }
}

/// The no-op of two words: MRR with subtype 0, any suffix. Book I, "Prefixed No-Operation Instruction".
pub(crate) const PNOP_PREFIX: u32 = 0x0700_0000;

/// Prefixed instructions. Book I, "Instruction Prefix Formats", and Appendix "Opcode Maps".
#[rustfmt::skip]
pub(crate) static PREFIXED: [PrefixedRow; 31] = [
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
