//! HIT_11: POPF by a trap changes what it changes bare, NT and ID too, which a signal return does not take
//! from its frame. HIT_1: a program that has unaligned accesses fault (AC) is hit as any other.
#![cfg(any(target_arch = "x86", target_arch = "x86_64"))]

mod common;

use common::{End, alone, in_child};
use probe_core::Place;
use probe_host_linux::{Hit, Kprobe, Kretprobe, guard_signals, probes};
use std::arch::global_asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.flags_pop,\"ax\",@progbits",
    ".globl flags_pop",
    ".type flags_pop, @function",
    "flags_pop:",
    "pushfq",
    "push rdi",
    "popfq",
    "pushfq",
    "pop rax",
    "popfq",
    "ret",
    ".size flags_pop, . - flags_pop",
    ".popsection",
);
#[cfg(target_arch = "x86")]
global_asm!(
    ".pushsection .text.flags_pop,\"ax\",@progbits",
    ".globl flags_pop",
    ".type flags_pop, @function",
    "flags_pop:",
    "pushfd",
    "push edi",
    "popfd",
    "pushfd",
    "pop eax",
    "popfd",
    "ret",
    ".size flags_pop, . - flags_pop",
    ".popsection",
);

unsafe extern "C" {
    fn flags_pop();
}

/// Behind PUSHF and PUSH.
const POPF: isize = 2;

/// What the flags are after POPF has loaded `flags`.
fn pop(flags: usize) -> usize {
    let popped: usize;
    // SAFETY: the function brings all flags back and changes the accumulator only.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("call {}", sym flags_pop, in("rdi") flags, out("rax") popped)
    };
    // SAFETY: as above.
    #[cfg(target_arch = "x86")]
    unsafe {
        std::arch::asm!("call {}", sym flags_pop, in("edi") flags, out("eax") popped)
    };
    popped
}

#[test]
fn hit_11_popf_by_a_trap_loads_nt_and_id() {
    let _alone = alone();
    let (nt, id, carry) = (1 << 14, 1 << 21, 1);
    let all: Vec<usize> = [0, nt, id, nt | id, carry, nt | carry].into_iter().cycle().take(24).collect();
    let bare: Vec<usize> = all.iter().map(|&flags| pop(0x202 | flags)).collect();
    // An emulator may not have them.
    assert!(std::env::var_os("PROBE_RUNNER").is_some() || bare[3] & (nt | id) == nt | id);
    let place = || Place::symbol("flags_pop").offset(POPF);
    let probe = probes().register(Kprobe::at(place()).pre(|_| ()).without_jump()).unwrap();
    let second = probes()
        .register(Kprobe::at(Place::symbol("flags_pop").offset(POPF + 1)).pre(|_| ()).without_jump())
        .unwrap();
    let probed: Vec<usize> = all.iter().map(|&flags| pop(0x202 | flags)).collect();
    assert_eq!(probed, bare);
    assert_eq!(probe.counters().hits, all.len() as u64);
    drop((probe, second));
}

/// AC.
const CHECK: usize = 1 << 18;

// `flags_checked(x)` sets AC and calls `flags_work(x)`: the flags then. `flags_load(at)` loads a word under
// AC.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.flags_checked,\"ax\",@progbits",
    ".globl flags_checked, flags_work, flags_load",
    ".type flags_checked, @function",
    "flags_checked:",
    "pushfq; or dword ptr [rsp], 1 << 18; popfq",
    "call flags_work",
    "pushfq",
    "pushfq; and dword ptr [rsp], ~(1 << 18); popfq",
    "pop rax",
    "ret",
    ".size flags_checked, . - flags_checked",
    ".type flags_work, @function",
    "flags_work:",
    "lea eax, [rdi + 1]",
    "lea ecx, [rax + rax]",
    "lea eax, [rcx + 1]",
    "ret",
    ".size flags_work, . - flags_work",
    ".type flags_load, @function",
    "flags_load:",
    "pushfq; or dword ptr [rsp], 1 << 18; popfq",
    "mov eax, [rdi]",
    "pushfq; and dword ptr [rsp], ~(1 << 18); popfq",
    "ret",
    ".size flags_load, . - flags_load",
    ".popsection",
);
#[cfg(target_arch = "x86")]
global_asm!(
    ".pushsection .text.flags_checked,\"ax\",@progbits",
    ".globl flags_checked, flags_work, flags_load",
    ".type flags_checked, @function",
    "flags_checked:",
    "pushfd; or dword ptr [esp], 1 << 18; popfd",
    "push [esp + 4]",
    "call flags_work",
    "pop ecx",
    "pushfd",
    "pushfd; and dword ptr [esp], ~(1 << 18); popfd",
    "pop eax",
    "ret",
    ".size flags_checked, . - flags_checked",
    ".type flags_work, @function",
    "flags_work:",
    "mov eax, [esp + 4]",
    "lea ecx, [eax + eax]",
    "lea eax, [ecx + 1]",
    "ret",
    ".size flags_work, . - flags_work",
    ".type flags_load, @function",
    "flags_load:",
    "mov ecx, [esp + 4]",
    "pushfd; or dword ptr [esp], 1 << 18; popfd",
    "mov eax, [ecx]",
    "pushfd; and dword ptr [esp], ~(1 << 18); popfd",
    "ret",
    ".size flags_load, . - flags_load",
    ".popsection",
);

