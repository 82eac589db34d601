//! How a trampoline keeps the floating-point and vector state: which instruction, which components, how much
//! room.
//!
//! Decided once, from CPUID and XCR0, outside the hit path. Source: SDM volume 1, chapter 13.

use core::sync::atomic::{AtomicU8, Ordering};

/// The instruction pair that saves and restores the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saver {
    /// XSAVEC and XRSTOR: unused components cost nothing, and XGETBV tells which are in use. Implies AVX.
    Xsavec,
    /// XSAVE and XRSTOR.
    Xsave,
    /// FXSAVE and FXRSTOR: x87 and SSE.
    Fxsave,
    /// FNSAVE and FRSTOR: x87 alone (before the Pentium II).
    Fnsave,
}

/// The processor's [`Saver`], once known: CPUID costs a virtual machine's guest tens of microseconds.
#[derive(Debug, Default)]
pub struct Known(AtomicU8);

impl Known {
    const ALL: [Saver; 4] = [Saver::Xsavec, Saver::Xsave, Saver::Fxsave, Saver::Fnsave];

    /// Nothing is known yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// What is known, or what `decide` says, from now on.
    pub fn get(&self, decide: impl FnOnce() -> Saver) -> Saver {
        let known = usize::from(self.0.load(Ordering::Acquire));
        known.checked_sub(1).and_then(|index| Self::ALL.get(index).copied()).unwrap_or_else(|| {
            let saver = decide();
            let index = Self::ALL.iter().position(|other| *other == saver).unwrap_or(0);
            self.0.store(index as u8 + 1, Ordering::Release);
            saver
        })
    }
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveArea {
    /// The instruction pair.
    pub saver: Saver,
    /// The state components asked for: EDX:EAX of XSAVE. 0 for the older instructions.
    pub components: u32,
    /// The size of the area in bytes, a multiple of 64.
    pub len_bytes: usize,
}

/// x87, SSE, AVX, AVX-512 opmask, upper halves of ZMM0–15, ZMM16–31. Neither PKRU (a handler does not change
/// it) nor AMX tiles (eight kilobytes that only code that asked the system for them can touch).
const COMPONENTS: u32 = 0b1110_0111;
/// The legacy region and the header.
const XSAVE_HEADER_END: usize = 512 + 64;

/// The opmask registers among the state components.
pub const OPMASK: u32 = 1 << 5;
/// Where the trampolines' own moves keep the opmask registers in the area, 8 bytes each: in the place of
/// XSAVE's header. XMM registers lie where FXSAVE puts them.
pub const LIGHT_OPMASKS: usize = 512;
/// Where they keep ZMM16–31, 64 bytes each. Processors differ in the offsets of the standard layout (AMD's
/// area ends 256 bytes before Intel's), so these are our own.
pub const LIGHT_ZMM16: usize = XSAVE_HEADER_END;

// Wherever there are opmask registers there are AVX, 256 bytes, and all of AVX-512 (SDM volume 1, 13.3).
const _: () = assert!(LIGHT_OPMASKS + 8 * 8 <= LIGHT_ZMM16);
const _: () = assert!(LIGHT_ZMM16 + 16 * 64 <= XSAVE_HEADER_END + 256 + 64 + 512 + 1024);

/// Decides from `cpuid(leaf, subleaf) -> [eax, ebx, ecx, edx]` and `xcr0()`, which is called only where the
/// operating system has enabled XGETBV.
#[must_use]
pub fn save_area(cpuid: impl Fn(u32, u32) -> [u32; 4], xcr0: impl FnOnce() -> u64) -> SaveArea {
    const OSXSAVE: u32 = 1 << 27;
    const FXSR: u32 = 1 << 24;
    const XSAVEC: u32 = 1 << 1;
    const XGETBV_1: u32 = 1 << 2;
    const AVX: u32 = 1 << 2;
    let [max_leaf, ..] = cpuid(0, 0);
    let [_, _, features_c, features_d] = cpuid(1, 0);
    if max_leaf < 0xd || features_c & OSXSAVE == 0 {
        let (saver, len_bytes) =
            if features_d & FXSR != 0 { (Saver::Fxsave, 512) } else { (Saver::Fnsave, 128) };
        return SaveArea { saver, components: 0, len_bytes };
    }
    let components = xcr0() as u32 & COMPONENTS;
    // The standard layout's end; the compacted one of the same components is never longer.
    let len = (2..32)
        .filter(|component| components & 1 << component != 0)
        .map(|component| {
            let [size, offset, ..] = cpuid(0xd, component);
            (size as usize).saturating_add(offset as usize)
        })
        .fold(XSAVE_HEADER_END, usize::max);
    let [extensions, ..] = cpuid(0xd, 1);
    let tells = extensions & (XSAVEC | XGETBV_1) == XSAVEC | XGETBV_1;
    let saver = if tells && components & AVX != 0 { Saver::Xsavec } else { Saver::Xsave };
    SaveArea { saver, components, len_bytes: len.next_multiple_of(64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_not_decided_again() {
        for saver in Known::ALL {
            let known = Known::new();
            assert_eq!(known.get(|| saver), saver);
            assert_eq!(known.get(|| unreachable!("it is known")), saver);
        }
    }
}
