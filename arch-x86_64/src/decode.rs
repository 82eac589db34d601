//! Bytes to a plan or a refusal: the shared decoder, in 64-bit mode.

use probe_core::arch::Text;
use probe_core::arch::{Decoded, Site};
use probe_core::{CodeAddr, Refusal};
use probe_x86_decode::{LongMode, Plan};

pub(crate) fn insn_len(bytes: &[u8]) -> Option<usize> {
    probe_x86_decode::insn_len::<LongMode>(bytes)
}

pub(crate) fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
    probe_x86_decode::decode::<LongMode>(site)
}

pub(crate) fn entry_offset(text: &dyn Text, function: CodeAddr) -> usize {
    probe_x86_decode::call::entry_offset::<LongMode>(text, function)
}
