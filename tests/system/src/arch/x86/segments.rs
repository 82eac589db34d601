//! The segment register through which a CPU finds its area: GS on x86-64, FS on i386.

use crate::cpu::Cpu;
use core::arch::asm;

/// Makes the segment's base the CPU's area.
#[cfg(target_arch = "x86_64")]
pub fn set_base(cpu: &'static Cpu) {
    const GS_BASE: u32 = 0xc000_0101;
    let base = core::ptr::from_ref(cpu).addr() as u64;
    // SAFETY: nothing else uses GS.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") base as u32, in("edx") (base >> 32) as u32,
            options(nostack, preserves_flags));
    }
}
