//! Return probes: a handler at a function's entry, one at its return, and typed private data between them.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Regs, Resume};
use crate::kprobe::{TargetMemory, options, seen};
use crate::place::Place;
use crate::point::{DISABLED, Node};
use crate::pool::Pool;
use crate::registry::Counters;
use crate::sync::{AtomicPtr, Relaxed, Release};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::align_of;
use core::ptr::{self, NonNull};

/// The most bytes of private data that a return instance may have.
pub const MAX_DATA_LEN: usize = 4096;

/// A return probe without handlers yet.
pub struct Fresh(());
/// A return probe whose entry handler, or absence of one, is settled.
pub struct Settled(());

/// A return probe to be registered.
///
/// `D` is the private data: the entry handler makes it, the exit handler gets it by value. Without an entry handler
/// every call is followed, and `D` is `()`.
///
/// ```no_run
/// # use probe_core::{Kretprobe, arch::Arch};
/// # fn now() -> u64 { 0 }
/// # fn example<A: Arch>() -> probe_core::AnyProbe<A> {
/// Kretprobe::<A>::on("do_sys_open")
///     .max_active(20)
///     .entry(|_call| Some(now()))
///     .exit(|ret, started| drop((ret.value(), now() - started)))
/// # .into() }
/// ```
pub struct Kretprobe<A: Arch, D = (), S = Fresh> {
    pub(crate) place: Place,
    pub(crate) active: Active,
    pub(crate) handlers: ReturnHandlers<A>,
    /// What its node's flags are to be.
    pub(crate) flags: u32,
    state: PhantomData<fn(S) -> D>,
}

impl<A: Arch> Kretprobe<A, (), Fresh> {
    /// A return probe on a function.
    pub fn on(place: impl Into<Place>) -> Self {
        let handlers = ReturnHandlers::typed::<()>(None);
        Self { place: place.into(), active: Active::default(), handlers, flags: 0, state: PhantomData }
    }

