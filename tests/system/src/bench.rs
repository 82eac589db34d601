//! What a hit costs, in guest instructions: from before the CPU takes the trap to after it resumed, the
//! kernel's own entry and exit included, empty handlers, the loop and the call subtracted.
//!
//! Only under `--icount --cpus 1`, where the counts are exact and repeatable. `expected` holds them; a case
//! that has become more than a sixteenth and two instructions dearer fails (what the compiler inlines differs
//! by less).

mod expected;
mod registry;

use crate::arch::{Backend, Machine, Native, Outcome};
use crate::host::{Kernel, PROBES};
use crate::{cmdline, cpu, println, symbols, targets};
use alloc::vec::Vec;
use core::hint::black_box;
use probe_core::arch::Arch;
use probe_core::{AnyProbe, CodeAddr, Jprobe, Kprobe, Kretprobe, Place, Probe, Switch};
use probe_kernel_kit::extable;

const ROUNDS: u64 = 64;
const MANY: usize = 10_000;

/// Runs all measurements.
pub fn run() -> Outcome {
    let mut report = Report { outcome: Outcome::Passed };
    report.say("entry", per_round(Native::null_trap, black_box));
    let plain: fn(usize) -> usize = targets::plain;
    let jump: fn(usize) -> usize = targets::jump;
    report.hit("k", plain, || [k("target_plain")]);
    report.hit("k_post", plain, || [k_post("target_plain")]);
    report.hit("k_emulated", jump, || [k("target_jump")]);
    report.hit("k_call", targets::call, || [k(call_insn())]);
    report.hit("j", plain, || [j("target_plain")]);
    report.hit("r", plain, || [r("target_plain")]);
    report.hit("kr", plain, || [k("target_plain"), r("target_plain")]);
    report.hit("jr", plain, || [j("target_plain"), r("target_plain")]);
    report.optimised_hit("k_optimised", plain, || [k("target_plain")]);
    report.optimised_hit("r_optimised", plain, || [r("target_plain")]);
    report.hit("disabled", plain, || [AnyProbe::from(Kprobe::<Backend>::at("target_plain").disabled())]);

    let one = instructions(|| drop(register(k("target_plain"))));
    report.say("register_unregister", one);
    registry::run(&mut report);
    for (name, many) in [("k_100", 100), ("k_10k", MANY)] {
        let mut probes = Vec::new();
        let batch: Vec<_> = sled(many).map(k).collect();
        let registering =
            instructions(|| probes = PROBES.register_all(batch).unwrap_or_else(|error| panic!("{error}")));
        report.hit(name, plain, || [k("target_plain")]);
        let leaving =
            instructions(|| PROBES.unregister_all(probes).unwrap_or_else(|_| panic!("they are registered")));
        if many == MANY {
            report.say("register_one_of_10k", registering / MANY as u64);
            report.say("unregister_one_of_10k", leaving / MANY as u64);
        }
    }
    report.outcome
}

struct Report {
    outcome: Outcome,
}

impl Report {
    /// Prints a figure and compares it with what is expected.
    fn say(&mut self, case: &str, insns: u64) {
        println!("insns.{}.{case}={insns}", Backend::NAME);
        match expected::FIGURES.iter().find(|(arch, name, _)| (*arch, *name) == (Backend::NAME, case)) {
            Some((.., limit)) if insns > limit + limit / 16 + 2 => {
                println!("{case} was {limit} instructions, and is {insns} now");
                self.outcome = Outcome::Failed;
            }
            Some(_) => {}
            None => {
                println!("{case} is not in the table of expected figures");
                self.outcome = Outcome::Failed;
            }
        }
    }

    /// Prints a figure that may be `limit` at most.
    fn promise(&mut self, case: &str, insns: u64, limit: u64) {
        println!("insns.{}.{case}={insns}", Backend::NAME);
        if insns > limit {
            println!("{case} may be {limit} instructions at most");
            self.outcome = Outcome::Failed;
        }
    }

