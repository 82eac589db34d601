//! Return instances: one followed call each, with its own return stub; and their pools.
//!
//! The only interface to the rest is [`Pool::take`], [`Instance::release`] and what is written on them. A pool
//! belongs to one return probe and may outlive it; its memory is allocated and freed by the registry, never on
//! the hit path.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Resume};
use crate::context::Task;
use crate::counter::Counter;
use crate::error::RegisterError;
use crate::list::Linked;
use crate::point::Node;
use crate::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, AtomicUsize, Relaxed, Release};
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::num::NonZero;
use core::ptr::{self, NonNull};

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Life {
    /// In the pool, or being filled.
    Free = 0,
    /// Its stub stands for the return address of a call, which is in the program's own text.
    Pending = 1,
    /// Somebody is ending the call.
    Claimed = 2,
    /// It has returned in another task than its owner, whose list it is still on.
    Returned = 3,
    /// Claimed, and its owner has exited meanwhile: it is on no list.
    Orphan = 4,
    /// As [`Life::Pending`], where the return address is another call's stub.
    PendingChain = 5,
}

/// One followed call.
pub(crate) struct Instance<A: Arch> {
    /// What the call returns to.
    pub(crate) stub: CodeAddr,
    pool: *const Pool<A>,
    pub(crate) data: *mut u8,
    /// The return address that the stub stands for.
    real: AtomicUsize,
    /// Where the call ends up, in the stub's chunk: what `real` is, unless that is a stub too.
    home: *const AtomicUsize,
    frame: AtomicUsize,
    pub(crate) task: AtomicPtr<Task<A>>,
    /// The next older pending return of the task.
    pub(crate) next: AtomicPtr<Instance<A>>,
    /// Its bit in the pool's map of free ones, and the word of the map.
    bit: usize,
    word: *const AtomicUsize,
    /// How many calls it has followed.
    pub(crate) calls: Counter,
    /// A [`Life`]; a word, which every processor can exchange by itself.
    life: AtomicU32,
}

// SAFETY: all that changes is atomic, but for `data`, which belongs to whoever has taken the instance.
unsafe impl<A: Arch> Sync for Instance<A> {}
// SAFETY: as above; private data is moved between contexts only as D: the registry asks for no more than that the
// handlers are Send + Sync, and a call returns in the task that entered it.
unsafe impl<A: Arch> Send for Instance<A> {}

impl<A: Arch> Instance<A> {
    pub(crate) fn pool(&self) -> &Pool<A> {
        // SAFETY: a pool is freed with its instances.
        unsafe { &*self.pool }
    }

    pub(crate) fn real(&self) -> CodeAddr {
        CodeAddr::new(self.real.load(Relaxed))
    }

    pub(crate) fn frame(&self) -> usize {
        self.frame.load(Relaxed)
    }

    pub(crate) fn is_pending(&self) -> bool {
        let life = self.life.load(Acquire);
        life == Life::Pending as u32 || life == Life::PendingChain as u32
    }

    /// Binds it to a call that ends up at `home`; from here on the stub may be returned to.
    #[inline(always)]
    pub(crate) fn bind(&self, real: CodeAddr, home: CodeAddr, frame: usize, task: *const Task<A>) {
        self.real.store(real.as_usize(), Relaxed);
        // SAFETY: `Pool::new`'s caller has said that the word stays as long as the pool.
        unsafe { &*self.home }.store(home.as_usize(), Relaxed);
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        let life = if home == real { Life::Pending } else { Life::PendingChain };
        self.life.store(life as u32, Release);
    }

    /// Begins to end the call: whoever gets `true` has the data.
    pub(crate) fn claim(&self) -> bool {
        self.claim_from(Life::Pending) || self.claim_from(Life::PendingChain)
    }

    #[inline(always)]
    fn claim_from(&self, from: Life) -> bool {
        // Acquire: what `bind` wrote before. Nothing has been done yet that anybody would have to see.
        self.life.compare_exchange(from as u32, Life::Claimed as u32, Acquire, Relaxed).is_ok()
    }

    /// As [`Instance::claim`], if the call returns to the program's own text.
    #[inline(always)]
    pub(crate) fn claim_home(&self) -> bool {
        self.claim_from(Life::Pending)
    }

    /// Ends a claimed call that is on another task's list; `false`: that task is gone, release it.
    pub(crate) fn leave_to_owner(&self) -> bool {
        self.change(Life::Claimed, Life::Returned)
    }

    /// Whether the call has returned in another task, and waits for its owner to release it.
    pub(crate) fn has_returned(&self) -> bool {
        self.life.load(Acquire) == Life::Returned as u32
    }