    /// Calls `handler` at each entry: `Some(data)` follows the call, `None` leaves it alone (RET_1).
    #[must_use]
    pub fn entry<F, D>(self, handler: F) -> Kretprobe<A, D, Settled>
    where
        F: Fn(&mut Call<'_, A>) -> Option<D> + Send + Sync + 'static,
    {
        Kretprobe {
            place: self.place,
            active: self.active,
            handlers: ReturnHandlers::typed::<D>(Some(Box::new(Asked(handler)))),
            flags: self.flags,
            state: PhantomData,
        }
    }

    /// A return probe with `data_len` bytes of private data, as the C interface has it. The bytes are zero when `entry`
    /// gets them; it answers whether the call is followed.
    #[must_use]
    pub fn bytes<E, X>(
        place: impl Into<Place>,
        data_len: usize,
        entry: E,
        exit: X,
    ) -> Kretprobe<A, (), Settled>
    where
        E: Fn(&mut Call<'_, A>, &mut [u8]) -> Follow + Send + Sync + 'static,
        X: Fn(&mut Return<'_, A>, &mut [u8]) + Send + Sync + 'static,
    {
        let call = move |regs: &mut A::Regs, node: &Node<A>, data: *mut u8| {
            // SAFETY: initialised at the entry; nobody else has the instance.
            let bytes = unsafe { core::slice::from_raw_parts_mut(data, data_len) };
            Return::with(regs, node, |ret| exit(ret, bytes))
        };
        let handlers = ReturnHandlers {
            layout: Layout::from_size_align(data_len, align_of::<u128>()).unwrap_or(Layout::new::<()>()),
            has_bytes: true,
            entry: Some(Box::new(AskedBytes { data_len, handler: entry })),
            ending: Ending::calling(call, |_| {}),
        };
        Kretprobe { place: place.into(), active: Active::default(), handlers, flags: 0, state: PhantomData }
    }
}

/// How many calls of a return probe can be followed at the same time, as its user has said it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Active {
    /// From the beginning; 0 or less: the default.
    pub(crate) now: i32,
    /// After growing.
    pub(crate) most: usize,
}

/// Whether a call is followed to its return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The exit handler will run when it returns.
    Yes,
    /// It is left alone, and counts as vetoed.
    No,
}

impl<A: Arch, D, S> Kretprobe<A, D, S> {
    /// Calls `handler` when a followed call returns.
    #[must_use]
    pub fn exit<F>(self, handler: F) -> Kretprobe<A, D, Settled>
    where
        F: Fn(&mut Return<'_, A>, D) + Send + Sync + 'static,
        D: 'static,
    {
        let mut handlers = self.handlers;
        if !handlers.has_bytes {
            let call = move |regs: &mut A::Regs, node: &Node<A>, data: *mut u8| {
                // SAFETY: the entry handler's is there, and nobody uses it again.
                let value = unsafe { data.cast::<D>().read() };
                Return::with(regs, node, |ret| handler(ret, value))
            };
            handlers.ending = Ending::calling(call, handlers.ending.drop_data);
        }
        Kretprobe { place: self.place, active: self.active, handlers, flags: self.flags, state: PhantomData }
    }

    /// How many calls can be followed at the same time; 0 or less means the default, max(10, 2 × contexts), and more than
    /// [`MAX_ACTIVE`](crate::MAX_ACTIVE) means that many (RET_3).
    ///
    /// Of more than one, there can be another for a moment once in the probe's life: where a second context calls the
    /// function for the first time just as the first one does.
    #[must_use]
    pub fn max_active(mut self, calls: i32) -> Self {
        self.active.now = calls;
        self
    }

    /// Up to how many that may grow, [`MAX_ACTIVE`](crate::MAX_ACTIVE) at the most: by [`Probes::grow_pools`](crate::Probes::grow_pools), which the
    /// host calls. Without this it stays as it is.
    #[must_use]
    pub fn grow_to(mut self, calls: usize) -> Self {
        self.active.most = calls;
        self
    }

    options!();
}

/// A call that has just entered a function with a return probe.
pub struct Call<'a, A: Arch> {
    pub(crate) regs: &'a mut A::Regs,
    pub(crate) node: &'a Node<A>,
    pub(crate) return_address: CodeAddr,
    /// Whether the registers have been lent to be changed.
    pub(crate) is_lent: bool,
}

impl<'a, A: Arch> Call<'a, A> {
    seen!(
        /// The place that was hit.
        pc,
        /// The registers at entry.
        regs
    );

    /// The integer argument number `index`, from 0.
    pub fn argument(&self, index: usize) -> Option<usize> {
        A::CALLS?.argument(self.regs, index, &self.memory())
    }

    /// Where the call will return to.
    pub fn return_address(&self) -> CodeAddr {
        self.return_address
    }
}

/// A call that is just returning.
pub struct Return<'a, A: Arch> {
    pub(crate) regs: &'a mut A::Regs,
    pub(crate) node: &'a Node<A>,
    pub(crate) return_address: CodeAddr,
    /// Whether the registers have been lent to be changed.
    is_lent: bool,
    calls: A::Calls,
}

impl<'a, A: Arch> Return<'a, A> {
    /// Calls `handler` with a call that is just returning to `regs.pc()`.
    #[inline(always)]
    fn with(regs: &'a mut A::Regs, node: &'a Node<A>, handler: impl FnOnce(&mut Self)) -> Resume {
        let Some(calls) = A::CALLS else { return Resume::Unchanged };
        let return_address = regs.pc();
        let mut ret = Return { regs, node, return_address, is_lent: false, calls };
        handler(&mut ret);
        Resume::of(ret.is_lent)
    }

    seen!(
        /// The probed function's place.
        pc,
        /// The registers at return; pc = the real return address.
        regs
    );

