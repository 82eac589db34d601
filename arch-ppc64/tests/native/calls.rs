//! Return trampolines and jprobes, executed.
//!
//! A function written in assembly sets every register that a function may return with, or must preserve, to a
//! known value and returns to a stub; its caller, in assembly too, stores what it finds. The handler clobbers
//! everything that a handler may.

use crate::shared::stubs::Chunk;
use probe_arch_ppc64::Endian as _;
use probe_arch_ppc64::{Native, NativeEndian, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, MemFault, Memory, NativeArch, NativeCalls, Regs, Resume, SaveSet};
use std::arch::{asm, global_asm};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What the caller finds after the return: GPRs, CR, XER, CTR, FPSCR, VSCR, VSRs.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq)]
struct Found {
    gpr: [u64; 32],
    cr: u64,
    xer: u64,
    ctr: u64,
    fpscr: u64,
    vscr: [u64; 2],
    vsr: [[u64; 2]; 64],
}

const CR: usize = 256;
const FPSCR: usize = 280;
const VSCR: usize = 288;
const VSR: usize = 304;

impl Found {
    const ZERO: Self =
        Self { gpr: [0; 32], cr: 0, xer: 0, ctr: 0, fpscr: 0, vscr: [0; 2], vsr: [[0; 2]; 64] };
}

// call_via_stub(r3: what to load, r4: where to store what is found, r5: where the return address goes, r6:
// the stub) It loads all registers from *r3, "returns" to the stub with them, and stores at *r4 what comes
// back. Linkage: entered by `bl` from this file's `asm!` only; keeps r14-r31, f14-f31, v20-v31, r1, r2, r13,
// CR and LR.
global_asm!(
    ".pushsection .text.call_via_stub,\"ax\",@progbits",
    ".p2align 4",
    "call_via_stub:",
    "mflr 0; std 0,16(1)",
    "mfcr 0; std 0,8(1)",
    "stdu 1,-1008(1)",
    "std 2,112(1); std 4,120(1)",
    ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "std \\r,128+8*(\\r-14)(1)",
    "stfd \\r,272+8*(\\r-14)(1)",
    ".endr",
    ".irp r,20,21,22,23,24,25,26,27,28,29,30,31",
    "li 0,432+16*(\\r-20); stvx \\r,1,0",
    ".endr",
    // The return address: local label 2 below.
    "bcl 20,31,1f",
    "1: mflr 7; addi 7,7,2f-1b; std 7,0(5)",
    "mtlr 6",
    // Registers from *r3.
    "lfd 0,{fpscr}(3); mtfsf 255,0",
    "li 0,{vscr}; lvx 0,3,0; mtvscr 0",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "li 0,{vsr}+16*\\r; lxvd2x \\r,3,0",
    "li 0,{vsr}+512+16*\\r; lvx \\r,3,0",
    ".endr",
    "ld 0,{cr}(3); mtcrf 255,0",
    "ld 0,{cr}+8(3); mtxer 0",
    "ld 0,{cr}+16(3); mtctr 0",
    ".irp r,0,2,4,5,6,7,8,9,10,11,12,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,3",
    "ld \\r,8*\\r(3)",
    ".endr",
    "blr",
    // Here the trampoline brings us back.
    "2:",
    "std 3,984(1); ld 3,120(1)",
    "std 0,0(3); ld 0,984(1); std 0,24(3)",
    ".irp r,1,2,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "std \\r,8*\\r(3)",
    ".endr",
    "mfcr 0; std 0,{cr}(3)",
    "mfxer 0; std 0,{cr}+8(3)",
    "mfctr 0; std 0,{cr}+16(3)",
    ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "li 0,{vsr}+16*\\r; stxvd2x \\r,3,0",
    "li 0,{vsr}+512+16*\\r; stvx \\r,3,0",
    ".endr",
    "mffs 0; stfd 0,{fpscr}(3)",
    "mfvscr 0; li 0,{vscr}; stvx 0,3,0",
    "ld 2,112(1)",
    ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "ld \\r,128+8*(\\r-14)(1)",
    "lfd \\r,272+8*(\\r-14)(1)",
    ".endr",
    ".irp r,20,21,22,23,24,25,26,27,28,29,30,31",
    "li 0,432+16*(\\r-20); lvx \\r,1,0",
    ".endr",
    "addi 1,1,1008",
    "ld 0,8(1); mtcrf 255,0",
    "ld 0,16(1); mtlr 0",
    "blr",
    ".popsection",
    cr = const CR,
    fpscr = const FPSCR,
    vscr = const VSCR,
    vsr = const VSR,
);

