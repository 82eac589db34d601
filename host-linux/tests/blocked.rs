//! What a program has blocked of the signals that probes live on: the same is seen bare and with a guard and
//! probes (HIT_13).

mod common;
probe_arch_native::native_module!(
    #[allow(dead_code, reason = "of use to other tests")]
    mod trap
);

use common::{End, alone, has_run_in_own_process, in_child};
use probe_host_linux::{Kprobe, Probe, guard_signals, probes};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::io::Read as _;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// The signals that the kernel must never block.
const SIGNALS: [c_int; 3] = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS];

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn blocked_work(x: usize) -> usize {
    black_box(x) * 7
}

fn on_work() -> Probe {
    probes().register(Kprobe::at("blocked_work").pre(|_| ())).unwrap()
}

fn set_of(signals: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: filled just now.
    let mut set = unsafe { set.assume_init() };
    for &signal in signals {
        // SAFETY: a valid set.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

/// Which of [`SIGNALS`] are in a set, a bit each.
fn bits(set: &libc::sigset_t) -> c_int {
    // SAFETY: a valid set.
    let has = |signal: c_int| unsafe { libc::sigismember(set, signal) };
    SIGNALS.iter().enumerate().map(|(at, &signal)| has(signal) << at).sum()
}

/// Changes the mask; which were blocked. A hit goes before, and one behind.
fn mask(how: c_int, signals: &[c_int]) -> c_int {
    let mut old = set_of(&[]);
    assert_eq!(blocked_work(6), 42);
    // SAFETY: valid sets.
    assert_eq!(unsafe { libc::pthread_sigmask(how, &set_of(signals), &mut old) }, 0);
    assert_eq!(blocked_work(6), 42);
    bits(&old)
}

/// Which are blocked.
fn blocked() -> c_int {
    mask(libc::SIG_BLOCK, &[])
}

fn pending() -> c_int {
    let mut set = set_of(&[]);
    // SAFETY: a valid set.
    assert_eq!(unsafe { libc::sigpending(&mut set) }, 0);
    assert_eq!(blocked_work(6), 42);
    bits(&set)
}

/// Takes a signal that is pending: its number, or -1, and its code.
fn take(signal: c_int) -> [c_int; 2] {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: valid structures.
    let taken = unsafe { libc::sigtimedwait(&set_of(&[signal]), info.as_mut_ptr(), &now) };
    assert_eq!(blocked_work(6), 42);
    // SAFETY: all zero, or filled in.
    [taken, unsafe { info.assume_init() }.si_code]
}

fn raise(signal: c_int) {
    // SAFETY: blocked, or a handler is there.
    unsafe { libc::raise(signal) };
}

fn send_to_process(signal: c_int) {
    // SAFETY: as above.
    unsafe { libc::kill(std::process::id().cast_signed(), signal) };
}

/// Installs a handler, with `signals` blocked while it runs.
fn handle(
    signal: c_int,
    handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
    signals: &[c_int],
) {
    handle_with(signal, handler, signals, libc::SA_SIGINFO);
}

/// As [`handle`], with these flags.
fn handle_with(
    signal: c_int,
    handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void),
    signals: &[c_int],
    flags: c_int,
) {
    let mut sa_mask = set_of(signals);
    // There QEMU 7.2 looks for it (docs/emulators.md), and the kernel for nothing.
    if cfg!(target_arch = "riscv64") {
        let words = (&raw mut sa_mask).cast::<u64>();
        // SAFETY: the first of the sixteen words of a set.
        let first = unsafe { words.read() };
        // SAFETY: the second.
        unsafe { words.wrapping_add(1).write(first) };
    }
    let action = libc::sigaction {
        sa_sigaction: handler as *const () as usize,
        sa_mask,
        sa_flags: flags,
        sa_restorer: None,
    };
    // SAFETY: the handlers of these tests call what handlers may.
    assert_eq!(unsafe { libc::sigaction(signal, &action, null_mut()) }, 0);
}

/// What a child says, which runs `body`, and how it ends.
fn said(body: impl Fn() -> Vec<c_int>) -> (End, Vec<u8>) {
    let (mut from, mut to) = std::io::pipe().unwrap();
    let end = in_child(|| {
        use std::io::Write as _;
        let bytes: Vec<u8> = body().into_iter().flat_map(c_int::to_ne_bytes).collect();
        i32::from(to.write_all(&bytes).is_err())
    });
    drop(to);
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    (end, bytes)
}

/// Compares what is said bare with what is said with a guard and a probe.
fn compare(test: &str, body: fn(c_int) -> Vec<c_int>) {
    if has_run_in_own_process(test) {
        return;
    }
    let _alone = alone();
    // QEMU keeps the others for itself: two that are sent may be one, or none.
    let is_emulated = std::env::var_os("PROBE_RUNNER").is_some();
    let signals = if is_emulated { &SIGNALS[..1] } else { &SIGNALS };
    let all = || signals.iter().map(|&signal| said(|| body(signal))).collect::<Vec<_>>();
    let bare = all();
    assert!(bare.iter().all(|(end, said)| *end == End::Exit(0) && !said.is_empty()), "bare: {bare:?}");
    let guard = guard_signals().unwrap();
    let probe = on_work();
    for ((seen, bare), signal) in all().into_iter().zip(bare).zip(SIGNALS) {
        let words = |said: &[u8]| {
            said.chunks_exact(4)
                .map(|word| c_int::from_ne_bytes(word.try_into().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!((seen.0, words(&seen.1)), (bare.0, words(&bare.1)), "signal {signal}");
    }
    drop((probe, guard));
}

#[test]
fn hit_13_what_was_sent_is_pending_and_can_be_waited_for() {
    compare("hit_13_what_was_sent_is_pending_and_can_be_waited_for", |signal| {
        let mut said = vec![mask(libc::SIG_BLOCK, &[signal]), blocked(), pending()];
        for send in [raise, send_to_process] {
            // Of several one is pending.
            send(signal);
            send(signal);
            said.push(pending());
            said.extend(take(signal));
            said.extend(take(signal));
            said.push(pending());
        }
        let value = libc::sigval { sival_ptr: 42 as *mut c_void };
        // SAFETY: blocked.
        said.push(unsafe { libc::sigqueue(std::process::id().cast_signed(), signal, value) });
        said.extend(take(signal));
        said
    });
}

static COUNT: AtomicI32 = AtomicI32::new(0);
static DEPTH: AtomicI32 = AtomicI32::new(0);

extern "C" fn counts(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let depth = DEPTH.fetch_add(1, Relaxed);
    // SAFETY: the kernel's own.
    let code = unsafe { &*info }.si_code;
    COUNT.fetch_add(100 + 10 * depth + code, Relaxed);
    assert_eq!(blocked_work(6), 42);
    DEPTH.fetch_sub(1, Relaxed);
}

#[test]
fn hit_13_what_was_sent_comes_as_soon_as_it_is_unblocked() {
    compare("hit_13_what_was_sent_comes_as_soon_as_it_is_unblocked", |signal| {
        handle(signal, counts, &[]);
        let mut said = vec![mask(libc::SIG_BLOCK, &SIGNALS)];
        for send in [raise, send_to_process] {
            send(signal);
            said.push(COUNT.load(Relaxed));
            let others: Vec<_> = SIGNALS.into_iter().filter(|&other| other != signal).collect();
            said.push(mask(libc::SIG_SETMASK, &others));
            said.push(COUNT.load(Relaxed));
            said.push(mask(libc::SIG_SETMASK, &SIGNALS));
        }
        // One that is ignored is pending no more.
        raise(signal);
        // SAFETY: no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
        said.extend([pending(), mask(libc::SIG_SETMASK, &[]), COUNT.load(Relaxed)]);
        said
    });
}

/// Where a signal's frame has the mask that was interrupted.
fn mask_in(context: *mut c_void) -> *const libc::sigset_t {
    // The crate libc has no `ucontext_t` there. The same as glibc's.
    #[cfg(all(target_arch = "powerpc64", target_env = "musl"))]
    return context.wrapping_byte_add(40).cast();
    // Nor there. Behind the pointer to the registers.
    #[cfg(target_arch = "powerpc")]
    return context.wrapping_byte_add(52).cast();
    #[cfg(not(any(target_arch = "powerpc", all(target_arch = "powerpc64", target_env = "musl"))))]
    // SAFETY: the kernel's own frame.
    unsafe {
        &raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask
    }
}

extern "C" fn sends(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let depth = DEPTH.fetch_add(1, Relaxed);
    // SAFETY: the kernel's own.
    let outer = bits(unsafe { &*mask_in(context) });
    COUNT.store(COUNT.load(Relaxed) * 1_000 + blocked() * 100 + outer * 10 + depth, Relaxed);
    if COUNT.load(Relaxed) < 1_000 {
        let sent = if signal == libc::SIGUSR1 { libc::SIGBUS } else { signal };
        raise(sent);
        COUNT.fetch_add(1_000_000, Relaxed);
    }
    DEPTH.fetch_sub(1, Relaxed);
}

#[test]
fn hit_13_a_handler_blocks_what_its_action_says() {
    compare("hit_13_a_handler_blocks_what_its_action_says", |signal| {
        handle(libc::SIGBUS, sends, &[libc::SIGTRAP]);
        handle(signal, sends, &[libc::SIGSEGV]);
        handle(libc::SIGUSR1, sends, &[signal, libc::SIGBUS]);
        raise(signal);
        let mut said = vec![COUNT.swap(0, Relaxed), blocked()];
        mask(libc::SIG_BLOCK, &[libc::SIGSEGV]);
        raise(libc::SIGUSR1);
        said.extend([COUNT.swap(0, Relaxed), blocked(), pending()]);
        said
    });
}

/// How many signals the waiting thread has taken.
static TAKEN: AtomicI32 = AtomicI32::new(0);

/// Which thread that is, once it has begun.
static WAITER: AtomicI32 = AtomicI32::new(0);

/// How many signals it is sent.
const ROUNDS: c_int = 2_000;

/// Waits for a signal, again and again; how often it was another one.
extern "C" fn waits(signal: *mut c_void) -> *mut c_void {
    let (signal, mut others) = (signal as usize as c_int, 0_usize);
    // SAFETY: asks only.
    WAITER.store(unsafe { libc::gettid() }, Relaxed);
    for _ in 0..ROUNDS {
        let mut taken = 0;
        // SAFETY: a valid set, and a place for the answer.
        let result = unsafe { libc::sigwait(&set_of(&[signal]), &mut taken) };
        others += usize::from((result, taken) != (0, signal));
        TAKEN.fetch_add(1, Relaxed);
    }
    others as *mut c_void
}

/// Sends a thread that waits a signal by `send`, as soon as it has taken the one before: at whatever moment
/// of its next wait that is. How often it has taken another one, and what is left.
fn sent_at_any_moment(signal: c_int, send: impl Fn(libc::pthread_t)) -> Vec<c_int> {
    // What is overlooked is waited for in vain.
    // SAFETY: no arguments that could be wrong.
    unsafe { libc::alarm(150) };
    mask(libc::SIG_BLOCK, &[signal]);
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    let argument = signal as usize as *mut c_void;
    // SAFETY: writable; the function is a thread's.
    assert_eq!(unsafe { libc::pthread_create(thread.as_mut_ptr(), null(), waits, argument) }, 0);
    // SAFETY: filled in by the call that has succeeded.
    let thread = unsafe { thread.assume_init() };
    for round in 0..ROUNDS {
        // Not always after the same time.
        (0..round % 1_024).for_each(|_| std::hint::spin_loop());
        send(thread);
        while TAKEN.load(Relaxed) == round {
            std::thread::yield_now();
        }
    }
    let mut others = null_mut();
    // SAFETY: made just now, joined once.
    unsafe { libc::pthread_join(thread, &mut others) };
    vec![others as usize as c_int, pending()]
}

#[test]
fn hit_7_a_thread_that_waits_is_given_what_is_sent_to_the_process() {
    compare("hit_7_a_thread_that_waits_is_given_what_is_sent_to_the_process", |signal| {
        sent_at_any_moment(signal, |_| send_to_process(signal))
    });
}

#[test]
fn hit_7_a_thread_that_waits_is_given_what_is_sent_to_it() {
    compare("hit_7_a_thread_that_waits_is_given_what_is_sent_to_it", |signal| {
        if signal == libc::SIGTRAP {
            // One that is pending as a breakpoint is hit takes its place, in the kernel.
            return vec![0];
        }
        WAITER.store(0, Relaxed);
        sent_at_any_moment(signal, |thread| {
            // `pthread_kill` changes masks, which takes longer than a wait takes to begin.
            let _ = match WAITER.load(Relaxed) {
                // SAFETY: the thread is there, and has blocked it.
                0 => libc::c_long::from(unsafe { libc::pthread_kill(thread, signal) }),
                // SAFETY: as above.
                waiter => unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), waiter, signal) },
            };
        })
    });
}

static SENT_BY_HANDLER: AtomicI32 = AtomicI32::new(0);

extern "C" fn sends_to_process(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    send_to_process(SENT_BY_HANDLER.load(Relaxed));
    while pending() == 0 {}
}

#[test]
fn hit_12_a_thread_that_waits_is_given_what_a_handler_sends_before() {
    compare("hit_12_a_thread_that_waits_is_given_what_a_handler_sends_before", |signal| {
        SENT_BY_HANDLER.store(signal, Relaxed);
        handle(libc::SIGUSR1, sends_to_process, &[]);
        sent_at_any_moment(signal, |thread| {
            // SAFETY: the thread is there, and has a handler.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        })
    });
}

#[test]
fn hit_7_a_thread_that_has_not_blocked_it_is_given_what_is_sent_to_the_process() {
    compare("hit_7_a_thread_that_has_not_blocked_it_is_given_what_is_sent_to_the_process", |signal| {
        handle(signal, counts, &[]);
        let (is_done, is_there) = (AtomicI32::new(0), AtomicI32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mask(libc::SIG_BLOCK, &[]);
                is_there.store(1, Relaxed);
                while is_done.load(Relaxed) == 0 {
                    assert_eq!(blocked_work(6), 42);
                }
            });
            while is_there.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            mask(libc::SIG_BLOCK, &[signal]);
            for count in 1..=20 {
                send_to_process(signal);
                while COUNT.load(Relaxed) < 100 * count {
                    std::thread::yield_now();
                }
            }
            is_done.store(1, Relaxed);
        });
        vec![COUNT.load(Relaxed), pending()]
    });
}

