//! The outcome of a registration, without registering (REG_9).

use super::resolve::{Boundaries, DecodedOf, Insn, Pristine, Resolved};
use crate::addr::CodeAddr;
use crate::arch::{Displaced, Method, Text};
use crate::error::{Refusal, RegisterError};
use crate::held::Hold;
use crate::jump::{BranchTargets, post_by_jump};
use crate::place::Place;
use crate::state::host::Host;
use crate::state::locked::OpenBooks;
use crate::state::probes::Probes;
use crate::state::text::writing::Writing;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

/// The answer of [`Probes::explain`] about a place: the outcome of a registration there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Where the probe would stand.
    pub at: CodeAddr,
    /// The symbol that covers it, and the distance from its start in bytes.
    pub symbol: Option<(Box<str>, usize)>,
    /// The module or shared object of that symbol.
    pub module: Option<Box<str>>,
    /// The original instruction.
    pub insn: Box<[u8]>,
    /// How it would be executed.
    pub method: Method,
    /// Whether it would have a slot.
    pub has_slot: bool,
    /// Whether the place is a function's entry, where jprobes and return probes can stand.
    pub is_entry: bool,
    /// The outcome of registering a return probe or a jprobe.
    pub entry: Result<(), RegisterError>,
    /// Whether a kprobe could have a jump there instead of a breakpoint; if not, why. Room for its detour has
    /// not been looked for.
    pub jump: Result<(), Refusal>,
    /// Whether a kprobe with a post handler could; if not, why.
    pub jump_with_post: Result<(), Refusal>,
    /// Where the host would need executable memory for the jump: stretches of addresses in which its detour
    /// may begin; a few near ones if there are many. Empty where there can be no jump, and where all that a
    /// jump could reach lies beyond the first or last address.
    pub room: Vec<Range<CodeAddr>>,
}

impl<H: Host> Probes<H> {
    /// Tells the outcome of a registration at `place`, without registering (REG_9).
    ///
    /// # Errors
    /// The error of registering a kprobe.
    pub fn explain(&'static self, place: &Place) -> Result<Explanation, RegisterError> {
        let told = self.explain_all(core::slice::from_ref(place)).pop();
        // One for each place.
        told.unwrap_or(Err(RegisterError::NoMemory))
    }

    /// As [`Probes::explain`], for many places: memory for trial slots is taken and given back once. One
    /// answer for each place, in their order.
    pub fn explain_all(&'static self, places: &[Place]) -> Vec<Result<Explanation, RegisterError>> {
        if self.is_in_handler() {
            return places.iter().map(|_| Err(RegisterError::InHandler)).collect();
        }
        let mut targets = BranchTargets::new();
        let judged = self.judge_all(places.iter(), |hold, resolved, decoded, insn| {
            let jump = self.explain_jump(hold, &mut targets, &resolved);
            Judged { resolved, decoded, insn, jump }
        });
        let tell = |(judged, place): (Result<Judged<H>, RegisterError>, &Place)| {
            judged.map(|judged| self.tell(place, judged))
        };
        judged.into_iter().zip(places).map(tell).collect()
    }

    /// Whether [`Probes::register`] would take a kprobe at each of the places or, where `true` stands
    /// beside it, a return probe or a jprobe, and at no other place: [`Probes::explain_all`] without all
    /// else that it tells. One answer for each place, in their order.
    pub fn check_all(&'static self, places: &[(Place, bool)]) -> Vec<Result<(), RegisterError>> {
        if self.is_in_handler() {
            return places.iter().map(|_| Err(RegisterError::InHandler)).collect();
        }
        let judged = self.judge_all(places.iter().map(|(place, _)| place), |_, resolved, _, _| resolved.at);
        let check = |(judged, (place, wants_entry)): (Result<CodeAddr, RegisterError>, &(Place, bool))| {
            let at = judged?;
            if *wants_entry { self.check_entry(place, at) } else { Ok(()) }
        };
        judged.into_iter().zip(places).map(check).collect()
    }

