//! Detours: the lock-free half of optimised probes, which have a jump instead of the breakpoint.
//!
//! The jump leads to the place's *detour*: a call of the backend's trampoline, which saves the registers and calls
//! [`jumped`]; then copies of the instructions that the jump displaces; then a jump back. A context may be anywhere in a
//! detour at any time, and nothing says so; a detour is therefore kept for good, for its place alone.
//!
//! Post handlers see what the first instruction has done. One that is simulated at a trap is simulated here, too, and its
//! copy does it again: nothing comes between. Behind the copy of another one the detour calls the trampoline once more,
//! for [`copied`]; meanwhile a frame stands for the hit, as for a step, and the context stays pinned.
//!
//! Where a displaced instruction other than the first starts, the jump has the breakpoint's bytes. So a context that
//! arrives there, by whatever way, traps, and goes on in the copy ([`Probes::in_detour`]).

use crate::addr::CodeAddr;
use crate::arch::{Arch, DetourLayout, Displaced, Method, Regs, Resume, SaveSet};
use crate::context::{Context, Wait};
use crate::hit::{RegsOf, Trap, Walk, count_missed};
use crate::host::Host;
use crate::point::{HAS_POST, Handlers, Node, Point};
use crate::registry::Probes;
use crate::slots::{CHUNK_LEN, chunk_base};
use crate::sync::{Acquire, AtomicPtr, AtomicUsize, Relaxed, follow};
use crate::table::Keyed;
use alloc::boxed::Box;
use core::mem::offset_of;
use core::ptr;

/// The most bytes that a jump displaces: all but one byte of it, and one long instruction.
pub(crate) const MAX_DISPLACED_LEN: usize = 24;

/// Detours begin and end in pieces of this many bytes that nobody else has.
pub(crate) const GRANULE: usize = 32;

/// One detour. The trampoline finds the handler in the first word.
#[repr(C)]
pub(crate) struct Detour<H: Host> {
    pub(crate) handler: extern "C" fn(*mut RegsOf<H>, usize) -> Resume,
    /// As the first word, for the call behind the first copy.
    pub(crate) post_handler: extern "C" fn(*mut RegsOf<H>, usize) -> Resume,
    /// Whether there is such a call.
    pub(crate) calls_post: bool,
    pub(crate) probes: &'static Probes<H>,
    pub(crate) place: CodeAddr,
    /// Null unless the jump, or a part of it, stands in text.
    pub(crate) point: AtomicPtr<Point<H::Arch>>,
    /// Where the jump leads.
    pub(crate) entry: CodeAddr,
    pub(crate) save: SaveSet,
    pub(crate) displaced: Displaced,
    pub(crate) layout: DetourLayout,
    /// The displaced bytes.
    pub(crate) text: [u8; MAX_DISPLACED_LEN],
}

impl<H: Host> Keyed for Detour<H> {
    #[inline]
    fn key(&self) -> usize {
        self.place.as_usize()
    }
}

impl<H: Host> Detour<H> {
    /// Where its memory begins.
    pub(crate) fn start(&self) -> CodeAddr {
        self.entry.wrapping_offset(-(H::Arch::DETOUR_HEADER_LEN as isize))
    }

    /// Whether the jump, or a part of it, stands in text.
    pub(crate) fn is_active(&self) -> bool {
        !self.point.load(Acquire).is_null()
    }

    /// The words of its calls.
    pub(crate) fn words(&self) -> (usize, Option<usize>) {
        let word = ptr::from_ref(self).expose_provenance();
        (word, self.calls_post.then_some(word + offset_of!(Self, post_handler)))
    }

    /// Where the copy of displaced instruction number `index` is.
    fn copy(&self, index: usize) -> CodeAddr {
        let offset = self.layout.copies.get(index).copied().unwrap_or(self.layout.back);
        self.start().wrapping_add(usize::from(offset))
    }

    /// The displaced instruction whose copy, or the jump back behind it, `at` lies in: its distance from the place.
    fn original(&self, at: CodeAddr) -> Option<usize> {
        let offset = at.as_usize().wrapping_sub(self.start().as_usize());
        if offset >= usize::from(self.layout.back) {
            return (offset < usize::from(self.layout.len_bytes))
                .then_some(usize::from(self.displaced.len_bytes));
        }
        let copies = self.layout.copies.iter().zip(self.displaced.starts());
        let index = copies.take_while(|(copy, _)| usize::from(**copy) <= offset).count().checked_sub(1)?;
        // Behind the first copy, one instruction then, is the call for the post handlers.
        let is_behind = self.calls_post && index == 0 && offset > usize::from(self.layout.copies[0]);
        let start = self.displaced.starts().nth(index + usize::from(is_behind));
        Some(start.unwrap_or(usize::from(self.displaced.len_bytes)))
    }
}

