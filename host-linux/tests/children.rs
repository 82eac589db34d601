//! Children that share their parent's memory, and children for which the kernel takes all handlers away.

mod common;

use common::{alone, count, counter, errno};
use probe_core::AnyProbe;
use probe_host_linux::{Kprobe, Kretprobe, Native, guard_signals, probes, threads};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn children_work(x: usize) -> usize {
    black_box(x) * 3 + 2
}

/// How often parent and child call the function, each.
const CALLS: usize = 3000;

/// Calls that had a wrong result.
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// What the two of them meet at.
static HERE: AtomicUsize = AtomicUsize::new(0);

fn call_often() {
    HERE.fetch_add(1, Relaxed);
    while HERE.load(Relaxed) < 2 {
        std::thread::yield_now();
    }
    for x in 0..CALLS {
        WRONG.fetch_add(usize::from(children_work(x) != x * 3 + 2), Relaxed);
    }
}

extern "C" fn child(_: *mut c_void) -> c_int {
    call_often();
    3
}

/// A stack for a child.
fn stack() -> Vec<u128> {
    vec![0_u128; 16 << 10]
}

/// Lets a child that shares memory and storage run beside this thread; its status, or `None` where the kernel
/// makes none (QEMU).
fn beside_a_child(flags: c_int) -> Option<c_int> {
    let mut stack = stack();
    HERE.store(0, Relaxed);
    // SAFETY: the child has a stack of its own, which stays until it has ended; what it calls shares nothing
    // but atomics.
    let pid = unsafe { libc::clone(child, stack.as_mut_ptr_range().end.cast(), flags, null_mut()) };
    if pid < 0 {
        assert_eq!(errno().load(Relaxed), libc::EINVAL);
        return None;
    }
    call_often();
    let mut status = -1;
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    Some(status)
}

#[test]
fn hit_7_a_child_that_shares_memory_and_storage_hits_beside_its_maker() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let (hits, returns) = (counter(), counter());
    let counted = Kprobe::at("children_work").pre(move |_| {
        hits.fetch_add(1, Relaxed);
    });
    let entry = probes().register(counted).unwrap();
    let followed = Kretprobe::at("children_work").exit(move |_, ()| {
        returns.fetch_add(1, Relaxed);
    });
    let exits = probes().register(followed).unwrap();
    let flags = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::SIGCHLD;
    let mut calls = 0;
    for by_jump in [false, true] {
        if by_jump {
            probes().jumps().lay().unwrap();
        }
        for _ in 0..5 {
            let made = std::thread::spawn(move || beside_a_child(flags)).join().unwrap();
            if let Some(status) = made {
                assert_eq!(status, 3 << 8, "by a jump: {by_jump}");
                calls += 2 * CALLS;
            } else {
                assert!(std::env::var_os("PROBE_RUNNER").is_some(), "the kernel makes such children");
            }
        }
    }
    assert_eq!(WRONG.load(Relaxed), 0);
    assert_eq!((count(hits), count(returns)), (calls, calls));
    assert_eq!(entry.counters().missed_nested, 0);
    drop((entry, exits, guard));
}

#[test]
fn hit_7_a_fork_of_a_thread_that_shares_its_storage_goes_on_with_what_it_has() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let returns = counter();
    let followed = Kretprobe::at("children_fork").exit(move |_, ()| {
        returns.fetch_add(1, Relaxed);
    });
    let exits = probes().register(followed).unwrap();
    let before = threads::threads_known();
    let flags = libc::CLONE_VM | libc::SIGCHLD;
    std::thread::spawn(move || {
        extern "C" fn nothing(_: *mut c_void) -> c_int {
            0
        }
        let mut stack = stack();
        // SAFETY: as in `beside_a_child`.
        let pid = unsafe { libc::clone(nothing, stack.as_mut_ptr_range().end.cast(), flags, null_mut()) };
        if pid >= 0 {
            // SAFETY: nobody wants the status.
            assert_eq!(unsafe { libc::waitpid(pid, null_mut(), 0) }, pid);
        }
        // The child returns from the probed function, too.
        let pid = children_fork();
        if pid == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(count(returns) != 1)) };
        }
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
    })
    .join()
    .unwrap();
    assert_eq!(count(returns), 1);
    drop((exits, guard));
    assert!(threads::threads_known() <= before + 1);
}

/// What the first handler of a forked child has found in the thread's words.
static FOUND: AtomicUsize = AtomicUsize::new(0);

/// Runs in the child before the library's own handler, which was registered later.
extern "C" fn first_in_child() {
    let hit_as_made = children_work(1) == 5;
    let kept = threads::words().map_or(0, |words| words[0].load(Relaxed));
    FOUND.store(if hit_as_made { kept } else { 0 }, Relaxed);
}