#[test]
fn hit_13_a_child_has_its_parents_mask_and_nothing_pending() {
    compare("hit_13_a_child_has_its_parents_mask_and_nothing_pending", |signal| {
        let mut said = vec![mask(libc::SIG_BLOCK, &[signal])];
        raise(signal);
        send_to_process(signal);
        let end = in_child(|| 10 * blocked() + pending());
        said.push(if let End::Exit(status) = end { status } else { -1 });
        said.extend([blocked(), pending()]);
        said
    });
}

extern "C" fn unblocks(_: *mut c_void) -> c_int {
    let before = mask(libc::SIG_SETMASK, &[]);
    10 * before + blocked()
}

#[test]
fn hit_13_a_child_in_its_parents_memory_has_a_mask_of_its_own() {
    compare("hit_13_a_child_in_its_parents_memory_has_a_mask_of_its_own", |signal| {
        let mut said = vec![mask(libc::SIG_BLOCK, &[signal])];
        let mut stack = vec![0_u128; 16 << 10];
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has this stack to itself, and this thread waits until it has ended.
        let child = unsafe { libc::clone(unblocks, stack.as_mut_ptr_range().end.cast(), flags, null_mut()) };
        let mut status = 0;
        // SAFETY: a place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        said.extend([libc::WEXITSTATUS(status), blocked()]);
        raise(signal);
        said.extend(take(signal));
        said
    });
}

