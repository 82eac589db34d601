//! A return instance: one followed call, with its own return stub.
//!
//! [`life`](crate::state::life) has its state, and who may change it; its [`Pool`](crate::state::pool) makes
//! it.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::list::Linked;
use crate::state::counter::Counter;
use crate::state::ends::Ends;
use crate::state::life::{Back, Claimed, LifeWord, Seen};
use crate::state::owner::FirstOwner;
use crate::sync::{AtomicPtr, AtomicUsize, Relaxed, Release};
use core::mem::offset_of;
use core::ptr;

/// One followed call. In cache lines of its own, so that contexts which follow calls at the same time do not
/// wait for each other.
#[repr(C, align(64))]
pub(crate) struct Instance<A: Arch> {
    /// The context that may take this instance without an atomic exchange. First field: a detour that holds
    /// its address holds the instance's ([`Instance::of_owner`]).
    pub(crate) owner: FirstOwner,
    /// What the call returns to.
    pub(crate) stub: CodeAddr,
    ends: *const Ends<A>,
    pub(crate) data: *mut u8,
    /// The return address that the stub stands for.
    real: AtomicUsize,
    /// The call's home, in the stub's chunk: equal to `real`, unless that is a stub, too.
    home: *const AtomicUsize,
    /// The next older pending return of the task.
    pub(crate) next: AtomicPtr<Instance<A>>,
    frame: AtomicUsize,
    /// The address of the task whose list it is on; null if it is on none.
    pub(crate) task: AtomicPtr<()>,
    /// How many calls it has followed.
    pub(crate) calls: Counter,
    pub(crate) life: LifeWord,
    /// The first instance of a pool that is taken has number 0, as has the owner's.
    pub(crate) number: u32,
    /// The word of the pool's map with its bit; null if it is in no map.
    map: *const AtomicUsize,
    bit: u8,
}

/// What an instance is made of.
pub(crate) struct Parts {
    pub(crate) owner: FirstOwner,
    pub(crate) stub: CodeAddr,
    pub(crate) home: *const AtomicUsize,
    pub(crate) data: *mut u8,
    pub(crate) number: u32,
    pub(crate) map: Option<(*const AtomicUsize, u8)>,
}

// SAFETY: all that changes is atomic, but for `data`, which belongs to whoever has taken the instance.
unsafe impl<A: Arch> Sync for Instance<A> {}
// SAFETY: as above; private data is a D, which is Send (`Kretprobe::entry`), or bytes.
unsafe impl<A: Arch> Send for Instance<A> {}