fn call_via_stub(load: &Found, found: &mut Found, real: &AtomicU64, stub: usize) {
    // SAFETY: keeps what Rust relies on (see above); the rest is declared clobbered. The frame below r1
    // belongs to the callee; a function that contains a call has room for the LR and CR doublewords it
    // writes.
    unsafe {
        asm!(
            // A frame of its own, whose LR and CR doublewords may be written.
            "stdu 1,-160(1)",
            "bl call_via_stub",
            "addi 1,1,160",
            inout("r3") std::ptr::from_ref(load) => _,
            inout("r4") std::ptr::from_mut(found) => _,
            inout("r5") real.as_ptr() => _,
            inout("r6") stub => _,
            out("lr") _,
            clobber_abi("C"),
        );
    }
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static REAL: AtomicU64 = AtomicU64::new(0);
static STUB_SEEN: AtomicUsize = AtomicUsize::new(0);
static REGS_SEEN: Mutex<Option<PtRegs>> = Mutex::new(None);
static CHANGE_R3: AtomicU64 = AtomicU64::new(0);

/// A return handler that destroys every volatile register, and uses static data (so its TOC must be right).
pub(crate) extern "C" fn handler(stub: usize, regs: *mut PtRegs) -> Resume {
    // SAFETY: the trampoline passes its own frame.
    let regs = unsafe { &mut *regs };
    STUB_SEEN.store(stub, Relaxed);
    *REGS_SEEN.lock().unwrap() = Some(*regs);
    regs.nip = REAL.load(Relaxed);
    let r3 = CHANGE_R3.load(Relaxed);
    if r3 != 0 {
        Native::NEW.set_return_value(regs, r3 as usize);
        // One that calls preserve.
        regs.gpr[20] = !r3;
    }
    destroy_volatile_registers();
    if r3 != 0 { Resume::Changed } else { Resume::Unchanged }
}

fn destroy_volatile_registers() {
    // SAFETY: everything changed is declared; the control registers FPSCR and VSCR are, by the ABI, not kept
    // either (rounding mode aside, which is put back to nearest by Rust's own assumption: zero).
    unsafe {
        asm!(
            "li 0,-1; mtctr 0; mtcrf 0x83,0",
            "li 0,127; mtxer 0",
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13",
            "xxlxor \\r,\\r,\\r",
            ".endr",
            // The second halves of the non-volatile ones are volatile: xxpermdi keeps the first.
            ".irp r,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "xxpermdi \\r,\\r,0,0",
            ".endr",
            ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19",
            "vspltisw \\r,-1",
            ".endr",
            "mtvscr 0",
            "vspltisw 0,0",
            out("r0") _,
            clobber_abi("C"),
        );
    }
}

/// Stubs that lead to [`handler`] by the trampoline that saves what `save` says.
fn chunk(save: SaveSet) -> Chunk {
    Chunk::new(Native::NEW.return_trampoline(save))
}

fn pattern(seed: u64) -> Found {
    let mut random = crate::random::Random::new(seed);
    let mut found = Found::ZERO;
    found.gpr.fill_with(|| random.u64());
    found.cr = random.u64() & 0xffff_ffff;
    found.xer = random.u64() & 0xe00c_007f;
    found.ctr = random.u64();
    found.fpscr = random.u64() & 3;
    // SAT and NJ are the only bits; the last word of the vector, whatever the byte order.
    found.vscr = if cfg!(target_endian = "big") { [0, random.u64() & 1] } else { [random.u64() & 1, 0] };
    for vsr in &mut found.vsr {
        *vsr = [random.u64(), random.u64()];
    }
    found
}

/// RET_4, RET_7: everything is as the function left it, and the handler sees it.
#[test]
fn ret_4_a_trampoline_keeps_every_register() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    CHANGE_R3.store(0, Relaxed);
    for save in [SaveSet::General, SaveSet::Full] {
        let chunk = chunk(save);
        for round in 0..50u64 {
            let stub = chunk.at + (1 + (round as usize * 997) % (chunk.stubs - 1)) * Native::STUB_LEN;
            let load = pattern(round);
            let mut found = Found::ZERO;
            call_via_stub(&load, &mut found, &REAL, stub);
            assert_eq!(STUB_SEEN.load(Relaxed), stub);
            let seen = REGS_SEEN.lock().unwrap().expect("the handler ran");
            assert_eq!(seen.pc(), CodeAddr::new(stub));
            for n in (0..32).filter(|n| ![1, 13].contains(n)) {
                assert_eq!(seen.gpr[n], load.gpr[n], "r{n} in the handler, {save:?}");
                assert_eq!(found.gpr[n], load.gpr[n], "r{n} afterwards, {save:?}");
            }
            assert_eq!(seen.gpr[1], found.gpr[1], "r1");
            assert_eq!(seen.gpr[13], found.gpr[13], "r13");
            assert_eq!((seen.ccr, seen.xer, seen.ctr), (load.cr, load.xer, load.ctr));
            assert_eq!((found.cr, found.xer, found.ctr), (load.cr, load.xer, load.ctr));
            if save == SaveSet::Full {
                assert_eq!((found.fpscr & 3, found.vscr), (load.fpscr, load.vscr));
                for n in 0..64 {
                    assert_eq!(found.vsr[n], load.vsr[n], "vs{n}");
                }
            }
        }
    }
}

