//! The record of one detour, to which a jump that replaces a breakpoint leads.
//!
//! A detour is a call of the backend's trampoline, copies of the instructions that the jump displaces, and a
//! jump back. Nothing records that a context is in it, so a detour is never freed and never serves another
//! place. The functions that its calls lead to are in the module `hit`.

use crate::addr::CodeAddr;
use crate::arch::{Arch, DetourCalls, DetourLayout, Displaced, Jumps, SaveSet};
use crate::held::{Held, Hold};
use crate::state::counter::{HitCounter, NOBODY, Shares};
use crate::state::handler::Pre;
use crate::state::host::{Host, JumpsOf};
use crate::state::instance::Instance;
use crate::state::owner::{FirstOwner, Identity, NOBODYS};
use crate::state::point::{Handlers, Node, Point};
use crate::state::pool::Pool;
use crate::state::program::{Entries, Program};
use crate::state::section::Section;
use crate::state::slots::CHUNK_LEN;
use crate::sync::{Acquire, AtomicPtr, AtomicUsize, Relaxed, Release, dereference};
use crate::table::Keyed;
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr;

/// The most bytes that a jump displaces: all but one byte of the jump, and one long instruction.
pub(crate) const MAX_DISPLACED_LEN: usize = 24;

/// The unit of detour memory in bytes: a detour begins and ends in granules of its own.
pub(crate) const GRANULE: usize = 32;

/// One detour. The trampoline finds the handler in the first word and the place in the second.
#[repr(C)]
pub(crate) struct Detour<H: Host> {
    /// One of [`Entries`]: `jumped` for a pre handler alone, `entered` for a return probe alone, `jumped_any`
    /// for all else. Each handles every case.
    pub(crate) handler: AtomicUsize,
    pub(crate) place: CodeAddr,
    /// The counter of the place's only probe, if that has a pre handler and nothing else; otherwise
    /// [`NOBODY`].
    plain: AtomicPtr<HitCounter>,
    /// The owner of an instance in the pool of the place's only probe, if that is a return probe without an
    /// entry handler; otherwise [`NOBODYS`].
    own: AtomicPtr<FirstOwner>,
    pub(crate) program: Program<H>,
    entries: &'static Entries,
    /// Null unless the jump, or a part of it, stands in text.
    point: AtomicPtr<Point<H::Arch>>,
    /// As the first two words, for the call behind the first copy.
    post_handler: usize,
    _post_place: CodeAddr,
    pub(crate) service: Service,
    /// Where the jump leads.
    pub(crate) entry: CodeAddr,
    pub(crate) displaced: Displaced,
    pub(crate) layout: DetourLayout,
    /// The displaced bytes.
    pub(crate) text: [u8; MAX_DISPLACED_LEN],
    /// The proof that the architecture has jumps.
    pub(crate) jumps: JumpsOf<H>,
}

/// The probe that a hit by jump may count with at once: the place's only one, if that has a pre handler and
/// nothing else; otherwise nobody's.
pub(crate) struct Plain<'s, A: Arch> {
    hits: *const HitCounter,
    probe: PhantomData<&'s Node<A>>,
}

impl<'s, A: Arch> Plain<'s, A> {
    /// Counts a hit as [`HitCounter::try_rise_alone`] does: the probe, and its handler.
    #[inline(always)]
    pub(crate) fn count_alone(&self, context: &impl Identity) -> Option<(&'s Node<A>, &'s Pre<A>)> {
        self.counter().try_rise_alone(context).then(|| self.probe())
    }

    /// Counts a hit as [`HitCounter::try_rise_shared`] does: the probe, and its handler.
    #[inline(always)]
    pub(crate) fn count_shared(
        &self,
        context: &impl Identity,
        shares: &Shares,
    ) -> Option<(&'s Node<A>, &'s Pre<A>)> {
        self.counter().try_rise_shared(context, shares).then(|| self.probe())
    }

