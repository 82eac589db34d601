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

/// Null, code, data, and a data segment for each CPU.
#[cfg(target_arch = "x86")]
struct Descriptors(core::cell::UnsafeCell<[u64; 3 + crate::cpu::MAX]>);

// SAFETY: a CPU writes its own descriptor, before it uses it.
#[cfg(target_arch = "x86")]
unsafe impl Sync for Descriptors {}

/// Makes the segment's base the CPU's area.
#[cfg(target_arch = "x86")]
pub fn set_base(cpu: &'static Cpu) {
    const FLAT_CODE: u64 = 0x00cf_9b00_0000_ffff;
    const FLAT_DATA: u64 = 0x00cf_9300_0000_ffff;
    static TABLE: Descriptors = Descriptors(core::cell::UnsafeCell::new({
        let mut table = [0; 3 + crate::cpu::MAX];
        table[1] = FLAT_CODE;
        table[2] = FLAT_DATA;
        table
    }));
    let base = core::ptr::from_ref(cpu).addr() as u64;
    let index = 3 + cpu.number;
    let descriptor = FLAT_DATA | (base & 0xff_ffff) << 16 | (base >> 24) << 56;
    // SAFETY: there is an element for every CPU.
    let element = unsafe { TABLE.0.get().cast::<u64>().add(index) };
    // SAFETY: this CPU's own element; see `Descriptors`.
    unsafe { element.write_volatile(descriptor) };
    #[repr(C, packed)]
    struct Pointer {
        limit: u16,
        base: usize,
    }
    let pointer =
        Pointer { limit: size_of::<Descriptors>() as u16 - 1, base: TABLE.0.get().expose_provenance() };
    // SAFETY: code and data segments are the same as before; nothing else uses FS.
    unsafe {
        asm!("lgdt [{}]", "mov fs, {:e}", in(reg) &raw const pointer, in(reg) index * 8,
            options(nostack, preserves_flags));
    }
}
