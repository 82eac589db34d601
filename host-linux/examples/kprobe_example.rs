//! A kprobe on a function of libc: pre, post and fault handlers that print registers.
//!
//! `cargo run -p probe-host-linux --example kprobe_example [symbol=NAME]` (default `getppid`)

use probe_core::arch::Regs as _;
use probe_core::handler::Answer;
use probe_host_linux::{Kprobe, Regs, probes};
use std::process::ExitCode;

/// The flags as `pt_regs` of this architecture names them.
fn flags(regs: &Regs) -> String {
    let named = |name: &str| {
        let at = Regs::names().iter().find(|(known, _)| *known == name)?.1;
        Some(format!("{name} = {:#x}", regs.register(at)?))
    };
    ["flags", "eflags", "pstate", "msr"].into_iter().find_map(named).unwrap_or_default()
}

fn main() -> ExitCode {
    let symbol = std::env::args().nth(1);
    let symbol =
        symbol.as_deref().and_then(|arg| arg.strip_prefix("symbol=")).unwrap_or("getppid").to_owned();
    let name = symbol.clone();
    // Printing takes locks and may allocate: fine here, where the probed function is called by nobody who
    // holds them.
    let probe = Kprobe::at(symbol.as_str())
        .pre(move |hit| {
            println!(
                "<{name}> pre_handler: p->addr = {:#x}, ip = {:#x}, {}",
                hit.pc(),
                hit.regs().pc(),
                flags(hit.regs())
            );
        })
        .post({
            let name = symbol.clone();
            move |hit| println!("<{name}> post_handler: p->addr = {:#x}, {}", hit.pc(), flags(hit.regs()))
        })
        .fault(|hit, trap| {
            println!("fault_handler: p->addr = {:#x}, trap #{trap}", hit.pc());
            Answer::NotHandled
        });
    let probe = match probes().register(probe) {
        Ok(probe) => probe,
        Err(error) => {
            println!("register_kprobe failed, returned -{}: {error}", error.errno().as_i32());
            return ExitCode::FAILURE;
        }
    };
    println!("Planted kprobe at {:#x}", probe.addr());
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    assert!(parent >= 0);
    let at = probe.addr();
    drop(probe);
    println!("kprobe at {at:#x} unregistered");
    ExitCode::SUCCESS
}
