//! Per-context state: whether it is inside, and the stack of active hits.
//!
//! A [`Context`] is written only by the context it belongs to, with plain stores; other contexts read its one
//! word while they wait for a grace period (the module `quiesce`). Everything that interrupts a context (a
//! nested trap, a signal) leaves the word's depth and the frames below it as they were, so no update needs to
//! be atomic with another; it only has to be done in an order that an interruption may see.
//!
//! Who may write is a matter of types: [`Running`] is the context that is running, and [`Here`] the same in a
//! section.

pub(crate) mod active;

use crate::arch::{Arch, NativeArch};
use crate::held::Hold;
use crate::state::frame::Frame;
use crate::state::owner::Identity;
use crate::state::point::{Node, Point};
use crate::state::section::{Section, Stay};
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, Release, UnsafeCell, light_barrier, store_behind};
use core::marker::PhantomData;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr;

/// The number of hits that may be active at the same time in one context, one inside the other (HIT_6).
///
/// Deeper hits are still executed correctly: simulated, or in a slot that is finished by its address alone.
/// The few instructions whose slots borrow registers have 16 places for them besides, which all contexts
/// share.
pub const MAX_DEPTH: usize = 8;

/// Set while the core or a handler runs on this context.
const INSIDE: usize = 1;
/// One active hit.
const DEPTH_ONE: usize = 2;
/// The bits that count active hits.
const DEPTH_MASK: usize = 0b1_1110;
/// Either is set: a hit is active.
const BUSY: usize = INSIDE | DEPTH_MASK;
/// One section: all bits above the depth count sections.
const SECTION_ONE: usize = 0b10_0000;

const _: () = assert!(MAX_DEPTH * DEPTH_ONE <= DEPTH_MASK);

/// One context's state (a CPU, a thread): the host keeps one for each, zero-cost to create.
///
/// Returned by [`Host::context`](crate::host::Host::context), always the same one for the same context.
#[repr(C)]
pub struct Context<A: Arch> {
    /// Section count, depth, and whether the context is inside the core. First, as its offset of 0 saves an
    /// instruction.
    word: AtomicUsize,
    /// The probe whose handler runs now, for faults; null when none does.
    current: AtomicPtr<Node<A>>,
    frames: [Frame<A>; MAX_DEPTH],
    /// The registers at the hit of the one jprobe that can be active here.
    jprobe_regs: UnsafeCell<MaybeUninit<A::Regs>>,
}

// SAFETY: the cells are reached only through `Running` and `Here`, on the context itself. All else is atomic.
unsafe impl<A: Arch> Sync for Context<A> {}
// SAFETY: plain data, and pointers that are valid on every context.
unsafe impl<A: Arch> Send for Context<A> {}

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

    /// The number of active hits: their instruction runs, or a jprobe's handler.
    pub fn depth(&self) -> usize {
        (self.word.load(Relaxed) & DEPTH_MASK) / DEPTH_ONE
    }

    /// Forgets all active hits.
    ///
    /// # Safety
    /// The context runs no more, or does not exist in this address space (after a fork: the other threads').
    pub unsafe fn reset(&self) {
        self.current.store(ptr::null_mut(), Relaxed);
        self.frames.iter().for_each(Frame::forget);
        let sections = self.word.load(Relaxed) & !BUSY;
        self.word.store(sections.wrapping_add(SECTION_ONE), Release);
    }

    // ---- for other contexts -------------------------------------------------------------------------------

    /// The raw word, for code that waits for its change.
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

    /// Calls `visit` with the point of every active hit.
    pub(crate) fn for_each_active(&self, _hold: &Hold, mut visit: impl FnMut(&Point<A>)) {
        for frame in &self.frames {
            // SAFETY: a point that has stood in a frame is freed by who has the lock to himself: not as long
            // as `_hold` is borrowed.
            if let Some(point) = unsafe { frame.point_seen().as_ref() } {
                visit(point);
            }
        }
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

impl<A: Arch> Default for Context<A> {
    fn default() -> Self {
        Self::new()
    }
}

/// The running context: it alone changes its word and its frames.
pub(crate) struct Running<'c, A: Arch> {
    context: &'c Context<A>,
    /// Keeps the value in its own context: it is neither `Send` nor `Sync`.
    _stays: PhantomData<*const ()>,
}

/// The running context, in a section: nothing that it finds is freed during `'s`.
pub(crate) struct Here<'s, A: Arch> {
    running: Running<'s, A>,
    section: Section<'s>,
}

impl<A: Arch> Clone for Running<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Arch> Copy for Running<'_, A> {}

impl<A: Arch> Clone for Here<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Arch> Copy for Here<'_, A> {}