/// A chunk of executable memory with detours.
pub(crate) struct DetourChunk<H: Host> {
    pub(crate) base: CodeAddr,
    /// Whose each granule is; null for free ones.
    pub(crate) owners: Box<[AtomicPtr<Detour<H>>]>,
    /// All granules below this one are taken, for good; under the registry's lock.
    pub(crate) taken: AtomicUsize,
}

impl<H: Host> Keyed for DetourChunk<H> {
    fn key(&self) -> usize {
        self.base.as_usize()
    }
}

impl<H: Host> DetourChunk<H> {
    /// The first granule that may be free.
    pub(crate) fn first_free(&self) -> usize {
        let taken = self.taken.load(Relaxed);
        let free = self.owners.iter().skip(taken).position(|owner| owner.load(Relaxed).is_null());
        let first = taken + free.unwrap_or(self.owners.len().saturating_sub(taken));
        self.taken.store(first, Relaxed);
        first
    }

    /// The granules that a detour of `len_bytes` at `start` needs, if they all lie in this chunk.
    pub(crate) fn granules(&self, start: CodeAddr, len_bytes: usize) -> Option<&[AtomicPtr<Detour<H>>]> {
        let offset = start.as_usize().wrapping_sub(self.base.as_usize());
        let end = offset.checked_add(len_bytes)?;
        self.owners.get(offset / GRANULE..end.div_ceil(GRANULE))
    }
}

/// How many granules a chunk has.
pub(crate) const GRANULES: usize = CHUNK_LEN / GRANULE;

/// What every detour of `Probes<H>` leads to, by way of the backend's trampoline.
///
/// The usual case is one kprobe that has a pre handler alone: it needs no registers but what the handler is called with, and
/// whatever else may be is behind calls at the end.
pub(crate) extern "C" fn jumped<H: Host>(regs: *mut RegsOf<H>, detour: usize) -> Resume {
    // SAFETY: the trampoline hands on the detour's word, the address that the registry has put there; detours are
    // kept for good.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: the trampoline gives the registers it has saved, which nobody else uses meanwhile.
    let regs = unsafe { &mut *regs };
    let probes = detour.probes;
    probes.host.pin();
    let Some(context) = probes.host.context() else { return probes.jumped_busy(None, detour, regs) };
    let Some(word) = context.idle_word() else { return probes.jumped_busy(Some(context), detour, regs) };
    context.open_idle(word);
    // SAFETY: inside until `close_only`; the registry clears the pointer before it waits and frees the point.
    let point = unsafe { follow(&detour.point).as_ref() };
    // SAFETY: as above.
    let plain = point.and_then(|point| unsafe { point.plain() });
    let may_call = |node: &Node<_>| !node.is_silent() && node.hits.try_rise(context.address());
    let Some((node, pre)) = plain.filter(|(node, _)| may_call(node)) else {
        return probes.jumped_idle(context, detour, regs);
    };
    context.set_current(node);
    regs.set_pc(detour.place);
    let resume = pre(regs, node);
    probes.leave(context, resume)
}

/// What the second call in a detour leads to, as [`jumped`]; `word` is the address of the detour's own word for it.
pub(crate) extern "C" fn copied<H: Host>(regs: *mut RegsOf<H>, word: usize) -> Resume {
    let detour = word.wrapping_sub(offset_of!(Detour<H>, post_handler));
    // SAFETY: as in `jumped`.
    let detour = unsafe { &*ptr::with_exposed_provenance::<Detour<H>>(detour) };
    // SAFETY: as in `jumped`.
    let regs = unsafe { &mut *regs };
    let probes = detour.probes;
    probes.host.pin();
    let resume = probes.after_copy(detour, regs);
    probes.host.unpin();
    resume
}

impl<H: Host> Probes<H> {
    /// The functions that detours lead to: part of the hit path, and for the host's blacklist.
    pub fn detour_handlers() -> [extern "C" fn(*mut RegsOf<H>, usize) -> Resume; 2] {
        [jumped::<H>, copied::<H>]
    }

