//! Per-context state: the stack of active hits.
//!
//! A [`Context`] is written only by the context it belongs to, with plain stores; other contexts read its one
//! word while they wait for a grace period (the module `quiesce`). Everything that interrupts a context (a nested trap,
//! a signal) leaves the word's depth and the frames below it as they were, so no update needs to be atomic
//! with another; it only has to be done in an order that an interruption may see.

use crate::arch::{Arch, NativeArch};
use crate::held::Held;
use crate::state::owner::Identity;
use crate::state::point::{Node, Point};
use crate::sync::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Relaxed, Release, SeqCst, UnsafeCell, fence, light_barrier,
    store_behind,
};
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ptr;

/// How many hits may be active at the same time in one context, one inside the other (HIT_6).
///
/// Deeper hits are still executed correctly: simulated, or in a slot that is finished by its address alone. The few
/// instructions whose slots borrow registers have 16 places for them besides, which all contexts share.
pub const MAX_DEPTH: usize = 8;

/// Set while the core or a handler runs on this context.
const INSIDE: usize = 1;
/// One active hit.
const DEPTH_ONE: usize = 2;
/// The bits that count active hits.
const DEPTH_MASK: usize = 0b1_1110;
/// Either is set: a hit is active.
const BUSY: usize = INSIDE | DEPTH_MASK;
/// One section: everything above the depth counts them.
const SECTION_ONE: usize = 0b10_0000;

const _: () = assert!(MAX_DEPTH * DEPTH_ONE <= DEPTH_MASK);

/// One context's state (a CPU, a thread): the host keeps one for each, zero-cost to create.
///
/// Returned by [`Host::context`](crate::host::Host::context), always the same one for the same context.
#[repr(C)]
pub struct Context<A: Arch> {
    /// Section count, depth, and whether the context is inside the core. First: where it is costs no instruction.
    word: AtomicUsize,
    /// The probe whose handler runs now, for faults; null when none does.
    current: AtomicPtr<Node<A>>,
    frames: [Frame<A>; MAX_DEPTH],
    /// The registers at the hit of the one jprobe that can be active here.
    jprobe_regs: UnsafeCell<MaybeUninit<A::Regs>>,
}

// SAFETY: the cells are reached only through the unsafe functions below, whose callers run on the context itself.
// All else is atomic.
unsafe impl<A: Arch> Sync for Context<A> {}
// SAFETY: plain data, and pointers that are valid on every context.
unsafe impl<A: Arch> Send for Context<A> {}

/// A stay of a context inside the core: nothing that the tables and lists lead to is freed meanwhile.
///
/// It ends where it is given back to its context, which costs no more than the store that it is ended by: the hit path has no
/// code for a value that is dropped.
#[must_use = "a section ends where it is closed"]
pub(crate) struct Section(PhantomData<*const ()>);

// SAFETY: what frees waits until all contexts that were inside have left, and the value is made inside and given back there.
unsafe impl Held for Section {}

impl Section {
    /// A new one, of a context that has just gone inside.
    #[inline(always)]
    const fn new() -> Self {
        Self(PhantomData)
    }

    /// The proof, of a caller who has none to give.
    ///
    /// # Safety
    /// The context is inside as long as the reference lives.
    pub(crate) const unsafe fn assume<'g>() -> &'g Self {
        // SAFETY: nothing is read through a reference to no bytes.
        unsafe { ptr::NonNull::dangling().as_ref() }
    }

    /// The section goes on, without this value, until [`Context::come_back`]; or has ended in [`Context::push_only`].
    #[inline(always)]
    pub(crate) fn hand_on(self) {
        let _ = core::mem::ManuallyDrop::new(self);
    }
}

#[cfg(debug_assertions)]
impl Drop for Section {
    fn drop(&mut self) {
        debug_assert!(false, "a section that is never closed");
    }
}

/// A section that is closed where this goes, unless the context was inside before.
pub(crate) struct Inside<'c, A: NativeArch> {
    context: &'c Context<A>,
    was_outside: bool,
    section: ManuallyDrop<Section>,
}

impl<A: NativeArch> Inside<'_, A> {
    /// The proof.
    pub(crate) fn section(&self) -> &Section {
        &self.section
    }

    /// Whether the context was outside before.
    pub(crate) fn was_outside(&self) -> bool {
        self.was_outside
    }
}

impl<A: NativeArch> Drop for Inside<'_, A> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.was_outside {
            let word = self.context.word.load(Relaxed) & !INSIDE;
            self.context.word.store(word.wrapping_add(SECTION_ONE), Release);
        }
    }
}

