//! Return stubs, detours and trampolines on this processor: nothing changes but what the handler changes
//! (HIT_1, RET_4), and an unwinder passes through a stub (RET_7, RET_8).

#![cfg(any(target_arch = "x86_64", target_arch = "x86"))]

mod native;

use native::arena::Arena;
use native::machine::{LIGHT, Machine};
use native::state::{Pattern, Pointers, Random, registers};
use native::{Backend, Native};
use probe_core::CodeAddr;
use probe_core::arch::{
    Arch, Calls, DetourCalls, Jumps, NativeArch, NativeCalls, NativeJumps, Regs, Resume, SaveSet, Site,
    TrampolineHandler,
};
use probe_unwind::{EhFrame, Stubs, x86};
use probe_x86_decode::{FlagBits, Registers};
use rstest::rstest;
use std::arch::naked_asm;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CHUNK_LEN: usize = 4096;
const STUB_LEN: usize = Backend::STUB_LEN;
const SP: u8 = 4;

/// The address of what trampolines call for a function.
macro_rules! handler {
    ($function:ident) => {{
        struct Handler;
        impl TrampolineHandler<Native> for Handler {
            const FUNCTION: extern "C" fn(usize, *mut Native) -> Resume = $function;
        }
        Backend::handler::<Handler>()
    }};
}

/// Executable memory with return stubs.
struct Chunk {
    at: CodeAddr,
    stubs: usize,
}

impl Chunk {
    fn new(save: SaveSet, handler: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), CHUNK_LEN, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: the mapping is that long and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), CHUNK_LEN) };
        let chunk = CodeAddr::new(at as usize);
        let stubs = Backend.fill_return_stubs(chunk, Backend.return_trampoline(save), handler, bytes);
        // SAFETY: the same mapping.
        let done = unsafe { libc::mprotect(at, CHUNK_LEN, libc::PROT_READ | libc::PROT_EXEC) };
        assert_eq!(done, 0);
        Self { at: chunk, stubs }
    }

    fn stub(&self, number: usize) -> usize {
        self.at.wrapping_add(number * STUB_LEN).as_usize()
    }
}

/// What the handler saw, and where it sends the context.
static SEEN: Mutex<Option<(Native, usize)>> = Mutex::new(None);
static RESUME: AtomicUsize = AtomicUsize::new(0);
/// Where it sends it the second time.
static LAST: AtomicUsize = AtomicUsize::new(0);

/// Whether the handler changes registers that calls preserve, and flags, and says so.
static CHANGES: AtomicBool = AtomicBool::new(false);

/// What it changes.
fn change(regs: &mut Native) {
    const BX: u8 = 3;
    const BP: u8 = 5;
    regs.set_general(BX, regs.general(BX) ^ 0x1234);
    regs.set_general(BP, regs.general(BP) ^ 0x4321);
    regs.set_flags(regs.flags() ^ FlagBits::CF ^ FlagBits::OF);
}

/// Notes what it sees, changes the return value and the program counter.
extern "C" fn note(stub: usize, regs: *mut Native) -> Resume {
    // SAFETY: the trampoline passes its frame.
    let regs = unsafe { &mut *regs };
    if let Ok(mut seen) = SEEN.try_lock() {
        *seen = Some((*regs, stub));
    }
    regs.set_pc(CodeAddr::new(RESUME.swap(LAST.load(Ordering::Relaxed), Ordering::Relaxed)));
    Backend.set_return_value(regs, Backend.return_value(regs) ^ 0x55);
    if !CHANGES.load(Ordering::Relaxed) {
        return Resume::Unchanged;
    }
    change(regs);
    Resume::Changed
}

/// The same, and destroys all that a C function may.
extern "C" fn note_and_clobber(stub: usize, regs: *mut Native) -> Resume {
    let resume = note(stub, regs);
    clobber();
    resume
}

