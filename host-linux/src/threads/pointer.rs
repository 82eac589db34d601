//! A thread's word, found by its thread pointer: for an agent that is mapped into a running program, which
//! can have no thread-local storage there.
//!
//! The words lie in a table of places that are taken for good, one for each value that a thread pointer has
//! ever had. A thread that gets a dead one's pointer is told from it by the number that libc keeps beside
//! (`super::number`): another number finds an idle word.

use super::block::Block;
use crate::signals::owned::BLOCKED;
use crate::{arch, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many places there are.
const PLACES: usize = 1 << (usize::BITS - SHIFT);
/// What is left of a hash: 17 bits.
const SHIFT: u32 = usize::BITS - 17;

/// What belongs to one thread pointer.
#[repr(C, align(32))]
struct Place {
    /// The pointer, 0 before the place is taken.
    pointer: AtomicUsize,
    /// The number of the thread that the word belongs to.
    number: AtomicU32,
    word: UnsafeCell<usize>,
}

// SAFETY: a word is used by the thread alone whose pointer its place has.
unsafe impl Sync for Place {}

impl Place {
    const fn new() -> Self {
        Self { pointer: AtomicUsize::new(0), number: AtomicU32::new(0), word: UnsafeCell::new(0) }
    }
}

static TABLE: [Place; PLACES] = [const { Place::new() }; PLACES];

/// For a thread that finds no place: its word stays 0.
static NOWHERE: Place = Place::new();

/// From a thread pointer to the thread's number, which libc keeps there.
static NUMBER_AT: AtomicUsize = AtomicUsize::new(0);

/// The same in musl, which has the kernel clear a word of all threads instead: `tid` of its `struct pthread`
/// since 1.2.2, and before.
const NUMBER_OF_MUSL_AT: [usize; 2] = [48, 56];

/// Finds out where libc keeps the threads' numbers; `false` if neither as glibc nor as musl does.
pub(super) fn learn() -> bool {
    const MOST: usize = 16 << 10;
    let mut word = 0_usize;
    let arguments = [libc::PR_GET_TID_ADDRESS as usize, (&raw mut word).expose_provenance()];
    // SAFETY: the call writes one address.
    let told = unsafe { sys::call(libc::SYS_prctl, arguments) };
    let distance = word.wrapping_sub(arch::thread_pointer());
    let of_glibc = (told.is_ok() && distance < MOST).then_some(distance);
    let number = sys::thread_id();
    let mut known = of_glibc.into_iter().chain(NUMBER_OF_MUSL_AT);
    let found = known.find(|&at| word_of(arch::thread_pointer(), at) == number);
    if let Some(at) = found {
        NUMBER_AT.store(at, Ordering::Relaxed);
    }
    found.is_some()
}

/// The word of libc's that far behind a thread pointer, which holds the thread's number.
#[inline(always)]
fn word_of(pointer: usize, distance: usize) -> u32 {
    let at = pointer.wrapping_add(distance) as *const u32;
    // SAFETY: a word of the calling thread's own structure, which nobody else changes while it runs.
    unsafe { at.read_volatile() }
}

/// The number of the calling thread, whose pointer this is.
#[inline(always)]
fn number_at(pointer: usize) -> u32 {
    match word_of(pointer, NUMBER_AT.load(Ordering::Relaxed)) {
        // A thread of musl's that is about to end: its word is cleared before its last calls.
        0 => sys::thread_id(),
        number => number,
    }
}

/// The calling thread's word, zero at first.
#[inline]
pub(crate) fn word() -> *mut usize {
    let pointer = arch::thread_pointer();
    let number = number_at(pointer);
    let place = &TABLE[hash(pointer)];
    if place.pointer.load(Ordering::Relaxed) == pointer && place.number.load(Ordering::Relaxed) == number {
        return place.word.get();
    }
    look(pointer, number).word.get()
}

/// Whether the calling thread has no place.
pub(super) fn is_nowhere() -> bool {
    core::ptr::eq(word(), NOWHERE.word.get())
}

/// Pointers are multiples of 64 or of a page: the upper bits of a product tell them apart.
#[inline(always)]
const fn hash(pointer: usize) -> usize {
    (pointer >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> SHIFT
}

/// The place of `pointer`, further on or taken now. What a dead thread has left there is given up.
#[cold]
fn look(pointer: usize, number: u32) -> &'static Place {
    let from = hash(pointer);
    let Some(place) =
        (0..PLACES).map(|step| &TABLE[(from + step) % PLACES]).find(|place| takes(place, pointer))
    else {
        return &NOWHERE;
    };
    if place.number.load(Ordering::Relaxed) != number {
        // The hits of a signal handler would do the same, and take a block.
        let mask = sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED));
        let before = place.number.load(Ordering::Relaxed);
        if before != number {
            // SAFETY: the word is this thread's own.
            let left = unsafe { place.word.get().replace(0) } as *const Block;
            // SAFETY: null or a block of the table, which stays as long as anybody hits.
            if let Some(block) = unsafe { left.as_ref() } {
                block.left_by(before);
            }
            place.number.store(number, Ordering::Relaxed);
        }
        sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    }
    place
}

/// Whether the place belongs to `pointer`, now at the latest.
fn takes(place: &Place, pointer: usize) -> bool {
    let owner = place.pointer.load(Ordering::Relaxed);
    let take = || place.pointer.compare_exchange(0, pointer, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    owner == pointer || owner == 0 && take()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On glibc the kernel says where, on musl it is tried.
    #[test]
    fn numbers_are_found_and_are_the_kernels_where_libc_has_cleared_them() {
        assert!(learn());
        let pointer = arch::thread_pointer();
        assert_eq!(number_at(pointer), sys::thread_id());
        let cleared = [0_usize; 16];
        // A structure whose word is 0, as that of a thread of musl's which is about to end.
        let at = cleared.as_ptr().expose_provenance().wrapping_sub(NUMBER_AT.load(Ordering::Relaxed));
        assert_eq!(number_at(at), sys::thread_id());
    }

    #[test]
    fn each_thread_has_a_word_and_a_later_one_at_the_same_place_finds_it_idle() {
        assert!(learn());
        let own = word() as usize;
        assert!(own == word() as usize && !is_nowhere());
        for _ in 0..100 {
            // glibc gives the stack of a thread that has ended to the next one.
            std::thread::spawn(move || {
                let theirs = word();
                assert_ne!(theirs as usize, own);
                // SAFETY: this thread's own.
                assert_eq!(unsafe { theirs.read() }, 0);
                let block = sys::map(0, size_of::<Block>(), libc::PROT_READ | libc::PROT_WRITE).unwrap();
                // SAFETY: as above; zeros are a block that is nobody's.
                unsafe { theirs.write(block) };
                assert!(core::ptr::eq(theirs, word()));
            })
            .join()
            .unwrap();
        }
    }
}
