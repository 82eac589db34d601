//! HIT_13: a hit, and what the guard adds to a call, makes no system call but those that this crate's README
//! lists. A filter ends the process at any other.

mod common;

use common::{End, alone, in_child};
use probe_host_linux::sys::Action;
use probe_host_linux::{Kprobe, Kretprobe, Probe, guard_signals, probes, signals};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HITS: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn calls_work(x: usize) -> usize {
    black_box(x) * 3 + 1
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn calls_load(from: *const usize) -> usize {
    // SAFETY: the callers pass valid pointers, or mean to fault.
    unsafe { black_box(from).read_volatile() }
}

fn count_hit() {
    HITS.fetch_add(1, Relaxed);
}

/// A probe by a trap and a return probe.
fn by_trap() -> (Probe, Probe) {
    let hit = |_: &mut probe_host_linux::Hit<'_>| count_hit();
    let kprobe = probes().register(Kprobe::at("calls_work").pre(hit).without_jump()).unwrap();
    let kretprobe = probes().register(Kretprobe::at("calls_work").exit(|_, ()| count_hit())).unwrap();
    (kprobe, kretprobe)
}

/// Ends this thread, in strict mode the only way that the kernel leaves.
fn exit_thread(status: i32) -> ! {
    loop {
        // SAFETY: ends the thread.
        unsafe { libc::syscall(libc::SYS_exit, status) };
    }
}

/// One word of a filter.
const fn word(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// Whether system calls can be filtered here: not where an emulator makes them.
fn can_filter() -> bool {
    std::env::var_os("PROBE_RUNNER").is_none()
}

/// Lets the kernel end this process at any system call but `allowed`, those that a program cannot do without,
/// and the end.
fn allow_only(allowed: &[libc::c_long]) {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let always = [libc::SYS_rt_sigreturn, libc::SYS_exit_group, libc::SYS_exit];
    // The number is the first word of `struct seccomp_data`.
    let mut filter = vec![word(LOAD_WORD, 0, 0, 0)];
    for &number in always.iter().chain(allowed) {
        filter.push(word(JUMP_IF_EQUAL, 0, 1, number as u32));
        filter.push(word(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    }
    filter.push(word(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: a valid program, which the kernel copies.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0);
    // To be freed by nobody: that may take a system call.
    std::mem::forget(filter);
}

#[test]
fn hit_13_a_hit_by_a_trap_makes_no_system_call() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let planted = by_trap();
    let end = in_child(|| {
        assert_eq!(calls_work(1), 4);
        let before = HITS.load(Relaxed);
        allow_only(&[]);
        let is_right = calls_work(2) == 7 && HITS.load(Relaxed) == before + 2;
        exit_thread(i32::from(!is_right))
    });
    assert_eq!(end, End::Exit(0));
    drop(planted);
}

#[test]
fn hit_13_the_first_hit_of_a_process_that_forked_makes_no_system_call() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let planted = by_trap();
    assert_eq!(calls_work(1), 4);
    let end = in_child(|| {
        allow_only(&[]);
        exit_thread(i32::from(calls_work(2) != 7))
    });
    assert_eq!(end, End::Exit(0));
    drop(planted);
}

#[test]
fn hit_13_a_hit_by_a_jump_makes_no_system_call() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let hit = |_: &mut probe_host_linux::Hit<'_>| count_hit();
    let guard = guard_signals().unwrap();
    let probe = probes().register(Kprobe::at("calls_work").pre(hit)).unwrap();
    assert!(probes().jumps().lay().is_ok());
    let end = in_child(|| {
        assert_eq!(calls_work(1), 4);
        allow_only(&[]);
        exit_thread(i32::from(calls_work(2) != 7))
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}

/// The handler of a signal that nobody sends.
extern "C" fn on_signal(_: i32) {}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { set.assume_init() }
}

fn install(signal: i32, handler: usize) -> usize {
    let new = libc::sigaction { sa_sigaction: handler, sa_mask: empty(), sa_flags: 0, sa_restorer: None };
    let mut old = libc::sigaction { sa_sigaction: 0, ..new };
    // SAFETY: the handler does nothing.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const new, &raw mut old) }, 0);
    old.sa_sigaction
}

#[test]
fn hit_13_the_guard_adds_no_system_call_to_sigaction() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let end = in_child(|| {
        let handler = on_signal as *const () as usize;
        // The thread's first hit is over.
        install(libc::SIGUSR2, handler);
        allow_only(&[libc::SYS_rt_sigaction]);
        for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGUSR1, libc::SIGRTMAX()] {
            for now in [handler, libc::SIG_DFL, libc::SIG_IGN, handler, handler, handler, handler] {
                install(signal, now);
                if install(signal, now) != now {
                    exit_thread(1);
                }
            }
        }
        exit_thread(0)
    });
    assert_eq!(end, End::Exit(0));
    drop(guard);
}

/// What `pthread_create`, a thread's start and its end, and `pthread_join` need of the kernel, in either C
/// library.
const OF_THREADS: &[libc::c_long] = &[
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_set_robust_list,
    // musl makes no use of it, and the libc crate does not know it there on i386.
    #[cfg(not(target_env = "musl"))]
    libc::SYS_rseq,
    libc::SYS_futex,
    #[cfg(target_pointer_width = "64")]
    libc::SYS_mmap,
    #[cfg(target_pointer_width = "32")]
    libc::SYS_mmap2,
    #[cfg(target_arch = "x86")]
    libc::SYS_set_thread_area,
];

extern "C" fn thread(_: *mut libc::c_void) -> *mut libc::c_void {
    (calls_work(5) as *mut libc::c_void).cast()
}

/// Makes a thread and waits for its end; whether it has done its work.
fn run_thread() -> bool {
    let mut id = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: `id` is writable; the function is a thread's.
    if unsafe { libc::pthread_create(id.as_mut_ptr(), null(), thread, null_mut()) } != 0 {
        return false;
    }
    // SAFETY: filled in by the call that has succeeded.
    let id = unsafe { id.assume_init() };
    let mut result = null_mut();
    // SAFETY: made just now, joined once.
    unsafe { libc::pthread_join(id, &raw mut result) };
    result as usize == 16
}

#[test]
fn hit_13_threads_come_and_go_with_what_they_need() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let bare = in_child(|| {
        allow_only(OF_THREADS);
        let all = (0..40).all(|_| run_thread());
        exit_thread(i32::from(!all))
    });
    assert_eq!(bare, End::Exit(0), "the filter is too narrow");
    let guard = guard_signals().unwrap();
    let planted = by_trap();
    let end = in_child(|| {
        // The README names them: at the end of a thread that was hit, and at its first hit with musl.
        let with_musl = [libc::SYS_gettid, libc::SYS_getpid, libc::SYS_tgkill];
        let with_musl = with_musl.into_iter().filter(|_| cfg!(target_env = "musl"));
        let ours = [libc::SYS_sigaltstack].into_iter().chain(with_musl);
        let allowed: Vec<_> = OF_THREADS.iter().copied().chain(ours).collect();
        allow_only(&allowed);
        let all = (0..40).all(|_| run_thread());
        exit_thread(i32::from(!all))
    });
    assert_eq!(end, End::Exit(0));
    drop((planted, guard));
}

