//! Kprobes: handlers before and after one instruction.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Regs, Resume};
use crate::face::macros::{options, seen};
use crate::place::Place;
use crate::state::handler::{Answer, FaultHandler, Flow, PostFn, Pre, ProbeRef};
use crate::state::lender::TargetMemory;
use crate::state::pending::{AnyProbe, Pending};
use crate::state::point::{DISABLED, Node};
use crate::state::tally::{Counters, Misses};
use alloc::boxed::Box;
use core::fmt;

/// A kprobe to be registered: handlers before and after the instruction at a place.
///
/// Handlers run on the context that hit the probe. By a breakpoint that is a trap handler with interrupts off
/// (a kernel), or a signal handler (a process). By a jump it is the probed code itself: a kernel keeps the
/// context from being preempted, and interrupts are as the probed code had them. Handlers may not block,
/// register or unregister probes, nor, in a process, allocate.
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
    /// It may move the stack pointer. In a kernel it may lower it only so far that [`Arch::TRAP_GAP`] still
    /// has room for the words that the instruction pushes.
    #[must_use]
    pub fn pre<F, R>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Hit<'_, A>) -> R + Send + Sync + 'static,
        R: Into<Flow>,
    {
        self.pre = Some(Pre::new(move |regs: &mut A::Regs, probe: ProbeRef<'_, A>| {
            let sp = regs.sp();
            let mut hit = Hit::new(regs, probe);
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
        self.post = Some(Box::new(move |regs: &mut A::Regs, probe: ProbeRef<'_, A>| {
            handler(&mut Hit::new(regs, probe))
        }));
        self
    }

    /// Calls `handler` with the architecture's trap number when the instruction or one of this probe's
    /// handlers faults.
    #[must_use]
    pub fn fault<F>(mut self, handler: F) -> Self
    where
        F: Fn(&mut Hit<'_, A>, u32) -> Answer + Send + Sync + 'static,
    {
        let handler =
            move |regs: &mut A::Regs, probe: ProbeRef<'_, A>, trap| handler(&mut Hit::new(regs, probe), trap);
        self.fault = Some(Box::new(FaultHandler(Box::new(handler))));
        self
    }

    options!();
}

/// One hit, as a handler sees it.
pub struct Hit<'a, A: Arch> {
    regs: &'a mut A::Regs,
    node: &'a Node<A>,
    /// Whether a handler has borrowed the registers to change them.
    is_lent: bool,
}

impl<'a, A: Arch> Hit<'a, A> {
    #[inline(always)]
    fn new(regs: &'a mut A::Regs, probe: ProbeRef<'a, A>) -> Self {
        Self { regs, node: Node::of(probe), is_lent: false }
    }

    seen!(
        /// The place that was hit.
        pc,
        /// The registers: before the instruction in a pre handler (pc = the place), after it in a post
        /// handler (pc = the next instruction), at the fault in a fault handler.
        regs
    );

    /// The integer argument number `index`, from 0, if the place is a function's entry. `None` if the ABI
    /// keeps it in memory that cannot be read.
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

impl<A: Arch> From<Kprobe<A>> for AnyProbe<A> {
    fn from(probe: Kprobe<A>) -> Self {
        let Kprobe { place, pre, post, fault, flags } = probe;
        Self { place, handlers: Pending::Kprobe { pre, post, fault }, flags }
    }
}
