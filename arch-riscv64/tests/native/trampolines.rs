//! Trampolines, executed: what a caller sees after a probed function has returned, and a function behind a
//! detour (RET_4, HIT_1).

use crate::shared::stubs::Chunk;
use probe_arch_riscv64::regs::{A0, RA, SP};
use probe_arch_riscv64::{PtRegs, Riscv64};
use probe_core::CodeAddr;
use probe_core::arch::{
    Calls, DetourCalls, Jumps, NativeArch, NativeCalls, NativeJumps, Regs, Resume, SaveSet, Site, Text,
};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What [`return_through`] loads before the return and finds after it.
#[repr(C)]
struct Call {
    /// X0 to X31; X0 to X4 are not loaded.
    x: [u64; 32],
    f: [u64; 32],
    fcsr: u64,
    stub: u64,
    /// Where the return is to end, and the stack pointer there: filled in by the assembly.
    real: u64,
    sp: u64,
    /// Filled in by the assembly.
    after: [u64; 32],
    f_after: [u64; 32],
    fcsr_after: u64,
}

core::arch::global_asm!(
    r#"
    .pushsection .text.return_through, "ax", @progbits
    .option push
    .option arch, +d, +c
    .option norelax
    // return_through(a0: &mut Call): returns to the stub with all registers loaded.
    .globl return_through
return_through:
    addi sp, sp, -256
    .irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27
    sd x\n, 8*\n(sp)
    .endr
    addi sp, sp, -112
    .irp n, 8,9
    fsd f\n, 8*(\n - 8)(sp)
    .endr
    .irp n, 18,19,20,21,22,23,24,25,26,27
    fsd f\n, 8*(\n - 16)(sp)
    .endr
    sd a0, 96(sp)
    lla t0, 9f
    sd t0, 528(a0)
    sd sp, 536(a0)
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    fld f\n, 256 + 8*\n(a0)
    .endr
    ld t0, 512(a0)
    fscsr t0
    ld ra, 520(a0)
    .irp n, 5,6,7,8,9,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    ld x\n, 8*\n(a0)
    .endr
    ld a0, 80(a0)
    ret
    // 32 bytes of stack more than it should have: where a handler that has changed SP resumes.
    .globl return_through_lower
return_through_lower:
    addi sp, sp, 32
9:  sd t0, 104(sp)
    ld t0, 96(sp)
    .irp n, 1,2,3,4,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    sd x\n, 544 + 8*\n(t0)
    .endr
    ld t1, 104(sp)
    sd t1, 544 + 40(t0)
    .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31
    fsd f\n, 800 + 8*\n(t0)
    .endr
    frcsr t1
    sd t1, 1056(t0)
    fscsr zero
    .irp n, 8,9
    fld f\n, 8*(\n - 8)(sp)
    .endr
    .irp n, 18,19,20,21,22,23,24,25,26,27
    fld f\n, 8*(\n - 16)(sp)
    .endr
    addi sp, sp, 112
    .irp n, 1,3,4,8,9,18,19,20,21,22,23,24,25,26,27
    ld x\n, 8*\n(sp)
    .endr
    addi sp, sp, 256
    ret
    .option pop
    .popsection
    "#
);

const _: () = {
    assert!(core::mem::offset_of!(Call, f) == 256);
    assert!(core::mem::offset_of!(Call, fcsr) == 512);
    assert!(core::mem::offset_of!(Call, stub) == 520);
    assert!(core::mem::offset_of!(Call, after) == 544);
    assert!(core::mem::offset_of!(Call, fcsr_after) == 1056);
};

unsafe extern "C" {
    fn return_through(call: &mut Call);
    static return_through_lower: [u8; 0];
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
const PRESERVED: usize = 3;
/// S1.
const S1: u8 = 9;

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
    Riscv64.set_return_value(regs, Riscv64.return_value(regs) + 1);
    let mode = MODE.load(Ordering::Relaxed);
    match mode {
        PRESERVED => regs.set_x(S1, regs.x(S1) ^ 0x1919),
        REDIRECTED => regs.set_x(RA, 0x3030),
        OTHER_STACK => {
            regs.set_x(SP, regs.x(SP) - 32);
            regs.pc = (&raw const return_through_lower).addr() as u64;
        }
        _ => regs.set_x(31, 0x1616),
    }
    destroy();
    if mode == PLAIN { Resume::Unchanged } else { Resume::Changed }
}

