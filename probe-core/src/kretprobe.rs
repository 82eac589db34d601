//! Return probes: a handler at a function's entry, one at its return, and typed private data between them.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Regs, Resume};
use crate::instance::Pool;
use crate::kprobe::{TargetMemory, options, seen};
use crate::place::Place;
use crate::point::{DISABLED, Node};
use crate::registry::Counters;
use alloc::boxed::Box;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::align_of;
use core::ptr::NonNull;

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
    pub(crate) max_active: i32,
    pub(crate) handlers: ReturnHandlers<A>,
    /// What its node's flags are to be.
    pub(crate) flags: u32,
    state: PhantomData<fn(S) -> D>,
}

impl<A: Arch> Kretprobe<A, (), Fresh> {
    /// A return probe on a function.
    pub fn on(place: impl Into<Place>) -> Self {
        let handlers = ReturnHandlers::typed::<()>(None);
        Self { place: place.into(), max_active: 0, handlers, flags: 0, state: PhantomData }
    }

    /// Calls `handler` at each entry: `Some(data)` follows the call, `None` leaves it alone (RET_1).
    #[must_use]
    pub fn entry<F, D>(self, handler: F) -> Kretprobe<A, D, Settled>
    where
        F: Fn(&mut Call<'_, A>) -> Option<D> + Send + Sync + 'static,
    {
        Kretprobe {
            place: self.place,
            max_active: self.max_active,
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
        let handlers = ReturnHandlers {
            layout: Layout::from_size_align(data_len, align_of::<u128>()).unwrap_or(Layout::new::<()>()),
            drop_data: |_| {},
            has_bytes: true,
            entry: Some(Box::new(AskedBytes { data_len, handler: entry })),
            exit: Some(Box::new(CalledBytes { data_len, handler: exit })),
        };
        Kretprobe { place: place.into(), max_active: 0, handlers, flags: 0, state: PhantomData }
    }
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
            handlers.exit = Some(Box::new(Called { handler, data: PhantomData::<fn(D)> }));
        }
        Kretprobe {
            place: self.place,
            max_active: self.max_active,
            handlers,
            flags: self.flags,
            state: PhantomData,
        }
    }

    /// How many calls can be followed at the same time; 0 or less means the default, max(10, 2 × contexts) (RET_3).
    ///
    /// Of more than one, there can be another for a moment once in the probe's life: where a second context calls the
    /// function for the first time just as the first one does.
    #[must_use]
    pub fn max_active(mut self, calls: i32) -> Self {
        self.max_active = calls;
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
        A::argument(self.regs, index, &self.memory())
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
}

impl<'a, A: Arch> Return<'a, A> {
    /// Calls `handler` with a call that is just returning to `regs.pc()`.
    #[inline(always)]
    fn with(regs: &'a mut A::Regs, node: &'a Node<A>, handler: impl FnOnce(&mut Self)) -> Resume {
        let return_address = regs.pc();
        let mut ret = Return { regs, node, return_address, is_lent: false };
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
        A::return_value(self.regs)
    }

    /// Changes the integer return value; the caller sees it.
    pub fn set_value(&mut self, value: usize) {
        A::set_return_value(self.regs, value);
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
    /// Drops the data of a call whose exit handler does not run.
    pub(crate) drop_data: unsafe fn(*mut u8),
    /// Whether the data are bytes, whose exit handler is there from the beginning.
    has_bytes: bool,
    /// Without one every call is followed, and the data is `()`.
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    /// Without one the data is dropped when the call returns.
    pub(crate) exit: Option<Box<dyn ExitHandler<A>>>,
}

impl<A: Arch> ReturnHandlers<A> {
    /// Handlers with data of type `D`; no exit handler yet.
    fn typed<D>(entry: Option<Box<dyn EntryHandler<A>>>) -> Self {
        let drop_data = |data: *mut u8| {
            // SAFETY: the caller says that a D lies there, which nobody uses again.
            unsafe { data.cast::<D>().drop_in_place() }
        };
        Self { layout: Layout::new::<D>(), drop_data, has_bytes: false, entry, exit: None }
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

/// The exit handler of a return probe.
pub(crate) trait ExitHandler<A: Arch>: Send + Sync {
    /// Calls the exit handler, which takes the data; what it has done to the registers, whose pc is the real return address.
    ///
    /// # Safety
    /// `data` holds what [`EntryHandler::enter`] left there.
    unsafe fn leave(&self, regs: &mut A::Regs, node: &Node<A>, data: *mut u8) -> Resume;
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

/// Calls a typed handler with data that it owns.
struct Called<F, D> {
    handler: F,
    data: PhantomData<fn(D)>,
}

impl<A: Arch, D, F> ExitHandler<A> for Called<F, D>
where
    F: Fn(&mut Return<'_, A>, D) + Send + Sync,
{
    unsafe fn leave(&self, regs: &mut A::Regs, node: &Node<A>, data: *mut u8) -> Resume {
        // SAFETY: `enter` wrote it, and nobody uses it again.
        let value = unsafe { data.cast::<D>().read() };
        Return::with(regs, node, |ret| (self.handler)(ret, value))
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

/// Calls a handler that works on bytes.
struct CalledBytes<F> {
    data_len: usize,
    handler: F,
}

impl<A: Arch, F> ExitHandler<A> for CalledBytes<F>
where
    F: Fn(&mut Return<'_, A>, &mut [u8]) + Send + Sync,
{
    unsafe fn leave(&self, regs: &mut A::Regs, node: &Node<A>, data: *mut u8) -> Resume {
        // SAFETY: initialised in `enter`; nobody else has the instance.
        let bytes = unsafe { core::slice::from_raw_parts_mut(data, self.data_len) };
        Return::with(regs, node, |ret| (self.handler)(ret, bytes))
    }
}

/// The return half of a registered probe.
pub(crate) struct ReturnProbe<A: Arch> {
    pub(crate) entry: Option<Box<dyn EntryHandler<A>>>,
    pub(crate) exit: Option<Box<dyn ExitHandler<A>>>,
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
}
