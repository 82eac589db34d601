//! Optimised probes: which points get jumps instead of their breakpoints, and when they lose them.
//!
//! A probe is registered with a breakpoint; its jump comes afterwards. Where a probe joins a point that has a
//! jump, one question decides: does the detour of that jump serve this probe, too ([`Probes::is_served`])?
//! The module `text` writes the jumps.

use super::plans::{Candidate, Plans};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Method, NativeJumps, SaveSet};
use crate::error::{JumpError, Refusal, TextError};
use crate::held::Hold;
use crate::jump::{post_by_jump, refusal};
use crate::state::detour::{MAX_DISPLACED_LEN, Service};
use crate::state::host::Host;
use crate::state::locked::OpenBooks;
use crate::state::point::{Asks, NO_JUMP, NO_SIMD, Node, Point};
use crate::state::probes::Probes;
use crate::state::text::{Spot, Standing};
use crate::sync::Relaxed;
use alloc::vec::Vec;

impl<H: Host> Probes<H> {
    /// What [`Jumps::lay`](crate::jumps::JumpControl::lay) does.
    pub(crate) fn lay_jumps(&'static self) -> Result<usize, JumpError> {
        if self.is_in_handler() {
            return Err(JumpError::InHandler);
        }
        let plans = self.plan_jumps(self.places_without_jumps());
        let mut books = self.lock();
        self.settle_locked(&mut books);
        let mut points = Vec::new();
        let mut open = books.open();
        for point in self.places.all(open.hold) {
            if points.try_reserve(1).is_ok() {
                points.push(point.get());
            }
        }
        let done = self.optimise_points(&mut open, &plans, &mut points);
        self.clean_arrays(&mut books);
        done.map_err(JumpError::Text)?;
        Ok(self.places.texts().jumps())
    }

    /// The places of all probes without a jump, each with its function. What there is no memory for keeps its
    /// breakpoint.
    fn places_without_jumps(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let lock = self.lock();
        for point in self.places.all(lock.hold()).filter(|point| !point.text.has_jump()) {
            if candidates.try_reserve(1).is_ok() {
                candidates.push(Candidate { place: point.place, function: None });
            }
        }
        drop(lock);
        for Candidate { place, function } in &mut candidates {
            self.host.symbol_at(*place, &mut |symbol| {
                *function = Some((symbol.start, symbol.start.wrapping_add(symbol.len_bytes)));
            });
        }
        candidates
    }