#[test]
fn hit_7_a_fork_of_a_thread_that_shares_its_storage_has_its_block_from_the_start() {
    let name = "hit_7_a_fork_of_a_thread_that_shares_its_storage_has_its_block_from_the_start";
    // Handlers run in the order in which they were registered: this one has to come before the library's.
    if common::has_run_alone(name) {
        return;
    }
    let _alone = alone();
    // SAFETY: the handler does what a forked child may do.
    assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(first_in_child)) }, 0);
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("children_work").pre(|_| ())).unwrap();
    std::thread::spawn(move || {
        extern "C" fn nothing(_: *mut c_void) -> c_int {
            0
        }
        let mut stack = stack();
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        // SAFETY: as in `beside_a_child`.
        let pid = unsafe { libc::clone(nothing, stack.as_mut_ptr_range().end.cast(), flags, null_mut()) };
        if pid >= 0 {
            // SAFETY: nobody wants the status.
            assert_eq!(unsafe { libc::waitpid(pid, null_mut(), 0) }, pid);
        }
        assert_eq!(children_work(1), 5);
        threads::words().unwrap()[0].store(77, Relaxed);
        // Twice: the second fork finds nothing of the first.
        for _ in 0..2 {
            let pid = children_fork();
            if pid == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(c_int::from(FOUND.load(Relaxed) != 77)) };
            }
            let mut status = -1;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, 0);
        }
    })
    .join()
    .unwrap();
    drop((probe, guard));
}

/// The process that makes children.
static MAKER: AtomicU32 = AtomicU32::new(0);

/// In a child, ends it in the middle of a hit: executes a program, or exits.
fn end_in_child(executes: bool) {
    if std::process::id() == MAKER.load(Relaxed) {
        return;
    }
    let none = [std::ptr::null()];
    if executes {
        // SAFETY: the path and the lists end.
        unsafe { libc::execve(c"/bin/true".as_ptr(), none.as_ptr(), none.as_ptr()) };
    }
    // SAFETY: the child's end.
    unsafe { libc::_exit(0) }
}

extern "C" fn ends_in_a_hit(_: *mut c_void) -> c_int {
    c_int::from(children_work(1) != 0)
}

/// Lets a child run in this thread's memory while it waits; the child's status.
fn lend_to_a_child() -> c_int {
    let (mut stack, mut status) = (stack(), -1);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the child has a stack of its own, and this thread waits until it has gone.
    let child = unsafe { libc::clone(ends_in_a_hit, stack.as_mut_ptr_range().end.cast(), flags, null_mut()) };
    // SAFETY: `status` is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Makes a probe that ends a child, which executes a program or exits.
type MakeProbe = dyn Fn(bool) -> AnyProbe<Native>;

/// What is open when the child goes: a hit by trap or jump, with a handler before the instruction, behind it,
/// or at the return.
#[test]
fn hit_13_what_a_child_has_left_open_in_its_parents_memory_is_closed() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let pre = |executes| Kprobe::at("children_work").pre(move |_| end_in_child(executes)).into();
    let post = |executes| Kprobe::at("children_work").post(move |_| end_in_child(executes)).into();
    let exit = |executes| Kretprobe::at("children_work").exit(move |_, ()| end_in_child(executes)).into();
    let kinds: [(&str, &MakeProbe); 3] = [("pre", &pre), ("post", &post), ("exit", &exit)];
    MAKER.store(std::process::id(), Relaxed);
    for (kind, make) in kinds {
        for (by_jump, executes) in [(false, false), (false, true), (true, false), (true, true)] {
            let case = format!("{kind}, by a jump: {by_jump}, executes: {executes}");
            let probe = probes().register_all([make(executes)]).unwrap();
            if by_jump {
                probes().jumps().lay().unwrap();
            }
            for round in 1..4 {
                assert_eq!(lend_to_a_child(), 0, "{case}");
                assert_eq!(children_work(1), 5, "{case}");
                let counters = probe[0].counters();
                assert_eq!(counters.missed_nested, 0, "{case}, round {round}: {counters:?}");
            }
            assert_eq!(lend_to_a_child(), 0, "{case}");
            // A registration finds no handler that runs.
            drop(probes().register(Kprobe::at("children_work").pre(|_| ())).expect(&case));
            drop(probe);
        }
    }
    drop(guard);
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn children_fork() -> c_int {
    // SAFETY: the child calls what a child may call.
    black_box(unsafe { libc::fork() })
}

/// `struct clone_args` of the first kernel that has it.
#[repr(C, align(8))]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
}

#[test]
fn hit_13_a_child_without_handlers_is_refused_as_by_a_kernel_that_has_none() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("children_work").without_jump().pre(|_| ())).unwrap();
    let clear = 1 << 32;
    let clone3 = |flags: u64| {
        let arguments = CloneArguments { flags, exit_signal: libc::SIGCHLD as u64, ..Default::default() };
        // SAFETY: a fork; the child calls what a child may call.
        let pid =
            unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<CloneArguments>()) };
        if pid == 0 {
            let is_wrong = children_work(1) != 5;
            // SAFETY: ends the child.
            unsafe { libc::_exit(c_int::from(is_wrong)) };
        }
        if pid < 0 {
            return Err(errno().load(Relaxed));
        }
        let (pid, mut status) = (pid as c_int, -1);
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        Ok(status)
    };
    for by_jump in [false, true] {
        if by_jump {
            probes().jumps().lay().unwrap();
        }
        let plain = clone3(0);
        assert!(plain == Ok(0) || std::env::var_os("PROBE_RUNNER").is_some() && plain == Err(libc::ENOSYS));
        assert_eq!(clone3(clear), Err(libc::ENOSYS));
    }
    drop((probe, guard));
}
