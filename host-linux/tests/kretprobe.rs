//! Return probes: recursion, longjmp, panics, thread exits, backtraces.

mod common;

use common::{alone, count, counter, errno, in_thread};
use probe_host_linux::{Kprobe, Kretprobe, probes};
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the last signal's handler has computed.
static VALUE: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ret_double(x: usize) -> usize {
    black_box(x) * 2
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ret_factorial(n: usize) -> usize {
    if n <= 1 { 1 } else { black_box(n) * ret_factorial(n - 1) }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C-unwind" fn ret_panics(x: usize) -> usize {
    if black_box(x) > 10 {
        panic!("more than ten");
    }
    x
}

#[test]
fn ret_4_the_handler_sees_value_and_private_data_and_may_change_the_value() {
    let _alone = alone();
    let seen = counter();
    let probe = probes()
        .register(Kretprobe::at("ret_double").entry(|call| call.argument(0)).exit(move |ret, argument| {
            assert_eq!(ret.value(), 2 * argument);
            seen.fetch_add(argument, Relaxed);
            ret.set_value(ret.value() + 1);
        }))
        .unwrap();
    assert_eq!(ret_double(20), 41);
    assert_eq!(ret_double(1), 3);
    assert_eq!(count(seen), 21);
    assert_eq!(probe.counters().hits, 2);
    drop(probe);
    assert_eq!(ret_double(20), 40);
}

#[test]
fn ret_1_a_declined_call_is_left_alone() {
    let _alone = alone();
    let returns = counter();
    let probe = probes()
        .register(Kretprobe::at("ret_double").entry(|call| (call.argument(0) == Some(1)).then_some(())).exit(
            move |_, ()| {
                returns.fetch_add(1, Relaxed);
            },
        ))
        .unwrap();
    assert_eq!(ret_double(1) + ret_double(2) + ret_double(3), 12);
    assert_eq!(count(returns), 1);
    assert_eq!(probe.counters().vetoed, 2);
}

#[test]
fn ret_5_recursion_returns_innermost_first() {
    let _alone = alone();
    let (order, returns) = (counter(), counter());
    let probe = probes()
        .register(Kretprobe::at("ret_factorial").max_active(100).entry(|call| call.argument(0)).exit(
            move |_, n| {
                returns.fetch_add(1, Relaxed);
                assert_eq!(order.swap(n, Relaxed) + 1, n);
            },
        ))
        .unwrap();
    assert_eq!(ret_factorial(12), 479_001_600);
    assert_eq!(count(returns), 12);
    assert_eq!(probe.counters().pool_high_water, 12);
}

#[test]
fn ret_2_an_empty_pool_misses_the_call() {
    let _alone = alone();
    let returns = counter();
    let probe = probes()
        .register(Kretprobe::at("ret_factorial").max_active(3).exit(move |_, ()| {
            returns.fetch_add(1, Relaxed);
        }))
        .unwrap();
    assert_eq!(ret_factorial(10), 3_628_800);
    assert_eq!(count(returns), 3);
    assert_eq!(probe.counters().missed_pool, 7);
}

#[test]
fn ret_5_several_probes_on_one_function_all_run() {
    let _alone = alone();
    let order = counter();
    let probes_on_it: Vec<_> = (1..=3)
        .map(|number| {
            let probe = Kretprobe::at("ret_double").exit(move |ret, ()| {
                assert_eq!(ret.value(), 14);
                order.store(count(order) * 10 + number, Relaxed);
            });
            probes().register(probe).unwrap()
        })
        .collect();
    assert_eq!(ret_double(7), 14);
    let seen = count(order);
    assert!(seen == 123 || seen == 321, "{seen}");
    drop(probes_on_it);
}

#[test]
fn ret_7_a_panic_arrives_at_its_catch_unwind() {
    let _alone = alone();
    let returns = counter();
    let probe = probes()
        .register(Kretprobe::at("ret_panics").max_active(4).exit(move |_, ()| {
            returns.fetch_add(1, Relaxed);
        }))
        .unwrap();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for i in 0..20 {
        let caught = catch_unwind(AssertUnwindSafe(|| ret_panics(black_box(11 + i))));
        let message = caught.unwrap_err();
        assert_eq!(message.downcast_ref::<&str>(), Some(&"more than ten"));
    }
    std::panic::set_hook(hook);
    assert_eq!(ret_panics(3), 3);
    assert_eq!(count(returns), 1);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool), (21, 0), "{counters:?}");
    assert_eq!(counters.abandoned, 20);
}

