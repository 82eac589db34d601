//! Handlers that fault, at each phase, by breakpoint and by jump: what their probe's fault handler does not
//! answer is the program's, as any fault of its own.

use super::{action, flt_work};
use crate::common::{End, alone, in_child};
use probe_core::Switch;
use probe_core::handler::Answer;
use probe_host_linux::{Hit, Jprobe, Kprobe, Kretprobe, Probe, probes};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// Which handler reads the page that is not there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Pre,
    Post,
    /// A fault handler, when its pre handler has faulted.
    Fault,
    Entry,
    Exit,
    Jprobe,
}

const PAGE: usize = 4096;
static AT: AtomicPtr<AtomicUsize> = AtomicPtr::new(null_mut());
/// Faults that the program's own handler has seen, and those that a fault handler has.
static PROGRAMS: AtomicUsize = AtomicUsize::new(0);
static PROBES: AtomicUsize = AtomicUsize::new(0);

/// Reads the page.
fn touch() {
    // SAFETY: mapped for good; where it may not be read, a handler changes that and the load is done again.
    unsafe { &*AT.load(SeqCst) }.load(SeqCst);
}

/// Lets the page be read or not.
fn protect(prot: i32) {
    // SAFETY: one page that only these tests use.
    assert_eq!(unsafe { libc::mprotect(AT.load(SeqCst).cast(), PAGE, prot) }, 0);
}

extern "C" fn mend(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel's structure.
    let info = unsafe { &*info };
    // SAFETY: a fault's siginfo has an address.
    assert_eq!(unsafe { info.si_addr() }, AT.load(SeqCst).cast());
    PROGRAMS.fetch_add(1, SeqCst);
    protect(libc::PROT_READ);
}

extern "C" fn jprobe(_: usize) {
    touch();
}

/// A probe on `flt_work` whose handler of that phase reads the page.
fn plant(phase: Phase) -> Probe {
    let probe = Kprobe::at("flt_work");
    let entry = Kretprobe::at("flt_work");
    let twice = |_: &mut Hit<'_>, _: u32| {
        touch();
        Answer::Handled
    };
    let planted = match phase {
        Phase::Pre => probes().register(probe.pre(|_| touch())),
        Phase::Post => probes().register(probe.post(|_| touch())),
        Phase::Fault => probes().register(probe.pre(|_| touch()).fault(twice)),
        Phase::Entry => probes().register(
            entry
                .entry(|_| {
                    touch();
                    Some(())
                })
                .exit(|_, ()| ()),
        ),
        Phase::Exit => probes().register(entry.exit(|_, ()| touch())),
        Phase::Jprobe => {
            // SAFETY: the handler has the function's arguments.
            probes().register(unsafe { Jprobe::from_raw("flt_work", jprobe as *const () as usize) })
        }
    };
    planted.unwrap_or_else(|error| panic!("{phase:?}: {error}"))
}

/// Makes the page, and runs `body` in each phase with breakpoints and with jumps.
fn in_each_phase(phases: &[Phase], body: impl Fn(Phase)) {
    let _alone = alone();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(null_mut(), PAGE, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    AT.store(page.cast(), SeqCst);
    for is_optimising in [false, true] {
        probes().jumps().set_automatic(is_optimising.into());
        phases.iter().for_each(|&phase| body(phase));
    }
    probes().jumps().set_automatic(Switch::Off);
    // SAFETY: mapped above; nobody reads it any more.
    unsafe { libc::munmap(page, PAGE) };
}

#[test]
fn hit_9_a_fault_in_a_handler_is_the_programs() {
    in_each_phase(
        &[Phase::Pre, Phase::Post, Phase::Fault, Phase::Entry, Phase::Exit, Phase::Jprobe],
        |phase| {
            let default = probe_host_linux::sys::Action::DEFAULT;
            let probe = plant(phase);
            protect(libc::PROT_NONE);
            let died = in_child(|| {
                probe_host_linux::signals::program_action(libc::SIGSEGV, Some(&default));
                flt_work(1) as i32
            });
            assert_eq!(died, End::Signal(libc::SIGSEGV), "{phase:?}");
            action(libc::SIGSEGV, mend, 0);
            for round in 1..4 {
                let before = PROGRAMS.load(SeqCst);
                protect(libc::PROT_NONE);
                assert_eq!(flt_work(round), round * 7 + 2, "{phase:?}");
                assert_eq!(PROGRAMS.load(SeqCst), before + 1, "{phase:?}");
                // And without a fault.
                assert_eq!(flt_work(round), round * 7 + 2, "{phase:?}");
                let counters = probe.counters();
                assert_eq!((counters.hits, counters.missed_nested), (2 * round as u64, 0), "{phase:?}");
            }
            probe_host_linux::signals::program_action(libc::SIGSEGV, Some(&default));
            drop(probe);
            assert_eq!(flt_work(1), 9);
        },
    );
}

#[test]
fn hit_9_a_fault_in_a_handler_is_its_fault_handlers() {
    in_each_phase(&[Phase::Pre, Phase::Post], |phase| {
        let answer = |_: &mut Hit<'_>, _: u32| {
            PROBES.fetch_add(1, SeqCst);
            protect(libc::PROT_READ);
            Answer::Handled
        };
        let probe = Kprobe::at("flt_work").fault(answer);
        let probe = match phase {
            Phase::Pre => probes().register(probe.pre(|_| touch())),
            _ => probes().register(probe.pre(|_| ()).post(|_| touch())),
        };
        let probe = probe.expect("a function");
        let before = (PROBES.load(SeqCst), PROGRAMS.load(SeqCst));
        for round in 1..4 {
            protect(libc::PROT_NONE);
            assert_eq!(flt_work(round), round * 7 + 2);
            assert_eq!(probe.counters().faults, round as u64);
        }
        assert_eq!((PROBES.load(SeqCst), PROGRAMS.load(SeqCst)), (before.0 + 3, before.1));
        drop(probe);
    });
}
