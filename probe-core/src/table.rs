//! From an address to its entry: an open-addressed hash table that readers use without a lock.
//!
//! Lookup costs the same however many entries there are (load at most 1/2, tombstones included). The table
//! grows by publishing a new array; the old one is freed after a grace period. Writers hold the registry's
//! lock.

use crate::error::NoMemory;
use crate::held::{Held, Lent};
use crate::sync::{AtomicPtr, Relaxed, Release, dereference};
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// What can stand in a table.
pub(crate) trait Keyed {
    /// The address it is found by; never changes while it is in a table.
    fn key(&self) -> usize;
}

/// 2^BITS / φ, odd: Fibonacci hashing.
const FACTOR: usize = if usize::BITS == 64 { 0x9e37_79b9_7f4a_7c15_u64 as usize } else { 0x9e37_79b9 };

/// The entry of something that was removed.
const TOMBSTONE: usize = 1;

/// The fewest entries an array has, as a power of two.
const MIN_LOG2: u32 = 4;

/// The table; empty tables own no memory.
pub(crate) struct Table<T> {
    array: AtomicPtr<Header>,
    _entries: PhantomData<*const T>,
}

// SAFETY: the table hands out shared references to T only.
unsafe impl<T: Sync> Sync for Table<T> {}
// SAFETY: as above; it owns no T.
unsafe impl<T: Sync> Send for Table<T> {}

/// What stands before an array's entries.
struct Header {
    /// How far a hashed key is shifted right to give an index.
    shift: u32,
    /// [`FACTOR`]: loading it takes one instruction, an immediate up to five.
    factor: usize,
    /// Entries that are not null, tombstones included; for writers.
    used: AtomicUsizeCell,
    /// Entries that are neither null nor tombstones; for writers.
    live: AtomicUsizeCell,
    /// The next of the [`RetiredArrays`].
    next: AtomicPtr<Header>,
}

type AtomicUsizeCell = crate::sync::AtomicUsize;

/// An array that readers may still be looking at.
#[must_use = "free it after a grace period"]
pub(crate) struct RetiredArray(NonNull<Header>);

impl RetiredArray {
    /// Frees the array.
    ///
    /// # Safety
    /// A grace period has passed since it was retired.
    unsafe fn free(self) {
        // SAFETY: the array is ours until here; nobody changes the shift.
        let log2 = usize::BITS - unsafe { self.0.as_ref() }.shift;
        let Some((layout, _)) = layout(log2) else { return };
        // SAFETY: allocated with this layout; the caller says that nobody reads it any more.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

/// Arrays that wait for a grace period: a list through their headers, so that keeping one needs no memory.
pub(crate) struct RetiredArrays {
    first: *mut Header,
}

// SAFETY: plain memory.
unsafe impl Send for RetiredArrays {}

impl RetiredArrays {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Keeps an array.
    pub(crate) fn push(&mut self, array: RetiredArray) {
        // SAFETY: a retired array is there until it is freed.
        unsafe { array.0.as_ref() }.next.store(self.first, Relaxed);
        self.first = array.0.as_ptr();
    }

    /// Frees all of them.
    ///
    /// # Safety
    /// A grace period has passed since the last of them was retired.
    pub(crate) unsafe fn free(&mut self) {
        while let Some(array) = NonNull::new(self.first) {
            // SAFETY: it is freed just below.
            self.first = unsafe { array.as_ref() }.next.load(Relaxed);
            // SAFETY: retired, and a grace period has passed since: nobody reads it any more.
            unsafe { RetiredArray(array).free() };
        }
    }
}

impl<T: Keyed> Table<T> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self { array: AtomicPtr::new(ptr::null_mut()), _entries: PhantomData }
    }

