//! The stack of a context's active hits: how each begins, and how the innermost ends.

use super::{BUSY, Context, DEPTH_MASK, DEPTH_ONE, Here, INSIDE, MAX_DEPTH, Running, SECTION_ONE};
use crate::addr::CodeAddr;
use crate::arch::{Arch, NativeArch};
use crate::state::frame::{Frame, Kept, PinnedHit, SlotHit, Wait};
use crate::state::pinned::Pinned;
use crate::state::point::Point;
use crate::state::section::{Section, Stay};
use crate::sync::{Relaxed, Release, light_barrier, store_behind};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The only active hit, a step whose end may have come: its point stands in its frame until [`Step::end`].
pub(crate) struct Step<'c, A: Arch> {
    running: Running<'c, A>,
    word: usize,
    point: NonNull<Point<A>>,
}

impl<'c, A: NativeArch> Running<'c, A> {
    /// The only active hit, if it is a [`SlotHit::Outer`] and the context is not inside.
    #[inline(always)]
    pub(crate) fn only_step(self) -> Option<Step<'c, A>> {
        let word = self.context.word.load(Relaxed);
        let [frame, ..] = &self.context.frames;
        if word & BUSY != DEPTH_ONE || !frame.is_step() {
            return None;
        }
        Some(Step { running: self, word, point: NonNull::new(frame.point())? })
    }
}

impl<A: NativeArch> Step<'_, A> {
    /// The slot that it is in.
    #[inline(always)]
    pub(crate) fn slot(&self) -> CodeAddr {
        // SAFETY: a point that stands in a frame is not freed, and nothing has emptied the frame: that takes
        // this.
        unsafe { self.point.as_ref() }.slot
    }

    /// Goes inside and ends it. The word for [`Running::close_idle`].
    #[inline(always)]
    pub(crate) fn end(self) -> (usize, Stay, Ended<A>) {
        let Self { running: Running { context, .. }, word, point } = self;
        let [frame, ..] = &context.frames;
        // Inside before the frame lets go of its point.
        store_behind(&context.word, word | INSIDE);
        light_barrier::<A>();
        // SAFETY: the context is running, and `only_step` has seen that it waits.
        let kept = unsafe { frame.empty() };
        let idle = word.wrapping_sub(DEPTH_ONE);
        store_behind(&context.word, idle | INSIDE);
        // SAFETY: inside, since before the frame was emptied.
        (idle, unsafe { Stay::new() }, Ended { point, kept })
    }
}

/// A step that has ended in a section.
pub(crate) struct Ended<A: Arch> {
    point: NonNull<Point<A>>,
    pub(crate) kept: Kept<A>,
}

impl<A: Arch> Ended<A> {
    /// Its point.
    #[inline(always)]
    pub(crate) fn point<'s>(&self, _section: Section<'s>) -> &'s Point<A> {
        // SAFETY: it stood in a frame when the section began.
        unsafe { self.point.as_ref() }
    }
}

