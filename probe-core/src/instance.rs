//! Return instances: one followed call each, with its own return stub; and their pools.
//!
//! The only interface to the rest is [`Pool::take`], [`Instance::release`] and what is written on them. A pool
//! belongs to one return probe and may outlive it; its memory is allocated and freed by the registry, never on
//! the hit path.
//!
//! An atomic exchange waits for all stores before it: a quarter of a return probe's whole time. So the first context that follows a
//! call owns an instance, its pool's *own* one, and takes it by a store. When a second context comes, nobody owns anything any more:
//! each takes the instance again that it had last ([`LANES`]), and whether one of the first [`HOMES`] is free is told by its own
//! `life`, so that contexts which follow calls at the same time write to no memory in common. The others' are told by a map.
//!
//! The own instance stands for number 0 until it has come back for the last time: a pool has one more than it lets be in use. Only
//! where a second context comes at the very moment in which the first one takes it may there be a call more than that, for the moment. A pool
//! of one instance, of which somebody might think that it keeps contexts apart, has no owner.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Resume};
use crate::context::{Context, Task};
use crate::counter::Counter;
use crate::error::RegisterError;
use crate::kretprobe::Ending;
use crate::list::Linked;
use crate::point::Node;
use crate::sync::{AcqRel, Acquire, AtomicPtr, AtomicU32, AtomicUsize, Relaxed, Release, follow};
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::mem::offset_of;
use core::num::NonZero;
use core::ptr::{self, NonNull};

/// Where an instance is in its life: the lowest bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Life {
    /// In the pool.
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
    /// Being filled.
    Taken = 6,
}

/// The bits of a [`Life`].
const LIFE: u32 = 7;
/// Set in the word of an instance that a pool's map tells of.
const MAPPED: u32 = 8;
/// The bits from this one on count how often it has been taken.
const TURN_ONE: u32 = 16;

/// Whether the word of an instance says that its stub may be returned to.
fn says_pending(life: u32) -> bool {
    life & LIFE == Life::Pending as u32 || life & LIFE == Life::PendingChain as u32
}

/// Who takes an instance by a store: the address of the only context that has taken any of its pool, 0 before the first, or [`SHARED`];
/// and [`SILENT`], so that the owner asks for both at once.
pub(crate) struct Owner(AtomicUsize);

/// The owner of nothing.
pub(crate) static NOBODYS: Owner = Owner(AtomicUsize::new(SHARED));

/// No address of a context has this bit: the probe is silent.
const SILENT: usize = 1;
/// Nor this: more than one context takes instances.
const SHARED: usize = 2;

impl Owner {
    /// Whether it is that context's, and its probe is not silent.
    #[inline(always)]
    pub(crate) fn is_open_to<A: Arch>(&self, context: &Context<A>) -> bool {
        self.0.load(Relaxed) == context.address()
    }

    /// Whether it is that context's.
    #[inline(always)]
    fn is<A: Arch>(&self, context: &Context<A>) -> bool {
        self.0.load(Relaxed) & !SILENT == context.address()
    }

    /// Makes it that context's, if it was nobody's yet; whether it was. Another context's is shared from here on.
    fn claim<A: Arch>(&self, context: &Context<A>) -> bool {
        loop {
            let owner = self.0.load(Relaxed);
            let wanted = match owner & !SILENT {
                0 => context.address(),
                SHARED => return false,
                other if other == context.address() => return false,
                _ => SHARED,
            };
            if self.0.compare_exchange(owner, wanted | owner & SILENT, Relaxed, Relaxed).is_ok() {
                return wanted != SHARED;
            }
        }
    }
}

