//! Named encodings and field extractors.
//!
//! A [`Class`] is a mask and a value over a 32-bit instruction word; the names are the manual's. All section
//! numbers are those of the Arm Architecture Reference Manual, DDI 0487 issue J.a (C4.1 is the encoding
//! index, C5 the system instruction space, C6.2 the base instructions), unless a comment names a later
//! extension. Pure data, usable anywhere. A64 instructions are little-endian on every machine (B2.6.2):
//! [`word_at`].

/// The instruction word that `bytes` starts with, whatever the byte order of this machine.
pub(crate) const fn word_at(bytes: &[u8]) -> Option<u32> {
    match bytes.first_chunk::<4>() {
        Some(word) => Some(u32::from_le_bytes(*word)),
        None => None,
    }
}

/// The instruction words with `word & mask == value`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    mask: u32,
    value: u32,
}

impl Class {
    const fn new(mask: u32, value: u32) -> Self {
        assert!(value & !mask == 0);
        Self { mask, value }
    }

    /// One single encoding.
    const fn exactly(word: u32) -> Self {
        Self::new(u32::MAX, word)
    }

    pub(crate) const fn matches(self, word: u32) -> bool {
        word & self.mask == self.value
    }
}

// ---- breakpoints: C4.1.65 exception generation ------------------------------------------------------------

/// `brk #imm16`.
pub(crate) const BRK: Class = Class::new(0xffe0_001f, 0xd420_0000);
/// `hlt #imm16`: halting debug and semihosting.
pub(crate) const HLT: Class = Class::new(0xffe0_001f, 0xd440_0000);
/// `svc #imm16`.
pub(crate) const SVC: Class = Class::new(0xffe0_001f, 0xd400_0001);
/// `mov x8, #139` (`rt_sigreturn`) and `svc #0`.
pub(crate) const SIGNAL_RETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];
/// `hvc #imm16`.
pub(crate) const HVC: Class = Class::new(0xffe0_001f, 0xd400_0002);
/// `smc #imm16`.
pub(crate) const SMC: Class = Class::new(0xffe0_001f, 0xd400_0003);
/// `dcps1`, `dcps2`, `dcps3`.
pub(crate) const DCPS: Class = Class::new(0xffe0_001c, 0xd4a0_0000);
/// `udf #imm16`, permanently undefined (C4.1.2).
pub(crate) const UDF: Class = Class::new(0xffff_0000, 0x0000_0000);

/// The immediate of [`breakpoint`] at probed places and in slots: "KU". Not one of Linux's own (arch/arm64's
/// asm/brk-imm.h uses 0x004-0x007, 0x100, 0x400, 0x401, 0x800, 0x900, 0x5500 and up), so that a kernel that
/// has kprobes of its own tells them apart. Its first byte in memory is 0xa0, which is rare in A64 text
/// (0x00, 0x20 and 0xe0 are not): a search for breakpoints in text finds few candidates.
pub(crate) const PROBE_IMM: u16 = 0x4b55;

/// `brk #imm`.
pub(crate) const fn breakpoint(imm: u16) -> u32 {
    0xd420_0000 | (imm as u32) << 5
}

// ---- PC-relative data: C4.1.92, C4.1.94 -------------------------------------------------------------------

/// `adr Xd, label`.
pub(crate) const ADR: Class = Class::new(0x9f00_0000, 0x1000_0000);
/// `adrp Xd, label`.
pub(crate) const ADRP: Class = Class::new(0x9f00_0000, 0x9000_0000);
/// Load register (literal), all sizes: opc in bits 31:30, bit 26 chooses SIMD&FP.
pub(crate) const LDR_LITERAL: Class = Class::new(0x3b00_0000, 0x1800_0000);
/// The SIMD&FP half of [`LDR_LITERAL`].
pub(crate) const LDR_LITERAL_SIMD: Class = Class::new(0x3f00_0000, 0x1c00_0000);

// ---- branches: C4.1.64 to C4.1.72 -------------------------------------------------------------------------