impl<'s, A: NativeArch> Here<'s, A> {
    /// The innermost active hit that waits for something.
    #[inline(always)]
    pub(crate) fn top(self) -> Option<Top<'s, A>> {
        let Running { context, .. } = self.running;
        let frame = context.frames.get(context.depth().checked_sub(1)?)?;
        let wait = frame.wait();
        // SAFETY: a point that stands in a frame is not freed; nor afterwards, as long as the section lasts.
        let point = unsafe { frame.point().as_ref() }?;
        Some(match wait? {
            Wait::Slot(hit) => Top::Slot(TopInSlot { context, frame, hit, point }),
            Wait::Pinned(hit) => Top::Pinned(TopPinned { context, frame, hit, point }),
        })
    }

    /// The innermost active hit, if it waits for that.
    pub(crate) fn top_pinned(self, hit: PinnedHit) -> Option<TopPinned<'s, A>> {
        match self.top() {
            Some(Top::Pinned(top)) if top.hit == hit => Some(top),
            _ => None,
        }
    }

    /// Whether [`Here::push`] has room.
    #[inline]
    pub(crate) fn has_room(self) -> bool {
        self.running.depth() < MAX_DEPTH
    }

    /// Begins an active hit in a slot; without room it does nothing.
    pub(crate) fn push(self, hit: SlotHit, point: &Point<A>, kept: Kept<A>) {
        let Running { context, .. } = self.running;
        let word = context.word.load(Relaxed);
        let Some(frame) = context.frames.get((word & DEPTH_MASK) / DEPTH_ONE) else { return };
        // Taken before it is filled: an interruption that comes between takes the next one.
        store_behind(&context.word, word.wrapping_add(DEPTH_ONE));
        A::program_order();
        // SAFETY: the context is running, and has taken it.
        unsafe { frame.fill(hit, point, kept) };
    }

    /// Begins the only active hit, which waits pinned: a hit inside another one has no handlers that it could
    /// wait for.
    pub(crate) fn push_pinned(self, hit: PinnedHit, point: &Point<A>, newest: u32, pinned: Pinned) {
        let Running { context, .. } = self.running;
        let [frame, ..] = &context.frames;
        let word = context.word.load(Relaxed);
        debug_assert!(word & DEPTH_MASK == 0, "a hit inside another one waits for handlers");
        // As in `push`: taken before it is filled.
        store_behind(&context.word, word.wrapping_add(DEPTH_ONE));
        A::program_order();
        pinned.put_away();
        // SAFETY: as in `push`.
        unsafe { frame.fill_pinned(hit, point, newest) };
    }

    /// Begins the only active hit, a step, and leaves what [`Running::open_idle`] began with `word`: the
    /// stay, which ends here, is to be [handed on](Stay::hand_on).
    #[inline(always)]
    pub(crate) fn push_only(self, word: usize, point: &Point<A>, kept: Kept<A>) {
        let Running { context, .. } = self.running;
        let [frame, ..] = &context.frames;
        // As in `push`: taken before it is filled.
        store_behind(&context.word, (word | INSIDE).wrapping_add(DEPTH_ONE));
        A::program_order();
        // SAFETY: as in `push`.
        unsafe { frame.fill(SlotHit::Outer, point, kept) };
        // Release: a context that sees the section end sees the frame, and keeps its point.
        context.word.store(word.wrapping_add(SECTION_ONE + DEPTH_ONE), Release);
    }

    /// Begins a jprobe's hit, which was at these registers.
    pub(crate) fn push_jprobe(self, point: &Point<A>, newest: u32, regs: &A::Regs, pinned: Pinned) {
        // SAFETY: only the context that is running touches the cell.
        unsafe { self.running.context.jprobe_regs.get().write(MaybeUninit::new(*regs)) };
        self.push_pinned(PinnedHit::Jprobe, point, newest, pinned);
    }
}

/// The innermost active hit of the running context, in a section.
pub(crate) enum Top<'s, A: Arch> {
    /// It is in a slot.
    Slot(TopInSlot<'s, A>),
    /// It waits pinned.
    Pinned(TopPinned<'s, A>),
}

/// The innermost active hit, in a slot.
pub(crate) struct TopInSlot<'s, A: Arch> {
    context: &'s Context<A>,
    frame: &'s Frame<A>,
    pub(crate) hit: SlotHit,
    /// Where it was.
    pub(crate) point: &'s Point<A>,
}

/// The innermost active hit, which waits pinned.
pub(crate) struct TopPinned<'s, A: Arch> {
    context: &'s Context<A>,
    frame: &'s Frame<A>,
    pub(crate) hit: PinnedHit,
    /// Where it was.
    pub(crate) point: &'s Point<A>,
}

impl<A: NativeArch> Context<A> {
    /// Takes the innermost hit, which has ended, off the stack of them.
    #[inline(always)]
    fn pop(&self) {
        let word = self.word.load(Relaxed);
        self.word.store(word.wrapping_sub(DEPTH_ONE), Release);
    }
}

impl<A: NativeArch> TopInSlot<'_, A> {
    /// Ends it.
    #[inline(always)]
    pub(crate) fn end(self) -> Kept<A> {
        // SAFETY: the context is running, and it waits so.
        let kept = unsafe { self.frame.empty() };
        self.context.pop();
        kept
    }
}

impl<A: NativeArch> TopPinned<'_, A> {
    /// Ends it: the newest probe that saw it, and the pin that it was given.
    #[inline(always)]
    pub(crate) fn end(self) -> (u32, Pinned) {
        // SAFETY: the context is running, and it waits so.
        let newest = unsafe { self.frame.empty_pinned() };
        self.context.pop();
        // SAFETY: `push_pinned` has put one away where it began the hit, which ends just now.
        (newest, unsafe { Pinned::take_out() })
    }

    /// Ends a jprobe's hit, and restores the registers at the place. Returns the newest probe that saw it,
    /// the pin, and the section that the hit has [handed on](Stay::hand_on).
    #[inline(always)]
    pub(crate) fn end_jprobe(self, regs: &mut A::Regs) -> Option<(u32, Pinned, Stay)> {
        if self.hit != PinnedHit::Jprobe {
            return None;
        }
        // SAFETY: only the context that is running touches the cell.
        let kept = unsafe { &*self.context.jprobe_regs.get() };
        // SAFETY: `push_jprobe` wrote it before it began the hit.
        *regs = *unsafe { kept.assume_init_ref() };
        let (newest, pinned) = self.end();
        // SAFETY: a hit that begins a jprobe's hands its section on, and this is the one end of it.
        Some((newest, pinned, unsafe { Stay::new() }))
    }
}
