//! Threads, forks, and registering while others hit.

mod common;

use common::{End, alone, count, counter, in_child};
use probe_host_linux::{Kprobe, Kretprobe, guard_signals, probes, threads};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn thr_work(x: usize) -> usize {
    black_box(x) * 3 + 2
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn thr_other(x: usize) -> usize {
    black_box(x) ^ 0x55
}

#[test]
fn hit_7_counters_are_exact_over_many_threads() {
    let _alone = alone();
    let (hits, returns) = (counter(), counter());
    let k = probes()
        .register(Kprobe::at("thr_work").pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    let r = probes()
        .register(Kretprobe::at("thr_work").max_active(64).exit(move |_, ()| {
            returns.fetch_add(1, Relaxed);
        }))
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for i in 0..2000 {
                    assert_eq!(thr_work(i), i * 3 + 2);
                }
            });
        }
    });
    assert_eq!((count(hits), count(returns)), (16_000, 16_000));
    assert_eq!(k.counters().hits, 16_000);
    assert_eq!((r.counters().hits, r.counters().missed_pool), (16_000, 0));
    drop((k, r));
}

/// Gives the calling thread an alternate signal stack: on x86 one that has room for one frame of a signal
/// with AVX-512 state, and the handler.
fn use_a_small_stack_for_signals() {
    let len = if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { 6144 } else { libc::SIGSTKSZ };
    let memory = Box::leak(vec![0_u8; len].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: len };
    // SAFETY: the memory is used for nothing else and stays for ever; nobody wants the old one.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) }, 0);
}

#[test]
fn reg_6_the_first_hit_of_a_thread_calls_nothing_probed_before_it_has_a_stack_for_that() {
    let _alone = alone();
    let hits = counter();
    let plant = |name| {
        let probe = Kprobe::at(name).without_jump().pre(move |_| {
            hits.fetch_add(1, Relaxed);
        });
        probes().register(probe).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let (is_there, may_go) = (AtomicBool::new(false), AtomicBool::new(false));
    let held = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            use_a_small_stack_for_signals();
            is_there.store(true, Relaxed);
            while !may_go.load(Relaxed) {
                std::hint::spin_loop();
            }
            thr_work(2)
        });
        while !is_there.load(Relaxed) {
            std::thread::yield_now();
        }
        let held = ["__errno_location", "pthread_setspecific", "thr_work"].map(plant);
        may_go.store(true, Relaxed);
        assert_eq!(thread.join().unwrap(), 8);
        held
    });
    assert!(held[2].counters().hits == 1 && count(hits) > 1, "{}", count(hits));
    drop(held);
}

#[test]
fn hit_1_the_first_hit_of_a_thread_leaves_errno_alone() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap();
    for (by_jump, errno, hits) in [(false, 77, 1), (true, 78, 2)] {
        if by_jump {
            assert_eq!(probes().jumps().lay().unwrap(), 1);
        }
        let thread = std::thread::spawn(move || {
            // SAFETY: it has no preconditions.
            let own = unsafe { libc::__errno_location() };
            // SAFETY: the thread's own errno.
            let own = unsafe { &mut *own };
            *own = errno;
            assert_eq!(thr_work(2), 8);
            *own
        });
        assert_eq!(thread.join().unwrap(), errno, "by a jump: {by_jump}");
        assert_eq!(probe.counters().hits, hits);
    }
}

#[test]
fn threads_that_come_and_go_leave_nothing_behind() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap();
    let before = threads::threads_known();
    for _ in 0..200 {
        std::thread::spawn(|| thr_work(1)).join().unwrap();
    }
    drop(probe);
    // A look at the living clears away whoever has gone in another way.
    drop(probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap());
    assert!(threads::threads_known() <= before + 1, "{} after {before}", threads::threads_known());
}

#[test]
fn reg_13_probes_come_and_go_while_threads_hit_them() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    let wrong = AtomicUsize::new(0);
    let calls = AtomicUsize::new(0);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut i = 0_usize;
                while !stop.load(Relaxed) {
                    i = i.wrapping_add(1) & 0xffff;
                    if thr_work(i) != i * 3 + 2 || thr_other(i) != i ^ 0x55 {
                        wrong.fetch_add(1, Relaxed);
                    }
                    calls.fetch_add(2, Relaxed);
                }
            });
        }
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            let seen = counter();
            let post = probes()
                .register(Kprobe::at("thr_work").post(move |_| {
                    seen.fetch_add(1, Relaxed);
                }))
                .unwrap();
            let boosted = probes().register(Kprobe::at("thr_other").pre(|_| ())).unwrap();
            let returns = probes().register(Kretprobe::at("thr_work").exit(|_, ()| ())).unwrap();
            drop(post);
            let after = count(seen);
            boosted.disable().unwrap();
            boosted.enable().unwrap();
            drop(returns);
            drop(boosted);
            assert_eq!(count(seen), after, "a handler ran after its probe was gone");
            rounds.fetch_add(1, Relaxed);
        }
        stop.store(true, Relaxed);
    });
    assert_eq!(count(&wrong), 0);
    assert!(count(&rounds) > 0);
}

