//! A program for the test to probe: threads that panic and catch, with destructors on the way. Its arguments:
//! how often each does, and `alone` if the first thread is to do it by itself.

use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;

/// What its destructor is for.
struct Guard<'a>(&'a Mutex<u64>, u64);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += self.1;
    }
}

fn deep(sum: &Mutex<u64>, depth: u64) -> u64 {
    let guard = Guard(sum, depth);
    if depth == 0 {
        resume_unwind(Box::new("the bottom"));
    }
    deep(sum, depth - 1) + guard.1
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: u64 = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(10);
    let is_alone = arguments.next().is_some_and(|word| word == "alone");
    let sum = Mutex::new(0);
    let catch = |thread: u64| {
        (0..rounds).filter(|round| catch_unwind(|| deep(&sum, (thread + round) % 16)).is_err()).count()
    };
    let caught: usize = if is_alone {
        catch(0)
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || catch(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        })
    };
    println!("{caught} panics caught, {} unwound", sum.into_inner().unwrap_or_default());
}
