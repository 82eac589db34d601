//! Return stubs: which instance each belongs to, and which addresses are stubs.
//!
//! ```text
//!  Free ──hand_out──► Handed ──take_back──► Free            the pool goes, and its call has ended
//!                       │
//!                       └──leave──► Left ──come_back──► Free   the pool goes, the call was given up: it may return yet
//! ```

use crate::addr::CodeAddr;
use crate::arch::{Arch, Calls, SaveSet};
use crate::error::NoMemory;
use crate::held::{Held, Hold, Lent};
use crate::state::host::{CallsOf, Host};
use crate::state::instance::Instance;
use crate::state::program::Program;
use crate::state::slots::{CHUNK_LEN, OWN, chunk_base};
use crate::sync::{Acquire, AtomicPtr, AtomicUsize, Relaxed, Release, dereference};
use crate::table::{Keyed, RetiredArray, Table};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::{self, NonNull};

/// A chunk of return stubs. The last word of its executable memory is its own address, for [`program_of`].
pub(crate) struct StubChunk<H: Host> {
    pub(crate) base: CodeAddr,
    /// What their trampoline saves.
    pub(crate) save: SaveSet,
    pub(crate) program: Program<H>,
    /// Which instance each stub belongs to. Stub 0 is never used.
    users: Box<[User<H::Arch>]>,
    /// The home of the call that each stub is handed out for: [`Host::stubs_added`] shows the table to
    /// unwinders.
    pub(crate) homes: Box<[AtomicUsize]>,
    /// The number of free stubs, or less.
    free: AtomicUsize,
    /// Where the search for a free stub continues; under the registry's lock.
    cursor: AtomicUsize,
}

/// The user of a stub: the address of an instance, null, or [`LEFT`].
struct User<A: Arch>(AtomicPtr<Instance<A>>);

/// No address of an instance, which is aligned to more.
const LEFT: usize = 1;

/// What a [`User`] has said.
enum Said<'g, A: Arch> {
    Free,
    Handed(&'g Instance<A>),
    Left,
}

impl<A: Arch> User<A> {
    /// What it says now.
    fn look<'g>(&self, _held: impl Held<'g>) -> Said<'g, A> {
        let user = dereference(&self.0);
        match user.addr() {
            0 => Said::Free,
            LEFT => Said::Left,
            // SAFETY: an instance is freed a grace period after its stub has been taken back or left: `_held`
            // keeps it.
            _ => Said::Handed(unsafe { &*user }),
        }
    }
}

/// A stub that is in use.
pub(crate) enum Stub<'g, H: Host> {
    /// It belongs to an instance.
    Handed(&'g Instance<H::Arch>),
    /// The call that it was handed out for was given up, and the pool of that call has gone.
    Left(LeftStub<'g, H>),
}

/// The stub of a call that was given up and may return yet, without an instance.
pub(crate) struct LeftStub<'g, H: Host> {
    chunk: &'g StubChunk<H>,
    index: usize,
}

impl<H: Host> LeftStub<'_, H> {
    /// Where the call ends up. The calls that it may have shared its return address with were given up with
    /// it.
    pub(crate) fn home(&self) -> Option<CodeAddr> {
        self.chunk.home(self.index).map(|home| CodeAddr::new(home.load(Relaxed)))
    }

    /// The call has returned: the stub is free.
    pub(crate) fn come_back(&self) {
        if let Some(user) = self.chunk.users.get(self.index) {
            self.chunk.come_back(user);
        }
    }
}

impl<H: Host> Keyed for StubChunk<H> {
    fn key(&self) -> usize {
        self.base.as_usize()
    }
}