    /// A hit that is not the usual case: the next one is that there is one return probe.
    #[inline(never)]
    fn jumped_idle(&self, context: &Context<H::Arch>, detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
        // SAFETY: inside until `close_only`.
        let point = unsafe { self.point_of(detour) };
        // SAFETY: as above.
        let head = point.and_then(|point| unsafe { follow(&point.head).as_ref() });
        let (Some(point), Some(head)) = (point, head) else { return self.leave(context, Resume::Unchanged) };
        regs.set_pc(detour.place);
        if let Handlers::Return(probe) = &head.handlers
            && head.next.load(Relaxed).is_null()
            && !head.is_silent()
        {
            let resume = self.enter_call(context, head, probe, regs);
            return self.leave(context, resume);
        }
        self.jumped_many(context, detour, point, head, regs)
    }

    /// The end of a hit by jump.
    #[inline(always)]
    fn leave(&self, context: &Context<H::Arch>, resume: Resume) -> Resume {
        context.set_current(ptr::null());
        context.close_only();
        self.host.unpin();
        resume
    }

    /// A hit of several probes of any kind.
    #[inline(never)]
    fn jumped_many(
        &self,
        context: &Context<H::Arch>,
        detour: &Detour<H>,
        point: &Point<H::Arch>,
        head: &Node<H::Arch>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let wants_post = point.is(HAS_POST);
        if wants_post && point.method != Method::Simulate && !detour.calls_post {
            // The jump had gone before the post handler came: the hit is one of the breakpoint that stands there now.
            return self.leave(context, Resume::Redirected);
        }
        head.hits.claim(context.address());
        let sp = regs.sp();
        let resume = match self.run_pre(context, point, head, regs) {
            Walk::Ran if wants_post && self.post_of_jump(context, point, head.generation, sp, regs) => {
                Resume::Redirected
            }
            Walk::Ran if regs.sp() == sp => Resume::Changed,
            Walk::Ran => Resume::Moved,
            Walk::Redirected | Walk::InJprobe => Resume::Redirected,
        };
        self.leave(context, resume)
    }

    /// Calls the post handlers of a point whose instruction is simulated; whether they have changed something: then the
    /// registers are those after the instruction. Of another one, begins the hit's frame for [`Probes::after_copy`].
    /// `sp` is the stack pointer at the place.
    fn post_of_jump(
        &self,
        context: &Context<H::Arch>,
        point: &Point<H::Arch>,
        newest: u32,
        sp: usize,
        regs: &mut RegsOf<H>,
    ) -> bool {
        if point.method != Method::Simulate {
            // SAFETY: this is the context that is running.
            unsafe { context.push(Wait::Copy, point, newest, 0, Default::default()) };
            self.host.pin();
            self.host.enter_copy();
            return false;
        }
        regs.set_pc(point.place);
        let before = *regs;
        // Not where what it pushes would lie on the stack that this runs on. Where it faults, the copy does, too.
        if regs.sp() < sp || H::Arch::simulate(&point.plan, point.place, regs, self.host.memory()).is_err() {
            return false;
        }
        let after = *regs;
        self.run_posts(context, point, newest, regs);
        let has_changed = *regs != after;
        if !has_changed {
            *regs = before;
        }
        has_changed
    }

    /// The first copy of a detour has run: the post handlers are called.
    fn after_copy(&self, detour: &Detour<H>, regs: &mut RegsOf<H>) -> Resume {
        let Some(context) = self.host.context() else { return Resume::Unchanged };
        let was_outside = context.open();
        let mut resume = Resume::Unchanged;
        if let Some((point, newest)) = self.end_copy(context, detour) {
            let next = detour.place.wrapping_add(usize::from(point.insn_len));
            regs.set_pc(next);
            let sp = regs.sp();
            self.run_posts(context, point, newest, regs);
            resume = match regs.pc() == next {
                true if regs.sp() == sp => Resume::Changed,
                true => Resume::Moved,
                false => Resume::Redirected,
            };
        }
        context.close(was_outside);
        resume
    }

    /// Takes the frame of the copy that runs first in `detour` off the context, which is inside, if it stands for
    /// that. The point, and the newest probe that saw the hit.
    pub(crate) fn end_copy(
        &self,
        context: &Context<H::Arch>,
        detour: &Detour<H>,
    ) -> Option<(&Point<H::Arch>, u32)> {
        let point = self.between(context, detour).filter(|_| detour.calls_post)?;
        // SAFETY: this is the context that is running.
        let popped = unsafe { context.pop() }?;
        self.host.leave_copy();
        self.host.unpin();
        Some((point, popped.newest))
    }

