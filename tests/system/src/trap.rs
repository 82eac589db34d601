//! Where traps come in: each machine's entry code saves the registers and calls one of these, interrupts
//! disabled.

use crate::arch::{Machine, Native, Regs};
use crate::host::PROBES;
use crate::{cpu, memory, task};
use core::sync::atomic::{AtomicPtr, Ordering};
use probe_core::CodeAddr;
use probe_core::arch::Regs as _;
use probe_core::traps::{FaultVerdict, Trap};
use probe_kernel_kit::extable;

/// A breakpoint instruction was executed.
#[inline(always)]
pub fn breakpoint(regs: &mut Regs) {
    match PROBES.traps().breakpoint(regs) {
        Trap::Handled => {}
        Trap::Fault(fault) => self::fault(regs, Native::PAGE_FAULT, fault.addr),
        Trap::NotOurs => unclaimed(regs, Native::BREAKPOINT, regs.pc().as_usize()),
    }
}

/// One instruction was executed with the step flag set: trap `number`.
#[cfg(not(any(target_arch = "arm", target_arch = "riscv64")))]
pub fn step(regs: &mut Regs, number: u32) {
    Native::this_cpu().steps.fetch_add(1, Ordering::Relaxed);
    match PROBES.traps().step(regs) {
        Trap::Handled => {}
        _ => unclaimed(regs, number, regs.pc().as_usize()),
    }
}

/// The instruction before pc has referred to what watchpoint `index` watches.
#[cfg(not(any(target_arch = "arm", target_arch = "powerpc64", target_arch = "riscv64")))]
pub fn watchpoint(regs: &mut Regs, index: usize) {
    PROBES.traps().watchpoint(regs, index);
}

/// The instruction at pc has faulted, with the architecture's trap `number`, on access to `addr` if it was
/// one.
pub fn fault(regs: &mut Regs, number: u32, addr: usize) {
    // First: a fault of `extable` belongs to whoever asked for the access, not to a probe.
    if let Some(fixup) = extable::fixup(regs.pc().as_usize()) {
        regs.set_pc(CodeAddr::new(fixup));
        return;
    }
    if PROBES.traps().fault(regs, number) == FaultVerdict::Handled {
        return;
    }
    // The kernel's own handling: the registers say that the fault happened in the original text.
    if number == Native::PAGE_FAULT && memory::demand(addr) {
        return;
    }
    unclaimed(regs, number, addr);
}

/// A test's handling of a trap that nobody else wants: whether it was that.
pub type Hook = fn(&mut Regs, number: u32, addr: usize) -> bool;

static HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what is asked before a trap that nobody wants ends the kernel; `None`: nothing.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.store(hook.map_or(core::ptr::null_mut(), |hook| hook as *mut ()), Ordering::Release);
}

fn unclaimed(regs: &mut Regs, number: u32, addr: usize) {
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: `set_hook` stored a `Hook`.
        let hook = unsafe { core::mem::transmute::<*mut (), Hook>(hook) };
        if hook(regs, number, addr) {
            return;
        }
    }
    panic!("trap {number:#x} at {} (address {addr:#x}): {regs:#x?}", regs.pc());
}

static TICK_HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets what every interrupt by the timer and for rescheduling calls besides; `None`: nothing.
pub fn set_tick_hook(hook: Option<fn()>) {
    TICK_HOOK.store(hook.map_or(core::ptr::null_mut(), |hook| hook as *mut ()), Ordering::Release);
}

/// This CPU's timer has fired; it has been acknowledged.
pub fn timer() {
    let cpu = Native::this_cpu();
    cpu.timer_ticks.fetch_add(1, Ordering::Relaxed);
    on_timer_tick(cpu.number);
    call_tick_hook();
    cpu.reschedule.set(true);
    task::preempt();
}

/// Not a part of its caller, which every trap would save registers for.
#[inline(never)]
fn call_tick_hook() {
    let hook = TICK_HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: `set_tick_hook` stored a function of this type.
        let hook = unsafe { core::mem::transmute::<*mut (), fn()>(hook) };
        hook();
    }
}

/// Called in every timer interrupt: a place in interrupt context for probes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn on_timer_tick(cpu: usize) -> usize {
    core::hint::black_box(cpu + 1)
}

/// A CPU asks this one to look for a task; it has been acknowledged.
pub fn reschedule() {
    call_tick_hook();
    Native::this_cpu().reschedule.set(true);
    task::preempt();
}

/// Another CPU asks this one to synchronise; it has been acknowledged.
pub fn synchronise() {
    cpu::RENDEZVOUS.answer();
}
