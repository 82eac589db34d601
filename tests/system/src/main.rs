//! A small kernel that vendors the probes as a stranger's kernel would, one machine per architecture.
//!
//! Reading order: `arch` (what a machine gives) · `trap` (where traps come in) · `memory` (paging, W^X,
//! executable memory) · `cpu` (areas, cross-CPU interrupts) · `task` (scheduler) · `symbols` (kallsyms) ·
//! `checks` (self checks). `runner/` is the host program that boots it.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod bench;
mod checks;
mod cmdline;
mod console;
mod cpu;
mod examples;
mod heap;
mod host;
mod lock;
mod memory;
mod modules;
mod shell;
mod stacks;
mod symbols;
mod syscalls;
mod targets;
mod task;
mod trap;
mod watch;

use arch::{Machine, Native, Outcome};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

/// The boot CPU's first Rust code: interrupts off, on the boot stack, memory mapped at its own address.
#[unsafe(no_mangle)]
extern "C" fn kernel_main() -> ! {
    cpu::init_boot();
    host::init();
    Native::init_cpu();
    memory::init();
    heap::init();
    cpu::RENDEZVOUS.join();
    task::init();
    cpu::start_others();
    task::spawn("init", init);
    task::run()
}

/// Another CPU's first Rust code, as above.
#[unsafe(no_mangle)]
extern "C" fn secondary_main(number: usize) -> ! {
    cpu::init_secondary(number);
    memory::activate();
    Native::init_cpu();
    cpu::RENDEZVOUS.join();
    task::run()
}

/// The first task: does what the command line asks for, and ends the kernel.
fn init() {
    // Words with a value are settings.
    let outcome = match cmdline::words().find(|word| !word.contains('=')) {
        Some("suite") | None => checks::run(),
        Some("bench") => bench::run(),
        Some("examples") => examples::run(),
        Some("shell") => shell::run(),
        Some(word) => {
            println!("unknown command {word:?}");
            Outcome::Failed
        }
    };
    println!("TEST-RESULT: {}", if outcome == Outcome::Passed { "PASS" } else { "FAIL" });
    Native::exit(outcome)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    static PANICKING: AtomicBool = AtomicBool::new(false);
    Native::disable_interrupts();
    // A panic in the panic must not print for ever.
    if !PANICKING.swap(true, Ordering::Relaxed) {
        console::seize();
        let task = task::current().name;
        println!("PANIC in {task}: {info}");
    }
    Native::exit(Outcome::Failed)
}
