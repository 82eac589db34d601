//! More signals than can be handled, sent by other processes.

use super::*;

/// How many signals each of [`SENDERS`] processes sends.
const SENT: usize = 300_000;
const SENDERS: usize = 2;

/// What the flooded process does with the signal.
#[derive(Clone, Copy, Debug)]
enum Does {
    /// It has a handler, which is hit.
    Handles,
    Blocks,
    Ignores,
}

static HANDLED: AtomicI32 = AtomicI32::new(0);
static DEEPEST: AtomicI32 = AtomicI32::new(0);

extern "C" fn deep(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let depth = DEPTH.fetch_add(1, Relaxed) + 1;
    DEEPEST.fetch_max(depth, Relaxed);
    assert_eq!(blocked_work(6), 42);
    HANDLED.fetch_add(1, Relaxed);
    DEPTH.fetch_sub(1, Relaxed);
}

fn prepare(signal: c_int, does: Does) {
    match does {
        Does::Handles => handle(signal, deep, &[]),
        Does::Blocks => _ = mask(libc::SIG_BLOCK, &[signal]),
        // SAFETY: no handler.
        Does::Ignores => _ = unsafe { libc::signal(signal, libc::SIG_IGN) },
    }
}

/// Sends this process `signal` until all senders have ended, which it waits for in probed code.
fn be_flooded(signal: c_int) {
    let flooded = std::process::id().cast_signed();
    let sender = || {
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: takes numbers.
            (0..SENT).for_each(|_| _ = unsafe { libc::kill(flooded, signal) });
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        child
    };
    let mut senders: Vec<_> = (0..SENDERS).map(|_| sender()).collect();
    while !senders.is_empty() {
        assert_eq!(blocked_work(6), 42);
        // SAFETY: children of this process; nobody asks for their status.
        senders.retain(|&child| unsafe { libc::waitpid(child, null_mut(), libc::WNOHANG) } == 0);
    }
}

/// What a process says that is flooded with `signal`: how deep its handler was nested, whether it was called
/// at all, how often for signals that are sent one after the other, and what is left.
fn flooded(signal: c_int, does: Does) -> Vec<c_int> {
    prepare(signal, does);
    be_flooded(signal);
    let mut said = vec![DEEPEST.load(Relaxed), c_int::from(HANDLED.swap(0, Relaxed) > 0), pending()];
    said.extend(take(signal));
    said.extend(take(signal));
    if let Does::Handles = does {
        (0..1_000).for_each(|_| send_to_process(signal));
        said.push(HANDLED.load(Relaxed));
    }
    said.extend([blocked(), pending()]);
    said
}

#[test]
fn hit_12_a_flood_of_signals_is_handled_one_by_one() {
    compare("flood::hit_12_a_flood_of_signals_is_handled_one_by_one", |signal| {
        flooded(signal, Does::Handles)
    });
}

#[test]
fn hit_13_of_a_flood_of_signals_that_are_blocked_one_is_pending() {
    compare("flood::hit_13_of_a_flood_of_signals_that_are_blocked_one_is_pending", |signal| {
        flooded(signal, Does::Blocks)
    });
}

#[test]
fn hit_13_a_flood_of_signals_that_are_ignored_is_nothing() {
    compare("flood::hit_13_a_flood_of_signals_that_are_ignored_is_nothing", |signal| {
        flooded(signal, Does::Ignores)
    });
}

/// How many signals [`sent_as_each_begins`] sends: frames for so many have no room on any stack here.
const STACKED: usize = 2_000;

/// Sends a traced `child` [`STACKED`] times `signal`, each as the kernel is about to call the handler for the
/// one before. So the next one is pending before that handler's first instruction: what a flood comes to now
/// and then.
fn sent_as_each_begins(child: libc::pid_t, signal: c_int) {
    let ptrace = |request, data: usize| {
        // SAFETY: the child is this process's; `data` is a signal, or a place for a siginfo.
        unsafe { libc::ptrace(request, child, null_mut::<c_void>(), data as *mut c_void) }
    };
    assert_eq!(ptrace(libc::PTRACE_SEIZE, 0), 0);
    // SAFETY: takes numbers.
    let send = || assert_eq!(unsafe { libc::kill(child, signal) }, 0);
    send();
    let mut left = STACKED;
    loop {
        let mut status = 0;
        // SAFETY: a place for the status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFSTOPPED(status), "signal {signal}: {status:#x}, {left} left");
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        assert_eq!(ptrace(libc::PTRACE_GETSIGINFO, info.as_mut_ptr().expose_provenance()), 0);
        // SAFETY: filled in by the kernel.
        let is_sent = unsafe { info.assume_init() }.si_code == libc::SI_USER;
        if is_sent && left == 0 {
            break;
        }
        if is_sent {
            left -= 1;
            send();
        }
        // Breakpoints go on to the child, too.
        assert_eq!(ptrace(libc::PTRACE_CONT, libc::WSTOPSIG(status) as usize), 0);
    }
    assert_eq!(ptrace(libc::PTRACE_DETACH, signal as usize), 0);
}

/// A child, which says with what it has ended, while it is sent signals by [`sent_as_each_begins`].
fn stacked(signal: c_int, does: Does) -> End {
    let (mut ready, mut done) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    // SAFETY: the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        use std::io::Write as _;
        drop(done.1);
        prepare(signal, does);
        let is_told = ready.1.write_all(&[0]).is_ok();
        // Until the other end is closed.
        let has_waited = done.0.read_to_end(&mut Vec::new()).is_ok();
        let left = [pending(), c_int::from(take(signal)[0] == signal), pending()];
        let is_left = left == if let Does::Blocks = does { [bits(&set_of(&[signal])), 1, 0] } else { [0; 3] };
        // Another one may come while one is brought to the stack where the program handles it.
        let is_handled = (HANDLED.load(Relaxed) > 0) == matches!(does, Does::Handles);
        let is_handled = is_handled && DEEPEST.load(Relaxed) <= 1;
        let good = [is_told, has_waited, is_left, is_handled, blocked_work(6) == 42];
        let bad = good.iter().position(|&is_good| !is_good);
        // SAFETY: ends the child.
        unsafe { libc::_exit(bad.map_or(0, |bad| bad as c_int + 1)) };
    }
    drop((ready.1, done.0));
    ready.0.read_exact(&mut [0]).unwrap();
    sent_as_each_begins(child, signal);
    drop(done.1);
    let mut status = 0;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    if libc::WIFSIGNALED(status) {
        End::Signal(libc::WTERMSIG(status))
    } else {
        End::Exit(libc::WEXITSTATUS(status))
    }
}

#[test]
fn hit_12_what_is_sent_before_the_handler_begins_is_handled_behind_it() {
    // QEMU has no `ptrace` for what it runs.
    if std::env::var_os("PROBE_RUNNER").is_some() {
        return;
    }
    let _alone = alone();
    let guard = guard_signals().unwrap();
    let probe = on_work();
    for signal in SIGNALS {
        for does in [Does::Blocks, Does::Handles, Does::Ignores] {
            assert_eq!(stacked(signal, does), End::Exit(0), "signal {signal}, {does:?}");
        }
    }
    drop((probe, guard));
}