impl<A: Arch> Deref for Running<'_, A> {
    type Target = Context<A>;

    #[inline(always)]
    fn deref(&self) -> &Context<A> {
        self.context
    }
}

impl<'s, A: Arch> Deref for Here<'s, A> {
    type Target = Running<'s, A>;

    #[inline(always)]
    fn deref(&self) -> &Running<'s, A> {
        &self.running
    }
}

/// A section that is closed when this value is dropped, unless the context was inside before.
pub(crate) struct Inside<'c, A: NativeArch> {
    running: Running<'c, A>,
    was_outside: bool,
    stay: ManuallyDrop<Stay>,
}

impl<A: NativeArch> Inside<'_, A> {
    /// The proof.
    #[inline(always)]
    pub(crate) fn here(&self) -> Here<'_, A> {
        self.running.within(self.stay.section())
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
            let word = self.running.word.load(Relaxed) & !INSIDE;
            self.running.word.store(word.wrapping_add(SECTION_ONE), Release);
        }
    }
}

impl<'c, A: NativeArch> Running<'c, A> {
    /// The context that is running.
    ///
    /// # Safety
    /// It is.
    #[inline(always)]
    pub(crate) unsafe fn new(context: &'c Context<A>) -> Self {
        Self { context, _stays: PhantomData }
    }

    // ---- sections -----------------------------------------------------------------------------------------

    /// The word, for [`Running::open_idle`]; `None` when a hit is active.
    #[inline(always)]
    pub(crate) fn idle_word(self) -> Option<usize> {
        let word = self.context.word.load(Relaxed);
        (word & BUSY == 0).then_some(word)
    }

    /// Goes inside; `word` is from [`Running::idle_word`].
    #[inline(always)]
    pub(crate) fn open_idle(self, word: usize) -> Stay {
        // Its bit is clear; to add it is one instruction.
        let word = if A::ADDS_TO_MEMORY { self.context.word.load(Relaxed) } else { word };
        store_behind(&self.context.word, word.wrapping_add(INSIDE));
        light_barrier::<A>();
        // SAFETY: inside, until the word is stored by what takes the stay.
        unsafe { Stay::new() }
    }

    /// Ends what [`Running::open_idle`] began, with no active hit.
    #[inline(always)]
    pub(crate) fn close_idle(self, word: usize, stay: Stay) {
        stay.hand_on();
        self.context.word.store(word.wrapping_add(SECTION_ONE), Release);
    }

    /// As [`Running::close_idle`], for code that has not kept the word: it is as [`Running::open_idle`] has
    /// left it.
    #[inline(always)]
    pub(crate) fn close_only(self, stay: Stay) {
        self.close_idle(self.context.word.load(Relaxed).wrapping_sub(INSIDE), stay);
    }

    /// Ends what [`Running::open_idle`] began, whatever hits are active.
    pub(crate) fn close(self, stay: Stay) {
        stay.hand_on();
        let word = self.context.word.load(Relaxed) & !INSIDE;
        self.context.word.store(word.wrapping_add(SECTION_ONE), Release);
    }

    /// Goes inside, unless the context is inside, until the value is dropped.
    #[inline(always)]
    pub(crate) fn open(self) -> Inside<'c, A> {
        let word = self.context.word.load(Relaxed);
        store_behind(&self.context.word, word | INSIDE);
        light_barrier::<A>();
        let was_outside = word & INSIDE == 0;
        // SAFETY: inside, until this is dropped, or for longer.
        Inside { running: self, was_outside, stay: ManuallyDrop::new(unsafe { Stay::new() }) }
    }

    /// This context as one in a section.
    #[inline(always)]
    pub(crate) fn within<'s>(self, section: Section<'s>) -> Here<'s, A>
    where
        'c: 's,
    {
        Here { running: self, section }
    }

    // ---- the probe whose handler runs ---------------------------------------------------------------------

    /// Notes whose handler runs from here on.
    #[inline(always)]
    pub(crate) fn set_current(self, node: *const Node<A>) {
        self.context.current.store(node.cast_mut(), Relaxed);
    }
}

impl<'s, A: NativeArch> Here<'s, A> {
    /// The proof of the section.
    #[inline(always)]
    pub(crate) fn section(self) -> Section<'s> {
        self.section
    }

    /// Which context it is.
    #[inline(always)]
    pub(crate) fn identity(self) -> &'s Context<A> {
        self.running.context
    }

    /// The probe whose handler runs.
    pub(crate) fn current(self) -> Option<&'s Node<A>> {
        // SAFETY: set while the node's handler runs, in a section that this one lies in, or is.
        unsafe { self.running.context.current.load(Relaxed).as_ref() }
    }
}