#[test]
fn hit_13_threads_come_and_go_although_sigaltstack_is_forbidden() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let planted = by_trap();
    let end = in_child(|| {
        // A thread that is hit before, and one whose block is taken again.
        assert!(run_thread());
        let with_musl = [libc::SYS_gettid, libc::SYS_getpid, libc::SYS_tgkill];
        let with_musl = with_musl.into_iter().filter(|_| cfg!(target_env = "musl"));
        allow_only(&OF_THREADS.iter().copied().chain(with_musl).collect::<Vec<_>>());
        let all = (0..40).all(|_| run_thread());
        exit_thread(i32::from(!all))
    });
    assert_eq!(end, End::Exit(0));
    drop((planted, guard));
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_sent(_: i32) {
    HANDLED.fetch_add(calls_work(1), Relaxed);
}

/// A signal that comes in the middle of a hit cannot be sent once more.
#[test]
fn hit_13_a_signal_during_a_hit_comes_although_none_may_be_queued() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let send = |_: &mut probe_host_linux::Hit<'_>| {
        // Once: in the hit of the handler's own call nothing is sent.
        if HITS.fetch_add(1, Relaxed) == 0 {
            let (pid, tid) = (IDS[0].load(Relaxed), IDS[1].load(Relaxed));
            // SAFETY: a handler is there.
            unsafe { probe_host_linux::sys::call(libc::SYS_tgkill, [pid, tid, libc::SIGUSR1 as usize]) }
                .unwrap();
        }
    };
    for by_jump in [false, true] {
        let probe = Kprobe::at("calls_work").pre(send);
        let probe = probes().register(if by_jump { probe } else { probe.without_jump() }).unwrap();
        if by_jump {
            probes().jumps().lay().unwrap();
        }
        let end = in_child(|| {
            install(libc::SIGUSR1, on_sent as *const () as usize);
            // SAFETY: asks only.
            IDS[0].store(unsafe { libc::getpid() } as usize, Relaxed);
            // SAFETY: as above.
            IDS[1].store(unsafe { libc::gettid() } as usize, Relaxed);
            HITS.store(1, Relaxed);
            calls_work(1);
            allow_only(&[libc::SYS_tgkill, libc::SYS_rt_sigprocmask]);
            HITS.store(0, Relaxed);
            let is_right = calls_work(2) == 7 && HANDLED.load(Relaxed) == 4;
            // By a trap the signal waits for the end of the hit, so that its handler's own is one.
            let hits = HITS.load(Relaxed);
            exit_thread(i32::from(!is_right || !by_jump && hits != 2))
        });
        assert_eq!(end, End::Exit(0), "by a jump: {by_jump}");
        drop(probe);
    }
    drop(guard);
}