/// Destroys all registers that calls do not preserve.
fn destroy() {
    // SAFETY: changes nothing but declared registers and the floating-point control and status.
    unsafe {
        core::arch::asm!(
            ".irp n, 5,6,7,10,11,12,13,14,15,16,17,28,29,30,31",
            "li x\\n, 0xdead",
            ".endr",
            ".irp n, 0,1,2,3,4,5,6,7,10,11,12,13,14,15,16,17,28,29,30,31",
            "fmv.d.x f\\n, t0",
            ".endr",
            "li t0, 0x3f",
            "fscsr t0",
            clobber_abi("C"),
        );
    }
}

/// Returns to `stub` with something else in every register.
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
        f: core::array::from_fn(|index| u64::MAX / (index as u64 + 2)),
        fcsr: 0x42,
        stub: stub as u64,
        real: 0,
        sp: 0,
        after: [0; 32],
        f_after: [0; 32],
        fcsr_after: 0,
    })
}

fn general_registers_survive(trampoline: CodeAddr) {
    let chunk = Chunk::new(trampoline);
    assert!(chunk.stubs > 500);
    for stub in [1, chunk.stubs / 2, chunk.stubs - 1].map(|index| chunk.at + index * Riscv64::STUB_LEN) {
        for mode in [PLAIN, REDIRECTED, OTHER_STACK, PRESERVED] {
            MODE.store(mode, Ordering::Relaxed);
            let call = call(stub);
            assert_eq!(SEEN_STUB.load(Ordering::Relaxed), stub);
            let seen = SEEN.lock().unwrap().expect("the handler was called");
            assert_eq!([seen.pc, seen.x(RA), seen.x(SP)], [stub as u64, stub as u64, call.sp]);
            assert_eq!(call.after[usize::from(SP)], call.sp);
            for number in 5..32 {
                let x = call.x[usize::from(number)];
                assert_eq!(seen.x(number), x, "the handler sees x{number}");
                // Redirected, T0 holds where to.
                let target = (&raw const return_through_lower).addr() as u64;
                let after = match (mode, number) {
                    (_, A0) => x + 1,
                    (PLAIN, 31) => 0x1616,
                    (PRESERVED, S1) => x ^ 0x1919,
                    (REDIRECTED, 5) => call.real,
                    (OTHER_STACK, 5) => target,
                    _ => x,
                };
                assert_eq!(call.after[usize::from(number)], after, "x{number} after the return, mode {mode}");
            }
            let link = match mode {
                REDIRECTED => 0x3030,
                OTHER_STACK => (&raw const return_through_lower).addr() as u64,
                _ => call.real,
            };
            assert_eq!(call.after[usize::from(RA)], link, "a return leaves its target in ra, mode {mode}");
        }
    }
}

#[test]
fn ret_4_the_general_trampoline_keeps_general_registers() {
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    general_registers_survive(Riscv64.return_trampoline(SaveSet::General));
}

