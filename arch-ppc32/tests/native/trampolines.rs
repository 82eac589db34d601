//! Return trampolines, executed: what a caller sees after a probed function has returned (RET_4).

use crate::shared::states::Random;
use crate::shared::stubs::Chunk;
use probe_arch_ppc32::{Ppc32, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Calls, NativeCalls, Regs, Resume, SaveSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// What the return finds and leaves: r0 to r31, CR, XER, CTR, f0 to f31, FPSCR.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq)]
struct Found {
    gpr: [u32; 32],
    cr: u32,
    xer: u32,
    ctr: u32,
    /// Where the return is to end: filled in by the assembly.
    real: u32,
    floats: [u64; 33],
}

const _: () = {
    assert!(core::mem::offset_of!(Found, cr) == 128);
    assert!(core::mem::offset_of!(Found, floats) == 144);
};

// return_through(r3: what to load, r4: where to store what is found, r5: the stub).
std::arch::global_asm!(
    ".pushsection .text.return_through,\"ax\",@progbits",
    ".p2align 2",
    ".globl return_through",
    ".type return_through,@function",
    "return_through:",
    "mflr 0; stw 0,4(1)",
    "stwu 1,-256(1)",
    "mfcr 0; stw 0,8(1)",
    "stw 2,16(1); stw 4,20(1)",
    "stmw 13,24(1)",
    ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "stfd \\r,104+8*(\\r-14)(1)",
    ".endr",
    "bcl 20,31,1f",
    "1: mflr 6; addi 6,6,2f-1b; stw 6,140(3)",
    "mtlr 5",
    "lfd 0,400(3); mtfsf 255,0",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "lfd \\r,144+8*\\r(3)",
    ".endr",
    "lwz 0,128(3); mtcrf 255,0",
    "lwz 0,132(3); mtxer 0",
    "lwz 0,136(3); mtctr 0",
    ".irp r,0,4,5,6,7,8,9,10,11,12,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,3",
    "lwz \\r,4*\\r(3)",
    ".endr",
    "blr",
    // Here the trampoline brings us back.
    "2:",
    "stw 3,12(1); lwz 3,20(1)",
    "stw 0,0(3); lwz 0,12(1); stw 0,12(3)",
    ".irp r,1,2,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "stw \\r,4*\\r(3)",
    ".endr",
    "mfcr 0; stw 0,128(3)",
    "mfxer 0; stw 0,132(3)",
    "mfctr 0; stw 0,136(3)",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "stfd \\r,144+8*\\r(3)",
    ".endr",
    "mffs 0; stfd 0,400(3)",
    "mtfsfi 7,0",
    "lwz 2,16(1)",
    ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "lfd \\r,104+8*(\\r-14)(1)",
    ".endr",
    "lmw 13,24(1)",
    "lwz 0,8(1); mtcrf 255,0",
    "addi 1,1,256",
    "lwz 0,4(1); mtlr 0",
    "blr",
    ".size return_through, . - return_through",
    ".popsection",
);

unsafe extern "C" {
    fn return_through(load: &mut Found, found: &mut Found, stub: usize);
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static REAL: AtomicU32 = AtomicU32::new(0);
static STUB_SEEN: AtomicUsize = AtomicUsize::new(0);
static REGS_SEEN: Mutex<Option<PtRegs>> = Mutex::new(None);
static CHANGE_R3: AtomicU32 = AtomicU32::new(0);

/// A return handler that destroys every register that a call may.
pub(crate) extern "C" fn handler(stub: usize, regs: *mut PtRegs) -> Resume {
    // SAFETY: the trampoline passes its own frame.
    let regs = unsafe { &mut *regs };
    STUB_SEEN.store(stub, Relaxed);
    *REGS_SEEN.lock().unwrap() = Some(*regs);
    regs.nip = REAL.load(Relaxed);
    let r3 = CHANGE_R3.load(Relaxed);
    if r3 != 0 {
        Ppc32.set_return_value(regs, r3 as usize);
        // One that calls preserve.
        regs.gpr[20] = !r3;
    }
    destroy_volatile_registers();
    if r3 != 0 { Resume::Changed } else { Resume::Unchanged }
}

fn destroy_volatile_registers() {
    // SAFETY: everything changed is declared; the rounding mode is put back to nearest.
    unsafe {
        std::arch::asm!(
            "li 0,-1; mtctr 0; mtcrf 0x83,0",
            "li 0,127; mtxer 0",
            "mtfsfi 7,0",
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13",
            "fsub \\r,\\r,\\r",
            ".endr",
            out("r0") _,
            clobber_abi("C"),
        );
    }
}

fn pattern(seed: u64) -> Found {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    Found {
        gpr: core::array::from_fn(|_| random.next() as u32),
        cr: random.next() as u32,
        xer: random.next() as u32 & 0xe000_007f,
        ctr: random.next() as u32,
        real: 0,
        floats: core::array::from_fn(|n| random.next() & if n == 32 { 3 } else { u64::MAX }),
    }
}

/// What comes back from `stub`, and what was loaded.
fn through(stub: usize, seed: u64) -> (Found, Found) {
    let (mut load, mut found) = (pattern(seed), pattern(0));
    load.real = 0;
    REAL.store(return_address(), Relaxed);
    // SAFETY: the stub leads to `handler`, which returns to where the assembly says.
    unsafe { return_through(&mut load, &mut found, stub) };
    (load, found)
}

/// Where [`return_through`] goes on: it lies behind its only `blr` that is not its last.
fn return_address() -> u32 {
    let code = return_through as *const () as *const u32;
    // SAFETY: text of this test.
    (0..)
        .map(|index| unsafe { code.add(index) })
        .find(|at| unsafe { **at } == 0x4e80_0020)
        .map_or(0, |at| at as u32 + 4)
}

/// RET_4, RET_7: everything is as the function left it, and the handler sees it.
#[test]
fn ret_4_a_trampoline_keeps_every_register() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    CHANGE_R3.store(0, Relaxed);
    for save in [SaveSet::General, SaveSet::Full] {
        let chunk = Chunk::new(Ppc32.return_trampoline(save));
        for round in 0..50 {
            let stub = chunk.at + (1 + (round as usize * 997) % (chunk.stubs - 1)) * Ppc32::STUB_LEN;
            let (load, found) = through(stub, round + 1);
            assert_eq!(STUB_SEEN.load(Relaxed), stub);
            let seen = REGS_SEEN.lock().unwrap().expect("the handler ran");
            assert_eq!(seen.pc(), CodeAddr::new(stub));
            for n in (0..32).filter(|n| ![1, 2, 13].contains(n)) {
                assert_eq!(seen.gpr[n], load.gpr[n], "r{n} in the handler, {save:?}");
                assert_eq!(found.gpr[n], load.gpr[n], "r{n} afterwards, {save:?}");
            }
            for n in [1, 2, 13] {
                assert_eq!(seen.gpr[n], found.gpr[n], "r{n}");
            }
            assert_eq!((seen.ccr, seen.xer, seen.ctr), (load.cr, load.xer, load.ctr));
            assert_eq!((found.cr, found.xer, found.ctr), (load.cr, load.xer, load.ctr));
            if save == SaveSet::Full {
                assert_eq!(found.floats[32] & 3, load.floats[32]);
                assert_eq!(found.floats[..32], load.floats[..32]);
            }
        }
    }
}

#[test]
fn ret_4_a_changed_return_value_arrives() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let chunk = Chunk::new(Ppc32.return_trampoline(SaveSet::Full));
    CHANGE_R3.store(0x1234_5678, Relaxed);
    let (_, found) = through(chunk.at + Ppc32::STUB_LEN, 1);
    CHANGE_R3.store(0, Relaxed);
    assert_eq!((found.gpr[3], found.gpr[20]), (0x1234_5678, !0x1234_5678));
}