    /// What lies at `key`.
    #[inline(always)]
    pub(crate) fn find<'g>(&self, key: usize, _held: impl Held<'g>) -> Option<&'g T> {
        let array = dereference(&self.array);
        if array.is_null() {
            return None;
        }
        // SAFETY: `held` keeps the array.
        let header = unsafe { &*array };
        let index = key.wrapping_mul(header.factor) >> header.shift;
        // SAFETY: so many bits are an index of the array.
        let first = dereference(unsafe { entry::<T>(array, index) });
        if first.addr() > TOMBSTONE {
            // SAFETY: `held` keeps the entry.
            let found = unsafe { &*first };
            if found.key() == key {
                return Some(found);
            }
        } else if first.is_null() {
            return None;
        }
        // SAFETY: as above, as long as `held` lives.
        unsafe { Self::find_behind(array, index, key) }
    }

    /// The entry at `key`, if it is behind number `index`, where it should be. Half of all entries are free,
    /// so it is seldom far.
    ///
    /// # Safety
    /// [`Table::find`] has found `array`, and the proof that kept it there holds during `'a`.
    #[inline(never)]
    unsafe fn find_behind<'a>(array: *const Header, mut index: usize, key: usize) -> Option<&'a T> {
        // SAFETY: an array is freed only after a grace period; the caller is inside.
        let mask = usize::MAX >> unsafe { &*array }.shift;
        loop {
            index = index.wrapping_add(1) & mask;
            // SAFETY: the index is masked to the array's length.
            let entry = dereference(unsafe { entry::<T>(array, index) });
            if entry.addr() > TOMBSTONE {
                // SAFETY: an entry is freed only after a grace period; the caller is inside.
                let found = unsafe { &*entry };
                if found.key() == key {
                    return Some(found);
                }
            } else if entry.is_null() {
                return None;
            }
        }
    }

    /// The entry at `key`, with its allocation: it may be freed once it is off the table.
    pub(crate) fn find_lent<'g>(&self, key: usize, _held: impl Held<'g>) -> Option<Lent<'g, T>> {
        let header = NonNull::new(self.array.load(Relaxed))?;
        // SAFETY: `held` keeps the array.
        for place in unsafe { places::<T>(header.as_ptr(), key) } {
            let entry = NonNull::new(place.load(Relaxed))?;
            if entry.addr().get() <= TOMBSTONE {
                continue;
            }
            // SAFETY: `held` keeps the entry.
            let entry = unsafe { Lent::new(entry) };
            if entry.key() == key {
                return Some(entry);
            }
        }
        None
    }

    /// Makes room for `more` entries. A new array may take the old one's place.
    ///
    /// # Errors
    /// No memory; nothing has changed.
    pub(crate) fn reserve(&self, more: usize) -> Result<Option<RetiredArray>, NoMemory> {
        let old = self.array.load(Relaxed);
        let (log2, used, live) = if old.is_null() {
            (0, 0, 0)
        } else {
            // SAFETY: the current array is never freed.
            let header = unsafe { &*old };
            (usize::BITS - header.shift, header.used.load(Relaxed), header.live.load(Relaxed))
        };
        if !old.is_null() && (used.saturating_add(more)).saturating_mul(2) <= 1 << log2 {
            return Ok(None);
        }
        let wanted = live.checked_add(more).and_then(|n| n.checked_mul(2)).ok_or(NoMemory)?;
        // Room to come and go without another array for every few.
        let target = wanted.checked_add(wanted / 4).and_then(usize::checked_next_power_of_two);
        let log2 = target.ok_or(NoMemory)?.trailing_zeros().max(MIN_LOG2);
        let new = allocate(log2)?;
        for item in self.entries() {
            // SAFETY: the new array is larger than all that goes into it, and only we see it.
            unsafe { insert_into(new.as_ptr(), item) };
        }
        self.array.store(new.as_ptr(), Release);
        Ok(NonNull::new(old).map(RetiredArray))
    }

    /// Puts `item` in; [`Table::reserve`] has made room, and nothing else has its key.
    ///
    /// # Safety
    /// `item` stays valid until a grace period after [`Table::remove`].
    pub(crate) unsafe fn insert(&self, item: NonNull<T>) {
        let header = self.array.load(Relaxed);
        debug_assert!(!header.is_null(), "insert without reserve");
        if !header.is_null() {
            // SAFETY: the current array has room, says the caller.
            unsafe { insert_into(header, item) };
        }
    }

    /// Takes `item` out. Readers may still hold it.
    pub(crate) fn remove(&self, item: &T) {
        let header = self.array.load(Relaxed);
        if header.is_null() {
            return;
        }
        // SAFETY: the current array is never freed.
        let shared = unsafe { &*header };
        // SAFETY: as above.
        let mut places = unsafe { places::<T>(header, item.key()) };
        let is_it = |place: &&AtomicPtr<T>| ptr::eq(place.load(Relaxed), item);
        let Some(place) = places.find(is_it) else { return };
        shared.live.store(shared.live.load(Relaxed).wrapping_sub(1), Relaxed);
        if places.next().is_none_or(|next| next.load(Relaxed).is_null()) {
            // The end of a run needs no tombstone.
            place.store(ptr::null_mut(), Release);
            shared.used.store(shared.used.load(Relaxed).wrapping_sub(1), Relaxed);
        } else {
            place.store(ptr::without_provenance_mut(TOMBSTONE), Release);
        }
    }

    /// Every entry, with its allocation. An entry may be removed after it has been found.
    pub(crate) fn iter<'g>(&self, _held: impl Held<'g>) -> impl Iterator<Item = Lent<'g, T>>
    where
        T: 'g,
    {
        // SAFETY: `held` keeps the entry.
        self.entries().map(|entry| unsafe { Lent::new(entry) })
    }

    /// The allocation of every entry. For the only writer, who replaces no array meanwhile.
    fn entries(&self) -> impl Iterator<Item = NonNull<T>> + use<T> {
        let header = self.array.load(Relaxed);
        // SAFETY: the current array is never freed.
        let count = unsafe { header.as_ref() }.map_or(0, |header| (usize::MAX >> header.shift) + 1);
        let entries = (0..count).map(move |index| {
            // SAFETY: the index is below the array's length, and the array is still the current one.
            unsafe { entry::<T>(header, index) }.load(Relaxed)
        });
        entries.filter(|entry| entry.addr() > TOMBSTONE).filter_map(NonNull::new)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        let header = self.array.load(Relaxed);
        // SAFETY: the current array is never freed.
        unsafe { header.as_ref() }.map_or(0, |header| header.live.load(Relaxed))
    }

    /// Gives the array up if nothing is in it.
    pub(crate) fn retire_if_empty(&self) -> Option<RetiredArray> {
        if self.len() != 0 {
            return None;
        }
        NonNull::new(self.array.swap(ptr::null_mut(), crate::sync::AcqRel)).map(RetiredArray)
    }
}

