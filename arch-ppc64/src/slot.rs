//! Out-of-line copies: shared, see [`probe_ppc_decode::slot`].

pub use probe_ppc_decode::slot::Kept;
pub(crate) use probe_ppc_decode::slot::{LEN, REACH, abort_step, after_step, before_step, fill, tail};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Plan;
    use crate::regs::{MSR_SF, PtRegs};
    use crate::{Big, Endian, Little, insn};
    use probe_core::CodeAddr;
    use probe_core::arch::Tail;
    use probe_core::error::Refusal;

    const PLACE: CodeAddr = CodeAddr::new(0x1000_0000);
    const SLOT: CodeAddr = CodeAddr::new(0x1100_0040);

    fn filled<E: Endian>(plan: Plan, words: &[u32], slot: CodeAddr) -> Result<[u32; 6], Refusal> {
        let mut bytes = [0; 8];
        for (chunk, word) in bytes.chunks_exact_mut(4).zip(words) {
            chunk.copy_from_slice(&E::bytes(*word));
        }
        let mut out = [0; 24];
        fill::<E>(&plan, &bytes[..words.len() * 4], PLACE, slot, Tail::Breakpoint, &mut out)?;
        let (raw, _) = out.as_chunks::<4>();
        Ok(core::array::from_fn(|index| E::word(raw[index])))
    }

    fn relocated<E: Endian>(d: i64, slot: CodeAddr) -> Result<i64, Refusal> {
        let (prefix, suffix) = insn::with_prefix_displacement(0x0410_0000, 0xe480_0000, d).unwrap();
        let [prefix, suffix, tail, ..] = filled::<E>(Plan::Relocate, &[prefix, suffix], slot)?;
        assert_eq!((prefix >> 18, suffix >> 16, tail), (0x0410_0000 >> 18, 0xe480, insn::TRAP));
        Ok(insn::prefix_displacement(prefix, suffix))
    }

    #[test]
    fn a_pc_relative_access_addresses_the_same_from_its_slot() {
        let distance = SLOT.offset_from(PLACE) as i64;
        for d in [0, 8, -8, 0x1_2345, -0x1_2345, (1 << 33) - 1, -(1 << 33) + distance] {
            assert_eq!(relocated::<Big>(d, SLOT), Ok(d - distance), "{d:#x}");
            assert_eq!(relocated::<Little>(d, SLOT), Ok(d - distance), "{d:#x}");
        }
        assert_eq!(relocated::<Big>(-(1 << 33), SLOT), Err(insn::REFUSE_SLOT_REACH));
    }

    #[test]
    fn the_jump_back_reaches_as_far_as_promised_and_no_further() {
        let tail_at = |slot| tail::<Big>(&Plan::Copy, 4, PLACE, slot, Tail::Jump);
        for slot in [PLACE.wrapping_add(REACH), PLACE.wrapping_offset(-(REACH as isize))] {
            let word = Big::word(tail_at(slot).unwrap().bytes);
            assert_eq!(insn::li(word), PLACE.offset_from(slot) as i64);
        }
        assert_eq!(tail_at(PLACE.wrapping_add(0x200_0004)), None);
        assert_eq!(tail_at(PLACE.wrapping_offset(-0x200_0000)), None);
    }

    #[test]
    fn bctar_borrows_r0_and_branches_to_tar() {
        let word = 19 << 26 | 20 << 21 | insn::XO_BCTAR << 1 | 1;
        let plan = Plan::Bctar(word);
        assert_eq!(filled::<Big>(plan, &[word], SLOT).unwrap()[..2], [insn::MFTAR_R0, insn::TRAP]);
        let mut regs = PtRegs { msr: MSR_SF, ..PtRegs::default() };
        regs.gpr[0] = 0x77;
        let kept = before_step(&plan, SLOT, &mut regs);
        assert_eq!(regs.nip, SLOT.as_usize() as u64);
        regs.gpr[0] = 0x4_0003;
        regs.nip += 4;
        after_step(&plan, 4, PLACE, SLOT, &mut regs, kept);
        assert_eq!((regs.gpr[0], regs.nip, regs.link), (0x77, 0x4_0000, 0x1000_0004));
    }

    /// By the slot's address alone, with nothing kept: the core has no frame for a system call.
    #[test]
    fn scv_leaves_the_address_behind_the_place_in_the_link_register() {
        let mut regs = PtRegs { msr: MSR_SF, nip: 0x1100_0044, link: 0x1100_0044, ..PtRegs::default() };
        after_step(&Plan::Scv, 4, PLACE, SLOT, &mut regs, Kept::default());
        assert_eq!((regs.nip, regs.link), (0x1000_0004, 0x1000_0004));
        regs.link = 0x5555;
        after_step(&Plan::Scv, 4, PLACE, SLOT, &mut regs, Kept::default());
        assert_eq!(regs.link, 0x5555);
    }

    #[test]
    fn a_fault_in_the_slot_is_the_places() {
        let mut regs = PtRegs::default();
        regs.gpr[3] = 5;
        let before = PtRegs { nip: PLACE.as_usize() as u64, ..regs };
        let _kept = before_step(&Plan::Copy, SLOT, &mut regs);
        abort_step(PLACE, &mut regs);
        assert_eq!(regs, before);
    }
}
