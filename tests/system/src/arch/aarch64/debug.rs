//! Single steps and watchpoints of this CPU, both debug exceptions that EL1 takes from itself.
//!
//! Tasks run with PSTATE.D clear, so that their references to watched memory trap; traps set it. MDSCR_EL1.SS
//! is set only while one instruction is stepped, with interrupts masked: with SS set and D clear everything
//! would be stepped.
//!
//! A watchpoint traps before the access. So the CPU does without its watchpoints for one step, and the probes
//! are called at that step's end.

use crate::arch::{Backend, Interrupts, Machine, Native, Regs};
use crate::watch::Ranges;
use crate::{cpu, trap, watch as watched};
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};
use probe_arch_native::backend::regs::PSTATE_SS;
use probe_arch_native::backend::watch;
use probe_core::arch::SingleStep;

/// The exception class of a software step without a change of exception level.
pub const CLASS_STEP: u64 = 0x33;
/// The exception class of a watchpoint without a change of exception level.
pub const CLASS_WATCHPOINT: u64 = 0x35;

/// MDSCR_EL1: software step, debug exceptions of EL1 itself, watchpoints.
const STEP: u64 = 1;
const KERNEL_DEBUG: u64 = 1 << 13;
const MONITOR: u64 = 1 << 15;

/// What each CPU steps over: [`PENDING`], the watchpoint's number, [`WAS_ENABLED`], and from bit 32 on what
/// [`SingleStep::end`] needs. 0: nothing.
static STEPPED_OVER: [AtomicU64; cpu::MAX] = [const { AtomicU64::new(0) }; cpu::MAX];
const PENDING: u64 = 1 << 31;
const WAS_ENABLED: u64 = 1 << 30;

/// Turns debug exceptions on.
pub fn init_cpu() {
    msr!("oslar_el1", 0);
    msr!("mdscr_el1", KERNEL_DEBUG | MONITOR);
}

/// How many watchpoints this CPU has.
pub fn count() -> usize {
    watch::count(mrs!("id_aa64dfr0_el1")).min(4)
}

/// See [`Machine::begin_step`].
pub fn begin_step(regs: &mut Regs) -> u32 {
    msr!("mdscr_el1", STEP | KERNEL_DEBUG | MONITOR);
    Backend::begin(regs)
}

/// See [`Machine::end_step`].
pub fn end_step(regs: &mut Regs, kept: u32) {
    Backend::end(regs, kept);
    if regs.pstate & PSTATE_SS == 0 {
        msr!("mdscr_el1", KERNEL_DEBUG | MONITOR);
    }
}

/// Makes this CPU watch the first four of `ranges`.
pub fn load(ranges: &Ranges) {
    let [first, second, third, fourth, ..] =
        ranges.map(|range| range.as_ref().map_or((0, 0), watch::registers));
    msr!("dbgwvr0_el1", first.0);
    msr!("dbgwcr0_el1", first.1);
    msr!("dbgwvr1_el1", second.0);
    msr!("dbgwcr1_el1", second.1);
    msr!("dbgwvr2_el1", third.0);
    msr!("dbgwcr2_el1", third.1);
    msr!("dbgwvr3_el1", fourth.0);
    msr!("dbgwcr3_el1", fourth.1);
    Native::synchronise();
}

/// A watchpoint: the access has not been made yet.
#[cold]
pub fn watchpoint(regs: &mut Regs) {
    let ranges = watched::ranges();
    let Some(index) = watch::hit(ranges.iter().map(Option::as_ref), mrs!("far_el1") as usize) else {
        // Removed a moment ago: this CPU has not heard of it.
        watched::reload();
        return;
    };
    load(&[None; probe_core::limits::MAX_WATCHPOINTS]);
    let mut state = PENDING | index as u64;
    if Native::interrupts_of(regs) == Interrupts::Enabled {
        state |= WAS_ENABLED;
    }
    Native::set_interrupts_of(regs, Interrupts::Disabled);
    state |= u64::from(begin_step(regs)) << 32;
    stepped_over().store(state, Ordering::Relaxed);
}

/// One instruction was stepped: over a watchpoint, or in a slot.
pub fn step(regs: &mut Regs) {
    let Some((index, kept)) = end_stepping_over(regs) else { return trap::step(regs, CLASS_STEP as u32) };
    trap::watchpoint(regs, index);
    if u64::from(kept) & PSTATE_SS != 0 {
        // The instruction was stepped for a slot, too.
        trap::step(regs, CLASS_STEP as u32);
    }
}

/// The instruction that was to be stepped over has faulted: it will be started again.
pub fn abort(regs: &mut Regs) {
    end_stepping_over(regs);
}

/// Gives back what [`watchpoint`] has changed; its number and what the step kept.
fn end_stepping_over(regs: &mut Regs) -> Option<(usize, u32)> {
    let state = stepped_over().swap(0, Ordering::Relaxed);
    if state & PENDING == 0 {
        return None;
    }
    let kept = (state >> 32) as u32;
    end_step(regs, kept);
    if state & WAS_ENABLED != 0 {
        Native::set_interrupts_of(regs, Interrupts::Enabled);
    }
    watched::reload();
    Some(((state & 0xff) as usize, kept))
}

fn stepped_over() -> &'static AtomicU64 {
    &STEPPED_OVER[Native::this_cpu().number]
}