    /// The points that are about to get their breakpoints, if jumps shall follow: their detours are made.
    pub(super) fn prepare_jumps<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        plans: &Plans,
        points: impl Iterator<Item = &'g Point<H::Arch>>,
    ) -> Vec<&'g Point<H::Arch>> {
        let mut all = Vec::new();
        if !self.switches.is_optimising() {
            return all;
        }
        for point in points {
            if all.try_reserve(1).is_err() {
                break;
            }
            // A jump that stands there serves all of its probes.
            if !point.text.has_jump() {
                all.push(point);
            }
        }
        self.prepare_detours(books, plans, &mut all);
        all
    }

    /// Jumps for points that have just got their breakpoints.
    pub(super) fn optimise_new<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        plans: &Plans,
        mut points: Vec<&'g Point<H::Arch>>,
    ) {
        // A jump that cannot be written stays a breakpoint, as promised.
        let _ = self.optimise_points(books, plans, &mut points);
    }

    /// What [`Jumps::lift`](crate::jumps::JumpControl::lift) does.
    pub(crate) fn lift_jumps(&'static self) -> Result<(), JumpError> {
        if self.is_in_handler() {
            return Err(JumpError::InHandler);
        }
        let mut books = self.lock();
        self.settle_locked(&mut books);
        self.unoptimise_where(books.hold(), |_| true).map_err(JumpError::Text)
    }

    /// Takes the jumps out of the text of all points that `is_meant` selects.
    pub(super) fn unoptimise_where(
        &self,
        hold: &Hold,
        is_meant: impl Fn(&Point<H::Arch>) -> bool,
    ) -> Result<(), TextError> {
        let mut first = Ok(());
        let mut points = Vec::new();
        for point in self.places.all(hold).filter(|point| point.text.has_jump() && is_meant(point)) {
            if points.try_reserve(1).is_ok() {
                points.push(point.get());
            } else {
                first = first.and(self.unoptimise_points(hold, &[point.get()]));
            }
        }
        first.and(self.unoptimise_points(hold, &points))
    }

    /// Takes the jumps of the points out of text, leaving breakpoints.
    pub(super) fn unoptimise_points(&self, hold: &Hold, points: &[&Point<H::Arch>]) -> Result<(), TextError> {
        let mut jumps = Vec::new();
        let mut first = Ok(());
        for jump in points.iter().filter_map(|point| Spot::of(point).jump()) {
            if jumps.try_reserve(1).is_ok() {
                jumps.push(jump);
            } else {
                // Without memory for many, one at a time.
                first = first.and(self.places.texts().lift(&self.host, hold, &[jump]));
            }
        }
        first.and(self.places.texts().lift(&self.host, hold, &jumps))
    }

    /// Lays jumps at those of the points that can have one. They are sorted by address.
    pub(super) fn optimise_points<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        plans: &Plans,
        points: &mut [&'g Point<H::Arch>],
    ) -> Result<(), TextError> {
        points.sort_unstable_by_key(|point| point.place);
        let mut ready = Vec::new();
        for (index, point) in points.iter().copied().enumerate() {
            // Several probes of a batch may be on it.
            let is_last = points.get(index + 1).is_none_or(|next| next.place != point.place);
            if !is_last || ready.try_reserve(1).is_err() {
                continue;
            }
            if let Spot::Breakpoint(breakpoint) = Spot::of(point)
                && let Ok(detour) = self.detour_for(books, plans, point)
            {
                ready.push((breakpoint, detour));
            }
        }
        self.places.texts().lay(&self.host, books.hold, &ready)
    }

    /// Tells the detour of the point that its probes have changed.
    pub(super) fn update_detour(&self, hold: &Hold, point: &Point<H::Arch>) {
        if point.text.has_jump()
            && let Some(detour) = Standing::<H>::of(point).detour()
        {
            detour.serve(hold, Some(point));
        }
    }

    /// Whether the detour that stands in text at `point` serves such a probe, too. If not, the breakpoint has
    /// to come back first, and then another jump, if there can be one.
    pub(super) fn is_served(&self, point: &Point<H::Arch>, node: &Node<H::Arch>) -> bool {
        match Standing::<H>::of(point).detour() {
            Some(detour) => needs_of::<H>(point, node.flags.load(Relaxed), node.handlers.asks())
                .is_ok_and(|needs| detour.service.serves(needs)),
            None => true,
        }
    }

    /// The points whose jumps lie over `place`.
    pub(super) fn jumps_over<'g>(
        &'g self,
        hold: &'g Hold,
        place: CodeAddr,
    ) -> impl Iterator<Item = &'g Point<H::Arch>> {
        let distances =
            if self.places.texts().jumps() == 0 { 0..0 } else { H::Arch::INSN_ALIGN..MAX_DISPLACED_LEN };
        distances.step_by(H::Arch::INSN_ALIGN).filter_map(move |distance| {
            let start = place.wrapping_offset(-(distance as isize));
            let point = self.places.at(start, hold)?;
            let detour = Standing::<H>::of(point).detour()?;
            (usize::from(detour.displaced.len_bytes) > distance).then_some(point)
        })
    }
}

/// The registers to be saved around the handlers of a probe with these flags.
pub(super) fn save_of<H: Host>(flags: u32) -> SaveSet {
    if flags & NO_SIMD == 0 { H::SAVE_SET } else { SaveSet::General }
}

/// The kind of detour that a probe with these flags and handlers needs at `point`.
///
/// # Errors
/// Why its handlers cannot be called by way of a jump.
pub(super) fn needs_of<H: Host>(point: &Point<H::Arch>, flags: u32, asks: Asks) -> Result<Service, Refusal> {
    if flags & NO_JUMP != 0 {
        return Err(refusal::NOT_WANTED);
    }
    let mut needs = Service { save: save_of::<H>(flags), calls_post: false, follows: false };
    match asks {
        Asks::Jprobe => return Err(refusal::JPROBE),
        Asks::Pre => {}
        Asks::Post => {
            post_by_jump::<H::Arch>(point.method, &point.plan)?;
            needs.calls_post = point.method != Method::Simulate;
        }
        Asks::Return => {
            let trampoline = H::Arch::JUMPS.and_then(|jumps| jumps.entry_trampoline(SaveSet::General));
            needs.follows = trampoline.is_some();
        }
    }
    Ok(needs)
}