    /// Measures one call of `target` with the probes of `plant` on it, less one without.
    fn hit<const N: usize>(
        &mut self,
        case: &str,
        target: fn(usize) -> usize,
        plant: impl Fn() -> [AnyProbe<Backend>; N],
    ) {
        // For a look at one case with a debugger.
        if cmdline::value("only").is_some_and(|only| only != case) {
            return;
        }
        let probes = plant().map(register);
        let with = measure(target);
        drop(probes);
        let without = measure(target);
        self.say(case, with.saturating_sub(without) / ROUNDS);
    }

    /// As [`Report::hit`], with a jump instead of the breakpoint.
    fn optimised_hit(
        &mut self,
        case: &str,
        target: fn(usize) -> usize,
        plant: impl Fn() -> [AnyProbe<Backend>; 1],
    ) {
        if Backend::JUMPS.is_none() {
            return;
        }
        PROBES.jumps().set_automatic(Switch::On);
        let probe = plant().map(register);
        if !matches!(PROBES.jumps().lay(), Ok(1)) {
            println!("{case}: the place has no jump");
            self.outcome = Outcome::Failed;
        }
        drop(probe);
        self.hit(case, target, plant);
        PROBES.jumps().set_automatic(Switch::Off);
    }
}

fn register(probe: AnyProbe<Backend>) -> Probe<Kernel> {
    PROBES.register(probe).unwrap_or_else(|error| panic!("{error}"))
}

fn k(place: impl Into<Place>) -> AnyProbe<Backend> {
    Kprobe::<Backend>::at(place).pre(|_| ()).into()
}

fn k_post(place: impl Into<Place>) -> AnyProbe<Backend> {
    Kprobe::<Backend>::at(place).pre(|_| ()).post(|_| ()).into()
}

fn j(place: impl Into<Place>) -> AnyProbe<Backend> {
    extern "C" fn handler(_a: usize) {}
    // SAFETY: the handler has the target's signature.
    unsafe { Jprobe::<Backend>::from_raw(place, handler as *const () as usize) }.into()
}

fn r(place: impl Into<Place>) -> AnyProbe<Backend> {
    Kretprobe::<Backend>::at(place).exit(|_, ()| ()).into()
}

fn call_insn() -> CodeAddr {
    unsafe extern "C" {
        static target_call_insn: u8;
    }
    CodeAddr::new((&raw const target_call_insn).addr())
}

/// The first `many` places of a long run of no-operations.
fn sled(many: usize) -> impl Iterator<Item = CodeAddr> {
    no_operations("target_sled").take(many)
}

/// The places in a function that begins with no-operations, which have one length.
fn no_operations(function: &str) -> impl Iterator<Item = CodeAddr> {
    let start = CodeAddr::new(symbols::named(function).next().expect("it is a symbol").start);
    let mut bytes = [0; 16];
    let read = extable::read(start.as_usize(), &mut bytes);
    let len = Backend::insn_len(start, &bytes[..read]).expect("it is an instruction");
    (0..).map(move |index| start.wrapping_add(index * len))
}

/// The instructions of `ROUNDS` calls and their loop.
fn measure(target: fn(usize) -> usize) -> u64 {
    // The first calls fill what is filled lazily.
    black_box(target(black_box(1)));
    black_box(target(black_box(1)));
    instructions(|| {
        for round in 0..ROUNDS {
            black_box(target(black_box(round as usize)));
        }
    })
}

/// The instructions of one call of `costly`, less those of one call of `cheap`.
fn per_round(costly: fn(usize) -> usize, cheap: fn(usize) -> usize) -> u64 {
    measure(costly).saturating_sub(measure(cheap)) / ROUNDS
}

/// The instructions that `run` takes, with interrupts disabled.
fn instructions(run: impl FnOnce()) -> u64 {
    let interrupts = Native::disable_interrupts();
    let start = Native::ticks();
    run();
    let ticks = Native::ticks() - start;
    cpu::restore(interrupts);
    let (numerator, denominator) = Native::TICKS;
    ticks * denominator / numerator
}