    #[inline(always)]
    fn counter(&self) -> &'s HitCounter {
        // SAFETY: `Detour::plain` has found it in a section that lasts as long.
        unsafe { &*self.hits }
    }

    /// The probe, after its counter has counted; nobody's never does.
    #[inline(always)]
    fn probe(&self) -> (&'s Node<A>, &'s Pre<A>) {
        // SAFETY: `Detour::serve` has put a node's counter here, which is kept with it.
        let node = unsafe { &*Node::of_counter(self.hits) };
        let Handlers::Kprobe { pre: Some(pre), .. } = &node.handlers else {
            // SAFETY: it has taken it from a probe with a pre handler.
            unsafe { core::hint::unreachable_unchecked() }
        };
        (node, pre)
    }
}

/// The pool that a hit by jump may follow its call with at once: that of the place's only probe, if that is a
/// return probe without an entry handler; otherwise nobody's.
pub(crate) struct Followed<'s, A: Arch> {
    owner: *const FirstOwner,
    pool: PhantomData<&'s Pool<A>>,
}

impl<'s, A: Arch> Followed<'s, A> {
    /// The pool's own instance, if it is this context's, and the probe is not silent.
    #[inline(always)]
    pub(crate) fn own(&self, context: &impl Identity) -> Option<&'s Instance<A>> {
        // SAFETY: `Detour::followed` has found it in a section that lasts as long.
        let is_open = unsafe { &*self.owner }.is_open_to(context);
        // SAFETY: it has an owner, so it is a pool's.
        is_open.then(|| unsafe { &*Instance::of_owner(self.owner) })
    }

    /// The pool.
    #[inline(always)]
    pub(crate) fn pool(&self) -> Option<&'s Pool<A>> {
        if ptr::eq(self.owner, &raw const NOBODYS) {
            return None;
        }
        // SAFETY: not nobody's: a pool's, which the section keeps.
        Some(Pool::of(unsafe { &*Instance::of_owner(self.owner) }))
    }
}

/// What a detour does for probes, or what the probes of a place need of theirs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service {
    /// What its trampoline saves.
    pub(crate) save: SaveSet,
    /// Whether there is a second call behind the first copy.
    pub(crate) calls_post: bool,
    /// Whether its trampoline is an [entry trampoline](crate::arch::NativeJumps::entry_trampoline).
    pub(crate) follows: bool,
}

impl Service {
    /// What does all that either does.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            save: if self.save == SaveSet::General { other.save } else { self.save },
            calls_post: self.calls_post || other.calls_post,
            follows: self.follows || other.follows,
        }
    }

    /// Whether a detour made for this does all that `needs` says.
    pub(crate) fn serves(self, needs: Self) -> bool {
        self.and(needs) == self
    }
}

impl<H: Host> Keyed for Detour<H> {
    #[inline]
    fn key(&self) -> usize {
        self.place.as_usize()
    }
}

impl<H: Host> Detour<H> {
    /// The distance between the words of the first and the second call.
    pub(crate) const POST_WORD: usize = offset_of!(Self, post_handler);

    /// A detour whose memory and layout are not known yet.
    pub(crate) fn new(
        jumps: JumpsOf<H>,
        program: Program<H>,
        entries: &'static Entries,
        place: CodeAddr,
        service: Service,
        displaced: Displaced,
        text: [u8; MAX_DISPLACED_LEN],
    ) -> Self {
        Self {
            handler: AtomicUsize::new((entries.jumped)()),
            plain: AtomicPtr::new(ptr::from_ref(&NOBODY).cast_mut()),
            own: AtomicPtr::new(ptr::from_ref(&NOBODYS).cast_mut()),
            program,
            entries,
            place,
            point: AtomicPtr::new(ptr::null_mut()),
            post_handler: (entries.copied)(),
            _post_place: place,
            service,
            entry: CodeAddr::new(0),
            displaced,
            layout: DetourLayout::default(),
            text,
            jumps,
        }
    }

