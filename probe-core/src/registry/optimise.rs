//! Optimised probes: jumps into text and out of it again, many at a time.
//!
//! A probe is registered with a breakpoint. Its jump follows in three stages, with a synchronisation of the cores after
//! each: breakpoints where the displaced instructions start, the rest of the jump behind its first byte, the first byte.
//! The way back is the same in reverse. At every moment a context that arrives at any of these instructions either runs
//! it, traps and goes on in the copy, or jumps.

use super::{Locked, Probes};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Method, SaveSet};
use crate::detour::{Detour, MAX_DISPLACED_LEN};
use crate::error::{ControlError, TextError};
use crate::host::Host;
use crate::jump::BranchTargets;
use crate::kprobe::{AnyProbe, Pending};
use crate::point::{ARMED, NO_JUMP, NO_SIMD, OPTIMISED, Point, TORN};
use crate::sync::{Acquire, Release};
use alloc::vec::Vec;
use core::ptr::NonNull;

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

    /// The points that are about to get their breakpoints, if jumps shall follow: their detours are made.
    pub(super) fn prepare_jumps(
        &'static self,
        books: &mut Locked<'_, H>,
        points: impl Iterator<Item = NonNull<Point<H::Arch>>>,
    ) -> Vec<NonNull<Point<H::Arch>>> {
        let mut all = Vec::new();
        if !self.is_optimising.load(Acquire) {
            return all;
        }
        for point in points {
            if all.try_reserve(1).is_err() {
                break;
            }
            all.push(point);
        }
        self.prepare_detours(books, &mut all);
        all
    }

    /// Jumps for points that have just got their breakpoints.
    pub(super) fn optimise_new(
        &'static self,
        books: &mut Locked<'_, H>,
        mut points: Vec<NonNull<Point<H::Arch>>>,
    ) {
        // What cannot be written stays a breakpoint, which is what has been promised.
        let _ = self.optimise_points(books, &mut points);
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
                    detour.serve(None);
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
        let mut targets = BranchTargets::new();
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
                detour.serve(Some(point));
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

    /// The probes of the point have changed: its detour calls others.
    pub(super) fn update_detour(&self, point: &Point<H::Arch>) {
        if point.is(OPTIMISED)
            // SAFETY: the lock is held.
            && let Some(detour) = unsafe { self.detours.find(point.place.as_usize()) }
            && detour.is_active()
        {
            detour.serve(Some(point));
        }
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
        let is_start = |at: usize| detour.displaced.starts().any(|start| start == at);
        let mut from = H::Arch::BREAKPOINT.len();
        while from < H::Arch::JUMP_LEN {
            let to = (from..H::Arch::JUMP_LEN).find(|at| is_start(*at)).unwrap_or(H::Arch::JUMP_LEN);
            let run = bytes.get(from..to).unwrap_or(&[]);
            if !run.is_empty() {
                // SAFETY: before it stands a breakpoint, on every way to it: nobody executes it.
                unsafe { self.host.write_text(detour.place.wrapping_add(from), run) }?;
            }
            from = to + 1;
        }
        Ok(())
    }

    /// Whether the jump at `point` has to go when such a probe comes.
    pub(super) fn forbids_jump(&self, point: &Point<H::Arch>, probe: &AnyProbe<H::Arch>) -> bool {
        // SAFETY: the lock is held.
        let detour = unsafe { self.detours.find(point.place.as_usize()) };
        let needs_trap = match &probe.handlers {
            Pending::Jprobe(_) => true,
            Pending::Kprobe { post: Some(_), .. } if point.method != Method::Simulate => {
                !detour.is_some_and(|detour| detour.kind.calls_post)
            }
            _ => false,
        };
        let saves_less = detour.is_some_and(|detour| {
            detour.kind.save == SaveSet::General && save_of::<H>(probe.flags) != SaveSet::General
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
            NonNull::new(detour.point().load(Acquire)).filter(|_| is_over)
        })
    }
}

/// What has to be saved around the handlers of a probe with these flags.
pub(super) fn save_of<H: Host>(flags: u32) -> SaveSet {
    if flags & NO_SIMD == 0 { H::SAVE_SET } else { SaveSet::General }
}
