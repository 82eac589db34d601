//! SIGILL and SIGFPE in a handler's mask, and faults in handlers that block them.

use super::trap::{breakpoint, undefined};
use super::*;
use probe_host_linux::signals::program_action;
use probe_host_linux::sys::{Action, Restorer, SignalSet};
use std::os::fd::AsRawFd as _;

/// Who installs the actions of the signals that are the library's.
#[derive(Clone, Copy, Debug)]
enum By {
    /// Libc: the kernel's actions, or the guard's.
    Libc,
    /// An agent, without a guard.
    Agent,
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn install(by: By, signal: c_int, handler: Handler, masked: &[c_int], flags: c_int) {
    let is_owned = probe_host_linux::signals::OWNED.contains(&signal);
    if let (By::Agent, true) = (by, is_owned) {
        let action = Action {
            handler: handler as *const () as usize,
            flags: (libc::SA_SIGINFO | flags) as usize,
            restorer: Restorer::NONE,
            mask: masked.iter().fold(SignalSet::EMPTY, |set, &signal| set.with(signal)),
        };
        program_action(signal, Some(&action));
    } else {
        handle_with(signal, handler, masked, libc::SA_SIGINFO | flags);
    }
}

/// Runs `body` bare, with a probe alone, and with a guard: what it says is the same.
fn compare_all<T: PartialEq + std::fmt::Debug>(test: &str, body: impl Fn(By) -> T) {
    if has_run_in_own_process(test) {
        return;
    }
    let _alone = alone();
    let bare = body(By::Libc);
    let probe = on_work();
    assert_eq!(body(By::Agent), bare, "without the guard");
    let guard = guard_signals().unwrap();
    assert_eq!(body(By::Libc), bare, "with the guard");
    drop((probe, guard));
}

/// The signal that [`tells`] sends.
static SENT: AtomicI32 = AtomicI32::new(0);

fn has(set: &libc::sigset_t, signal: c_int) -> c_int {
    // SAFETY: a valid set.
    unsafe { libc::sigismember(set, signal) }
}

/// Whether [`SENT`] is blocked, pending, and blocked behind the handler whose frame this is: a digit each.
fn state(context: Option<*mut c_void>) -> c_int {
    let signal = SENT.load(Relaxed);
    let (mut now, mut pending) = (set_of(&[]), set_of(&[]));
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &mut now) }, 0);
    // SAFETY: a valid set.
    assert_eq!(unsafe { libc::sigpending(&mut pending) }, 0);
    // SAFETY: the kernel's own.
    let outer = context.map_or(0, |context| has(unsafe { &*mask_in(context) }, signal));
    has(&now, signal) * 100 + has(&pending, signal) * 10 + outer
}

extern "C" fn tells(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let depth = DEPTH.fetch_add(1, Relaxed);
    assert_eq!(blocked_work(6), 42);
    let before = state(Some(context));
    if COUNT.fetch_add(1, Relaxed) == 0 {
        raise(SENT.load(Relaxed));
    }
    assert_eq!(blocked_work(6), 42);
    SAID.fetch_add((before * 1_000 + state(None)) * 10 + depth, Relaxed);
    SAID.fetch_add(10_000_000, Relaxed);
    DEPTH.fetch_sub(1, Relaxed);
}

static SAID: AtomicI32 = AtomicI32::new(0);

#[test]
fn hit_13_sigill_and_sigfpe_are_blocked_in_a_handler_as_its_action_says() {
    let cases = |by| {
        let mut all = Vec::new();
        for sent in [libc::SIGILL, libc::SIGFPE] {
            for (first, masked, flags) in [
                (libc::SIGUSR1, &[sent][..], 0),
                (libc::SIGTRAP, &[sent], 0),
                (libc::SIGTRAP, &[], 0),
                (sent, &[], 0),
                (sent, &[], libc::SA_NODEFER),
                (sent, &[sent], libc::SA_NODEFER),
            ] {
                let said = said(|| {
                    SENT.store(sent, Relaxed);
                    install(by, sent, tells, masked, flags);
                    install(by, first, tells, masked, flags);
                    raise(first);
                    vec![SAID.load(Relaxed), COUNT.load(Relaxed), state(None)]
                });
                assert_eq!((&said.0, said.1.len()), (&End::Exit(0), 12), "{by:?}: {sent} in {first}");
                all.push((sent, first, masked.len(), flags, said.1));
            }
        }
        all
    };
    compare_all("faults::hit_13_sigill_and_sigfpe_are_blocked_in_a_handler_as_its_action_says", cases);
}