/// `b label`.
pub(crate) const B: Class = Class::new(0xfc00_0000, 0x1400_0000);
/// `bl label`.
pub(crate) const BL: Class = Class::new(0xfc00_0000, 0x9400_0000);
/// `b.cond label`.
pub(crate) const B_COND: Class = Class::new(0xff00_0010, 0x5400_0000);
/// `bc.cond label` (FEAT_HBC).
pub(crate) const BC_COND: Class = Class::new(0xff00_0010, 0x5400_0010);
/// `cbz`, `cbnz` (bit 24), W and X (bit 31).
pub(crate) const CBZ_CBNZ: Class = Class::new(0x7e00_0000, 0x3400_0000);
/// `tbz`, `tbnz` (bit 24).
pub(crate) const TBZ_TBNZ: Class = Class::new(0x7e00_0000, 0x3600_0000);
/// `br Xn`.
pub(crate) const BR: Class = Class::new(0xffff_fc1f, 0xd61f_0000);
/// `blr Xn`.
pub(crate) const BLR: Class = Class::new(0xffff_fc1f, 0xd63f_0000);
/// `ret Xn`.
pub(crate) const RET: Class = Class::new(0xffff_fc1f, 0xd65f_0000);
/// `braaz Xn`, `brabz Xn` (bit 10: key B).
pub(crate) const BRAZ: Class = Class::new(0xffff_f81f, 0xd61f_081f);
/// `blraaz Xn`, `blrabz Xn`.
pub(crate) const BLRAZ: Class = Class::new(0xffff_f81f, 0xd63f_081f);
/// `braa Xn, Xm|SP`, `brab Xn, Xm|SP`.
pub(crate) const BRA: Class = Class::new(0xffff_f800, 0xd71f_0800);
/// `blraa Xn, Xm|SP`, `blrab Xn, Xm|SP`.
pub(crate) const BLRA: Class = Class::new(0xffff_f800, 0xd73f_0800);
/// `retaa`, `retab`.
pub(crate) const RETA: Class = Class::new(0xffff_fbff, 0xd65f_0bff);
/// `eret`.
pub(crate) const ERET: Class = Class::exactly(0xd69f_03e0);
/// `eretaa`, `eretab`.
pub(crate) const ERETA: Class = Class::new(0xffff_fbff, 0xd69f_0bff);
/// `drps`.
pub(crate) const DRPS: Class = Class::exactly(0xd6bf_03e0);
/// Everything in "branches, exception generating and system instructions" (bits 28:26 = 101).
pub(crate) const BRANCH_EXCEPTION_SYSTEM: Class = Class::new(0x1c00_0000, 0x1400_0000);

// ---- FEAT_PAuth_LR (Arm A64 instruction set, DDI 0602, 2024-03) -------------------------------------------

/// `retaasppc label`, `retabsppc label` (bit 21).
pub(crate) const RETASPPC: Class = Class::new(0xffc0_001f, 0x5500_001f);
/// `autiasppc label`, `autibsppc label` (bit 21), and the words beside them that are not allocated (bits 4:0
/// not 11111).
pub(crate) const AUTISPPC: Class = Class::new(0xffc0_0000, 0xf380_0000);
/// `retaasppcr Xm`, `retabsppcr Xm` (bit 10); Xm = 31 is [`RETA`].
pub(crate) const RETASPPCR: Class = Class::new(0xffff_fbe0, 0xd65f_0be0);
/// `paciasppc`, `pacibsppc` (bit 10), `pacnbiasppc`, `pacnbibsppc` (bit 13 clear): they sign with the PC.
pub(crate) const PACISPPC: Class = Class::new(0xffff_dbff, 0xdac1_83fe);
/// `pacm`: the next PACI*SP, AUTI*SP or RETA* takes the PC into its modifier.
pub(crate) const PACM: Class = Class::exactly(0xd503_24ff);

// ---- sequences that must not be interrupted ---------------------------------------------------------------

/// Load/store exclusive, acquire/release, compare and swap: size o2 L o1 (C4.1.94).
const EXCLUSIVE_SPACE: Class = Class::new(0x3f00_0000, 0x0800_0000);
/// The unprivileged exclusives of FEAT_LSUI (`ldtxr`, `sttxr`, `cast`), DDI 0602 2024-03.
pub(crate) const EXCLUSIVE_UNPRIVILEGED: Class = Class::new(0x3f00_0000, 0x0900_0000);
/// `clrex #imm4` (C6.2.72).
pub(crate) const CLREX: Class = Class::new(0xffff_f0ff, 0xd503_305f);
/// Memory copy and memory set, FEAT_MOPS: `cpyp` … `sete` (C4.1.94, "Memory Copy and Memory Set").
pub(crate) const MOPS: Class = Class::new(0x3b20_0c00, 0x1900_0400);
/// `movprfx Zd, Zn` (C8.2).
pub(crate) const MOVPRFX: Class = Class::new(0xffff_fc00, 0x0420_bc00);
/// `movprfx Zd.T, Pg/ZM, Zn.T` (C8.2).
pub(crate) const MOVPRFX_PREDICATED: Class = Class::new(0xff3e_e000, 0x0410_2000);
/// `tstart Xt` and `ttest Xt` (bit 8) of FEAT_TME (DDI 0617).
pub(crate) const TSTART_TTEST: Class = Class::new(0xffff_fee0, 0xd523_3060);
/// `tcommit`.
pub(crate) const TCOMMIT: Class = Class::exactly(0xd503_307f);
/// `tcancel #imm16`.
pub(crate) const TCANCEL: Class = Class::new(0xffe0_001f, 0xd460_0000);

