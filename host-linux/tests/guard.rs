//! The guard: breakpoints are hit where libc or the program has blocked all signals, and nobody dies of it.

mod common;

use common::{End, alone, count, counter, has_run_in_own_process, in_child};
use probe_host_linux::{Kprobe, Probe, guard, guard_signals, probes, signals};
use std::ffi::CStr;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HITS: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn guard_work(x: usize) -> usize {
    black_box(x) * 7
}

fn on_work() -> Probe {
    let hit = |_: &mut probe_host_linux::Hit<'_>| {
        HITS.fetch_add(1, Relaxed);
    };
    probes().register(Kprobe::at("guard_work").pre(hit)).unwrap()
}

/// All signals.
fn full() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { set.assume_init() }
}

fn has(set: &libc::sigset_t, signal: i32) -> bool {
    // SAFETY: a set and a number.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Blocks all signals and calls the probed function; gives what is blocked then.
fn work_with_all_blocked() -> libc::sigset_t {
    let mut now = full();
    // SAFETY: valid sets; what was blocked does not matter to the callers.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &full(), null_mut()) };
    assert_eq!(guard_work(6), 42);
    // SAFETY: asks only.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null_mut(), &mut now) };
    now
}

#[test]
fn a_hit_with_all_signals_blocked_is_a_hit() {
    let _alone = alone();
    let probe = on_work();
    // What this is about: without the guard it is the end.
    assert_eq!(
        in_child(|| i32::from(has(&work_with_all_blocked(), libc::SIGTRAP))),
        End::Signal(libc::SIGTRAP)
    );
    let guard = guard_signals().unwrap();
    assert!(guard.is_complete());
    let end = in_child(|| {
        let before = HITS.load(Relaxed);
        let now = work_with_all_blocked();
        let is_right = has(&now, libc::SIGTRAP) && has(&now, libc::SIGUSR1) && !has(&now, libc::SIGKILL);
        let mut old = full();
        // SAFETY: valid sets.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &full(), &mut old) };
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null_mut(), &mut old) };
        i32::from(!(is_right && !has(&old, libc::SIGUSR1) && HITS.load(Relaxed) == before + 1))
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

#[test]
fn bad_arguments_are_answered_as_by_the_kernel() {
    let _alone = alone();
    let bare = bad_arguments();
    let guard = guard_signals().unwrap();
    assert_eq!(bad_arguments(), bare);
    drop(guard);
}

/// The errnos of calls that are wrong, and 0 for those that are not.
fn bad_arguments() -> Vec<i32> {
    let errno = |result: i32| if result == 0 { 0 } else { common::errno().load(Relaxed) };
    let bad = 16 as *mut libc::sigset_t;
    let mut old = full();
    vec![
        // SAFETY: the kernel refuses the number.
        unsafe { libc::pthread_sigmask(77, &full(), &mut old) },
        // SAFETY: nothing is read or written.
        unsafe { libc::pthread_sigmask(77, null_mut(), null_mut()) },
        // SAFETY: the kernel refuses the address.
        errno(unsafe { libc::sigprocmask(libc::SIG_BLOCK, null_mut(), bad) }),
        // SAFETY: the kernel refuses the signal.
        errno(unsafe { libc::sigaction(libc::SIGKILL, &action(on_signal), null_mut()) }),
    ]
}

extern "C" fn on_signal(_: i32) {
    assert_eq!(guard_work(3), 21);
}

/// An action with all signals blocked while it runs.
fn action(handler: extern "C" fn(i32)) -> libc::sigaction {
    libc::sigaction {
        sa_sigaction: handler as *const () as usize,
        sa_mask: full(),
        sa_flags: libc::SA_RESTART,
        sa_restorer: None,
    }
}

#[test]
fn a_handler_that_blocks_all_signals_may_be_probed() {
    let _alone = alone();
    let probe = on_work();
    let guard = guard_signals().unwrap();
    let before = HITS.load(Relaxed);
    // SAFETY: the handler calls a pure function.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action(on_signal), null_mut()) }, 0);
    // SAFETY: a handler is there.
    unsafe { libc::raise(libc::SIGUSR2) };
    assert_eq!(HITS.load(Relaxed), before + 1);
    drop((probe, guard));
}

#[test]
fn the_programs_action_for_sigtrap_stays_behind_ours() {
    static TRAPS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn on_trap(_: i32) {
        TRAPS.fetch_add(1, Relaxed);
    }
    let _alone = alone();
    let probe = on_work();
    let guard = guard_signals().unwrap();
    let mut old = action(on_signal);
    // SAFETY: the handler only adds.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &action(on_trap), &mut old) }, 0);
    assert_eq!(guard_work(1), 7);
    assert_eq!(TRAPS.load(Relaxed), 0);
    // SAFETY: a handler is there.
    unsafe { libc::raise(libc::SIGTRAP) };
    assert_eq!(TRAPS.load(Relaxed), 1);
    // SAFETY: what was there before.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &old, &mut action(on_signal)) }, 0);
    assert_eq!(guard_work(1), 7);
    drop((probe, guard));
}

/// Sends `signal` to this thread while all signals are blocked: what the mask says, what is pending, what is
/// waited for, and what is pending then. Before each a thread's first hit, or another one.
fn sent_while_blocked(signal: i32) -> [i32; 4] {
    let is_masked = has(&work_with_all_blocked(), signal);
    // SAFETY: blocked, so that nothing happens.
    unsafe { libc::raise(signal) };
    let is_pending = || {
        assert_eq!(guard_work(6), 42);
        let mut set = full();
        // SAFETY: writable.
        assert_eq!(unsafe { libc::sigpending(&mut set) }, 0);
        i32::from(has(&set, signal))
    };
    let before = is_pending();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: valid structures; nothing is to be told.
    let waited = unsafe { libc::sigtimedwait(&full(), null_mut(), &now) };
    [i32::from(is_masked), before, waited, is_pending()]
}

#[test]
fn hit_13_what_is_sent_while_it_is_blocked_waits() {
    if has_run_in_own_process("hit_13_what_is_sent_while_it_is_blocked_waits") {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work();
    for signal in signals::OWNED.into_iter().chain([libc::SIGUSR1]) {
        let end = in_child(|| {
            let seen = std::thread::spawn(move || sent_while_blocked(signal)).join().unwrap();
            i32::from(seen != [1, 1, signal, 0])
        });
        assert_eq!(end, End::Exit(0), "signal {signal}");
        // And with an action's handler under way, which the program has not blocked it in.
        let end = in_child(|| {
            // SAFETY: the handler calls a pure function.
            unsafe { libc::sigaction(libc::SIGSEGV, &action(on_signal), null_mut()) };
            work_with_all_blocked();
            // SAFETY: blocked, so that nothing happens.
            unsafe { libc::raise(signal) };
            if signal == libc::SIGSEGV {
                return 0;
            }
            // SAFETY: zero is a set.
            let mut faults: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: a valid set.
            unsafe { libc::sigaddset(&mut faults, libc::SIGSEGV) };
            // SAFETY: as above.
            unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &faults, null_mut()) };
            // SAFETY: a handler is there.
            unsafe { libc::raise(libc::SIGSEGV) };
            0
        });
        assert_eq!(end, End::Exit(0), "signal {signal}");
    }
    drop((probe, guard));
}

/// The kernel's flag for an action that has a way out of its own, the same everywhere.
const SA_RESTORER: i32 = 0x0400_0000;

/// What the kernel tells of an action: handler, flags, way out, mask.
type Told = [u64; 4];

/// Sets actions of `signal`; what is told of each, at once and after the signal was sent.
fn told(signal: i32) -> Vec<Told> {
    extern "C" fn nothing(_: i32) {}
    let handlers =
        [nothing as *const () as usize, on_signal as *const () as usize, libc::SIG_IGN, libc::SIG_DFL];
    // `SA_UNSUPPORTED`, by which programs ask whether the kernel drops what it does not know.
    let unknown = 0x400;
    let flags = [libc::SA_RESTART | unknown, libc::SA_RESETHAND | libc::SA_NODEFER, libc::SA_ONSTACK, 0];
    let all = handlers.into_iter().zip(flags).map(|(sa_sigaction, sa_flags)| libc::sigaction {
        sa_sigaction,
        sa_mask: full(),
        sa_flags,
        sa_restorer: None,
    });
    let ask = |new: Option<&libc::sigaction>| -> Told {
        let mut old = action(on_signal);
        let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the handlers only add, or do nothing.
        assert_eq!(unsafe { libc::sigaction(signal, new, &mut old) }, 0);
        // QEMU 7.2 tells of two that nobody blocks.
        let is_emulated = std::env::var_os("PROBE_RUNNER").is_some();
        let counts = |signal: &i32| !(is_emulated && [libc::SIGKILL, libc::SIGSTOP].contains(signal));
        let blocked = (1..=64).filter(counts).filter(|&signal| has(&old.sa_mask, signal));
        let mask = blocked.fold(0, |bits, signal| bits | 1 << (signal - 1));
        // Where libc gives the kernel none, it leaves what lay on its stack.
        let has_restorer = old.sa_flags & SA_RESTORER != 0;
        let restorer = old.sa_restorer.filter(|_| has_restorer).map_or(0, |function| function as usize);
        [old.sa_sigaction as u64, old.sa_flags as u32 as u64, restorer as u64, mask]
    };
    let mut told = Vec::new();
    for new in all {
        told.push(ask(Some(&new)));
        told.push(ask(None));
        if new.sa_sigaction != libc::SIG_DFL {
            // SAFETY: a handler is there, or the signal is ignored.
            unsafe { libc::raise(signal) };
            told.push(ask(None));
        }
    }
    told
}

/// [`told`] in a child, whose actions are nobody else's affair.
fn told_in_child(signal: i32) -> Vec<Told> {
    let file = std::env::temp_dir().join(format!("probe-guard-{}", std::process::id()));
    let end = in_child(|| {
        // The first answer is about what was there before.
        let all = told(signal).split_off(1).into_iter();
        let bytes: Vec<u8> = all.flatten().flat_map(u64::to_ne_bytes).collect();
        i32::from(std::fs::write(&file, bytes).is_err())
    });
    assert_eq!(end, End::Exit(0));
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    words.collect::<Vec<_>>().chunks_exact(4).map(|told| told.try_into().unwrap()).collect()
}

#[test]
fn hit_13_an_action_is_told_as_the_kernel_would() {
    let _alone = alone();
    for signal in signals::OWNED.into_iter().chain([libc::SIGUSR2]) {
        let bare = told_in_child(signal);
        let guard = guard_signals().unwrap();
        assert_eq!(told_in_child(signal), bare, "signal {signal}");
        drop(guard);
    }
}

/// Spawns `sh -c 'exit 7'` with every attribute that touches signals; the child's end.
fn spawn() -> End {
    let mut attributes = MaybeUninit::<libc::posix_spawnattr_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) };
    // SAFETY: made just now.
    let mut attributes = unsafe { attributes.assume_init() };
    // SAFETY: as above, and a valid set.
    unsafe { libc::posix_spawnattr_setsigdefault(&mut attributes, &full()) };
    // SAFETY: as above.
    unsafe { libc::posix_spawnattr_setsigmask(&mut attributes, &full()) };
    let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
    // SAFETY: as above.
    unsafe { libc::posix_spawnattr_setflags(&mut attributes, flags as libc::c_short) };
    let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) };
    // SAFETY: made just now.
    let mut actions = unsafe { actions.assume_init() };
    // SAFETY: as above.
    unsafe { libc::posix_spawn_file_actions_adddup2(&mut actions, 2, 9) };
    let arguments = [c"sh", c"-c", c"exit 7"].map(CStr::as_ptr);
    let arguments = [arguments[0].cast_mut(), arguments[1].cast_mut(), arguments[2].cast_mut(), null_mut()];
    let (mut child, mut status) = (0, 0);
    // SAFETY: everything lives across the call.
    let made = unsafe {
        libc::posix_spawn(
            &mut child,
            c"/bin/sh".as_ptr(),
            &actions,
            &attributes,
            arguments.as_ptr(),
            &null_mut(),
        )
    };
    assert_eq!(made, 0);
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    // SAFETY: made above, not used again.
    unsafe { libc::posix_spawnattr_destroy(&mut attributes) };
    // SAFETY: as above.
    unsafe { libc::posix_spawn_file_actions_destroy(&mut actions) };
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Exit(libc::WEXITSTATUS(status))
    }
}