    /// The owner exits while another task ends the call; `false`: that has been done meanwhile, release it.
    pub(crate) fn disown(&self) -> bool {
        self.change(Life::Claimed, Life::Orphan)
    }

    fn change(&self, from: Life, to: Life) -> bool {
        self.life.compare_exchange(from as u32, to as u32, AcqRel, Acquire).is_ok()
    }

    /// Takes a call back that the entry handler does not want.
    #[inline(never)]
    pub(crate) fn veto(&self) {
        self.pool().vetoed.rise();
        self.release();
    }

    /// Takes a call back whose return address could not be replaced.
    #[cold]
    #[inline(never)]
    pub(crate) fn drop_unreturned(&self) {
        self.pool().miss();
        if self.claim() {
            // SAFETY: claimed, and nobody has taken the data.
            unsafe { self.drop_data() };
            self.release();
        }
    }

    /// Drops the private data of a claimed call whose exit handler does not run.
    ///
    /// # Safety
    /// The caller has claimed the call, and nobody has taken the data.
    pub(crate) unsafe fn drop_data(&self) {
        // SAFETY: the caller's.
        unsafe { (self.pool().drop_data)(self.data) }
    }

    /// Gives it back to its pool; it is on no task's list.
    #[inline(always)]
    pub(crate) fn release(&self) {
        self.life.store(Life::Free as u32, Relaxed);
        // SAFETY: a word of the pool, which is not freed before this has come back.
        let map = unsafe { &*self.word };
        // The last that is done with the pool: the registry frees it when all have come back. Release: all that was done
        // with the instance, before it is taken again or the pool is freed.
        map.fetch_or(self.bit, Release);
    }
}

/// The most instances that a pool can have.
pub(crate) const MAX_INSTANCES: usize = (1 << 20) - 1;

/// How many instances one word of a free map tells of.
const WORD: usize = usize::BITS as usize;

/// Takes the lowest bit that is set in `word`; its number. `None`: no bit is set.
fn take_lowest(word: &AtomicUsize) -> Option<usize> {
    loop {
        if let Some(number) = try_take_lowest(word)? {
            return Some(number);
        }
    }
}

/// As [`take_lowest`]; `Some(None)` where another context was faster.
#[inline(always)]
fn try_take_lowest(word: &AtomicUsize) -> Option<Option<usize>> {
    let number = NonZero::new(word.load(Relaxed))?.trailing_zeros();
    let bit = 1 << number;
    // Acquire: what was last done with the instance has been done before. Nothing is handed over by taking it: what
    // is written to it is published by its `life`.
    let is_ours = word.fetch_and(!bit, Acquire) & bit != 0;
    Some(is_ours.then_some(number as usize))
}

/// The instances of one return probe, and the counters that go with them.
pub(crate) struct Pool<A: Arch> {
    /// The probe; null once it is unregistered.
    pub(crate) node: AtomicPtr<Node<A>>,
    instances: Box<[Instance<A>]>,
    /// The free ones among the first, a bit each.
    free: AtomicUsize,
    /// The free ones among the others.
    more_free: Box<[AtomicUsize]>,
    drop_data: unsafe fn(*mut u8),
    data: NonNull<u8>,
    data_layout: Layout,
    pub(crate) missed: Counter,
    pub(crate) vetoed: Counter,
    pub(crate) abandoned: Counter,
    /// Among those whose probe has gone.
    link: AtomicPtr<Pool<A>>,
}

