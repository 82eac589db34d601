//! A return probe: how long a function takes and what it returns.
//!
//! `cargo run -p probe-host-linux --example kretprobe_example [func=NAME]` (default `getppid`; the example
//! itself calls `getppid`, `malloc`, `atoi` and reads a directory)

use probe_host_linux::{Kretprobe, probes};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

/// Prints one line without allocating or taking a lock: the probed function may be `malloc`.
fn print(line: std::fmt::Arguments<'_>) {
    let mut buffer = [0; 256];
    let mut rest = &mut buffer[..];
    // What does not fit is cut off.
    let _ = writeln!(rest, "{line}");
    let left = rest.len();
    let len = buffer.len() - left;
    // SAFETY: the buffer holds `len` bytes.
    unsafe { libc::write(1, buffer.as_ptr().cast(), len) };
}

/// Whether this is the main thread.
fn is_main_thread() -> bool {
    // SAFETY: no preconditions.
    let thread = unsafe { libc::gettid() };
    // SAFETY: no preconditions.
    thread == unsafe { libc::getpid() }
}

fn main() -> ExitCode {
    let function = std::env::args().nth(1);
    let function =
        function.as_deref().and_then(|arg| arg.strip_prefix("func=")).unwrap_or("getppid").to_owned();
    let name = function.clone();
    let probe = Kretprobe::at(function.as_str())
        .max_active(20)
        // The kernel's example leaves kernel threads alone; this one follows the main thread only.
        .entry(|_call| is_main_thread().then(Instant::now))
        .exit(move |ret, started: Instant| {
            let took = started.elapsed().as_nanos();
            print(format_args!("{name} returned {} and took {took} ns to execute", ret.value() as isize));
        });
    let probe = match probes().register(probe) {
        Ok(probe) => probe,
        Err(error) => {
            println!("register_kretprobe failed, returned -{}: {error}", error.errno().as_i32());
            return ExitCode::FAILURE;
        }
    };
    println!("Planted return probe at {function}: {:#x}", probe.addr());
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    assert!(parent >= 0);
    // SAFETY: a C string.
    let number = unsafe { libc::atoi(c"4711".as_ptr()) };
    assert_eq!(number, 4711);
    let entries = std::fs::read_dir("/").map(Iterator::count);
    assert!(entries.is_ok_and(|entries| entries > 0));
    let (at, counters) = (probe.addr(), probe.counters());
    drop(probe);
    println!("kretprobe at {at:#x} unregistered");
    println!("Missed probing {} instances of {function}", counters.missed_pool + counters.missed_nested);
    ExitCode::SUCCESS
}
