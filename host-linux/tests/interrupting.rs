//! Signal handlers that interrupt this crate's own work in their thread, and use it (REG_13): nothing waits
//! for itself.

mod common;

use common::{End, alone, has_run_alone, in_child};
use probe_host_linux::{Kprobe, objects_changed, probes, start};
use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn interrupting_work(x: usize) -> usize {
    black_box(x) + 3
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn interrupting_other(x: usize) -> usize {
    black_box(x) + 4
}

/// At how many more calls of `dl_iterate_phdr`, which this crate makes under its own lock and under the
/// core's, the signal is sent.
static CALLS_LEFT: AtomicUsize = AtomicUsize::new(0);
/// How often the signal's handler has run to its end.
static HANDLED: AtomicUsize = AtomicUsize::new(0);
/// How often it was told EBUSY.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// What the handler closes.
static LIBRARY: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has unloaded something, tells of it, and registers.
extern "C" fn on_signal(_: i32) {
    let library = LIBRARY.swap(std::ptr::null_mut(), SeqCst);
    if !library.is_null() {
        // SAFETY: a live handle, closed once.
        unsafe { libc::dlclose(library) };
    }
    objects_changed();
    if let Err(error) = probes().register(Kprobe::at("interrupting_other").pre(|_| ())) {
        assert_eq!(error.errno().as_i32(), libc::EBUSY, "{error}");
        BUSY.fetch_add(1, SeqCst);
    }
    HANDLED.fetch_add(1, SeqCst);
}

/// A registration, and a look at the objects, whose `nth` call of `dl_iterate_phdr` is interrupted. Whether
/// it was.
fn interrupted_at(nth: usize) -> bool {
    // SAFETY: a C string; the library's constructors do nothing that matters.
    LIBRARY.store(unsafe { libc::dlopen(c"libm.so.6".as_ptr(), libc::RTLD_NOW) }, SeqCst);
    let before = HANDLED.load(SeqCst);
    CALLS_LEFT.store(nth, SeqCst);
    let probe = probes().register(Kprobe::at("interrupting_work").pre(|_| ())).unwrap();
    assert_eq!((interrupting_work(1), interrupting_other(1)), (4, 5));
    drop(probe);
    objects_changed();
    CALLS_LEFT.store(0, SeqCst);
    HANDLED.load(SeqCst) != before
}

#[test]
fn reg_13_a_signal_handler_in_a_registration_or_a_look_at_the_objects_does_not_wait_for_itself() {
    let _alone = alone();
    probes();
    let end = in_child(|| {
        // The bound of a test that hangs.
        // SAFETY: no handler, so the default action.
        unsafe { libc::alarm(60) };
        common::install(libc::SIGUSR1, on_signal);
        let _probe = probes()
            .register(Kprobe::at("dl_iterate_phdr").pre(|_| {
                if CALLS_LEFT.load(SeqCst) != 0 && CALLS_LEFT.fetch_sub(1, SeqCst) == 1 {
                    // SAFETY: to this thread, whose handler runs when the hit is over.
                    unsafe { libc::raise(libc::SIGUSR1) };
                }
            }))
            .unwrap();
        let interruptions = (1..1000).take_while(|&nth| interrupted_at(nth)).count();
        // At the end no call is interrupted any more.
        assert!(interruptions > 2 && interruptions < 999, "{interruptions}");
        assert_eq!(HANDLED.load(SeqCst), interruptions);
        eprintln!("{interruptions} interruptions, {} of them EBUSY", BUSY.load(SeqCst));
        0
    });
    assert_eq!(end, End::Exit(0));
}

/// Whether [`start`] has returned, in a child of [`first_start`].
static HAS_STARTED: AtomicUsize = AtomicUsize::new(0);

/// Starts, too, and registers.
extern "C" fn on_time(_: i32) {
    let probe = probes().register(Kprobe::at("interrupting_other").pre(|_| ())).unwrap();
    assert_eq!(interrupting_other(1), 5);
    drop(probe);
    HANDLED.store(1 + HAS_STARTED.load(SeqCst), SeqCst);
}

/// The first start of a process, to which a signal comes after so many microseconds. Whether that came before
/// the end.
fn first_start(after_us: libc::c_long) -> bool {
    let end = in_child(|| {
        // The bound of a test that hangs.
        // SAFETY: no handler, so the default action.
        unsafe { libc::alarm(20) };
        common::install(libc::SIGUSR1, on_time);
        // SAFETY: all zero is a valid structure.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_signo = libc::SIGUSR1;
        let mut timer = std::mem::MaybeUninit::uninit();
        // SAFETY: valid structures.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) };
        assert_eq!(made, 0);
        // SAFETY: filled in by the call that has succeeded.
        let timer = unsafe { timer.assume_init() };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let once = libc::timespec { tv_sec: 0, tv_nsec: after_us * 1_000 };
        let times = libc::itimerspec { it_interval: never, it_value: once };
        // SAFETY: a timer, and a valid structure.
        assert_eq!(unsafe { libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()) }, 0);
        start().unwrap();
        HAS_STARTED.store(1, SeqCst);
        while HANDLED.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        HANDLED.load(SeqCst) as i32 - 1
    });
    assert!(matches!(end, End::Exit(0 | 1)), "{end:?} after {after_us} us");
    end == End::Exit(0)
}

#[test]
fn reg_13_a_signal_handler_in_the_first_start_does_not_wait_for_itself() {
    if has_run_alone("reg_13_a_signal_handler_in_the_first_start_does_not_wait_for_itself") {
        return;
    }
    let (mut after_us, mut behind) = (1, 0);
    while behind < 5 && after_us < 900_000 {
        behind = if first_start(after_us) { 0 } else { behind + 1 };
        after_us += 10 + after_us / 20;
    }
}