impl<A: Arch> Linked for Instance<A> {
    /// As long as it is on a task's list, the call behind it.
    fn link(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

impl<A: Arch> Instance<A> {
    /// A free one, which belongs to no pool yet.
    pub(crate) fn new(parts: Parts) -> Self {
        let (map, bit) = parts.map.unwrap_or((ptr::null(), 0));
        Self {
            owner: parts.owner,
            stub: parts.stub,
            ends: ptr::null(),
            data: parts.data,
            real: AtomicUsize::new(0),
            home: parts.home,
            next: AtomicPtr::new(ptr::null_mut()),
            frame: AtomicUsize::new(0),
            task: AtomicPtr::new(ptr::null_mut()),
            calls: Counter::new(),
            life: LifeWord::new(!map.is_null()),
            number: parts.number,
            map,
            bit,
        }
    }

    /// Sets its pool, before it is shared.
    pub(crate) fn belong_to(&mut self, ends: *const Ends<A>) {
        self.ends = ends;
    }

    /// Where the pool lies.
    #[inline(always)]
    pub(crate) fn ends_address(&self) -> *const Ends<A> {
        self.ends
    }

    /// What it needs of its pool; at the pool's own address.
    #[inline(always)]
    pub(crate) fn ends(&self) -> &Ends<A> {
        // SAFETY: a pool is freed with its instances.
        unsafe { &*self.ends }
    }

    pub(crate) fn real(&self) -> CodeAddr {
        CodeAddr::new(self.real.load(Relaxed))
    }

    /// Where the call ends up, when those that share its return address have ended, too.
    pub(crate) fn home(&self) -> CodeAddr {
        // SAFETY: as in `bind`.
        CodeAddr::new(unsafe { &*self.home }.load(Relaxed))
    }

    pub(crate) fn frame(&self) -> usize {
        self.frame.load(Relaxed)
    }

    /// The pool's own instance that an owner belongs to, where that is a pool's.
    #[inline(always)]
    pub(crate) fn of_owner(owner: *const FirstOwner) -> *const Self {
        const { assert!(offset_of!(Self, owner) == 0) };
        owner.cast()
    }

    // ---- into a call --------------------------------------------------------------------------------------

    /// Binds it, taken, to a call whose home is `home`; from here on the stub may be returned to.
    #[inline(always)]
    pub(crate) fn bind(&self, real: CodeAddr, home: CodeAddr, frame: usize, task: *const ()) {
        self.real.store(real.as_usize(), Relaxed);
        // SAFETY: whoever has made the pool has said that the word stays as long as the pool.
        let shown = unsafe { &*self.home };
        // The word is beside other calls' words, and most calls come from where the last one came from.
        if shown.load(Relaxed) != home.as_usize() {
            shown.store(home.as_usize(), Relaxed);
        }
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        self.life.bind(home != real);
    }

    /// As [`Instance::bind`], of the owner's own one, which is free by `seen`, for a call from the program's
    /// own text.
    #[inline(always)]
    pub(crate) fn bind_from_free(&self, seen: Seen, real: CodeAddr, frame: usize, task: *const ()) {
        self.real.store(real.as_usize(), Relaxed);
        // SAFETY: as in `bind`. To ask what is there would be as much.
        unsafe { &*self.home }.store(real.as_usize(), Relaxed);
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        self.life.follow_from_free(seen);
    }

    /// Its word, if that says free; for an instance that is in no map.
    #[inline(always)]
    pub(crate) fn seen_free(&self) -> Option<Seen> {
        // Acquire: as in `LifeWord::take`.
        let seen = self.life.look();
        seen.is_free().then_some(seen)
    }

    /// Whether it has never followed a call.
    pub(crate) fn is_unused(&self) -> bool {
        self.calls.get() == 0
    }

    // ---- out of a call ------------------------------------------------------------------------------------

    /// Takes a call back that the entry handler does not want.
    #[inline(never)]
    pub(crate) fn veto(&self) {
        self.ends().vetoed.rise();
        self.release();
    }

    /// Takes a call back whose return address could not be replaced.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_unreturned(&self) {
        self.ends().miss();
        if self.life.claim() == Some(Claimed::Live) {
            // SAFETY: claimed, and nobody has taken the data.
            unsafe { self.drop_data() };
            self.release();
        }
    }

    /// Counts a claimed call as abandoned, and drops its data.
    ///
    /// # Safety
    /// As for [`Instance::drop_data`].
    pub(crate) unsafe fn abandon(&self) {
        self.ends().abandoned.rise();
        // SAFETY: the call is claimed, and its data still there, as `abandon` asks.
        unsafe { self.drop_data() };
    }

    /// Drops the private data of a claimed call whose exit handler does not run.
    ///
    /// # Safety
    /// The caller has claimed the call, and nobody has taken the data.
    pub(crate) unsafe fn drop_data(&self) {
        // SAFETY: who has claimed the call has its data, and nobody has taken that.
        unsafe { (self.ends().drop_data())(self.data) }
    }

    /// Gives it back to its pool; it is on no task's list.
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.life.release() == Back::ToMap {
            self.show_in_map();
        }
    }

    #[cold]
    #[inline(never)]
    fn show_in_map(&self) {
        // SAFETY: null, or a word of the map that the pool has, which is freed with its instances.
        if let Some(word) = unsafe { self.map.as_ref() } {
            // The last that is done with the pool: the registry frees it when all have come back. Release: as
            // in `LifeWord::release`.
            word.fetch_or(1 << self.bit, Release);
        }
    }
}
