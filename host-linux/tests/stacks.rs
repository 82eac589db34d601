//! The stacks that the program's handlers run on, where probes need an alternate one and the program has
//! none.

mod common;

use common::{End, alone, in_child, in_thread};
use probe_host_linux::{Kprobe, guard_signals, probes};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn stacks_work(x: usize) -> usize {
    black_box(x) * 5 + 1
}

/// What a handler has seen: the signal, its code, where it ran, the flags of its
/// thread's alternate stack (asked for, and in its `ucontext_t`), and whether SIGUSR1 is blocked in it.
type Seen = (c_int, c_int, Where, c_int, c_int, bool);

/// Where a handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Interrupted,
    /// On the stack that the program has set.
    Program,
    Elsewhere,
}

static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new());
/// An address of the interrupted stack.
static HERE: AtomicUsize = AtomicUsize::new(0);
/// The alternate stack that the program has set, or 0.
static STACK: AtomicUsize = AtomicUsize::new(0);
/// How long it is: less than a hit wants, or more.
static LEN: AtomicUsize = AtomicUsize::new(0);
const SMALL_LEN: usize = 40 << 10;
const BIG_LEN: usize = 160 << 10;

extern "C" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let here = &raw const signal as usize;
    let runs = if here.wrapping_sub(STACK.load(Relaxed)) < LEN.load(Relaxed) {
        Where::Program
    } else if here.abs_diff(HERE.load(Relaxed)) < 64 << 10 {
        Where::Interrupted
    } else {
        Where::Elsewhere
    };
    assert_eq!(stacks_work(3), 16);
    let mut now = MaybeUninit::<libc::stack_t>::zeroed();
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::sigaltstack(null(), now.as_mut_ptr()) }, 0);
    // SAFETY: zero is a value, and the call has succeeded.
    let now = unsafe { now.assume_init() };
    // SAFETY: `uc_stack` follows `uc_flags` and `uc_link` on every architecture.
    let stack = unsafe { context.cast::<[usize; 2]>().add(1) };
    // SAFETY: the kernel's.
    let stack = unsafe { stack.cast::<libc::stack_t>().read() };
    // SAFETY: the kernel's.
    let code = unsafe { (*info).si_code };
    let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), mask.as_mut_ptr()) }, 0);
    // SAFETY: the call has succeeded.
    let is_blocked = unsafe { libc::sigismember(mask.as_ptr(), libc::SIGUSR1) } == 1;
    let seen = (signal, code, runs, now.ss_flags, stack.ss_flags, is_blocked);
    SEEN.lock().unwrap().push(seen);
    if signal == libc::SIGSEGV && code > 0 {
        // The read that has faulted goes to a place that can be read from now on.
        // SAFETY: nobody uses the page.
        let page = unsafe { libc::mmap(NOWHERE as *mut c_void, 4096, libc::PROT_READ, MAP_HERE, -1, 0) };
        assert_eq!(page as usize, NOWHERE);
    }
}

/// Where nothing is mapped.
const NOWHERE: usize = 0x3456_0000;
const MAP_HERE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;

fn set(signal: c_int, flags: c_int) {
    let action = libc::sigaction {
        sa_sigaction: handler as *const () as usize,
        // SAFETY: a set of plain bits.
        sa_mask: unsafe { MaybeUninit::zeroed().assume_init() },
        sa_flags: libc::SA_SIGINFO | flags,
        sa_restorer: None,
    };
    // SAFETY: the handler does nothing that a handler may not do where this test raises signals.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, null_mut()) }, 0);
}

/// As `raise`, which blocks signals meanwhile in musl.
fn send(signal: c_int) {
    // SAFETY: asks only.
    let pid = unsafe { libc::getpid() };
    // SAFETY: asks only.
    let tid = unsafe { libc::gettid() };
    // SAFETY: a handler is there, or the signal is blocked.
    assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }, 0);
}

