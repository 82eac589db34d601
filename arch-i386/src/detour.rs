//! Detours of optimised probes: shared, see [`probe_x86_decode::detour`].

use probe_core::arch::{DetourLayout, Displaced, Site};
use probe_core::{CodeAddr, Refusal};
pub(crate) use probe_x86_decode::detour::{DETOUR_LEN, JUMP_LEN};
use probe_x86_decode::{ProtectedMode, detour};

pub(crate) const HEADER_LEN: usize = detour::header_len::<ProtectedMode>();

pub(crate) fn displace(site: &Site<'_>) -> Result<Displaced, Refusal> {
    detour::displace::<ProtectedMode>(site)
}

pub(crate) fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
    detour::branch_target::<ProtectedMode>(text, at)
}

pub(crate) fn entry(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
    detour::target::<ProtectedMode>(place, displaced, from)
}

pub(crate) fn fill(
    displaced: &Displaced,
    text: &[u8],
    place: CodeAddr,
    entry: CodeAddr,
    calls: (CodeAddr, usize),
    out: &mut [u8],
) -> Result<DetourLayout, Refusal> {
    detour::fill::<ProtectedMode>(displaced, text, place, entry, calls, out)
}

pub(crate) fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
    let mut bytes = [0; 8];
    if let Some(jump) = bytes.first_chunk_mut() {
        *jump = detour::jump(place, entry);
    }
    bytes
}
