//! The guard: masks and actions that come from elsewhere than libc's own functions for them.

mod common;

use common::{End, alone, in_child};
use probe_host_linux::{Kprobe, Probe, guard_signals, probes};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static HITS: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn masks_work(x: usize) -> usize {
    black_box(x) * 7
}

fn on_work() -> Probe {
    let hit = |_: &mut probe_host_linux::Hit<'_>| {
        HITS.fetch_add(1, Relaxed);
    };
    probes().register(Kprobe::at("masks_work").pre(hit)).unwrap()
}

/// Blocks everything behind it. Where the libc crate has no contexts, nothing is asked.
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
extern "C" fn blocks_behind(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's own frame.
    let mask = unsafe { &raw mut (*context).uc_sigmask };
    // SAFETY: the first words of the set are the kernel's.
    unsafe { mask.cast::<u64>().write_unaligned(!0) };
}

#[test]
#[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
fn hit_13_a_handlers_context_blocks_nothing_that_a_hit_needs() {
    let _alone = alone();
    let probe = on_work();
    let guard = guard_signals().unwrap();
    for signal in [libc::SIGUSR1, libc::SIGTRAP, libc::SIGFPE] {
        let end = in_child(|| {
            let before = HITS.load(Relaxed);
            // SAFETY: all zero is an action without flags and mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = blocks_behind as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            // SAFETY: an action of our own.
            unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
            // SAFETY: a signal to ourselves, which is handled.
            unsafe { libc::raise(signal) };
            assert_eq!(masks_work(6), 42);
            // SAFETY: a set is plain bits.
            let mut now: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: asks only.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut now) };
            // SAFETY: a set and a number.
            let is_blocked = unsafe { libc::sigismember(&now, libc::SIGUSR2) } == 1;
            i32::from(!is_blocked || HITS.load(Relaxed) != before + 1)
        });
        assert_eq!(end, End::Exit(0), "signal {signal}");
    }
    drop((probe, guard));
}

/// Makes a system call through libc's function that takes any.
fn by_number(number: libc::c_long, arguments: [usize; 3]) -> libc::c_long {
    let [first, second, third] = arguments;
    // SAFETY: both take pointers to what is there, or NULL, and the length of the kernel's sets.
    unsafe { libc::syscall(number, first, second, third, 8_usize) }
}

#[test]
fn hit_13_masks_and_actions_by_number_are_guarded() {
    let _alone = alone();
    let probe = on_work();
    let guard = guard_signals().unwrap();
    let end = in_child(|| {
        let before = HITS.load(Relaxed);
        let (all, mut old) = ([!0_u8; 8], [0_u8; 8]);
        let set = by_number(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, all.as_ptr().expose_provenance(), 0],
        );
        assert_eq!(masks_work(6), 42);
        let told = by_number(libc::SYS_rt_sigprocmask, [0, 0, old.as_mut_ptr().expose_provenance()]);
        let bad = by_number(libc::SYS_rt_sigprocmask, [0, 1, 0]);
        // All zero is the default action, which would end us at the next breakpoint.
        let action = [0_u8; 64];
        let acted = by_number(
            libc::SYS_rt_sigaction,
            [libc::SIGTRAP as usize, action.as_ptr().expose_provenance(), 0],
        );
        assert_eq!(masks_work(6), 42);
        let is_blocked = u64::from_ne_bytes(old) != 0;
        i32::from((set, told, bad, acted) != (0, 0, -1, 0) || !is_blocked || HITS.load(Relaxed) != before + 2)
    });
    assert_eq!(end, End::Exit(0));
    drop((probe, guard));
}