#[test]
fn ret_4_a_changed_return_value_arrives() {
    let _one = ONE_AT_A_TIME.lock().unwrap();
    let chunk = chunk(SaveSet::Full);
    CHANGE_R3.store(0x1234_5678_9abc_def0, Relaxed);
    let mut found = Found::ZERO;
    call_via_stub(&pattern(1), &mut found, &REAL, chunk.at + Native::STUB_LEN);
    CHANGE_R3.store(0, Relaxed);
    assert_eq!((found.gpr[3], found.gpr[20]), (0x1234_5678_9abc_def0, !0x1234_5678_9abc_def0));
}

/// The process's own memory, of which these tests access only what is mapped.
struct OwnMemory;

// SAFETY: the addresses are those of this thread's stack and of function descriptors; all of them are mapped.
unsafe impl Memory for OwnMemory {
    fn read(&self, addr: usize, out: &mut [u8]) -> Result<(), MemFault> {
        // SAFETY: mapped, as above.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(addr as *const u8, out.len()) };
        Ok(())
    }
    fn write(&self, addr: usize, bytes: &[u8]) -> Result<(), MemFault> {
        // SAFETY: mapped, as above, and below the red zone of the interrupted code.
        unsafe { bytes.as_ptr().copy_to_nonoverlapping(addr as *mut u8, bytes.len()) };
        Ok(())
    }
}

type Twelve = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

static ARGUMENTS: Mutex<[u64; 12]> = Mutex::new([0; 12]);
static PROBED: AtomicUsize = AtomicUsize::new(0);
static ENTRY_REGS: Mutex<Option<PtRegs>> = Mutex::new(None);

#[inline(never)]
extern "C" fn probed(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    i: u64,
    j: u64,
    k: u64,
    l: u64,
) -> u64 {
    PROBED.fetch_add(1, Relaxed);
    [a, b, c, d, e, f, g, h, i, j, k, l].iter().enumerate().map(|(n, x)| (n as u64 + 1) * x).sum()
}

