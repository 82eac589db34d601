//! The header of `.eh_frame` that some linkers are not asked for: static programs have none.

use super::machine::Machine;
use alloc::vec::Vec;
use gimli::{BaseAddresses, CieOrFde, EhFrame, NativeEndian, UnwindSection};

/// The `.eh_frame_hdr` of a section of these bytes at `start`, with absolute addresses, so that it may lie
/// anywhere; `None` where the section is damaged. Not in a hit.
#[must_use]
pub fn header(machine: &Machine, section: &[u8], start: usize) -> Option<Vec<u8>> {
    const WORD: u8 = size_of::<usize>() as u8;
    let encoding = if WORD == 8 { gimli::DW_EH_PE_udata8 } else { gimli::DW_EH_PE_udata4 };
    let bases = BaseAddresses::default().set_eh_frame(start as u64);
    let mut frames = EhFrame::new(section, NativeEndian::default());
    frames.set_address_size(WORD);
    frames.set_vendor(machine.vendor);
    let mut all: Vec<(u64, usize)> = Vec::new();
    let mut entries = frames.entries(&bases);
    while let Some(entry) = entries.next().ok()? {
        if let CieOrFde::Fde(partial) = entry {
            let description = partial.parse(EhFrame::cie_from_offset).ok()?;
            all.push((description.initial_address(), description.offset()));
        }
    }
    all.sort_unstable();
    let mut out: Vec<u8> = Vec::new();
    // Version 1; how the section's address, the count and the table are encoded.
    out.extend([1, encoding.0, gimli::DW_EH_PE_udata4.0, encoding.0]);
    out.extend(start.to_ne_bytes());
    out.extend(u32::try_from(all.len()).ok()?.to_ne_bytes());
    for (place, offset) in all {
        out.extend((place as usize).to_ne_bytes());
        out.extend(start.wrapping_add(offset).to_ne_bytes());
    }
    Some(out)
}