impl<H: Host> StubChunk<H> {
    /// A chunk at `base` with `count` stubs, all free.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(
        base: CodeAddr,
        save: SaveSet,
        program: Program<H>,
        count: usize,
    ) -> Result<Self, NoMemory> {
        let mut users = Vec::new();
        users.try_reserve_exact(count).map_err(|_| NoMemory)?;
        users.resize_with(count, || User(AtomicPtr::new(ptr::null_mut())));
        let mut homes = Vec::new();
        homes.try_reserve_exact(count).map_err(|_| NoMemory)?;
        homes.resize_with(count, || AtomicUsize::new(0));
        Ok(Self {
            base,
            save,
            program,
            users: users.into_boxed_slice(),
            homes: homes.into_boxed_slice(),
            free: AtomicUsize::new(count.saturating_sub(1)),
            cursor: AtomicUsize::new(0),
        })
    }

    /// The use of the stub at `at`, if it is one.
    #[inline(always)]
    pub(crate) fn stub<'g>(&'g self, at: CodeAddr, held: impl Held<'g>) -> Option<Stub<'g, H>> {
        let index = self.index(at)?;
        match self.users.get(index)?.look(held) {
            Said::Handed(instance) if instance.stub == at => Some(Stub::Handed(instance)),
            Said::Left if at == self.address(index) => Some(Stub::Left(LeftStub { chunk: self, index })),
            _ => None,
        }
    }

    /// The number of the stub around `at`, an address in the chunk.
    #[inline(always)]
    fn index(&self, at: CodeAddr) -> Option<usize> {
        (at.as_usize() & (CHUNK_LEN - 1)).checked_div(CallsOf::<H>::STUB_LEN)
    }

    /// Where stub number `index` lies.
    fn address(&self, index: usize) -> CodeAddr {
        self.base.wrapping_add(index * CallsOf::<H>::STUB_LEN)
    }

    /// The word for the home of the call that stub number `index` is handed out for.
    fn home(&self, index: usize) -> Option<&AtomicUsize> {
        self.homes.get(index)
    }

    /// Whether no stub is in use.
    pub(crate) fn is_unused(&self) -> bool {
        self.free.load(Relaxed).wrapping_add(1) == self.users.len()
    }

    // ---- under the registry's lock ------------------------------------------------------------------------

    /// How many stubs are left to calls that were given up.
    pub(crate) fn left(&self, hold: &Hold) -> usize {
        self.users.iter().filter(|user| matches!(user.look(hold), Said::Left)).count()
    }

    /// Adds free stubs to `stubs`, each with its word, until it has `wanted`.
    pub(crate) fn find_free(
        &self,
        wanted: usize,
        stubs: &mut Vec<(CodeAddr, *const AtomicUsize)>,
        _hold: &Hold,
    ) {
        // Acquire: each of them says that it is free.
        let mut left = self.free.load(Acquire);
        let mut index = self.cursor.load(Relaxed);
        while left != 0 && stubs.len() < wanted {
            index = if index + 1 < self.users.len() { index + 1 } else { 1 };
            if self.users[index].0.load(Relaxed).is_null()
                && let Some(home) = self.home(index)
            {
                stubs.push((self.address(index), ptr::from_ref(home)));
                left -= 1;
            }
        }
        self.cursor.store(index, Relaxed);
    }

    /// Hands the free stub of `instance` out to it.
    pub(crate) fn hand_out(&self, instance: &Instance<H::Arch>, _hold: &Hold) {
        let Some(user) = self.user_of(instance) else { return };
        debug_assert!(user.0.load(Relaxed).is_null(), "a stub in use is handed out");
        user.0.store(ptr::from_ref(instance).cast_mut(), Release);
        self.free.fetch_sub(1, Relaxed);
    }

    /// Makes the stub of `instance`, which may be freed after a grace period, lead there no more. A call that
    /// was given up keeps the stub ([`StubChunk::settle`] looks again).
    pub(crate) fn detach(&self, instance: &Instance<H::Arch>, _hold: &Hold) {
        let Some(user) = self.user_of(instance) else { return };
        if instance.life.is_given_up() {
            user.0.store(ptr::without_provenance_mut(LEFT), Relaxed);
        } else {
            user.0.store(ptr::null_mut(), Relaxed);
            self.free.fetch_add(1, Release);
        }
    }

    /// Frees the stub of `instance` if its call has returned by way of the instance after
    /// [`StubChunk::detach`] had looked. A grace period after that; nobody returns by way of the instance any
    /// more.
    pub(crate) fn settle(&self, instance: &Instance<H::Arch>, _hold: &Hold) {
        if !instance.life.is_given_up()
            && let Some(user) = self.user_of(instance)
        {
            self.come_back(user);
        }
    }

    fn user_of(&self, instance: &Instance<H::Arch>) -> Option<&User<H::Arch>> {
        self.users.get(self.index(instance.stub)?)
    }

    /// Left → Free.
    fn come_back(&self, user: &User<H::Arch>) {
        let left = ptr::without_provenance_mut(LEFT);
        if user.0.compare_exchange(left, ptr::null_mut(), Relaxed, Relaxed).is_ok() {
            // Release: as `find_free` says.
            self.free.fetch_add(1, Release);
        }
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

    /// Whether `at` may be a stub. Code that sees a stub sees this range, too: the range was stored before
    /// the stub was handed out.
    #[inline(always)]
    pub(crate) fn may_hold(&self, at: CodeAddr) -> bool {
        self.range.may_hold(at)
    }

    /// The chunk that `at` lies in.
    #[inline(always)]
    pub(crate) fn chunk<'g>(&self, at: CodeAddr, held: impl Held<'g>) -> Option<&'g StubChunk<H>> {
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

    /// All chunks.
    pub(crate) fn all<'g>(&self, hold: &'g Hold) -> impl Iterator<Item = Lent<'g, StubChunk<H>>> {
        self.chunks.iter(hold)
    }

    /// Takes a chunk off that has no stub in use, to be freed after a grace period.
    pub(crate) fn take_unused<'g>(&self, hold: &'g Hold) -> Option<Lent<'g, StubChunk<H>>> {
        let unused = self.chunks.iter(hold).find(|chunk| chunk.is_unused())?;
        self.chunks.remove(&unused);
        Some(unused)
    }

    /// Whether there is no chunk.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.len() == 0
    }

    /// Takes the table's array, if there is no chunk left.
    pub(crate) fn retire_if_empty(&self) -> Option<RetiredArray> {
        self.chunks.retire_if_empty()
    }
}

/// From the lowest chunk of return stubs that there has been to the end of the highest: most return addresses
/// are told from stubs by that.
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

    /// Whether `at` may be a stub. Who sees a stub sees the range with it: both were stored before it was
    /// handed out.
    #[inline(always)]
    fn may_hold(&self, at: CodeAddr) -> bool {
        self.low.load(Relaxed) <= at.as_usize() && at.as_usize() <= self.high.load(Relaxed)
    }
}

/// The program that the stub belongs to.
#[inline(always)]
pub(crate) fn program_of<H: Host>(stub: CodeAddr) -> Program<H> {
    let word = chunk_base(stub).as_usize().wrapping_add(CHUNK_LEN - OWN);
    // SAFETY: a stub lies in a chunk, which is never unmapped while an instance of it is pending, and the
    // registry has put the address there.
    let chunk = unsafe { ptr::with_exposed_provenance::<usize>(word).read() };
    // SAFETY: as above.
    unsafe { &*ptr::with_exposed_provenance::<StubChunk<H>>(chunk) }.program
}