#[test]
fn ret_4_the_full_trampoline_keeps_everything() {
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let trampoline = Riscv64.return_trampoline(SaveSet::Full);
    general_registers_survive(trampoline);
    let chunk = Chunk::new(trampoline);
    for mode in [PLAIN, REDIRECTED, OTHER_STACK, PRESERVED] {
        MODE.store(mode, Ordering::Relaxed);
        let call = call(chunk.at + Riscv64::STUB_LEN);
        assert_eq!((call.f_after, call.fcsr_after), (call.f, call.fcsr), "mode {mode}");
    }
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
        regs.set_x(A0 + 3, 0x303);
        regs.set_x(S1, 0x1919);
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

/// The instructions of a place are no-operations, what follows them leads to where the test goes on.
#[test]
fn hit_1_a_hit_by_jump_changes_nothing_else() {
    const LEN: usize = 2 << 20;
    const PLACE: usize = 0x10_0802;
    // nop; c.nop, c.nop
    const NOPS: [[u8; 4]; 2] = [0x0000_0013_u32.to_le_bytes(), 0x0001_0001_u32.to_le_bytes()];
    let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let arena = unsafe { libc::mmap(core::ptr::null_mut(), LEN, all, flags, -1, 0) };
    assert_ne!(arena, libc::MAP_FAILED);
    let start = CodeAddr::new(arena.expose_provenance());
    for ((save, answer), nops) in [SaveSet::General, SaveSet::Full]
        .into_iter()
        .flat_map(|save| [Resume::Unchanged, Resume::Changed].map(|answer| (save, answer)))
        .flat_map(|how| NOPS.map(|nops| (how, nops)))
    {
        for has_vectors in [false, true] {
            Riscv64::set_vectors(has_vectors && crate::machine::Vectors::exist());
            let trampoline = Riscv64.detour_trampoline(save);
            // SAFETY: just mapped, and nobody else's.
            let bytes = unsafe { core::slice::from_raw_parts_mut(arena.cast::<u8>(), LEN) };
            let place = start.wrapping_add(PLACE);
            let site = Site { at: place, function: None, text: &Words(place, &nops) };
            let displaced = Riscv64.displace(&site).expect("it has a copy");
            let from = start.wrapping_add(Riscv64::DETOUR_HEADER_LEN);
            let entry = Riscv64.detour_entry(place, &displaced, from).expect("in reach");
            let word = Word { handler: on_jump, place, answer };
            let word = (&raw const word).expose_provenance();
            let calls = DetourCalls { trampoline, word, post_word: None };
            let detour = &mut bytes[entry.offset_from(from) as usize..];
            Riscv64.fill_detour(&displaced, &nops, place, entry, &calls, detour).expect("it has a detour");
            let mut call = call_to(place.as_usize());
            bytes[PLACE..][..4].copy_from_slice(&Riscv64.jump(place, entry)[..4]);
            // auipc t6, 0; ld t6, 14(t6); ld t6, (t6); c.jr t6; the address of where the test goes on.
            let next = [0x0000_0f97_u32, 0x00ef_bf83, 0x000f_bf83].map(u32::to_le_bytes);
            bytes[PLACE + 4..][..12].copy_from_slice(next.as_flattened());
            bytes[PLACE + 16..][..2].copy_from_slice(&0x8f82_u16.to_le_bytes());
            bytes[PLACE + 18..][..8].copy_from_slice(&(&raw const call.real).addr().to_le_bytes());
            // SAFETY: mapped and readable.
            unsafe { Riscv64::publish(start, LEN) };
            // SAFETY: the arena's code leads back to it.
            unsafe { return_through(&mut call) };
            check_registers(&call, place, save, answer);
        }
    }
    // SAFETY: mapped above, and nobody is in it any more.
    unsafe { libc::munmap(arena, LEN) };
}

/// What the handler has seen, and what is left behind the place.
fn check_registers(call: &Call, place: CodeAddr, save: SaveSet, answer: Resume) {
    let seen = SEEN.lock().unwrap().take().expect("the handler was called");
    assert_eq!([seen.pc, seen.x(RA), seen.x(SP)], [place.as_usize() as u64, call.stub, call.sp]);
    for number in 5..32 {
        let x = call.x[usize::from(number)];
        assert_eq!(seen.x(number), x, "the handler sees x{number}: {save:?} {answer:?}");
        let after = match number {
            13 if answer == Resume::Changed => 0x303,
            S1 if answer == Resume::Changed => 0x1919,
            31 => call.real,
            _ => x,
        };
        let found = call.after[usize::from(number)];
        assert_eq!(found, after, "x{number} behind the place: {save:?} {answer:?}");
    }
    assert_eq!(call.after[usize::from(RA)], call.stub);
    if save == SaveSet::Full {
        assert_eq!((call.f_after, call.fcsr_after), (call.f, call.fcsr));
    }
}
