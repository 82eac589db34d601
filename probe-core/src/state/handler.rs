//! Handlers as hits call them: without their types, and with the probe by its address.
//!
//! A probe's record ([`Node`](crate::state::point::Node)) owns its handlers, and a handler is shown the
//! record. It gets a [`ProbeRef`], which only the record's file makes and opens, so that this file need not
//! import that one.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Resume};
use crate::held::Held;
use crate::sync::{AtomicPtr, Relaxed, Release, dereference};
use alloc::boxed::Box;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// A pre handler's answer: how the program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The original instruction is run next.
    Continue,
    /// The handler has changed the control flow: the program resumes with the registers as they are, the
    /// instruction is not run, and neither older probes' handlers nor post handlers are called (HIT_2).
    Redirected,
}

impl From<()> for Flow {
    fn from((): ()) -> Self {
        Self::Continue
    }
}

/// A fault handler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The handler has dealt with it: the program resumes with the registers as they are.
    Handled,
    /// The host's own fault handling goes on.
    NotHandled,
}

/// Whether a call is followed to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The exit handler will run when it returns.
    Yes,
    /// It is left alone, and counts as vetoed.
    No,
}

/// A registered probe, by its address.
pub(crate) struct ProbeRef<'a, A: Arch> {
    node: NonNull<()>,
    probe: PhantomData<&'a A>,
}

impl<A: Arch> Clone for ProbeRef<'_, A> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Arch> Copy for ProbeRef<'_, A> {}

impl<A: Arch> ProbeRef<'_, A> {
    /// The probe with the record at `node`.
    ///
    /// # Safety
    /// A `Node<A>` is there during the lifetime.
    #[inline(always)]
    pub(crate) const unsafe fn new(node: NonNull<()>) -> Self {
        Self { node, probe: PhantomData }
    }

    /// Where its record lies.
    #[inline(always)]
    pub(crate) fn address(self) -> NonNull<()> {
        self.node
    }
}

/// A cell for a [`ProbeRef`], empty before the probe exists and once it has gone.
pub(crate) struct ProbeCell<A: Arch> {
    node: AtomicPtr<()>,
    probe: PhantomData<fn(A)>,
}

impl<A: Arch> ProbeCell<A> {
    /// No probe.
    pub(crate) const fn new() -> Self {
        Self { node: AtomicPtr::new(ptr::null_mut()), probe: PhantomData }
    }

    /// Publishes the probe.
    ///
    /// # Safety
    /// The probe's record is freed no sooner than a grace period after another call of this.
    pub(crate) unsafe fn set(&self, probe: Option<ProbeRef<'_, A>>) {
        self.node.store(probe.map_or(ptr::null_mut(), |probe| probe.node.as_ptr()), Release);
    }

    /// Where the probe's record lies, or null.
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut () {
        self.node.load(Relaxed)
    }

    /// The probe.
    #[inline(always)]
    pub(crate) fn get<'g>(&self, _held: impl Held<'g>) -> Option<ProbeRef<'g, A>> {
        NonNull::new(dereference(&self.node)).map(|node| {
            // SAFETY: `set` was given a probe whose record outlives the sections that can find it here, as
            // `_held` is.
            unsafe { ProbeRef::new(node) }
        })
    }
}

