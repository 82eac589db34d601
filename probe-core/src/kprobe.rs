//! Kprobes: handlers before and after one instruction; and what all kinds of probes share, [`AnyProbe`].

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, MemFault, Memory, Regs, Resume};
use crate::counter::Shares;
use crate::jprobe::{Jprobe, JprobeEntry};
use crate::kretprobe::{Active, Kretprobe, ReturnHandlers};
use crate::place::Place;
use crate::point::{Asks, DISABLED, Handlers, Node};
use crate::registry::Counters;
use alloc::boxed::Box;
use core::fmt;
use core::ptr::NonNull;

/// What a pre handler says about the program's way on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The original instruction is run next.
    Continue,
    /// The handler has changed the control flow: the program goes on with the registers as they are, the instruction
    /// is not run, and neither older probes' handlers nor post handlers are called (HIT_2).
    Redirected,
}

impl From<()> for Flow {
    fn from((): ()) -> Self {
        Self::Continue
    }
}

/// What a fault handler says about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The handler has dealt with it: the program goes on with the registers as they are.
    Handled,
    /// The host's own fault handling goes on.
    NotHandled,
}

/// A pre handler that makes its [`Hit`] itself, if it looks at it at all, and tells what it has done to the registers.
///
/// As `Box<dyn Fn>` would be, with the function here instead of in a table elsewhere: a load less at each hit.
#[repr(C)]
pub(crate) struct Pre<A: Arch> {
    handler: NonNull<()>,
    call: unsafe fn(NonNull<()>, &mut A::Regs, &Node<A>) -> Resume,
    free: unsafe fn(NonNull<()>),
}

// SAFETY: it owns what `new` has been given, which is both.
unsafe impl<A: Arch> Send for Pre<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Pre<A> {}

impl<A: Arch> Pre<A> {
    fn new<F>(handler: F) -> Self
    where
        F: Fn(&mut A::Regs, &Node<A>) -> Resume + Send + Sync + 'static,
    {
        Self {
            handler: NonNull::from(Box::leak(Box::new(handler))).cast(),
            call: Self::call_handler::<F>,
            // SAFETY: an `F`, once, by the owner.
            free: |handler| drop(unsafe { Box::from_raw(handler.cast::<F>().as_ptr()) }),
        }
    }

    /// What a hit calls, by pointer.
    ///
    /// # Safety
    /// The handler is an `F`.
    unsafe fn call_handler<F>(handler: NonNull<()>, regs: &mut A::Regs, node: &Node<A>) -> Resume
    where
        F: Fn(&mut A::Regs, &Node<A>) -> Resume,
    {
        // SAFETY: the caller's.
        let handler = unsafe { handler.cast::<F>().as_ref() };
        handler(regs, node)
    }

    /// Calls it.
    #[inline(always)]
    pub(crate) fn call(&self, regs: &mut A::Regs, node: &Node<A>) -> Resume {
        // SAFETY: `new` has put both there, for one type.
        unsafe { (self.call)(self.handler, regs, node) }
    }
}

impl<A: Arch> Drop for Pre<A> {
    fn drop(&mut self) {
        // SAFETY: as in `call`; nobody calls it any more.
        unsafe { (self.free)(self.handler) }
    }
}