/// A stay inside by code that has no context: counted, with real barriers.
pub(crate) struct Anonymous<'a> {
    count: &'a AtomicUsize,
    section: ManuallyDrop<Section>,
}

impl<'a> Anonymous<'a> {
    /// Goes inside; `count` says how many are.
    pub(crate) fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        fence(SeqCst);
        Self { count, section: ManuallyDrop::new(Section::new()) }
    }

    /// The proof.
    pub(crate) fn section(&self) -> &Section {
        &self.section
    }
}

impl Drop for Anonymous<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Release);
    }
}

/// What an active hit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Wait {
    /// Nothing: the frame is free or being filled.
    Nothing = 0,
    /// The slot's end; then post handlers run.
    Step = 1,
    /// The slot's end of a nested hit: nobody's handlers run.
    NestedStep = 2,
    /// The return of a jprobe's handler.
    Jprobe = 3,
    /// The end of a copy in a detour; then post handlers run.
    Copy = 4,
    /// The trap that takes all registers: there the instruction is simulated, then post handlers run.
    Lowered = 5,
}

/// One active hit.
pub(crate) struct Frame<A: Arch> {
    wait: AtomicU8,
    /// The point that was hit; kept from being freed while it stands here.
    point: AtomicPtr<Point<A>>,
    /// The newest probe that saw the hit: younger ones' post handlers do not run.
    newest: AtomicU32,
    /// What [`Host::leave_slot`](crate::host::Host::leave_slot) gets, and what the instruction has borrowed.
    state: UnsafeCell<MaybeUninit<(u64, A::StepState)>>,
}

/// An active hit, taken off the stack.
pub(crate) struct Popped<A: Arch> {
    pub(crate) wait: Wait,
    pub(crate) newest: u32,
    pub(crate) kept: u64,
    pub(crate) state: A::StepState,
}