    /// Who may count a hit at once.
    #[inline(always)]
    pub(crate) fn plain<'s>(&self, _section: Section<'s>) -> Plain<'s, H::Arch> {
        // A node is freed after a grace period that began when `serve` had forgotten it here.
        Plain { hits: dereference(&self.plain), probe: PhantomData }
    }

    /// The pool that a call may be followed with at once.
    #[inline(always)]
    pub(crate) fn followed<'s>(&self, _section: Section<'s>) -> Followed<'s, H::Arch> {
        // As in `plain`.
        Followed { owner: dereference(&self.own), pool: PhantomData }
    }

    /// The point whose jump, or a part of it, stands in text.
    #[inline(always)]
    pub(crate) fn point<'g>(&self, _held: impl Held<'g>) -> Option<&'g Point<H::Arch>> {
        // SAFETY: the registry clears the pointer before it waits and frees the point: `held` keeps it.
        unsafe { self.point.load(Acquire).as_ref() }
    }

    /// Makes it call the probes of `point`, whose jump stands in text from here on, or whose probes have
    /// changed. [`TextWord`](crate::state::text::word::TextWord) says what stands in text; hits by jump find
    /// their point here without a lookup.
    pub(crate) fn serve(&self, _hold: &Hold, point: Option<&Point<H::Arch>>) {
        let only = point.map_or(ptr::null_mut(), Point::only);
        let newest = point.and_then(Point::newest).filter(|_| !only.is_null());
        let handlers = newest.map(|node| &node.handlers);
        let is_plain = matches!(handlers, Some(Handlers::Kprobe { pre: Some(_), post: None, .. }));
        let followed = match handlers {
            Some(Handlers::Return(probe)) if probe.entry.is_none() => Some(probe.pool().owner()),
            _ => None,
        };
        let handler = match (followed.is_some(), self.service.follows) {
            (false, _) if is_plain => self.entries.jumped,
            (false, _) => self.entries.jumped_any,
            (true, false) => self.entries.entered,
            (true, true) => self.entries.entered_following,
        };
        let plain = if is_plain { only.cast() } else { ptr::from_ref(&NOBODY).cast_mut() };
        self.plain.store(plain, Release);
        self.own.store(followed.unwrap_or(&raw const NOBODYS).cast_mut(), Release);
        self.handler.store(handler(), Release);
        self.point.store(point.map_or(ptr::null_mut(), |point| ptr::from_ref(point).cast_mut()), Release);
    }

    /// Where its memory begins.
    pub(crate) fn start(&self) -> CodeAddr {
        self.entry.wrapping_offset(-(JumpsOf::<H>::DETOUR_HEADER_LEN as isize))
    }

    /// The jump that leads here, and zeros.
    pub(crate) fn jump(&self) -> [u8; MAX_DISPLACED_LEN] {
        let mut jump = [0; MAX_DISPLACED_LEN];
        let bytes = self.jumps.jump(self.place, self.entry);
        if let Some(to) = jump.first_chunk_mut() {
            *to = bytes;
        }
        jump
    }

    /// Its calls of `trampoline`.
    pub(crate) fn calls(&self, trampoline: CodeAddr) -> DetourCalls {
        let word = ptr::from_ref(self).expose_provenance();
        let post_word = self.service.calls_post.then_some(word + Self::POST_WORD);
        DetourCalls { trampoline, word, post_word }
    }

    /// The address of the copy of displaced instruction number `index`.
    pub(crate) fn copy(&self, index: usize) -> CodeAddr {
        let offset = self.layout.copies.get(index).copied().unwrap_or(self.layout.back);
        self.start().wrapping_add(usize::from(offset))
    }

    /// The displaced instruction whose copy, or the jump back behind it, is around `at`: its distance from
    /// the place.
    pub(crate) fn original(&self, at: CodeAddr) -> Option<usize> {
        let offset = at.as_usize().wrapping_sub(self.start().as_usize());
        if offset >= usize::from(self.layout.back) {
            return (offset < usize::from(self.layout.len_bytes))
                .then_some(usize::from(self.displaced.len_bytes));
        }
        let copies = self.layout.copies.iter().zip(self.displaced.starts());
        let index = copies.take_while(|(copy, _)| usize::from(**copy) <= offset).count().checked_sub(1)?;
        // Behind the first copy, one instruction then, is the call for the post handlers.
        let is_behind = self.service.calls_post && index == 0 && offset > usize::from(self.layout.copies[0]);
        let start = self.displaced.starts().nth(index + usize::from(is_behind));
        Some(start.unwrap_or(usize::from(self.displaced.len_bytes)))
    }
}

/// A chunk of executable memory with detours.
pub(crate) struct DetourChunk<H: Host> {
    pub(crate) base: CodeAddr,
    /// The detour that occupies each granule, or null.
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
