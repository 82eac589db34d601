//! Page faults around a hit, and hits inside handlers.

use super::{Counter, counting, label, place, register};
use crate::arch::{Backend, Interrupts, Machine, Native};
use crate::host::PROBES;
use crate::{memory, syscalls, targets, task};
use probe_core::arch::Regs as _;
use probe_core::handler::Answer;
use probe_core::{CodeAddr, Kprobe, Kretprobe, Switch};

pub(super) fn fault_in_step() {
    memory::forget_demanded();
    let (probe, before, after) = counting(place(label!(target_load_insn)));
    assert_eq!(targets::load(memory::DEMAND), 0);
    // It was started twice: the fault is the kernel's, which maps the page and has it done again.
    assert_eq!([before.get(), after.get()], [2, 1]);
    assert_eq!(task::interrupts(), Interrupts::Enabled);
    assert_eq!(targets::load(memory::DEMAND), 0);
    assert_eq!([before.get(), after.get()], [3, 2]);
    assert_eq!(probe.counters().faults, 1);
    drop(probe);
}

pub(super) fn fault_handler_answers() {
    const NOWHERE: usize = 0x5f00_0000;
    let trap = Counter::default();
    let t = trap.clone();
    let probe = register(Kprobe::<Backend>::at(place(label!(target_load_insn))).post(|_| ()).fault(
        move |hit, number| {
            t.set(number as usize);
            // Skips the load: its function returns next, with what was in the result's register.
            let at = label!(target_load_insn);
            assert_eq!(hit.regs().pc(), at);
            let after = CodeAddr::new(at.as_usize() + LOAD_LEN);
            hit.regs_mut().set_pc(after);
            Answer::Handled
        },
    ));
    let result = targets::load(NOWHERE);
    assert!(result == NOWHERE || cfg!(target_arch = "x86_64"), "{result:#x}");
    assert_eq!(trap.get(), Native::PAGE_FAULT as usize);
    assert_eq!(probe.counters().faults, 1);
    drop(probe);
}

/// The length of the instruction at `target_load_insn`.
const LOAD_LEN: usize = if cfg!(target_arch = "x86_64") {
    3
} else if cfg!(target_arch = "x86") {
    2
} else {
    4
};

pub(super) fn fault_in_handlers() {
    fn touch() {
        // SAFETY: the page appears when it is read.
        unsafe { core::ptr::with_exposed_provenance::<usize>(memory::DEMAND).read_volatile() };
    }
    for is_optimising in [false, true] {
        PROBES.jumps().set_automatic(is_optimising.into());
        for in_post in [false, true] {
            memory::forget_demanded();
            let faults = Counter::default();
            let f = faults.clone();
            let probe = register(
                Kprobe::<Backend>::at("target_plain")
                    .pre(move |_| {
                        if !in_post {
                            touch()
                        }
                    })
                    .post(move |_| {
                        if in_post {
                            touch()
                        }
                    })
                    .fault(move |_, _| {
                        f.rise();
                        Answer::NotHandled
                    }),
            );
            assert_eq!(targets::plain(1), 2);
            assert_eq!(targets::plain(1), 2);
            assert_eq!(faults.get(), 1);
            let counters = probe.counters();
            assert_eq!((counters.hits, counters.faults), (2, 1));
            drop(probe);
        }
        // Nobody is asked about those of a return probe; the kernel maps the page.
        for in_exit in [false, true] {
            memory::forget_demanded();
            let entry = Kretprobe::<Backend>::at("target_plain").entry(move |_| {
                if !in_exit {
                    touch()
                }
                Some(())
            });
            let probe = register(entry.exit(move |_, ()| {
                if in_exit {
                    touch()
                }
            }));
            assert_eq!(targets::plain(1), 2);
            assert_eq!(targets::plain(1), 2);
            let counters = probe.counters();
            assert_eq!((counters.hits, counters.missed_nested, counters.abandoned), (2, 0, 0));
            drop(probe);
        }
    }
    PROBES.jumps().set_automatic(Switch::Off);
}

pub(super) fn nesting() {
    // Every handler calls a probed function whose instructions are stepped and emulated.
    fn inner() {
        assert_eq!(targets::plain(1), 2);
        assert_eq!(targets::jump(1), 2);
        assert_eq!(targets::call(1), 3);
    }
    let (plain, before, _) = counting("target_plain");
    let (jump, ..) = counting("target_jump");
    let (insn, ..) = counting(place(label!(target_call_insn)));
    let outer = register(Kprobe::<Backend>::at("do_sys_open").pre(|_| inner()).post(|_| inner()));
    let exit = register(
        Kretprobe::<Backend>::at("do_sys_open")
            .entry(|_| {
                inner();
                Some(())
            })
            .exit(|_, ()| inner()),
    );
    assert_eq!(syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0), -2);
    assert_eq!(before.get(), 0);
    // `inner` ran four times, and hits `target_plain` twice each time.
    assert_eq!(plain.counters().missed_nested, 8);
    assert_eq!(jump.counters().missed_nested, 4);
    assert_eq!(insn.counters().missed_nested, 4);
    inner();
    assert_eq!(before.get(), 2);
    drop((plain, jump, insn, outer, exit));
}

pub(super) fn nesting_in_fault_handler() {
    memory::forget_demanded();
    let (inner, before, after) = counting("target_plain");
    let (jump, jumped, _) = counting("target_jump");
    let probe =
        register(Kprobe::<Backend>::at(place(label!(target_load_insn))).post(|_| ()).fault(|_, _| {
            assert_eq!(targets::plain(1), 2);
            assert_eq!(targets::jump(1), 2);
            Answer::NotHandled
        }));
    assert_eq!(targets::load(memory::DEMAND), 0);
    assert_eq!(probe.counters().faults, 1);
    assert_eq!([before.get(), after.get(), jumped.get()], [0; 3]);
    assert_eq!([inner.counters().missed_nested, jump.counters().missed_nested], [1; 2]);
    assert_eq!((targets::plain(1), before.get(), after.get()), (2, 1, 1));
    drop((inner, jump, probe));
}
