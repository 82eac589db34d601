//! The pools that return instances are taken from and released to.
//!
//! A pool belongs to one return probe and may outlive it. The registry allocates and frees its memory, never
//! the hit path. A pool grows the same way: it is a chain of [`Batch`]es, each published when it is complete.
//!
//! The first context that follows a call becomes the owner of one instance, the pool's *own* one, and takes
//! it by a plain store ([`FirstOwner`]). The second context ends that. From then on each context first tries
//! the instance that it had last ([`LANES`]). The `life` of each of the first [`HOMES`] instances says
//! whether it is free, so contexts that follow calls at the same time write to no shared memory; the other
//! instances have a bit in a map.
//!
//! The own instance counts as number 0 until it is released for the last time, so a pool has one instance
//! more than may be in use. One call exceeds the limit if the second context comes at the very moment at
//! which the owner takes its instance. A pool of one has no owner: its user may rely on it to admit one
//! context at a time.

use crate::addr::CodeAddr;
use crate::arch::{Arch, SaveSet};
use crate::error::NoMemory;
use crate::list::Linked;
use crate::room::{free, leak};
use crate::state::ends::Ends;
use crate::state::handler::Ending;
use crate::state::instance::{Instance, Parts};
use crate::state::owner::{FirstOwner, Identity, Ownership};
use crate::sync::{Acquire, AtomicBool, AtomicPtr, AtomicUsize, Relaxed, Release};
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::mem::offset_of;
use core::num::NonZero;
use core::ptr::{self, NonNull};

/// The most calls of one return probe that can be followed at the same time: a larger number means this one
/// (RET_3).
pub const MAX_ACTIVE: usize = (1 << 20) - 1;

/// The number of instances whose own word says whether they are free.
const HOMES: usize = 32;

/// The number of contexts with an instance that they try first; other contexts share theirs.
const LANES: usize = 16;

/// The number of instances that one word of a map covers.
const WORD: usize = usize::BITS as usize;

/// Stubs, each with the word for the home of the call that it is handed out for.
pub(crate) type Stubs = Vec<(CodeAddr, *const AtomicUsize)>;

/// Clears the lowest bit that is set in `word` and returns its number. `None` if no bit is set.
fn take_lowest(word: &AtomicUsize) -> Option<usize> {
    loop {
        let number = NonZero::new(word.load(Relaxed))?.trailing_zeros();
        let bit = 1 << number;
        // Acquire: as in `LifeWord::take`.
        if word.fetch_and(!bit, Acquire) & bit != 0 {
            return Some(number as usize);
        }
    }
}

/// A word with a bit set for each of the first `instances` that it covers.
const fn full_word(instances: usize) -> usize {
    if instances >= WORD { usize::MAX } else { (1 << instances) - 1 }
}

/// Instances that have been made together, and the memory of their calls' data.
pub(crate) struct Batch<A: Arch> {
    instances: Box<[Instance<A>]>,
    /// How many of them, from the first one on, are in no map.
    unmapped: usize,
    /// The free ones among the others, a bit each. No box: instances know their words, too.
    map: NonNull<[AtomicUsize]>,
    data: NonNull<u8>,
    data_layout: Layout,
    /// The one that was made next.
    next: AtomicPtr<Batch<A>>,
}

impl<A: Arch> Batch<A> {
    /// An instance for each stub. With `first`, one is the pool's own and the next [`HOMES`] are in no map;
    /// otherwise they are numbered from `number` on.
    fn new(stubs: &Stubs, each: Layout, first: Option<FirstOwner>, number: usize) -> Result<Self, NoMemory> {
        let no_memory = |_| NoMemory;
        let all = each.size().checked_mul(stubs.len()).ok_or(NoMemory)?;
        let data_layout = Layout::from_size_align(all, each.align()).map_err(|_| NoMemory)?;
        let unmapped = if first.is_some() { stubs.len().min(1 + HOMES) } else { 0 };
        let own = usize::from(first.is_some());
        let mapped = stubs.len() - unmapped;
        let words = mapped.div_ceil(WORD);
        let mut map = Vec::new();
        map.try_reserve_exact(words).map_err(no_memory)?;
        // One bit for each instance, none for those that are not there.
        map.extend((0..words).map(|word| AtomicUsize::new(full_word(mapped - word * WORD))));
        let mut instances = Vec::new();
        instances.try_reserve_exact(stubs.len()).map_err(no_memory)?;
        let data = match all {
            0 => NonNull::new(ptr::without_provenance_mut(each.align())),
            // SAFETY: the layout has a size.
            _ => NonNull::new(unsafe { alloc(data_layout) }),
        };
        let data = data.ok_or(NoMemory)?;
        let map_memory = NonNull::from(Box::leak(map.into_boxed_slice()));
        // SAFETY: leaked just now.
        let map = unsafe { map_memory.as_ref() };
        let mut owner = first;
        for (index, (stub, home)) in stubs.iter().copied().enumerate() {
            let bit = index.checked_sub(unmapped);
            instances.push(Instance::new(Parts {
                owner: owner.take().unwrap_or(FirstOwner::shared()),
                stub,
                home,
                data: data.as_ptr().wrapping_add(index.wrapping_mul(each.size())),
                number: (number + index.saturating_sub(own)) as u32,
                map: bit.and_then(|bit| Some((ptr::from_ref(map.get(bit / WORD)?), (bit % WORD) as u8))),
            }));
        }
        let next = AtomicPtr::new(ptr::null_mut());
        Ok(Self {
            instances: instances.into_boxed_slice(),
            unmapped,
            map: map_memory,
            data,
            data_layout,
            next,
        })
    }

