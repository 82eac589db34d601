//! One patched address, and the probes on it.
//!
//! A [`Point`] is made by `registry` under its lock and read by `hit` without one. Fields that change are
//! atomic; all others are written before it is published.
//!
//! Tables, frames and lists give references to points, and to the nodes on them, each for as long as its
//! proof ([`Held`](crate::held::Held)): nothing on a point's list is freed while the reference lives.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Method};
use crate::held::{Hold, Lent};
use crate::list::Linked;
use crate::state::counter::{Counter, HitCounter};
use crate::state::handler::{FaultHandler, JprobeEntry, PostFn, Pre, ProbeCell, ProbeRef};
use crate::state::lender::Lender;
use crate::state::return_probe::ReturnProbe;
use crate::state::text::word::TextWord;
use crate::sync::{AcqRel, AtomicPtr, AtomicU8, AtomicU32, Relaxed, Release, dereference};
use crate::table::Keyed;
use alloc::boxed::Box;
use core::mem::offset_of;
use core::ptr::{self, NonNull};

/// How a hit runs the original instruction, in one byte for `hit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mode {
    /// In the slot, which ends in a jump back; or in a breakpoint that is finished without a frame.
    Boost = 0,
    /// Computed; nobody has a post handler.
    Simulate = 1,
    /// Computed; then post handlers.
    SimulatePost = 2,
    /// In the slot, with a frame.
    Step = 3,
    /// In the slot, without a frame and without [`Host::enter_slot`](crate::host::Host::enter_slot).
    SystemCall = 4,
    /// As [`Mode::Boost`], which it becomes at the first hit: no context has been in the slot yet.
    BoostFresh = 5,
}

/// The slot ends in a jump.
pub(crate) const TAIL_JUMPS: u8 = 1;
/// A context may be in the slot without a frame: the slot is never given away.
pub(crate) const LINGERS: u8 = 2;
/// Its text has gone.
pub(crate) const POINT_GONE: u8 = 4;
/// Found in a frame by the sweep that is under way.
pub(crate) const STEPPED: u8 = 8;
/// A jprobe is on it.
pub(crate) const HAS_JPROBE: u8 = 16;
/// It is in the table.
pub(crate) const IN_TABLE: u8 = 32;
/// It is on the list of those to be freed when they are no longer in use.
pub(crate) const PARKED: u8 = 64;
/// A probe with a post handler is on it.
pub(crate) const HAS_POST: u8 = 128;

/// One patched address.
pub(crate) struct Point<A: Arch> {
    pub(crate) place: CodeAddr,
    /// The newest probe; null when none is left.
    pub(crate) head: AtomicPtr<Node<A>>,
    /// 0 where it has none.
    pub(crate) slot: CodeAddr,
    /// The record of what stands in text, owned by the module `text`.
    pub(crate) text: TextWord,
    pub(crate) plan: A::Plan,
    /// The original bytes under the breakpoint.
    pub(crate) saved: [u8; 4],
    pub(crate) insn_len: u8,
    pub(crate) method: Method,
    /// Whether an instruction starts here for sure: seen from the start of its function (REG_4).
    pub(crate) is_boundary: bool,
    mode: AtomicU8,
    state: AtomicU8,
    /// Among the parked, or the gone.
    link: AtomicPtr<Point<A>>,
}

impl<A: Arch> Keyed for Point<A> {
    #[inline(always)]
    fn key(&self) -> usize {
        self.place.as_usize()
    }
}

impl<A: Arch> Linked for Point<A> {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl<A: Arch> Point<A> {
    /// A point without probes, not in text and not in the table.
    pub(crate) fn new(
        place: CodeAddr,
        plan: A::Plan,
        method: Method,
        insn_len: u8,
        saved: [u8; 4],
        slot: CodeAddr,
    ) -> Self {
        let mode = match method {
            Method::Simulate => Mode::Simulate,
            _ if A::is_system_call(&plan) => Mode::SystemCall,
            Method::Boost => Mode::BoostFresh,
            Method::Step => Mode::Step,
        };
        Self {
            place,
            head: AtomicPtr::new(ptr::null_mut()),
            slot,
            text: TextWord::new(),
            plan,
            saved,
            insn_len,
            method,
            is_boundary: false,
            mode: AtomicU8::new(mode as u8),
            state: AtomicU8::new(0),
            link: AtomicPtr::new(ptr::null_mut()),
        }
    }

