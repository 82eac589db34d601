//! The local APIC: cross-CPU interrupts, the start of other CPUs, the timer.

use super::idt::TIMER_VECTOR;
use crate::arch::{Machine, Native};
use crate::memory;

/// Where another CPU starts, in real mode: a page of low memory.
pub const TRAMPOLINE: usize = 0x8000;
/// The page of its registers.
pub const BASE: usize = 0xfee0_0000;
/// The vector of interrupts that went away.
pub const SPURIOUS_VECTOR: u8 = 0xff;

const END_OF_INTERRUPT: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const TIMER: usize = 0x320;
const TIMER_START: usize = 0x380;
const TIMER_DIVIDE: usize = 0x3e0;

const COMMAND_PENDING: u32 = 1 << 12;
const COMMAND_INIT: u32 = 0x4500;
const COMMAND_STARTUP: u32 = 0x4600;
const COMMAND_FIXED: u32 = 0x4000;
const TIMER_PERIODIC: u32 = 1 << 17;

/// Between two timer interrupts, in ns: QEMU's APIC counts at 1 GHz.
const PERIOD_NS: u32 = 4_000_000;

fn write(register: usize, value: u32) {
    // SAFETY: the page of the APIC's registers is mapped.
    unsafe { core::ptr::with_exposed_provenance_mut::<u32>(BASE + register).write_volatile(value) };
}

fn read(register: usize) -> u32 {
    // SAFETY: as in `write`.
    unsafe { core::ptr::with_exposed_provenance::<u32>(BASE + register).read_volatile() }
}

/// Tells the APIC that the interrupt was seen.
pub fn acknowledge() {
    write(END_OF_INTERRUPT, 0);
}

fn command(number: usize, low: u32) {
    // An interrupt between the two writes would send its own command to our CPU.
    let interrupts = Native::disable_interrupts();
    write(COMMAND_HIGH, (number as u32) << 24);
    write(COMMAND_LOW, low);
    while read(COMMAND_LOW) & COMMAND_PENDING != 0 {
        Native::relax();
    }
    crate::cpu::restore(interrupts);
}

/// Interrupts another CPU.
pub fn send(number: usize, vector: u8) {
    command(number, COMMAND_FIXED | u32::from(vector));
}

/// Starts another CPU through the trampoline.
pub fn start(number: usize, stack_top: usize) {
    unsafe extern "C" {
        static trampoline_start: u8;
        static trampoline_data: u8;
        static trampoline_end: u8;
    }
    let start = &raw const trampoline_start;
    let len = (&raw const trampoline_end).addr() - start.addr();
    let page = core::ptr::with_exposed_provenance_mut::<u8>(TRAMPOLINE);
    // SAFETY: the page is ordinary memory that only this function uses, one CPU at a time.
    unsafe { page.copy_from_nonoverlapping(start, len) };
    let data = [memory::root() as u32, stack_top as u32, number as u32];
    // SAFETY: the symbol lies in the trampoline that was just copied.
    let target = unsafe { page.add((&raw const trampoline_data).addr() - start.addr()) };
    // SAFETY: as above; there is room for three words.
    unsafe { target.cast::<[u32; 3]>().write_volatile(data) };
    write(SPURIOUS, 0x100 | u32::from(SPURIOUS_VECTOR));
    command(number, COMMAND_INIT);
    command(number, COMMAND_STARTUP | (TRAMPOLINE >> 12) as u32);
}

/// Turns the APIC of this CPU on, with a periodic timer.
pub fn start_timer() {
    write(SPURIOUS, 0x100 | u32::from(SPURIOUS_VECTOR));
    write(TIMER_DIVIDE, 0b1011);
    write(TIMER, TIMER_PERIODIC | u32::from(TIMER_VECTOR));
    write(TIMER_START, PERIOD_NS);
}
