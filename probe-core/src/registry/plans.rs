//! Plans of jumps: what a jump at a place would displace, and whether the host allows that.
//!
//! The host's answers may be slow, call probed functions and take locks of the program, as
//! [`Probes::resolve`] says. So plans are made before the registry's lock is taken for what follows: text is
//! read under the lock, the host is asked without it. A detour is made later only if the text is still what
//! it was.

use super::resolve::{Pristine, Resolved};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Displaced, Site, Text};
use crate::error::Refusal;
use crate::held::Hold;
use crate::jump::{BranchTargets, displaced_by_jump, refusal};
use crate::state::detour::MAX_DISPLACED_LEN;
use crate::state::host::{Host, Probeable};
use crate::state::probes::Probes;
use alloc::vec::Vec;

/// A place that may get a jump, and the function that covers it.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub(super) place: CodeAddr,
    pub(super) function: Option<(CodeAddr, CodeAddr)>,
}

impl Candidate {
    /// The place of a probe.
    pub(super) fn of(resolved: &Resolved) -> Self {
        let function = resolved.function.map(|function| (function.start, function.end));
        Self { place: resolved.at, function }
    }
}

/// The instructions that a jump would displace, and their bytes.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) displaced: Displaced,
    pub(super) text: [u8; MAX_DISPLACED_LEN],
}

/// Plans for places, or why there is none, by ascending address.
pub(super) struct Plans(Vec<(CodeAddr, Result<Plan, Refusal>)>);

impl Plans {
    /// For no place: a jump comes only where there is a detour already.
    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// The plan for `place`.
    ///
    /// # Errors
    /// Why it keeps its breakpoint.
    pub(super) fn at(&self, place: CodeAddr) -> Result<Plan, Refusal> {
        let found = self.0.binary_search_by_key(&place, |(place, _)| *place);
        found.ok().and_then(|index| self.0.get(index)).map_or(Err(refusal::CHANGED), |(_, plan)| *plan)
    }
}

impl<H: Host> Probes<H> {
    /// Plans jumps for places that have no detour yet. Called without the lock. Where there is no memory for
    /// its plan, a place keeps its breakpoint.
    pub(super) fn plan_jumps(&self, mut places: Vec<Candidate>) -> Plans {
        let mut plans = Plans::none();
        if H::Arch::JUMPS.is_none() || places.is_empty() || plans.0.try_reserve_exact(places.len()).is_err() {
            return plans;
        }
        // In the order of addresses a function's branches are looked for once.
        places.sort_unstable_by_key(|candidate| candidate.place);
        places.dedup_by_key(|candidate| candidate.place);
        let mut targets = BranchTargets::new();
        let lock = self.lock();
        for candidate in places {
            if self.detours.newest(candidate.place, lock.hold()).is_none() {
                plans.0.push((candidate.place, self.plan_jump(lock.hold(), &mut targets, candidate)));
            }
        }
        drop(lock);
        for (place, plan) in &mut plans.0 {
            if let Ok(Plan { displaced, .. }) = plan
                && let Err(refusal) = self.check_displaced(*place, displaced)
            {
                *plan = Err(refusal);
            }
        }
        plans
    }

    /// What a jump at a place would displace; the host has not been asked.
    fn plan_jump(
        &self,
        hold: &Hold,
        targets: &mut BranchTargets,
        Candidate { place, function }: Candidate,
    ) -> Result<Plan, Refusal> {
        let pristine = Pristine::new(self, hold);
        let displaced =
            displaced_by_jump::<H::Arch>(targets, &Site { at: place, function, text: &pristine })?;
        Ok(Plan { displaced, text: self.displaced_text(hold, place, &displaced)? })
    }

    /// What a kprobe's jump would displace, and whether other probes stand there. Room for the detour is not
    /// looked for, and the host is asked afterwards, by [`Probes::check_displaced`].
    pub(super) fn explain_jump(
        &self,
        hold: &Hold,
        targets: &mut BranchTargets,
        resolved: &Resolved,
    ) -> Result<(Displaced, Result<(), Refusal>), Refusal> {
        let Plan { displaced, .. } = self.plan_jump(hold, targets, Candidate::of(resolved))?;
        Ok((displaced, self.check_neighbours(hold, resolved.at, &displaced)))
    }

    /// Whether the host lets every byte that a jump at `place` displaces be changed (REG_20): inside an
    /// instruction, too, somebody else may patch. Called without the lock.
    pub(super) fn check_displaced(&self, place: CodeAddr, displaced: &Displaced) -> Result<(), Refusal> {
        let start = H::Arch::first_byte(place);
        let end = start.wrapping_add(usize::from(displaced.len_bytes));
        match self.host.all_probeable(start, end) {
            Probeable::Yes => Ok(()),
            Probeable::Refused(refusal) => Err(refusal),
            Probeable::NotText | Probeable::Blacklisted => Err(refusal::FORBIDDEN),
        }
    }

    /// Whether other probes stand on the instructions that a jump at `place` displaces.
    pub(super) fn check_neighbours(
        &self,
        hold: &Hold,
        place: CodeAddr,
        displaced: &Displaced,
    ) -> Result<(), Refusal> {
        let len = usize::from(displaced.len_bytes);
        for distance in (H::Arch::INSN_ALIGN..len).step_by(H::Arch::INSN_ALIGN) {
            let other = self.places.at(place.wrapping_add(distance), hold);
            if other.is_some_and(|other| other.text.is_planted()) {
                return Err(refusal::NEIGHBOUR);
            }
        }
        Ok(())
    }

    /// The bytes of these instructions.
    pub(super) fn displaced_text(
        &self,
        hold: &Hold,
        place: CodeAddr,
        displaced: &Displaced,
    ) -> Result<[u8; MAX_DISPLACED_LEN], Refusal> {
        let mut text = [0; MAX_DISPLACED_LEN];
        let len = usize::from(displaced.len_bytes);
        let wanted = text.get_mut(..len).ok_or(refusal::NO_MEMORY)?;
        if Pristine::new(self, hold).read(place, wanted) < len {
            return Err(refusal::CHANGED);
        }
        Ok(text)
    }
}