    #[inline(always)]
    pub(crate) fn mode(&self) -> Mode {
        // SAFETY: what is stored is always a mode (`new`, `set_mode`, `note_bare_run`).
        unsafe { core::mem::transmute::<u8, Mode>(self.mode.load(Relaxed)) }
    }

    /// Notes that a context may be in the slot without a frame. On the hit path.
    #[cold]
    pub(crate) fn note_bare_run(&self) {
        self.set(LINGERS);
        let (fresh, boost) = (Mode::BoostFresh as u8, Mode::Boost as u8);
        // It may have got another mode meanwhile.
        let _ = self.mode.compare_exchange(fresh, boost, AcqRel, Relaxed);
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Release);
    }

    /// Whether it is in that state, which is one bit.
    pub(crate) fn is(&self, state: u8) -> bool {
        debug_assert!(state.is_power_of_two(), "one of several is `is_any`");
        self.is_any(state)
    }

    /// Whether it is in at least one of these states.
    pub(crate) fn is_any(&self, states: u8) -> bool {
        self.state.load(Relaxed) & states != 0
    }

    /// Whether a probe is on it.
    pub(crate) fn is_probed(&self) -> bool {
        !self.head.load(Relaxed).is_null()
    }

    pub(crate) fn set(&self, state: u8) {
        self.state.fetch_or(state, AcqRel);
    }

    pub(crate) fn clear(&self, state: u8) {
        self.state.fetch_and(!state, AcqRel);
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.slot.as_usize() != 0
    }

    /// The newest probe.
    #[inline(always)]
    pub(crate) fn newest(&self) -> Option<&Node<A>> {
        // SAFETY: a node is freed only after a grace period that began when it had been taken off the list,
        // and this reference does not outlive its proof.
        unsafe { dereference(&self.head).as_ref() }
    }

    /// The probes on it, newest first, the jprobe last.
    pub(crate) fn nodes(&self) -> Nodes<'_, A> {
        Nodes { next: dereference(&self.head), _point: self }
    }

    /// The only probe; null if there are none or several.
    pub(crate) fn only(&self) -> *mut Node<A> {
        if self.nodes().nth(1).is_some() { ptr::null_mut() } else { self.head.load(Relaxed) }
    }

    /// Takes a probe off the list; readers that stand on it still find their way on.
    pub(crate) fn unlink(&self, _hold: &Hold, node: &Node<A>) {
        let this = ptr::from_ref(node).cast_mut();
        let after = node.next.load(Relaxed);
        let links = self.nodes().map(|before| &before.next);
        if let Some(link) = core::iter::once(&self.head).chain(links).find(|link| link.load(Relaxed) == this)
        {
            link.store(after, Release);
        }
    }
}

/// The probes of a point.
pub(crate) struct Nodes<'a, A: Arch> {
    next: *mut Node<A>,
    _point: &'a Point<A>,
}

impl<'a, A: Arch> Nodes<'a, A> {
    /// The same with their allocations, which may be freed once they are off the list.
    pub(crate) fn lent(mut self) -> impl Iterator<Item = Lent<'a, Node<A>>> {
        core::iter::from_fn(move || {
            let node = NonNull::new(self.next)?;
            // SAFETY: as of those that the iterator itself gives.
            self.next().map(|_| unsafe { Lent::new(node) })
        })
    }
}

impl<'a, A: Arch> Iterator for Nodes<'a, A> {
    type Item = &'a Node<A>;

    #[inline(always)]
    fn next(&mut self) -> Option<&'a Node<A>> {
        // SAFETY: as in `Point::newest`.
        let node = unsafe { self.next.as_ref() }?;
        self.next = dereference(&node.next);
        Some(node)
    }
}

