//! Breakpoint traps on stacks of their own (x86-64's interrupt stack table), done so that they nest: while a
//! trap is handled, the table leads to the next lower part of the stack.

use super::idt;
use crate::arch::{Machine, Native, Regs};
use crate::{cpu, trap};
use core::arch::asm;
use core::cell::UnsafeCell;
use core::ptr;

/// What one trap, its handlers included, may use; and how deep traps nest.
const PART_WORDS: usize = 512;
const PARTS: usize = 6;

/// One CPU's stack, task state segment and descriptors.
#[repr(C, align(64))]
struct State {
    stack: [[u128; PART_WORDS]; PARTS],
    /// Words 9 and 10 are the first stack of the table (Intel SDM 3A, 8.7).
    task_state: [u32; 26],
    descriptors: [u64; 5],
}

struct States(UnsafeCell<[State; cpu::MAX]>);

// SAFETY: each CPU uses its own element.
unsafe impl Sync for States {}

static STATES: States = States(UnsafeCell::new(
    [const { State { stack: [[0; PART_WORDS]; PARTS], task_state: [0; 26], descriptors: [0; 5] } }; cpu::MAX],
));

/// This CPU's.
#[inline(always)]
fn state() -> *mut State {
    STATES.0.get().cast::<State>().wrapping_add(Native::this_cpu().number)
}

/// Where the low half of the table's first stack pointer stands; all stacks lie below 4 GiB.
#[inline(always)]
fn stack_pointer() -> *mut u32 {
    state().wrapping_byte_add(core::mem::offset_of!(State, task_state) + 9 * 4).cast()
}

/// Loads this CPU's task state segment.
pub fn init() {
    const FLAT_CODE: u64 = 0x00af_9b00_0000_ffff;
    const FLAT_DATA: u64 = 0x00cf_9300_0000_ffff;
    const SELECTOR: u16 = 3 * 8;
    let top = state().wrapping_byte_add(size_of::<[[u128; PART_WORDS]; PARTS]>()).expose_provenance();
    // SAFETY: this CPU's own.
    unsafe { stack_pointer().write(top as u32) };
    let base = state().addr() as u64 + core::mem::offset_of!(State, task_state) as u64;
    let available = 0x89_u64 << 40 | (size_of::<[u32; 26]>() as u64 - 1);
    let descriptor = available | (base & 0xff_ffff) << 16 | (base >> 24 & 0xff) << 56;
    // SAFETY: as above.
    let descriptors = unsafe { &raw mut (*state()).descriptors };
    // SAFETY: as above.
    unsafe { descriptors.write([0, FLAT_CODE, FLAT_DATA, descriptor, base >> 32]) };
    #[repr(C, packed)]
    struct Pointer(u16, *const [u64; 5]);
    let pointer = Pointer(size_of::<[u64; 5]>() as u16 - 1, descriptors);
    // SAFETY: code and data segments are the same as before.
    unsafe {
        asm!("lgdt [{}]", "ltr {:x}", in(reg) ptr::from_ref(&pointer), in(reg) SELECTOR, options(nostack))
    };
}

/// Makes vector 3 use the table, or not; nothing is probed.
pub fn set(is_on: bool) {
    unsafe extern "C" {
        fn breakpoint_entry();
        fn breakpoint_entry_on_own_stack();
    }
    match is_on {
        true => idt::set_breakpoint(breakpoint_entry_on_own_stack as *const () as usize, 1),
        false => idt::set_breakpoint(breakpoint_entry as *const () as usize, 0),
    }
}

/// Vector 3, on this CPU's own stack.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn x86_breakpoint_on_own_stack(regs: &mut Regs) {
    let part = size_of::<[u128; PART_WORDS]>() as u32;
    let pointer = stack_pointer();
    // SAFETY: this CPU's own, with interrupts disabled; a trap within this one puts it back.
    let top = unsafe { pointer.read_volatile() };
    // SAFETY: as above.
    unsafe { pointer.write_volatile(top - part) };
    trap::breakpoint(regs);
    // SAFETY: as above.
    unsafe { pointer.write_volatile(top) };
}
