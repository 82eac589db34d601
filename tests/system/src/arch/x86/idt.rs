//! The interrupt descriptor table, and what each vector means.

use super::{apic, debug};
use crate::arch::Regs;
use crate::trap;
use core::arch::asm;
use core::cell::UnsafeCell;
use probe_core::arch::Regs as _;

/// The vector of a synchronisation.
pub const SYNC_VECTOR: u8 = 0xf0;
/// The vector of a reschedule.
pub const RESCHEDULE_VECTOR: u8 = 0xf1;
/// The vector of the timer.
pub const TIMER_VECTOR: u8 = 0xf2;

/// The vector that does nothing.
const NULL_VECTOR: u8 = 0x80;
/// The vector of single steps and data breakpoints.
pub const DEBUG: u8 = 1;
const PAGE_FAULT: u8 = 14;

/// A descriptor is two words.
struct Table(UnsafeCell<[[usize; 2]; 256]>);

// SAFETY: every CPU writes the same descriptors, the first one before there is another.
unsafe impl Sync for Table {}

static TABLE: Table = Table(UnsafeCell::new([[0; 2]; 256]));

unsafe extern "C" {
    static trap_stubs: [[u8; 16]; 256];
    fn breakpoint_entry();
}

/// An interrupt gate of the kernel's code segment: interrupts are off in the handler.
fn gate(handler: usize) -> [usize; 2] {
    let low = handler & 0xffff | 8 << 16;
    let flags = 0x8e00 | handler & 0xffff_0000;
    #[cfg(target_arch = "x86_64")]
    return [low | flags << 32, handler >> 32];
    #[cfg(target_arch = "x86")]
    return [low, flags];
}

/// Where the CPU starts to handle `vector`.
pub fn stub(vector: usize) -> usize {
    (&raw const trap_stubs).addr() + vector * 16
}

/// Changes where breakpoints lead, and which stack of the interrupt stack table they use, 0 for none.
#[cfg(target_arch = "x86_64")]
pub fn set_breakpoint(handler: usize, stack: usize) {
    // SAFETY: there are 256 elements.
    let element = unsafe { TABLE.0.get().cast::<[usize; 2]>().add(3) };
    let [low, high] = gate(handler);
    // SAFETY: an element of the static, at which no trap comes meanwhile.
    unsafe { element.write([low | stack << 32, high]) };
}

/// Loads the table on this CPU.
pub fn load() {
    for vector in 0..256 {
        let handler = match vector {
            3 => breakpoint_entry as *const () as usize,
            _ => stub(vector),
        };
        // SAFETY: there are 256 elements.
        let element = unsafe { TABLE.0.get().cast::<[usize; 2]>().add(vector) };
        // SAFETY: an element of the static; see `Table`.
        unsafe { element.write(gate(handler)) };
    }
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: *mut [[usize; 2]; 256],
    }
    let pointer = Pointer { limit: size_of::<Table>() as u16 - 1, base: TABLE.0.get() };
    // SAFETY: the table is complete and lives for ever.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags)) };
}

/// Vector 3.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn x86_breakpoint(regs: &mut Regs) {
    trap::breakpoint(regs);
}

/// All other vectors.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.entry")]
extern "C" fn x86_trap(regs: &mut Regs, vector: u32) {
    match vector as u8 {
        TIMER_VECTOR => {
            apic::acknowledge();
            trap::timer();
        }
        SYNC_VECTOR => {
            apic::acknowledge();
            trap::synchronise();
        }
        RESCHEDULE_VECTOR => {
            apic::acknowledge();
            trap::reschedule();
        }
        apic::SPURIOUS_VECTOR | NULL_VECTOR => {}
        PAGE_FAULT => {
            let addr: usize;
            // SAFETY: reads where the fault was.
            unsafe { asm!("mov {}, cr2", out(reg) addr, options(nomem, nostack, preserves_flags)) };
            trap::fault(regs, vector, addr);
        }
        DEBUG => debug::trap(regs),
        _ => trap::fault(regs, vector, regs.pc().as_usize()),
    }
}
