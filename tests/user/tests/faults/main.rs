//! What may go wrong around a hit, in this process: faults of the probed instruction itself, stacks that end,
//! forks, exec, cancelled threads, handlers that leave by `siglongjmp`, seccomp. docs/reliability.md says
//! which clause is tested where.
//!
//! A fault is compared with the one that the bare program raises: signal, code, address, registers.

#[path = "../../../../host-linux/tests/common/mod.rs"]
mod common;
mod handlers;
mod instructions;

use common::{End, alone, in_child};
use probe_host_linux::{Kprobe, Kretprobe, probes};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// A function to be probed, and what it makes of a number.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flt_work(x: usize) -> usize {
    black_box(x) * 7 + 2
}

/// Installs the program's action for a signal, as an agent does; `SA_SIGINFO` is added.
fn action(signal: i32, handler: Handler, flags: i32) {
    use probe_host_linux::sys::{Action, Restorer, SignalSet};
    let action = Action {
        handler: handler as usize,
        flags: (libc::SA_SIGINFO | flags) as usize,
        restorer: Restorer::NONE,
        mask: SignalSet::EMPTY,
    };
    probe_host_linux::signals::program_action(signal, Some(&action));
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// A function that recurs until its stack ends.
#[unsafe(no_mangle)]
#[inline(never)]
#[allow(unconditional_recursion, reason = "that is what it is for")]
extern "C" fn flt_deep(x: usize) -> usize {
    let mut kept = [x; 64];
    black_box(&mut kept);
    flt_deep(x + 1) + black_box(kept[x & 63])
}

/// The program's own handler for the end of its stack runs on its own alternate stack, with a probe and a
/// return probe on the function that has recurred; without one the program dies as it would.
#[test]
fn a_stack_that_ends_under_probes_ends_as_without() {
    extern "C" fn overflowed(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: ends the process.
        unsafe { libc::_exit(if signal == libc::SIGSEGV { 42 } else { 1 }) };
    }
    let _alone = alone();
    let kprobe = probes().register(Kprobe::at("flt_deep").pre(|_| ()).post(|_| ())).expect("a function");
    let kretprobe = Kretprobe::at("flt_deep").max_active(50).exit(|_, ()| ());
    let kretprobe = probes().register(kretprobe).expect("a function");
    let handled = in_child(|| {
        action(libc::SIGSEGV, overflowed, libc::SA_ONSTACK);
        flt_deep(0) as i32
    });
    assert_eq!(handled, End::Exit(42));
    let default = probe_host_linux::sys::Action::DEFAULT;
    let died = in_child(|| {
        probe_host_linux::signals::program_action(libc::SIGSEGV, Some(&default));
        flt_deep(0) as i32
    });
    assert_eq!(died, End::Signal(libc::SIGSEGV));
    assert_eq!(kprobe.counters().hits + kretprobe.counters().hits, 0, "only children have called it");
}

/// A handler that forks: both processes finish the hit, and the program goes on in both.
#[test]
fn a_fork_in_a_handler_leaves_two_processes_that_go_on() {
    static CHILD: AtomicUsize = AtomicUsize::new(usize::MAX);
    let _alone = alone();
    let end = in_child(|| {
        let probe = Kprobe::at("flt_work").pre(|_| {
            if CHILD.load(SeqCst) == usize::MAX {
                // SAFETY: this process has one thread.
                CHILD.store(unsafe { libc::fork() } as usize, SeqCst);
            }
        });
        let probe = probes().register(probe).expect("a function");
        let is_well = flt_work(1) == 9 && flt_work(2) == 16 && probe.counters().hits == 2;
        let child = CHILD.load(SeqCst);
        if child == 0 {
            return if is_well { 44 } else { 1 };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        let waited = unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
        i32::from(!(is_well && waited == child as i32 && libc::WEXITSTATUS(status) == 44))
    });
    assert_eq!(end, End::Exit(0));
}

/// Another program in the place of a probed one begins as any other. Under an emulator it is one of the
/// machine's own.
#[test]
fn exec_of_a_probed_process_runs_the_new_program_bare() {
    let _alone = alone();
    let _probe = probes().register(Kprobe::at("flt_work").pre(|_| ())).expect("a function");
    let end = in_child(|| {
        let words = [c"/bin/sh".as_ptr(), c"-c".as_ptr(), c"exit 45".as_ptr(), std::ptr::null()];
        assert_eq!(flt_work(1), 9);
        // SAFETY: the words end with a null pointer.
        unsafe { libc::execv(words[0], words.as_ptr()) };
        1
    });
    assert_eq!(end, End::Exit(45));
}

/// A thread that is cancelled inside a followed call gives its instance back; where that unwinds (musl does
/// not), unwinding passes the return stub.
#[test]
fn ret_7_a_thread_cancelled_in_a_probed_function_gives_its_instance_back() {
    unsafe extern "C-unwind" {
        fn pause() -> i32;
        fn pthread_testcancel();
    }
    static IS_INSIDE: AtomicUsize = AtomicUsize::new(0);
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C-unwind" fn flt_waits(x: usize) -> usize {
        IS_INSIDE.store(1, SeqCst);
        loop {
            // SAFETY: waits for a signal, or is cancelled.
            unsafe { pause() };
            // SAFETY: as above.
            unsafe { pthread_testcancel() };
            black_box(x);
        }
    }
    extern "C-unwind" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
        flt_waits(1);
        std::ptr::null_mut()
    }
    type Start = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;
    // SAFETY: the same but for what it says about unwinding, which cancelling does.
    let start: Start = unsafe { std::mem::transmute(thread as extern "C-unwind" fn(_) -> _) };
    let _alone = alone();
    let probe = Kretprobe::at("flt_waits").max_active(2).exit(|_, ()| ());
    let probe = probes().register(probe).expect("a function");
    for _ in 0..8 {
        IS_INSIDE.store(0, SeqCst);
        let mut id = std::mem::MaybeUninit::uninit();
        // SAFETY: `id` is writable.
        let made =
            unsafe { libc::pthread_create(id.as_mut_ptr(), std::ptr::null(), start, std::ptr::null_mut()) };
        assert_eq!(made, 0);
        // SAFETY: filled in by the call that has succeeded.
        let id = unsafe { id.assume_init() };
        while IS_INSIDE.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_cancel(id) }, 0);
        // SAFETY: joined once.
        assert_eq!(unsafe { libc::pthread_join(id, std::ptr::null_mut()) }, 0);
    }
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool), (8, 0), "{counters:?}");
}