pub(crate) type PostFn<A> = dyn Fn(&mut Hit<'_, A>) + Send + Sync;
type FaultFn<A> = dyn Fn(&mut Hit<'_, A>, u32) -> Answer + Send + Sync;

/// A fault handler. Few probes have one, and all have room for it: behind two pointers it takes one word instead of two.
pub(crate) struct FaultHandler<A: Arch>(Box<FaultFn<A>>);

impl<A: Arch> FaultHandler<A> {
    pub(crate) fn call(&self, hit: &mut Hit<'_, A>, trap: u32) -> Answer {
        self.0(hit, trap)
    }
}

/// What can be said of kprobes and of return probes before they are registered.
macro_rules! options {
    () => {
        /// Registers it disabled (REG_10).
        #[must_use]
        pub fn disabled(mut self) -> Self {
            self.flags |= $crate::point::DISABLED;
            self
        }

        /// Never gives it a jump instead of the breakpoint, so that its hits are traps.
        #[must_use]
        pub fn without_jump(mut self) -> Self {
            self.flags |= $crate::point::NO_JUMP;
            self
        }

        /// Declares that its handlers leave floating-point and vector registers as they are, so that a hit without a trap
        /// need not save them: most of what it costs in a process.
        ///
        /// # Safety
        /// The handlers, and all that they call, change no floating-point and no vector register, nor their control and
        /// status registers. Compiled code does so only where it is built without those registers, or has
        /// been looked at: copies of memory are often made with them.
        #[must_use]
        pub unsafe fn no_simd(mut self) -> Self {
            self.flags |= $crate::point::NO_SIMD;
            self
        }
    };
}
pub(crate) use options;

/// A kprobe to be registered: what to call before and after the instruction at a place.
///
/// Handlers run where the hit happened: in a kernel with preemption and interrupts off, in a process in a signal
/// handler. They may not block, allocate in a process, or register and unregister probes.
pub struct Kprobe<A: Arch> {
    place: Place,
    pre: Option<Pre<A>>,
    post: Option<Box<PostFn<A>>>,
    fault: Option<Box<FaultHandler<A>>>,
    /// What its node's flags are to be.
    flags: u32,
}

impl<A: Arch> Kprobe<A> {
    /// A kprobe on any instruction.
    pub fn at(place: impl Into<Place>) -> Self {
        Self { place: place.into(), pre: None, post: None, fault: None, flags: 0 }
    }

    /// Calls `handler` before the instruction. It returns nothing, or a [`Flow`].
    ///
    /// It may move the stack pointer. In a kernel it may lower it by no more than leaves room for what the instruction
    /// pushes in [`Arch::TRAP_GAP`].
    #[must_use]
    pub fn pre<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Hit<'_, A>) -> R + Send + Sync + 'static,
        R: Into<Flow>,
    {
        self.pre = Some(Pre::new(move |regs: &mut A::Regs, node: &Node<A>| {
            let sp = regs.sp();
            let mut hit = Hit { regs, node, is_lent: false };
            match handler(&mut hit).into() {
                Flow::Redirected => Resume::Redirected,
                Flow::Continue if hit.is_lent && hit.regs.sp() != sp => Resume::Moved,
                Flow::Continue => Resume::of(hit.is_lent),
            }
        }));
        self
    }

    /// Calls `handler` after the instruction; the registers' pc is then the next instruction.
    #[must_use]
    pub fn post<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Hit<'_, A>) + Send + Sync + 'static,
    {
        self.post = Some(Box::new(handler));
        self
    }

    /// Calls `handler` with the architecture's trap number when the instruction or one of this probe's handlers
    /// faults.
    #[must_use]
    pub fn fault<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Hit<'_, A>, u32) -> Answer + Send + Sync + 'static,
    {
        self.fault = Some(Box::new(FaultHandler(Box::new(handler))));
        self
    }

    options!();
}

/// What the core lends to a handler, whatever the host is.
pub(crate) trait Lender: Sync {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault>;
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault>;
    /// A handler has enabled or disabled a probe: breakpoints come and go later (REG_18).
    fn note_change(&self);
    /// What probes' hits are counted with, beside their own words.
    fn shares(&self) -> &Shares;
}

/// The interrupted context's memory, as a handler sees it: no access ever faults.
#[derive(Clone, Copy)]
pub struct TargetMemory<'a>(pub(crate) &'a dyn Lender);

// SAFETY: forwards to the host's memory, which keeps the promise.
unsafe impl Memory for TargetMemory<'_> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.0.read(addr, out)
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.0.write(addr, bytes)
    }
}