    /// All of them.
    pub(crate) fn instances(&self) -> &[Instance<A>] {
        &self.instances
    }

    /// The map: the free ones of the instances behind the unmapped ones.
    fn map(&self) -> &[AtomicUsize] {
        // SAFETY: leaked by `new`, freed by `drop`.
        unsafe { self.map.as_ref() }
    }

    /// Takes the free instance with the lowest number in the map.
    fn take_mapped(&self) -> Option<&Instance<A>> {
        let mut words = self.map().iter().enumerate();
        let bit = words.find_map(|(word, map)| Some(take_lowest(map)? + word * WORD))?;
        let instance = self.instances.get(self.unmapped + bit)?;
        instance.life.take_mapped();
        Some(instance)
    }
}

impl<A: Arch> Drop for Batch<A> {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`; the instances that know it go with it.
        drop(unsafe { Box::from_raw(self.map.as_ptr()) });
        if self.data_layout.size() != 0 {
            // SAFETY: allocated with this layout; the private data in it has been taken or dropped with its
            // call.
            unsafe { dealloc(self.data.as_ptr(), self.data_layout) };
        }
    }
}

/// What a pool is to be like.
pub(crate) struct Plan {
    /// Up to how many calls it may grow.
    pub(crate) most: usize,
    /// What its stubs' trampoline saves.
    pub(crate) save: SaveSet,
    /// The private data of a call.
    pub(crate) layout: Layout,
    /// Drops that.
    pub(crate) drop_data: unsafe fn(*mut u8),
    /// Raised when it should grow.
    pub(crate) alarm: &'static AtomicBool,
}

/// How large a pool is, and may become.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// How many calls can be followed at the same time now.
    pub(crate) calls: usize,
    /// Up to how many it may grow.
    pub(crate) most: usize,
}

/// The instances of one return probe, and the counters that go with them.
#[repr(C)]
pub(crate) struct Pool<A: Arch> {
    /// How its calls end. First: an instance that knows its pool's ends knows its pool ([`Pool::of`]).
    pub(crate) ends: Ends<A>,
    /// The owner's instance, and behind it those with numbers.
    first: Batch<A>,
    /// The instances that contexts take first, each the one it had last; null at first.
    lanes: [AtomicPtr<Instance<A>>; LANES],
    /// The layout of one call's data, in cache lines of its own.
    each: Layout,
    /// What its stubs' trampoline saves.
    pub(crate) save: SaveSet,
    /// How many calls can be followed at the same time; changed under the registry's lock.
    calls: AtomicUsize,
    /// Up to how many that may grow.
    most: usize,
    /// Whether it should grow.
    is_low: AtomicBool,
    /// Raised when the pool should grow, for the code that makes pools grow.
    alarm: &'static AtomicBool,
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
    /// A pool that lets one call less than there are stubs be in flight.
    ///
    /// # Errors
    /// No memory, or data of more than [`MAX_DATA_LEN`](crate::limits::MAX_DATA_LEN) bytes.
    ///
    /// # Safety
    /// The stubs' words stay valid as long as the pool, and there are two stubs at least.
    pub(crate) unsafe fn new(stubs: &Stubs, plan: Plan) -> Result<NonNull<Self>, NoMemory> {
        let Plan { most, save, layout, drop_data, alarm } = plan;
        // In cache lines of its own, as the instance.
        let each = layout.align_to(align_of::<Instance<A>>()).map_err(|_| NoMemory)?.pad_to_align();
        let owner = if stubs.len() > 2 { FirstOwner::nobody(true) } else { FirstOwner::shared() };
        let pool = Self {
            ends: Ends::new(drop_data),
            first: Batch::new(stubs, each, Some(owner), 0)?,
            lanes: [const { AtomicPtr::new(ptr::null_mut()) }; LANES],
            each,
            save,
            calls: AtomicUsize::new(stubs.len().saturating_sub(1)),
            most,
            is_low: AtomicBool::new(false),
            alarm,
            link: AtomicPtr::new(ptr::null_mut()),
        };
        let mut pool = leak(pool)?;
        // Of all of it, not of the field: `Pool::of` leads back from there.
        let ends = pool.as_ptr().cast_const().cast();
        // SAFETY: nobody else has it yet.
        let shared = unsafe { pool.as_mut() };
        shared.first.instances.iter_mut().for_each(|instance| instance.belong_to(ends));
        shared.fall_silent();
        Ok(pool)
    }

    /// The pool that an instance belongs to.
    #[inline(always)]
    pub(crate) fn of(instance: &Instance<A>) -> &Self {
        const { assert!(offset_of!(Self, ends) == 0) };
        // SAFETY: `new` and `batch` have given the instance its pool's address, which outlives it.
        unsafe { &*instance.ends_address().cast::<Self>() }
    }

    // ---- the probe ----------------------------------------------------------------------------------------

    /// The owner of the own instance; [`Instance::of_owner`] leads back from there.
    pub(crate) fn owner(&self) -> *const FirstOwner {
        // Not from the field, to which alone that would lead.
        ptr::from_ref(self.parts().0).cast()
    }

    /// The probe has become silent: the owner's store follows no call any more, and calls that return are
    /// dropped.
    pub(crate) fn fall_silent(&self) {
        self.parts().0.owner.silence();
        self.ends.fall_silent();
    }

    /// The probe is not silent any more, and has `ending` for calls that return.
    pub(crate) fn speak(&self, ending: &Ending<A>) {
        self.ends.speak(ending);
        self.parts().0.owner.speak();
    }

    /// The probe has gone: its calls return by themselves.
    pub(crate) fn forget(&self) {
        // SAFETY: no probe is left here.
        unsafe { self.ends.probe.set(None) };
        self.fall_silent();
    }

    // ---- taking -------------------------------------------------------------------------------------------

    /// The place that holds the instance which this context had last.
    #[inline(always)]
    fn lane(&self, context: &impl Identity) -> &AtomicPtr<Instance<A>> {
        &self.lanes[context.number() % LANES]
    }

    /// The owner's instance, and those of the first batch with numbers.
    #[inline(always)]
    fn parts(&self) -> (&Instance<A>, &[Instance<A>]) {
        let [own, numbered @ ..] = &*self.first.instances else {
            // SAFETY: `Pool::new` has made two at least.
            unsafe { core::hint::unreachable_unchecked() }
        };
        (own, numbered)
    }

    /// As [`Pool::take`], tried once: the own instance, or that which this context had last.
    #[inline(always)]
    pub(crate) fn try_take(&self, context: &impl Identity) -> Option<&Instance<A>> {
        let (own, _) = self.parts();
        if own.owner.is(context) {
            return own.life.take_own().then_some(own);
        }
        // SAFETY: null, or one of the pool's instances.
        let instance = unsafe { self.lane(context).load(Relaxed).as_ref() }?;
        let seen = instance.life.glance();
        (seen.is_free() && instance.life.take(seen)).then_some(instance)
    }

    /// A free instance. No lock, no allocation.
    #[inline(always)]
    pub(crate) fn take(&self, context: &impl Identity) -> Option<&Instance<A>> {
        self.try_take(context).or_else(|| self.take_other(context))
    }

    /// As [`Pool::take`], where neither the own instance nor the one that the context had last is free.
    #[inline(never)]
    fn take_other(&self, context: &impl Identity) -> Option<&Instance<A>> {
        let (own, _) = self.parts();
        let taken = match own.owner.claim(context) {
            Ownership::Won => own.life.take_own().then_some(own),
            Ownership::Owned | Ownership::Shared => self.take_numbered(context),
        };
        let calls = self.calls.load(Relaxed);
        // Half of them have been in use at the same time.
        if calls < self.most && taken.is_none_or(|instance| instance.number as usize >= calls / 2) {
            self.is_low.store(true, Relaxed);
            self.alarm.store(true, Relaxed);
        }
        taken
    }

    /// As [`Pool::take`], for an instance with a number.
    ///
    /// One that has never followed a call is taken only if all before it are in use at the same time, and
    /// "none is free" is answered only if all are: each was in use at both of two looks, for the same turn.
    fn take_numbered(&self, context: &impl Identity) -> Option<&Instance<A>> {
        let (own, numbered) = self.parts();
        let mut before = None;
        loop {
            let (mut turns, mut unused) = (0_u32, None);
            let owned = own.life.look();
            turns = turns.wrapping_add(owned.turns());
            let is_owned = !owned.is_free();
            for instance in numbered.iter().take(HOMES).skip(usize::from(is_owned)) {
                let seen = instance.life.look();
                if seen.is_free() {
                    if instance.is_unused() {
                        unused = Some((instance, seen));
                        break;
                    }
                    if instance.life.take(seen) {
                        self.lane(context).store(ptr::from_ref(instance).cast_mut(), Relaxed);
                        return Some(instance);
                    }
                }
                turns = turns.wrapping_add(seen.turns());
            }
            if unused.is_none()
                && let Some(instance) = self.batches().find_map(Batch::take_mapped)
            {
                return Some(instance);
            }
            if before.replace(turns) == Some(turns) {
                match unused {
                    // Until it has followed a call, no context takes it first.
                    Some((instance, seen)) if instance.life.take(seen) => return Some(instance),
                    Some(_) => {}
                    None => return self.instances().find(|instance| instance.life.take_given_up()),
                }
            }
        }
    }

    // ---- growing ------------------------------------------------------------------------------------------

    /// How large it is.
    pub(crate) fn size(&self) -> Size {
        Size { calls: self.calls.load(Relaxed), most: self.most }
    }

    /// Whether it has said since the last call that it should grow.
    pub(crate) fn was_low(&self) -> bool {
        self.is_low.swap(false, Relaxed)
    }

    /// More instances, one for each stub, for [`Pool::add`].
    ///
    /// # Errors
    /// No memory.
    ///
    /// # Safety
    /// The stubs' words stay valid as long as the pool.
    pub(crate) unsafe fn batch(&self, stubs: &Stubs) -> Result<NonNull<Batch<A>>, NoMemory> {
        let mut batch = Batch::new(stubs, self.each, None, self.calls.load(Relaxed))?;
        batch.instances.iter_mut().for_each(|instance| instance.belong_to(ptr::from_ref(self).cast()));
        leak(batch)
    }

    /// Lets what [`Pool::batch`] has made be taken. Under the registry's lock.
    pub(crate) fn add(&self, batch: NonNull<Batch<A>>) {
        let last = self.batches().last().unwrap_or(&self.first);
        // SAFETY: made by `batch`, and this pool's from here on.
        let added = unsafe { batch.as_ref() }.instances.len();
        // Release: a context that finds it finds it whole.
        last.next.store(batch.as_ptr(), Release);
        self.calls.store(self.calls.load(Relaxed) + added, Relaxed);
    }

    /// All batches, in the order in which they were made.
    fn batches(&self) -> impl Iterator<Item = &Batch<A>> {
        core::iter::successors(Some(&self.first), |batch| {
            // SAFETY: null, or one that `add` was given; freed with the pool.
            unsafe { batch.next.load(Acquire).as_ref() }
        })
    }

    // ---- looking ------------------------------------------------------------------------------------------

    /// Whether no call is followed any more: every instance has come back or was given up. Reliable only when
    /// no context takes one any more.
    pub(crate) fn is_over(&self) -> bool {
        // Acquire: what was done with an instance that has come back has been done before.
        self.batches().all(|batch| {
            let mapped =
                batch.map().iter().map(|word| word.load(Acquire).count_ones() as usize).sum::<usize>();
            // The map is read first: one that comes back meanwhile is in neither count, not in both.
            let is_over = |instance: &&Instance<A>| {
                let life = &instance.life;
                life.is_given_up() || (!life.is_mapped() && life.look().is_free())
            };
            mapped + batch.instances.iter().filter(is_over).count() == batch.instances.len()
        })
    }

    /// The number of followed calls, and the most at the same time: instance number 5 is taken for the first
    /// time only if 0 to 4 are in use, or given up.
    pub(crate) fn calls(&self) -> (u64, u32) {
        self.instances().fold((0, 0), |(all, most), instance| {
            let calls = instance.calls.get();
            (all + calls, if calls == 0 { most } else { most.max(instance.number + 1) })
        })
    }

    /// The number of instances whose calls were given up and that have not been taken since.
    pub(crate) fn given_up(&self) -> usize {
        self.instances().filter(|instance| instance.life.is_given_up()).count()
    }

    /// All instances.
    pub(crate) fn instances(&self) -> impl Iterator<Item = &Instance<A>> {
        self.batches().flat_map(|batch| batch.instances.iter())
    }
}

impl<A: Arch> Drop for Pool<A> {
    fn drop(&mut self) {
        let mut next = self.first.next.load(Relaxed);
        while let Some(batch) = NonNull::new(next) {
            // SAFETY: leaked by `batch`, and in this chain alone.
            let batch = unsafe { free(batch) };
            next = batch.next.load(Relaxed);
        }
    }
}
