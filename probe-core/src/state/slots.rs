//! Executable slots: original instructions run there, out of line.
//!
//! A slot is [`Arch::SLOT_LEN`] bytes, and describes itself: its last word is the place it belongs to. So a
//! trap at any address in slot memory can be resolved without any state of the context that it happened in.
//! Slots come from chunks of executable memory that are aligned to their size and found by a hash lookup.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::error::NoMemory;
use crate::held::{Held, Hold, Lent};
use crate::sync::{AtomicUsize, Relaxed};
use crate::table::{Keyed, RetiredArray, Table};
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
            debug_assert!(bits.load(Relaxed) >> (index % WORD) & 1 == 1, "given back twice");
            bits.store(bits.load(Relaxed) & !(1 << (index % WORD)), Relaxed);
            self.count.store(self.count.load(Relaxed).wrapping_sub(1), Relaxed);
        }
    }
}

/// Whether `at` lies in the slot at `slot`.
#[inline]
pub(crate) fn is_in_slot<A: Arch>(at: CodeAddr, slot: CodeAddr) -> bool {
    at.as_usize().wrapping_sub(slot.as_usize()) < A::SLOT_LEN
}

/// All slots: found by whoever traps in one, taken and given back by the registry.
pub(crate) struct Slots {
    chunks: Table<SlotChunk>,
    /// The base of the chunk that is looked at first: whose slot was taken last, or which has become empty.
    /// Under the registry's lock.
    hint: AtomicUsize,
    /// How many chunks have no slot in use; under the registry's lock.
    empty: AtomicUsize,
}

impl Slots {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { chunks: Table::new(), hint: AtomicUsize::new(0), empty: AtomicUsize::new(0) }
    }

    /// The place that the slot around `at` belongs to, if `at` lies in slot memory.
    pub(crate) fn place_at<'g, A: Arch>(&self, at: CodeAddr, held: impl Held<'g>) -> Option<CodeAddr> {
        let chunk = self.chunks.find(chunk_base(at).as_usize(), held)?;
        let slot = at.as_usize() & !(A::SLOT_LEN - 1);
        let word = slot.wrapping_add(A::SLOT_LEN - OWN);
        debug_assert_eq!(chunk.base, chunk_base(at));
        // SAFETY: the chunk is mapped and readable while it is in the table, which `held` keeps; the last
        // word of every slot is aligned, because slots are.
        let place = unsafe { core::ptr::with_exposed_provenance::<usize>(word).read_volatile() };
        Some(CodeAddr::new(place))
    }

    /// A free slot of a chunk there is, within reach of `place`.
    pub(crate) fn take<A: Arch>(&self, place: CodeAddr, hold: &Hold) -> Option<CodeAddr> {
        let take_from = |chunk: &SlotChunk| {
            let was_empty = chunk.is_empty();
            let slot = chunk.is_near(place, A::SLOT_REACH).then(|| chunk.take(A::SLOT_LEN)).flatten();
            if was_empty && slot.is_some() {
                self.empty.store(self.empty.load(Relaxed).wrapping_sub(1), Relaxed);
            }
            slot
        };
        let hint = self.chunks.find(self.hint.load(Relaxed), hold);
        hint.and_then(take_from).or_else(|| {
            self.chunks.iter(hold).find_map(|chunk| {
                let slot = take_from(&chunk)?;
                self.hint.store(chunk.base.as_usize(), Relaxed);
                Some(slot)
            })
        })
    }

    /// Gives a slot back.
    pub(crate) fn put<A: Arch>(&self, slot: CodeAddr, hold: &Hold) {
        if let Some(chunk) = self.chunks.find(chunk_base(slot).as_usize(), hold) {
            chunk.put(slot, A::SLOT_LEN);
            if chunk.is_empty() {
                self.note_empty(chunk.base);
            }
        }
    }

    /// Notes that the chunk at `base` has no slot in use.
    fn note_empty(&self, base: CodeAddr) {
        self.hint.store(base.as_usize(), Relaxed);
        self.empty.store(self.empty.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Makes room for a chunk. The table's former array, if it has another one now.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve(&self) -> Result<Option<RetiredArray>, NoMemory> {
        self.chunks.reserve(1)
    }

    /// Adds a chunk; [`Slots::reserve`] has made room.
    ///
    /// # Safety
    /// It is freed a grace period after it has been [taken](Slots::take_empty).
    pub(crate) unsafe fn add(&self, chunk: NonNull<SlotChunk>) {
        // SAFETY: it stays for a grace period longer than it is in the table.
        self.note_empty(unsafe { chunk.as_ref() }.base);
        // SAFETY: as above; `reserve` has made room.
        unsafe { self.chunks.insert(chunk) };
    }

    /// Takes a chunk off that has no slot in use, to be freed after a grace period.
    pub(crate) fn take_empty<'g>(&self, hold: &'g Hold) -> Option<Lent<'g, SlotChunk>> {
        if self.empty.load(Relaxed) == 0 {
            return None;
        }
        let hint = self.chunks.find_lent(self.hint.load(Relaxed), hold).filter(|chunk| chunk.is_empty());
        let empty = hint.or_else(|| self.chunks.iter(hold).find(|chunk| chunk.is_empty()))?;
        self.empty.store(self.empty.load(Relaxed).wrapping_sub(1), Relaxed);
        self.chunks.remove(&empty);
        Some(empty)
    }

    /// Takes the table's array, if there is no chunk left.
    pub(crate) fn retire_if_empty(&self) -> Option<RetiredArray> {
        self.chunks.retire_if_empty()
    }
}
