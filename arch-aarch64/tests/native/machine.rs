//! What the machine for one instruction (`tests/native`) is told of aarch64: what lies where, the registers
//! beside the general ones, the signal's frame.

use crate::shared::machine::{self, Own, Shared, on_signal};
use libc::{c_int, c_void, siginfo_t, ucontext_t};
use probe_arch_aarch64::{Aarch64, Plan, PtRegs};
use probe_core::arch::{Access, MemFault, Memory, Method};
use probe_core::error::Refusal;

pub(crate) type Machine = machine::Machine<Core>;
pub(crate) type Outcome = machine::OutcomeOf<Core>;

/// What makes the arena's pages guarded (FEAT_BTI).
pub(crate) const PROT_BTI: c_int = 0x10;

/// Q0 to Q31, FPSR, FPCR.
pub(crate) type Vectors = ([u128; 32], u32, u32);

pub(crate) struct Core;

static SHARED: Shared<Core> = Shared::new();

impl Own for Core {
    type Backend = Aarch64;
    type Start = [u128; 32];
    type Frame = Vectors;
    type After = ();

    const ARENA: usize = 1 << 20;
    const FORBIDDEN_BEFORE: usize = 0;
    // What literals may not be loaded from.
    const FORBIDDEN_BEHIND: usize = 1 << 20;
    const PLACE: usize = Self::ARENA / 2 + 0x40;
    const DATA: usize = 1 << 11;
    const TRAP_LEN: usize = 4;

    fn shared() -> &'static Shared<Self> {
        &SHARED
    }

    fn classify(word: u32) -> Result<(Plan, Method), Refusal> {
        Aarch64::classify(word)
    }

    /// Breakpoints that differ from each other: they are the literals that are loaded, too.
    fn filler(at: usize) -> [u8; 4] {
        let index = (at / 4) as u32;
        (0xd420_0000 | (index.wrapping_mul(0x9e37) & 0xffff) << 5).to_le_bytes()
    }

    fn install_handlers() {
        machine::install(on_signal_in_rust as *const ());
    }

    fn launch(vectors: &[u128; 32]) {
        launch(vectors);
    }

    fn memory(arena: usize, data: usize) -> impl Memory {
        Regions { text: (arena, Self::ARENA), data: (data, Self::DATA) }
    }
}

/// Loads the vector registers and traps; the handler goes on from there and comes back after the trap.
#[inline(never)]
fn launch(vectors: &[u128; 32]) {
    // SAFETY: every register that the handler does not give back is declared; general registers come back
    // from `home`.
    unsafe {
        core::arch::asm!(
            "ldp q0, q1, [x9, #0]", "ldp q2, q3, [x9, #32]", "ldp q4, q5, [x9, #64]",
            "ldp q6, q7, [x9, #96]", "ldp q8, q9, [x9, #128]", "ldp q10, q11, [x9, #160]",
            "ldp q12, q13, [x9, #192]", "ldp q14, q15, [x9, #224]", "ldp q16, q17, [x9, #256]",
            "ldp q18, q19, [x9, #288]", "ldp q20, q21, [x9, #320]", "ldp q22, q23, [x9, #352]",
            "ldp q24, q25, [x9, #384]", "ldp q26, q27, [x9, #416]", "ldp q28, q29, [x9, #448]",
            "ldp q30, q31, [x9, #480]",
            "mrs x10, fpcr", "mrs x11, fpsr", "msr fpsr, xzr", "msr fpcr, xzr",
            "brk #1",
            "msr fpcr, x10", "msr fpsr, x11",
            in("x9") vectors, out("x10") _, out("x11") _,
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
            out("v15") _,
            clobber_abi("C"),
        );
    }
}

extern "C" fn on_signal_in_rust(signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `ucontext_t` to a handler with SA_SIGINFO.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    // `regs`, `sp`, `pc` and `pstate` of `mcontext_t` are a `PtRegs` in place.
    let regs = (&raw mut context.uc_mcontext.regs).cast::<PtRegs>();
    // SAFETY: as said, and nothing else refers to this part of the context.
    let regs = unsafe { &mut *regs };
    on_signal::<Core>(signal, regs, || floating_point(context));
}

/// FPSIMD_MAGIC's record in the frame: vectors, FPSR, FPCR.
fn floating_point(context: &ucontext_t) -> ([u128; 32], u32, u32) {
    const FPSIMD_MAGIC: u32 = 0x4650_8001;
    // SAFETY: the frame's records follow `uc_mcontext`, 16-byte aligned; the kernel ends them with a zero
    // magic.
    let end = (&raw const context.uc_mcontext).cast::<u8>();
    let mut at = end.addr() + 8 + size_of::<PtRegs>();
    at = at.next_multiple_of(16);
    loop {
        let record = end.with_addr(at).cast::<[u32; 4]>();
        // SAFETY: as above.
        let [magic, size, fpsr, fpcr] = unsafe { *record };
        if magic == FPSIMD_MAGIC {
            let vectors = end.with_addr(at + 16).cast::<[u128; 32]>();
            // SAFETY: as above.
            return (unsafe { *vectors }, fpsr, fpcr);
        }
        assert!(magic != 0 && size != 0, "no FPSIMD record");
        at += size as usize;
    }
}

/// The memory that literals may be loaded from.
pub(crate) struct Regions {
    pub text: (usize, usize),
    pub data: (usize, usize),
}

// SAFETY: accesses outside the two mappings fail without effect.
unsafe impl Memory for Regions {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        let inside = |(at, len): (usize, usize)| addr >= at && addr + out.len() <= at + len;
        if !inside(self.text) && !inside(self.data) {
            return Err(MemFault { addr, access: Access::Read });
        }
        // SAFETY: inside a readable mapping.
        unsafe { core::ptr::copy_nonoverlapping(addr as *const u8, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        let (at, len) = self.data;
        if addr < at || addr + bytes.len() > at + len {
            return Err(MemFault { addr, access: Access::Write });
        }
        // SAFETY: inside a writable mapping.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        Ok(())
    }
}