    /// The ABI's integer return value.
    pub fn value(&self) -> usize {
        self.calls.return_value(self.regs)
    }

    /// Changes the integer return value; the caller sees it.
    pub fn set_value(&mut self, value: usize) {
        self.calls.set_return_value(self.regs, value);
    }

    /// Where the call really returns to.
    pub fn return_address(&self) -> CodeAddr {
        self.return_address
    }
}

/// A return probe's handlers without their types, and what they need for each call.
pub(crate) struct ReturnHandlers<A: Arch> {
    /// A call's private data.
    pub(crate) layout: Layout,
    /// Whether the data are bytes, whose exit handler is there from the beginning.
    has_bytes: bool,
    /// Without one every call is followed, and the data is `()`.
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    /// Without an exit handler the data is dropped.
    pub(crate) ending: Ending<A>,
}

impl<A: Arch> ReturnHandlers<A> {
    /// Handlers with data of type `D`; no exit handler yet.
    fn typed<D>(entry: Option<Box<dyn EntryHandler<A>>>) -> Self {
        let drop_data = |data: *mut u8| {
            // SAFETY: the caller says that a D lies there, which nobody uses again.
            unsafe { data.cast::<D>().drop_in_place() }
        };
        Self { layout: Layout::new::<D>(), has_bytes: false, entry, ending: Ending::dropping(drop_data) }
    }
}

