//! Signals that arrive during a hit are handled when it is over, as if they had been blocked meanwhile.

mod common;

use common::{alone, errno};
use probe_host_linux::{Guard, Jprobe, Kprobe, Kretprobe, Probe, guard_signals, probes};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What happened, in order: `'('` and `')'` are the two ends of a probe's handler, other characters signals.
static LOG: Mutex<String> = Mutex::new(String::new());
/// The signals that the probe's handler sends to its own thread, with 1, 2, … as their values.
static TO_SEND: Mutex<Vec<i32>> = Mutex::new(Vec::new());
/// Hits inside signal handlers.
static INNER: AtomicUsize = AtomicUsize::new(0);

fn log(what: char) {
    LOG.lock().unwrap().push(what);
}

fn take_log() -> String {
    std::mem::take(&mut *LOG.lock().unwrap())
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn deferral_work(x: usize) -> usize {
    black_box(x) * 7
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn deferral_inner(x: usize) -> usize {
    black_box(x) + 1
}

/// Sends `signal` to this thread, with a value.
fn send(signal: i32, value: usize) {
    /// `siginfo_t` as the kernel expects it of a sent signal with a value, which stands where a pointer is
    /// aligned.
    #[repr(C)]
    struct Info {
        number: i32,
        error: i32,
        code: i32,
        process: [usize; 0],
        sender: [i32; 2],
        value: usize,
        rest: [usize; 16],
    }
    let (code, sender) = (libc::SI_QUEUE, [0; 2]);
    let info = Info { number: signal, error: 0, code, process: [], sender, value, rest: [0; 16] };
    let process = std::process::id();
    // SAFETY: asks only.
    let thread = unsafe { libc::gettid() };
    // SAFETY: a siginfo as the kernel expects it, to ourselves.
    let sent =
        unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, &raw const info) };
    assert_eq!(sent, 0);
}

/// What every probe's handler here does.
fn in_handler() {
    log('(');
    let signals = std::mem::take(&mut *TO_SEND.lock().unwrap());
    // More of them are pending at once when the first one comes.
    let are_blocked = signals.len() > 3;
    if are_blocked {
        change_mask(libc::SIG_BLOCK);
    }
    signals.iter().zip(1..).for_each(|(&signal, value)| send(signal, value));
    if are_blocked {
        change_mask(libc::SIG_UNBLOCK);
    }
    log(')');
}

/// A signal handler: says which signal came with which value, and is hit itself.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's argument.
    let info = unsafe { &*info };
    // SAFETY: a signal that was sent with a value.
    let value = unsafe { info.si_value() }.sival_ptr as usize & 0xff;
    log(if signal == libc::SIGUSR1 { 'u' } else { 's' });
    log((b'0' + value as u8) as char);
    assert_eq!(deferral_inner(value), value + 1);
    errno().store(77, Relaxed);
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: writable.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: filled just now.
    unsafe { set.assume_init() }
}

fn action(flags: i32) -> libc::sigaction {
    libc::sigaction {
        sa_sigaction: on_signal as *const () as usize,
        sa_mask: empty(),
        sa_flags: libc::SA_SIGINFO | flags,
        sa_restorer: None,
    }
}

fn handle(signal: i32, flags: i32) {
    // SAFETY: the handler may run at any moment outside of the log's lock, which only this thread takes.
    assert_eq!(unsafe { libc::sigaction(signal, &action(flags), null_mut()) }, 0);
}

/// Whether `signal` is blocked in this thread.
fn is_blocked(signal: i32) -> bool {
    let mut now = empty();
    // SAFETY: asks only.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &mut now) };
    // SAFETY: a set and a number.
    unsafe { libc::sigismember(&now, signal) == 1 }
}

/// Blocks or unblocks SIGUSR1, SIGUSR2 and the first real-time signal.
fn change_mask(how: i32) {
    let mut set = empty();
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGRTMIN()] {
        // SAFETY: a set and a number.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: a valid set.
    assert_eq!(unsafe { libc::pthread_sigmask(how, &set, null_mut()) }, 0);
}

fn inner_probe() -> Probe {
    let count = |_: &mut probe_host_linux::Hit<'_>| {
        INNER.fetch_add(1, Relaxed);
    };
    probes().register(Kprobe::at("deferral_inner").pre(count)).unwrap()
}

/// The ways to be in a handler: by a trap, by a jump, in a post handler, at a return by trampoline, in a
/// jprobe's handler.
fn each_way(mut test: impl FnMut(&str)) {
    let _alone = alone();
    let guard: Guard = guard_signals().unwrap();
    assert!(guard.is_complete());
    let inner = inner_probe();
    for way in ["trap", "jump", "post", "return", "return by jump", "jprobe", "jprobe before a step"] {
        let probe = match way {
            "trap" | "jump" => probes().register(Kprobe::at("deferral_work").pre(|_| in_handler())),
            "post" => probes().register(Kprobe::at("deferral_work").post(|_| in_handler())),
            "jprobe" | "jprobe before a step" => {
                extern "C" fn mirror(x: usize) -> usize {
                    in_handler();
                    x
                }
                // SAFETY: the function's own signature.
                let entry = unsafe { Jprobe::at("deferral_work", mirror as extern "C" fn(usize) -> usize) };
                probes().register(entry)
            }
            _ => probes().register(Kretprobe::at("deferral_work").exit(|_, ()| in_handler())),
        }
        .unwrap();
        if way.ends_with("jump") {
            assert!(probes().jumps().lay().unwrap() > 0, "{way}");
        }
        let step = way
            .ends_with("step")
            .then(|| probes().register(Kprobe::at("deferral_work").post(|_| ())).unwrap());
        test(way);
        drop(step);
        probes().jumps().lift().unwrap();
        drop(probe);
    }
    drop((inner, guard));
}

