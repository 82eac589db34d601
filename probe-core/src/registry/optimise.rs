//! Optimised probes: jumps into text and out of it again, many at a time.
//!
//! A probe is registered with a breakpoint. Its jump follows in three stages, with a synchronisation of the cores after
//! each: breakpoints where the displaced instructions start, the rest of the jump behind its first byte, the first byte.
//! The way back is the same in reverse. At every moment a context that arrives at any of these instructions either runs
//! it, traps and goes on in the copy, or jumps.

use super::resolve::{Pristine, WINDOW};
use super::{Locked, Probes, leak};
use crate::addr::CodeAddr;
use crate::arch::{Arch, DetourLayout, Displaced, NativeArch, SaveSet, Site, Text};
use crate::detour::{Detour, DetourChunk, GRANULE, GRANULES, MAX_DISPLACED_LEN, jumped};
use crate::error::{ControlError, Refusal, TextError};
use crate::host::Host;
use crate::kprobe::{AnyProbe, Pending};
use crate::point::{ARMED, Handlers, NO_JUMP, NO_SIMD, Node, OPTIMISED, Point, TORN};
use crate::slots::{CHUNK_LEN, chunk_base};
use crate::sync::{Acquire, AtomicPtr, Release};
use alloc::vec::Vec;
use core::ptr::{self, NonNull};

/// The most bytes of a detour.
const MAX_DETOUR_LEN: usize = 256;

/// How often memory is asked for at an address that suits a jump.
const TRIES: usize = 128;

/// No jump: the core cannot have one here, whatever the instructions are.
mod refusal {
    use crate::error::Refusal;

    pub(super) const JPROBE: Refusal =
        Refusal::unsupported("core.jprobe", "a jprobe's handler is entered by a trap");
    pub(super) const POST: Refusal =
        Refusal::unsupported("core.post_handler", "a post handler is called by a trap after the instruction");
    pub(super) const NEIGHBOUR: Refusal =
        Refusal::unsupported("core.neighbour", "another probe stands on an instruction under the jump");
    pub(super) const JUMP_TARGET: Refusal =
        Refusal::unsupported("core.jump_target", "the function jumps to an instruction under the jump");
    pub(super) const NO_ROOM: Refusal =
        Refusal::unsupported("core.no_room", "no memory is free where the jump could lead");
    pub(super) const NOT_WANTED: Refusal =
        Refusal::unsupported("core.not_wanted", "the probe asks for a breakpoint");
    pub(super) const NO_MEMORY: Refusal =
        Refusal::unsupported("core.no_memory", "there is no memory for a detour");
    pub(super) const CHANGED: Refusal = Refusal::unsupported(
        "core.changed",
        "the text has changed, or the registers to save, since the detour was made",
    );
}

/// Where the direct branches of one function lead.
struct Targets {
    function: Option<(CodeAddr, CodeAddr)>,
    targets: Vec<CodeAddr>,
}

impl Targets {
    const fn new() -> Self {
        Self { function: None, targets: Vec::new() }
    }

    /// Whether a direct branch of `function` leads to somewhere within `from..to`.
    fn has<H: Host>(
        &mut self,
        text: &Pristine<'_, H>,
        function: (CodeAddr, CodeAddr),
        from: CodeAddr,
        to: CodeAddr,
    ) -> Result<bool, Refusal> {
        if self.function != Some(function) {
            self.targets.clear();
            self.function = Some(function);
            self.collect(text, function)?;
            self.targets.sort_unstable();
        }
        let first = self.targets.partition_point(|target| *target < from);
        Ok(self.targets.get(first).is_some_and(|target| *target < to))
    }

