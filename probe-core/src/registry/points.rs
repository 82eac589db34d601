//! Points and their slots: a batch finds the points at its places, or makes them.

use super::resolve::{Boundaries, DecodedOf, Insn, Resolved};
use crate::addr::CodeAddr;
use crate::arch::{Arch, Method, Tail};
use crate::error::RegisterError;
use crate::held::Lent;
use crate::room::leak;
use crate::state::host::Host;
use crate::state::locked::OpenBooks;
use crate::state::point::{Point, TAIL_JUMPS};
use crate::state::probes::Probes;
use crate::state::slots::{CHUNK_LEN, OWN, SlotChunk};
use crate::state::text;

/// The longest slot that a backend may ask for, in bytes.
const MAX_SLOT_LEN: usize = 64;

/// Where a point of a batch comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Made for the batch: no context has run in its slot.
    New,
    /// It was there.
    Known,
}

/// A point, and where it comes from.
type Found<'g, H> = (Lent<'g, Point<<H as Host>::Arch>>, Origin);

impl<H: Host> Probes<H> {
    /// The point for a place: decoded, its slot filled, in the table.
    pub(super) fn point_for<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        boundaries: &mut Boundaries,
        resolved: &Resolved,
    ) -> Result<Found<'g, H>, RegisterError> {
        let at = resolved.at;
        let (decoded, insn) = self.decode(books.hold, boundaries, resolved)?;
        if let Some(known) = self.places.lent_at(at, books.hold) {
            if self.is_same_code(&known, &decoded, &insn) {
                return Ok((known, Origin::Known));
            }
            // Other text has replaced its own meanwhile. Its probes, if there are any, stay with the old
            // text.
            self.set_aside(books, known);
        }
        Ok((self.new_point(books, resolved, &decoded, &insn)?, Origin::New))
    }

    /// Whether an existing point still matches the text.
    fn is_same_code(&self, point: &Point<H::Arch>, decoded: &DecodedOf<H>, insn: &Insn) -> bool {
        let breakpoint = H::Arch::breakpoint(point.place).len();
        if point.plan != decoded.plan || insn.get(..breakpoint) != point.saved.get(..breakpoint) {
            return false;
        }
        // The same code may have been loaded there afresh, unnoticed: then it has no breakpoint.
        if text::is_overwritten(&self.host, point) {
            return false;
        }
        let tail = if point.is(TAIL_JUMPS) { Tail::Jump } else { Tail::Breakpoint };
        !point.has_slot() || {
            let mut image = [0; MAX_SLOT_LEN];
            let mut now = [0; MAX_SLOT_LEN];
            let own = H::Arch::SLOT_LEN - OWN;
            let len = usize::from(decoded.len_bytes);
            let filled = H::Arch::fill_slot(
                &point.plan,
                &insn[..len],
                point.place,
                point.slot,
                tail,
                &mut image[..own],
            );
            filled.is_ok()
                && self.host.read_text(H::Arch::first_byte(point.slot), &mut now[..own]) == own
                && now[..own] == image[..own]
        }
    }

    fn new_point<'g>(
        &'static self,
        books: &mut OpenBooks<'g, H>,
        resolved: &Resolved,
        decoded: &DecodedOf<H>,
        insn: &Insn,
    ) -> Result<Lent<'g, Point<H::Arch>>, RegisterError> {
        let at = resolved.at;
        let slot = match decoded.method {
            Method::Simulate => CodeAddr::new(0),
            _ => self.prepare_slot(books, at, decoded, insn)?,
        };
        let mut saved = [0; 4];
        for (to, from) in saved.iter_mut().zip(insn) {
            *to = *from;
        }
        let mut point = Point::new(at, decoded.plan, decoded.method, decoded.len_bytes, saved, slot);
        point.is_boundary = resolved.has_checked_boundary();
        let point = match leak(point) {
            Ok(point) => point,
            Err(error) => {
                if slot.as_usize() != 0 {
                    self.slots.put::<H::Arch>(slot, books.hold);
                }
                return Err(error.into());
            }
        };
        // SAFETY: made just now, and freed by `clean_up`, a grace period after it has been taken off.
        Ok(unsafe { self.places.add(point, books.hold) })
    }

    /// A slot for the instruction at `at`, filled, with a breakpoint as its tail.
    pub(super) fn prepare_slot(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        at: CodeAddr,
        decoded: &DecodedOf<H>,
        insn: &Insn,
    ) -> Result<CodeAddr, RegisterError> {
        let slot = match self.slots.take::<H::Arch>(at, books.hold) {
            Some(slot) => slot,
            None => {
                self.add_slot_chunk(books, at)?;
                self.slots.take::<H::Arch>(at, books.hold).ok_or(RegisterError::NoSlot(at))?
            }
        };
        let slot = H::Arch::same_set(slot, at);
        let filled = self.fill_slot(slot, at, decoded, insn);
        if filled.is_err() {
            self.slots.put::<H::Arch>(slot, books.hold);
        }
        filled.map(|()| slot)
    }

    fn fill_slot(
        &self,
        slot: CodeAddr,
        at: CodeAddr,
        decoded: &DecodedOf<H>,
        insn: &Insn,
    ) -> Result<(), RegisterError> {
        const { assert!(H::Arch::SLOT_LEN.is_power_of_two()) };
        const { assert!(H::Arch::SLOT_LEN > OWN && H::Arch::SLOT_LEN <= MAX_SLOT_LEN) };
        let own = H::Arch::SLOT_LEN - OWN;
        let len = usize::from(decoded.len_bytes).min(insn.len());
        let mut image = [0; MAX_SLOT_LEN];
        H::Arch::fill_slot(&decoded.plan, &insn[..len], at, slot, Tail::Breakpoint, &mut image[..own])
            .map_err(|refusal| RegisterError::Refused { at, refusal })?;
        image[own..own + OWN].copy_from_slice(&at.as_usize().to_ne_bytes());
        // SAFETY: the slot was free: nobody executes in it.
        unsafe { self.host.write_text(H::Arch::first_byte(slot), &image[..own + OWN]) }?;
        Ok(())
    }

    fn add_slot_chunk(
        &'static self,
        books: &mut OpenBooks<'_, H>,
        at: CodeAddr,
    ) -> Result<(), RegisterError> {
        let retired = self.slots.reserve()?;
        books.keep_array(retired);
        let reach = H::Arch::SLOT_REACH.saturating_sub(CHUNK_LEN);
        let near = (H::Arch::SLOT_REACH != usize::MAX).then_some((at, reach));
        let base = self.host.alloc_exec(CHUNK_LEN, near).ok_or(RegisterError::NoSlot(at))?;
        match SlotChunk::new(base, H::Arch::SLOT_LEN).and_then(leak) {
            Ok(chunk) => {
                // SAFETY: `clean_up` frees it a grace period after it has been taken off.
                unsafe { self.slots.add(chunk) };
                Ok(())
            }
            Err(error) => {
                // SAFETY: nobody has been told of it.
                unsafe { self.host.free_exec(base, CHUNK_LEN) };
                Err(error.into())
            }
        }
    }
}