fn hit(signals: &[i32]) -> String {
    *TO_SEND.lock().unwrap() = signals.to_vec();
    errno().store(5, Relaxed);
    assert_eq!(deferral_work(6), 42);
    take_log()
}

#[test]
fn a_signal_waits_for_the_end_of_the_hit() {
    each_way(|way| {
        handle(libc::SIGUSR1, 0);
        let inner = INNER.load(Relaxed);
        assert_eq!(hit(&[libc::SIGUSR1]), "()u1", "{way}");
        assert_eq!(INNER.load(Relaxed), inner + 1, "{way}: a hit in the signal's handler is a hit");
        assert_eq!(errno().load(Relaxed), 77, "{way}: errno is the signal handler's");
        assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGALRM), "{way}");
        assert_eq!(hit(&[]), "()", "{way}");
        assert_eq!(errno().load(Relaxed), 5, "{way}");
    });
}

#[test]
fn signals_of_one_number_keep_their_order() {
    each_way(|way| {
        let signal = libc::SIGRTMIN();
        handle(signal, 0);
        assert_eq!(hit(&[signal, signal, signal]), "()s1s2s3", "{way}");
        // An emulator does not send all of a siginfo again.
        if std::env::var_os("PROBE_RUNNER").is_none() {
            assert_eq!(hit(&[signal; 5]), "()s1s2s3s4s5", "{way}");
        }
        // And those that are pending when the first one interrupts the hit: they come all at once.
        change_mask(libc::SIG_BLOCK);
        (4..7).for_each(|value| send(signal, value));
        change_mask(libc::SIG_UNBLOCK);
        assert_eq!(take_log(), "s4s5s6", "{way}");
    });
}

#[test]
fn different_signals_at_once_all_come_after_the_hit() {
    each_way(|way| {
        handle(libc::SIGUSR1, 0);
        handle(libc::SIGUSR2, libc::SA_NODEFER | libc::SA_ONSTACK);
        let log = hit(&[libc::SIGUSR1, libc::SIGUSR2]);
        // Both are pending; the kernel stacks them, the higher number's handler runs first.
        assert!(log == "()s2u1" || log == "()u1s2", "{way}: {log}");
        assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGUSR2), "{way}");
    });
}

#[test]
fn a_signal_that_is_blocked_stays_blocked() {
    each_way(|way| {
        handle(libc::SIGUSR1, 0);
        handle(libc::SIGUSR2, 0);
        let mut set = empty();
        // SAFETY: a set and a number.
        unsafe { libc::sigaddset(&mut set, libc::SIGUSR1) };
        // SAFETY: a valid set.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, null_mut()) };
        assert_eq!(hit(&[libc::SIGUSR1, libc::SIGUSR2]), "()s2", "{way}");
        assert!(is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGUSR2), "{way}");
        change_mask(libc::SIG_UNBLOCK);
        assert_eq!(take_log(), "u1", "{way}");
    });
}

#[test]
fn what_the_program_has_set_is_what_it_reads() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER | libc::SA_SIGINFO;
    handle(libc::SIGUSR1, flags);
    let read = |new: *const libc::sigaction| {
        let mut old = action(0);
        // SAFETY: a valid action or none.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, new, &mut old) }, 0);
        (old.sa_sigaction, old.sa_flags & !0x0400_0000)
    };
    let ours = on_signal as *const () as usize;
    assert_eq!(read(null()), (ours, flags));
    send(libc::SIGUSR1, 1);
    assert_eq!(take_log(), "u1");
    assert_eq!(read(null()).0, libc::SIG_DFL, "SA_RESETHAND");
    // SAFETY: ignoring needs no handler.
    assert_eq!(unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) }, libc::SIG_DFL);
    send(libc::SIGUSR1, 2);
    // SAFETY: the default action.
    assert_eq!(unsafe { libc::signal(libc::SIGUSR1, libc::SIG_DFL) }, libc::SIG_IGN);
    handle(libc::SIGUSR1, 0);
    drop(guard);
    // The handler goes on without the guard.
    send(libc::SIGUSR1, 3);
    assert_eq!(take_log(), "u3");
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

/// Where `leave` goes.
static BUFFER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn leave(_: i32) {
    log('l');
    // SAFETY: whoever has filled the buffer is still active.
    unsafe { siglongjmp(BUFFER.load(Relaxed) as *mut usize, 1) };
}

/// Calls the probed function; whether it has come back by `siglongjmp`.
#[inline(never)]
fn left() -> bool {
    // SAFETY: the buffer is large enough; between the two returns nothing with a destructor lives here.
    if unsafe { sigsetjmp(BUFFER.load(Relaxed) as *mut usize, 1) } == 0 {
        deferral_work(1);
        return false;
    }
    true
}

#[test]
fn a_signal_handler_may_leave_a_probed_function_for_good() {
    let mut buffer = Buffer([0; 256]);
    BUFFER.store(buffer.0.as_mut_ptr() as usize, Relaxed);
    each_way(|way| {
        // SAFETY: the handler leaves to where this thread has called from.
        unsafe { libc::signal(libc::SIGUSR1, leave as *const () as usize) };
        for _ in 0..100 {
            *TO_SEND.lock().unwrap() = vec![libc::SIGUSR1];
            assert!(black_box(left)(), "{way}");
            assert_eq!(take_log(), "()l", "{way}");
        }
        assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGALRM), "{way}");
        handle(libc::SIGUSR1, 0);
        assert_eq!(hit(&[libc::SIGUSR1]), "()u1", "{way}: nothing is left open");
    });
}