#[test]
fn a_spawned_child_goes_through_probed_functions() {
    let _alone = alone();
    let calls = counter();
    let plant = |name: &'static str| {
        let hit = move |_: &mut probe_host_linux::Hit<'_>| {
            calls.fetch_add(1, Relaxed);
        };
        probes().register(Kprobe::at(name).pre(hit)).unwrap()
    };
    assert_eq!(spawn(), End::Exit(7));
    let unguarded = [plant("dup2"), plant("execve")];
    assert_eq!(spawn(), End::Signal(libc::SIGTRAP), "what this is about");
    drop(unguarded);
    let guard = guard_signals().unwrap();
    let planted = ["dup2", "execve", "sigprocmask", "pthread_sigmask", "sigaction"].map(plant);
    calls.store(0, Relaxed);
    assert_eq!(spawn(), End::Exit(7));
    // QEMU makes a fork of it.
    let is_shared = std::env::var_os("PROBE_RUNNER").is_none();
    assert!(count(calls) >= 2 || !is_shared, "the child shares this memory: {calls:?}");
    // The parent's handlers are still in place.
    assert!(probe_host_linux::signals::are_installed());
    let probe = on_work();
    assert_eq!(guard_work(2), 14);
    assert_eq!(probe.counters().hits, 1);
    drop((planted, guard, probe));
}

