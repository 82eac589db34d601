//! Executable slots: original instructions run there, out of line.
//!
//! A slot is [`Arch::SLOT_LEN`] bytes, and describes itself: its last word is the place it belongs to. So a
//! trap at any address in slot memory can be resolved without any state of the context that it happened in.
//! Slots come from chunks of executable memory that are aligned to their size and found by a hash lookup.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::error::NoMemory;
use crate::held::Held;
use crate::state::host::Host;
use crate::sync::{AtomicUsize, Relaxed};
use crate::table::{Keyed, Table};
use alloc::vec::Vec;
use core::ptr::NonNull;

/// The size of a chunk of slots or of return stubs, in bytes: no page is larger on any of the architectures.
pub(crate) const CHUNK_LEN: usize = 1 << 16;

/// The bytes at the end of a slot that the core owns.
pub(crate) const OWN: usize = size_of::<usize>();

/// The start of the chunk that `at` would lie in.
#[inline]
pub(crate) const fn chunk_base(at: CodeAddr) -> CodeAddr {
    CodeAddr::new(at.as_usize() & !(CHUNK_LEN - 1))
}

/// The number of slots that one word of a chunk's map covers.
const WORD: usize = usize::BITS as usize;

/// Which slots of a chunk are taken; changed under the registry's lock only.
pub(crate) struct SlotChunk {
    base: CodeAddr,
    /// One bit per slot.
    taken: Vec<AtomicUsize>,
    /// How many are taken.
    count: AtomicUsize,
}

impl Keyed for SlotChunk {
    fn key(&self) -> usize {
        self.base.as_usize()
    }
}

impl SlotChunk {
    pub(crate) fn new(base: CodeAddr, slot_len: usize) -> Result<Self, NoMemory> {
        let slots = CHUNK_LEN / slot_len;
        let mut taken = Vec::new();
        taken.try_reserve_exact(slots.div_ceil(WORD)).map_err(|_| NoMemory)?;
        for first in (0..slots).step_by(WORD) {
            // Slots that are not there are taken for good.
            let there = slots - first;
            taken.push(AtomicUsize::new(if there >= WORD { 0 } else { usize::MAX << there }));
        }
        Ok(Self { base, taken, count: AtomicUsize::new(0) })
    }

    pub(crate) fn base(&self) -> CodeAddr {
        self.base
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Whether every slot of it is at most `reach` bytes from `place`.
    pub(crate) fn is_near(&self, place: CodeAddr, reach: usize) -> bool {
        let end = self.base.wrapping_add(CHUNK_LEN);
        self.base.abs_diff(place) <= reach && end.abs_diff(place) <= reach
    }

    /// Takes a free slot.
    pub(crate) fn take(&self, slot_len: usize) -> Option<CodeAddr> {
        for (word, bits) in self.taken.iter().enumerate() {
            let value = bits.load(Relaxed);
            let free = value.trailing_ones();
            if free < usize::BITS {
                bits.store(value | 1 << free, Relaxed);
                self.count.store(self.count.load(Relaxed).wrapping_add(1), Relaxed);
                return Some(self.base.wrapping_add((word * WORD + free as usize) * slot_len));
            }
        }
        None
    }

    /// Gives a slot back.
    pub(crate) fn put(&self, slot: CodeAddr, slot_len: usize) {
        let index = slot.as_usize().wrapping_sub(self.base.as_usize()) / slot_len;
        if let Some(bits) = self.taken.get(index / WORD) {
            bits.store(bits.load(Relaxed) & !(1 << (index % WORD)), Relaxed);
            self.count.store(self.count.load(Relaxed).wrapping_sub(1), Relaxed);
        }
    }
}

/// The place that the slot around `at` belongs to, if `at` lies in slot memory.
pub(crate) fn place_of_slot<'g, H: Host>(
    chunks: &Table<SlotChunk>,
    at: CodeAddr,
    held: impl Held<'g>,
) -> Option<CodeAddr> {
    let chunk = chunks.find(chunk_base(at).as_usize(), held)?;
    let slot_len = H::Arch::SLOT_LEN;
    let slot = at.as_usize() & !(slot_len - 1);
    let word = slot.wrapping_add(slot_len - OWN);
    debug_assert_eq!(chunk.base, chunk_base(at));
    // SAFETY: the chunk is mapped and readable while it is in the table, which `held` keeps; the last word of
    // every slot is aligned, because slots are.
    let place = unsafe { core::ptr::with_exposed_provenance::<usize>(word).read_volatile() };
    Some(CodeAddr::new(place))
}

/// Whether `at` lies in the slot at `slot`.
#[inline]
pub(crate) fn is_in_slot<A: Arch>(at: CodeAddr, slot: CodeAddr) -> bool {
    at.as_usize().wrapping_sub(slot.as_usize()) < A::SLOT_LEN
}

/// The slot chunks under the registry's lock.
#[derive(Default)]
pub(crate) struct SlotAllocator {
    chunks: Vec<NonNull<SlotChunk>>,
    /// Where the last slot came from.
    hint: usize,
}

// SAFETY: what it points to is shared state made for it.
unsafe impl Send for SlotAllocator {}

impl SlotAllocator {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), hint: 0 }
    }

    /// A free slot of a chunk there is, within reach of `place`.
    pub(crate) fn take<A: Arch>(&mut self, place: CodeAddr) -> Option<CodeAddr> {
        let from_hint = self.take_from::<A>(self.hint, place);
        if from_hint.is_some() {
            return from_hint;
        }
        for index in 0..self.chunks.len() {
            let slot = self.take_from::<A>(index, place);
            if slot.is_some() {
                self.hint = index;
                return slot;
            }
        }
        None
    }

    fn take_from<A: Arch>(&self, index: usize, place: CodeAddr) -> Option<CodeAddr> {
        // SAFETY: chunks are freed after they have left the list.
        let chunk = unsafe { self.chunks.get(index)?.as_ref() };
        if !chunk.is_near(place, A::SLOT_REACH) {
            return None;
        }
        chunk.take(A::SLOT_LEN)
    }

    /// Makes room for one more chunk.
    pub(crate) fn reserve(&mut self) -> Result<(), NoMemory> {
        self.chunks.try_reserve(1).map_err(|_| NoMemory)
    }

    /// Adds a chunk; [`SlotAllocator::reserve`] has made room.
    pub(crate) fn add(&mut self, chunk: NonNull<SlotChunk>) {
        self.hint = self.chunks.len();
        self.chunks.push(chunk);
    }

    /// Gives a slot back.
    pub(crate) fn put<A: Arch>(&mut self, slot: CodeAddr) {
        for chunk in &self.chunks {
            // SAFETY: chunks are freed after they have left the list.
            let chunk = unsafe { chunk.as_ref() };
            if chunk.base == chunk_base(slot) {
                chunk.put(slot, A::SLOT_LEN);
                return;
            }
        }
    }

    /// Takes a chunk that has no slot in use off the list.
    pub(crate) fn take_empty(&mut self) -> Option<NonNull<SlotChunk>> {
        // SAFETY: chunks are freed after they have left the list.
        let index = self.chunks.iter().position(|chunk| unsafe { chunk.as_ref() }.is_empty())?;
        self.hint = 0;
        let chunk = self.chunks.swap_remove(index);
        if self.chunks.is_empty() {
            self.chunks = Vec::new();
        }
        Some(chunk)
    }
}
