//! Return probes: a handler at a function's entry, one at its return, and typed private data between them.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, Regs, Resume};
use crate::face::macros::{options, seen};
use crate::place::Place;
use crate::state::handler::{Ending, EntryHandler, EntryVerdict, Follow, ProbeRef};
use crate::state::lender::TargetMemory;
use crate::state::pending::{Active, AnyProbe, Pending, ReturnHandlers};
use crate::state::point::{DISABLED, Node};
use crate::state::tally::{Counters, Misses};
use alloc::boxed::Box;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::mem::align_of;

/// A return probe without handlers yet.
pub struct Fresh(());
/// A return probe whose entry handler, or absence of one, is settled.
pub struct Settled(());

/// A return probe to be registered.
///
/// `D` is the private data: the entry handler makes it, the exit handler gets it by value. Without an entry
/// handler every call is followed, and `D` is `()`.
///
/// ```no_run
/// # use probe_core::{Kretprobe, arch::Arch};
/// # fn now() -> u64 { 0 }
/// # fn example<A: Arch>() -> probe_core::AnyProbe<A> {
/// Kretprobe::<A>::at("do_sys_open")
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
    pub fn at(place: impl Into<Place>) -> Self {
        let handlers = ReturnHandlers::typed::<()>(None);
        Self { place: place.into(), active: Active::default(), handlers, flags: 0, state: PhantomData }
    }

    /// Calls `handler` at each entry: `Some(data)` follows the call, `None` leaves it alone (RET_1).
    ///
    /// A coroutine may return in another thread than it was called in, so `data` is [`Send`]:
    /// ```compile_fail
    /// # use probe_core::{AnyProbe, Kretprobe, arch::Arch};
    /// # fn probe<A: Arch>() -> AnyProbe<A> {
    /// Kretprobe::at("f").entry(|_| Some(std::rc::Rc::new(1))).exit(|_, _| ()).into()
    /// # }
    /// ```
    #[must_use]
    pub fn entry<F, D>(self, handler: F) -> Kretprobe<A, D, Settled>
    where
        F: Fn(&mut Call<'_, A>) -> Option<D> + Send + Sync + 'static,
        D: Send,
    {
        Kretprobe {
            place: self.place,
            active: self.active,
            handlers: ReturnHandlers::typed::<D>(Some(Box::new(Asked(handler)))),
            flags: self.flags,
            state: PhantomData,
        }
    }

    /// A return probe with `data_len` bytes of private data, as the C interface has it. The bytes are zero
    /// when `entry` gets them; it answers whether the call is followed.
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
        let call = move |regs: &mut A::Regs, probe: ProbeRef<'_, A>, data: *mut u8| {
            // SAFETY: initialised at the entry; nobody else has the instance.
            let bytes = unsafe { core::slice::from_raw_parts_mut(data, data_len) };
            Return::with(regs, Node::of(probe), |ret| exit(ret, bytes))
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
            let call = move |regs: &mut A::Regs, probe: ProbeRef<'_, A>, data: *mut u8| {
                // SAFETY: the entry handler's is there, and nobody uses it again.
                let value = unsafe { data.cast::<D>().read() };
                Return::with(regs, Node::of(probe), |ret| handler(ret, value))
            };
            handlers.ending = Ending::calling(call, handlers.ending.drop_data);
        }
        Kretprobe { place: self.place, active: self.active, handlers, flags: self.flags, state: PhantomData }
    }

    /// The number of calls that can be followed at the same time; 0 or less means the default, max(10, 2 ×
    /// contexts), and more than [`MAX_ACTIVE`](crate::limits::MAX_ACTIVE) means that many (RET_3).
    ///
    /// With a limit above one, one more call may be followed, once in the probe's life: if a second context
    /// makes its first call at the very moment at which the first context makes one.
    #[must_use]
    pub fn max_active(mut self, calls: i32) -> Self {
        self.active.now = calls;
        self
    }

    /// Lets that number grow to `calls`, at most [`MAX_ACTIVE`](crate::limits::MAX_ACTIVE), when the host
    /// calls [`PoolControl::grow`](crate::pools::PoolControl::grow). Without this it does not grow.
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
    /// Whether a handler has borrowed the registers to change them.
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
    /// Whether a handler has borrowed the registers to change them.
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

/// Asks a typed handler.
struct Asked<F>(F);

impl<A: Arch, D, F> EntryHandler<A> for Asked<F>
where
    F: Fn(&mut Call<'_, A>) -> Option<D> + Send + Sync,
{
    unsafe fn enter(
        &self,
        regs: &mut A::Regs,
        probe: ProbeRef<'_, A>,
        return_address: CodeAddr,
        data: *mut u8,
    ) -> EntryVerdict {
        let mut call = Call { regs, node: Node::of(probe), return_address, is_lent: false };
        let value = (self.0)(&mut call);
        let resume = Resume::of(call.is_lent);
        let Some(value) = value else { return EntryVerdict { follow: Follow::No, resume } };
        // SAFETY: the caller gives free memory of D's layout.
        unsafe { data.cast::<D>().write(value) };
        EntryVerdict { follow: Follow::Yes, resume }
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
    unsafe fn enter(
        &self,
        regs: &mut A::Regs,
        probe: ProbeRef<'_, A>,
        return_address: CodeAddr,
        data: *mut u8,
    ) -> EntryVerdict {
        // SAFETY: the caller gives that much free memory.
        unsafe { data.write_bytes(0, self.data_len) };
        // SAFETY: initialised just now; nobody else has the instance.
        let bytes = unsafe { core::slice::from_raw_parts_mut(data, self.data_len) };
        let mut call = Call { regs, node: Node::of(probe), return_address, is_lent: false };
        let follow = (self.handler)(&mut call, bytes);
        EntryVerdict { follow, resume: Resume::of(call.is_lent) }
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
