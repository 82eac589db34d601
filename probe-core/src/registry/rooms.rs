//! Where the host would need executable memory for the detour of a jump.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Displaced, Jumps};
use crate::state::host::{Host, JumpsOf};
use crate::state::probes::Probes;
use crate::state::slots::CHUNK_LEN;
use alloc::vec::Vec;
use core::ops::Range;

/// The most stretches that are told.
const ROOMS: usize = 4;

/// What is near, in bytes.
const NEAR: usize = 32 << 20;

/// How far jumps reach at the most, in bytes.
const FAR: usize = 1 << 31;

/// The longest stretch, in bytes, in whole chunks.
const MOST: usize = usize::MAX & !(CHUNK_LEN - 1);

impl<H: Host> Probes<H> {
    /// Stretches of addresses where the entry of a detour for a jump at `place` may lie, by ascending
    /// addresses, their ends rounded up by less than a chunk: all if they are few, else a few that are near.
    pub(super) fn rooms(place: CodeAddr, displaced: &Displaced) -> Vec<Range<CodeAddr>> {
        let Some(jumps) = H::Arch::JUMPS else { return Vec::new() };
        let reach = H::Arch::SLOT_REACH.min(FAR);
        let mut rooms = Vec::new();
        for distance in [reach, reach.min(NEAR)] {
            let from = place.as_usize().saturating_sub(distance);
            let until = place.as_usize().saturating_add(distance);
            // Where addresses wrap around, a jump that reaches half of them reaches all.
            let between = if distance.checked_mul(2).is_some() { from..until } else { 0..usize::MAX };
            let found = rooms_between::<H>(jumps, place, displaced, between);
            let are_all = found.len() < ROOMS;
            if !found.is_empty() {
                rooms = found;
            }
            if are_all {
                break;
            }
        }
        rooms
    }
}

fn rooms_between<H: Host>(
    jumps: JumpsOf<H>,
    place: CodeAddr,
    displaced: &Displaced,
    between: Range<usize>,
) -> Vec<Range<CodeAddr>> {
    let mut rooms = Vec::new();
    let next = |from: usize| {
        let entry = jumps.detour_entry(place, displaced, CodeAddr::new(from))?.as_usize();
        (from <= entry && entry < between.end).then_some(entry)
    };
    let mut from = between.start;
    while rooms.len() < ROOMS
        && let Some(entry) = next(from)
    {
        // Whether there is an entry in the chunk that begins so far behind the first one.
        let goes_on = |len: usize| {
            let from = entry.saturating_add(len);
            next(from).is_some_and(|entry| entry - from < CHUNK_LEN)
        };
        let (mut known, mut beyond) = (0, CHUNK_LEN);
        while beyond < MOST && goes_on(beyond) {
            (known, beyond) = (beyond, beyond.saturating_mul(2) & MOST);
        }
        while beyond - known > CHUNK_LEN {
            let middle = known.midpoint(beyond) & !(CHUNK_LEN - 1);
            if goes_on(middle) { known = middle } else { beyond = middle }
        }
        from = entry.saturating_add(beyond);
        rooms.push(CodeAddr::new(entry)..CodeAddr::new(from));
    }
    rooms
}
