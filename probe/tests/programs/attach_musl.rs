//! A static program of musl's that is attached to: as many calls of `work` as each line of its standard input
//! says, in each of four threads that come and go; the sum of what is wrong goes to standard output.

use std::io::{BufRead, Write};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn work(n: u64) -> u64 {
    std::hint::black_box(n * 3 + 1)
}

fn main() {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let calls: u64 = line.expect("a line").parse().expect("a number");
        let some = move || (0..calls).filter(|&n| std::hint::black_box(work)(n) != n * 3 + 1).count();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(some)).collect();
        let wrong: usize = threads.into_iter().map(|thread| thread.join().expect("it ends")).sum();
        println!("{wrong} wrong");
        std::io::stdout().flush().expect("a reader");
    }
}