    /// Reads text from `at` on as it would be without our breakpoints and jumps, and returns how many bytes
    /// of `out` could be read: in a handler none.
    pub fn original_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        if self.is_in_handler() {
            return 0;
        }
        let lock = self.lock();
        Pristine::new(self, lock.hold()).read(at, out)
    }

    /// Decodes what the places name, and tries for slots; `tell` makes the answers, under the lock.
    fn judge_all<'p, R>(
        &'static self,
        places: impl Iterator<Item = &'p Place>,
        mut tell: impl FnMut(&Hold, Resolved, DecodedOf<H>, Insn) -> R,
    ) -> Vec<Result<R, RegisterError>> {
        let resolved: Vec<_> = places.map(|place| self.resolve(place, false)).collect();
        let mut books = self.lock();
        let mut open = books.open();
        let mut boundaries = Boundaries::new();
        let mut tried = false;
        let writing = Writing::begin(&self.host, open.hold);
        let mut judge = |resolved: Result<Resolved, RegisterError>| {
            let resolved = resolved?;
            let (decoded, insn) = self.judge(&mut open, &mut boundaries, &mut tried, &resolved)?;
            Ok(tell(open.hold, resolved, decoded, insn))
        };
        let judged = resolved.into_iter().map(&mut judge).collect();
        drop(writing);
        if tried {
            self.retire(&mut books, &mut []);
        }
        judged
    }

    /// Decodes, and tries for a slot.
    fn judge(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        boundaries: &mut Boundaries,
        tried: &mut bool,
        resolved: &Resolved,
    ) -> Result<(DecodedOf<H>, Insn), RegisterError> {
        let (decoded, insn) = self.decode(books.hold, boundaries, resolved)?;
        let is_new = self.places.at(resolved.at, books.hold).is_none();
        if decoded.method != Method::Simulate && is_new {
            *tried = true;
            let slot = self.prepare_slot(books, resolved.at, &decoded, &insn)?;
            self.slots.put::<H::Arch>(slot, books.hold);
        }
        Ok((decoded, insn))
    }

    /// Whether a return probe or a jprobe at `place`, where a kprobe would stand at `at`, would stand there,
    /// too.
    fn check_entry(&self, place: &Place, at: CodeAddr) -> Result<(), RegisterError> {
        match self.resolve(place, true) {
            Ok(entry) if entry.at == at => Ok(()),
            Ok(_) => Err(RegisterError::NotEntry(at)),
            Err(error) => Err(error),
        }
    }

    fn tell(&'static self, place: &Place, judged: Judged<H>) -> Explanation {
        let Judged { resolved, decoded, insn, jump } = judged;
        let room =
            jump.as_ref().map(|(displaced, _)| Self::rooms(resolved.at, displaced)).unwrap_or_default();
        let jump = jump.and_then(|(displaced, neighbours)| {
            self.check_displaced(resolved.at, &displaced).and(neighbours)
        });
        let entry = self.check_entry(place, resolved.at);
        let mut symbol = None;
        let mut module = None;
        self.host.symbol_at(resolved.at, &mut |found| {
            let distance = resolved.at.as_usize().wrapping_sub(found.start.as_usize());
            symbol = Some((Box::from(found.name), distance));
            module = found.module.map(String::from).map(String::into_boxed_str);
        });
        Explanation {
            at: resolved.at,
            symbol,
            module,
            insn: insn[..usize::from(decoded.len_bytes)].into(),
            method: decoded.method,
            has_slot: decoded.method != Method::Simulate,
            is_entry: entry.is_ok(),
            entry,
            jump,
            jump_with_post: jump.and_then(|()| post_by_jump::<H::Arch>(decoded.method, &decoded.plan)),
            room: if jump.is_ok() { room } else { Vec::new() },
        }
    }
}

/// A place that can be probed.
struct Judged<H: Host> {
    resolved: Resolved,
    decoded: DecodedOf<H>,
    insn: Insn,
    /// What a jump would displace, and whether probes stand there.
    jump: Result<(Displaced, Result<(), Refusal>), Refusal>,
}
