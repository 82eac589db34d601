//! Spares: room for the registers that steps borrow, if there is no frame for them: deeper than [`MAX_DEPTH`]
//! or without a [`Context`](crate::state::context::Context) (HIT_6). A few instructions borrow registers in
//! their slots.
//!
//! A spare is found again by the step's slot and the stack it runs on. Between the two traps of a step only
//! the one instruction runs, so the stack pointer has hardly moved. Another step in the same slot is on
//! another stack, or, if it interrupts this one, more than a trap's frame further down.

use crate::addr::CodeAddr;
use crate::state::context::MAX_DEPTH;
use crate::sync::{AcqRel, Acquire, AtomicUsize, Relaxed, Release, UnsafeCell};
use core::mem::MaybeUninit;

/// The most instructions that borrow registers and are in slots without a frame at the same time, in all
/// contexts together. The context that hits one more traps again and again until one of them has ended.
pub(crate) const SPARES: usize = 16;

const _: () = assert!(SPARES > MAX_DEPTH);

/// How far an instruction in a slot moves the stack pointer, in bytes, at the most.
const NEAR: usize = 64;

const FREE: usize = 0;
/// Being filled or emptied. No slot lies there.
const CLAIMED: usize = 1;

/// What steps without a frame have borrowed.
pub(crate) struct Spares<S> {
    used: AtomicUsize,
    spares: [Spare<S>; SPARES],
}

struct Spare<S> {
    /// The slot, or [`FREE`], or [`CLAIMED`].
    slot: AtomicUsize,
    /// The stack pointer when the slot was entered.
    sp: AtomicUsize,
    /// What [`Host::leave_slot`](crate::host::Host::leave_slot) gets, and what the instruction has borrowed.
    state: UnsafeCell<MaybeUninit<(u64, S)>>,
}

// SAFETY: the state is touched only by whoever has claimed the spare.
unsafe impl<S: Send> Sync for Spares<S> {}

/// A spare that has been claimed, to be filled.
pub(crate) struct ClaimedSpare<'a, S>(&'a Spare<S>);

impl<S: Copy> ClaimedSpare<'_, S> {
    /// Keeps what a step in `slot` has borrowed, until [`Spares::take`].
    pub(crate) fn fill(self, slot: CodeAddr, sp: usize, kept: u64, state: S) {
        debug_assert!(self.0.slot.load(Relaxed) == CLAIMED, "filled by who has not claimed it");
        self.0.sp.store(sp, Relaxed);
        // SAFETY: claimed, so only this touches the cell.
        unsafe { self.0.state.get().write(MaybeUninit::new((kept, state))) };
        self.0.slot.store(slot.as_usize(), Release);
    }
}

impl<S: Copy> Spares<S> {
    /// All free.
    pub(crate) const fn new() -> Self {
        Self {
            used: AtomicUsize::new(0),
            spares: [const {
                Spare {
                    slot: AtomicUsize::new(FREE),
                    sp: AtomicUsize::new(0),
                    state: UnsafeCell::new(MaybeUninit::uninit()),
                }
            }; SPARES],
        }
    }

    /// Whether one stands for the step in `slot` whose stack pointer is now `sp`.
    #[inline(always)]
    pub(crate) fn holds(&self, slot: CodeAddr, sp: usize) -> bool {
        // The context that has filled one sees that.
        self.used.load(Relaxed) != 0 && self.find(slot, sp).is_some()
    }

    #[cold]
    fn find(&self, slot: CodeAddr, sp: usize) -> Option<&Spare<S>> {
        self.spares.iter().find(|spare| {
            spare.slot.load(Acquire) == slot.as_usize() && spare.sp.load(Relaxed).abs_diff(sp) <= NEAR
        })
    }

    /// A free one. No lock, no allocation.
    pub(crate) fn claim(&self) -> Option<ClaimedSpare<'_, S>> {
        let claimed = self
            .spares
            .iter()
            .find(|spare| spare.slot.compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok())?;
        self.used.fetch_add(1, Relaxed);
        Some(ClaimedSpare(claimed))
    }

    /// What the step in `slot` has borrowed whose stack pointer is now `sp`, and what
    /// [`Host::leave_slot`](crate::host::Host::leave_slot) gets; frees the spare.
    pub(crate) fn take(&self, slot: CodeAddr, sp: usize) -> Option<(u64, S)> {
        let spare = self.find(slot, sp)?;
        // Nobody else runs in this slot on this stack: it can be only ours.
        spare.slot.compare_exchange(slot.as_usize(), CLAIMED, AcqRel, Relaxed).ok()?;
        // SAFETY: claimed, so only this touches the cell.
        let state = unsafe { spare.state.get().read() };
        spare.slot.store(FREE, Release);
        self.used.fetch_sub(1, Relaxed);
        // SAFETY: `fill` wrote it before it stored the slot.
        Some(unsafe { state.assume_init() })
    }
}
