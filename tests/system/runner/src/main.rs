//! Boots one of the test kernels under QEMU: cargo's runner for the kernel's targets.
//!
//! `run KERNEL [OPTIONS] [COMMAND LINE]`: writes the kernel's symbol table and command line into a copy of
//! the ELF file, starts QEMU with a time limit, and exits with 0 only if the kernel said that it passed. The
//! options are `--cpus N` (2), `--timeout SECONDS` (60), `--icount` (exact instruction counts, one CPU at a
//! time) and `--mttcg` (one host thread per CPU).

mod image;
mod qemu;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// What the command line asks for.
struct Options {
    kernel: PathBuf,
    cpus: u32,
    timeout_s: u32,
    clock: qemu::Clock,
    words: Vec<String>,
}

fn options() -> Result<Options, String> {
    let mut words = env::args().skip(1);
    let kernel =
        words.next().ok_or("usage: run KERNEL [--cpus N] [--timeout S] [--icount|--mttcg] [WORDS]")?;
    let mut options = Options {
        kernel: kernel.into(),
        cpus: 2,
        timeout_s: 60,
        clock: qemu::Clock::RoundRobin,
        words: Vec::new(),
    };
    while let Some(word) = words.next() {
        let mut number = || {
            let text = words.next().unwrap_or_default();
            text.parse().map_err(|_| format!("{word} needs a number, not {text:?}"))
        };
        match word.as_str() {
            "--cpus" => options.cpus = number()?,
            "--timeout" => options.timeout_s = number()?,
            "--icount" => options.clock = qemu::Clock::Instructions,
            "--mttcg" => options.clock = qemu::Clock::Threads,
            _ => options.words.push(word),
        }
    }
    Ok(options)
}

fn run() -> Result<ExitCode, String> {
    let mut options = options()?;
    let elf = fs::read(&options.kernel).map_err(|e| format!("{}: {e}", options.kernel.display()))?;
    options.words.push(format!("cpus={}", options.cpus));
    if matches!(options.clock, qemu::Clock::Threads) {
        options.words.push("rendezvous=yes".into());
    }
    let machine = qemu::Machine::of(&elf)?;
    let image = image::complete(elf, &options.words.join(" "))?;
    let path = options.kernel.with_extension(format!("{}.boot", std::process::id()));
    fs::write(&path, image).map_err(|e| format!("{}: {e}", path.display()))?;
    let verdict = machine.run(&path, options.cpus, options.timeout_s, options.clock);
    // The copy is only of use to this run; the next one makes its own.
    let _ = fs::remove_file(&path);
    verdict
}

fn main() -> ExitCode {
    run().unwrap_or_else(|message| {
        eprintln!("error: {message}");
        ExitCode::from(2)
    })
}
