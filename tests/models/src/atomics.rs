//! loom's atomics with the two properties of real ones that the core needs: they can be made in a constant, and memory that
//! is all zero is one.
//!
//! loom asks that an atomic is made before any two threads use it. So all are made, with the value zero, when an execution
//! begins, and each of the core's takes one at its first use; what it holds is the distance from its first value.

extern crate std;

use core::sync::atomic::{AtomicPtr as RealPtr, Ordering::Relaxed as RealRelaxed};
use loom::sync::atomic as checked;
use std::boxed::Box;
use std::cell::RefCell;
use std::vec::Vec;

pub(crate) use checked::{Ordering, fence};

/// loom's atomics of one type and one execution, which runs all of its threads on one of the system's.
struct Made<T: 'static> {
    all: RefCell<Vec<Box<T>>>,
    taken: core::cell::Cell<usize>,
}

impl<T> Made<T> {
    const fn new() -> Self {
        Self { all: RefCell::new(Vec::new()), taken: core::cell::Cell::new(0) }
    }

    /// Makes new ones instead of those of the execution before.
    fn begin(&self, count: usize, zero: fn() -> T) {
        *self.all.borrow_mut() = (0..count).map(|_| Box::new(zero())).collect();
        self.taken.set(0);
    }

    /// The one behind `cell`.
    fn behind(&self, cell: &RealPtr<T>) -> *const T {
        let known = cell.load(RealRelaxed);
        if !known.is_null() {
            return known;
        }
        let next = self.taken.replace(self.taken.get() + 1);
        let at = core::ptr::from_ref(&*self.all.borrow()[next]).cast_mut();
        cell.store(at, RealRelaxed);
        at
    }
}

macro_rules! atomics {
    ($($name:ident $value:ty, $made:ident $count:literal);*) => {
        std::thread_local! {
            $(static $made: Made<checked::$name> = const { Made::new() };)*
        }

        /// Begins an execution.
        #[unsafe(no_mangle)]
        extern "C" fn probe_models_begin() {
            $($made.with(|made| made.begin($count, || checked::$name::new(0)));)*
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
                // SAFETY: boxed, and kept until the next execution, which has atomics of its own.
                unsafe { &*$made.with(|made| made.behind(&self.behind)) }
            }
            fn value(&self, distance: $value) -> $value {
                self.first.wrapping_add(distance)
            }
            fn distance(&self, value: $value) -> $value {
                value.wrapping_sub(self.first)
            }
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.value(self.checked().load(order))
            }
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.checked().store(self.distance(value), order);
            }
            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().swap(self.distance(value), order))
            }
            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                let (from, to) = (self.distance(from), self.distance(to));
                let exchanged = self.checked().compare_exchange(from, to, order, failed);
                exchanged.map(|before| self.value(before)).map_err(|before| self.value(before))
            }
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().fetch_add(value, order))
            }
            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.value(self.checked().fetch_sub(value, order))
            }
            fn update(&self, order: Ordering, change: impl Fn($value) -> $value) -> $value {
                let loaded = if order == Ordering::Release { Ordering::Relaxed } else { order };
                let loaded = if order == Ordering::AcqRel { Ordering::Acquire } else { loaded };
                let change = |distance| Some(self.distance(change(self.value(distance))));
                match self.checked().fetch_update(order, loaded, change) {
                    Ok(before) | Err(before) => self.value(before),
                }
            }
            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before & value)
            }
            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before | value)
            }
            pub(crate) fn fetch_max(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |before| before.max(value))
            }
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
    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order) != 0
    }
    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.store(value.into(), order);
    }
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value.into(), order) != 0
    }
}

/// A pointer.
pub(crate) struct AtomicPtr<T>(AtomicUsize, core::marker::PhantomData<*mut T>);

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
    /// `first` is null wherever the core makes one.
    pub(crate) const fn new(first: *mut T) -> Self {
        assert!(first.is_null(), "a first value that is not null");
        Self(AtomicUsize::new(0), core::marker::PhantomData)
    }
    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.0.load(order))
    }
    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        self.0.store(value.expose_provenance(), order);
    }
    pub(crate) fn swap(&self, value: *mut T, order: Ordering) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.0.swap(value.expose_provenance(), order))
    }
    pub(crate) fn compare_exchange(
        &self,
        from: *mut T,
        to: *mut T,
        order: Ordering,
        failed: Ordering,
    ) -> Result<*mut T, *mut T> {
        let (from, to) = (from.expose_provenance(), to.expose_provenance());
        let exchanged = self.0.compare_exchange(from, to, order, failed);
        let pointer = core::ptr::with_exposed_provenance_mut;
        exchanged.map(pointer).map_err(pointer)
    }
}