/// A pre handler that makes its [`Hit`](crate::handler::Hit) itself, only if it looks at it, and reports what
/// it has done to the registers.
///
/// Like `Box<dyn Fn>`, but with the function here instead of in a table elsewhere: a load less at each hit.
#[repr(C)]
pub(crate) struct Pre<A: Arch> {
    handler: NonNull<()>,
    call: unsafe fn(NonNull<()>, &mut A::Regs, ProbeRef<'_, A>) -> Resume,
    free: unsafe fn(NonNull<()>),
}

// SAFETY: it owns what `new` has been given, which is both.
unsafe impl<A: Arch> Send for Pre<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Pre<A> {}

impl<A: Arch> Pre<A> {
    pub(crate) fn new<F>(handler: F) -> Self
    where
        F: Fn(&mut A::Regs, ProbeRef<'_, A>) -> Resume + Send + Sync + 'static,
    {
        Self {
            handler: NonNull::from(Box::leak(Box::new(handler))).cast(),
            call: Self::call_handler::<F>,
            // SAFETY: an `F`, once, by the owner.
            free: |handler| drop(unsafe { Box::from_raw(handler.cast::<F>().as_ptr()) }),
        }
    }

    /// The function that a hit calls, by pointer.
    ///
    /// # Safety
    /// The handler is an `F`.
    unsafe fn call_handler<F>(handler: NonNull<()>, regs: &mut A::Regs, probe: ProbeRef<'_, A>) -> Resume
    where
        F: Fn(&mut A::Regs, ProbeRef<'_, A>) -> Resume,
    {
        // SAFETY: the handler is an `F`, and lives as long as its probe.
        let handler = unsafe { handler.cast::<F>().as_ref() };
        handler(regs, probe)
    }

    /// Calls it.
    #[inline(always)]
    pub(crate) fn call(&self, regs: &mut A::Regs, probe: ProbeRef<'_, A>) -> Resume {
        // SAFETY: `new` has put both there, for one type.
        unsafe { (self.call)(self.handler, regs, probe) }
    }
}

impl<A: Arch> Drop for Pre<A> {
    fn drop(&mut self) {
        // SAFETY: as in `call`; nobody calls it any more.
        unsafe { (self.free)(self.handler) }
    }
}

/// A post handler.
pub(crate) type PostFn<A> = dyn Fn(&mut <A as Arch>::Regs, ProbeRef<'_, A>) + Send + Sync;

type FaultFn<A> = dyn Fn(&mut <A as Arch>::Regs, ProbeRef<'_, A>, u32) -> Answer + Send + Sync;

/// A fault handler. Few probes have one, and all have room for it: behind two pointers it takes one word
/// instead of two.
pub(crate) struct FaultHandler<A: Arch>(pub(crate) Box<FaultFn<A>>);

impl<A: Arch> FaultHandler<A> {
    pub(crate) fn call(&self, regs: &mut A::Regs, probe: ProbeRef<'_, A>, trap: u32) -> Answer {
        self.0(regs, probe, trap)
    }
}

/// The address of a jprobe's handler: a code address, or a function descriptor's on ABIs that have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JprobeEntry(pub(crate) usize);

/// An entry handler's answer, and what it has done to the registers.
pub(crate) struct EntryVerdict {
    pub(crate) follow: Follow,
    pub(crate) resume: Resume,
}

/// The entry handler of a return probe. Its users see one call of a function, with the user's closure in it.
pub(crate) trait EntryHandler<A: Arch>: Send + Sync {
    /// Asks the entry handler about a call that returns to `return_address`; [`Follow::Yes`] means that the
    /// data now lies at `data`.
    ///
    /// # Safety
    /// `data` is free memory of the handlers' layout.
    unsafe fn enter(
        &self,
        regs: &mut A::Regs,
        probe: ProbeRef<'_, A>,
        return_address: CodeAddr,
        data: *mut u8,
    ) -> EntryVerdict;
}

/// The end of a followed call that returns: the exit handler is called, or the data dropped.
///
/// Like `Box<dyn Fn>`, but with the function here instead of in a table elsewhere, and without a question
/// before.
pub(crate) struct Ending<A: Arch> {
    call: unsafe fn(&Self, &mut A::Regs, *mut u8) -> Resume,
    handler: NonNull<()>,
    free: unsafe fn(NonNull<()>),
    /// Drops the data of a call whose exit handler does not run.
    pub(crate) drop_data: unsafe fn(*mut u8),
    /// The probe, from before calls are followed; empty for one of a pool's own.
    pub(crate) probe: ProbeCell<A>,
}

// SAFETY: it owns what `calling` has been given, which is both.
unsafe impl<A: Arch> Send for Ending<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Ending<A> {}

impl<A: Arch> Ending<A> {
    /// Calls `handler`, which takes the data, and reports what it has done to the registers, whose pc is the
    /// real return address.
    pub(crate) fn calling<F>(handler: F, drop_data: unsafe fn(*mut u8)) -> Self
    where
        F: Fn(&mut A::Regs, ProbeRef<'_, A>, *mut u8) -> Resume + Send + Sync + 'static,
    {
        Self {
            call: Self::call_handler::<F>,
            handler: NonNull::from(Box::leak(Box::new(handler))).cast(),
            // SAFETY: an `F`, once, by the owner.
            free: |handler| drop(unsafe { Box::from_raw(handler.cast::<F>().as_ptr()) }),
            drop_data,
            probe: ProbeCell::new(),
        }
    }

    /// Drops the data, and asks nobody.
    pub(crate) const fn dropping(drop_data: unsafe fn(*mut u8)) -> Self {
        Self {
            call: Self::only_drop,
            handler: NonNull::dangling(),
            free: |_| {},
            drop_data,
            probe: ProbeCell::new(),
        }
    }

    /// The function of [`Ending::calling`].
    ///
    /// # Safety
    /// The handler is an `F`; and as for [`Ending::run`].
    unsafe fn call_handler<F>(&self, regs: &mut A::Regs, data: *mut u8) -> Resume
    where
        F: Fn(&mut A::Regs, ProbeRef<'_, A>, *mut u8) -> Resume,
    {
        // SAFETY: the handler is an `F`, and lives as long as this.
        let handler = unsafe { self.handler.cast::<F>().as_ref() };
        // SAFETY: set before calls end so, and there as long as they do.
        let address = unsafe { NonNull::new_unchecked(self.probe.address()) };
        // SAFETY: as above.
        let probe = unsafe { ProbeRef::new(address) };
        handler(regs, probe, data)
    }

    /// The function of [`Ending::dropping`].
    ///
    /// # Safety
    /// As for [`Ending::run`].
    unsafe fn only_drop(&self, _: &mut A::Regs, data: *mut u8) -> Resume {
        // SAFETY: the data is the claimed call's, and of the type that `drop_data` was made for.
        unsafe { (self.drop_data)(data) };
        Resume::Unchanged
    }

    /// Ends a call.
    ///
    /// # Safety
    /// The caller has claimed the call that the data belongs to, and has been inside since it found this.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, regs: &mut A::Regs, data: *mut u8) -> Resume {
        // SAFETY: `call` was made for this handler; the call is claimed, and its data is what `data` points
        // to.
        unsafe { (self.call)(self, regs, data) }
    }
}

impl<A: Arch> Drop for Ending<A> {
    fn drop(&mut self) {
        // SAFETY: what goes with it; nobody calls it any more.
        unsafe { (self.free)(self.handler) }
    }
}