#[test]
fn threads_start_and_end_with_what_they_run_through_probed() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let named = ["clone3", "__clone", "madvise", "mprotect", "pthread_create", "pthread_sigmask"];
    let planted: Vec<Probe> =
        named.iter().filter_map(|name| probes().register(Kprobe::at(*name).pre(|_| ())).ok()).collect();
    assert!(planted.len() >= 3);
    for _ in 0..50 {
        std::thread::spawn(|| assert_eq!(guard_work(1), 7)).join().unwrap();
    }
    drop((planted, guard));
}

/// What the kernel tells of this thread's alternate stack, and how it answers to wrong ones.
fn stacks(memory: &mut [u8]) -> Vec<(usize, i32, usize, i32)> {
    let base = memory.as_mut_ptr();
    let len = libc::MINSIGSTKSZ;
    let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let small = libc::stack_t { ss_sp: base.cast(), ss_flags: 0, ss_size: len };
    let big = libc::stack_t { ss_size: 128 << 10, ..small };
    // Less than QEMU wants, which has the same least size for all architectures.
    let short = libc::stack_t { ss_size: 2047, ..small };
    let odd = libc::stack_t { ss_flags: 0x70, ..small };
    let all = [none, small, short, odd, big, small, none, none];
    let one = |new: &libc::stack_t| {
        let mut old = libc::stack_t { ss_sp: null_mut(), ss_flags: -1, ss_size: 1 };
        // SAFETY: the memory is used for nothing else while it is a stack, and no handler runs on it.
        let result = unsafe { libc::sigaltstack(new, &mut old) };
        let errno = if result == 0 { 0 } else { common::errno().load(Relaxed) };
        assert_eq!(guard_work(6), 42);
        (old.ss_sp as usize, old.ss_flags, old.ss_size, errno)
    };
    all.iter().map(one).collect()
}