unsafe extern "C" {
    #[cfg_attr(target_env = "gnu", link_name = "__sigsetjmp")]
    #[cfg_attr(not(target_env = "gnu"), link_name = "sigsetjmp")]
    fn sigsetjmp(buffer: *mut usize, save_mask: i32) -> i32;
    fn siglongjmp(buffer: *mut usize, value: i32) -> !;
}

/// The largest `sigjmp_buf` is that of ppc64, with all vector registers.
#[repr(align(16))]
struct Buffer([usize; 256]);

static BUFFER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn leave(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: whoever has filled the buffer is still active.
    unsafe { siglongjmp(BUFFER.load(Relaxed) as *mut usize, 1) };
}

/// Calls `work`; whether it has come back by `siglongjmp`.
#[inline(never)]
fn left(work: fn()) -> bool {
    // SAFETY: the buffer is large enough; between the two returns nothing with a destructor lives here.
    if unsafe { sigsetjmp(BUFFER.load(Relaxed) as *mut usize, 1) } == 0 {
        work();
        return false;
    }
    true
}

/// Stores where nothing is.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn flt_stores(to: *mut usize) {
    // SAFETY: it is meant to fault.
    unsafe { to.write_volatile(1) };
}

/// A signal handler that leaves by `siglongjmp`, a fault's and a sent one's, leaves the thread able to hit:
/// nothing is missed afterwards.
#[test]
fn a_signal_handler_that_jumps_out_loses_no_later_hit() {
    #[unsafe(no_mangle)]
    #[inline(never)]
    extern "C" fn flt_raises(signal: i32) {
        // SAFETY: the program has a handler for it.
        unsafe { libc::raise(black_box(signal)) };
    }
    let _alone = alone();
    probes();
    let end = in_child(|| {
        let mut buffer = Buffer([0; 256]);
        BUFFER.store(buffer.0.as_mut_ptr() as usize, Relaxed);
        action(libc::SIGSEGV, leave, 0);
        // SAFETY: the handler only jumps.
        unsafe { libc::signal(libc::SIGUSR1, leave as *const () as usize) };
        let names = ["flt_stores", "flt_raises", "flt_work"];
        let planted = names.map(|name| {
            let kprobe = Kprobe::at(name).pre(|_| ()).post(|_| ());
            let kretprobe = Kretprobe::at(name).max_active(3).exit(|_, ()| ());
            (
                probes().register(kprobe).expect("a function"),
                probes().register(kretprobe).expect("a function"),
            )
        });
        for round in 1..=20 {
            if !black_box(left)(|| flt_stores(black_box(16 as *mut usize))) {
                return 1;
            }
            if !black_box(left)(|| flt_raises(libc::SIGUSR1)) {
                return 2;
            }
            if flt_work(1) != 9 {
                return 3;
            }
            for (kprobe, kretprobe) in &planted {
                let (kprobe, kretprobe) = (kprobe.counters(), kretprobe.counters());
                if kprobe.hits != round || kprobe.missed_nested != 0 {
                    return 4;
                }
                if kretprobe.hits != round || kretprobe.missed_pool != 0 {
                    return 5;
                }
            }
        }
        0
    });
    assert_eq!(end, End::Exit(0));
}

/// Under seccomp a hit needs `rt_sigreturn` and nothing else.
#[test]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "x86")), ignore = "QEMU's user mode has no seccomp")]
fn under_seccomp_a_hit_needs_rt_sigreturn_only() {
    let _alone = alone();
    let kprobe = probes().register(Kprobe::at("flt_work").pre(|_| ()).post(|_| ())).expect("a function");
    let kretprobe = probes().register(Kretprobe::at("flt_work").exit(|_, ()| ())).expect("a function");
    let end = in_child(|| {
        // The thread's first hit prepares its signal stack.
        assert_eq!(flt_work(1), 9);
        const LOAD_NUMBER: u16 = 0x20;
        const JUMP_IF_EQUAL: u16 = 0x15;
        const RETURN: u16 = 6;
        let insn = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let filter = [
            insn(LOAD_NUMBER, 0, 0, 0),
            insn(JUMP_IF_EQUAL, 2, 0, libc::SYS_rt_sigreturn as u32),
            insn(JUMP_IF_EQUAL, 1, 0, libc::SYS_exit_group as u32),
            insn(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: takes numbers only.
        let is_set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the program is valid.
        let is_filtered =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0) };
        let mut is_well = is_set == 0 && is_filtered == 0;
        for x in 0..100 {
            is_well &= flt_work(x) == x * 7 + 2;
        }
        is_well &= kprobe.counters().hits == 101 && kretprobe.counters().hits == 101;
        i32::from(!is_well)
    });
    assert_eq!(end, End::Exit(0));
}