/// The user has disabled it.
pub(crate) const DISABLED: u32 = 1;
/// Registration has not ended yet.
pub(crate) const STARTING: u32 = 2;
/// It is being removed.
pub(crate) const LEAVING: u32 = 4;
/// Its text has gone.
pub(crate) const GONE: u32 = 8;
/// Its handle was dropped where it could not be removed: the next call of the registry does it.
pub(crate) const ORPHAN: u32 = 16;
/// It never gets a jump.
pub(crate) const NO_JUMP: u32 = 32;
/// Its handlers leave floating-point and vector registers alone.
pub(crate) const NO_SIMD: u32 = 64;
/// Any of these: no handler runs.
pub(crate) const SILENT: u32 = DISABLED | STARTING | LEAVING | GONE;

/// One registered probe.
#[repr(C)]
pub(crate) struct Node<A: Arch> {
    /// First field: a pointer to the counter is one to the node ([`Node::of_counter`]).
    pub(crate) hits: HitCounter,
    pub(crate) handlers: Handlers<A>,
    pub(crate) next: AtomicPtr<Node<A>>,
    /// Where it stands.
    point: NonNull<Point<A>>,
    pub(crate) flags: AtomicU32,
    /// The number of the registration that it came with: rises from probe to probe.
    pub(crate) generation: u32,
    pub(crate) missed: Counter,
    pub(crate) faults: Counter,
    /// For its handlers.
    pub(crate) lender: &'static dyn Lender,
}

/// What a probe does at a hit.
pub(crate) enum Handlers<A: Arch> {
    Kprobe { pre: Option<Pre<A>>, post: Option<Box<PostFn<A>>>, fault: Option<Box<FaultHandler<A>>> },
    Jprobe(JprobeEntry),
    Return(Box<ReturnProbe<A>>),
}

/// What handlers require of the way of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// To be called before the instruction.
    Pre,
    /// To be called behind it, too.
    Post,
    /// To follow the call.
    Return,
    /// To be entered instead of the function.
    Jprobe,
}

impl<A: Arch> Handlers<A> {
    pub(crate) fn asks(&self) -> Asks {
        match self {
            Self::Kprobe { post: Some(_), .. } => Asks::Post,
            Self::Kprobe { .. } => Asks::Pre,
            Self::Return(_) => Asks::Return,
            Self::Jprobe(_) => Asks::Jprobe,
        }
    }
}

// SAFETY: its point is shared state made for it, and its handlers are Send + Sync.
unsafe impl<A: Arch> Send for Node<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Node<A> {}

impl<A: Arch> Linked for Node<A> {
    /// As long as it is on its point's list, the probe behind it.
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

impl<A: Arch> Node<A> {
    /// A probe for the list of `point`.
    ///
    /// # Safety
    /// The point is freed after a grace period that begins when the node is on no list, and does not come to
    /// one again.
    pub(crate) unsafe fn new(
        point: Lent<'_, Point<A>>,
        handlers: Handlers<A>,
        flags: u32,
        generation: u32,
        lender: &'static dyn Lender,
    ) -> Self {
        Self {
            next: AtomicPtr::new(ptr::null_mut()),
            point: point.pointer(),
            flags: AtomicU32::new(flags),
            generation,
            hits: HitCounter::new(flags & SILENT != 0),
            missed: Counter::new(),
            faults: Counter::new(),
            handlers,
            lender,
        }
    }

    /// The reference by which its handlers and its calls know it.
    #[inline(always)]
    pub(crate) fn known(&self) -> ProbeRef<'_, A> {
        // SAFETY: it lies there as long as this reference lives.
        unsafe { ProbeRef::new(NonNull::from(self).cast()) }
    }

    /// The probe that is known so.
    #[inline(always)]
    pub(crate) fn of(known: ProbeRef<'_, A>) -> &Self {
        // SAFETY: whoever has made it has said that one lies there as long as the lifetime says.
        unsafe { known.address().cast().as_ref() }
    }