#[inline(never)]
extern "C" fn jprobe_handler(
    mut a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    mut i: u64,
    j: u64,
    k: u64,
    mut l: u64,
) {
    *ARGUMENTS.lock().unwrap() = [a, b, c, d, e, f, g, h, i, j, k, l];
    // Its own copies (JMP_3).
    (a, i, l) = (!a, !i, !l);
    std::hint::black_box((&mut a, &mut i, &mut l));
    destroy_volatile_registers();
}

/// The first instruction of `probed` that every call runs through.
fn entry_of_probed() -> usize {
    let function = probed as Twelve as usize;
    #[cfg(target_abi = "elfv1")]
    // SAFETY: a function descriptor's first doubleword is the code's address.
    let function = unsafe { *(function as *const usize) };
    struct Here;
    impl probe_core::arch::Text for Here {
        fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
            // SAFETY: the text of this test.
            unsafe { out.as_mut_ptr().copy_from_nonoverlapping(at.as_usize() as *const u8, out.len()) };
            out.len()
        }
    }
    function + Native::entry_offset(&Here, CodeAddr::new(function), 0)
}

/// SIGTRAP of the jprobe test: at the entry, and at the handler's return.
unsafe extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    const GP_REGS: usize = 232;
    // SAFETY: the registers of a signal frame of this thread.
    let regs = unsafe { &mut *context.cast::<u8>().add(GP_REGS).cast::<PtRegs>() };
    let place = entry_of_probed();
    let mut entry = ENTRY_REGS.lock().unwrap();
    if regs.nip as usize == place {
        let argument = |n| Native::NEW.argument(regs, n, &OwnMemory).expect("the stack is mapped") as u64;
        assert_eq!([0, 7, 8, 11].map(argument), [10, 17, 18, 21]);
        *entry = Some(*regs);
        let handler = jprobe_handler as *const () as usize;
        Native::NEW
            .enter_jprobe(regs, handler, Native::NEW.jprobe_return_trap(), &OwnMemory)
            .expect("mapped");
    } else {
        assert_eq!(regs.pc(), Native::NEW.jprobe_return_trap());
        *regs = entry.take().expect("entered before");
        // The first instruction runs in place: the breakpoint goes, the test has one hit.
        restore_text(place);
    }
}

static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

fn write_text(at: usize, bytes: [u8; 4]) {
    let page = at & !0xffff;
    // SAFETY: makes the test's own text writable for the moment (it stays executable).
    unsafe { libc::mprotect(page as *mut _, 0x1_0000, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) };
    // SAFETY: text, writable now; an instruction of a function that only this test calls.
    unsafe { (at as *mut [u8; 4]).write_volatile(bytes) };
    // SAFETY: as above.
    unsafe { libc::mprotect(page as *mut _, 0x1_0000, libc::PROT_READ | libc::PROT_EXEC) };
    // SAFETY: mapped.
    unsafe { Native::publish(CodeAddr::new(at), 4) };
}

fn restore_text(at: usize) {
    write_text(at, NativeEndian::bytes(ORIGINAL.load(Relaxed) as u32));
}

/// JMP_1, JMP_2, JMP_3.
#[test]
fn jmp_1_2_3_a_jprobe_sees_all_arguments_and_changes_none() {
    let _machine = crate::machine::machine();
    let place = entry_of_probed();
    // SAFETY: text of this test.
    let original = NativeEndian::word(unsafe { *(place as *const [u8; 4]) });
    ORIGINAL.store(original as usize, Relaxed);
    // SAFETY: all zeros is a valid `sigaction`.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: the machine, whose handler this replaces for a moment, is locked.
    unsafe { libc::sigaction(libc::SIGTRAP, &action, &mut before) };
    write_text(place, *Native::BREAKPOINT.first_chunk().unwrap());
    let function: Twelve = std::hint::black_box(probed);
    let result = function(10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21);
    // SAFETY: puts the machine's handler back.
    unsafe { libc::sigaction(libc::SIGTRAP, &before, std::ptr::null_mut()) };
    assert_eq!(*ARGUMENTS.lock().unwrap(), [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]);
    assert_eq!(result, (1..=12).map(|n| n * (n + 9)).sum::<u64>());
    assert_eq!(PROBED.load(Relaxed), 1);
}