    fn collect<H: Host>(
        &mut self,
        text: &Pristine<'_, H>,
        (start, end): (CodeAddr, CodeAddr),
    ) -> Result<(), Refusal> {
        let mut window = [0; WINDOW];
        let (mut window_start, mut window_len) = (start, 0);
        let mut at = start;
        while at < end {
            let mut offset = at.as_usize().wrapping_sub(window_start.as_usize());
            if offset.saturating_add(H::Arch::MAX_INSN_LEN) > window_len {
                window_len = text.read(at, &mut window);
                (window_start, offset) = (at, 0);
            }
            let insn = window.get(offset..window_len).unwrap_or(&[]);
            let insn = insn.get(..H::Arch::MAX_INSN_LEN).unwrap_or(insn);
            // What cannot be decoded cannot be walked over: what follows is data, or traps are the safe choice.
            let Some(len) = H::Arch::insn_len(insn).filter(|len| *len != 0) else { return Ok(()) };
            if let Some(target) =
                H::Arch::branch_target(insn, at).filter(|target| (start..end).contains(target))
            {
                self.targets.try_reserve(1).map_err(|_| refusal::NO_MEMORY)?;
                self.targets.push(target);
            }
            at = at.wrapping_add(len);
        }
        Ok(())
    }
}

impl<H: Host> Probes<H> {
    /// Gives every probe that can have one a jump instead of its breakpoint, and returns how many places have one
    /// now.
    ///
    /// # Errors
    /// Called from a handler; or the first text that could not be written: that probe keeps its breakpoint.
    pub fn optimise(&'static self) -> Result<usize, ControlError> {
        if self.is_in_handler() {
            return Err(ControlError::InHandler);
        }
        let mut books = self.lock();
        self.settle_locked(&mut books);
        let mut points = Vec::new();
        self.points.for_each(|point| {
            if points.try_reserve(1).is_ok() {
                points.push(point);
            }
        });
        let done = self.optimise_points(&mut books, &mut points);
        let mut count = 0;
        self.points.for_each(|point| {
            // SAFETY: what is in the table is there, and the lock is held.
            count += usize::from(unsafe { point.as_ref() }.is(OPTIMISED));
        });
        self.clean_arrays(&mut books);
        done.map_err(ControlError::Text)?;
        Ok(count)
    }

    /// Whether probes get their jumps as soon as they are registered, enabled or switched on, without
    /// [`Probes::optimise`]. At first they do not. What is registered already stays as it is.
    pub fn set_optimising(&self, is_optimising: bool) {
        self.is_optimising.store(is_optimising, Release);
    }

    /// Jumps for points that have just got their breakpoints, if that is wished.
    pub(super) fn optimise_new(
        &'static self,
        books: &mut Locked<'_, H>,
        points: impl Iterator<Item = NonNull<Point<H::Arch>>>,
    ) {
        if !self.is_optimising.load(Acquire) {
            return;
        }
        let mut all = Vec::new();
        for point in points {
            if all.try_reserve(1).is_err() {
                break;
            }
            all.push(point);
        }
        // What cannot be written stays a breakpoint, which is what has been promised.
        let _ = self.optimise_points(books, &mut all);
    }

    /// Gives every probe its breakpoint back.
    ///
    /// # Errors
    /// Called from a handler; or the first text that could not be written: that probe keeps its jump.
    pub fn unoptimise(&'static self) -> Result<(), ControlError> {
        if self.is_in_handler() {
            return Err(ControlError::InHandler);
        }
        let mut books = self.lock();
        self.settle_locked(&mut books);
        self.unoptimise_where(|_| true).map_err(ControlError::Text)
    }

    /// Takes the jumps out of the text of all points that `is_meant` says.
    pub(super) fn unoptimise_where(
        &self,
        is_meant: impl Fn(&Point<H::Arch>) -> bool,
    ) -> Result<(), TextError> {
        let mut first = Ok(());
        let mut points = Vec::new();
        self.points.for_each(|point| {
            // SAFETY: what is in the table is there, and the lock is held.
            let shared = unsafe { point.as_ref() };
            if !shared.is(OPTIMISED) || !is_meant(shared) {
                return;
            }
            if points.try_reserve(1).is_ok() {
                points.push(point);
            } else {
                first = first.and(self.unoptimise_points(&[point]));
            }
        });
        first.and(self.unoptimise_points(&points))
    }

