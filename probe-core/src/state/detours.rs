//! All detours of a program: found by whoever is in one, made by the registry, and kept for good.

use crate::addr::CodeAddr;
use crate::error::NoMemory;
use crate::held::{Held, Hold};
use crate::state::detour::{Detour, DetourChunk};
use crate::state::host::Host;
use crate::state::slots::chunk_base;
use crate::sync::Acquire;
use crate::table::{RetiredArray, Table};
use core::ptr::NonNull;

/// All detours.
pub(crate) struct Detours<H: Host> {
    chunks: Table<DetourChunk<H>>,
    /// The newest detour of each place that has ever had a jump: what the next jump there may lead to. What
    /// stands in text is the point's to say. Under the registry's lock.
    newest: Table<Detour<H>>,
}

impl<H: Host> Detours<H> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { chunks: Table::new(), newest: Table::new() }
    }

    /// The detour that `at` lies in, and the address of the instruction whose copy stands there.
    pub(crate) fn at<'g>(&self, at: CodeAddr, held: impl Held<'g>) -> Option<(&'static Detour<H>, CodeAddr)> {
        let chunk = self.chunks.find(chunk_base(at).as_usize(), held)?;
        let [owner] = chunk.granules(at, 1)? else { return None };
        // SAFETY: null, or a detour, which is kept for good.
        let detour = unsafe { owner.load(Acquire).as_ref() }?;
        let original = detour.original(at)?;
        Some((detour, detour.place.wrapping_add(original)))
    }

    /// The newest detour of a place.
    pub(crate) fn newest(&self, place: CodeAddr, hold: &Hold) -> Option<&'static Detour<H>> {
        let found = self.newest.find_lent(place.as_usize(), hold)?;
        // SAFETY: detours are kept for good.
        Some(unsafe { found.pointer().as_ref() })
    }

    /// How many places have ever had a jump.
    pub(crate) fn count(&self, hold: &Hold) -> usize {
        self.newest.iter(hold).count()
    }

    /// Makes room for a place's first detour.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve(&self) -> Result<Option<RetiredArray>, NoMemory> {
        self.newest.reserve(1)
    }

    /// Keeps a detour for good, as its place's newest; [`Detours::reserve`] has made room. Whoever is still
    /// in the one before, and text that leads to it, find it as it was.
    ///
    /// # Safety
    /// It is never freed, and not changed any more but for its atomics.
    pub(crate) unsafe fn keep(&self, detour: NonNull<Detour<H>>, hold: &Hold) -> &'static Detour<H> {
        // SAFETY: kept for good, and not changed.
        let kept: &'static Detour<H> = unsafe { detour.as_ref() };
        if let Some(before) = self.newest(kept.place, hold) {
            self.newest.remove(before);
        }
        // SAFETY: kept for good.
        unsafe { self.newest.insert(detour) };
        kept
    }

    /// All chunks.
    pub(crate) fn chunks(&self, hold: &Hold) -> impl Iterator<Item = &'static DetourChunk<H>> {
        // SAFETY: chunks of detours are kept for good.
        self.chunks.iter(hold).map(|chunk| unsafe { chunk.pointer().as_ref() })
    }

    /// Whether `at` lies in one of them.
    pub(crate) fn has_chunk(&self, at: CodeAddr, hold: &Hold) -> bool {
        self.chunks.find(chunk_base(at).as_usize(), hold).is_some()
    }

    /// Makes room for a chunk.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve_chunk(&self) -> Result<Option<RetiredArray>, NoMemory> {
        self.chunks.reserve(1)
    }

    /// Keeps a chunk for good; [`Detours::reserve_chunk`] has made room.
    ///
    /// # Safety
    /// It is never freed.
    pub(crate) unsafe fn keep_chunk(&self, chunk: NonNull<DetourChunk<H>>) -> &'static DetourChunk<H> {
        // SAFETY: kept for good.
        unsafe { self.chunks.insert(chunk) };
        // SAFETY: as above.
        unsafe { chunk.as_ref() }
    }
}