/// Waits for a SIGUSR1 that is pending and blocked but for the wait.
fn suspend() {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: writable, an empty set.
    unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1) };
    // SAFETY: valid sets.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) };
    send(libc::SIGUSR1);
    let none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: an empty set.
    assert_eq!(unsafe { libc::sigsuspend(none.as_ptr()) }, -1);
    // Blocked again: this one stays until it is let through.
    let count = || SEEN.lock().unwrap().len();
    let before_it = count();
    send(libc::SIGUSR1);
    assert_eq!(count(), before_it);
    // SAFETY: the set that was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut()) };
}

extern "C" fn body_on_small(_: *mut c_void) -> *mut c_void {
    body_on(SMALL_LEN)
}

extern "C" fn body_on_big(_: *mut c_void) -> *mut c_void {
    body_on(BIG_LEN)
}

/// As [`body`], with an alternate stack.
fn body_on(len: usize) -> *mut c_void {
    const PRIVATE: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, anywhere.
    let memory = unsafe { libc::mmap(null_mut(), len, access, PRIVATE, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    let stack = libc::stack_t { ss_sp: memory, ss_flags: 0, ss_size: len };
    // SAFETY: the memory stays.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, null_mut()) }, 0);
    LEN.store(len, Relaxed);
    STACK.store(memory as usize, Relaxed);
    body(null_mut())
}

extern "C" fn body(_: *mut c_void) -> *mut c_void {
    let here = 0_u8;
    HERE.store(&raw const here as usize, Relaxed);
    for flags in [libc::SA_ONSTACK, 0] {
        set(libc::SIGUSR1, flags);
        set(libc::SIGSEGV, flags);
        for _ in 0..2 {
            assert_eq!(stacks_work(2), 11);
            for signal in [libc::SIGUSR1, libc::SIGSEGV] {
                send(signal);
            }
            suspend();
            assert_eq!(stacks_work(4), 21);
            // SAFETY: the handler maps the page.
            assert_eq!(unsafe { black_box(NOWHERE as *const u8).read_volatile() }, 0);
            // SAFETY: nobody else's.
            assert_eq!(unsafe { libc::munmap(NOWHERE as *mut c_void, 4096) }, 0);
        }
    }
    null_mut()
}

/// What handlers see in a thread that runs `body`.
fn seen(body: extern "C" fn(*mut c_void) -> *mut c_void) -> Vec<Seen> {
    SEEN.lock().unwrap().clear();
    STACK.store(0, Relaxed);
    in_thread(body);
    SEEN.lock().unwrap().clone()
}

/// Compares what handlers see bare and with a probe, by trap and by jump.
fn compare(body: extern "C" fn(*mut c_void) -> *mut c_void) {
    let bare = seen(body);
    assert_eq!(bare.len(), 20);
    for by_jump in [false, true] {
        let guard = guard_signals().unwrap();
        let probe = probes().register(Kprobe::at("stacks_work").pre(|_| ())).unwrap();
        if by_jump {
            probes().jumps().lay().unwrap();
        }
        assert_eq!(seen(body), bare, "by a jump: {by_jump}");
        assert_eq!(probe.counters().hits, 28);
        drop((probe, guard));
    }
}

#[test]
fn hit_13_a_handler_runs_on_no_alternate_stack_where_the_program_has_none() {
    let _alone = alone();
    if std::env::var_os("PROBE_RUNNER").is_some() {
        // An emulator does not send all of a siginfo again: there such a handler runs on ours.
        return;
    }
    compare(body);
}

#[test]
fn hit_13_a_handler_runs_on_the_small_alternate_stack_that_the_program_has_set() {
    let _alone = alone();
    if std::env::var_os("PROBE_RUNNER").is_some() {
        // As above.
        return;
    }
    compare(body_on_small);
}

#[test]
fn hit_13_a_handler_runs_on_the_big_alternate_stack_that_the_program_has_set_if_it_wants_to() {
    let _alone = alone();
    if std::env::var_os("PROBE_RUNNER").is_some() {
        // As above.
        return;
    }
    compare(body_on_big);
}

/// What `syscall` says of a small stack that libc has been told of, and libc of one that `syscall` has.
extern "C" fn body_by_number(seen: *mut c_void) -> *mut c_void {
    let memory = vec![0_u128; SMALL_LEN / 8].leak();
    let at = |half: usize| memory[half * SMALL_LEN / 16..].as_ptr().cast_mut().cast::<c_void>();
    let stack = |half| libc::stack_t { ss_sp: at(half), ss_flags: 0, ss_size: SMALL_LEN };
    let mut old = [MaybeUninit::<libc::stack_t>::zeroed(); 2];
    assert_eq!(stacks_work(2), 11);
    // SAFETY: the memory stays.
    assert_eq!(unsafe { libc::sigaltstack(&stack(0), null_mut()) }, 0);
    assert_eq!(stacks_work(2), 11);
    // SAFETY: as above, and a place for the answer.
    assert_eq!(unsafe { libc::syscall(libc::SYS_sigaltstack, &stack(1), old[0].as_mut_ptr()) }, 0);
    assert_eq!(stacks_work(2), 11);
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::sigaltstack(null(), old[1].as_mut_ptr()) }, 0);
    let none = libc::stack_t { ss_size: 1, ..stack(0) };
    // SAFETY: is refused.
    assert_eq!(unsafe { libc::syscall(libc::SYS_sigaltstack, &none, null_mut::<libc::stack_t>()) }, -1);
    assert_eq!(common::errno().load(Relaxed), libc::ENOMEM);
    // SAFETY: filled in.
    let told = old.map(|old| unsafe { old.assume_init() });
    let are_own = [0, 1].map(|half| (told[half].ss_sp, told[half].ss_size) == (at(half), SMALL_LEN));
    assert_eq!(are_own, [true; 2]);
    seen
}