#[test]
fn ret_7_a_panic_passes_several_followed_calls() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C-unwind" fn ret_outer(x: usize) -> usize {
        black_box(ret_panics(black_box(x))) + 1
    }
    let _alone = alone();
    let all = probes()
        .register_all([
            Kretprobe::at("ret_panics").exit(|_, ()| ()),
            Kretprobe::at("ret_panics").exit(|_, ()| ()),
            Kretprobe::at("ret_outer").exit(|_, ()| ()),
        ])
        .unwrap();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    assert!(catch_unwind(AssertUnwindSafe(|| ret_outer(black_box(50)))).is_err());
    std::panic::set_hook(hook);
    assert_eq!(ret_outer(1), 2);
    drop(all);
}

#[test]
fn ret_8_a_backtrace_in_the_probed_function_shows_the_real_caller() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn ret_looks_back(out: &mut String) -> usize {
        *out = std::backtrace::Backtrace::force_capture().to_string();
        black_box(1)
    }
    #[inline(never)]
    fn the_real_caller(out: &mut String) -> usize {
        black_box(ret_looks_back(black_box(out))) + 1
    }
    let _alone = alone();
    let probe = probes().register(Kretprobe::at("ret_looks_back").exit(|_, ()| ())).unwrap();
    let mut trace = String::new();
    assert_eq!(black_box(the_real_caller)(&mut trace), 2);
    drop(probe);
    assert!(trace.contains("the_real_caller"), "{trace}");
    assert!(trace.contains("ret_8_a_backtrace"), "{trace}");
}

#[test]
fn ret_7_longjmp_leaves_followed_calls_behind() {
    unsafe extern "C" {
        #[cfg_attr(target_env = "gnu", link_name = "__sigsetjmp")]
        #[cfg_attr(not(target_env = "gnu"), link_name = "sigsetjmp")]
        fn sigsetjmp(buffer: *mut usize, save_mask: i32) -> i32;
        fn siglongjmp(buffer: *mut usize, value: i32) -> !;
    }
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn ret_jumps(buffer: *mut usize, depth: usize) -> usize {
        if black_box(depth) == 0 {
            // SAFETY: the caller has filled the buffer and is still active.
            unsafe { siglongjmp(buffer, 1) };
        }
        black_box(ret_jumps(buffer, depth - 1)) + 1
    }
    #[inline(never)]
    fn jump_once(buffer: *mut usize) -> bool {
        // SAFETY: the buffer is large enough; between the two returns nothing with a destructor lives here.
        if unsafe { sigsetjmp(buffer, 1) } == 0 {
            ret_jumps(buffer, black_box(3));
            return false;
        }
        true
    }
    let _alone = alone();
    let probe = probes().register(Kretprobe::at("ret_jumps").max_active(5).exit(|_, ()| ())).unwrap();
    /// The largest `sigjmp_buf` is that of ppc64, with all vector registers.
    #[repr(align(16))]
    struct Buffer([usize; 256]);
    let mut buffer = Buffer([0; 256]);
    for _ in 0..50 {
        assert!(black_box(jump_once)(buffer.0.as_mut_ptr()));
    }
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool), (200, 0), "{counters:?}");
}

#[test]
fn ret_7_and_ret_13_a_thread_that_exits_gives_its_instances_back_and_they_count() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C-unwind" fn ret_exits(x: usize) -> usize {
        if black_box(x) != 0 {
            // SAFETY: the thread has no destructors pending that matter.
            unsafe { libc::pthread_exit(core::ptr::null_mut()) };
        }
        x
    }
    extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
        ret_exits(1);
        core::ptr::null_mut()
    }
    let _alone = alone();
    let probe = probes().register(Kretprobe::at("ret_exits").max_active(2).exit(|_, ()| ())).unwrap();
    for _ in 0..20 {
        in_thread(thread);
    }
    // musl runs destructors on top of the call, which could still return for all that they know: it counts
    // when somebody asks whether the thread lives, as a grace period does.
    drop(probes().register(Kprobe::at("ret_double").pre(|_| ())).unwrap());
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, counters.abandoned), (20, 0, 20), "{counters:?}");
}

