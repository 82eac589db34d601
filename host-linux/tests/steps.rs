//! HIT_1: a program on x86 that steps itself (TF) has a trap behind each of its instructions, and no other,
//! also where they are simulated or run as a copy.
#![cfg(any(target_arch = "x86", target_arch = "x86_64"))]

mod common;

use common::alone;
use probe_core::Place;
use probe_host_linux::sys::Action;
use probe_host_linux::{Hit, Kprobe, probes, signals};
use std::arch::global_asm;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

// `steps_taken(flags)` loads the flags, runs instructions of all kinds, and loads the flags that it had:
// NOPs, what is simulated, what is copied alone and what is copied with a breakpoint behind it.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.steps_taken,\"ax\",@progbits",
    ".globl steps_taken, steps_end",
    ".type steps_taken, @function",
    "steps_taken:",
    "pushfq",
    "push rdi",
    "popfq",
    "nop",
    "push rax",
    "lea rcx, [rsp + 8]",
    "pop rax",
    "xor eax, eax",
    "jz 2f",
    "ud2",
    "2:",
    "call 3f",
    "add eax, 1",
    "jmp 4f",
    "3:",
    "sub ecx, eax",
    "ret",
    "4:",
    "mul ecx",
    "pushfq",
    "pop rcx",
    "popfq",
    "steps_end:",
    "ret",
    ".size steps_taken, . - steps_taken",
    ".popsection",
);
#[cfg(target_arch = "x86")]
global_asm!(
    ".pushsection .text.steps_taken,\"ax\",@progbits",
    ".globl steps_taken, steps_end",
    ".type steps_taken, @function",
    "steps_taken:",
    "pushfd",
    "push edi",
    "popfd",
    "nop",
    "push eax",
    "lea ecx, [esp + 4]",
    "pop eax",
    "xor eax, eax",
    "jz 2f",
    "ud2",
    "2:",
    "call 3f",
    "add eax, 1",
    "jmp 4f",
    "3:",
    "sub ecx, eax",
    "ret",
    "4:",
    "mul ecx",
    "pushfd",
    "pop ecx",
    "popfd",
    "steps_end:",
    "ret",
    ".size steps_taken, . - steps_taken",
    ".popsection",
);

unsafe extern "C" {
    fn steps_taken();
    fn steps_end();
}

const MOST: usize = 64;
/// Where the program's handler has been called, as a distance from the function: an entry for each step.
static SEEN: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What else is wrong about the traps.
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// The interrupted program counter, and the number of the trap, of a `ucontext_t`, whose registers libc does
/// not name on every target.
///
/// # Safety
/// `context` is the third argument of a signal handler.
unsafe fn told(context: *const libc::c_void) -> (usize, usize) {
    const AT: usize = if cfg!(target_arch = "x86_64") { 40 } else { 20 };
    const PC: usize = if cfg!(target_arch = "x86_64") { 16 } else { 14 };
    const NUMBER: usize = if cfg!(target_arch = "x86_64") { 20 } else { 12 };
    let word = |index| {
        // SAFETY: the kernel's `gregs` lie there.
        unsafe { context.wrapping_byte_add(AT + index * size_of::<usize>()).cast::<usize>().read() }
    };
    (word(PC), word(NUMBER))
}

extern "C" fn on_step(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments of a handler with SA_SIGINFO, or as the kernel's.
    let (pc, number) = unsafe { told(context) };
    // SAFETY: as above.
    let info = unsafe { &*info };
    // SAFETY: a SIGTRAP has an address.
    let addr = unsafe { info.si_addr() } as usize;
    let is_right = info.si_code == libc::TRAP_TRACE && addr == pc && number == 1;
    WRONG.fetch_add(usize::from(!is_right), Relaxed);
    let index = COUNT.fetch_add(1, Relaxed);
    if let Some(seen) = SEEN.get(index) {
        seen.store(pc.wrapping_sub(steps_taken as *const () as usize), Relaxed);
    }
}

/// The steps of one call.
fn steps() -> Vec<usize> {
    COUNT.store(0, Relaxed);
    WRONG.store(0, Relaxed);
    let flags: usize = 0x302;
    // SAFETY: the function brings all flags back and changes these registers only.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("call {}", sym steps_taken, in("rdi") flags, out("rax") _, out("rcx") _, out("rdx") _)
    };
    // SAFETY: as above.
    #[cfg(target_arch = "x86")]
    unsafe {
        std::arch::asm!("call {}", sym steps_taken, in("edi") flags, out("eax") _, out("ecx") _, out("edx") _)
    };
    let count = COUNT.load(Relaxed);
    assert!(count <= MOST, "{count} steps");
    assert_eq!(WRONG.load(Relaxed), 0, "of {count} steps");
    SEEN[..count].iter().map(|seen| seen.load(Relaxed)).collect()
}

/// Lets `on_step` be the program's handler.
fn install() {
    let mut action = Action::DEFAULT;
    action.handler = on_step as *const () as usize;
    action.flags = libc::SA_SIGINFO as usize;
    signals::program_action(libc::SIGTRAP, Some(&action));
}

#[test]
fn hit_1_a_program_that_steps_itself_has_a_trap_behind_each_instruction() {
    let _alone = alone();
    let probes = probes();
    install();
    let bare = steps();
    let len = steps_end as *const () as usize - steps_taken as *const () as usize;
    // An emulator may have no such traps, or others.
    assert!(std::env::var_os("PROBE_RUNNER").is_some() || bare.len() == 15 && bare[14] == len, "{bare:?}");
    let places: Vec<usize> =
        [0, 1, 2, 3].into_iter().chain(bare.iter().copied().filter(|at| *at < len)).collect();
    for &at in &places {
        for has_post in [false, true] {
            let place = Place::symbol("steps_taken").offset(at as isize);
            let probe = Kprobe::at(place).pre(|_: &mut Hit<'_>| ()).without_jump();
            let probe = if has_post { probe.post(|_: &mut Hit<'_>| ()) } else { probe };
            let probe = probes.register(probe).unwrap();
            assert_eq!(steps(), bare, "a probe at {at}, post: {has_post}");
            assert_eq!(probe.counters().hits, 1);
        }
    }
    signals::program_action(libc::SIGTRAP, Some(&Action::DEFAULT));
}