#[test]
fn hit_13_an_alternate_stack_is_the_programs_own_when_it_is_set_and_asked_for_by_number() {
    let _alone = alone();
    in_thread(body_by_number);
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("stacks_work").without_jump().pre(|_| ())).unwrap();
    in_thread(body_by_number);
    drop((probe, guard));
}

#[test]
fn hit_13_a_stack_overflow_without_an_alternate_stack_ends_the_program() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("stacks_work").without_jump().pre(|_| ())).unwrap();
    extern "C" fn overflow(_: *mut c_void) -> *mut c_void {
        fn deeper(n: usize) -> usize {
            let here = black_box([n; 64]);
            if here[0] == usize::MAX { 0 } else { stacks_work(1) + deeper(n + 1) + here[1] }
        }
        deeper(0) as *mut c_void
    }
    let end = in_child(|| {
        set(libc::SIGSEGV, libc::SA_ONSTACK);
        in_thread(overflow);
        0
    });
    assert_eq!(end, End::Signal(libc::SIGSEGV));
    drop((probe, guard));
}

#[test]
fn hit_13_a_handler_is_hit_although_its_signal_could_not_be_queued_again() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("stacks_work").without_jump().pre(|_| ())).unwrap();
    extern "C" fn unblock(_: *mut c_void) -> *mut c_void {
        let signal = libc::SIGRTMIN();
        set(signal, libc::SA_ONSTACK);
        let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: writable, an empty set.
        unsafe { libc::sigaddset(mask.as_mut_ptr(), signal) };
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, mask.as_ptr(), null_mut()) };
        send(signal);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_SIGPENDING, &raw const none) }, 0);
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, mask.as_ptr(), null_mut()) };
        null_mut()
    }
    let end = in_child(|| {
        in_thread(unblock);
        c_int::from(SEEN.lock().unwrap().last().is_none_or(|seen| seen.0 != libc::SIGRTMIN()))
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}