/// Executes what raises `signal`, again and again.
fn fault(signal: c_int) {
    match signal {
        libc::SIGTRAP => breakpoint(),
        // SAFETY: none; what is asked is what comes of it.
        libc::SIGSEGV => unsafe { black_box(16 as *mut c_int).write_volatile(1) },
        libc::SIGBUS => {
            let path = std::env::temp_dir().join(format!("probe-blocked-{}", std::process::id()));
            let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            let protection = libc::PROT_READ;
            // SAFETY: a new mapping.
            let page =
                unsafe { libc::mmap(null_mut(), 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            // SAFETY: none; the file ends before that.
            black_box(unsafe { page.cast::<u8>().read_volatile() });
        }
        libc::SIGILL => undefined(),
        _ => divide(),
    }
}

/// Divides by zero, where that is a fault.
fn divide() {
    // SAFETY: none; what is asked is what comes of it.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    unsafe {
        core::arch::asm!("div ecx", in("ecx") 0, inout("eax") 1 => _, inout("edx") 0 => _)
    };
}

/// What [`faults`] does.
static FAULT: AtomicI32 = AtomicI32::new(0);

extern "C" fn faults(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let depth = DEPTH.fetch_add(1, Relaxed);
    assert_eq!(blocked_work(6), 42);
    if depth == 0 {
        fault(FAULT.load(Relaxed));
    }
    // SAFETY: ends the child.
    unsafe { libc::_exit(40 + depth) };
}

/// The signals that an instruction raises here.
fn raised() -> impl Iterator<Item = c_int> {
    let divides = cfg!(any(target_arch = "x86_64", target_arch = "x86"));
    // QEMU 7.2 raises a SIGBUS that is blocked again and again.
    let is_emulated = std::env::var_os("PROBE_RUNNER").is_some();
    let all = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let is_raised = move |signal: &c_int| match *signal {
        libc::SIGFPE => divides,
        libc::SIGBUS => !is_emulated,
        _ => true,
    };
    all.into_iter().filter(is_raised)
}

/// How a program ends whose handler of `first`, with `masked` and `flags`, raises a fault.
fn end_of(by: By, first: c_int, raised: c_int, masked: &[c_int], flags: c_int) -> End {
    in_child(|| {
        FAULT.store(raised, Relaxed);
        install(by, raised, faults, &[], flags);
        install(by, first, faults, masked, flags);
        if first == raised {
            fault(first)
        } else {
            raise(first)
        }
        39
    })
}

#[test]
fn hit_13_a_fault_in_its_own_handler_ends_the_process() {
    let test = "faults::hit_13_a_fault_in_its_own_handler_ends_the_process";
    compare_all(test, |by| {
        // Without a guard nobody sees that a handler has left by a longjmp.
        let is_seen = |signal: &c_int| matches!(by, By::Libc) || !SIGNALS.contains(signal);
        let ends = |signal| {
            let end = |first, masked: &[c_int], flags| end_of(by, first, signal, masked, flags);
            let own = [end(signal, &[], 0), end(signal, &[], libc::SA_NODEFER)];
            let other = [end(libc::SIGUSR1, &[signal], 0), end(libc::SIGUSR1, &[], 0)];
            (signal, own, other)
        };
        let dies = |signal| [End::Signal(signal), End::Exit(41)];
        let all = raised().filter(is_seen).map(ends);
        all.filter(|(signal, own, other)| *own != dies(*signal) || *other != dies(*signal))
            .collect::<Vec<_>>()
    });
}

#[test]
fn hit_13_a_fault_that_is_blocked_ends_the_process() {
    let _alone = alone();
    let end = || {
        in_child(|| {
            handle(libc::SIGSEGV, counts, &[]);
            mask(libc::SIG_BLOCK, &[libc::SIGSEGV]);
            // SAFETY: none; what is asked is what comes of it.
            unsafe { black_box(16 as *mut c_int).write_volatile(1) };
            0
        })
    };
    assert_eq!(end(), End::Signal(libc::SIGSEGV));
    let guard = guard_signals().unwrap();
    let probe = on_work();
    assert_eq!(end(), End::Signal(libc::SIGSEGV));
    drop((probe, guard));
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn blocked_inner(x: usize) -> usize {
    black_box(x) + 1
}

#[test]
fn hit_6_a_handler_is_hit_in_a_program_that_handles_sigtrap() {
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let inner = probes().register(Kprobe::at("blocked_inner").pre(|_| ()).without_jump()).unwrap();
    let calls = |_: &mut probe_host_linux::Hit<'_>| assert_eq!(blocked_inner(1), 2);
    let outer = probes().register(Kprobe::at("blocked_work").pre(calls).without_jump()).unwrap();
    let end = in_child(|| {
        handle(libc::SIGTRAP, counts, &[]);
        let work = blocked_work(6);
        // What is sent comes to the handler, which is hit, too.
        raise(libc::SIGTRAP);
        let (missed, handled) = (inner.counters().missed_nested, COUNT.load(Relaxed));
        c_int::from((work, missed, handled > 0) != (42, 2, true))
    });
    assert_eq!(end, End::Exit(0));
    drop((outer, inner, guard));
}