/// What an instruction does to the exclusive monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Monitor {
    /// LDXR, LDAXR, LDXP, LDAXP: opens a region.
    Open,
    /// STXR, STLXR, STXP, STLXP: ends one.
    Store,
    /// CLREX ends one without a store.
    Clear,
    /// Nothing.
    Untouched,
}

/// What `word` does to the exclusive monitor (B2.12).
///
/// CAS, CASP, LDAR, STLR and their kin share the encoding space but are single accesses: untouched.
pub(crate) const fn monitor(word: u32) -> Monitor {
    if CLREX.matches(word) {
        return Monitor::Clear;
    }
    let (o2, load, o1) = (field(word, 23, 1), field(word, 22, 1), field(word, 21, 1));
    let pair_or_single = o1 == 0 || word >> 31 == 1;
    if (EXCLUSIVE_SPACE.matches(word) || EXCLUSIVE_UNPRIVILEGED.matches(word)) && o2 == 0 && pair_or_single {
        return if load == 1 { Monitor::Open } else { Monitor::Store };
    }
    Monitor::Untouched
}

// ---- hints, barriers, PSTATE, system registers: C4.1.66 to C4.1.71, C5 ------------------------------------

/// The hint space: `hint #imm7`, imm7 in bits 11:5.
pub(crate) const HINT: Class = Class::new(0xffff_f01f, 0xd503_201f);
/// Barriers: CRm in 11:8, op2 in 7:5.
pub(crate) const BARRIER: Class = Class::new(0xffff_f01f, 0xd503_301f);
/// `wfet Xt`, `wfit Xt` (bit 5).
pub(crate) const WFXT: Class = Class::new(0xffff_ffc0, 0xd503_1000);
/// MSR (immediate): op1 in 18:16, CRm in 11:8, op2 in 7:5.
pub(crate) const MSR_IMMEDIATE: Class = Class::new(0xfff8_f01f, 0xd500_401f);
/// MSR (register): o0 in 19, op1 CRn CRm op2 in 18:5.
pub(crate) const MSR: Class = Class::new(0xfff0_0000, 0xd510_0000);
/// MRS.
pub(crate) const MRS: Class = Class::new(0xfff0_0000, 0xd530_0000);
/// SYS (DC, IC, AT, TLBI, …).
pub(crate) const SYS: Class = Class::new(0xfff8_0000, 0xd508_0000);

/// The number of an instruction of the [`HINT`] space: CRm:op2.
pub(crate) const fn hint_number(word: u32) -> u8 {
    field(word, 5, 7) as u8
}

/// `op1:CRm:op2` as (op1, CRm, op2) of an instruction of the PSTATE, barrier or hint space.
pub(crate) const fn op1_crm_op2(word: u32) -> (u8, u8, u8) {
    (field(word, 16, 3) as u8, field(word, 8, 4) as u8, field(word, 5, 3) as u8)
}

/// op0:op1:CRn:CRm:op2 of MRS, MSR (op0 is 2 or 3) and SYS (op0 is 1), in 16 bits.
pub(crate) const fn system_register(word: u32) -> u16 {
    field(word, 5, 16) as u16
}

/// The 16 bits of [`system_register`] for `S<op0>_<op1>_C<crn>_C<crm>_<op2>`.
pub(crate) const fn sysreg(op0: u16, op1: u16, crn: u16, crm: u16, op2: u16) -> u16 {
    op0 << 14 | op1 << 11 | crn << 7 | crm << 3 | op2
}

// ---- landing pads and function entries --------------------------------------------------------------------

/// `bti`, `bti c`, `bti j`, `bti jc`: hints 32, 34, 36, 38 (C6.2.41).
pub(crate) const BTI: Class = Class::new(0xffff_ff3f, 0xd503_241f);

/// `paciasp`, `pacibsp`: hints 25 and 27, which are landing pads too (C6.2.253).
pub(crate) const PACI_SP: Class = Class::new(0xffff_ffbf, 0xd503_233f);

// ---- fields -----------------------------------------------------------------------------------------------

/// `bits` bits of `word` from bit `low`, unsigned.
pub(crate) const fn field(word: u32, low: u32, bits: u32) -> u32 {
    word >> low & ((1 << bits) - 1)
}

/// `bits` bits of `word` from bit `low`, signed.
pub(crate) const fn signed_field(word: u32, low: u32, bits: u32) -> i32 {
    (word << (32 - low - bits)) as i32 >> (32 - bits)
}

/// Rd or Rt: bits 4:0.
pub(crate) const fn rd(word: u32) -> u8 {
    field(word, 0, 5) as u8
}

