//! Jprobes: a handler with the probed function's own signature.

mod common;

use common::{alone, count, counter, errno};
use probe_host_linux::{Jprobe, Kprobe, Kretprobe, probes};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn jp_many(
    a: u8,
    b: usize,
    c: *const u8,
    d: i32,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
) -> usize {
    let c = c as usize;
    let sum = [a as usize, b, c, d as usize, e, f, g, h];
    sum.iter()
        .enumerate()
        .map(|(i, value)| black_box(*value).wrapping_mul(i + 1))
        .fold(0, usize::wrapping_add)
}

static SEEN: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

extern "C" fn many_handler(
    mut a: u8,
    mut b: usize,
    c: *const u8,
    d: i32,
    e: usize,
    f: usize,
    mut g: usize,
    mut h: usize,
) {
    for (seen, value) in SEEN.iter().zip([a as usize, b, c as usize, d as usize, e, f, g, h]) {
        seen.store(value, Relaxed);
    }
    // Its own copies: nothing of this reaches the probed function (JMP_3).
    a = 0;
    b = 0;
    g = 0;
    h = 0;
    black_box((&raw mut a, &raw mut b, &raw mut g, &raw mut h));
}

#[test]
fn jmp_1_the_handler_gets_all_arguments_and_changes_nothing() {
    let _alone = alone();
    let call = || {
        jp_many(
            black_box(200),
            black_box(2),
            black_box(3 as *const u8),
            black_box(-4),
            black_box(5),
            black_box(6),
            black_box(7),
            black_box(8),
        )
    };
    let bare = call();
    // SAFETY: the handler has the function's signature.
    let jprobe = unsafe {
        Jprobe::at(
            "jp_many",
            many_handler as extern "C" fn(u8, usize, *const u8, i32, usize, usize, usize, usize),
        )
    };
    let probe = probes().register(jprobe).unwrap();
    for _ in 0..10 {
        assert_eq!(call(), bare);
    }
    let seen: Vec<usize> = SEEN.iter().map(count).collect();
    assert_eq!(seen, [200, 2, 3, -4_i32 as usize, 5, 6, 7, 8]);
    assert_eq!(probe.counters().hits, 10);
    drop(probe);
    assert_eq!(call(), bare);
}

#[test]
fn reg_11_a_second_jprobe_on_a_function_is_refused() {
    let _alone = alone();
    extern "C" fn nothing() {}
    // SAFETY: a handler without arguments fits every function.
    let first = probes().register(unsafe { Jprobe::at("jp_many", nothing as extern "C" fn()) }).unwrap();
    // SAFETY: as above.
    let error = probes().register(unsafe { Jprobe::at("jp_many", nothing as extern "C" fn()) }).unwrap_err();
    assert_eq!(error.errno().as_i32(), libc::EEXIST);
    drop(first);
}

#[test]
fn ret_9_kprobe_jprobe_body_and_return_handler_run_in_this_order() {
    static ORDER: AtomicUsize = AtomicUsize::new(0);
    fn note(digit: usize) {
        ORDER.store(count(&ORDER) * 10 + digit, Relaxed);
    }
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn jp_body(x: usize) -> usize {
        note(3);
        black_box(x) + 1
    }
    extern "C" fn handler(x: usize) {
        assert_eq!(x, 41);
        note(2);
    }
    let _alone = alone();
    // SAFETY: the handler has the function's signature.
    let jprobe = unsafe { Jprobe::at("jp_body", handler as extern "C" fn(usize)) };
    let all = (
        probes().register(Kretprobe::at("jp_body").exit(|_, ()| note(4))).unwrap(),
        probes().register(jprobe).unwrap(),
        probes().register(Kprobe::at("jp_body").pre(|_| note(1))).unwrap(),
    );
    assert_eq!(jp_body(black_box(41)), 42);
    assert_eq!(count(&ORDER), 1234);
    drop(all);
}

#[test]
fn a_probed_function_called_by_a_jprobes_handler_is_executed_and_counted() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn jp_inner(x: usize) -> usize {
        black_box(x) * 7
    }
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn jp_outer(x: usize) -> usize {
        black_box(x) + 1
    }
    static INNER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn handler(x: usize) {
        INNER.store(jp_inner(x), Relaxed);
    }
    let _alone = alone();
    let inner = probes().register(Kprobe::at("jp_inner").pre(|_| ()).post(|_| ())).unwrap();
    // SAFETY: the handler has the function's signature.
    let outer =
        probes().register(unsafe { Jprobe::at("jp_outer", handler as extern "C" fn(usize)) }).unwrap();
    assert_eq!(jp_outer(black_box(6)), 7);
    assert_eq!(count(&INNER), 42);
    assert_eq!(inner.counters().missed_nested, 1);
    drop((inner, outer));
}

#[test]
fn errno_survives_a_jprobes_handler() {
    #[inline(never)]
    #[unsafe(no_mangle)]
    extern "C" fn jp_errno(x: usize) -> usize {
        black_box(x)
    }
    extern "C" fn handler() {
        // SAFETY: closes nothing.
        unsafe { libc::close(-1) };
    }
    let _alone = alone();
    // SAFETY: a handler without arguments fits every function.
    let probe = probes().register(unsafe { Jprobe::at("jp_errno", handler as extern "C" fn()) }).unwrap();
    errno().store(4711, Relaxed);
    jp_errno(1);
    assert_eq!(errno().load(Relaxed), 4711);
    drop(probe);
    let _ = counter();
}
