//! One active hit: the event that it waits for, and the registers that it has borrowed. Its
//! [`Context`](crate::state::context::Context) has the stack of them.

use crate::arch::{Arch, NativeArch};
use crate::state::point::Point;
use crate::sync::{Acquire, AtomicPtr, AtomicU8, AtomicU32, Relaxed, Release, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr;

/// What an active hit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wait {
    /// Nothing: the frame is free or being filled.
    Nothing = 0,
    /// The slot's end; then post handlers run.
    Step = 1,
    /// The slot's end of a nested hit, after which no handler runs.
    NestedStep = 2,
    /// The return of a jprobe's handler.
    Jprobe = 3,
    /// The end of a copy in a detour; then post handlers run.
    Copy = 4,
    /// The trap that takes all registers: there the instruction is simulated, then post handlers run.
    Lowered = 5,
}

/// What a hit keeps until it goes on.
pub(crate) struct Kept<A: Arch> {
    /// The newest probe that saw the hit: post handlers of younger ones do not run.
    pub(crate) newest: u32,
    /// The argument of [`Host::leave_slot`](crate::host::Host::leave_slot).
    pub(crate) slot_word: u64,
    /// What the instruction has borrowed.
    pub(crate) state: A::StepState,
}

impl<A: Arch> Kept<A> {
    /// What a hit keeps that runs in no slot.
    pub(crate) fn only(newest: u32) -> Self {
        Self { newest, slot_word: 0, state: Default::default() }
    }
}

/// The record of an active hit.
pub(super) struct Frame<A: Arch> {
    wait: AtomicU8,
    /// The point that was hit. It is not freed while it is here.
    point: AtomicPtr<Point<A>>,
    newest: AtomicU32,
    state: UnsafeCell<MaybeUninit<(u64, A::StepState)>>,
}

impl<A: Arch> Frame<A> {
    /// A free one.
    pub(super) const fn new() -> Self {
        Self {
            wait: AtomicU8::new(Wait::Nothing as u8),
            point: AtomicPtr::new(ptr::null_mut()),
            newest: AtomicU32::new(0),
            state: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    pub(super) fn wait(&self) -> Wait {
        match self.wait.load(Relaxed) {
            1 => Wait::Step,
            2 => Wait::NestedStep,
            3 => Wait::Jprobe,
            4 => Wait::Copy,
            5 => Wait::Lowered,
            _ => Wait::Nothing,
        }
    }

    /// Whether it waits for a [`Wait::Step`].
    #[inline(always)]
    pub(super) fn is_step(&self) -> bool {
        self.wait.load(Relaxed) == Wait::Step as u8
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

    /// Empties the frame, for a context that nobody uses.
    pub(super) fn forget(&self) {
        self.wait.store(Wait::Nothing as u8, Relaxed);
        self.point.store(ptr::null_mut(), Relaxed);
    }
}

impl<A: NativeArch> Frame<A> {
    /// Begins a hit here. The frame has been taken: a hit that interrupts this takes the next one.
    ///
    /// # Safety
    /// Runs on the context that owns this frame, and that has taken it.
    #[inline(always)]
    pub(super) unsafe fn fill(&self, wait: Wait, point: &Point<A>, kept: Kept<A>) {
        self.point.store(ptr::from_ref(point).cast_mut(), Relaxed);
        self.newest.store(kept.newest, Relaxed);
        // SAFETY: only this context touches the cell, and what interrupts it uses other frames.
        unsafe { self.state.get().write(MaybeUninit::new((kept.slot_word, kept.state))) };
        A::program_order();
        self.wait.store(wait as u8, Relaxed);
    }

    /// Ends the hit here, which waits for something.
    ///
    /// # Safety
    /// Runs on the context whose innermost hit it is, and that has seen that it waits.
    #[inline(always)]
    pub(super) unsafe fn empty(&self) -> Kept<A> {
        let newest = self.newest.load(Relaxed);
        // SAFETY: only this context touches the cell.
        let state = unsafe { self.state.get().read() };
        // SAFETY: `fill` wrote it before it set `wait`.
        let (slot_word, state) = unsafe { state.assume_init() };
        self.wait.store(Wait::Nothing as u8, Relaxed);
        A::program_order();
        // Release: a context that sees the frame gone sees what was done with its point.
        self.point.store(ptr::null_mut(), Release);
        Kept { newest, slot_word, state }
    }
}
