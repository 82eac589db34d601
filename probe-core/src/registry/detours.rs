//! Making detours: their places and their contents.

use super::optimise::needs_of;
use super::plans::{Plan, Plans};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Jumps, NativeJumps, SaveSet};
use crate::error::Refusal;
use crate::jump::refusal;
use crate::room::{free, leak};
use crate::state::detour::{Detour, DetourChunk, GRANULE, GRANULES, Service};
use crate::state::host::{Host, JumpsOf};
use crate::state::locked::OpenBooks;
use crate::state::point::Point;
use crate::state::probes::Probes;
use crate::state::refused::Asked;
use crate::state::slots::{CHUNK_LEN, chunk_base};
use crate::state::text::writing::Writing;
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, Release};
use alloc::vec::Vec;
use core::ptr;

/// The most bytes of a detour.
const MAX_DETOUR_LEN: usize = 256;

/// How often memory is asked for at an address that suits a jump.
const TRIES: usize = 128;

impl<H: Host> Probes<H> {
    /// The detour of a point, ready for its jump; or why there is none.
    pub(super) fn detour_for(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        plans: &Plans,
        point: &Point<H::Arch>,
    ) -> Result<&'static Detour<H>, Refusal> {
        let mut service = Service { save: SaveSet::General, calls_post: false, follows: false };
        for node in point.nodes() {
            service = service.and(needs_of::<H>(point, node.flags.load(Relaxed), node.handlers.asks())?);
        }
        let known = self.detours.newest(point.place, books.hold);
        let plan = match known {
            Some(known) => Plan { displaced: known.displaced, text: known.text },
            None => plans.at(point.place)?,
        };
        self.check_neighbours(books.hold, point.place, &plan.displaced)?;
        if self.displaced_text(books.hold, point.place, &plan.displaced)? != plan.text {
            return Err(refusal::CHANGED);
        }
        let Some(known) = known else {
            return self.new_detour(books, point.place, service, plan);
        };
        if known.service.serves(service) {
            return Ok(known);
        }
        // One that does all that the known one does, and more: a place has four at the most.
        self.new_detour(books, point.place, known.service.and(service), plan)
    }

    /// Makes the detours of points that will have jumps, before the functions that this calls can be hit. The
    /// points are sorted by address.
    pub(super) fn prepare_detours(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        plans: &Plans,
        points: &mut [&Point<H::Arch>],
    ) {
        points.sort_unstable_by_key(|point| point.place);
        let _writing = Writing::begin(&self.host, books.hold);
        for point in points {
            // A point that cannot have one keeps its breakpoint.
            let _ = self.detour_for(books, plans, point);
        }
    }

    fn new_detour(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        place: CodeAddr,
        service: Service,
        Plan { displaced, text }: Plan,
    ) -> Result<&'static Detour<H>, Refusal> {
        let retired = self.detours.reserve().map_err(|_| refusal::NO_MEMORY)?;
        books.keep_array(retired);
        let jumps = H::Arch::JUMPS.ok_or(refusal::NO_JUMPS)?;
        let detour = Detour::new(jumps, self.program(), &self.entries, place, service, displaced, text);
        let mut detour = leak(detour).map_err(|_| refusal::NO_MEMORY)?;
        // SAFETY: nobody else knows it yet.
        let placed = self.place_detour(books, unsafe { detour.as_mut() });
        if let Err(refusal) = placed {
            // SAFETY: as above.
            drop(unsafe { free(detour) });
            return Err(refusal);
        }
        // From here on its words, which are in executable memory, lead to it.
        let _ = detour.as_ptr().expose_provenance();
        // SAFETY: never freed, and not changed any more but for its atomics.
        Ok(unsafe { self.detours.keep(detour, books.hold) })
    }

    /// Finds memory for a detour where its jump can lead, and fills it.
    fn place_detour(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        detour: &mut Detour<H>,
    ) -> Result<(), Refusal> {
        for chunk in self.detours.chunks(books.hold) {
            match self.fit(chunk, detour) {
                // Only where this one has no room may another one have some.
                Err(refusal::NO_ROOM) => {}
                placed => return placed,
            }
        }
        // Anywhere near, if the jump allows it: no displaced instruction starts inside the jump.
        let reach = H::Arch::SLOT_REACH.min(1 << 30);
        let is_free = detour.displaced.starts().all(|start| start == 0 || start >= JumpsOf::<H>::JUMP_LEN);
        if is_free && let Some(base) = self.ask_for_chunk(books, Asked::Near(detour.place, reach)) {
            if self.first_entry(detour, base).is_some() {
                return self.add_detour_chunk(books, base).and_then(|chunk| self.fit(chunk, detour));
            }
            // SAFETY: nobody has been told of it.
            unsafe { self.host.free_exec(base, CHUNK_LEN) };
        }
        let mut from = detour.place.wrapping_offset(-(reach.min(detour.place.as_usize()) as isize));
        let mut tries = 0;
        while tries < TRIES {
            let entry =
                detour.jumps.detour_entry(detour.place, &detour.displaced, from).ok_or(refusal::NO_ROOM)?;
            // A chunk that is there already has been looked at.
            let is_known = self.detours.has_chunk(entry, books.hold);
            tries += usize::from(!is_known);
            if !is_known && let Some(base) = self.ask_for_chunk(books, Asked::Chunk(entry)) {
                if self.first_entry(detour, base).is_some() {
                    return self.add_detour_chunk(books, base).and_then(|chunk| self.fit(chunk, detour));
                }
                // SAFETY: nobody has been told of it.
                unsafe { self.host.free_exec(base, CHUNK_LEN) };
            }
            from = chunk_base(entry).checked_add(CHUNK_LEN).ok_or(refusal::NO_ROOM)?;
        }
        Err(refusal::NO_ROOM)
    }

    /// Asks the host for a chunk, unless it has refused that in this batch.
    fn ask_for_chunk(&self, books: &mut OpenBooks<'_, H>, asked: Asked) -> Option<CodeAddr> {
        if books.refused.has(asked) {
            return None;
        }
        let near = match asked {
            Asked::Chunk(at) => (at, CHUNK_LEN),
            Asked::Near(place, reach) => (place, reach),
        };
        let base = self.host.alloc_exec(CHUNK_LEN, Some(near));
        if base.is_none() {
            books.refused.add(asked);
        }
        base
    }

    /// The first entry that a detour could have in the chunk at `base`.
    fn first_entry(&self, detour: &Detour<H>, base: CodeAddr) -> Option<CodeAddr> {
        let from = base.wrapping_add(JumpsOf::<H>::DETOUR_HEADER_LEN);
        let last = base.wrapping_add(CHUNK_LEN - MAX_DETOUR_LEN);
        detour.jumps.detour_entry(detour.place, &detour.displaced, from).filter(|entry| *entry <= last)
    }

    fn add_detour_chunk(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        base: CodeAddr,
    ) -> Result<&'static DetourChunk<H>, Refusal> {
        let made = self.new_detour_chunk(books, base);
        if made.is_err() {
            // SAFETY: nobody has been told of it.
            unsafe { self.host.free_exec(base, CHUNK_LEN) };
        }
        made
    }

    fn new_detour_chunk(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        base: CodeAddr,
    ) -> Result<&'static DetourChunk<H>, Refusal> {
        let retired = self.detours.reserve_chunk().map_err(|_| refusal::NO_MEMORY)?;
        books.keep_array(retired);
        let mut owners = Vec::new();
        owners.try_reserve_exact(GRANULES).map_err(|_| refusal::NO_MEMORY)?;
        owners.resize_with(GRANULES, || AtomicPtr::new(ptr::null_mut()));
        let chunk = leak(DetourChunk { base, owners: owners.into_boxed_slice(), taken: AtomicUsize::new(0) })
            .map_err(|_| refusal::NO_MEMORY)?;
        // SAFETY: never freed.
        Ok(unsafe { self.detours.keep_chunk(chunk) })
    }

    /// Puts a detour into a chunk, if there is room where its jump can lead.
    fn fit(&self, chunk: &DetourChunk<H>, detour: &mut Detour<H>) -> Result<(), Refusal> {
        const { assert!(JumpsOf::<H>::DETOUR_LEN <= MAX_DETOUR_LEN) };
        let header = JumpsOf::<H>::DETOUR_HEADER_LEN;
        let end = chunk.base.wrapping_add(CHUNK_LEN);
        let mut from = chunk.base.wrapping_add(chunk.first_free() * GRANULE + header);
        let jumps = detour.jumps;
        let followed = jumps.entry_trampoline(detour.service.save).filter(|_| detour.service.follows);
        let fill =
            if followed.is_some() { JumpsOf::<H>::fill_entry_detour } else { JumpsOf::<H>::fill_detour };
        let trampoline = followed.unwrap_or_else(|| jumps.detour_trampoline(detour.service.save));
        let calls = detour.calls(trampoline);
        // The length at the last try.
        let mut len = 1;
        loop {
            let entry =
                detour.jumps.detour_entry(detour.place, &detour.displaced, from).ok_or(refusal::NO_ROOM)?;
            let start = entry.wrapping_offset(-(header as isize));
            if entry >= end {
                return Err(refusal::NO_ROOM);
            }
            from = CodeAddr::new((start.as_usize() & !(GRANULE - 1)) + GRANULE + header);
            let is_free = |granules: &[AtomicPtr<Detour<H>>]| {
                granules.iter().all(|granule| granule.load(crate::sync::Relaxed).is_null())
            };
            if !chunk.granules(start, len).is_some_and(is_free) {
                continue;
            }
            let mut image = [0; MAX_DETOUR_LEN];
            let room = image.get_mut(..JumpsOf::<H>::DETOUR_LEN).unwrap_or_default();
            let text = detour.text.get(..usize::from(detour.displaced.len_bytes)).unwrap_or(&detour.text);
            let layout = fill(jumps, &detour.displaced, text, detour.place, entry, &calls, room)?;
            len = usize::from(layout.len_bytes);
            let Some(granules) = chunk.granules(start, len).filter(|granules| is_free(granules)) else {
                continue;
            };
            // SAFETY: nobody executes there yet.
            unsafe { self.host.write_text(start, image.get(..len).unwrap_or(&image)) }
                .map_err(|_| refusal::NOT_WRITTEN)?;
            (detour.entry, detour.layout) = (H::Arch::same_set(entry, detour.place), layout);
            let owner = ptr::from_mut(detour);
            granules.iter().for_each(|granule| granule.store(owner, Release));
            return Ok(());
        }
    }
}