    /// Takes the jumps of the points out of text, leaving breakpoints; what cannot be written keeps its jump.
    pub(super) fn unoptimise_points(&self, points: &[NonNull<Point<H::Arch>>]) -> Result<(), TextError> {
        let mut first = Ok(());
        let mut detours = Vec::new();
        for point in points {
            // SAFETY: in the table, and the lock is held.
            let point = unsafe { point.as_ref() };
            // SAFETY: the lock is held.
            let Some(detour) = (unsafe { self.detours.find(point.place.as_usize()) }) else { continue };
            if !point.is(OPTIMISED) {
                continue;
            }
            // SAFETY: the first bytes of a jump become the breakpoint, which is shorter, or as long.
            match unsafe { self.host.write_text(point.place, H::Arch::BREAKPOINT) } {
                Ok(()) if detours.try_reserve(1).is_ok() => detours.push((point, detour)),
                // Without memory for many, one at a time.
                Ok(()) => {
                    self.host.sync_cores();
                    first = first.and(self.restore_tails(&[(point, detour)]));
                }
                Err(error) => first = first.and(Err(error)),
            }
        }
        if !detours.is_empty() {
            self.host.sync_cores();
            first = first.and(self.restore_tails(&detours));
        }
        first
    }

    /// The rest of the way back: nobody jumps any more.
    ///
    /// Where a byte cannot be written, the way ends half-way: what is not the original instruction again is a breakpoint that
    /// leads to its copy, and the point stays optimised, so that the next call that wants its jump away goes on.
    fn restore_tails(&self, detours: &[(&Point<H::Arch>, &Detour<H>)]) -> Result<(), TextError> {
        let mut first = Ok(());
        if H::Arch::JUMP_LEN > H::Arch::BREAKPOINT.len() {
            for (point, detour) in detours {
                let written = self.write_between(detour, &detour.text);
                if written.is_err() {
                    point.set(TORN);
                }
                first = first.and(written);
            }
            self.host.sync_cores();
        }
        let restored = self.changing_text(|| {
            let mut first = Ok(());
            for (point, detour) in detours {
                if point.is(TORN) {
                    point.clear(TORN);
                    continue;
                }
                let written = self.write_starts(detour, &detour.text);
                if written.is_ok() {
                    detour.point.store(ptr::null_mut(), Release);
                    point.clear(OPTIMISED);
                }
                first = first.and(written);
            }
            first
        });
        if H::Arch::JUMP_LEN > H::Arch::BREAKPOINT.len() {
            self.host.sync_cores();
        }
        first.and(restored)
    }

