//! Return instances: one followed call each, with its own return stub; and their pools.
//!
//! The only interface to the rest is [`Pool::take`], [`Instance::release`] and what is written on them. A pool
//! belongs to one return probe and may outlive it; its memory is allocated and freed by the registry, never on
//! the hit path.

use crate::addr::CodeAddr;
use crate::arch::Arch;
use crate::context::Task;
use crate::error::RegisterError;
use crate::point::Node;
use crate::sync::{
    AcqRel, Acquire, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Relaxed, Release,
};
use alloc::alloc::{alloc, dealloc};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Life {
    /// In the pool, or being filled.
    Free = 0,
    /// Its stub stands for the return address of a call.
    Pending = 1,
    /// Somebody is ending the call.
    Claimed = 2,
    /// It has returned in another task than its owner, whose list it is still on.
    Returned = 3,
    /// Claimed, and its owner has exited meanwhile: it is on no list.
    Orphan = 4,
}

/// One followed call.
pub(crate) struct Instance<A: Arch> {
    /// What the call returns to.
    pub(crate) stub: CodeAddr,
    pool: *const Pool<A>,
    pub(crate) data: *mut u8,
    /// The return address that the stub stands for.
    real: AtomicUsize,
    frame: AtomicUsize,
    pub(crate) task: AtomicPtr<Task<A>>,
    /// The next older pending return of the task.
    pub(crate) next: AtomicPtr<Instance<A>>,
    /// The free list: the number of the next free one, plus one.
    next_free: AtomicU32,
    number: u32,
    life: AtomicU8,
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
        self.life.load(Acquire) == Life::Pending as u8
    }

    /// Binds it to a call; from here on the stub may be returned to.
    pub(crate) fn bind(&self, real: CodeAddr, frame: usize, task: *const Task<A>) {
        self.real.store(real.as_usize(), Relaxed);
        self.frame.store(frame, Relaxed);
        self.task.store(task.cast_mut(), Relaxed);
        self.life.store(Life::Pending as u8, Release);
    }

    /// Begins to end the call: whoever gets `true` has the data.
    pub(crate) fn claim(&self) -> bool {
        self.change(Life::Pending, Life::Claimed)
    }

    /// Ends a claimed call that is on another task's list; `false`: that task is gone, release it.
    pub(crate) fn leave_to_owner(&self) -> bool {
        self.change(Life::Claimed, Life::Returned)
    }

    /// Whether the call has returned in another task, and waits for its owner to release it.
    pub(crate) fn has_returned(&self) -> bool {
        self.life.load(Acquire) == Life::Returned as u8
    }

    /// The owner exits while another task ends the call; `false`: that has been done meanwhile, release it.
    pub(crate) fn disown(&self) -> bool {
        self.change(Life::Claimed, Life::Orphan)
    }

    fn change(&self, from: Life, to: Life) -> bool {
        self.life.compare_exchange(from as u8, to as u8, AcqRel, Acquire).is_ok()
    }

    /// Takes a call back whose return address could not be replaced.
    pub(crate) fn drop_unreturned(&self) {
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
    pub(crate) fn release(&self) {
        self.life.store(Life::Free as u8, Relaxed);
        self.pool().put(self);
    }
}

/// The most instances that a pool can have.
pub(crate) const MAX_INSTANCES: usize = (1 << LINK_BITS) - 1;

/// The bits of a number of an instance plus one.
const LINK_BITS: u32 = 20;
const LINK_MASK: u64 = (1 << LINK_BITS) - 1;

/// The head of a free list, changed as a whole: which instance is first, how many are in use, and a tag that
/// differs whenever it has been changed.
#[derive(Clone, Copy)]
struct Head(u64);

impl Head {
    /// The first free instance's number plus one; 0 if there is none.
    const fn first_link(self) -> u32 {
        (self.0 & LINK_MASK) as u32
    }

    fn first(self) -> Option<usize> {
        Some(self.first_link().checked_sub(1)? as usize)
    }

    const fn in_use(self) -> u32 {
        (self.0 >> LINK_BITS & LINK_MASK) as u32
    }

    const fn with(self, first_link: u32, in_use: u32) -> Self {
        let tag = (self.0 >> (2 * LINK_BITS)).wrapping_add(1);
        Self(
            tag << (2 * LINK_BITS) | (in_use as u64 & LINK_MASK) << LINK_BITS | first_link as u64 & LINK_MASK,
        )
    }
}