/// One followed call. In cache lines of its own: who follows one call does not wait for who follows another.
#[repr(C, align(64))]
pub(crate) struct Instance<A: Arch> {
    /// Of its pool's own one, whose that is; first: who has the owner has the instance ([`Instance::of_owner`]).
    owner: Owner,
    /// What the call returns to.
    pub(crate) stub: CodeAddr,
    pool: *const Pool<A>,
    pub(crate) data: *mut u8,
    /// The return address that the stub stands for.
    real: AtomicUsize,
    /// Where the call ends up, in the stub's chunk: what `real` is, unless that is a stub too.
    home: *const AtomicUsize,
    /// The next older pending return of the task.
    pub(crate) next: AtomicPtr<Instance<A>>,
    frame: AtomicUsize,
    pub(crate) task: AtomicPtr<Task<A>>,
    /// How many calls it has followed.
    pub(crate) calls: Counter,
    /// A [`Life`], [`MAPPED`], and turns; a word, which every processor can exchange by itself.
    life: AtomicU32,
    number: u32,
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
        says_pending(self.life.load(Acquire))
    }

    /// Binds it to a call that ends up at `home`; from here on the stub may be returned to.
    #[inline(always)]
    pub(crate) fn bind(&self, real: CodeAddr, home: CodeAddr, frame: usize, task: *const Task<A>) {
        self.real.store(real.as_usize(), Relaxed);
        // SAFETY: `Pool::new`'s caller has said that the word stays as long as the pool.
        let shown = unsafe { &*self.home };
        // It lies beside other calls', and most often calls come from where the last one came from.
        if shown.load(Relaxed) != home.as_usize() {
            shown.store(home.as_usize(), Relaxed);
        }
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        let life = if home == real { Life::Pending } else { Life::PendingChain };
        // It is `Taken`, and nobody else changes it before this.
        let step = (life as u32).wrapping_sub(Life::Taken as u32);
        self.life.store(self.life.load(Relaxed).wrapping_add(step), Release);
    }

    /// As [`Instance::bind`], of the owner's own one, which is free; `life` is from [`Instance::free_life`].
    #[inline(always)]
    pub(crate) fn bind_own(&self, life: u32, real: CodeAddr, frame: usize, task: *const Task<A>) {
        self.real.store(real.as_usize(), Relaxed);
        // SAFETY: as in `bind`. To ask what is there would be as much.
        unsafe { &*self.home }.store(real.as_usize(), Relaxed);
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        // Release: as in `Instance::take`.
        self.life.store(life.wrapping_add(TURN_ONE + Life::Pending as u32), Release);
    }

    /// Its word, if that says that it is free; of one that no map tells of.
    #[inline(always)]
    pub(crate) fn free_life(&self) -> Option<u32> {
        // Acquire: as in `Instance::take`.
        let life = self.life.load(Acquire);
        (life & LIFE == Life::Free as u32).then_some(life)
    }

    /// The pool's own instance that an owner belongs to, where that is a pool's.
    #[inline(always)]
    pub(crate) fn of_owner(owner: *const Owner) -> *const Self {
        const { assert!(offset_of!(Self, owner) == 0) };
        owner.cast()
    }

    /// Begins to end the call: whoever gets `true` has the data.
    pub(crate) fn claim(&self) -> bool {
        let life = self.life.load(Relaxed);
        let claimed = life & !LIFE | Life::Claimed as u32;
        // Acquire: what `bind` wrote before. Nothing has been done yet that anybody would have to see.
        says_pending(life) && self.life.compare_exchange(life, claimed, Acquire, Relaxed).is_ok()
    }

    /// As [`Instance::claim`], by the task itself whose newest pending return it is, and which has returned from the call just now:
    /// all others leave it alone meanwhile, so that no exchange is needed. Not where the return address is another call's stub, nor
    /// where a map tells of the instance.
    #[inline(always)]
    pub(crate) fn claim_newest(&self) -> bool {
        let is_pending = self.life.load(Relaxed) & (LIFE | MAPPED) == Life::Pending as u32;
        if is_pending {
            // Nobody else has changed it meanwhile; to add to it is one instruction.
            let step = Life::Claimed as u32 - Life::Pending as u32;
            self.life.store(self.life.load(Relaxed).wrapping_add(step), Relaxed);
        }
        is_pending
    }

    /// As [`Instance::release`], of what [`Instance::claim_newest`] has claimed.
    #[inline(always)]
    pub(crate) fn release_newest(&self) {
        // Release: as in `release`.
        self.life.store(self.life.load(Relaxed) & !LIFE, Release);
    }

    /// Ends a claimed call that is on another task's list; `false`: that task is gone, release it.
    pub(crate) fn leave_to_owner(&self) -> bool {
        self.change_claimed(Life::Returned)
    }

    /// Whether the call has returned in another task, and waits for its owner to release it.
    pub(crate) fn has_returned(&self) -> bool {
        self.life.load(Acquire) & LIFE == Life::Returned as u32
    }

    /// The owner exits while another task ends the call; `false`: that has been done meanwhile, release it.
    pub(crate) fn disown(&self) -> bool {
        self.change_claimed(Life::Orphan)
    }

    fn change_claimed(&self, to: Life) -> bool {
        let life = self.life.load(Acquire);
        let changed = life & !LIFE | to as u32;
        life & LIFE == Life::Claimed as u32
            && self.life.compare_exchange(life, changed, AcqRel, Acquire).is_ok()
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
        unsafe { (self.pool().dropping.drop_data)(self.data) }
    }

    /// Gives it back to its pool; it is on no task's list.
    #[inline(always)]
    pub(crate) fn release(&self) {
        let life = self.life.load(Relaxed) & !LIFE;
        // The last that is done with the pool: the registry frees it when all have come back. Release: all that was done
        // with the instance, before it is taken again or the pool is freed.
        if life & MAPPED == 0 { self.life.store(life, Release) } else { self.release_mapped(life) }
    }

    #[cold]
    #[inline(never)]
    fn release_mapped(&self, life: u32) {
        self.life.store(life, Relaxed);
        let (map, number) = (&self.pool().map, self.number as usize - HOMES);
        if let Some(word) = map.get(number / WORD) {
            // As in `release`.
            word.fetch_or(1 << (number % WORD), Release);
        }
    }

    /// Whether it has never followed a call.
    fn is_unused(&self) -> bool {
        self.calls.get() == 0
    }

    /// Takes it by a store, if it is free: the running context is its owner.
    #[inline(always)]
    fn take_own(&self) -> Option<&Self> {
        let life = self.free_life()?;
        // Release: as in `Instance::take`.
        self.life.store(life.wrapping_add(TURN_ONE + Life::Taken as u32), Release);
        Some(self)
    }

    /// Takes it, one of the first [`HOMES`], if its word is still `life`, which says that it is free.
    #[inline(always)]
    fn take(&self, life: u32) -> bool {
        let taken = life.wrapping_add(TURN_ONE + Life::Taken as u32);
        // Acquire: what was last done with the instance has been done before. Release: whoever sees it taken sees which ones the
        // context had given back before.
        self.life.compare_exchange(life, taken, AcqRel, Relaxed).is_ok()
    }
}

