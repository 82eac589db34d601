//! The effect of a simulated instruction: shared, see [`probe_ppc_decode::simulate`].

pub(crate) use probe_ppc_decode::simulate::simulate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Plan;
    use crate::regs::{MSR_SF, PtRegs};
    use probe_ppc_decode::Registers;
    use probe_ppc_decode::simulate::finish_mfmsr;

    const OF_THE_SLOT: u64 = PtRegs::OF_THE_SLOT;

    const PLACE: u64 = 0x1_1000_0000;

    fn regs() -> PtRegs {
        PtRegs { nip: PLACE, msr: MSR_SF, link: 0x2003, ctr: 0x1_0000_0001, ..PtRegs::default() }
    }

    /// Executes `bc BO,BI,.+0x40` with link and returns (taken, CTR).
    fn bc(bo: u32, bi: u32, ctr: u64, ccr: u64, msr: u64) -> (bool, u64) {
        let mut regs = PtRegs { ctr, ccr, msr, ..regs() };
        regs.nip = regs.effective(PLACE);
        let next = regs.nip + 4;
        simulate(&Plan::Bc(16 << 26 | bo << 21 | bi << 16 | 0x41), &mut regs);
        assert_eq!(regs.link, next);
        assert!(regs.nip == next || regs.nip == next + 0x3c);
        (regs.nip != next, regs.ctr)
    }

    /// Book I, figure "BO field encodings".
    #[test]
    fn bo_and_bi_decide() {
        let set = 1 << (31 - 5);
        for hint in 0..2 {
            assert_eq!(bc(hint, 5, 2, 0, MSR_SF), (true, 1));
            assert_eq!(bc(hint, 5, 1, 0, MSR_SF), (false, 0));
            assert_eq!(bc(hint, 5, 2, set, MSR_SF), (false, 1));
            assert_eq!(bc(0b00010 | hint, 5, 1, 0, MSR_SF), (true, 0));
            assert_eq!(bc(0b00010 | hint, 5, 1, set, MSR_SF), (false, 0));
            assert_eq!(bc(0b01000 | hint, 5, 2, set, MSR_SF), (true, 1));
            assert_eq!(bc(0b01000 | hint, 5, 2, !set, MSR_SF), (false, 1));
            assert_eq!(bc(0b01010 | hint, 5, 1, set, MSR_SF), (true, 0));
            assert_eq!(bc(0b00100 | hint, 5, 9, !set & 0xffff_ffff, MSR_SF), (true, 9));
            assert_eq!(bc(0b01100 | hint, 5, 9, set, MSR_SF), (true, 9));
            assert_eq!(bc(0b01100 | hint, 5, 9, 0, MSR_SF), (false, 9));
            assert_eq!(bc(0b10000 | hint, 5, 0, 0, MSR_SF), (true, u64::MAX));
            assert_eq!(bc(0b10010 | hint, 5, 1, 0, MSR_SF), (true, 0));
            assert_eq!(bc(0b10100 | hint, 5, 1, 0, MSR_SF), (true, 1));
        }
    }

    /// "CTR[M:63]": in 32-bit mode only the low half is tested, all of it is decremented.
    #[test]
    fn ctr_is_tested_in_the_width_of_the_mode() {
        assert_eq!(bc(0b10000, 0, (1 << 32) + 1, 0, MSR_SF), (true, 1 << 32));
        assert_eq!(bc(0b10000, 0, (1 << 32) + 1, 0, 0), (false, 1 << 32));
    }

    #[test]
    fn absolute_branches_ignore_the_place_and_32_bit_mode_wraps() {
        let mut regs = regs();
        simulate(&Plan::B(18 << 26 | 0x03ff_ff00 | 2), &mut regs);
        assert_eq!(regs.nip, 0u64.wrapping_sub(0x100));
        let mut regs = PtRegs { nip: 0xffff_fffc, msr: 0, ..regs };
        simulate(&Plan::B(18 << 26 | 8 | 1), &mut regs);
        assert_eq!((regs.nip, regs.link), (4, 0));
    }

    #[test]
    fn a_linking_branch_to_the_link_register_uses_the_old_one() {
        let mut regs = regs();
        simulate(&Plan::Bclr(19 << 26 | 20 << 21 | 16 << 1 | 1), &mut regs);
        assert_eq!((regs.nip, regs.link), (0x2000, PLACE + 4));
    }

    #[test]
    fn addpcis_adds_to_the_next_address() {
        let mut regs = regs();
        // addpcis 3,-1: d0 = 0x3ff, d1 = 31, d2 = 1.
        simulate(&Plan::Addpcis(19 << 26 | 3 << 21 | 31 << 16 | 0xffc0 | 2 << 1 | 1), &mut regs);
        assert_eq!((regs.gpr[3], regs.nip), (PLACE + 4 - 0x1_0000, PLACE + 4));
    }

    #[test]
    fn mfmsr_shows_the_interrupt_bit_of_the_place() {
        let mut regs = regs();
        regs.gpr[3] = MSR_SF | 0x2;
        finish_mfmsr(3 << 21, &mut regs, MSR_SF | OF_THE_SLOT | 0x4);
        assert_eq!(regs.gpr[3], MSR_SF | OF_THE_SLOT | 0x2);
    }
}
