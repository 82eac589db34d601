//! The out-of-line copy of an instruction.
//!
//! A slot is 32 bytes, of which the last eight belong to the core. It holds the instruction, `c.nop` behind a
//! compressed one, then `jal x0` to the next instruction or a breakpoint, then breakpoints to the end. So the
//! tail is one aligned word wherever the slot lies. Nothing is borrowed, and nothing has to be corrected
//! afterwards: instructions that depend on their address are simulated.
//!
//! `jal` reaches 1 MiB, and no register is free for a longer jump. A slot that lies further from its place
//! keeps its breakpoint: two traps instead of one. [`fill`] is called at registration, [`tail`] also later;
//! both are pure.

use crate::decode::Plan;
use crate::insn;
use probe_core::CodeAddr;
use probe_core::arch::{Tail, TailPatch};
use probe_core::error::Refusal;

/// The size of a slot.
pub(crate) const LEN: usize = 32;
/// How far from its place a slot may lie: as far as a host may allocate. Hosts give the nearest memory that
/// is free.
pub(crate) const REACH: usize = 1 << 31;
/// Where the tail is, in bytes.
const TAIL: usize = 4;
/// Two breakpoints in a word.
const BREAKPOINTS: u32 = (insn::BREAKPOINT as u32) << 16 | insn::BREAKPOINT as u32;
const C_NOP: u16 = 0x0001;

/// Builds the slot. Where the jump back does not reach, it gets its breakpoint instead.
pub(crate) fn fill(
    plan: &Plan,
    bytes: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    let word = insn::word_at(bytes).ok_or(TRUNCATED)?;
    let len_bytes = insn::len_bytes(word);
    let copy = if len_bytes == 2 { word | u32::from(C_NOP) << 16 } else { word };
    let tail = tail_word(plan, usize::from(len_bytes), place, slot, tail).unwrap_or(BREAKPOINTS);
    let words = [copy, tail].into_iter().chain(core::iter::repeat(BREAKPOINTS));
    for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(())
}

/// The store that switches the tail: see `patch` about harts that fetch it meanwhile.
pub(crate) fn tail(
    plan: &Plan,
    insn_len: usize,
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
) -> Option<TailPatch> {
    let word = tail_word(plan, insn_len, place, slot, tail)?;
    Some(TailPatch { offset: TAIL as u8, len_bytes: 4, bytes: word.to_le_bytes() })
}

fn tail_word(plan: &Plan, insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<u32> {
    match (tail, plan) {
        (Tail::Breakpoint, _) => Some(BREAKPOINTS),
        (Tail::Jump, Plan::OutOfLine | Plan::SystemCall) => {
            insn::jump(place.wrapping_add(insn_len).offset_from(slot.wrapping_add(TAIL)))
        }
        (Tail::Jump, _) => None,
    }
}

const TRUNCATED: Refusal =
    Refusal::invalid("riscv64.truncated", "fewer bytes than the instruction has were kept");

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: CodeAddr = CodeAddr::new(0x40_1002);
    const SLOT: CodeAddr = CodeAddr::new(0x41_0000);

    fn filled(bytes: &[u8], slot: CodeAddr, tail: Tail) -> [u32; 6] {
        let mut out = [0xff; LEN - 8];
        fill(&Plan::OutOfLine, bytes, PLACE, slot, tail, &mut out).expect("it fits");
        core::array::from_fn(|index| u32::from_le_bytes(out[index * 4..][..4].try_into().unwrap()))
    }

    /// Where the word at `index` of a slot jumps to.
    fn target(word: u32, index: usize) -> CodeAddr {
        assert!(insn::JAL.matches(word) && insn::rd(word) == 0, "{word:#x}");
        SLOT.wrapping_add(index * 4).wrapping_offset(insn::immediate_j(word) as isize)
    }

    const ADD: [u8; 4] = 0x0073_02b3_u32.to_le_bytes();
    const C_ADD: [u8; 2] = 0x929a_u16.to_le_bytes();

    #[test]
    fn a_slot_is_the_copy_and_its_tail() {
        let slot = filled(&ADD, SLOT, Tail::Breakpoint);
        assert_eq!(slot, [0x0073_02b3, 0x9002_9002, 0x9002_9002, 0x9002_9002, 0x9002_9002, 0x9002_9002]);
        let slot = filled(&ADD, SLOT, Tail::Jump);
        assert_eq!((slot[0], target(slot[1], 1)), (0x0073_02b3, PLACE.wrapping_add(4)));
    }

    #[test]
    fn the_tail_of_a_compressed_instruction_is_an_aligned_word_too() {
        let slot = filled(&C_ADD, SLOT, Tail::Breakpoint);
        assert_eq!(slot[..2], [0x0001_929a, 0x9002_9002]);
        let slot = filled(&C_ADD, SLOT, Tail::Jump);
        assert_eq!((slot[0], target(slot[1], 1)), (0x0001_929a, PLACE.wrapping_add(2)));
    }

    #[test]
    fn a_tail_is_switched_by_one_store() {
        let patch = |kind| tail(&Plan::OutOfLine, 2, PLACE, SLOT, kind).expect("in reach");
        for kind in [Tail::Breakpoint, Tail::Jump] {
            let patch = patch(kind);
            assert_eq!((patch.offset, patch.len_bytes), (4, 4));
            assert_eq!(u32::from_le_bytes(patch.bytes), filled(&C_ADD, SLOT, kind)[1]);
        }
    }

    #[test]
    fn a_slot_out_of_reach_keeps_its_breakpoint() {
        let far = PLACE.wrapping_add(1 << 21);
        assert_eq!(tail(&Plan::OutOfLine, 2, PLACE, far, Tail::Jump), None);
        assert_eq!(filled(&C_ADD, far, Tail::Jump), filled(&C_ADD, far, Tail::Breakpoint));
        assert!(tail(&Plan::OutOfLine, 2, PLACE, far, Tail::Breakpoint).is_some());
    }

    #[test]
    fn half_an_instruction_is_none() {
        let mut out = [0; LEN - 8];
        let filled = fill(&Plan::OutOfLine, &ADD[..2], PLACE, SLOT, Tail::Breakpoint, &mut out);
        assert_eq!((filled, out), (Err(TRUNCATED), [0; LEN - 8]));
    }
}
