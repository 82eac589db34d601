//! The complete user-visible state of a context and its way into and out of a signal frame.

use crate::random::Random;
use probe_arch_ppc64::PtRegs;
use std::fmt::Write as _;

/// Offsets in a ppc64 `ucontext_t` (the kernel's, which every C library keeps).
const GP_REGS: usize = 232;
const FP_REGS: usize = 616;
const V_REGS_POINTER: usize = 880;

/// FPRs and FPSCR; VRs, VSCR and VRSAVE; second doublewords of VSRs 0 to 31.
const FLOATS: usize = 33;
const VECTORS: usize = 34;
const VSX_LOW: usize = 32;

/// Everything that an instruction of a program can read or write, memory aside.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct State {
    pub(crate) regs: PtRegs,
    pub(crate) floats: [u64; FLOATS],
    pub(crate) vectors: [u128; VECTORS],
    pub(crate) vsx_low: [u64; VSX_LOW],
}

impl State {
    pub(crate) const ZERO: Self = Self {
        regs: PtRegs {
            gpr: [0; 32],
            nip: 0,
            msr: 0,
            orig_gpr3: 0,
            ctr: 0,
            link: 0,
            xer: 0,
            ccr: 0,
            softe: 0,
            trap: 0,
            dar: 0,
            dsisr: 0,
            result: 0,
        },
        floats: [0; FLOATS],
        vectors: [0; VECTORS],
        vsx_low: [0; VSX_LOW],
    };

    /// Reads the interrupted state.
    ///
    /// # Safety
    /// `context` is the third argument of a signal handler that is running.
    pub(crate) unsafe fn load(&mut self, context: *const u8) {
        // SAFETY: the caller passes a signal frame; its parts lie at these offsets and are this long.
        unsafe {
            (&raw mut self.regs).copy_from_nonoverlapping(context.add(GP_REGS).cast(), 1);
            (&raw mut self.floats).copy_from_nonoverlapping(context.add(FP_REGS).cast(), 1);
            let vectors = *context.add(V_REGS_POINTER).cast::<*const u8>();
            (&raw mut self.vectors).copy_from_nonoverlapping(vectors.cast(), 1);
            (&raw mut self.vsx_low).copy_from_nonoverlapping(vectors.add(VECTORS * 16).cast(), 1);
        }
        // The upper half of the FPSCR (how decimals are rounded) does not outlast a signal's return in QEMU
        // 7.2: a no-op loses it, too, and so does whoever returns twice, as a step's end does here.
        self.floats[32] &= u64::from(u32::MAX);
    }

    /// Makes the interrupted context go on with this state (its MSR stays what it is).
    ///
    /// # Safety
    /// As for [`State::load`].
    pub(crate) unsafe fn store(&self, context: *mut u8) {
        // SAFETY: as in `load`.
        unsafe {
            let regs = context.add(GP_REGS).cast::<PtRegs>();
            let msr = (*regs).msr;
            *regs = self.regs;
            (*regs).msr = msr;
            (&raw const self.floats).copy_to_nonoverlapping(context.add(FP_REGS).cast(), 1);
            let vectors = *context.add(V_REGS_POINTER).cast::<*mut u8>();
            (&raw const self.vectors).copy_to_nonoverlapping(vectors.cast(), 1);
            (&raw const self.vsx_low).copy_to_nonoverlapping(vectors.add(VECTORS * 16).cast(), 1);
        }
    }

    /// A state whose registers are pointers into `data`, edges and noise; LR and CTR may lead to `code`.
    pub(crate) fn random(random: &mut Random, data: usize, code: &[usize]) -> Self {
        let mut state = Self::ZERO;
        for gpr in &mut state.regs.gpr {
            *gpr = match random.below(8) {
                0..=2 => (data + random.below(64) * 16) as u64,
                3 => (data + random.below(1024)) as u64,
                4 => random.pick(&[0, 1, 2, 8, 16, 63, 64, u64::MAX, 1 << 63, i64::MAX as u64, 0xffff_ffff]),
                5 => random.below(256) as u64,
                _ => random.u64(),
            };
        }
        let target = |random: &mut Random| (random.pick(code) + random.below(4)) as u64;
        state.regs.link = if random.below(4) == 0 { random.u64() } else { target(random) };
        state.regs.ctr = match random.below(4) {
            0 => random.pick(&[0, 1, 2, 1 << 32, (1 << 32) + 1, u64::MAX]),
            1 => random.u64(),
            _ => target(random),
        };
        // SO OV CA, OV32 CA32, and the byte count of the string instructions.
        state.regs.xer = random.u64() & 0xe00c_007f;
        state.regs.ccr = u64::from(random.u32());
        for float in &mut state.floats[..32] {
            *float = match random.below(3) {
                0 => (random.below(1000) as f64 / 8.0).to_bits(),
                1 => random.pick(&[0, 1 << 63, 1, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000]),
                _ => random.u64(),
            };
        }
        // The rounding mode; exceptions stay disabled.
        state.floats[32] = random.below(4) as u64;
        for vector in &mut state.vectors[..32] {
            *vector = u128::from(random.u64()) << 64 | u128::from(random.u64());
        }
        for low in &mut state.vsx_low {
            *low = random.u64();
        }
        state
    }

    /// What differs between two states, in words.
    pub(crate) fn differences(&self, other: &Self) -> String {
        let mut text = String::new();
        for (n, (a, b)) in self.regs.gpr.iter().zip(&other.regs.gpr).enumerate() {
            note(&mut text, &format!("r{n}"), *a, *b);
        }
        note(&mut text, "nip", self.regs.nip, other.regs.nip);
        note(&mut text, "ctr", self.regs.ctr, other.regs.ctr);
        note(&mut text, "lr", self.regs.link, other.regs.link);
        note(&mut text, "xer", self.regs.xer, other.regs.xer);
        note(&mut text, "cr", self.regs.ccr, other.regs.ccr);
        for (n, (a, b)) in self.floats.iter().zip(&other.floats).enumerate() {
            note(&mut text, &format!("f{n}"), *a, *b);
        }
        for (n, (a, b)) in self.vectors.iter().zip(&other.vectors).enumerate() {
            note(&mut text, &format!("v{n}"), *a, *b);
        }
        for (n, (a, b)) in self.vsx_low.iter().zip(&other.vsx_low).enumerate() {
            note(&mut text, &format!("vs{n} low"), *a, *b);
        }
        text
    }
}

fn note<T: PartialEq + std::fmt::LowerHex>(text: &mut String, name: &str, a: T, b: T) {
    if a != b {
        let _ = write!(text, "{name}: {a:#x} != {b:#x}; ");
    }
}
