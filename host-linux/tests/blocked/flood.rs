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
    match does {
        Does::Handles => handle(signal, deep, &[]),
        Does::Blocks => {
            mask(libc::SIG_BLOCK, &[signal]);
            // The first SIGTRAP that is sent makes the handler begin quietly.
            send_to_process(signal);
            take(signal);
        }
        // SAFETY: no handler.
        Does::Ignores => _ = unsafe { libc::signal(signal, libc::SIG_IGN) },
    }
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
