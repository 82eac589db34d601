//! The conformance suite in this process, with traps and then with jumps wherever a jump can be.
//! `cargo test --test conformance -- FILTER` runs part of it.

use probe_conformance::{Suite, Summary, cases, run};
use probe_core::{Probes, Switch};
use probe_host_linux::{LinuxProcess, probes, start};
use probe_tests_user::heap::Counting;
use std::process::ExitCode;
use std::sync::Barrier;

/// What is freed is poisoned, so that whoever still uses it is found out.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// This process, with threads as its contexts.
struct User;

impl Suite for User {
    type Host = LinuxProcess;

    fn probes() -> &'static Probes<LinuxProcess> {
        probes()
    }

    fn contexts() -> usize {
        2
    }

    fn run_on_contexts(n: usize, body: &(dyn Fn(usize) + Sync)) {
        let together = Barrier::new(n);
        std::thread::scope(|scope| {
            for index in 0..n {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    body(index);
                });
            }
        });
    }

    /// The thread pointer's place on i386, whose first word is its own address; nothing has GS on x86-64.
    #[cfg(target_arch = "x86")]
    fn gs_base() -> usize {
        let base;
        // SAFETY: reads the first word of this thread's control block (ELF TLS ABI, variant II).
        unsafe { core::arch::asm!("mov {}, gs:[0]", out(reg) base, options(readonly, nostack)) };
        base
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        cases::<User>().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-')).map_or("", String::as_str);
    if let Err(error) = start() {
        eprintln!("this process cannot be probed: {error}");
        return ExitCode::FAILURE;
    }
    let selected = cases::<User>().filter(|case| case.name.contains(filter)).count();
    println!("\nrunning {} tests", 2 * selected);
    let by_traps = run::<User>(filter, &mut |line| println!("{line}"));
    probes().jumps().set_automatic(Switch::On);
    let by_jumps =
        run::<User>(filter, &mut |line| println!("{}", line.replacen(" ...", ", by jumps ...", 1)));
    let summary = Summary {
        passed: by_traps.passed + by_jumps.passed,
        failed: by_traps.failed + by_jumps.failed,
        skipped: by_traps.skipped + by_jumps.skipped,
    };
    let result = if summary.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} passed; {} failed; {} ignored; 0 measured; {} filtered out\n",
        summary.passed,
        summary.failed,
        summary.skipped,
        2 * (cases::<User>().count() - selected)
    );
    if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
