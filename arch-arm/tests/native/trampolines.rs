//! Return trampolines, executed: what a caller sees after a probed function has returned (RET_4); and what
//! has been published runs (SAFE_3).

use probe_arch_arm::regs::{LR, SP};
use probe_arch_arm::{Arm, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Calls, NativeArch, NativeCalls, Regs, Resume, SaveSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What [`return_through`] loads before the return and finds after it.
#[repr(C)]
struct Call {
    /// R0 to R12.
    r: [u32; 13],
    cpsr: u32,
    stub: u32,
    /// Where the return is to end, and the stack pointer there: filled in by the assembly.
    real: u32,
    sp: u32,
    d: [u64; 32],
    fpscr: u32,
    /// R0 to R14; filled in by the assembly, as is the rest.
    after: [u32; 15],
    cpsr_after: u32,
    d_after: [u64; 32],
    fpscr_after: u32,
}

const _: () = {
    assert!(core::mem::offset_of!(Call, cpsr) == 52);
    assert!(core::mem::offset_of!(Call, sp) == 64);
    assert!(core::mem::offset_of!(Call, d) == 72);
    assert!(core::mem::offset_of!(Call, fpscr) == 328);
    assert!(core::mem::offset_of!(Call, after) == 332);
    assert!(core::mem::offset_of!(Call, d_after) == 400);
    assert!(core::mem::offset_of!(Call, fpscr_after) == 656);
};

core::arch::global_asm!(
    r#"
    .pushsection .text.return_through, "ax", %progbits
    .syntax unified
    .arm
    .fpu neon
    .p2align 2
    // return_through(r0: &mut Call): returns to the stub with all registers loaded.
    .globl return_through
    .type return_through, %function
return_through:
    push {{r4-r11, lr}}
    push {{r0}}
    vpush {{d8-d15}}
    adr r1, 9f
    str r1, [r0, #60]
    str sp, [r0, #64]
    add r1, r0, #72
    vldmia r1!, {{d0-d15}}
    vldmia r1!, {{d16-d31}}
    ldr r1, [r0, #328]
    vmsr fpscr, r1
    ldr lr, [r0, #56]
    ldr r1, [r0, #52]
    msr cpsr_fs, r1
    ldmia r0, {{r0-r12}}
    bx lr
    // The same place, in T32.
    .thumb
    .p2align 2
    .globl return_through_t32
    .type return_through_t32, %function
return_through_t32:
    bx pc
    nop
    .arm
    b 9f
    // 32 bytes of stack more than it should have: where a handler that has changed SP resumes.
    .globl return_through_lower
    .type return_through_lower, %function
return_through_lower:
    add sp, sp, #32
9:  sub sp, sp, #8
    str ip, [sp]
    ldr ip, [sp, #72]
    add ip, ip, #332
    stmia ip, {{r0-r11}}
    ldr r0, [sp]
    str r0, [ip, #48]
    add r0, sp, #8
    str r0, [ip, #52]
    str lr, [ip, #56]
    mrs r0, cpsr
    str r0, [ip, #60]
    add r1, ip, #68
    vstmia r1!, {{d0-d15}}
    vstmia r1!, {{d16-d31}}
    vmrs r0, fpscr
    str r0, [r1]
    mov r0, #0
    vmsr fpscr, r0
    add sp, sp, #8
    vpop {{d8-d15}}
    pop {{r0}}
    pop {{r4-r11, pc}}
    .popsection
    "#
);

unsafe extern "C" {
    fn return_through(call: &mut Call);
    static return_through_t32: [u8; 0];
    static return_through_lower: [u8; 0];
}

/// What the handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The value that is returned.
    Plain,
    /// The caller is of T32.
    T32,
    /// The link register, the flags, and registers that calls preserve.
    Changed,
    OtherStack,
}

const MODES: [Mode; 4] = [Mode::Plain, Mode::T32, Mode::Changed, Mode::OtherStack];
const FLAGS: u32 = 0xf80f_0000;

static MODE: Mutex<Mode> = Mutex::new(Mode::Plain);
static REAL: AtomicUsize = AtomicUsize::new(0);
static SEEN_STUB: AtomicUsize = AtomicUsize::new(0);
static SEEN: Mutex<Option<PtRegs>> = Mutex::new(None);
static LOCK: Mutex<()> = Mutex::new(());

/// Destroys whatever a handler may destroy.
extern "C" fn handler(stub: usize, regs: *mut PtRegs) -> Resume {
    // SAFETY: the trampoline's own frame.
    let regs = unsafe { &mut *regs };
    SEEN_STUB.store(stub, Ordering::Relaxed);
    *SEEN.lock().unwrap() = Some(*regs);
    // The real address was not known before the return: the assembly has stored it in the call.
    // SAFETY: the test keeps the call alive.
    let target = unsafe { *(REAL.load(Ordering::Relaxed) as *const u32) };
    regs.set_pc(CodeAddr::new(target as usize));
    Arm.set_return_value(regs, Arm.return_value(regs) + 1);
    let mode = *MODE.lock().unwrap();
    match mode {
        Mode::Plain => {}
        Mode::T32 => regs.set_pc(CodeAddr::new((&raw const return_through_t32).addr() | 1)),
        Mode::Changed => {
            regs.set_r(LR, 0x3030);
            regs.set_r(4, !regs.r(4));
            regs.cpsr ^= FLAGS;
        }
        Mode::OtherStack => {
            regs.set_r(SP, regs.r(SP) - 32);
            regs.set_pc(CodeAddr::new((&raw const return_through_lower).addr()));
        }
    }
    // SAFETY: changes nothing but declared registers and FPSCR.
    unsafe {
        core::arch::asm!(
            ".fpu neon",
            "mvn r0, #0",
            "mov r1, r0",
            "mov r2, r0",
            "mov r3, r0",
            "mov r12, r0",
            "vdup.32 q0, r0",
            "vdup.32 q1, r0",
            "vdup.32 q2, r0",
            "vdup.32 q3, r0",
            "vdup.32 q8, r0",
            "vdup.32 q15, r0",
            "mov r0, #0x400000",
            "vmsr fpscr, r0",
            clobber_abi("C"),
        );
    }
    if mode == Mode::Plain { Resume::Unchanged } else { Resume::Changed }
}

const CHUNK: usize = 4096;

/// A page of executable memory with these bytes.
fn executable(bytes: &[u8]) -> usize {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), CHUNK, all, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    rewrite(at as usize, bytes);
    at as usize
}

fn rewrite(at: usize, bytes: &[u8]) {
    // SAFETY: a page of `executable`, in which nobody runs.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    // SAFETY: mapped and readable.
    unsafe { Arm::publish(CodeAddr::new(at), CHUNK) };
}

fn returns_as_without_a_stub(trampoline: CodeAddr, doubles: core::ops::Range<usize>) {
    let mut bytes = [0; CHUNK - 8];
    let handler = handler as *const () as usize;
    let stubs = Arm.fill_stubs(CodeAddr::new(0), trampoline, handler, &mut bytes);
    assert!(stubs > 500);
    let chunk = executable(&bytes);
    for stub in [1, stubs / 2, stubs - 1].map(|index| chunk + index * Arm::STUB_LEN) {
        for mode in MODES {
            *MODE.lock().unwrap() = mode;
            let mut call = Box::new(Call {
                r: core::array::from_fn(|index| 0x0101_0101_u32.wrapping_mul(index as u32 + 3)),
                cpsr: if stub & 8 == 0 { 0xa005_0000 } else { 0x580a_0000 },
                stub: stub as u32,
                real: 0,
                sp: 0,
                d: core::array::from_fn(|index| u64::MAX / (index as u64 + 2)),
                fpscr: 0x9040_0001,
                after: [0; 15],
                cpsr_after: 0,
                d_after: [0; 32],
                fpscr_after: 0,
            });
            REAL.store((&raw const call.real).addr(), Ordering::Relaxed);
            // SAFETY: keeps all callee-saved registers; the stub leads back to it.
            unsafe { return_through(&mut call) };
            check(&call, stub, mode, doubles.clone());
        }
    }
    // SAFETY: mapped above; no call is under way.
    unsafe { libc::munmap(chunk as *mut libc::c_void, CHUNK) };
}

/// What the handler has seen, and what is left behind the return.
fn check(call: &Call, stub: usize, mode: Mode, doubles: core::ops::Range<usize>) {
    assert_eq!(SEEN_STUB.load(Ordering::Relaxed), stub);
    let seen = SEEN.lock().unwrap().take().expect("the handler was called");
    assert_eq!([seen.pc, seen.r(LR), seen.r(SP)], [stub as u32, stub as u32, call.sp]);
    assert_eq!((seen.r[..13].to_vec(), seen.cpsr & FLAGS), (call.r.to_vec(), call.cpsr));
    let lower = (&raw const return_through_lower).addr() as u32;
    let link = match mode {
        Mode::Plain => call.real,
        Mode::T32 => (&raw const return_through_t32).addr() as u32 | 1,
        Mode::Changed => 0x3030,
        Mode::OtherStack => lower,
    };
    let mut want = [0; 15];
    want[..13].copy_from_slice(&call.r);
    want[0] += 1;
    want[usize::from(SP)] = call.sp;
    want[usize::from(LR)] = link;
    match mode {
        Mode::Changed => want[4] = !want[4],
        // IP holds where to.
        Mode::OtherStack => want[12] = lower,
        Mode::Plain | Mode::T32 => {}
    }
    assert_eq!(call.after, want, "{mode:?}: {:x?} for {want:x?}", call.after);
    let flags = if mode == Mode::Changed { call.cpsr ^ FLAGS } else { call.cpsr };
    assert_eq!(call.cpsr_after & FLAGS, flags, "{mode:?}");
    if !doubles.is_empty() {
        assert_eq!(call.d_after[doubles.clone()], call.d[doubles], "{mode:?}");
        assert_eq!(call.fpscr_after, call.fpscr);
    }
}

#[test]
fn ret_4_the_general_trampoline_keeps_general_registers() {
    let _lock = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    returns_as_without_a_stub(Arm.return_trampoline(SaveSet::General), 0..0);
}

#[test]
fn ret_4_the_full_trampoline_keeps_what_calls_return_in() {
    let _lock = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    Arm::set_doubles(false);
    returns_as_without_a_stub(Arm.return_trampoline(SaveSet::Full), 0..16);
    Arm::set_doubles(true);
    returns_as_without_a_stub(Arm.return_trampoline(SaveSet::Full), 0..32);
}

#[test]
fn jmp_2_the_return_trap_is_a_breakpoint() {
    let at = Arm.jprobe_return_trap();
    // SAFETY: text of the backend.
    let bytes = unsafe { *(at.as_usize() as *const [u8; 4]) };
    assert!(Arm::is_breakpoint(at, &bytes));
}

/// QEMU shows stale text to nobody, so this holds no more than that what has been published runs.
#[test]
fn safe_3_what_has_been_published_is_executed() {
    let at = executable(&[]);
    for number in 0..64_u32 {
        // mov r0, #number; bx lr
        rewrite(at, [0xe3a0_0000 | number, 0xe12f_ff1e].map(u32::to_le_bytes).as_flattened());
        // SAFETY: it holds a function of this kind.
        let function = unsafe { core::mem::transmute::<usize, extern "C" fn() -> u32>(at) };
        assert_eq!(function(), number);
    }
    // SAFETY: mapped above.
    unsafe { libc::munmap(at as *mut libc::c_void, CHUNK) };
}