/// The entry handler of a return probe. Its users see one call of a function, with the user's closure in it.
pub(crate) trait EntryHandler<A: Arch>: Send + Sync {
    /// Asks the entry handler; [`Follow::Yes`] means that the data now lies at `data`.
    ///
    /// # Safety
    /// `data` is free memory of the handlers' layout.
    unsafe fn enter(&self, call: &mut Call<'_, A>, data: *mut u8) -> Follow;
}

/// Asks a typed handler.
struct Asked<F>(F);

impl<A: Arch, D, F> EntryHandler<A> for Asked<F>
where
    F: Fn(&mut Call<'_, A>) -> Option<D> + Send + Sync,
{
    unsafe fn enter(&self, call: &mut Call<'_, A>, data: *mut u8) -> Follow {
        let Some(value) = (self.0)(call) else { return Follow::No };
        // SAFETY: the caller gives free memory of D's layout.
        unsafe { data.cast::<D>().write(value) };
        Follow::Yes
    }
}

/// Asks a handler that works on bytes.
struct AskedBytes<F> {
    data_len: usize,
    handler: F,
}

impl<A: Arch, F> EntryHandler<A> for AskedBytes<F>
where
    F: Fn(&mut Call<'_, A>, &mut [u8]) -> Follow + Send + Sync,
{
    unsafe fn enter(&self, call: &mut Call<'_, A>, data: *mut u8) -> Follow {
        // SAFETY: the caller gives that much free memory.
        unsafe { data.write_bytes(0, self.data_len) };
        // SAFETY: initialised just now; nobody else has the instance.
        let bytes = unsafe { core::slice::from_raw_parts_mut(data, self.data_len) };
        (self.handler)(call, bytes)
    }
}

/// What is done with a followed call that returns: the exit handler is called, or the data dropped.
///
/// As a `Box<dyn Fn>` would be, with the function here instead of in a table elsewhere, and nothing to be asked first.
pub(crate) struct Ending<A: Arch> {
    call: unsafe fn(&Self, &mut A::Regs, *mut u8) -> Resume,
    handler: NonNull<()>,
    free: unsafe fn(NonNull<()>),
    /// Drops the data of a call whose exit handler does not run.
    pub(crate) drop_data: unsafe fn(*mut u8),
    /// The probe, from before calls are followed; null for one of a pool's own.
    pub(crate) node: AtomicPtr<Node<A>>,
}

// SAFETY: it owns what `calling` has been given, which is both.
unsafe impl<A: Arch> Send for Ending<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for Ending<A> {}

impl<A: Arch> Ending<A> {
    /// Calls `handler`, which takes the data, and tells what it has done to the registers, whose pc is the real return address.
    fn calling<F>(handler: F, drop_data: unsafe fn(*mut u8)) -> Self
    where
        F: Fn(&mut A::Regs, &Node<A>, *mut u8) -> Resume + Send + Sync + 'static,
    {
        Self {
            call: Self::call_handler::<F>,
            handler: NonNull::from(Box::leak(Box::new(handler))).cast(),
            // SAFETY: an `F`, once, by the owner.
            free: |handler| drop(unsafe { Box::from_raw(handler.cast::<F>().as_ptr()) }),
            drop_data,
            node: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Drops the data, and asks nobody.
    pub(crate) fn dropping(drop_data: unsafe fn(*mut u8)) -> Self {
        Self {
            call: Self::only_drop,
            handler: NonNull::dangling(),
            free: |_| {},
            drop_data,
            node: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// What [`Ending::calling`] calls.
    ///
    /// # Safety
    /// The handler is an `F`; and as for [`Ending::run`].
    unsafe fn call_handler<F>(&self, regs: &mut A::Regs, data: *mut u8) -> Resume
    where
        F: Fn(&mut A::Regs, &Node<A>, *mut u8) -> Resume,
    {
        // SAFETY: the caller's.
        let handler = unsafe { self.handler.cast::<F>().as_ref() };
        // SAFETY: the probe, which is there as long as calls end so.
        let node = unsafe { &*self.node.load(Relaxed) };
        handler(regs, node, data)
    }

    /// What [`Ending::dropping`] calls.
    ///
    /// # Safety
    /// As for [`Ending::run`].
    unsafe fn only_drop(&self, _: &mut A::Regs, data: *mut u8) -> Resume {
        // SAFETY: the caller's.
        unsafe { (self.drop_data)(data) };
        Resume::Unchanged
    }

    /// The probe, whose handler [`Ending::run`] calls; null for one of a pool's own.
    #[inline(always)]
    pub(crate) fn node(&self) -> *const Node<A> {
        self.node.load(Relaxed)
    }

    /// Ends a call.
    ///
    /// # Safety
    /// The caller has claimed the call, which the data belongs to, and is inside since it has found this.
    #[inline(always)]
    pub(crate) unsafe fn run(&self, regs: &mut A::Regs, data: *mut u8) -> Resume {
        // SAFETY: the caller's.
        unsafe { (self.call)(self, regs, data) }
    }
}

impl<A: Arch> Drop for Ending<A> {
    fn drop(&mut self) {
        // SAFETY: what goes with it; nobody calls it any more.
        unsafe { (self.free)(self.handler) }
    }
}

/// The return half of a registered probe.
pub(crate) struct ReturnProbe<A: Arch> {
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    pub(crate) ending: Ending<A>,
    /// Outlives the probe while calls are in flight.
    pub(crate) pool: NonNull<Pool<A>>,
}

// SAFETY: the pool is shared state made for it.
unsafe impl<A: Arch> Send for ReturnProbe<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Sync for ReturnProbe<A> {}

impl<A: Arch> ReturnProbe<A> {
    pub(crate) fn pool(&self) -> &Pool<A> {
        // SAFETY: the registry frees a pool after its probe.
        unsafe { self.pool.as_ref() }
    }

    /// Tells it which probe it is the half of, before that is not silent any more.
    pub(crate) fn belong_to(&self, node: NonNull<Node<A>>) {
        self.ending.node.store(node.as_ptr(), Relaxed);
        self.pool().node.store(node.as_ptr(), Release);
    }

    /// The probe has become silent.
    pub(crate) fn fall_silent(&self) {
        self.pool().fall_silent();
    }

    /// The probe is not silent any more.
    pub(crate) fn speak(&self) {
        self.pool().speak(&self.ending);
    }
}
