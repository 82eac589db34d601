//! Where traps come in: each machine's entry code saves the registers and calls one of these, interrupts disabled.

use crate::arch::{Machine, Native, Regs};
use crate::{cpu, nofault, task};
use core::sync::atomic::Ordering;
use probe_core::CodeAddr;
use probe_core::arch::Regs as _;

/// A breakpoint instruction was executed.
pub fn breakpoint(regs: &mut Regs) {
    fault(regs, 3, regs.pc().as_usize());
}

/// The instruction at pc has faulted, with the architecture's trap `number`, on access to `addr` if it was one.
pub fn fault(regs: &mut Regs, number: u32, addr: usize) {
    // First: a fault of `nofault` belongs to whoever asked for the access, not to a probe.
    if let Some(fixup) = nofault::fixup(regs.pc().as_usize()) {
        regs.set_pc(CodeAddr::new(fixup));
        return;
    }
    panic!("trap {number:#x} at {:#x} (address {addr:#x}): {regs:#x?}", regs.pc().as_usize());
}

/// This CPU's timer has fired; it has been acknowledged.
pub fn timer() {
    let cpu = Native::this_cpu();
    cpu.timer_ticks.fetch_add(1, Ordering::Relaxed);
    cpu.reschedule.set(true);
    task::preempt();
}

/// Another CPU asks this one to look for a task; it has been acknowledged.
pub fn reschedule() {
    Native::this_cpu().reschedule.set(true);
    task::preempt();
}

/// Another CPU asks this one to synchronise; it has been acknowledged.
pub fn synchronise() {
    cpu::on_sync();
}
