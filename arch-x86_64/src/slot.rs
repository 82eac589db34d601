//! Slots: shared, see [`probe_x86_decode::slot`].

use probe_core::arch::Tail;
use probe_core::{CodeAddr, Refusal};
pub(crate) use probe_x86_decode::slot::{abort_step, after_step, before_step, keeps_state, tail};
use probe_x86_decode::{LongMode, Plan};

pub(crate) fn fill_slot(
    plan: &Plan,
    insn: &[u8],
    place: CodeAddr,
    slot: CodeAddr,
    tail: Tail,
    out: &mut [u8],
) -> Result<(), Refusal> {
    probe_x86_decode::slot::fill_slot::<LongMode>(plan, insn, place, slot, tail, out)
}