    /// Jumps for those of the points that can have one. They are sorted by address.
    pub(super) fn optimise_points(
        &'static self,
        books: &mut Locked<'_, H>,
        points: &mut [NonNull<Point<H::Arch>>],
    ) -> Result<(), TextError> {
        // SAFETY: in the table, and the lock is held.
        points.sort_unstable_by_key(|point| unsafe { point.as_ref() }.place);
        let mut targets = Targets::new();
        let mut ready: Vec<(&Point<H::Arch>, &'static Detour<H>)> = Vec::new();
        for point in points.iter() {
            // SAFETY: in the table, and the lock is held until the end.
            let point = unsafe { point.as_ref() };
            if point.is(OPTIMISED) || !point.is(ARMED) || ready.try_reserve(1).is_err() {
                continue;
            }
            if let Ok(detour) = self.detour_for(books, &mut targets, point) {
                // From here on a new neighbour knows of the jump.
                point.set(OPTIMISED);
                ready.push((point, detour));
            }
        }
        self.write_jumps(ready)
    }

    /// Writes the jumps, whose detours are ready.
    fn write_jumps(&self, mut ready: Vec<(&Point<H::Arch>, &'static Detour<H>)>) -> Result<(), TextError> {
        let mut result = Ok(());
        if ready.is_empty() {
            return result;
        }
        let breakpoints = [H::Arch::BREAKPOINT.first().copied().unwrap_or(0); MAX_DISPLACED_LEN];
        result = self.changing_text(|| {
            let mut result = Ok(());
            for (point, detour) in &ready {
                // From here on whoever traps at a displaced instruction finds the copy.
                detour.point.store(ptr::from_ref(*point).cast_mut(), Release);
                result = result.and(self.write_starts(detour, &breakpoints));
            }
            result
        });
        // Not where an instruction is still itself: what lies between are its operands.
        if H::Arch::JUMP_LEN > H::Arch::BREAKPOINT.len() && result.is_ok() {
            self.host.sync_cores();
            for (_, detour) in &ready {
                result = result.and(self.write_between(detour, &self.jump_of(detour)));
            }
            self.host.sync_cores();
        }
        if result.is_err() {
            // What has been written is undone; that it can be is as likely as anything here.
            return self.restore_tails(&ready).and(result);
        }
        ready.retain(|(point, detour)| {
            let jump = self.jump_of(detour);
            let head = jump.get(..H::Arch::BREAKPOINT.len()).unwrap_or(&jump);
            // SAFETY: our breakpoint becomes the first bytes of a jump whose others are there.
            let written = unsafe { self.host.write_text(point.place, head) };
            result = result.and(written);
            written.is_err()
        });
        self.host.sync_cores();
        if ready.is_empty() { result } else { self.restore_tails(&ready).and(result) }
    }

    fn jump_of(&self, detour: &Detour<H>) -> [u8; MAX_DISPLACED_LEN] {
        let mut jump = [0; MAX_DISPLACED_LEN];
        let bytes = H::Arch::jump(detour.place, detour.entry);
        if let Some(to) = jump.first_chunk_mut() {
            *to = bytes;
        }
        jump
    }

    /// Whether a detour's jump stands in text; or a breakpoint instead of its first bytes, where the way back has ended
    /// half-way.
    pub(super) fn is_jump_in_text(&self, detour: &Detour<H>) -> bool {
        let jump = self.jump_of(detour);
        let breakpoint = H::Arch::BREAKPOINT;
        let mut now = [0; 8];
        let len = H::Arch::JUMP_LEN.min(now.len());
        if self.host.read_text(detour.place, &mut now[..len]) < len {
            return false;
        }
        if now[..len] == jump[..len] {
            return true;
        }
        let is_ours = |at: usize| {
            let is_start = detour.displaced.starts().any(|start| start == at);
            now[at] == jump[at]
                || now[at] == detour.text[at]
                || (is_start && breakpoint.first() == Some(&now[at]))
        };
        now.starts_with(breakpoint) && (breakpoint.len()..len).all(is_ours)
    }

    /// Writes those bytes under the jump where displaced instructions but the first start, one at a time.
    fn write_starts(&self, detour: &Detour<H>, bytes: &[u8; MAX_DISPLACED_LEN]) -> Result<(), TextError> {
        for start in detour.displaced.starts().filter(|start| (1..H::Arch::JUMP_LEN).contains(start)) {
            let byte = bytes.get(start..=start).unwrap_or(&[]);
            // SAFETY: an instruction starts there, which becomes a breakpoint or itself again.
            unsafe { self.host.write_text(detour.place.wrapping_add(start), byte) }?;
        }
        Ok(())
    }

    /// Writes those bytes under the jump, behind the breakpoint, that no instruction starts with.
    fn write_between(&self, detour: &Detour<H>, bytes: &[u8; MAX_DISPLACED_LEN]) -> Result<(), TextError> {
        for at in H::Arch::BREAKPOINT.len()..H::Arch::JUMP_LEN {
            if detour.displaced.starts().any(|start| start == at) {
                continue;
            }
            let byte = bytes.get(at..=at).unwrap_or(&[]);
            // SAFETY: before it stands a breakpoint, on every way to it: nobody executes it.
            unsafe { self.host.write_text(detour.place.wrapping_add(at), byte) }?;
        }
        Ok(())
    }

    /// Whether the jump at `point` has to go when such a probe comes.
    pub(super) fn forbids_jump(&self, point: &Point<H::Arch>, probe: &AnyProbe<H::Arch>) -> bool {
        let needs_trap =
            matches!(&probe.handlers, Pending::Jprobe(_) | Pending::Kprobe { post: Some(_), .. });
        // SAFETY: the lock is held.
        let detour = unsafe { self.detours.find(point.place.as_usize()) };
        let saves_less = detour.is_some_and(|detour| {
            detour.save == SaveSet::General && save_of::<H>(probe.flags) != SaveSet::General
        });
        needs_trap || saves_less || probe.flags & NO_JUMP != 0
    }

    /// The points whose jumps lie over `place`.
    pub(super) fn jumps_over(&self, place: CodeAddr) -> impl Iterator<Item = NonNull<Point<H::Arch>>> {
        let distances = if self.detours.is_unused() { 0..0 } else { H::Arch::INSN_ALIGN..MAX_DISPLACED_LEN };
        distances.step_by(H::Arch::INSN_ALIGN).filter_map(move |distance| {
            let start = place.wrapping_offset(-(distance as isize));
            // SAFETY: the lock is held.
            let detour = unsafe { self.detours.find(start.as_usize()) }?;
            let is_over = usize::from(detour.displaced.len_bytes) > distance;
            NonNull::new(detour.point.load(Acquire)).filter(|_| is_over)
        })
    }

    // ---- making a detour ------------------------------------------------------------------------------------------

    /// The detour of a point, ready for its jump; or why there is none.
    fn detour_for(
        &'static self,
        books: &mut Locked<'_, H>,
        targets: &mut Targets,
        point: &Point<H::Arch>,
    ) -> Result<&'static Detour<H>, Refusal> {
        let mut save = SaveSet::General;
        for node in point.nodes() {
            can_jump(node)?;
            if !node.is(NO_SIMD) {
                save = H::SAVE_SET;
            }
        }
        let (displaced, text) = self.displace(targets, point.place)?;
        // SAFETY: the lock is held.
        if let Some(detour) = unsafe { self.detours.find(point.place.as_usize()) } {
            let is_same = detour.displaced == displaced && detour.text == text && detour.save == save;
            // SAFETY: detours are kept for good.
            return if is_same { Ok(unsafe { &*ptr::from_ref(detour) }) } else { Err(refusal::CHANGED) };
        }
        self.new_detour(books, point.place, save, displaced, text)
    }

    /// The instructions that a jump at `place` displaces, and their bytes.
    fn displace(
        &self,
        targets: &mut Targets,
        place: CodeAddr,
    ) -> Result<(Displaced, [u8; MAX_DISPLACED_LEN]), Refusal> {
        let pristine = Pristine(self);
        let mut function = None;
        self.host.symbol_at(place, &mut |symbol| {
            function = Some((symbol.start, symbol.start.wrapping_add(symbol.len_bytes)));
        });
        let site = Site { at: place, function, text: &pristine };
        let displaced = H::Arch::displace(&site)?;
        let len = usize::from(displaced.len_bytes);
        let end = place.wrapping_add(len);
        for distance in (H::Arch::INSN_ALIGN..len).step_by(H::Arch::INSN_ALIGN) {
            // SAFETY: the lock is held.
            if unsafe { self.points.find(place.wrapping_add(distance).as_usize()) }
                .is_some_and(|other| other.is(ARMED))
            {
                return Err(refusal::NEIGHBOUR);
            }
        }
        if H::Arch::JUMP_LEN > H::Arch::INSN_ALIGN {
            let jump_end = place.wrapping_add(H::Arch::JUMP_LEN).min(end);
            let function = function.unwrap_or((place, end));
            if targets.has(&pristine, function, place.wrapping_add(1), jump_end)? {
                return Err(refusal::JUMP_TARGET);
            }
        }
        let mut text = [0; MAX_DISPLACED_LEN];
        let wanted = text.get_mut(..len).ok_or(refusal::NO_MEMORY)?;
        if pristine.read(place, wanted) < len {
            return Err(refusal::CHANGED);
        }
        Ok((displaced, text))
    }

    fn new_detour(
        &'static self,
        books: &mut Locked<'_, H>,
        place: CodeAddr,
        save: SaveSet,
        displaced: Displaced,
        text: [u8; MAX_DISPLACED_LEN],
    ) -> Result<&'static Detour<H>, Refusal> {
        let retired = self.detours.reserve(1).map_err(|_| refusal::NO_MEMORY)?;
        self.keep_array(books, retired);
        let detour = Detour {
            handler: jumped::<H>,
            probes: self,
            place,
            point: AtomicPtr::new(ptr::null_mut()),
            entry: CodeAddr::new(0),
            save,
            displaced,
            layout: DetourLayout::default(),
            text,
        };
        let mut detour = leak(detour).map_err(|_| refusal::NO_MEMORY)?;
        // SAFETY: nobody else knows it yet.
        let placed = self.place_detour(books, unsafe { detour.as_mut() });
        if let Err(refusal) = placed {
            // SAFETY: as above.
            drop(unsafe { super::free(detour) });
            return Err(refusal);
        }
        // SAFETY: kept for good.
        unsafe { self.detours.insert(detour) };
        // SAFETY: kept for good, and not changed any more but for its atomic.
        Ok(unsafe { detour.as_ref() })
    }

