//! The locked half: registering, removing, switching.
//!
//! One spin lock is around everything that changes text, tables or lists. Order is by construction: a point is
//! prepared (decoded, slot filled), published (in the table, its probes on its list), armed (breakpoint in text);
//! disarmed, taken off, and freed after a grace period. Nothing here may be called from a handler; what a handler may do
//! (disable, drop a handle) is noted, and done by the next call.

mod arm;
mod batch;
mod detours;
mod explain;
mod handle;
mod lock;
mod optimise;
mod points;
mod remove;
mod resolve;
mod self_test;
mod stubs;
mod watch;

pub use arm::Switch;
pub use explain::Explanation;
pub use handle::{Counters, Kept, Kind, Probe};
use lock::{Locked, OpenBooks};
pub(crate) use resolve::WINDOW;
pub use self_test::SelfTestError;
pub use watch::Watch;

use crate::arch::Arch;
use crate::counter::Shares;
use crate::detour::{Detour, DetourChunk};
use crate::error::RegisterError;
use crate::held::Lent;
use crate::host::Host;
use crate::list::List;
use crate::point::{Node, Point};
use crate::pool::Pool;
use crate::ret::{StubChunk, StubRange};
use crate::slots::{SlotAllocator, SlotChunk};
use crate::spare::Spares;
use crate::sync::{AtomicBool, AtomicPtr, AtomicUsize, Relaxed};
use crate::table::{Keyed, RetiredArrays, Table};
use crate::text::Texts;
use crate::watch::{MAX_WATCHPOINTS, WatchNode};
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};

/// All probes of one program: the one thing that a host keeps in a static.
pub struct Probes<H: Host> {
    pub(crate) host: H,
    pub(crate) points: Table<Point<H::Arch>>,
    pub(crate) slot_chunks: Table<SlotChunk>,
    pub(crate) stub_chunks: Table<StubChunk<H>>,
    pub(crate) stub_range: StubRange,
    /// The registered watchpoints, by the number of their debug register.
    pub(crate) watches: [AtomicPtr<WatchNode<H::Arch>>; MAX_WATCHPOINTS],
    /// What steps without a frame have borrowed.
    pub(crate) spares: Spares<<H::Arch as Arch>::StepState>,
    pub(crate) detour_chunks: Table<DetourChunk<H>>,
    /// What contexts that hit the same probes count with.
    pub(crate) shares: Shares,
    /// How many stay inside without a context.
    pub(crate) anonymous: AtomicUsize,
    /// Who alone writes text.
    pub(crate) texts: Texts<H::Arch>,
    /// A handler has changed something that the next call here has to carry out.
    pub(crate) dirty: AtomicBool,
    /// A pool of a return probe has said that it should grow.
    pub(crate) low_pools: AtomicBool,
    is_on: AtomicBool,
    /// Whether probes get their jumps without being asked.
    is_optimising: AtomicBool,
    /// Who has the lock, 0: nobody.
    holder: AtomicUsize,
    /// Never dropped: it lives in a static, and handlers' view of it needs no code that frees memory.
    books: ManuallyDrop<UnsafeCell<Books<H>>>,
}

// SAFETY: `books` is reached only under the lock; all else is made for sharing.
unsafe impl<H: Host> Sync for Probes<H> {}

/// What only the holder of the lock sees.
pub(crate) struct Books<H: Host> {
    slots: SlotAllocator,
    stubs: Vec<NonNull<StubChunk<H>>>,
    detour_chunks: Vec<NonNull<DetourChunk<H>>>,
    /// The newest detour of every place that has ever had a jump: what the next jump there may lead to. What stands in text is
    /// the point's to say.
    detours: Table<Detour<H>>,
    /// The generation of the newest probe.
    generation: u32,
    arrays: RetiredArrays,
    /// Points that a context was still stepping when they were to be freed. Off the table.
    parked: List<Point<H::Arch>>,
    /// Points whose text has gone, while handles are left. Off the table.
    gone: List<Point<H::Arch>>,
    /// Pools whose probe has gone, while calls are in flight.
    pools: List<Pool<H::Arch>>,
    /// Nodes to be freed when the lock has been let go: what their handlers own may call us. Linked by `next`.
    dead: *mut Node<H::Arch>,
    /// Watchpoints, as `dead`.
    dead_watches: *mut WatchNode<H::Arch>,
}

