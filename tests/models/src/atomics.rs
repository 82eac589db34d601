//! loom's atomics with the two properties of real ones that the core needs: they can be made in a constant,
//! and memory that is all zero is one.
//!
//! loom asks that an atomic is made before any two threads use it. So all are made, with the value zero, when
//! an execution begins, and each of the core's takes one at its first use; what it holds is the distance from
//! its first value.

#[path = "freed.rs"]
mod freed;
#[path = "parts.rs"]
mod parts;
#[path = "weaken.rs"]
mod weaken;

extern crate std;

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicPtr as RealPtr, Ordering::Relaxed as RealRelaxed};
use loom::sync::atomic as checked;
use std::boxed::Box;
use std::vec::Vec;
use weaken::weakened;

pub(crate) use checked::Ordering;
pub(crate) use weaken::fence;

/// What loom has made of one type for one execution, which runs all of its threads on one of the system's.
struct Made<T: 'static> {
    all: RefCell<Vec<Box<T>>>,
    taken: Cell<usize>,
}

impl<T: 'static> Made<T> {
    const fn new() -> Self {
        Self { all: RefCell::new(Vec::new()), taken: Cell::new(0) }
    }

    /// Makes new ones instead of those of the execution before.
    fn begin(&self, count: usize, make: fn() -> T) {
        *self.all.borrow_mut() = (0..count).map(|_| Box::new(make())).collect();
        self.taken.set(0);
    }

    /// The one behind `cell`. `free` ends it, where memory that the cell lies in is freed.
    fn behind(&self, cell: &RealPtr<T>, free: fn(*mut T)) -> *const T {
        freed::check();
        let known = cell.load(RealRelaxed);
        if !known.is_null() {
            return known;
        }
        let next = self.taken.replace(self.taken.get() + 1);
        let at = core::ptr::from_ref(&*self.all.borrow()[next]).cast_mut();
        freed::note(cell, at, free);
        cell.store(at, RealRelaxed);
        at
    }
}

macro_rules! atomics {
    ($($name:ident $value:ty, $made:ident $count:literal);*) => {
        std::thread_local! {
            $(static $made: Made<checked::$name> = const { Made::new() };)*
            static CELLS: Made<loom::cell::UnsafeCell<()>> = const { Made::new() };
        }

        /// Begins an execution.
        #[unsafe(no_mangle)]
        extern "C" fn probe_models_begin() {
            freed::begin();
            $($made.with(|made| made.begin($count, || checked::$name::new(0)));)*
            CELLS.with(|made| made.begin(32, || loom::cell::UnsafeCell::new(())));
        }

        $(
        /// One of the core's.
        pub(crate) struct $name {
            first: $value,
            behind: RealPtr<checked::$name>,
        }

        #[allow(dead_code, reason = "not all are used of each type")]
        impl $name {
            pub(crate) const fn new(first: $value) -> Self {
                Self { first, behind: RealPtr::new(core::ptr::null_mut()) }
            }
            fn checked(&self) -> &checked::$name {
                // SAFETY: nobody else looks at one whose memory is being freed; loom says who does.
                let free = |at: *mut checked::$name| unsafe { &mut *at }.with_mut(|_| ());
                // SAFETY: boxed, and kept until the next execution, which has atomics of its own.
                unsafe { &*$made.with(|made| made.behind(&self.behind, free)) }
            }
            fn value(&self, distance: $value) -> $value {
                self.first.wrapping_add(distance)
            }
            fn distance(&self, value: $value) -> $value {
                value.wrapping_sub(self.first)
            }
            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.value(self.checked().load(weakened(order)))
            }
            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.checked().store(self.distance(value), weakened(order));
            }
            #[track_caller]
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().swap(self.distance(value), weakened(order)))
            }
            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                let (from, to) = (self.distance(from), self.distance(to));
                let exchanged = self.checked().compare_exchange(from, to, weakened(order), weakened(failed));
                exchanged.map(|before| self.value(before)).map_err(|before| self.value(before))
            }
            #[track_caller]
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().fetch_add(value, weakened(order)))
            }
            #[track_caller]
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().fetch_sub(value, weakened(order)))
            }
            #[track_caller]
            fn update(&self, order: Ordering, change: impl Fn($value) -> $value) -> $value {
                let order = weakened(order);
                let loaded = if order == Ordering::Release { Ordering::Relaxed } else { order };
                let loaded = if order == Ordering::AcqRel { Ordering::Acquire } else { loaded };
                let change = |distance| Some(self.distance(change(self.value(distance))));
                match self.checked().fetch_update(order, loaded, change) {
                    Ok(before) | Err(before) => self.value(before),
                }
            }
            #[track_caller]
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before & value)
            }
            #[track_caller]
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before | value)
            }
            #[track_caller]
            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before.max(value))
            }
            #[track_caller]
            pub(crate) fn fetch_min(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before.min(value))
            }
        }
        )*
    };
}