/// The instances of one return probe, and the counters that go with them.
pub(crate) struct Pool<A: Arch> {
    /// The probe; null once it is unregistered.
    pub(crate) node: AtomicPtr<Node<A>>,
    instances: Box<[Instance<A>]>,
    /// A [`Head`].
    free: AtomicU64,
    high_water: AtomicU32,
    drop_data: unsafe fn(*mut u8),
    data: NonNull<u8>,
    data_layout: Layout,
    pub(crate) missed: AtomicU64,
    pub(crate) vetoed: AtomicU64,
    pub(crate) abandoned: AtomicU64,
}

// SAFETY: the data memory is reached only through instances.
unsafe impl<A: Arch> Sync for Pool<A> {}
// SAFETY: as above.
unsafe impl<A: Arch> Send for Pool<A> {}

impl<A: Arch> Pool<A> {
    /// A pool with one instance per stub.
    ///
    /// # Errors
    /// No memory, or data of more than [`MAX_DATA_LEN`](crate::MAX_DATA_LEN) bytes.
    pub(crate) fn new(
        stubs: &[CodeAddr],
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
        for (number, stub) in stubs.iter().enumerate() {
            instances.push(Instance {
                stub: *stub,
                pool: ptr::null(),
                data: data.as_ptr().wrapping_add(number.wrapping_mul(each.size())),
                real: AtomicUsize::new(0),
                frame: AtomicUsize::new(0),
                task: AtomicPtr::new(ptr::null_mut()),
                next: AtomicPtr::new(ptr::null_mut()),
                // Each leads to the next; the last one's is set below.
                next_free: AtomicU32::new(number as u32 + 2),
                number: number as u32,
                life: AtomicU8::new(Life::Free as u8),
            });
        }
        if let Some(last) = instances.last_mut() {
            last.next_free = AtomicU32::new(0);
        }
        let pool = Self {
            node: AtomicPtr::new(ptr::null_mut()),
            free: AtomicU64::new(u64::from(!instances.is_empty())),
            instances: instances.into_boxed_slice(),
            high_water: AtomicU32::new(0),
            drop_data,
            data,
            data_layout,
            missed: AtomicU64::new(0),
            vetoed: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
        };
        let mut pool = crate::registry::leak(pool)?;
        let this = pool.as_ptr().cast_const();
        // SAFETY: nobody else has it yet.
        for instance in unsafe { &mut pool.as_mut().instances } {
            instance.pool = this;
        }
        Ok(pool)
    }

    /// A free instance. No lock, no allocation.
    pub(crate) fn take(&self) -> Option<&Instance<A>> {
        let mut head = Head(self.free.load(Acquire));
        loop {
            let instance = self.instances.get(head.first()?)?;
            let new = head.with(instance.next_free.load(Relaxed), head.in_use().wrapping_add(1));
            match self.free.compare_exchange_weak(head.0, new.0, AcqRel, Acquire) {
                Ok(_) => {
                    if new.in_use() > self.high_water.load(Relaxed) {
                        self.high_water.fetch_max(new.in_use(), Relaxed);
                    }
                    return Some(instance);
                }
                Err(seen) => head = Head(seen),
            }
        }
    }

    /// The exchange is the last that is done with the pool: the registry frees it when all have come back.
    fn put(&self, instance: &Instance<A>) {
        let mut head = Head(self.free.load(Relaxed));
        loop {
            instance.next_free.store(head.first_link(), Relaxed);
            let new = head.with(instance.number.wrapping_add(1), head.in_use().wrapping_sub(1));
            match self.free.compare_exchange_weak(head.0, new.0, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(seen) => head = Head(seen),
            }
        }
    }

    /// How many calls are being followed, or have been and not yet been cleared away.
    pub(crate) fn in_use(&self) -> u32 {
        Head(self.free.load(Acquire)).in_use()
    }

    /// The most calls that were followed at the same time.
    pub(crate) fn high_water(&self) -> u32 {
        self.high_water.load(Relaxed)
    }

    /// All instances.
    pub(crate) fn instances(&self) -> &[Instance<A>] {
        &self.instances
    }
}

impl<A: Arch> Drop for Pool<A> {
    fn drop(&mut self) {
        if self.data_layout.size() != 0 {
            // SAFETY: allocated with this layout; the private data in it has been taken or dropped with its call.
            unsafe { dealloc(self.data.as_ptr(), self.data_layout) };
        }
    }
}