/// The most instances that a pool can have.
pub(crate) const MAX_INSTANCES: usize = (1 << 20) - 1;

/// How many instances tell by themselves whether they are free.
const HOMES: usize = 32;

/// How many contexts have instances that they take first; others share theirs.
const LANES: usize = 16;

/// How many instances one word of a map tells of.
const WORD: usize = usize::BITS as usize;

/// Takes the lowest bit that is set in `word`; its number. `None`: no bit is set.
fn take_lowest(word: &AtomicUsize) -> Option<usize> {
    loop {
        let number = NonZero::new(word.load(Relaxed))?.trailing_zeros();
        let bit = 1 << number;
        // Acquire: as in `Instance::take`.
        if word.fetch_and(!bit, Acquire) & bit != 0 {
            return Some(number as usize);
        }
    }
}

/// The instances of one return probe, and the counters that go with them.
pub(crate) struct Pool<A: Arch> {
    /// The probe; null once it is unregistered.
    pub(crate) node: AtomicPtr<Node<A>>,
    /// What is done with a call that returns: what the probe has for that, or `dropping` while it is silent.
    ending: AtomicPtr<Ending<A>>,
    dropping: Ending<A>,
    /// The owner's own one, and behind it those with numbers.
    instances: Box<[Instance<A>]>,
    /// The instances that contexts take first, each the one it had last; null at first.
    lanes: [AtomicPtr<Instance<A>>; LANES],
    /// The free ones behind the first [`HOMES`], a bit each.
    map: Box<[AtomicUsize]>,
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
    /// A pool that lets one call less than there are stubs be in flight; each stub comes with the word that tells where its call
    /// ends up.
    ///
    /// # Errors
    /// No memory, or data of more than [`MAX_DATA_LEN`](crate::MAX_DATA_LEN) bytes.
    ///
    /// # Safety
    /// The words stay valid as long as the pool, and there are two stubs at least.
    pub(crate) unsafe fn new(
        stubs: &[(CodeAddr, *const AtomicUsize)],
        layout: Layout,
        drop_data: unsafe fn(*mut u8),
    ) -> Result<NonNull<Self>, RegisterError> {
        // In cache lines of its own, as the instance.
        let each =
            layout.align_to(align_of::<Instance<A>>()).map_err(|_| RegisterError::NoMemory)?.pad_to_align();
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
        for (index, (stub, home)) in stubs.iter().copied().enumerate() {
            let number = index.saturating_sub(1);
            instances.push(Instance {
                owner: Owner(AtomicUsize::new(if index == 0 && stubs.len() > 2 { SILENT } else { SHARED })),
                stub,
                home,
                pool: ptr::null(),
                data: data.as_ptr().wrapping_add(index.wrapping_mul(each.size())),
                real: AtomicUsize::new(0),
                frame: AtomicUsize::new(0),
                task: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
                calls: Counter::new(),
                life: AtomicU32::new(if number < HOMES { 0 } else { MAPPED }),
                number: number as u32,
            });
        }
        let mapped = stubs.len().saturating_sub(1 + HOMES);
        let words = mapped.div_ceil(WORD);
        let mut map = Vec::new();
        map.try_reserve_exact(words).map_err(|_| RegisterError::NoMemory)?;
        // One bit for each instance, none for those that are not there.
        map.extend((0..words).map(|word| AtomicUsize::new(full_word(mapped - word * WORD))));
        let pool = Self {
            node: AtomicPtr::new(ptr::null_mut()),
            ending: AtomicPtr::new(ptr::null_mut()),
            dropping: Ending::dropping(drop_data),
            lanes: [const { AtomicPtr::new(ptr::null_mut()) }; LANES],
            map: map.into_boxed_slice(),
            instances: instances.into_boxed_slice(),
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
        shared.instances.iter_mut().for_each(|instance| instance.pool = this);
        shared.fall_silent();
        Ok(pool)
    }

    /// Whose the own instance is; [`Instance::of_owner`] leads back from there.
    pub(crate) fn owner(&self) -> *const Owner {
        // Not from the field, to which alone that would lead.
        ptr::from_ref(self.parts().0).cast()
    }

    /// The probe has become silent: calls are not followed by the owner's store, and those that return are dropped.
    pub(crate) fn fall_silent(&self) {
        self.parts().0.owner.0.fetch_or(SILENT, AcqRel);
        self.ending.store(ptr::from_ref(&self.dropping).cast_mut(), Release);
    }

    /// The probe is not silent any more, and has `ending` for calls that return.
    pub(crate) fn speak(&self, ending: &Ending<A>) {
        self.ending.store(ptr::from_ref(ending).cast_mut(), Release);
        self.parts().0.owner.0.fetch_and(!SILENT, AcqRel);
    }

    /// The probe has gone: its calls return by themselves.
    pub(crate) fn forget(&self) {
        self.node.store(ptr::null_mut(), Release);
        self.fall_silent();
    }

    /// What is done with a call that returns now.
    ///
    /// # Safety
    /// The caller is inside, and as long as it uses that.
    #[inline(always)]
    pub(crate) unsafe fn ending(&self) -> &Ending<A> {
        // SAFETY: the pool's own, or its probe's, which is freed after a grace period that began when the pool had forgotten it.
        unsafe { &*follow(&self.ending) }
    }

    /// Where the instance stands that this context had last.
    #[inline(always)]
    fn lane(&self, context: &Context<A>) -> &AtomicPtr<Instance<A>> {
        &self.lanes[context.number() % LANES]
    }

    /// The owner's instance, and those with numbers.
    #[inline(always)]
    fn parts(&self) -> (&Instance<A>, &[Instance<A>]) {
        let [own, numbered @ ..] = &*self.instances else {
            // SAFETY: `Pool::new` has made two at least.
            unsafe { core::hint::unreachable_unchecked() }
        };
        (own, numbered)
    }

    /// As [`Pool::take`], tried once: the own instance, or that which this context had last.
    #[inline(always)]
    pub(crate) fn try_take(&self, context: &Context<A>) -> Option<&Instance<A>> {
        let (own, _) = self.parts();
        if own.owner.is(context) {
            return own.take_own();
        }
        // SAFETY: null, or one of the pool's instances.
        let instance = unsafe { self.lane(context).load(Relaxed).as_ref() }?;
        let life = instance.life.load(Relaxed);
        (life & LIFE == Life::Free as u32 && instance.take(life)).then_some(instance)
    }

    /// A free instance. No lock, no allocation.
    #[inline(always)]
    pub(crate) fn take(&self, context: &Context<A>) -> Option<&Instance<A>> {
        self.try_take(context).or_else(|| self.take_other(context))
    }

    /// As [`Pool::take`], where neither the own instance nor the one that the context had last is free.
    #[inline(never)]
    fn take_other(&self, context: &Context<A>) -> Option<&Instance<A>> {
        let (own, _) = self.parts();
        if own.owner.claim(context) { own.take_own() } else { self.take_numbered(context) }
    }

    /// As [`Pool::take`], for one with a number.
    ///
    /// One that has never followed a call is taken only where all before it are in use at the same time, and that there is
    /// none is said only where all are: between two looks at which each was in use, for the same turn.
    fn take_numbered(&self, context: &Context<A>) -> Option<&Instance<A>> {
        let (own, numbered) = self.parts();
        let mut before = None;
        loop {
            let (mut turns, mut unused) = (0_u32, None);
            // Acquire: the next look comes behind this one.
            let owned = own.life.load(Acquire);
            turns = turns.wrapping_add(owned / TURN_ONE);
            let is_owned = owned & LIFE != Life::Free as u32;
            for instance in numbered.iter().take(HOMES).skip(usize::from(is_owned)) {
                // Acquire: as above.
                let life = instance.life.load(Acquire);
                if life & LIFE == Life::Free as u32 {
                    if instance.is_unused() {
                        unused = Some((instance, life));
                        break;
                    }
                    if instance.take(life) {
                        self.lane(context).store(ptr::from_ref(instance).cast_mut(), Relaxed);
                        return Some(instance);
                    }
                }
                turns = turns.wrapping_add(life / TURN_ONE);
            }
            if unused.is_none()
                && let Some(instance) = self.take_mapped()
            {
                return Some(instance);
            }
            if before.replace(turns) == Some(turns) {
                match unused {
                    // Until it has followed a call, no context takes it first.
                    Some((instance, life)) if instance.take(life) => return Some(instance),
                    Some(_) => {}
                    None => return None,
                }
            }
        }
    }

    /// A free instance behind the first [`HOMES`], the one with the lowest number.
    fn take_mapped(&self) -> Option<&Instance<A>> {
        let mut words = self.map.iter().enumerate();
        let number = words.find_map(|(word, map)| Some(take_lowest(map)? + word * WORD))?;
        let instance = self.instances.get(1 + HOMES + number)?;
        instance.life.store(MAPPED | Life::Taken as u32, Relaxed);
        Some(instance)
    }

    /// Whether every instance has come back for good. Only true where nobody takes one any more.
    pub(crate) fn is_whole(&self) -> bool {
        // Acquire: what was done with an instance that has come back has been done before.
        let mapped = self.map.iter().map(|word| word.load(Acquire).count_ones() as usize).sum::<usize>();
        let is_free = |instance: &&Instance<A>| instance.life.load(Acquire) & LIFE == Life::Free as u32;
        mapped + self.instances.iter().take(1 + HOMES).filter(is_free).count() == self.instances.len()
    }

    /// How many calls have been followed, and the most at the same time: instance number 5 is taken for the first time
    /// only if 0 to 4 are in use.
    pub(crate) fn calls(&self) -> (u64, u32) {
        self.instances.iter().fold((0, 0), |(all, most), instance| {
            let calls = instance.calls.get();
            (all + calls, if calls == 0 { most } else { most.max(instance.number + 1) })
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
