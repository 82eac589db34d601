//! Memory that the core frees: every use of an atomic that lies in it must have come before, in an order that
//! the freeing context sees, and none may come after. The allocator of the models asks here.

extern crate std;

use crate::state::counter::{HitCounter, NOBODY};
use crate::state::owner::{FirstOwner, NOBODYS};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicPtr as RealPtr, Ordering::Relaxed as RealRelaxed};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What ends each atomic, by where that lies.
type Used = RefCell<BTreeMap<usize, Box<dyn Fn(Ends)>>>;

std::thread_local! {
    /// Where each atomic lies that has been used, and what ends it.
    static USED: Used = const { RefCell::new(BTreeMap::new()) };
    /// Something was freed too early. An allocator must not panic: who uses the next atomic does.
    static TOO_EARLY: Cell<bool> = const { Cell::new(false) };
}

/// The core's statics with atomics: where they lie, and how long they are. Models that use them run one at a
/// time (those of jumps).
const STATICS: [(fn() -> usize, usize); 2] = [
    (|| (&raw const NOBODY).addr(), size_of::<HitCounter>()),
    (|| (&raw const NOBODYS).addr(), size_of::<FirstOwner>()),
];

/// Until when an atomic is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// The memory that it lies in is freed.
    Freed,
    /// The execution ends; it is used again in the next one.
    Execution,
}

/// Begins an execution.
pub(super) fn begin() {
    let used = USED.take();
    // Statics are there still.
    for (start, len_bytes) in STATICS {
        used.range(start()..start() + len_bytes).for_each(|(_, used)| used(Ends::Execution));
    }
    drop(used);
    TOO_EARLY.set(false);
}

/// Notes that an atomic is used from here on.
pub(super) fn note<T: 'static>(cell: &RealPtr<T>, behind: *mut T, free: fn(*mut T)) {
    let at = core::ptr::from_ref(cell);
    let end = Box::new(move |ends| {
        // SAFETY: the memory is about to be freed: it is there still. Or it is a static's.
        let cell = unsafe { &*at };
        if ends == Ends::Freed {
            cell.store(core::ptr::without_provenance_mut(FREED), RealRelaxed);
            free(behind);
        } else {
            cell.store(core::ptr::null_mut(), RealRelaxed);
        }
    });
    let before = USED.with_borrow_mut(|used| used.insert(at.addr(), end));
    drop(before);
}

/// Where no atomic lies.
const FREED: usize = 1;

/// Whether memory that is about to be freed has atomics in it that have been used: it must not be used again
/// in this execution.
#[unsafe(no_mangle)]
extern "C" fn probe_models_free(start: usize, len_bytes: usize) -> bool {
    let take = |used: &Used| {
        let mut used = used.try_borrow_mut().ok()?;
        let at = *used.range(start..start + len_bytes).next()?.0;
        used.remove(&at)
    };
    let mut has_some = false;
    while let Ok(Some(end)) = USED.try_with(take) {
        has_some = true;
        if !std::thread::panicking() && catch_unwind(AssertUnwindSafe(|| end(Ends::Freed))).is_err() {
            TOO_EARLY.set(true);
        }
    }
    has_some
}

/// Ends the last execution of a model: the next one's test is another thread, which does not know what this
/// one has used of the statics.
#[unsafe(no_mangle)]
extern "C" fn probe_models_end() {
    begin();
}

/// Fails the model where something was freed too early.
#[unsafe(no_mangle)]
extern "C-unwind" fn probe_models_check() {
    check();
}

/// As above.
pub(super) fn check() {
    assert!(!TOO_EARLY.get() || std::thread::panicking(), "memory was freed while others used it");
}