impl<A: Arch> Frame<A> {
    const fn new() -> Self {
        Self {
            wait: AtomicU8::new(Wait::Nothing as u8),
            point: AtomicPtr::new(ptr::null_mut()),
            newest: AtomicU32::new(0),
            state: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    fn wait(&self) -> Wait {
        match self.wait.load(Relaxed) {
            1 => Wait::Step,
            2 => Wait::NestedStep,
            3 => Wait::Jprobe,
            4 => Wait::Copy,
            5 => Wait::Lowered,
            _ => Wait::Nothing,
        }
    }
}

impl<A: Arch> Context<A> {
    /// An idle context.
    pub const fn new() -> Self {
        Self {
            word: AtomicUsize::new(0),
            current: AtomicPtr::new(ptr::null_mut()),
            frames: [const { Frame::new() }; MAX_DEPTH],
            jprobe_regs: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Whether a handler runs on this context, or the core itself does.
    pub fn is_inside(&self) -> bool {
        self.word.load(Relaxed) & INSIDE != 0
    }

    /// How many hits are active: their instruction runs, or a jprobe's handler.
    pub fn depth(&self) -> usize {
        (self.word.load(Relaxed) & DEPTH_MASK) / DEPTH_ONE
    }

    /// Forgets all active hits.
    ///
    /// # Safety
    /// The context that this belongs to runs no more, or it does not exist in this address space (after a fork: the
    /// other threads').
    pub unsafe fn reset(&self) {
        self.current.store(ptr::null_mut(), Relaxed);
        for frame in &self.frames {
            frame.wait.store(Wait::Nothing as u8, Relaxed);
            frame.point.store(ptr::null_mut(), Relaxed);
        }
        let sections = self.word.load(Relaxed) & !BUSY;
        self.word.store(sections.wrapping_add(SECTION_ONE), Release);
    }

    /// The raw word, for whoever waits for its change.
    pub(crate) fn word(&self) -> &AtomicUsize {
        &self.word
    }

    /// Whether a value of the word says "inside".
    pub(crate) const fn says_inside(word: usize) -> bool {
        word & INSIDE != 0
    }

    /// Whether two values of the word belong to the same section.
    pub(crate) const fn is_same_section(a: usize, b: usize) -> bool {
        a & !DEPTH_MASK == b & !DEPTH_MASK
    }
}

impl<A: Arch> Identity for Context<A> {
    #[inline(always)]
    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    #[inline(always)]
    fn number(&self) -> usize {
        self.address() >> size_of::<Self>().ilog2()
    }
}

impl<A: NativeArch> Context<A> {
    // ---- sections: while inside, nothing that the tables or lists lead to is freed ----------------------------------

    /// The word, for [`Context::open_idle`]; `None` when a hit is active.
    #[inline(always)]
    pub(crate) fn idle_word(&self) -> Option<usize> {
        let word = self.word.load(Relaxed);
        (word & BUSY == 0).then_some(word)
    }

    /// Goes inside; `word` is from [`Context::idle_word`].
    #[inline(always)]
    pub(crate) fn open_idle(&self, word: usize) -> Section {
        // Its bit is clear; to add it is one instruction.
        let word = if A::ADDS_TO_MEMORY { self.word.load(Relaxed) } else { word };
        store_behind(&self.word, word.wrapping_add(INSIDE));
        light_barrier::<A>();
        Section::new()
    }

    /// Leaves what [`Context::open_idle`] began, with no active hit.
    #[inline(always)]
    pub(crate) fn close_idle(&self, word: usize, section: Section) {
        let _ = core::mem::ManuallyDrop::new(section);
        self.word.store(word.wrapping_add(SECTION_ONE), Release);
    }

    /// As [`Context::close_idle`], for whoever has not kept the word: it is as [`Context::open_idle`] has left it.
    #[inline(always)]
    pub(crate) fn close_only(&self, section: Section) {
        self.close_idle(self.word.load(Relaxed).wrapping_sub(INSIDE), section);
    }

    /// Goes inside unless the context is, until the value goes.
    #[inline(always)]
    pub(crate) fn open(&self) -> Inside<'_, A> {
        let word = self.word.load(Relaxed);
        store_behind(&self.word, word | INSIDE);
        light_barrier::<A>();
        let was_outside = word & INSIDE == 0;
        Inside { context: self, was_outside, section: ManuallyDrop::new(Section::new()) }
    }

    /// Leaves what [`Context::open_idle`] began, whatever hits are active.
    pub(crate) fn close(&self, section: Section) {
        let _ = core::mem::ManuallyDrop::new(section);
        let word = self.word.load(Relaxed) & !INSIDE;
        self.word.store(word.wrapping_add(SECTION_ONE), Release);
    }

    /// Takes up the section that was [handed on](Section::hand_on).
    ///
    /// # Safety
    /// It was, and nobody has taken it up since.
    pub(crate) unsafe fn come_back(&self) -> Section {
        Section::new()
    }

    // ---- the probe whose handler runs -------------------------------------------------------------------------------

    /// Notes whose handler runs from here on.
    #[inline(always)]
    pub(crate) fn set_current(&self, node: *const Node<A>) {
        self.current.store(node.cast_mut(), Relaxed);
    }

    /// Whose handler runs; null when none does.
    #[inline(always)]
    pub(crate) fn current(&self) -> *mut Node<A> {
        self.current.load(Relaxed)
    }

    // ---- active hits ------------------------------------------------------------------------------------------------

    /// What the innermost active hit waits for, and its point.
    pub(crate) fn top(&self) -> Option<(Wait, *mut Point<A>)> {
        let frame = self.frames.get(self.depth().checked_sub(1)?)?;
        Some((frame.wait(), frame.point.load(Relaxed)))
    }

    /// Whether [`Context::push`] has room.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.depth() < MAX_DEPTH
    }

    /// Begins an active hit. Without room nothing happens.
    ///
    /// # Safety
    /// Runs on this context.
    pub(crate) unsafe fn push(
        &self,
        wait: Wait,
        point: &Point<A>,
        newest: u32,
        kept: u64,
        state: A::StepState,
    ) {
        let word = self.word.load(Relaxed);
        let Some(frame) = self.frames.get((word & DEPTH_MASK) / DEPTH_ONE) else { return };
        // Taken before it is filled: an interruption that comes between takes the next one.
        store_behind(&self.word, word.wrapping_add(DEPTH_ONE));
        A::program_order();
        frame.point.store(ptr::from_ref(point).cast_mut(), Relaxed);
        frame.newest.store(newest, Relaxed);
        // SAFETY: only this context touches the cell, and what interrupts it uses other frames.
        unsafe { frame.state.get().write(MaybeUninit::new((kept, state))) };
        A::program_order();
        frame.wait.store(wait as u8, Relaxed);
    }

    /// Begins the only active hit, a step, and leaves what [`Context::open_idle`] began with `word`.
    ///
    /// # Safety
    /// Runs on this context, which is inside; the caller [hands on](Section::hand_on) its section, which ends here.
    #[inline(always)]
    pub(crate) unsafe fn push_only(
        &self,
        word: usize,
        point: &Point<A>,
        newest: u32,
        kept: u64,
        state: A::StepState,
    ) {
        let [frame, ..] = &self.frames;
        // As in `push`: taken before it is filled.
        store_behind(&self.word, (word | INSIDE).wrapping_add(DEPTH_ONE));
        A::program_order();
        frame.point.store(ptr::from_ref(point).cast_mut(), Relaxed);
        frame.newest.store(newest, Relaxed);
        // SAFETY: only this context touches the cell, and what interrupts it uses other frames.
        unsafe { frame.state.get().write(MaybeUninit::new((kept, state))) };
        A::program_order();
        frame.wait.store(Wait::Step as u8, Relaxed);
        // Release: whoever sees the section end sees the frame, and keeps its point.
        self.word.store(word.wrapping_add(SECTION_ONE + DEPTH_ONE), Release);
    }

    /// The point of the only active hit, and the word for [`Context::pop_only`], if it is a [`Wait::Step`] and the context
    /// is not inside.
    #[inline(always)]
    pub(crate) fn only_step(&self) -> Option<(usize, *mut Point<A>)> {
        let word = self.word.load(Relaxed);
        let [frame, ..] = &self.frames;
        let is_step = word & BUSY == DEPTH_ONE && frame.wait.load(Relaxed) == Wait::Step as u8;
        is_step.then(|| (word, frame.point.load(Relaxed)))
    }

    /// Goes inside and ends the only active hit; `word` is from [`Context::only_step`]. Returns the word for
    /// [`Context::close_idle`].
    ///
    /// # Safety
    /// Runs on this context.
    #[inline(always)]
    pub(crate) unsafe fn pop_only(&self, word: usize) -> (usize, Section, Popped<A>) {
        let [frame, ..] = &self.frames;
        // Inside before the frame lets go of its point.
        store_behind(&self.word, word | INSIDE);
        light_barrier::<A>();
        let newest = frame.newest.load(Relaxed);
        // SAFETY: only this context touches the cell.
        let state = unsafe { frame.state.get().read() };
        // SAFETY: `push` filled it before it set `wait`, which `only_step` has seen.
        let (kept, state) = unsafe { state.assume_init() };
        frame.wait.store(Wait::Nothing as u8, Relaxed);
        A::program_order();
        // Release: as in `pop`.
        frame.point.store(ptr::null_mut(), Release);
        let idle = word.wrapping_sub(DEPTH_ONE);
        store_behind(&self.word, idle | INSIDE);
        (idle, Section::new(), Popped { wait: Wait::Step, newest, kept, state })
    }

    /// Ends the innermost active hit, which waits for `Step`, `NestedStep` or `Jprobe`.
    ///
    /// # Safety
    /// Runs on this context.
    pub(crate) unsafe fn pop(&self) -> Option<Popped<A>> {
        let word = self.word.load(Relaxed);
        let frame = self.frames.get(((word & DEPTH_MASK) / DEPTH_ONE).checked_sub(1)?)?;
        let wait = frame.wait();
        let newest = frame.newest.load(Relaxed);
        let (kept, state) = if wait == Wait::Nothing {
            (0, A::StepState::default())
        } else {
            // SAFETY: only this context touches the cell.
            let state = unsafe { frame.state.get().read() };
            // SAFETY: `push` filled it before it set `wait`.
            unsafe { state.assume_init() }
        };
        frame.wait.store(Wait::Nothing as u8, Relaxed);
        A::program_order();
        // Release: whoever sees the frame gone sees what was done with its point.
        frame.point.store(ptr::null_mut(), Release);
        self.word.store(word.wrapping_sub(DEPTH_ONE), Release);
        Some(Popped { wait, newest, kept, state })
    }

    /// Calls `visit` with the point of every active hit. May be called from another context.
    pub(crate) fn for_each_active(&self, mut visit: impl FnMut(*mut Point<A>)) {
        for frame in &self.frames {
            let point = frame.point.load(crate::sync::Acquire);
            if !point.is_null() {
                visit(point);
            }
        }
    }

    /// Keeps the registers of the jprobe's hit.
    ///
    /// # Safety
    /// Runs on this context, and no jprobe is active in it.
    pub(crate) unsafe fn keep_jprobe_regs(&self, regs: &A::Regs) {
        // SAFETY: only this context touches the cell.
        unsafe { self.jprobe_regs.get().write(MaybeUninit::new(*regs)) };
    }

    /// The registers of the jprobe's hit.
    ///
    /// # Safety
    /// Runs on this context, and [`Context::keep_jprobe_regs`] has been called.
    pub(crate) unsafe fn jprobe_regs(&self) -> A::Regs {
        // SAFETY: only this context touches the cell.
        let regs = unsafe { self.jprobe_regs.get().read() };
        // SAFETY: the caller says that it was written.
        unsafe { regs.assume_init() }
    }
}

impl<A: Arch> Default for Context<A> {
    fn default() -> Self {
        Self::new()
    }
}