/// Rn: bits 9:5.
pub(crate) const fn rn(word: u32) -> u8 {
    field(word, 5, 5) as u8
}

/// imm26 of B and BL, in bytes.
pub(crate) const fn offset26(word: u32) -> i32 {
    signed_field(word, 0, 26) * 4
}

/// imm19 of B.cond, CBZ and LDR (literal), in bytes.
pub(crate) const fn offset19(word: u32) -> i32 {
    signed_field(word, 5, 19) * 4
}

/// imm14 of TBZ, in bytes.
pub(crate) const fn offset14(word: u32) -> i32 {
    signed_field(word, 5, 14) * 4
}

/// immhi:immlo of ADR (bytes) and ADRP (pages of 4096 bytes).
pub(crate) const fn adr_immediate(word: u32) -> i32 {
    signed_field(word, 5, 19) * 4 + field(word, 29, 2) as i32
}

/// Where a direct branch leads, in bytes from itself; `None` where `word` is none.
pub(crate) const fn direct_branch(word: u32) -> Option<i32> {
    if B.matches(word) || BL.matches(word) {
        Some(offset26(word))
    } else if B_COND.matches(word) || BC_COND.matches(word) || CBZ_CBNZ.matches(word) {
        Some(offset19(word))
    } else if TBZ_TBNZ.matches(word) {
        Some(offset14(word))
    } else {
        None
    }
}

/// `b` over `distance` bytes, or `None` where that is out of its reach or not a multiple of 4.
pub(crate) const fn branch(distance: isize) -> Option<u32> {
    if distance % 4 != 0 || distance < -(1 << 27) || distance >= 1 << 27 {
        return None;
    }
    Some(0x1400_0000 | (distance >> 2) as u32 & 0x03ff_ffff)
}

/// `adrp Xd, .+distance`, where `distance` counts from page to page; `None` out of its reach of 4 GiB.
pub(crate) const fn adrp(rd: u32, distance: isize) -> Option<u32> {
    let pages = distance >> 12;
    if distance & 0xfff != 0 || pages < -(1 << 20) || pages >= 1 << 20 {
        return None;
    }
    let pages = pages as u32;
    Some(0x9000_0000 | (pages & 3) << 29 | (pages >> 2 & 0x7_ffff) << 5 | rd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::forward(8, Some(0x1400_0002))]
    #[case::back(-4, Some(0x17ff_ffff))]
    #[case::furthest(0x7ff_fffc, Some(0x15ff_ffff))]
    #[case::furthest_back(-0x800_0000, Some(0x1600_0000))]
    #[case::too_far(0x800_0000, None)]
    #[case::too_far_back(-0x800_0004, None)]
    #[case::odd(6, None)]
    fn branches_reach_128_mib(#[case] distance: isize, #[case] want: Option<u32>) {
        assert_eq!(branch(distance), want);
        if let Some(word) = want {
            assert_eq!(offset26(word) as isize, distance);
        }
    }

    /// Words from `aarch64-linux-gnu-as`.
    #[rstest]
    #[case::ldxr(0xc85f_7c20, Monitor::Open)]
    #[case::ldaxrb(0x085f_fc20, Monitor::Open)]
    #[case::ldxp(0xc87f_0820, Monitor::Open)]
    #[case::ldaxp_w(0x887f_8820, Monitor::Open)]
    #[case::stxr(0xc802_7c20, Monitor::Store)]
    #[case::stlxrh(0x4802_fc20, Monitor::Store)]
    #[case::stxp(0xc823_0440, Monitor::Store)]
    #[case::clrex(0xd503_3f5f, Monitor::Clear)]
    #[case::ldar(0xc8df_fc20, Monitor::Untouched)]
    #[case::stlr(0xc89f_fc20, Monitor::Untouched)]
    #[case::ldlar(0xc8df_7c20, Monitor::Untouched)]
    #[case::cas(0xc8a0_7c41, Monitor::Untouched)]
    #[case::casp(0x4820_7c82, Monitor::Untouched)]
    #[case::casp_w(0x0820_7c82, Monitor::Untouched)]
    #[case::ldr(0xf940_0020, Monitor::Untouched)]
    #[case::dmb(0xd503_3bbf, Monitor::Untouched)]
    fn the_monitor_is_opened_and_closed_by(#[case] word: u32, #[case] want: Monitor) {
        assert_eq!(monitor(word), want);
    }

    #[test]
    fn words_are_little_endian_everywhere() {
        assert_eq!(word_at(&[0x1f, 0x20, 0x03, 0xd5]), Some(0xd503_201f));
        assert_eq!(word_at(&[0x1f, 0x20, 0x03]), None);
    }
}