/// What handlers see of every kind of hit.
macro_rules! seen {
    ($(#[$pc:meta])* pc, $(#[$regs:meta])* regs) => {
        $(#[$pc])*
        pub fn pc(&self) -> CodeAddr {
            // SAFETY: a node whose handler runs is registered.
            unsafe { self.node.point() }.place
        }

        $(#[$regs])*
        pub fn regs(&self) -> &A::Regs {
            self.regs
        }

        /// The registers, to be changed.
        pub fn regs_mut(&mut self) -> &mut A::Regs {
            self.is_lent = true;
            self.regs
        }

        /// The interrupted context's memory.
        pub fn memory(&self) -> TargetMemory<'a> {
            TargetMemory(self.node.lender)
        }

        /// This probe's counters.
        pub fn counters(&self) -> Counters {
            Counters::of(self.node)
        }

        /// Disables this probe: no handler of it starts from now on; the breakpoint goes later (REG_18).
        pub fn disable(&self) {
            self.node.set(DISABLED);
            self.node.lender.note_change();
        }
    };
}
pub(crate) use seen;

/// One hit, as a handler sees it.
pub struct Hit<'a, A: Arch> {
    pub(crate) regs: &'a mut A::Regs,
    pub(crate) node: &'a Node<A>,
    /// Whether the registers have been lent to be changed.
    pub(crate) is_lent: bool,
}

impl<'a, A: Arch> Hit<'a, A> {
    seen!(
        /// The place that was hit.
        pc,
        /// The registers: before the instruction in a pre handler (pc = the place), after it in a post handler (pc =
        /// the next instruction), at the fault in a fault handler.
        regs
    );

    /// The integer argument number `index`, from 0, if the place is a function's entry. `None` where the ABI
    /// has it in memory that cannot be read.
    pub fn argument(&self, index: usize) -> Option<usize> {
        A::CALLS?.argument(self.regs, index, &self.memory())
    }

    /// Register number `index` ([`Regs::names`]).
    pub fn register(&self, index: usize) -> Option<usize> {
        self.regs.register(index)
    }
}

impl<A: Arch> fmt::Debug for Hit<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hit").field("pc", &self.pc()).field("regs", &self.regs).finish_non_exhaustive()
    }
}

/// A probe of any kind, to be registered.
pub struct AnyProbe<A: Arch> {
    pub(crate) place: Place,
    pub(crate) handlers: Pending<A>,
    /// What its node's flags are to be.
    pub(crate) flags: u32,
}

/// The handlers of a probe that is not registered yet.
pub(crate) enum Pending<A: Arch> {
    Kprobe { pre: Option<Pre<A>>, post: Option<Box<PostFn<A>>>, fault: Option<Box<FaultHandler<A>>> },
    Jprobe(JprobeEntry),
    Return { handlers: ReturnHandlers<A>, active: Active },
}

/// The handlers of a return probe, which need a pool.
pub(crate) struct PendingReturn<A: Arch> {
    pub(crate) handlers: ReturnHandlers<A>,
    pub(crate) active: Active,
}

impl<A: Arch> Pending<A> {
    /// Whether it may only be set on a function's entry (REG_17).
    pub(crate) fn wants_entry(&self) -> bool {
        !matches!(self, Self::Kprobe { .. })
    }

    /// As [`Handlers::asks`].
    pub(crate) fn asks(&self) -> Asks {
        match self {
            Self::Kprobe { post: Some(_), .. } => Asks::Post,
            Self::Kprobe { .. } => Asks::Pre,
            Self::Return { .. } => Asks::Return,
            Self::Jprobe(_) => Asks::Jprobe,
        }
    }

    /// The handlers of a node, where no pool is needed for them.
    pub(crate) fn into_simple(self) -> Result<Handlers<A>, PendingReturn<A>> {
        match self {
            Self::Kprobe { pre, post, fault } => Ok(Handlers::Kprobe { pre, post, fault }),
            Self::Jprobe(entry) => Ok(Handlers::Jprobe(entry)),
            Self::Return { handlers, active } => Err(PendingReturn { handlers, active }),
        }
    }
}

impl<A: Arch> AnyProbe<A> {
    /// Where it goes.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

impl<A: Arch> fmt::Debug for AnyProbe<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.handlers {
            Pending::Kprobe { .. } => "Kprobe",
            Pending::Jprobe(_) => "Jprobe",
            Pending::Return { .. } => "Kretprobe",
        };
        f.debug_struct(kind).field("place", &self.place).finish_non_exhaustive()
    }
}

impl<A: Arch> From<Kprobe<A>> for AnyProbe<A> {
    fn from(probe: Kprobe<A>) -> Self {
        let Kprobe { place, pre, post, fault, flags } = probe;
        Self { place, handlers: Pending::Kprobe { pre, post, fault }, flags }
    }
}

impl<A: Arch> From<Jprobe<A>> for AnyProbe<A> {
    fn from(probe: Jprobe<A>) -> Self {
        let flags = if probe.is_disabled { DISABLED } else { 0 };
        Self { place: probe.place, handlers: Pending::Jprobe(probe.entry), flags }
    }
}

impl<A: Arch, D: 'static, S> From<Kretprobe<A, D, S>> for AnyProbe<A> {
    fn from(probe: Kretprobe<A, D, S>) -> Self {
        let active = probe.active;
        Self {
            place: probe.place,
            handlers: Pending::Return { handlers: probe.handlers, active },
            flags: probe.flags,
        }
    }
}
