//! All state of one program's probes, composed of the state of the other files.

use crate::arch::{Arch, MemFault, Memory};
use crate::held::Lent;
use crate::list::List;
use crate::state::counter::Shares;
use crate::state::detour::{Detour, DetourChunk};
use crate::state::host::Host;
use crate::state::lender::Lender;
use crate::state::owned::OwnedNode;
use crate::state::point::{Node, Point};
use crate::state::pool::Pool;
use crate::state::program::{Entries, Program};
use crate::state::slots::{SlotAllocator, SlotChunk};
use crate::state::spare::Spares;
use crate::state::stub::{StubChunk, StubChunks};
use crate::state::switches::Switches;
use crate::state::text::Texts;
use crate::state::watch::{WatchNode, Watches};
use crate::sync::{AtomicUsize, Relaxed, UnsafeCell};
use crate::table::{RetiredArrays, Table};
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};

/// All probes of one program: the one thing that a host keeps in a static.
pub struct Probes<H: Host> {
    pub(crate) host: H,
    /// Where trampolines lead.
    pub(crate) entries: Entries,
    pub(crate) points: Table<Point<H::Arch>>,
    pub(crate) slot_chunks: Table<SlotChunk>,
    pub(crate) stubs: StubChunks<H>,
    pub(crate) watches: Watches<H::Arch>,
    /// What steps without a frame have borrowed.
    pub(crate) spares: Spares<<H::Arch as Arch>::StepState>,
    pub(crate) detour_chunks: Table<DetourChunk<H>>,
    /// What contexts that hit the same probes count with.
    pub(crate) shares: Shares,
    /// How many stay inside without a context.
    pub(crate) anonymous: AtomicUsize,
    /// Who alone writes text.
    pub(crate) texts: Texts<H::Arch>,
    pub(crate) switches: Switches,
    /// Who has the lock, 0: nobody.
    pub(crate) holder: AtomicUsize,
    /// Never dropped: it lives in a static, and handlers' view of it needs no code that frees memory.
    pub(crate) books: ManuallyDrop<UnsafeCell<Books<H>>>,
}

// SAFETY: `books` is reached only under the lock; all else is made for sharing.
unsafe impl<H: Host> Sync for Probes<H> {}

/// What only the holder of the lock sees.
pub(crate) struct Books<H: Host> {
    pub(crate) slots: SlotAllocator,
    pub(crate) stubs: Vec<NonNull<StubChunk<H>>>,
    pub(crate) detour_chunks: Vec<NonNull<DetourChunk<H>>>,
    /// The newest detour of every place that has ever had a jump: what the next jump there may lead to. What
    /// stands in text is the point's to say.
    pub(crate) detours: Table<Detour<H>>,
    /// The generation of the newest probe.
    pub(crate) generation: u32,
    pub(crate) arrays: RetiredArrays,
    /// Points that a context was still stepping when they were to be freed. Off the table.
    pub(crate) parked: List<Point<H::Arch>>,
    /// Points whose text has gone, while handles are left. Off the table.
    pub(crate) gone: List<Point<H::Arch>>,
    /// Pools whose probe has gone, while calls are in flight.
    pub(crate) pools: List<Pool<H::Arch>>,
    /// Whether a stub may be left that no instance has: its chunk is freed when it has come back.
    pub(crate) has_left_stubs: bool,
    /// Nodes to be freed when the lock has been let go: what their handlers own may call us. Linked by
    /// `next`.
    pub(crate) dead: *mut Node<H::Arch>,
    /// Watchpoints, as `dead`.
    pub(crate) dead_watches: *mut WatchNode<H::Arch>,
}

impl<H: Host> Books<H> {
    /// The points whose text has gone.
    pub(crate) fn gone_points(&self) -> impl Iterator<Item = Lent<'_, Point<H::Arch>>> {
        self.gone.iter()
    }

    /// Frees a node that nobody can reach any more, once the lock is let go.
    pub(crate) fn bury(&mut self, node: OwnedNode<H::Arch>) {
        node.next.store(self.dead, Relaxed);
        self.dead = node.pointer().as_ptr();
    }
}

// SAFETY: what it points to is shared state made for it.
unsafe impl<H: Host> Send for Books<H> {}

impl<H: Host> Probes<H> {
    /// What stubs and detours know it by.
    pub(crate) fn program(&'static self) -> Program<H> {
        // SAFETY: it lies there for good.
        unsafe { Program::new(NonNull::from(self).cast()) }
    }

    /// The probes of a program.
    #[inline(always)]
    pub(crate) fn of(program: Program<H>) -> &'static Self {
        // SAFETY: whoever has made it has said that they lie there for good.
        unsafe { program.address().cast().as_ref() }
    }

    /// No probes yet, and what their trampolines lead to.
    pub(crate) const fn with(host: H, entries: Entries) -> Self {
        Self {
            host,
            entries,
            points: Table::new(),
            slot_chunks: Table::new(),
            stubs: StubChunks::new(),
            watches: Watches::new(),
            spares: Spares::new(),
            detour_chunks: Table::new(),
            shares: Shares::new(),
            anonymous: AtomicUsize::new(0),
            texts: Texts::new(),
            switches: Switches::new(),
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
                has_left_stubs: false,
                dead: ptr::null_mut(),
                dead_watches: ptr::null_mut(),
            })),
        }
    }
}

impl<H: Host> Lender for Probes<H> {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        self.host.memory().read(addr, out)
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        self.host.memory().write(addr, bytes)
    }

    fn note_change(&self) {
        self.switches.note_change();
    }

    fn shares(&self) -> &Shares {
        &self.shares
    }
}
