//! Trampolines, executed: what a caller sees after a probed function has returned, and a function behind a
//! detour (RET_4, HIT_1).

use crate::shared::stubs::{CHUNK, Chunk};
use probe_arch_aarch64::{Aarch64, PtRegs};
use probe_core::CodeAddr;
use probe_core::arch::{
    Calls, DetourCalls, Jumps, NativeArch, NativeCalls, NativeJumps, Regs, Resume, SaveSet,
};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What [`return_through`] loads before the return and finds after it.
#[repr(C, align(16))]
struct Call {
    x: [u64; 31],
    nzcv: u64,
    stub: u64,
    /// Where the return is to end: filled in by the assembly.
    real: u64,
    vectors: [u128; 32],
    /// Filled in by the assembly: X0 to X30, NZCV, SP (less what it was), unused, the vectors.
    after: [u64; 34],
    vectors_after: [u128; 32],
    fpcr: u64,
    fpsr: u64,
    fpcr_after: u64,
    fpsr_after: u64,
}

core::arch::global_asm!(
    r#"
    .pushsection .text.return_through, "ax", %progbits
    // return_through(x0: &mut Call): returns to the stub with all registers loaded.
    .globl return_through
return_through:
    stp x29, x30, [sp, #-176]!
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    str x0, [sp, #160]
    sub sp, sp, #272
    adr x1, 9f
    str x1, [x0, #264]
    add x1, x0, #272
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr q\n, [x1], #16
    .endr
    add x1, x0, #1568
    ldp x2, x3, [x1]
    msr fpcr, x2
    msr fpsr, x3
    ldr x1, [x0, #248]
    msr nzcv, x1
    ldp x2, x3, [x0, #16]
    ldp x4, x5, [x0, #32]
    ldp x6, x7, [x0, #48]
    ldp x8, x9, [x0, #64]
    ldp x10, x11, [x0, #80]
    ldp x12, x13, [x0, #96]
    ldp x14, x15, [x0, #112]
    ldp x16, x17, [x0, #128]
    ldp x18, x19, [x0, #144]
    ldp x20, x21, [x0, #160]
    ldp x22, x23, [x0, #176]
    ldp x24, x25, [x0, #192]
    ldp x26, x27, [x0, #208]
    ldp x28, x29, [x0, #224]
    ldr x30, [x0, #256]
    ldp x0, x1, [x0]
    ret
    // 32 bytes of stack more than it should have: where a handler that has changed SP resumes.
    add sp, sp, #32
9:
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    str x30, [sp, #240]
    mrs x1, nzcv
    str x1, [sp, #248]
    ldr x0, [sp, #272 + 160]
    add x1, x0, #1056
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str q\n, [x1], #16
    .endr
    mrs x2, fpcr
    mrs x3, fpsr
    add x1, x0, #1584
    stp x2, x3, [x1]
    msr fpcr, xzr
    msr fpsr, xzr
    add x1, x0, #784
    mov x2, #0
8:  ldr x3, [sp, x2]
    str x3, [x1, x2]
    add x2, x2, #8
    cmp x2, #256
    b.ne 8b
    add sp, sp, #272
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x29, x30, [sp], #176
    ret
    .popsection
    "#
);

const _: () = {
    assert!(core::mem::offset_of!(Call, vectors) == 272);
    assert!(core::mem::offset_of!(Call, after) == 784);
    assert!(core::mem::offset_of!(Call, vectors_after) == 1056);
    assert!(core::mem::offset_of!(Call, fpcr) == 1568);
    assert!(core::mem::offset_of!(Call, fpcr_after) == 1584);
};

unsafe extern "C" {
    fn return_through(call: &mut Call);
    static probe_aarch64_return_general: [u8; 0];
    static probe_aarch64_return_full: [u8; 0];
}

/// What the handler does.
static MODE: AtomicUsize = AtomicUsize::new(0);
static REAL: AtomicU64 = AtomicU64::new(0);
static SEEN_STUB: AtomicUsize = AtomicUsize::new(0);
static SEEN: std::sync::Mutex<Option<PtRegs>> = std::sync::Mutex::new(None);
static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

const PLAIN: usize = 0;
const REDIRECTED: usize = 1;
const OTHER_STACK: usize = 2;
const PRESERVED: usize = 4;

/// Destroys whatever a handler may destroy.
pub(crate) extern "C" fn handler(stub: usize, regs: *mut PtRegs) -> Resume {
    // SAFETY: the trampoline's own frame.
    let regs = unsafe { &mut *regs };
    SEEN_STUB.store(stub, Ordering::Relaxed);
    *SEEN.lock().unwrap() = Some(*regs);
    let real = REAL.load(Ordering::Relaxed);
    // The real address was not known before the return: the assembly has stored it in the call.
    // SAFETY: the test keeps the call alive.
    let target = unsafe { *(real as *const u64) };
    regs.set_pc(CodeAddr::new(target as usize));
    Aarch64.set_return_value(regs, Aarch64.return_value(regs) + 1);
    let mode = MODE.load(Ordering::Relaxed);
    match mode {
        PRESERVED => regs.x[19] ^= 0x1919,
        REDIRECTED => regs.x[30] = 0x3030,
        OTHER_STACK => {
            regs.sp -= 32;
            regs.pc -= 4;
        }
        // SAFETY: there is SVE, and no caller keeps predicates over a call.
        WITH_SVE => unsafe { destroy_predicates() },
        _ => regs.x[16] = 0x1616,
    }
    destroy();
    if [REDIRECTED, OTHER_STACK, PRESERVED].contains(&mode) { Resume::Changed } else { Resume::Unchanged }
}

/// Destroys all registers that calls do not preserve.
fn destroy() {
    // SAFETY: changes nothing but declared registers and the floating-point control and status.
    unsafe {
        core::arch::asm!(
            "msr fpsr, {status}", "msr fpcr, {mode}", "msr nzcv, {flags}",
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18",
            "mov x\\n, #0xdead",
            ".endr",
            status = in(reg) 0x1fu64, mode = in(reg) 0x0040_0000u64, flags = in(reg) 0xf000_0000u64,
            out("x18") _,
            clobber_abi("C"),
        );
    }
    destroy_vectors();
}

#[inline(never)]
fn destroy_vectors() {
    // SAFETY: callee-saved halves are saved by the compiler.
    unsafe {
        core::arch::asm!(
            ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
            "movi v\\n\\().16b, #0xaa",
            ".endr",
            clobber_abi("C"),
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _, out("v14") _,
            out("v15") _,
        );
    }
}

fn call(stub: usize) -> Box<Call> {
    let mut call = call_to(stub);
    REAL.store((&raw const call.real).addr() as u64, Ordering::Relaxed);
    // SAFETY: keeps all callee-saved registers; the stub leads back to it.
    unsafe { return_through(&mut call) };
    call
}

/// For [`return_through`], with something else in every register.
fn call_to(stub: usize) -> Box<Call> {
    Box::new(Call {
        x: core::array::from_fn(|index| 0x0101_0101_0101_0101u64.wrapping_mul(index as u64 + 3)),
        nzcv: 0x6000_0000,
        stub: stub as u64,
        real: 0,
        vectors: core::array::from_fn(|index| u128::MAX / (index as u128 + 2)),
        after: [0; 34],
        vectors_after: [0; 32],
        fpcr: 0x0300_0000,
        fpsr: 0x0800_0010,
        fpcr_after: 0,
        fpsr_after: 0,
    })
}

fn general_registers_survive(trampoline: CodeAddr) {
    let chunk = Chunk::new(trampoline);
    assert!(chunk.stubs > 500);
    for stub in [1, chunk.stubs / 2, chunk.stubs - 1].map(|index| chunk.at + index * Aarch64::STUB_LEN) {
        for mode in [PLAIN, REDIRECTED, OTHER_STACK, PRESERVED] {
            MODE.store(mode, Ordering::Relaxed);
            let call = call(stub);
            assert_eq!(SEEN_STUB.load(Ordering::Relaxed), stub);
            let seen = SEEN.lock().unwrap().expect("the handler was called");
            assert_eq!(seen.pc, stub as u64);
            assert_eq!(seen.pstate, call.nzcv);
            for index in (0..31).filter(|index| !matches!(index, 16 | 17 | 30)) {
                assert_eq!(seen.x[index], call.x[index], "the handler sees x{index}");
                let changed = if mode == PRESERVED && index == 19 { 0x1919 } else { 0 };
                let after = (call.x[index] + u64::from(index == 0)) ^ changed;
                assert_eq!(call.after[index], after, "x{index} after the return, mode {mode}");
            }
            assert_eq!(seen.x[30], stub as u64);
            assert_eq!(call.after[31], call.nzcv);
            match mode {
                PLAIN => {
                    assert_eq!(call.after[16], 0x1616, "x16 is as the handler left it");
                    assert_eq!(call.after[17], seen.x[17]);
                    assert_eq!(call.after[30], call.real, "a return leaves its target in x30");
                }
                REDIRECTED => assert_eq!(call.after[30], 0x3030),
                PRESERVED => assert_eq!(call.after[30], call.real),
                _ => assert_eq!(call.after[30], call.real - 4),
            }
        }
    }
}

fn vectors_survive(trampoline: CodeAddr) {
    let chunk = Chunk::new(trampoline);
    for mode in [PLAIN, REDIRECTED, OTHER_STACK] {
        MODE.store(mode, Ordering::Relaxed);
        let call = call(chunk.at + Aarch64::STUB_LEN);
        assert_eq!(call.vectors_after, call.vectors, "mode {mode}");
        assert_eq!((call.fpcr_after, call.fpsr_after), (call.fpcr, call.fpsr), "mode {mode}");
    }
}

#[test]
fn ret_4_the_general_trampoline_keeps_general_registers() {
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let general = CodeAddr::new((&raw const probe_aarch64_return_general).addr());
    assert_eq!(Aarch64.return_trampoline(SaveSet::General), general);
    general_registers_survive(general);
}

#[test]
fn ret_4_the_full_trampoline_keeps_everything() {
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let full = CodeAddr::new((&raw const probe_aarch64_return_full).addr());
    // Where there is SVE, the second is another one.
    for trampoline in [full, Aarch64.return_trampoline(SaveSet::Full)] {
        general_registers_survive(trampoline);
        vectors_survive(trampoline);
    }
}

core::arch::global_asm!(
    r#"
    .pushsection .text.return_through_sve, "ax", %progbits
    .arch_extension sve
    // return_through_sve(x0: &mut SveCall)
    .globl return_through_sve
return_through_sve:
    stp x29, x30, [sp, #-96]!
    stp d8, d9, [sp, #16]
    stp d10, d11, [sp, #32]
    stp d12, d13, [sp, #48]
    stp d14, d15, [sp, #64]
    str x0, [sp, #80]
    adr x1, 9f
    str x1, [x0, #8]
    ldp x2, x3, [x0, #16]
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ldr z\n, [x2, #\n, mul vl]
    .endr
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    ldr p\n, [x3, #\n, mul vl]
    .endr
    ldr x30, [x0]
    ret
9:  ldr x0, [sp, #80]
    ldp x2, x3, [x0, #32]
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    str z\n, [x2, #\n, mul vl]
    .endr
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    str p\n, [x3, #\n, mul vl]
    .endr
    ldp d8, d9, [sp, #16]
    ldp d10, d11, [sp, #32]
    ldp d12, d13, [sp, #48]
    ldp d14, d15, [sp, #64]
    ldp x29, x30, [sp], #96
    ret

    // The vector length in bytes, and a handler's worst: all predicates false.
    .globl vector_length
vector_length:
    rdvl x0, #1
    ret
    .globl destroy_predicates
destroy_predicates:
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
    pfalse p\n\().b
    .endr
    ret
    .popsection
    "#
);

#[repr(C)]
struct SveCall {
    stub: u64,
    real: u64,
    z: *const u8,
    p: *const u8,
    z_after: *mut u8,
    p_after: *mut u8,
}

unsafe extern "C" {
    fn return_through_sve(call: &mut SveCall);
    fn vector_length() -> usize;
    fn destroy_predicates();
}

const WITH_SVE: usize = 3;

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
        (regs.x[3], regs.x[19]) = (0x303, 0x1919);
    }
    word.answer
}

/// Memory that a branch to the trampoline reaches from, or not.
fn map_for_detours(trampoline: CodeAddr, is_near: bool) -> CodeAddr {
    const REACH: usize = 1 << 27;
    let step = if is_near { REACH / 16 } else { REACH * 2 };
    let maps = (1..16).map(|steps| {
        let hint = (trampoline.as_usize() & !(CHUNK - 1)).wrapping_add(steps * step);
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping, where others are only if nothing is at the hint.
        let map =
            unsafe { libc::mmap(std::ptr::with_exposed_provenance_mut(hint), CHUNK, all, flags, -1, 0) };
        assert_ne!(map, libc::MAP_FAILED);
        CodeAddr::new(map.expose_provenance())
    });
    let mut maps = maps.filter(|map| (map.abs_diff(trampoline) < REACH - CHUNK) == is_near);
    maps.next().expect("there is room")
}

/// The instruction of a place is a no-operation, what follows it leads to where the test goes on. Where a
/// branch reaches the trampoline, and where none does.
#[test]
fn hit_1_a_hit_by_jump_changes_nothing_else() {
    const PLACE: usize = 0x800;
    const NOP: u32 = 0xd503_201f;
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for is_near in [true, false] {
        for (save, answer) in [SaveSet::General, SaveSet::Full]
            .into_iter()
            .flat_map(|save| [Resume::Unchanged, Resume::Changed].map(|answer| (save, answer)))
        {
            let trampoline = Aarch64.detour_trampoline(save);
            let start = map_for_detours(trampoline, is_near);
            let arena = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start.as_usize());
            // SAFETY: just mapped, and nobody else's.
            let bytes = unsafe { core::slice::from_raw_parts_mut(arena.cast::<u8>(), CHUNK) };
            let (place, entry) = (start.wrapping_add(PLACE), start.wrapping_add(0x100));
            let word = Word { handler: on_jump, place, answer };
            let word = (&raw const word).expose_provenance();
            let calls = DetourCalls { trampoline, word, post_word: None };
            let detour = &mut bytes[0x100 - Aarch64::DETOUR_HEADER_LEN..];
            let displaced = probe_core::arch::Displaced::default();
            Aarch64
                .fill_detour(&displaced, &NOP.to_le_bytes(), place, entry, &calls, detour)
                .expect("it has a detour");
            let mut call = call_to(start.wrapping_add(PLACE).as_usize());
            // ldr x16, +12; ldr x16, [x16]; br x16; the address of where the test goes on.
            let next = [0x5800_0070u32, 0xf940_0210, 0xd61f_0200].map(u32::to_le_bytes);
            bytes[PLACE..][..4].copy_from_slice(&Aarch64.jump(place, entry)[..4]);
            bytes[PLACE + 4..][..12].copy_from_slice(next.as_flattened());
            bytes[PLACE + 16..][..8].copy_from_slice(&(&raw const call.real).addr().to_le_bytes());
            // SAFETY: mapped and readable.
            unsafe { Aarch64::publish(start, CHUNK) };
            // SAFETY: the arena's code leads back to it.
            unsafe { return_through(&mut call) };
            // SAFETY: this has mapped it, and nobody is in it any more.
            unsafe { libc::munmap(arena, CHUNK) };
            let seen = SEEN.lock().unwrap().take().expect("the handler was called");
            assert_eq!((seen.pc, seen.pstate), (place.as_usize() as u64, call.nzcv), "{save:?} {answer:?}");
            for index in 0..31 {
                let value = if index == 30 { call.stub } else { call.x[index] };
                assert_eq!(seen.x[index], value, "the handler sees x{index}: {save:?} {answer:?}");
                let after = match index {
                    3 if answer == Resume::Changed => 0x303,
                    19 if answer == Resume::Changed => 0x1919,
                    16 => call.real,
                    _ => value,
                };
                assert_eq!(call.after[index], after, "x{index} behind the place: {save:?} {answer:?}");
            }
            assert_eq!(call.after[31], call.nzcv);
            if save == SaveSet::Full {
                assert_eq!(call.vectors_after, call.vectors);
                assert_eq!((call.fpcr_after, call.fpsr_after), (call.fpcr, call.fpsr));
            }
        }
    }
}

#[test]
fn ret_4_the_full_trampoline_keeps_scalable_vectors() {
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let full = CodeAddr::new((&raw const probe_aarch64_return_full).addr());
    let trampoline = Aarch64.return_trampoline(SaveSet::Full);
    if trampoline == full {
        println!("skipped: this core has no SVE");
        return;
    }
    // SAFETY: there is SVE.
    let length = unsafe { vector_length() };
    let z: Vec<u8> = (0..32 * length).map(|index| (index * 7 + index / 256) as u8).collect();
    let p: Vec<u8> = (0..16 * length / 8).map(|index| (index * 5 + 1) as u8).collect();
    let (mut z_after, mut p_after) = (vec![0; z.len()], vec![0; p.len()]);
    let chunk = Chunk::new(trampoline);
    let mut call = SveCall {
        stub: (chunk.at + Aarch64::STUB_LEN) as u64,
        real: 0,
        z: z.as_ptr(),
        p: p.as_ptr(),
        z_after: z_after.as_mut_ptr(),
        p_after: p_after.as_mut_ptr(),
    };
    REAL.store((&raw const call.real).addr() as u64, Ordering::Relaxed);
    MODE.store(WITH_SVE, Ordering::Relaxed);
    // SAFETY: there is SVE; the buffers are as long as the registers.
    unsafe { return_through_sve(&mut call) };
    assert_eq!((z_after, p_after), (z, p), "vectors of {length} bytes");
}