#[test]
fn hit_13_an_alternate_stack_too_small_for_a_hit_is_the_programs_all_the_same() {
    let _alone = alone();
    let mut memory = vec![0; 128 << 10];
    let thread = |memory: &mut Vec<u8>| {
        std::thread::scope(|scope| {
            // The first tells of Rust's own stack, which is another one in each thread.
            scope.spawn(|| stacks(memory)).join().unwrap().split_off(1)
        })
    };
    let bare = thread(&mut memory);
    let guard = guard_signals().unwrap();
    let probe = on_work();
    assert_eq!(thread(&mut memory), bare);
    assert_eq!(probe.counters().hits, 8);
    drop((probe, guard));
}

#[test]
fn hit_13_a_guard_finds_libcs_calls_under_probes_that_were_there_before() {
    let _alone = alone();
    let places = || guard::probes().iter().map(|probe| probe.place().clone()).collect::<Vec<_>>();
    let bare = places();
    assert!(!bare.is_empty());
    let by_trap = bare.iter().map(|place| Kprobe::at(place.clone()).pre(|_| ()).without_jump());
    let planted = probes().register_all(by_trap).unwrap();
    assert_eq!(format!("{:?}", places()), format!("{bare:?}"), "under breakpoints");
    drop(planted);
    let by_jump = bare.iter().map(|place| Kprobe::at(place.clone()).pre(|_| ()));
    let planted = probes().register_all(by_jump).unwrap();
    assert_eq!(format!("{:?}", places()), format!("{bare:?}"), "under jumps");
    drop(planted);
}

/// A second C library has system calls of its own, and the loader does not name it.
#[cfg(all(target_env = "gnu", not(target_feature = "crt-static")))]
#[test]
fn hit_13_a_second_libc_does_not_take_our_handler_away() {
    type Sigaction =
        unsafe extern "C" fn(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;
    extern "C" fn on_trap(_: libc::c_int) {}
    let _alone = alone();
    let mut guard = guard_signals().unwrap();
    // SAFETY: a C string; the library's constructors set up itself.
    let other = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, c"libc.so.6".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: a live handle and a C string.
    let found = unsafe { libc::dlsym(other, c"sigaction".as_ptr()) };
    assert!(!found.is_null() && !std::ptr::eq(found, libc::sigaction as *const libc::c_void));
    // SAFETY: libc's function of that name has this type.
    let sigaction = unsafe { core::mem::transmute::<*mut libc::c_void, Sigaction>(found) };
    guard.renew().unwrap();
    let set = |handler: usize| {
        // SAFETY: numbers, of which zero is a value.
        let mut new = unsafe { core::mem::zeroed::<libc::sigaction>() };
        new.sa_sigaction = handler;
        let mut old = new;
        // SAFETY: a handler that does nothing, or a default action.
        assert_eq!(unsafe { sigaction(libc::SIGTRAP, &raw const new, &raw mut old) }, 0);
        old.sa_sigaction
    };
    let before = set(on_trap as *const () as usize);
    assert!(signals::are_installed());
    assert_eq!(set(before), on_trap as *const () as usize);
    // What has gone is not guarded any more, and can be loaded again.
    // SAFETY: a live handle, closed once; nothing of it is used later.
    assert_eq!(unsafe { libc::dlclose(other) }, 0);
    probes();
    drop(guard);
}