unsafe extern "C" {
    fn flags_checked(x: usize) -> usize;
    fn flags_load(at: *const u8) -> u32;
}

/// To and behind which an access is unaligned, and a number that lies there.
#[repr(align(8))]
struct Bytes([u8; 16]);
static BYTES: Bytes = Bytes([0, 7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0]);

static SEEN: AtomicU32 = AtomicU32::new(0);

/// What handlers do: an access that is a fault under AC.
fn load_unaligned() {
    let at = black_box(&raw const BYTES).cast::<u8>().wrapping_add(1).cast::<u32>();
    // SAFETY: inside of a static.
    SEEN.fetch_add(unsafe { at.read_unaligned() }, Relaxed);
}

/// Whether there is AC here: an emulator may have none.
fn has_check() -> bool {
    // SAFETY: what it changes it brings back, but for the registers that calls may change.
    let is_kept = unsafe { flags_checked(1) } & CHECK != 0;
    let faults = in_child(|| {
        // SAFETY: the default action needs no handler. Rust's own one may itself access what is unaligned.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
        // SAFETY: an address inside of a static; the fault is what is asked for.
        unsafe { flags_load(BYTES.0.as_ptr().wrapping_add(1)) }.cast_signed()
    });
    let has_check = is_kept && faults == End::Signal(libc::SIGBUS);
    assert!(has_check || std::env::var_os("PROBE_RUNNER").is_some(), "{faults:?}");
    has_check
}

/// Under AC four calls, each of which is hit `hits` times.
fn hits_under_check(hits: u32) {
    let end = in_child(|| {
        SEEN.store(0, Relaxed);
        // SAFETY: as in `has_check`.
        let is_kept = (0..4).all(|x| unsafe { flags_checked(x) } & CHECK != 0);
        i32::from(!is_kept || SEEN.load(Relaxed) != 4 * 7 * hits)
    });
    assert_eq!(end, End::Exit(0));
}

#[test]
fn hit_1_a_program_with_alignment_checks_is_hit() {
    if !has_check() {
        return;
    }
    let _alone = alone();
    let entry = || Kprobe::at("flags_work").pre(|_: &mut Hit<'_>| load_unaligned());
    let followed = || Kretprobe::at("flags_work").exit(|_, ()| load_unaligned());
    let by_trap = probes().register(entry().without_jump()).unwrap();
    hits_under_check(1);
    let followed_by_trap = probes().register(followed()).unwrap();
    hits_under_check(2);
    drop((by_trap, followed_by_trap));
    let guard = guard_signals().unwrap();
    let by_jump = probes().register(entry()).unwrap();
    assert!(probes().jumps().lay().is_ok());
    hits_under_check(1);
    let followed_by_jump = probes().register(followed()).unwrap();
    assert!(probes().jumps().lay().is_ok());
    hits_under_check(2);
    drop((by_jump, followed_by_jump, guard));
}

#[test]
fn hit_9_a_programs_own_unaligned_access_ends_it() {
    if !has_check() {
        return;
    }
    let _alone = alone();
    // Rust's handler of SIGBUS may itself access what is unaligned, which ends a program that blocks SIGBUS.
    let guard = guard_signals().unwrap();
    let load = Place::symbol("flags_load").offset(if cfg!(target_arch = "x86") { 13 } else { 9 });
    let probe = probes().register(Kprobe::at(load).pre(|_: &mut Hit<'_>| load_unaligned())).unwrap();
    // SAFETY: an aligned address inside of a static.
    let aligned = || unsafe { flags_load(BYTES.0.as_ptr()) } as i32;
    assert_eq!(in_child(|| i32::from(aligned() != 0x700)), End::Exit(0));
    // SAFETY: an address inside of a static; the fault is what is asked for.
    let end = in_child(|| unsafe { flags_load(BYTES.0.as_ptr().wrapping_add(1)) } as i32);
    assert_eq!(end, End::Signal(libc::SIGBUS));
    drop((probe, guard));
}

/// Ends the process with whether AC is set.
extern "C" fn tell_check(_signal: libc::c_int) {
    let flags: usize;
    // SAFETY: reads the flags through one word of the stack.
    unsafe { core::arch::asm!("pushf", "pop {}", out(reg) flags, options(preserves_flags, att_syntax)) };
    // SAFETY: ends the process.
    unsafe { libc::_exit(i32::from(flags & CHECK == 0)) };
}

#[test]
fn hit_13_a_handler_has_the_alignment_checks_of_what_it_has_interrupted() {
    if !has_check() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let end = in_child(|| {
        // SAFETY: a handler for a signal's arguments, which ends the process.
        unsafe { libc::signal(libc::SIGBUS, tell_check as extern "C" fn(libc::c_int) as usize) };
        // SAFETY: an address inside of a static; the fault is what is asked for.
        unsafe { flags_load(BYTES.0.as_ptr().wrapping_add(1)) }.cast_signed()
    });
    assert_eq!(end, End::Exit(0));
    drop(guard);
}
