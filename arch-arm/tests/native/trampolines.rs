//! Trampolines, executed: what a caller sees after a probed function has returned, and a function behind a
//! detour (RET_4, HIT_1); and what has been published runs (SAFE_3).

use probe_arch_arm::regs::{LR, SP};
use probe_arch_arm::{Arm, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, DetourCalls, Jumps, NativeArch, NativeCalls, NativeJumps, Regs, Resume, SaveSet, Site, Text,
};
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
fn destroy() {
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
}

/// Notes what it sees, and returns as the mode says.
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
    destroy();
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

/// A call that returns to `stub`.
fn call_to(stub: usize) -> Box<Call> {
    Box::new(Call {
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
    })
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
            let mut call = call_to(stub);
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

/// What the word of a detour is the address of.
#[repr(C)]
struct Word {
    handler: extern "C" fn(usize, *mut PtRegs) -> Resume,
    place: CodeAddr,
    answer: Resume,
}

/// Notes what it sees, destroys what a handler may, and changes and answers what the word says.
extern "C" fn on_jump(word: usize, regs: *mut PtRegs) -> Resume {
    // SAFETY: the test's word.
    let word = unsafe { &*std::ptr::with_exposed_provenance::<Word>(word) };
    // SAFETY: the trampoline's own frame.
    let regs = unsafe { &mut *regs };
    *SEEN.lock().unwrap() = Some(*regs);
    destroy();
    if word.answer == Resume::Changed {
        regs.set_r(3, 0x303);
        regs.set_r(4, 0x404);
        regs.cpsr ^= FLAGS;
    }
    word.answer
}

/// The text of a place alone.
struct Words<'a>(CodeAddr, &'a [u8]);

impl Text for Words<'_> {
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        let from = self.1.get(at.offset_from(self.0) as usize..).unwrap_or(&[]);
        let len = from.len().min(out.len());
        out[..len].copy_from_slice(&from[..len]);
        len
    }
}

/// `nop`; `nop.w`; two of two bytes; one of two and one of four: where the place is, with its set.
const NOPS: [(usize, &[u8]); 5] = [
    (0x10_0800, &[0x00, 0xf0, 0x20, 0xe3]),
    (0x10_0801, &[0xaf, 0xf3, 0x00, 0x80]),
    (0x10_0803, &[0xaf, 0xf3, 0x00, 0x80]),
    (0x10_0803, &[0x00, 0xbf, 0x00, 0xbf]),
    (0x10_0801, &[0x00, 0xbf, 0xaf, 0xf3, 0x00, 0x80]),
];

/// The instructions of a place are no-operations, what follows them leads to where the test goes on.
#[test]
fn hit_1_a_hit_by_jump_changes_nothing_else() {
    const LEN: usize = 2 << 20;
    let _lock = LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let arena = unsafe { libc::mmap(core::ptr::null_mut(), LEN, all, flags, -1, 0) };
    assert_ne!(arena, libc::MAP_FAILED);
    let start = CodeAddr::new(arena.expose_provenance());
    for (offset, nops) in NOPS {
        for (save, doubles) in [(SaveSet::General, 0), (SaveSet::Full, 16), (SaveSet::Full, 32)] {
            for answer in [Resume::Unchanged, Resume::Changed] {
                Arm::set_doubles(doubles == 32);
                // SAFETY: just mapped, and nobody else's.
                let bytes = unsafe { core::slice::from_raw_parts_mut(arena.cast::<u8>(), LEN) };
                let place = start.wrapping_add(offset);
                let function = Some((place, place.wrapping_add(nops.len())));
                let site = Site { at: place, function, text: &Words(place, nops) };
                let displaced = Arm.displace(&site).expect("it has a copy");
                let from = start.wrapping_add(Arm::DETOUR_HEADER_LEN);
                let entry = Arm.detour_entry(place, &displaced, from).expect("in reach");
                let word = Word { handler: on_jump, place, answer };
                let word = (&raw const word).expose_provenance();
                let calls = DetourCalls { trampoline: Arm.detour_trampoline(save), word, post_word: None };
                let detour = &mut bytes[entry.offset_from(from) as usize..];
                Arm.fill_detour(&displaced, nops, place, entry, &calls, detour).expect("it has a detour");
                let mut call = call_to(place.as_usize());
                let text = &mut bytes[offset & !1..];
                text[..nops.len()].copy_from_slice(nops);
                text[..4].copy_from_slice(&Arm.jump(place, Arm::same_set(entry, place))[..4]);
                goes_on_at(&mut text[nops.len()..], place.wrapping_add(nops.len()), &raw const call.real);
                // SAFETY: mapped and readable.
                unsafe { Arm::publish(start, LEN) };
                // SAFETY: the arena's code leads back to it.
                unsafe { return_through(&mut call) };
                check_jump(&call, place, answer, doubles);
            }
        }
    }
    // SAFETY: mapped above, and nobody is in it any more.
    unsafe { libc::munmap(arena, LEN) };
}

/// Writes code for `at` that goes on where `real` says then, and changes no register but IP.
fn goes_on_at(text: &mut [u8], at: CodeAddr, real: *const u32) {
    let literal = if at.as_usize() & 1 == 0 {
        // ldr ip, [pc, #0]; ldr pc, [ip]
        text[..8].copy_from_slice([0xe59f_c000_u32, 0xe59c_f000].map(u32::to_le_bytes).as_flattened());
        8
    } else {
        // ldr.w ip, [pc, #8]; ldr.w pc, [ip]
        let code = [0xf8df_u16, 0xc008, 0xf8dc, 0xf000].map(u16::to_le_bytes);
        text[..8].copy_from_slice(code.as_flattened());
        // From the word that the program counter is in.
        12 - (at.as_usize() & 2)
    };
    text[literal..literal + 4].copy_from_slice(&(real.addr() as u32).to_le_bytes());
}

/// What the handler has seen, and what is left behind the place.
fn check_jump(call: &Call, place: CodeAddr, answer: Resume, doubles: usize) {
    let seen = SEEN.lock().unwrap().take().expect("the handler was called");
    assert_eq!((seen.pc(), seen.r(LR), seen.r(SP)), (place, place.as_usize() as u32, call.sp));
    assert_eq!((seen.r[..13].to_vec(), seen.cpsr & FLAGS), (call.r.to_vec(), call.cpsr));
    let mut want = [0; 15];
    want[..13].copy_from_slice(&call.r);
    want[12] = (&raw const call.real).addr() as u32;
    want[usize::from(SP)] = call.sp;
    want[usize::from(LR)] = place.as_usize() as u32;
    let mut flags = call.cpsr;
    if answer == Resume::Changed {
        (want[3], want[4], flags) = (0x303, 0x404, flags ^ FLAGS);
    }
    assert_eq!((call.after, call.cpsr_after & FLAGS), (want, flags), "{place} {answer:?}");
    if doubles != 0 {
        assert_eq!((&call.d_after[..doubles], call.fpscr_after), (&call.d[..doubles], call.fpscr));
    }
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