    /// Finds memory for a detour where its jump can lead, and fills it.
    fn place_detour(&'static self, books: &mut Locked<'_, H>, detour: &mut Detour<H>) -> Result<(), Refusal> {
        for index in 0..books.detour_chunks.len() {
            if let Some(chunk) = books.detour_chunks.get(index).copied()
                // SAFETY: chunks of detours are kept for good.
                && self.fit(unsafe { chunk.as_ref() }, detour).is_ok()
            {
                return Ok(());
            }
        }
        // Anywhere near, if that suits the jump.
        let reach = H::Arch::SLOT_REACH.min(1 << 30);
        if let Some(base) = self.host.alloc_exec(CHUNK_LEN, Some((detour.place, reach))) {
            if self.first_entry(detour, base).is_some() {
                return self.add_detour_chunk(books, base).and_then(|chunk| self.fit(chunk, detour));
            }
            // SAFETY: nobody has been told of it.
            unsafe { self.host.free_exec(base, CHUNK_LEN) };
        }
        let mut from = detour.place.wrapping_offset(-(reach.min(detour.place.as_usize()) as isize));
        for _ in 0..TRIES {
            let entry =
                H::Arch::detour_entry(detour.place, &detour.displaced, from).ok_or(refusal::NO_ROOM)?;
            if let Some(base) = self.host.alloc_exec(CHUNK_LEN, Some((entry, CHUNK_LEN))) {
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

    /// The first entry that a detour could have in the chunk at `base`.
    fn first_entry(&self, detour: &Detour<H>, base: CodeAddr) -> Option<CodeAddr> {
        let from = base.wrapping_add(H::Arch::DETOUR_HEADER_LEN);
        let last = base.wrapping_add(CHUNK_LEN - MAX_DETOUR_LEN);
        H::Arch::detour_entry(detour.place, &detour.displaced, from).filter(|entry| *entry <= last)
    }

    fn add_detour_chunk(
        &'static self,
        books: &mut Locked<'_, H>,
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
        books: &mut Locked<'_, H>,
        base: CodeAddr,
    ) -> Result<&'static DetourChunk<H>, Refusal> {
        let retired = self.detour_chunks.reserve(1).map_err(|_| refusal::NO_MEMORY)?;
        self.keep_array(books, retired);
        books.detour_chunks.try_reserve(1).map_err(|_| refusal::NO_MEMORY)?;
        let mut owners = Vec::new();
        owners.try_reserve_exact(GRANULES).map_err(|_| refusal::NO_MEMORY)?;
        owners.resize_with(GRANULES, || AtomicPtr::new(ptr::null_mut()));
        let chunk =
            leak(DetourChunk { base, owners: owners.into_boxed_slice() }).map_err(|_| refusal::NO_MEMORY)?;
        // SAFETY: kept for good.
        unsafe { self.detour_chunks.insert(chunk) };
        books.detour_chunks.push(chunk);
        // SAFETY: kept for good.
        Ok(unsafe { chunk.as_ref() })
    }

    /// Puts a detour into a chunk, if there is room where its jump can lead.
    fn fit(&self, chunk: &DetourChunk<H>, detour: &mut Detour<H>) -> Result<(), Refusal> {
        const { assert!(H::Arch::DETOUR_LEN <= MAX_DETOUR_LEN) };
        let header = H::Arch::DETOUR_HEADER_LEN;
        let end = chunk.base.wrapping_add(CHUNK_LEN);
        let mut from = chunk.base.wrapping_add(header);
        let word = ptr::from_ref(detour).expose_provenance();
        let trampoline = H::Arch::detour_trampoline(detour.save);
        loop {
            let entry =
                H::Arch::detour_entry(detour.place, &detour.displaced, from).ok_or(refusal::NO_ROOM)?;
            let start = entry.wrapping_offset(-(header as isize));
            if entry >= end {
                return Err(refusal::NO_ROOM);
            }
            from = CodeAddr::new((start.as_usize() & !(GRANULE - 1)) + GRANULE + header);
            let is_free = |granules: &[AtomicPtr<Detour<H>>]| {
                granules.iter().all(|granule| granule.load(crate::sync::Relaxed).is_null())
            };
            if !chunk.granules(start, 1).is_some_and(is_free) {
                continue;
            }
            let mut image = [0; MAX_DETOUR_LEN];
            let room = image.get_mut(..H::Arch::DETOUR_LEN).unwrap_or_default();
            let text = detour.text.get(..usize::from(detour.displaced.len_bytes)).unwrap_or(&detour.text);
            let layout =
                H::Arch::fill_detour(&detour.displaced, text, detour.place, entry, trampoline, word, room)?;
            let len = usize::from(layout.len_bytes);
            let Some(granules) = chunk.granules(start, len).filter(|granules| is_free(granules)) else {
                continue;
            };
            // SAFETY: nobody executes there yet.
            unsafe { self.host.write_text(start, image.get(..len).unwrap_or(&image)) }
                .map_err(|_| refusal::NO_ROOM)?;
            (detour.entry, detour.layout) = (entry, layout);
            let owner = ptr::from_mut(detour);
            granules.iter().for_each(|granule| granule.store(owner, Release));
            return Ok(());
        }
    }
}

/// Whether a probe's handlers can be called by way of a jump.
fn can_jump<A: Arch>(node: &Node<A>) -> Result<(), Refusal> {
    match &node.handlers {
        _ if node.is(NO_JUMP) => Err(refusal::NOT_WANTED),
        Handlers::Jprobe(_) => Err(refusal::JPROBE),
        Handlers::Kprobe { post: Some(_), .. } => Err(refusal::POST),
        Handlers::Kprobe { .. } | Handlers::Return(_) => Ok(()),
    }
}

/// What has to be saved around the handlers of a probe with these flags.
pub(super) fn save_of<H: Host>(flags: u32) -> SaveSet {
    if flags & NO_SIMD == 0 { H::SAVE_SET } else { SaveSet::General }
}