/// This process's number and this thread's.
static IDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether a process in the kernel's strict mode can be hit by a trap. On i386 that mode has the old
/// `sigreturn` only, which is not the one of handlers that take a siginfo.
fn can_be_strict() -> bool {
    can_filter() && cfg!(not(target_arch = "x86"))
}

/// Runs `body` in a child in the kernel's strict mode.
fn strictly(body: impl FnOnce() -> i32) -> End {
    in_child(|| {
        assert_eq!(calls_work(1), 4);
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT, 0, 0, 0) }, 0);
        exit_thread(body())
    })
}

#[test]
fn hit_13_hits_in_strict_mode() {
    if !can_be_strict() {
        return;
    }
    let _alone = alone();
    let planted = by_trap();
    assert_eq!(strictly(|| i32::from(calls_work(2) != 7)), End::Exit(0));
    drop(planted);
}

#[test]
fn hit_13_a_handler_may_read_the_time_in_strict_mode() {
    // With another clock source the vDSO asks the kernel.
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let asks = cfg!(target_arch = "x86_64") && source.is_ok_and(|source| source.trim_end() != "tsc");
    if !can_be_strict() || asks {
        return;
    }
    let _alone = alone();
    let started = std::time::Instant::now();
    let hit = move |_: &mut probe_host_linux::Hit<'_>| {
        assert!(started.elapsed().as_secs() < 3600);
        count_hit();
    };
    let probe = probes().register(Kprobe::at("calls_work").pre(hit).without_jump()).unwrap();
    assert_eq!(strictly(|| i32::from(calls_work(2) != 7)), End::Exit(0));
    drop(probe);
}

#[test]
fn hit_13_a_program_dies_of_its_own_fault_in_strict_mode() {
    if !can_be_strict() {
        return;
    }
    let _alone = alone();
    let planted = by_trap();
    // Rust's runtime has a handler for it, which makes system calls.
    let before = signals::program_action(libc::SIGSEGV, Some(&Action::DEFAULT));
    assert_eq!(strictly(|| calls_load(std::ptr::dangling()) as i32), End::Signal(libc::SIGSEGV));
    signals::program_action(libc::SIGSEGV, Some(&before));
    drop(planted);
}

/// What a program that may not read the counter does, does what it does bare.
#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn hit_13_the_programs_own_reading_of_a_forbidden_counter_ends_it() {
    if !can_filter() {
        return;
    }
    let _alone = alone();
    let planted = by_trap();
    let forbidden = || {
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0) }, 0);
        assert_eq!(calls_work(2), 7);
        let mut counter = 0;
        // SAFETY: writes two registers, or faults, which is what this is about.
        unsafe { std::arch::asm!("rdtsc", out("eax") counter, out("edx") _) };
        counter & 1
    };
    assert_eq!(in_child(forbidden), End::Signal(libc::SIGSEGV));
    drop(planted);
}