    /// The probe that owns a counter, unless it is nobody's.
    #[inline(always)]
    pub(crate) fn of_counter(hits: *const HitCounter) -> *const Self {
        const { assert!(offset_of!(Self, hits) == 0) };
        hits.cast()
    }

    #[inline(always)]
    pub(crate) fn is_silent(&self) -> bool {
        self.flags.load(Relaxed) & SILENT != 0
    }

    /// Whether it has that flag, which is one.
    pub(crate) fn is(&self, flag: u32) -> bool {
        debug_assert!(flag.is_power_of_two(), "one of several is `is_any`");
        self.is_any(flag)
    }

    /// Whether it has at least one of these flags.
    pub(crate) fn is_any(&self, flags: u32) -> bool {
        self.flags.load(Relaxed) & flags != 0
    }

    pub(crate) fn set(&self, flag: u32) {
        let before = self.flags.fetch_or(flag, AcqRel);
        if flag & SILENT != 0 {
            self.tell(before | flag);
        }
    }

    /// Marks it as leaving: its handlers are not called any more. Nobody lets it speak before this mark is
    /// cleared, so there is nothing to look at again, as `tell` does.
    pub(crate) fn leave(&self) {
        self.flags.fetch_or(LEAVING, AcqRel);
        self.fall_silent();
    }

    pub(crate) fn clear(&self, flag: u32) {
        let before = self.flags.fetch_and(!flag, AcqRel);
        self.tell(before & !flag);
    }

    /// Writes what the flags say into the words that hits look at instead; again where somebody else, a
    /// handler or the registry, has changed the flags meanwhile.
    fn tell(&self, mut flags: u32) {
        loop {
            if flags & SILENT == 0 {
                self.speak();
            } else {
                self.fall_silent();
            }
            // An exchange, not a load: of two who write at the same time, one sees what the other has
            // changed.
            let now = self.flags.fetch_or(0, AcqRel);
            if (now & SILENT == 0) == (flags & SILENT == 0) {
                return;
            }
            flags = now;
        }
    }

    fn speak(&self) {
        self.hits.speak();
        if let Handlers::Return(half) = &self.handlers {
            half.speak();
        }
    }

    /// Marks it as silent in the words that hits look at instead of the flags.
    fn fall_silent(&self) {
        self.hits.silence();
        if let Handlers::Return(half) = &self.handlers {
            half.fall_silent();
        }
    }

    pub(crate) fn has_post(&self) -> bool {
        matches!(&self.handlers, Handlers::Kprobe { post: Some(_), .. })
    }

    /// Whether it was there when the probe of generation `newest` was the newest one.
    pub(crate) fn is_not_younger_than(&self, newest: u32) -> bool {
        newest.wrapping_sub(self.generation) < 1 << 31
    }

    /// The probe behind it on its point's list.
    #[inline(always)]
    pub(crate) fn behind(&self) -> Option<&Self> {
        // SAFETY: as in `Point::newest`.
        unsafe { dereference(&self.next).as_ref() }
    }

    /// Its point. Only with the lock: the point leads to other nodes, which a handle does not keep.
    pub(crate) fn point<'g>(&'g self, _hold: &'g Hold) -> Lent<'g, Point<A>> {
        // SAFETY: `new` was promised that a grace period ends first, in which nobody has found the node; and
        // nothing is freed as long as the lock is borrowed.
        unsafe { Lent::new(self.point) }
    }

    /// Where it stands.
    #[inline(always)]
    pub(crate) fn place(&self) -> CodeAddr {
        // SAFETY: `new` was promised that a grace period ends first that begins when the node is on no list.
        unsafe { self.point.as_ref() }.place
    }
}

impl<A: Arch> ProbeCell<A> {
    /// The probe's record, or null.
    #[inline(always)]
    pub(crate) fn node(&self) -> *const Node<A> {
        self.address().cast_const().cast()
    }
}