impl<A: Arch> Linked for Pool<A> {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

// SAFETY: the data memory is reached only through instances.
unsafe impl<A: Arch> Sync for Pool<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Send for Pool<A> {}

impl<A: Arch> Pool<A> {
    /// A pool with one instance per stub; each comes with the word that tells where its call ends up.
    ///
    /// # Errors
    /// No memory, or data of more than [`MAX_DATA_LEN`](crate::MAX_DATA_LEN) bytes.
    ///
    /// # Safety
    /// The words stay valid as long as the pool.
    pub(crate) unsafe fn new(
        stubs: &[(CodeAddr, *const AtomicUsize)],
        layout: Layout,
        drop_data: unsafe fn(*mut u8),
    ) -> Result<NonNull<Self>, RegisterError> {
        let each = layout.pad_to_align();
        let all = each.size().checked_mul(stubs.len()).ok_or(RegisterError::NoMemory)?;
        let data_layout = Layout::from_size_align(all, each.align()).map_err(|_| RegisterError::NoMemory)?;
        let mut instances = Vec::new();
        instances.try_reserve_exact(stubs.len()).map_err(|_| RegisterError::NoMemory)?;
        let data = match all {
            0 => NonNull::new(ptr::without_provenance_mut(each.align())),
            // SAFETY: the layout has a size.
            _ => NonNull::new(unsafe { alloc(data_layout) }),
        };
        let data = data.ok_or(RegisterError::NoMemory)?;
        for (number, (stub, home)) in stubs.iter().copied().enumerate() {
            instances.push(Instance {
                stub,
                home,
                pool: ptr::null(),
                data: data.as_ptr().wrapping_add(number.wrapping_mul(each.size())),
                real: AtomicUsize::new(0),
                frame: AtomicUsize::new(0),
                task: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
                bit: 1 << (number % WORD),
                word: ptr::null(),
                calls: Counter::new(),
                life: AtomicU32::new(Life::Free as u32),
            });
        }
        let words = stubs.len().div_ceil(WORD);
        let mut more_free = Vec::new();
        more_free.try_reserve_exact(words.saturating_sub(1)).map_err(|_| RegisterError::NoMemory)?;
        // One bit for each instance, none for those that are not there.
        let map = |word: usize| AtomicUsize::new(full_word(stubs.len().saturating_sub(word * WORD)));
        more_free.extend((1..words).map(map));
        let pool = Self {
            node: AtomicPtr::new(ptr::null_mut()),
            free: map(0),
            more_free: more_free.into_boxed_slice(),
            instances: instances.into_boxed_slice(),
            drop_data,
            data,
            data_layout,
            missed: Counter::new(),
            vetoed: Counter::new(),
            abandoned: Counter::new(),
            link: AtomicPtr::new(ptr::null_mut()),
        };
        let mut pool = crate::registry::leak(pool)?;
        let this = pool.as_ptr().cast_const();
        // SAFETY: nobody else has it yet.
        let shared = unsafe { pool.as_mut() };
        for (number, instance) in shared.instances.iter_mut().enumerate() {
            instance.pool = this;
            instance.word = match (number / WORD).checked_sub(1) {
                Some(word) => shared.more_free.get(word).map_or(ptr::null(), ptr::from_ref),
                None => &raw const shared.free,
            };
        }
        Ok(pool)
    }

    /// As [`Pool::take`], tried once and among the first only.
    #[inline(always)]
    pub(crate) fn try_take(&self) -> Option<&Instance<A>> {
        let number = try_take_lowest(&self.free)??;
        Some(self.numbered(number))
    }

    /// A free instance, the one with the lowest number. No lock, no allocation.
    #[inline(always)]
    pub(crate) fn take(&self) -> Option<&Instance<A>> {
        let Some(number) = take_lowest(&self.free) else { return self.take_more() };
        Some(self.numbered(number))
    }

    /// As [`Pool::take`], where none of the first is free.
    #[cold]
    #[inline(never)]
    fn take_more(&self) -> Option<&Instance<A>> {
        let mut words = self.more_free.iter().enumerate();
        let number = words.find_map(|(word, map)| Some(take_lowest(map)? + (word + 1) * WORD))?;
        Some(self.numbered(number))
    }

    #[inline(always)]
    fn numbered(&self, number: usize) -> &Instance<A> {
        // SAFETY: the maps have bits for numbers of instances only.
        unsafe { self.instances.get_unchecked(number) }
    }

    /// Whether every instance has come back for good. Only true where nobody takes one any more.
    pub(crate) fn is_whole(&self) -> bool {
        // Acquire: what was done with an instance that has come back has been done before.
        let free = |map: &AtomicUsize| map.load(Acquire).count_ones() as usize;
        free(&self.free) + self.more_free.iter().map(free).sum::<usize>() == self.instances.len()
    }

    /// How many calls have been followed, and the most at the same time. The lowest free instance always is taken, so
    /// number 5 has followed a call only if 0 to 4 were in use.
    pub(crate) fn calls(&self) -> (u64, u32) {
        let calls = self.instances.iter().map(|instance| instance.calls.get()).enumerate();
        calls.fold((0, 0), |(all, most), (number, calls)| {
            (all + calls, if calls == 0 { most } else { number as u32 + 1 })
        })
    }

    /// Counts a call that could not be followed, whose registers are as they were.
    #[cold]
    pub(crate) fn miss(&self) -> Resume {
        self.missed.rise();
        Resume::Unchanged
    }

    /// All instances.
    pub(crate) fn instances(&self) -> &[Instance<A>] {
        &self.instances
    }
}

/// A word with a bit set for each of the first `instances` of those it tells of.
const fn full_word(instances: usize) -> usize {
    if instances >= WORD { usize::MAX } else { (1 << instances) - 1 }
}

impl<A: Arch> Drop for Pool<A> {
    fn drop(&mut self) {
        if self.data_layout.size() != 0 {
            // SAFETY: allocated with this layout; the private data in it has been taken or dropped with its call.
            unsafe { dealloc(self.data.as_ptr(), self.data_layout) };
        }
    }
}