#[test]
fn a_forks_child_goes_on_with_its_probes_and_can_register() {
    if common::has_run_in_own_process("a_forks_child_goes_on_with_its_probes_and_can_register") {
        return;
    }
    let _alone = alone();
    let hits = counter();
    let probe = probes()
        .register(Kprobe::at("thr_work").pre(move |_| {
            hits.fetch_add(1, Relaxed);
        }))
        .unwrap();
    thr_work(1);
    let end = in_child(|| {
        let before = count(hits);
        if thr_work(5) != 17 || count(hits) != before + 1 {
            return 1;
        }
        let more = probes().register(Kprobe::at("thr_other").pre(move |_| {
            hits.fetch_add(10, Relaxed);
        }));
        let Ok(more) = more else { return 2 };
        if thr_other(0) != 0x55 || count(hits) != before + 11 {
            return 3;
        }
        drop(more);
        if std::thread::spawn(|| thr_work(2)).join().unwrap() != 8 || count(hits) != before + 12 {
            return 4;
        }
        0
    });
    assert_eq!(end, End::Exit(0));
    assert_eq!(count(hits), 1, "the child's text and counters are its own");
    assert_eq!(thr_other(1), 0x54);
    assert_eq!(thr_work(1), 5);
    assert_eq!(count(hits), 2);
    drop(probe);
}

#[test]
fn forks_while_other_threads_register_and_hit_work() {
    let _alone = alone();
    // Starting is the one thing that a fork must not come between.
    probes();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                drop(probes().register(Kprobe::at("thr_other").pre(|_| ())).unwrap());
            }
        });
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                assert_eq!(thr_other(1), 0x54);
            }
        });
        for _ in 0..30 {
            let end = in_child(|| {
                let Ok(probe) = probes().register(Kprobe::at("thr_work").pre(|_| ())) else { return 1 };
                let fits = thr_work(2) == 8 && probe.counters().hits == 1 && thr_other(1) == 0x54;
                i32::from(!fits)
            });
            assert_eq!(end, End::Exit(0));
        }
        stop.store(true, Relaxed);
    });
}

/// The guard's probes are hit by a thread that ends, too, after all its destructors.
#[test]
fn late_hits_of_threads_that_come_and_go_do_not_pile_up() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap();
    let before = threads::threads_known();
    for _ in 0..200 {
        std::thread::spawn(|| thr_work(1)).join().unwrap();
    }
    // Nobody has registered anything meanwhile.
    assert!(threads::threads_known() <= before + 32, "{} after {before}", threads::threads_known());
    drop((probe, guard));
}

// musl's pthread_join waits for what only pthread_exit does.
#[cfg(target_env = "gnu")]
#[test]
fn blocks_of_dead_threads_are_used_again() {
    let _alone = alone();
    let probe = probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap();
    // Ends without running destructors.
    extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
        thr_work(1);
        // SAFETY: ends this thread alone; its stack is not used by anyone else.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        core::ptr::null_mut()
    }
    let before = threads::threads_known();
    for _ in 0..20 {
        common::in_thread(thread);
    }
    drop(probe);
    drop(probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap());
    assert!(threads::threads_known() <= before + 1, "{} after {before}", threads::threads_known());
}

/// A child that shares the memory and is no thread of this process registers a probe, as a program's own
/// library may in a child of `vfork`.
extern "C" fn register_in_child(_: *mut libc::c_void) -> libc::c_int {
    let probe = probes().register(Kprobe::at("thr_other").pre(|_| ()));
    i32::from(probe.is_err() || thr_other(1) != 0x54)
}

#[test]
fn hit_13_a_child_that_shares_the_memory_takes_no_thread_for_dead() {
    // No thread of another test ends meanwhile.
    if common::has_run_alone("hit_13_a_child_that_shares_the_memory_takes_no_thread_for_dead") {
        return;
    }
    let _alone = alone();
    let probe = probes().register(Kprobe::at("thr_work").pre(|_| ())).unwrap();
    assert_eq!(thr_work(1), 5);
    let (hit, go) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(thr_work(2), 8);
            hit.store(true, Relaxed);
            while !go.load(Relaxed) {
                std::thread::yield_now();
            }
            assert_eq!(thr_work(3), 11);
        });
        while !hit.load(Relaxed) {
            std::thread::yield_now();
        }
        let before = threads::threads_known();
        let mut stack = vec![0_u128; 16 << 10];
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the child has a stack of its own, and this thread waits until it has ended.
        let child = unsafe { libc::clone(register_in_child, top, flags, std::ptr::null_mut()) };
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(threads::threads_known(), before);
        go.store(true, Relaxed);
    });
    assert_eq!(probe.counters().hits, 3);
}
