//! Return stubs: which instance each belongs to, and which addresses are stubs.

use crate::addr::CodeAddr;
use crate::arch::{Calls, SaveSet};
use crate::error::NoMemory;
use crate::held::Held;
use crate::state::host::{CallsOf, Host};
use crate::state::instance::Instance;
use crate::state::program::Program;
use crate::state::slots::{CHUNK_LEN, OWN, chunk_base};
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, follow};
use crate::table::{Keyed, RetiredArray, Table};
use alloc::boxed::Box;
use core::ptr::{self, NonNull};

/// A chunk of return stubs. The last word of its executable memory is its own address, for [`program_of`].
pub(crate) struct StubChunk<H: Host> {
    pub(crate) base: CodeAddr,
    /// What their trampoline saves.
    pub(crate) save: SaveSet,
    pub(crate) program: Program<H>,
    /// Which instance a stub belongs to; null for free ones. Stub 0 is never used.
    pub(crate) instances: Box<[AtomicPtr<Instance<H::Arch>>]>,
    /// Where the call that a stub belongs to ends up: what [`Host::stubs_added`] shows to unwinders.
    pub(crate) homes: Box<[AtomicUsize]>,
    /// How many stubs are free; under the registry's lock.
    pub(crate) free: AtomicUsize,
    /// Where the search for a free one goes on; under the registry's lock.
    pub(crate) cursor: AtomicUsize,
}

impl<H: Host> Keyed for StubChunk<H> {
    fn key(&self) -> usize {
        self.base.as_usize()
    }
}

impl<H: Host> StubChunk<H> {
    /// The instance that `stub` belongs to, if it is one. The caller is inside.
    pub(crate) fn instance(&self, stub: CodeAddr) -> Option<&Instance<H::Arch>> {
        self.instance_around(stub).filter(|instance| instance.stub == stub)
    }

    /// The instance whose stub lies around `at`, an address in the chunk. The caller is inside.
    #[inline(always)]
    fn instance_around(&self, at: CodeAddr) -> Option<&Instance<H::Arch>> {
        let offset = at.as_usize() & (CHUNK_LEN - 1);
        let cell = self.instances.get(offset.checked_div(CallsOf::<H>::STUB_LEN)?)?;
        // SAFETY: instances are freed after a grace period, and the caller is inside.
        unsafe { follow(cell).as_ref() }
    }

    /// The word for where the call that stub number `index` is handed out for ends up.
    pub(crate) fn home(&self, index: usize) -> Option<&AtomicUsize> {
        self.homes.get(index)
    }
}

/// All chunks of return stubs.
pub(crate) struct StubChunks<H: Host> {
    chunks: Table<StubChunk<H>>,
    range: StubRange,
}

impl<H: Host> StubChunks<H> {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { chunks: Table::new(), range: StubRange::new() }
    }

    /// Whether `at` may be a stub. Who sees a stub sees the range with it: both were stored before it was handed out.
    #[inline(always)]
    pub(crate) fn may_hold(&self, at: CodeAddr) -> bool {
        self.range.may_hold(at)
    }

    /// The chunk that `at` lies in.
    #[inline(always)]
    pub(crate) fn chunk<'g>(&'g self, at: CodeAddr, held: &'g impl Held) -> Option<&'g StubChunk<H>> {
        self.chunks.find(chunk_base(at).as_usize(), held)
    }

    /// Makes room for `more` chunks. The table's former array, if it has another one now.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve(&self, more: usize) -> Result<Option<RetiredArray>, NoMemory> {
        self.chunks.reserve(more)
    }

    /// Adds a chunk; [`StubChunks::reserve`] has made room.
    ///
    /// # Safety
    /// It stays valid until a grace period after it has been removed.
    pub(crate) unsafe fn add(&self, chunk: NonNull<StubChunk<H>>) {
        // SAFETY: the chunk stays until after it has been removed.
        self.range.add(unsafe { chunk.as_ref() }.base);
        // SAFETY: as above, and for a grace period longer; `reserve` has made room.
        unsafe { self.chunks.insert(chunk) };
    }

    /// Takes a chunk off.
    pub(crate) fn remove(&self, chunk: &StubChunk<H>) {
        self.chunks.remove(chunk);
    }

    /// Takes the table's array, if there is no chunk left.
    pub(crate) fn retire_if_empty(&self) -> Option<RetiredArray> {
        self.chunks.retire_if_empty()
    }
}

/// From the lowest chunk of return stubs that there has been to the end of the highest: most return addresses are
/// told from stubs by that.
struct StubRange {
    low: AtomicUsize,
    high: AtomicUsize,
}

impl StubRange {
    /// Holds nothing.
    const fn new() -> Self {
        Self { low: AtomicUsize::new(usize::MAX), high: AtomicUsize::new(0) }
    }

    /// Lets it hold the chunk at `base`, before a stub of it is handed out. Under the registry's lock.
    fn add(&self, base: CodeAddr) {
        let end = base.as_usize().wrapping_add(CHUNK_LEN - 1);
        self.low.fetch_min(base.as_usize(), Relaxed);
        self.high.fetch_max(end, Relaxed);
    }

    /// Whether `at` may be a stub. Who sees a stub sees the range with it: both were stored before it was handed out.
    #[inline(always)]
    fn may_hold(&self, at: CodeAddr) -> bool {
        self.low.load(Relaxed) <= at.as_usize() && at.as_usize() <= self.high.load(Relaxed)
    }
}

/// The program that the stub belongs to.
#[inline(always)]
pub(crate) fn program_of<H: Host>(stub: CodeAddr) -> Program<H> {
    let word = chunk_base(stub).as_usize().wrapping_add(CHUNK_LEN - OWN);
    // SAFETY: a stub lies in a chunk, which is never unmapped while an instance of it is pending, and the registry
    // has put the address there.
    let chunk = unsafe { ptr::with_exposed_provenance::<usize>(word).read() };
    // SAFETY: as above.
    unsafe { &*ptr::with_exposed_provenance::<StubChunk<H>>(chunk) }.program
}