impl<H: Host> Books<H> {
    /// The points whose text has gone.
    pub(crate) fn gone_points(&self) -> impl Iterator<Item = Lent<'_, Point<H::Arch>>> {
        self.gone.iter()
    }

    /// Frees a node that nobody can reach any more, once the lock is let go.
    fn bury(&mut self, node: NonNull<Node<H::Arch>>) {
        // SAFETY: it has not been freed yet.
        unsafe { node.as_ref() }.next.store(self.dead, Relaxed);
        self.dead = node.as_ptr();
    }
}

// SAFETY: what it points to is shared state made for it.
unsafe impl<H: Host> Send for Books<H> {}

impl<A: Arch> Keyed for Point<A> {
    #[inline(always)]
    fn key(&self) -> usize {
        self.place.as_usize()
    }
}

impl<H: Host> Probes<H> {
    /// No probes yet; to be kept in a static.
    pub const fn new(host: H) -> Self {
        Self {
            host,
            points: Table::new(),
            slot_chunks: Table::new(),
            stub_chunks: Table::new(),
            stub_range: StubRange::new(),
            watches: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_WATCHPOINTS],
            spares: Spares::new(),
            detour_chunks: Table::new(),
            shares: Shares::new(),
            anonymous: AtomicUsize::new(0),
            texts: Texts::new(),
            dirty: AtomicBool::new(false),
            low_pools: AtomicBool::new(false),
            is_on: AtomicBool::new(true),
            is_optimising: AtomicBool::new(false),
            holder: AtomicUsize::new(0),
            books: ManuallyDrop::new(UnsafeCell::new(Books {
                slots: SlotAllocator::new(),
                stubs: Vec::new(),
                detour_chunks: Vec::new(),
                detours: Table::new(),
                generation: 0,
                arrays: RetiredArrays::new(),
                parked: List::new(),
                gone: List::new(),
                pools: List::new(),
                dead: ptr::null_mut(),
                dead_watches: ptr::null_mut(),
            })),
        }
    }

    /// The embedding program.
    pub fn host(&self) -> &H {
        &self.host
    }
}

/// Memory for one T, got before what it takes to make the T.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// Gets the memory.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn new() -> Result<Self, RegisterError> {
        const { assert!(size_of::<T>() != 0) };
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc(Layout::new::<T>()) };
        NonNull::new(memory.cast::<T>()).map(Self).ok_or(RegisterError::NoMemory)
    }

    /// Puts `value` there, to be freed with [`free`].
    pub(crate) fn fill(self, value: T) -> NonNull<T> {
        let memory = self.0;
        core::mem::forget(self);
        // SAFETY: allocated for it, and nobody else has it.
        unsafe { memory.write(value) };
        memory
    }
}

impl<T> Drop for Room<T> {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and never filled.
        unsafe { dealloc(self.0.as_ptr().cast(), Layout::new::<T>()) };
    }
}

/// Puts `value` into memory of its own, to be freed with [`free`].
///
/// # Errors
/// No memory.
pub(crate) fn leak<T>(value: T) -> Result<NonNull<T>, RegisterError> {
    Ok(Room::new()?.fill(value))
}

/// Takes what [`leak`] gave back.
///
/// # Safety
/// Nobody else uses it.
pub(crate) unsafe fn free<T>(value: NonNull<T>) -> Box<T> {
    // SAFETY: allocated with T's layout, as boxes are.
    unsafe { Box::from_raw(value.as_ptr()) }
}