    /// The point of the innermost active hit, if that waits for the end of a copy of the instruction at the detour's
    /// place. The context is inside.
    fn between(&self, context: &Context<H::Arch>, detour: &Detour<H>) -> Option<&Point<H::Arch>> {
        let Some((Wait::Copy, point)) = context.top() else { return None };
        // SAFETY: a point that stands in a frame is not freed, and then the context is inside.
        unsafe { point.as_ref() }.filter(|point| point.place == detour.place)
    }

    /// A nested hit, or one where there is no room for another context.
    #[cold]
    #[inline(never)]
    fn jumped_busy(
        &self,
        context: Option<&Context<H::Arch>>,
        detour: &Detour<H>,
        regs: &mut RegsOf<H>,
    ) -> Resume {
        let mut resume = Resume::Unchanged;
        match context {
            Some(context) => {
                let was_outside = context.open();
                self.miss_detour(detour);
                // Behind the copy is a call for the frame's owner, which this hit has come in between: not for this one.
                if let Some(point) = self.between(context, detour) {
                    regs.set_pc(detour.place);
                    let _ = self.execute_bare(point, regs);
                    resume = Resume::Redirected;
                }
                context.close(was_outside);
            }
            None => {
                let _guard = self.anonymous();
                self.miss_detour(detour);
            }
        }
        self.host.unpin();
        resume
    }

    /// A nested hit, or one for which there is no room. The caller is inside.
    fn miss_detour(&self, detour: &Detour<H>) {
        // SAFETY: the caller is inside.
        if let Some(point) = unsafe { self.point_of(detour) } {
            count_missed(point);
        }
    }

    /// The point whose jump has led here. The jump may have been taken out of text meanwhile, with the probe still
    /// there: then the hit is none the less one.
    ///
    /// # Safety
    /// The caller is inside until the reference is gone: the registry clears the pointer before it waits and frees
    /// the point.
    #[inline(always)]
    unsafe fn point_of<'a>(&self, detour: &Detour<H>) -> Option<&'a Point<H::Arch>> {
        let point = detour.point.load(Acquire);
        if point.is_null() {
            // SAFETY: the caller is inside.
            return unsafe { self.points.find(detour.place.as_usize()) };
        }
        // SAFETY: as above.
        unsafe { point.as_ref() }
    }

    /// A breakpoint that belongs to detours: inside a jump, or the trap that takes all registers. The caller is inside.
    pub(crate) fn in_detour(&self, at: CodeAddr, regs: &mut RegsOf<H>) -> Option<Trap> {
        use crate::arch::NativeArch;
        if at == H::Arch::detour_resume_trap() {
            let kept = H::Arch::detour_regs(regs);
            // SAFETY: only the trampoline traps there, with the address of the registers that it has saved.
            let kept = unsafe { ptr::with_exposed_provenance::<RegsOf<H>>(kept).read() };
            H::Arch::resume_with(regs, kept);
            return Some(Trap::Handled);
        }
        let copy = self.copy_of_displaced(at)?;
        regs.set_pc(copy);
        Some(Trap::Handled)
    }

    /// Where the instruction at `at`, which a jump that stands in text displaces, is copied. The caller is inside.
    fn copy_of_displaced(&self, at: CodeAddr) -> Option<CodeAddr> {
        if H::Arch::JUMP_LEN <= H::Arch::BREAKPOINT.len() {
            return None;
        }
        (H::Arch::INSN_ALIGN..H::Arch::JUMP_LEN).step_by(H::Arch::INSN_ALIGN).find_map(|distance| {
            let place = at.wrapping_offset(-(distance as isize));
            // SAFETY: the caller is inside.
            let detour =
                unsafe { self.detours.find(place.as_usize()) }.filter(|detour| detour.is_active())?;
            let index = detour.displaced.starts().position(|start| start == distance)?;
            Some(detour.copy(index))
        })
    }

    /// The detour that `at` lies in, and the address of the instruction whose copy stands there. The caller is inside.
    pub(crate) fn detour_at(&self, at: CodeAddr) -> Option<(&Detour<H>, CodeAddr)> {
        // SAFETY: the caller is inside.
        let chunk = unsafe { self.detour_chunks.find(chunk_base(at).as_usize()) }?;
        let [owner] = chunk.granules(at, 1)? else { return None };
        // SAFETY: detours are kept for good.
        let detour = unsafe { owner.load(Acquire).as_ref() }?;
        let original = detour.original(at)?;
        Some((detour, detour.place.wrapping_add(original)))
    }
}
