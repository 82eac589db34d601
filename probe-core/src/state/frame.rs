//! One active hit: the event that it waits for, and the registers that it has borrowed. Its
//! [`Context`](crate::state::context::Context) has the stack of them.

use crate::arch::{Arch, NativeArch};
use crate::state::point::Point;
use crate::sync::{Acquire, AtomicPtr, AtomicU8, AtomicU32, Relaxed, Release, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr;

/// What an active hit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A slot's end.
    Slot(SlotHit),
    /// Something that the context reaches pinned.
    Pinned(PinnedHit),
}

/// A hit whose instruction runs in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlotHit {
    /// At the slot's end post handlers run.
    Outer = 1,
    /// One inside another hit: no handler runs.
    Nested = 2,
}

/// A hit that waits pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PinnedHit {
    /// For the return of a jprobe's handler.
    Jprobe = 3,
    /// For the end of a copy in a detour; then post handlers run.
    Copy = 4,
    /// For the trap that takes all registers: there the instruction is simulated, then post handlers run.
    Lowered = 5,
}

/// The byte of a frame that is free or being filled.
const NOTHING: u8 = 0;

/// What a hit in a slot keeps until it goes on.
pub(crate) struct Kept<A: Arch> {
    /// The newest probe that saw the hit: post handlers of younger ones do not run.
    pub(crate) newest: u32,
    /// The argument of [`Host::leave_slot`](crate::host::Host::leave_slot).
    pub(crate) slot_word: u64,
    /// What the instruction has borrowed.
    pub(crate) state: A::StepState,
}

/// The record of an active hit.
pub(super) struct Frame<A: Arch> {
    /// A [`Wait`], or [`NOTHING`].
    wait: AtomicU8,
    /// The point that was hit. It is not freed while it is here.
    point: AtomicPtr<Point<A>>,
    newest: AtomicU32,
    /// Of a hit in a slot.
    state: UnsafeCell<MaybeUninit<(u64, A::StepState)>>,
}

impl<A: Arch> Frame<A> {
    /// A free one.
    pub(super) const fn new() -> Self {
        Self {
            wait: AtomicU8::new(NOTHING),
            point: AtomicPtr::new(ptr::null_mut()),
            newest: AtomicU32::new(0),
            state: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    pub(super) fn wait(&self) -> Option<Wait> {
        Some(match self.wait.load(Relaxed) {
            1 => Wait::Slot(SlotHit::Outer),
            2 => Wait::Slot(SlotHit::Nested),
            3 => Wait::Pinned(PinnedHit::Jprobe),
            4 => Wait::Pinned(PinnedHit::Copy),
            5 => Wait::Pinned(PinnedHit::Lowered),
            _ => return None,
        })
    }

    /// Whether it waits for a slot's end, for post handlers.
    #[inline(always)]
    pub(super) fn is_step(&self) -> bool {
        self.wait.load(Relaxed) == SlotHit::Outer as u8
    }

    /// The point that stands here, or null.
    #[inline(always)]
    pub(super) fn point(&self) -> *mut Point<A> {
        self.point.load(Relaxed)
    }

    /// The point that was hit, seen from another context.
    pub(super) fn point_seen(&self) -> *mut Point<A> {
        self.point.load(Acquire)
    }

    /// Empties the frame, for a context that nobody uses: a pin in it is nobody's, either.
    pub(super) fn forget(&self) {
        self.wait.store(NOTHING, Relaxed);
        self.point.store(ptr::null_mut(), Relaxed);
    }
}

impl<A: NativeArch> Frame<A> {
    /// Begins a hit in a slot here. The frame has been taken: a hit that interrupts this takes the next one.
    ///
    /// # Safety
    /// Runs on the context that owns this frame, and that has taken it.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, hit: SlotHit, point: &Point<A>, kept: Kept<A>) {
        // SAFETY: only this context touches the cell, and what interrupts it uses other frames.
        unsafe { self.state.get().write(MaybeUninit::new((kept.slot_word, kept.state))) };
        self.begin(hit as u8, point, kept.newest);
    }

    /// Begins a hit here that waits pinned.
    ///
    /// # Safety
    /// As of [`Frame::fill`].
    pub(super) unsafe fn fill_pinned(&self, hit: PinnedHit, point: &Point<A>, newest: u32) {
        self.begin(hit as u8, point, newest);
    }

    #[inline(always)]
    fn begin(&self, wait: u8, point: &Point<A>, newest: u32) {
        debug_assert!(self.wait().is_none(), "a hit that is still active loses its frame");
        self.point.store(ptr::from_ref(point).cast_mut(), Relaxed);
        self.newest.store(newest, Relaxed);
        A::program_order();
        self.wait.store(wait, Relaxed);
    }

    /// Ends the hit here, which waits for a slot's end.
    ///
    /// # Safety
    /// Runs on the context whose innermost hit it is, and that has seen that it waits so.
    #[inline(always)]
    pub(super) unsafe fn empty(&self) -> Kept<A> {
        debug_assert!(matches!(self.wait(), Some(Wait::Slot(_))), "a hit in a slot ends once");
        // SAFETY: only this context touches the cell.
        let state = unsafe { self.state.get().read() };
        // SAFETY: `fill` wrote it before it set `wait`.
        let (slot_word, state) = unsafe { state.assume_init() };
        Kept { newest: self.end(), slot_word, state }
    }

    /// Ends the hit here, which waits pinned; returns the newest probe that saw it.
    ///
    /// # Safety
    /// As of [`Frame::empty`].
    #[inline(always)]
    pub(super) unsafe fn empty_pinned(&self) -> u32 {
        debug_assert!(matches!(self.wait(), Some(Wait::Pinned(_))), "a pin is given back once");
        self.end()
    }

    #[inline(always)]
    fn end(&self) -> u32 {
        let newest = self.newest.load(Relaxed);
        self.wait.store(NOTHING, Relaxed);
        A::program_order();
        // Release: a context that sees the frame gone sees what was done with its point.
        self.point.store(ptr::null_mut(), Release);
        newest
    }
}
