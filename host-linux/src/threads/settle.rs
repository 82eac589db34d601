//! The questions to libc at a thread's first hit: where its errno is and what its number is. Its end is
//! noted, too.

use super::block::Block;
use super::number::{self, Word};
use super::table::Table;
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicI32, Ordering};

/// The pthread key whose destructor gives the block back, or -1.
static KEY: AtomicI32 = AtomicI32::new(-1);

/// Makes libc call `thread_exit` with the block of a thread that ends.
pub(super) fn start(thread_exit: unsafe extern "C" fn(*mut c_void)) {
    let mut key = 0;
    // SAFETY: `key` is writable; the destructor is a function of the right type that lives for ever.
    let result = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) };
    // glibc keeps the first 32 keys' values in the thread itself; setting any other may allocate.
    if result == 0 && key < 32 {
        KEY.store(key as i32, Ordering::Relaxed);
    }
}

/// Learns the calling thread's errno and number, and asks to be told of its end. This calls functions of
/// libc, which may be probed, so it has to run on a stack where hits nest. `false` in the hits of these
/// calls.
#[cold]
pub(super) fn settle(block: &Block) -> bool {
    let Some(preparing) = block.preparation.begin() else { return false };
    let errno = sys::errno_location();
    let key = KEY.load(Ordering::Relaxed);
    // What is shared has its value already, if its first owner is libc's.
    if key >= 0 && !block.owner.is_shared() {
        // SAFETY: the key exists. Keys below 32 are plain stores into the thread's own structure in glibc,
        // all keys in musl: fit for a signal handler.
        unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, core::ptr::from_ref(block).cast()) };
    }
    own(block);
    block.errno.learn(errno);
    drop(preparing);
    block.errno.is_known()
}

/// Writes down which thread's the block is.
fn own(block: &Block) {
    let Some(table) = Table::get() else { return };
    if block.owner.is_shared() {
        return;
    }
    let owned = |thread: u32| table.used().filter(move |block| block.owner.is(thread));
    let (mut thread, mut word) = number::of_this_thread();
    // Another's, too, where this is no thread of libc's making: a child that shares the memory.
    if word.0 != 0 && owned(thread).any(|other| other.owner.has_number_at(word)) {
        // The kernel tells them apart.
        let told = sys::thread_id();
        (thread, word) = (told, if told == thread { word } else { Word(0) });
    }
    // A block whose owner has this number was left by a thread that is dead.
    owned(thread).for_each(|other| other.owner.left_by(thread));
    block.owner.set(thread, word);
}