/// Executes a shell that ends with 0 if these signals are blocked, and pending.
fn executed(signals: &[c_int], are_pending: bool) -> End {
    let mask_of = |signals: &[c_int]| signals.iter().fold(0_u64, |bits, signal| bits | 1 << (signal - 1));
    let (all, blocked) = (mask_of(&SIGNALS), mask_of(signals));
    let pending = if are_pending { blocked } else { 0 };
    let script = format!(
        "while read name bits; do case $name in SigPnd:) pending=0x$bits;; ShdPnd:) shared=0x$bits;; SigBlk:) blocked=0x$bits;; esac; done \
         </proc/self/status; exit $(( (blocked & {all}) != {blocked} || ((pending | shared) & {all}) != {pending} ))"
    );
    in_child(|| {
        mask(libc::SIG_BLOCK, signals);
        if are_pending {
            signals.iter().zip([raise, send_to_process, raise]).for_each(|(&signal, send)| send(signal));
        }
        let script = std::ffi::CString::new(script.as_str()).unwrap();
        let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), null()];
        let execute = |path: &std::ffi::CStr| {
            // SAFETY: NULL-terminated lists of strings.
            unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), argv[3..].as_ptr()) };
        };
        let before = blocked_and_pending();
        execute(c"/nowhere/at/all");
        if blocked_and_pending() != before {
            return 98;
        }
        execute(c"/bin/sh");
        99
    })
}

fn blocked_and_pending() -> [c_int; 2] {
    [blocked(), pending()]
}

#[test]
fn hit_13_what_is_blocked_and_pending_is_so_in_what_is_executed() {
    if has_run_in_own_process("hit_13_what_is_blocked_and_pending_is_so_in_what_is_executed") {
        return;
    }
    let _alone = alone();
    let all = || {
        let sets = [&SIGNALS[..], &SIGNALS[..1], &SIGNALS[1..], &[]];
        sets.map(|signals| [false, true].map(|are_pending| executed(signals, are_pending)))
    };
    let bare = all();
    // QEMU keeps signals of its own from being blocked.
    let is_emulated = std::env::var_os("PROBE_RUNNER").is_some();
    assert!(is_emulated || bare.iter().flatten().all(|end| *end == End::Exit(0)), "{bare:?}");
    let guard = guard_signals().unwrap();
    let probe = on_work();
    assert_eq!(all(), bare);
    drop((probe, guard));
}

#[path = "blocked/faults.rs"]
mod faults;

#[path = "blocked/flood.rs"]
mod flood;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[path = "blocked/before_a_wait.rs"]
mod before_a_wait;