fn clobber() {
    // SAFETY: changes named registers only; leaves the x87 stack empty as it was.
    unsafe {
        std::arch::asm!(
            "fldz", "fldz", "fldz", "fldz", "fldz", "fldz", "fldz", "fldz", "fninit",
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: AVX is there; registers that a C function may change.
        unsafe {
            std::arch::asm!(
                "vzeroall",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            );
        }
    }
    if std::is_x86_feature_detected!("avx512bw") {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: AVX-512 is there; a register that a C function may change.
        unsafe {
            std::arch::asm!("vpxord zmm17, zmm17, zmm17", clobber_abi("C"))
        };
        // SAFETY: as above.
        unsafe { std::arch::asm!("kxorq k3, k3, k3", clobber_abi("C")) };
    }
}

/// The same, where what it leaves of x87 and of the upper halves of vectors has not been in use.
extern "C" fn note_and_clobber_lightly(stub: usize, regs: *mut Native) -> Resume {
    let resume = note_and_clobber(stub, regs);
    clobber_lightly();
    resume
}

fn clobber_lightly() {
    // SAFETY: C functions may leave flags of x87 and SSE, here "precision"; the stack stays empty.
    unsafe {
        std::arch::asm!(
            "fld1", "fldpi", "fdivp", "fstp st(0)",
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
    }
    std::hint::black_box(std::hint::black_box(1.0_f32) / std::hint::black_box(3.0));
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: AVX is there; registers that a C function may change.
        unsafe { std::arch::asm!("vcmpps ymm1, ymm1, ymm1, 15", "vmovaps ymm3, ymm1", clobber_abi("C")) };
    }
}

#[rstest]
#[case::general(SaveSet::General, handler!(note), false)]
#[case::full(SaveSet::Full, handler!(note_and_clobber), false)]
#[case::light(SaveSet::Full, handler!(note_and_clobber_lightly), true)]
fn a_return_through_a_stub_changes_nothing_else(
    #[case] save: SaveSet,
    #[case] handler: usize,
    #[case] is_light: bool,
) {
    let machine = Machine::take();
    LIGHT.store(is_light, Ordering::Relaxed);
    // The signal that a run begins with makes x87 count as used: the first return is not a light one.
    let passes = if is_light { 2 } else { 1 };
    let arena = Arena::new();
    let chunk = Chunk::new(save, handler);
    let pattern = Pattern::new(&arena, &mut Random::new(3));
    let mut random = Random::new(5);
    let idle = machine.run(&{
        arena.bytes(arena.code()).fill(0xcc);
        let mut regs = Native::default();
        regs.set_pc(CodeAddr::new(arena.code()));
        regs
    });
    for round in 0..500 {
        let number = 1 + random.below(chunk.stubs - 1);
        let target = arena.code() + random.below(0x700);
        let place = arena.code() + 0x800;
        arena.bytes(arena.code())[0x800] = 0xc3;
        let mut regs = registers(&arena, place, Pointers::ToData, &mut random);
        // Room for the trampoline's frame and for the handler; any alignment to words.
        regs.set_general(SP, (arena.stack() + Arena::LEN - 64 - 8 * random.below(8)) as u64);
        copy_segments(&mut regs, &idle.regs);
        RESUME.store(if is_light { place } else { target }, Ordering::Relaxed);
        LAST.store(target, Ordering::Relaxed);
        CHANGES.store(round % 2 == 1, Ordering::Relaxed);

        let run_returning_to = |addresses: &[usize]| {
            pattern.fill(&arena, round);
            let mut regs = regs;
            for address in addresses {
                let slot = regs.sp() - arena.stack();
                arena.bytes(arena.stack())[slot..slot + size_of::<usize>()]
                    .copy_from_slice(&address.to_ne_bytes());
                regs.set_general(SP, (regs.sp() - size_of::<usize>()) as u64);
            }
            regs.set_general(SP, (regs.sp() + size_of::<usize>()) as u64);
            let outcome = machine.run(&regs);
            let sp = outcome.regs.sp() - arena.stack();
            (outcome, arena.bytes(arena.data()).to_vec(), arena.bytes(arena.stack())[sp..].to_vec())
        };
        let mut bare = run_returning_to(&[target]);
        let probed = run_returning_to(&[chunk.stub(number)].repeat(passes));

        let returned = |regs: &mut Native| {
            Backend.set_return_value(regs, Backend.return_value(regs) ^ 0x55);
            if round % 2 == 1 {
                change(regs);
            }
        };
        (0..passes).for_each(|_| returned(&mut bare.0.regs));
        assert_eq!(bare.0.signal, libc::SIGTRAP);
        if save == SaveSet::General {
            bare.0.floating = probed.0.floating;
        }
        assert_eq!(probed.0, bare.0, "round {round}");
        assert!(probed.1 == bare.1 && probed.2 == bare.2, "round {round}: memory differs");
        let (seen, stub) = SEEN.lock().unwrap().take().expect("the handler was called");
        assert_eq!(stub, chunk.stub(number));
        let mut at_return = regs;
        at_return.set_general(SP, (regs.sp() + size_of::<usize>()) as u64);
        at_return.set_pc(CodeAddr::new(stub));
        (1..passes).for_each(|_| returned(&mut at_return));
        assert_eq!(comparable(seen), comparable(at_return));
    }
}

/// Without what the trampoline fills in and the fixed bit of the flags.
fn comparable(mut regs: Native) -> Native {
    regs.set_flags(regs.flags() | 2 | FlagBits::IF);
    Native {
        #[cfg(target_arch = "x86_64")]
        orig_rax: 0,
        #[cfg(target_arch = "x86")]
        orig_eax: 0,
        ..regs
    }
}

fn copy_segments(regs: &mut Native, from: &Native) {
    (regs.cs, regs.ss) = (from.cs, from.ss);
    #[cfg(target_arch = "x86")]
    {
        (regs.ds, regs.es, regs.fs, regs.gs) = (from.ds, from.es, from.fs, from.gs);
    }
}

// ---- detours ----------------------------------------------------------------------------------------------

/// What the word of a detour is the address of.
#[repr(C)]
struct Word {
    handler: usize,
    place: CodeAddr,
    save: SaveSet,
    answer: Resume,
    /// What the function shall return to, where it is followed.
    stub: usize,
    seen: Mutex<Option<Native>>,
}

/// Notes what it sees, destroys all that a C function may, changes and answers what the word says.
extern "C" fn on_jump(word: usize, regs: *mut Native) -> Resume {
    // SAFETY: the address of a word that outlives the run.
    let word = unsafe { &*std::ptr::with_exposed_provenance::<Word>(word) };
    // SAFETY: the trampoline passes its frame.
    let regs = unsafe { &mut *regs };
    assert_eq!(regs.pc(), word.place);
    *word.seen.lock().unwrap() = Some(*regs);
    if word.save == SaveSet::Full {
        clobber();
        clobber_lightly();
    }
    if matches!(word.answer, Resume::Changed | Resume::ChangedFollowed) {
        change(regs);
    }
    if matches!(word.answer, Resume::Followed | Resume::ChangedFollowed) {
        // SAFETY: the return address of the function under test.
        unsafe { std::ptr::with_exposed_provenance_mut::<usize>(regs.sp()).write(word.stub) };
    }
    word.answer
}

/// A function of two five-byte no-operations and a return, a jump in the place of each. The second hit meets
/// the state that the first has left, and answers what is tested; where it is followed, the return meets
/// that. Below the stack pointer nothing changes either, unless the call is followed.
#[rstest]
fn hit_1_a_hit_by_jump_changes_nothing_else(
    #[values(SaveSet::General, SaveSet::Full)] save: SaveSet,
    #[values(false, true)] is_light: bool,
    #[values(false, true)] at_entry: bool,
    #[values(Resume::Unchanged, Resume::Changed, Resume::Followed, Resume::ChangedFollowed)] answer: Resume,
) {
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    const RED_ZONE: usize = if cfg!(target_arch = "x86_64") { 128 } else { 0 };
    let is_followed = matches!(answer, Resume::Followed | Resume::ChangedFollowed);
    let for_entries = Backend.entry_trampoline(save);
    let trampoline = if at_entry { for_entries } else { Some(Backend.detour_trampoline(save)) };
    let trampoline = trampoline.expect("a program's functions are followed in step");
    if is_followed && !at_entry {
        // What entry trampolines alone are answered.
        return;
    }
    let machine = Machine::take();
    LIGHT.store(is_light, Ordering::Relaxed);
    CHANGES.store(false, Ordering::Relaxed);
    let arena = Arena::new();
    let handler = if save == SaveSet::Full { handler!(note_and_clobber_lightly) } else { handler!(note) };
    let chunk = Chunk::new(save, handler);
    let place = CodeAddr::new(arena.code() + 0x800);
    let words =
        [(place, Resume::Unchanged), (place.wrapping_add(NOP.len()), answer)].map(|(place, answer)| Word {
            handler: handler!(on_jump),
            place,
            save,
            answer,
            stub: chunk.stub(3),
            seen: Mutex::new(None),
        });
    let code = [&NOP[..], &NOP, &[0xc3]].concat();
    let fill_code = |jump: Option<[u8; 8]>| {
        let text = &mut arena.bytes(arena.code())[0x800..];
        text[..code.len()].copy_from_slice(&code);
        if let Some(jump) = jump {
            text[5..10].copy_from_slice(&jump[..5]);
        }
    };
    arena.bytes(arena.code()).fill(0xcc);
    fill_code(None);
    let mut from = CodeAddr::new(arena.slots() + Backend::DETOUR_HEADER_LEN);
    let entries = [0, 1].map(|index| {
        let at = place.wrapping_add(NOP.len() * index);
        let function = Some((place, place.wrapping_add(code.len())));
        let displaced = Backend.displace(&Site { at, function, text: &arena }).unwrap();
        let entry = Backend.detour_entry(at, &displaced, from).unwrap();
        let mut out = [0; Backend::DETOUR_LEN];
        let word = std::ptr::from_ref(&words[index]).expose_provenance();
        let calls = DetourCalls { trampoline, word, post_word: None };
        let fill = if at_entry { Backend::fill_entry_detour } else { Backend::fill_detour };
        let layout = fill(Backend, &displaced, &NOP, at, entry, &calls, &mut out).unwrap();
        let offset = entry.as_usize() - Backend::DETOUR_HEADER_LEN - arena.slots();
        let len = usize::from(layout.len_bytes);
        arena.bytes(arena.slots())[offset..offset + len].copy_from_slice(&out[..len]);
        from = entry.wrapping_add(len + Backend::DETOUR_HEADER_LEN);
        entry
    });
    let pattern = Pattern::new(&arena, &mut Random::new(7));
    let mut random = Random::new(11);
    let idle = machine.run(&{
        let mut regs = Native::default();
        regs.set_pc(CodeAddr::new(arena.code()));
        regs
    });
    for round in 0..100 {
        let target = arena.code() + random.below(0x700);
        let mut regs = registers(&arena, place.as_usize(), Pointers::ToData, &mut random);
        regs.set_general(SP, (arena.stack() + Arena::LEN - 64 - 8 * random.below(8)) as u64);
        copy_segments(&mut regs, &idle.regs);
        RESUME.store(target, Ordering::Relaxed);
        LAST.store(target, Ordering::Relaxed);
        let run_from = |start: CodeAddr, jump| {
            pattern.fill(&arena, round);
            fill_code(jump);
            let slot = regs.sp() - arena.stack();
            let word = slot..slot + size_of::<usize>();
            arena.bytes(arena.stack())[word].copy_from_slice(&target.to_ne_bytes());
            let mut regs = regs;
            regs.set_pc(start);
            let outcome = machine.run(&regs);
            let kept = if is_followed { slot + size_of::<usize>() } else { slot - RED_ZONE };
            (outcome, arena.bytes(arena.data()).to_vec(), arena.bytes(arena.stack())[kept..].to_vec())
        };
        let mut bare = run_from(place, None);
        let probed = run_from(entries[0], Some(Backend.jump(place.wrapping_add(NOP.len()), entries[1])));
        assert_eq!((bare.0.signal, bare.0.regs.pc()), (libc::SIGTRAP, CodeAddr::new(target)));
        if matches!(answer, Resume::Changed | Resume::ChangedFollowed) {
            change(&mut bare.0.regs);
        }
        if is_followed {
            let value = Backend.return_value(&bare.0.regs) ^ 0x55;
            Backend.set_return_value(&mut bare.0.regs, value);
        }
        if save == SaveSet::General {
            bare.0.floating = probed.0.floating;
        }
        assert_eq!(probed.0, bare.0, "round {round}");
        assert!(probed.1 == bare.1 && probed.2 == bare.2, "round {round}: memory differs");
        for word in &words {
            let mut seen = word.seen.lock().unwrap().take().expect("the handler was called");
            seen.set_pc(regs.pc());
            assert_eq!(comparable(seen), comparable(regs), "round {round}");
        }
    }
}

#[test]
fn a_jprobe_returns_to_a_breakpoint() {
    let trap = Backend.jprobe_return_trap();
    // SAFETY: the text of this program.
    let first = unsafe { *(trap.as_usize() as *const u8) };
    assert!(Backend::is_breakpoint(CodeAddr::new(0), &[first]));
}

// ---- unwinding --------------------------------------------------------------------------------------------

/// The table that the frame description refers to: one word per stub.
static REAL: [AtomicUsize; CHUNK_LEN / STUB_LEN] = [const { AtomicUsize::new(0) }; CHUNK_LEN / STUB_LEN];
static STUB: AtomicUsize = AtomicUsize::new(0);
static REAL_ADDRESS: AtomicUsize = AtomicUsize::new(0);

/// Sends a context that returns normally to where it would have returned.
extern "C" fn pass_on(stub: usize, regs: *mut Native) -> Resume {
    // SAFETY: the trampoline passes its frame.
    let regs = unsafe { &mut *regs };
    regs.set_pc(CodeAddr::new(REAL[stub % CHUNK_LEN / STUB_LEN].load(Ordering::Relaxed)));
    Resume::Unchanged
}

/// `body`, entered with its return address replaced by the stub in `STUB`; the real one is left in
/// `REAL_ADDRESS`.
#[unsafe(naked)]
unsafe extern "C-unwind" fn probed_body() -> usize {
    cfg_if::cfg_if! {
        if #[cfg(target_arch = "x86_64")] {
            naked_asm!(
                "mov rax, [rsp]",
                "mov [rip + {real}], rax",
                "mov rax, [rip + {stub}]",
                "mov [rsp], rax",
                "jmp {body}",
                real = sym REAL_ADDRESS, stub = sym STUB, body = sym body,
            )
        } else {
            // Relative to the label: a position-independent program has no absolute addresses in its text.
            naked_asm!(
                "call 2f",
                "2: pop %ecx",
                "mov (%esp), %eax",
                "mov %eax, {real} - 2b(%ecx)",
                "mov {stub} - 2b(%ecx), %eax",
                "mov %eax, (%esp)",
                "jmp {body}",
                real = sym REAL_ADDRESS, stub = sym STUB, body = sym body,
                options(att_syntax),
            )
        }
    }
}