/// The memory of an array with 2^log2 entries, and where they begin.
fn layout(log2: u32) -> Option<(Layout, usize)> {
    let entries = Layout::array::<AtomicPtr<()>>(1_usize.checked_shl(log2)?).ok()?;
    Layout::new::<Header>().extend(entries).ok()
}

fn allocate(log2: u32) -> Result<NonNull<Header>, NoMemory> {
    let (layout, _) = layout(log2).ok_or(NoMemory)?;
    // SAFETY: the layout has a size.
    let memory = unsafe { alloc_zeroed(layout) };
    let header = NonNull::new(memory.cast::<Header>()).ok_or(NoMemory)?;
    let fresh = Header {
        shift: usize::BITS - log2,
        factor: FACTOR,
        used: AtomicUsizeCell::new(0),
        live: AtomicUsizeCell::new(0),
        next: AtomicPtr::new(ptr::null_mut()),
    };
    // SAFETY: allocated for it just now.
    unsafe { header.write(fresh) };
    Ok(header)
}

/// Entry number `index`.
///
/// # Safety
/// `header` is a live array and `index` below its length.
#[inline(always)]
unsafe fn entry<'a, T>(header: *const Header, index: usize) -> &'a AtomicPtr<T> {
    // SAFETY: the entries follow the header, whose size is a multiple of their alignment.
    let entries = unsafe { header.add(1) }.cast::<AtomicPtr<T>>();
    // SAFETY: the index is below the array's length.
    let at = unsafe { entries.add(index) };
    // SAFETY: zeroed when allocated: a valid null pointer.
    unsafe { &*at }
}

/// # Safety
/// `header` is a live array with a free entry; `item` is valid.
unsafe fn insert_into<T: Keyed>(header: *mut Header, item: NonNull<T>) {
    // SAFETY: a live array.
    let shared = unsafe { &*header };
    // SAFETY: a valid item.
    let key = unsafe { item.as_ref() }.key();
    // SAFETY: the array is alive for as long as this function looks at it.
    for place in unsafe { places::<T>(header, key) } {
        let entry = place.load(Relaxed);
        if entry.addr() <= TOMBSTONE {
            shared.live.store(shared.live.load(Relaxed).wrapping_add(1), Relaxed);
            if entry.is_null() {
                shared.used.store(shared.used.load(Relaxed).wrapping_add(1), Relaxed);
            }
            place.store(item.as_ptr(), Release);
            return;
        }
        debug_assert!(entry != item.as_ptr(), "inserted twice");
    }
    debug_assert!(false, "an array without room");
}

/// The entries in the order in which `key` is looked for.
///
/// # Safety
/// `header` is a live array, as long as the iterator is used.
unsafe fn places<'a, T: 'a>(header: *const Header, key: usize) -> impl Iterator<Item = &'a AtomicPtr<T>> {
    // SAFETY: a live array.
    let shift = unsafe { &*header }.shift;
    let (first, mask) = (key.wrapping_mul(FACTOR) >> shift, usize::MAX >> shift);
    // SAFETY: the array is alive while the iterator is used; the index is masked to its length.
    (0..=mask).map(move |distance| unsafe { entry(header, first.wrapping_add(distance) & mask) })
}