atomics!(
    AtomicU8 u8, BYTES 64;
    AtomicU16 u16, HALVES 16;
    AtomicU32 u32, WORDS 128;
    AtomicU64 u64, LONGS 128;
    AtomicUsize usize, SIZES 1024
);

/// A flag.
pub(crate) struct AtomicBool(AtomicU8);

impl AtomicBool {
    pub(crate) const fn new(first: bool) -> Self {
        Self(AtomicU8::new(first as u8))
    }
    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order) != 0
    }
    #[track_caller]
    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.store(value.into(), order);
    }
    #[track_caller]
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value.into(), order) != 0
    }
}

/// A pointer: what it holds is the distance from the first one, whose address a constant does not know.
pub(crate) struct AtomicPtr<T> {
    first: *mut T,
    distance: AtomicUsize,
}

// SAFETY: as the real one, it hands out pointers only.
unsafe impl<T> Send for AtomicPtr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for AtomicPtr<T> {}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(core::ptr::null_mut())
    }
}

impl<T> AtomicPtr<T> {
    pub(crate) const fn new(first: *mut T) -> Self {
        Self { first, distance: AtomicUsize::new(0) }
    }
    fn pointer(&self, distance: usize) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.first.expose_provenance().wrapping_add(distance))
    }
    fn distance(&self, pointer: *mut T) -> usize {
        pointer.expose_provenance().wrapping_sub(self.first.expose_provenance())
    }
    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        self.pointer(self.distance.load(order))
    }
    #[track_caller]
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        self.distance.store(self.distance(value), order);
    }
    #[track_caller]
    pub(crate) fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        self.pointer(self.distance.swap(self.distance(value), order))
    }
    #[track_caller]
    pub(crate) fn compare_exchange(
        &self,
        from: *mut T,
        to: *mut T,
        order: Ordering,
        failed: Ordering,
    ) -> Result<*mut T, *mut T> {
        let (from, to) = (self.distance(from), self.distance(to));
        let exchanged = self.distance.compare_exchange(from, to, order, failed);
        exchanged.map(|before| self.pointer(before)).map_err(|before| self.pointer(before))
    }
}

/// Memory that one context at a time touches: each look counts as a change.
pub(crate) struct UnsafeCell<T> {
    value: core::cell::UnsafeCell<T>,
    behind: RealPtr<loom::cell::UnsafeCell<()>>,
}

impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { value: core::cell::UnsafeCell::new(value), behind: RealPtr::new(core::ptr::null_mut()) }
    }
    #[track_caller]
    pub(crate) fn get(&self) -> *mut T {
        // SAFETY: as above.
        let free = |at: *mut loom::cell::UnsafeCell<()>| unsafe { &*at }.with_mut(|_| ());
        let at = CELLS.with(|made| made.behind(&self.behind, free));
        // SAFETY: boxed, and kept until the next execution.
        unsafe { &*at }.with_mut(|_| ());
        self.value.get()
    }
}
