//! The classic examples, on this kernel's own `do_fork` and `do_sys_open`: what each prints is checked, too.
//!
//! A kprobe shows the registers around one instruction, a jprobe a call's arguments, a return probe its value
//! and duration; the older return probe shows failed calls only. Facts: the kernel documentation's samples.

use crate::arch::{Backend, Machine, Native, Outcome};
use crate::host::{Kernel, PROBES};
use crate::lock::SpinLock;
use crate::{println, syscalls};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use probe_core::arch::Regs as _;
use probe_core::handler::Answer;
use probe_core::{AnyProbe, Jprobe, Kprobe, Kretprobe, Probe};

/// What the handlers said, in order; printed as it is said.
static LOG: SpinLock<Vec<String>> = SpinLock::new(Vec::new());

fn log(line: String) {
    println!("{line}");
    LOG.lock().push(line);
}

fn plant(probe: impl Into<AnyProbe<Backend>>) -> Probe<Kernel> {
    PROBES.register(probe).unwrap_or_else(|error| {
        panic!("register_kprobe failed, returned {}: {error}", -error.errno().as_i32())
    })
}

/// An example's name, the example, and what it has to print.
type Example = (&'static str, fn(), &'static [&'static str]);

/// Runs all examples.
pub fn run() -> Outcome {
    let examples: [Example; 4] = [
        (
            "kprobe",
            kprobe,
            &["Planted kprobe at ", "pre_handler: p->addr = ", "post_handler: p->addr = ", "kprobe at "],
        ),
        (
            "jprobe",
            jprobe,
            &[
                "Planted jprobe at ",
                "jprobe: clone_flags = 0x11, stack_size = 0x33, regs = 0x44",
                "jprobe at ",
            ],
        ),
        (
            "kretprobe",
            kretprobe,
            &[
                "Planted return probe at do_sys_open: ",
                "do_sys_open returned ",
                "kretprobe at ",
                "Missed probing 0 instances of do_sys_open",
            ],
        ),
        ("kretprobe, failed calls", failed_calls, &["do_sys_open: return val = -2 (duration = "]),
    ];
    for (name, example, expected) in examples {
        println!("--- {name}");
        LOG.lock().clear();
        example();
        let said = core::mem::take(&mut *LOG.lock());
        let as_expected = said.len() == expected.len()
            && said.iter().zip(expected).all(|(line, start)| line.starts_with(start));
        if !as_expected {
            println!("{name} should have printed {expected:?}");
            return Outcome::Failed;
        }
    }
    Outcome::Passed
}

fn kprobe() {
    let probe = plant(
        Kprobe::<Backend>::at("do_fork")
            .pre(|hit| log(format!("pre_handler: p->addr = {}, ip = {:#x}", hit.pc(), hit.regs().pc())))
            .post(|hit| log(format!("post_handler: p->addr = {}, ip = {:#x}", hit.pc(), hit.regs().pc())))
            .fault(|hit, trap| {
                log(format!("fault_handler: p->addr = {}, trap #{trap}", hit.pc()));
                Answer::NotHandled
            }),
    );
    let at = probe.addr();
    log(format!("Planted kprobe at {at}"));
    syscalls::do_fork(0, 0, 0, 0);
    drop(probe);
    log(format!("kprobe at {at} unregistered"));
}

extern "C" fn on_do_fork(clone_flags: usize, _stack_start: usize, stack_size: usize, regs: usize) {
    log(format!("jprobe: clone_flags = {clone_flags:#x}, stack_size = {stack_size:#x}, regs = {regs:#x}"));
}

fn jprobe() {
    let handler = on_do_fork as *const () as usize;
    // SAFETY: the handler has the function's signature.
    let probe = plant(unsafe { Jprobe::<Backend>::from_raw("do_fork", handler) });
    let at = probe.addr();
    log(format!("Planted jprobe at {at}, handler addr {handler:#x}"));
    syscalls::do_fork(0x11, 0x22, 0x33, 0x44);
    drop(probe);
    log(format!("jprobe at {at} unregistered"));
}

fn kretprobe() {
    let probe = plant(
        Kretprobe::<Backend>::at("do_sys_open")
            .max_active(20)
            // Only for tasks: there is no other caller here, but nobody could time it.
            .entry(|_| Some(Native::now_ns()))
            .exit(|ret, started| {
                let took = Native::now_ns() - started;
                log(format!("do_sys_open returned {} and took {took} ns to execute", ret.value() as isize));
            }),
    );
    let at = probe.addr();
    log(format!("Planted return probe at do_sys_open: {at}"));
    syscalls::do_sys_open(c"/etc/motd".as_ptr(), 0, 0);
    let missed = probe.counters().missed_pool;
    drop(probe);
    log(format!("kretprobe at {at} unregistered"));
    log(format!("Missed probing {missed} instances of do_sys_open"));
}

fn failed_calls() {
    let probe = plant(Kretprobe::<Backend>::at("do_sys_open").entry(|_| Some(Native::now_ns())).exit(
        |ret, started| {
            let value = ret.value() as isize;
            if value < 0 {
                let took = Native::now_ns() - started;
                log(format!("do_sys_open: return val = {value} (duration = {took} ns)"));
            }
        },
    ));
    syscalls::do_sys_open(c"/etc/passwd".as_ptr(), 0, 0);
    syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0);
    drop(probe);
}