/// A signal's handler on a stack of its own, at every depth of followed calls: those below it go on.
#[test]
fn ret_11_calls_on_a_signals_stack_return_and_abandon_none_below() {
    extern "C" fn on_signal(_: i32) {
        VALUE.store(ret_factorial(5), Relaxed);
    }
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn ret_raises(depth: usize) -> usize {
        // SAFETY: the handler is there, and calls nothing that could be interrupted here.
        unsafe { libc::raise(libc::SIGUSR1) };
        if black_box(depth) > 0 { ret_raises(depth - 1) + 1 } else { 0 }
    }
    let _alone = alone();
    let mut room = vec![0_u8; 1 << 17];
    let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
    let mut before = std::mem::MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: the room is there until the thread has its own stack again.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, before.as_mut_ptr()) }, 0);
    // SAFETY: all zeros are an action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
    action.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler is one; nobody else here uses this signal.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, core::ptr::null_mut()) }, 0);
    let held = ["ret_raises", "ret_factorial"]
        .map(|name| probes().register(Kretprobe::at(name).max_active(64).exit(|_, ()| ())).unwrap());
    assert_eq!(ret_raises(7), 7);
    let counters = held.each_ref().map(|probe| probe.counters());
    // SAFETY: what was written above.
    assert_eq!(unsafe { libc::sigaltstack(before.as_ptr(), core::ptr::null_mut()) }, 0);
    assert_eq!(count(&VALUE), 120);
    assert_eq!(counters.each_ref().map(|counters| (counters.hits, counters.abandoned)), [(8, 0), (8 * 5, 0)]);
}

#[test]
fn ret_6_calls_in_flight_return_after_unregistering() {
    use std::sync::{Condvar, Mutex};
    static GATE: (Mutex<u8>, Condvar) = (Mutex::new(0), Condvar::new());
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn ret_waits(x: usize) -> usize {
        let mut state = GATE.0.lock().unwrap();
        *state = 1;
        GATE.1.notify_all();
        while *state != 2 {
            state = GATE.1.wait(state).unwrap();
        }
        black_box(x) + 1
    }
    let _alone = alone();
    let returns = counter();
    let probe = probes()
        .register(Kretprobe::at("ret_waits").exit(move |_, ()| {
            returns.fetch_add(1, Relaxed);
        }))
        .unwrap();
    let thread = std::thread::spawn(|| ret_waits(6));
    let mut state = GATE.0.lock().unwrap();
    while *state != 1 {
        state = GATE.1.wait(state).unwrap();
    }
    drop(state);
    drop(probe);
    *GATE.0.lock().unwrap() = 2;
    GATE.1.notify_all();
    assert_eq!(thread.join().unwrap(), 7);
    assert_eq!(count(returns), 0);
}

#[test]
fn ret_9_kprobe_and_kretprobe_fire_in_order() {
    let _alone = alone();
    let order = counter();
    let note = move |digit: usize| order.store(count(order) * 10 + digit, Relaxed);
    let ret = probes().register(Kretprobe::at("ret_double").exit(move |_, ()| note(2))).unwrap();
    let k = probes().register(Kprobe::at("ret_double").pre(move |_| note(1))).unwrap();
    assert_eq!(ret_double(4), 8);
    assert_eq!(count(order), 12);
    drop((ret, k));
}

#[test]
fn errno_survives_a_return_handler() {
    let _alone = alone();
    let probe = probes()
        .register(Kretprobe::at("ret_double").exit(|_, ()| {
            // SAFETY: closes nothing.
            unsafe { libc::close(-1) };
        }))
        .unwrap();
    errno().store(4711, Relaxed);
    ret_double(1);
    assert_eq!(errno().load(Relaxed), 4711);
    drop(probe);
}

#[test]
fn libc_returns_are_seen() {
    let _alone = alone();
    let (value, returns) = (counter(), counter());
    let probe = probes()
        .register(Kretprobe::at("atoi").exit(move |ret, ()| {
            returns.fetch_add(1, Relaxed);
            value.store(ret.value(), Relaxed);
        }))
        .unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::atoi(black_box(c"1234".as_ptr())) }, 1234);
    assert_eq!((count(returns), count(value)), (1, 1234));
    drop(probe);
}
