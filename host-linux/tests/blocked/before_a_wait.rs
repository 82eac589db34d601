//! A signal at the moment in which a thread begins to wait.

use super::*;
use probe_host_linux::probe_core::AnyProbe;
use probe_host_linux::probe_core::handler::Flow;
use probe_host_linux::probe_core::{CodeAddr, Place};
use probe_host_linux::{Hit, Native, guard, signals};

/// Where libc's `sigtimedwait` makes its system calls, one for each way to be cancelled.
fn calls_that_wait() -> Vec<CodeAddr> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const LEN: usize = 200;
    let at = libc::sigtimedwait as *const () as usize;
    // SAFETY: libc's text, which goes on behind this function.
    let code = unsafe { std::slice::from_raw_parts(at as *const u8, LEN) };
    let is_call = |&offset: &usize| code[offset..].starts_with(&SYSCALL);
    (0..LEN).filter(is_call).map(|offset| CodeAddr::new(at + offset)).collect()
}

/// Sends this thread a signal without a change of its mask.
fn send_to_self(signal: c_int) {
    // SAFETY: asks only.
    let thread = unsafe { libc::gettid() };
    // SAFETY: the caller has blocked it, or a handler is there.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, signal) };
}

/// In a hit: what is blocked is blocked in the kernel until the hit is over.
fn block_in_kernel(signal: c_int) {
    let set = 1_u64 << (signal - 1);
    // SAFETY: a valid set.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &set, null::<u64>(), size_of_val(&set))
    };
}

extern "C" fn sends_fault(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    send_to_self(libc::SIGSEGV);
}

/// When a signal comes: the guard has looked already, and the call is not made yet.
#[derive(Clone, Copy, Debug)]
enum Moment {
    InHit,
    Behind,
    /// It is sent by the handler of one that comes behind the hit.
    InHandler,
}

#[test]
fn hit_12_a_thread_that_waits_is_given_what_comes_in_the_hit_before() {
    if has_run_in_own_process(
        "before_a_wait::hit_12_a_thread_that_waits_is_given_what_comes_in_the_hit_before",
    ) {
        return;
    }
    let _alone = alone();
    let places = calls_that_wait();
    assert!(!places.is_empty());
    // The guard's are the newer ones, which are called first; they are found before or behind the others.
    let moments = [Moment::InHit, Moment::Behind, Moment::InHandler];
    for (moment, is_later) in moments.into_iter().flat_map(|moment| [(moment, false), (moment, true)]) {
        let sends = move |_: &mut Hit<'_>| {
            match moment {
                Moment::InHit => {}
                Moment::Behind => block_in_kernel(libc::SIGSEGV),
                Moment::InHandler => {
                    send_to_self(libc::SIGUSR1);
                    return Flow::Continue;
                }
            }
            send_to_self(libc::SIGSEGV);
            Flow::Continue
        };
        let on = |&place: &CodeAddr| -> AnyProbe<Native> {
            // SAFETY: a system call is made there.
            Kprobe::at(unsafe { Place::unchecked(place) }).pre(sends).without_jump().into()
        };
        let of_guard = (!is_later).then(guard::probes);
        let senders = probes().register_all(places.iter().map(on).collect::<Vec<_>>()).unwrap();
        signals::adopt_mask();
        let guard = probes().register_all(of_guard.unwrap_or_else(guard::probes)).unwrap();
        signals::defer_asynchronous().unwrap();
        let end = in_child(|| {
            // SAFETY: no arguments that could be wrong.
            unsafe { libc::alarm(150) };
            mask(libc::SIG_BLOCK, &[libc::SIGSEGV]);
            handle(libc::SIGUSR1, sends_fault, &[]);
            // SAFETY: a valid set.
            unsafe { libc::sigwaitinfo(&set_of(&[libc::SIGSEGV]), null_mut()) }
        });
        assert_eq!(end, End::Exit(libc::SIGSEGV), "{moment:?}, {is_later}");
        signals::block_during_traps().unwrap();
        drop((guard, senders));
    }
}
