//! The calling thread's number, and whether a thread lives, from libc instead of the kernel: sandboxes allow
//! few system calls.
//!
//! glibc makes the kernel clear the number in the thread's own structure when the thread has ended. The
//! kernel reports the address of that word (`PR_GET_TID_ADDRESS`), which lies at the same distance from every
//! thread's `pthread_self`. Without such a word (musl makes the kernel clear a lock of its own), the kernel
//! is asked each time.

use crate::{memory, sys};
use core::sync::atomic::{AtomicUsize, Ordering};

/// From `pthread_self` to the word, 0 where it is not known.
static DISTANCE: AtomicUsize = AtomicUsize::new(0);

/// No thread's structure is longer.
const MOST: usize = 16 << 10;

/// The address of the word that holds a thread's number until the thread has ended; 0 if there is none.
#[derive(Clone, Copy)]
pub(super) struct Word(pub(super) usize);

/// Finds out where libc keeps the numbers.
pub(super) fn start() {
    // A 64-bit kernel writes eight bytes for a 32-bit process, too (prctl(2)).
    let mut words = [0_usize; 2];
    // SAFETY: the call writes one address, of the kernel's size.
    let told = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut words) };
    let word = words[0];
    let distance = word.wrapping_sub(this_thread());
    if told == 0 && distance < MOST && Word(word).read() == Some(sys::thread_id()) {
        DISTANCE.store(distance, Ordering::Relaxed);
    }
}

fn this_thread() -> usize {
    // SAFETY: it has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread's number, and its word. Calls a function of libc, which may be probed.
pub(super) fn of_this_thread() -> (u32, Word) {
    let distance = DISTANCE.load(Ordering::Relaxed);
    let word = Word(if distance == 0 { 0 } else { this_thread().wrapping_add(distance) });
    match word.read().filter(|&number| number != 0) {
        Some(number) => (number, word),
        None => (sys::thread_id(), Word(0)),
    }
}

impl Word {
    /// What is there now; `None` where there is no word any more.
    fn read(self) -> Option<u32> {
        let mut bytes = [0; 4];
        let is_there = self.0 != 0 && memory::read_some(self.0, &mut bytes) == bytes.len();
        is_there.then(|| u32::from_ne_bytes(bytes))
    }

    /// Whether thread `number`, which owns this word, is still alive. `process` is the process that made the
    /// memory.
    pub(super) fn lives(self, number: u32, process: u32) -> bool {
        if self.0 != 0 {
            // A structure that is used again has another thread's number.
            return self.read() == Some(number);
        }
        // A child that shares the memory and is no thread of this process is the first thread of its own.
        sys::thread_lives(process, number) || sys::thread_lives(number, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_number_while_it_lives() {
        start();
        let process = sys::process_id();
        let own = move || {
            let (number, word) = of_this_thread();
            assert_eq!(number, sys::thread_id());
            assert!(word.lives(number, process));
            (number, word.0)
        };
        own();
        let (number, word) = std::thread::spawn(own).join().unwrap();
        assert!(word == 0 || !Word(word).lives(number, process));
    }
}