static BODY: AtomicUsize = AtomicUsize::new(0);
static TRACE: Mutex<String> = Mutex::new(String::new());

/// A probed function: notes a backtrace; returns 41, or panics.
extern "C-unwind" fn body() -> usize {
    // What a probe does at entry: the real address is in the table before anyone can look.
    let number = STUB.load(Ordering::Relaxed) % CHUNK_LEN / STUB_LEN;
    REAL[number].store(REAL_ADDRESS.load(Ordering::Relaxed), Ordering::Relaxed);
    *TRACE.lock().unwrap() = std::backtrace::Backtrace::force_capture().to_string();
    assert!(BODY.load(Ordering::Relaxed) != 1, "as asked");
    41
}

struct CountsDrops<'a>(&'a AtomicUsize);

impl Drop for CountsDrops<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(never)]
fn caller_of_probed_body(drops: &AtomicUsize) -> usize {
    let _guard = CountsDrops(drops);
    // SAFETY: `body` behind a return stub.
    unsafe { probed_body() + 1 }
}

/// Not inlined: without debug information nothing would name its frame.
#[test]
#[inline(never)]
fn panics_and_backtraces_pass_a_probed_frame() {
    let _machine = Machine::take();
    let chunk = Chunk::new(SaveSet::Full, handler!(pass_on));
    // The stub's number is its address modulo the page: chunks are pages here.
    STUB.store(chunk.stub(17), Ordering::Relaxed);
    let mode = if cfg!(target_arch = "x86") { x86::Mode::Protected } else { x86::Mode::Long };
    let stubs = Stubs { chunk: chunk.at, len_bytes: CHUNK_LEN, table: REAL.as_ptr() as usize };
    let frame = x86::eh_frame(mode, &stubs, STUB_LEN);
    register(Box::leak(Box::new(frame)));

    let drops = AtomicUsize::new(0);
    assert_eq!(caller_of_probed_body(&drops), 42);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let trace = TRACE.lock().unwrap().clone();
    assert!(trace.contains("caller_of_probed_body"), "{trace}");
    assert!(trace.contains("panics_and_backtraces_pass_a_probed_frame"), "{trace}");

    BODY.store(1, Ordering::Relaxed);
    let caught = std::panic::catch_unwind(|| caller_of_probed_body(&drops));
    assert!(caught.is_err());
    assert_eq!(drops.load(Ordering::Relaxed), 2, "the caller's destructor ran once more");
}

unsafe extern "C" {
    fn __register_frame(begin: *const u8);
}

/// Hands a frame description to this program's unwinder: libgcc's takes the section, LLVM's (musl) the
/// description.
fn register(frame: &'static EhFrame) {
    let at = if cfg!(target_env = "musl") { frame.description_at } else { 0 };
    // SAFETY: a well-formed description that is never freed.
    unsafe { __register_frame(frame.bytes[at..].as_ptr()) };
}
