//! Every kind of probe, and watchpoints: they fire, and the kernel's own breakpoints stay its own.

use super::super::skip;
use super::{Counter, counting, label, place, register, start_of};
use crate::arch::{Backend, Machine, Native, Regs};
use crate::host::PROBES;
use crate::{cmdline, cpu, syscalls, targets, trap};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use probe_core::arch::Regs as _;
use probe_core::error::Errno;
use probe_core::{Jprobe, Kprobe, Kretprobe, Watchpoint};

pub(super) fn self_test() {
    let tested = PROBES.self_test().and_then(|()| {
        PROBES.self_test_at("target_plain", || {
            targets::plain(1);
        })
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

pub(super) fn kprobe_fires() {
    let (seen, next) = (Counter::default(), Counter::default());
    let (s, n) = (seen.clone(), next.clone());
    let at = start_of("target_plain");
    let probe = register(
        Kprobe::<Backend>::at("target_plain")
            .pre(move |hit| s.set(hit.regs().pc().as_usize()))
            .post(move |hit| n.set(hit.regs().pc().as_usize())),
    );
    assert_eq!(targets::plain(41), 42);
    assert_eq!(seen.get(), at.as_usize());
    assert!(next.get() > at.as_usize() && next.get() < at.as_usize() + 16);
    assert_eq!(probe.counters().hits, 1);
    drop(probe);
    assert_eq!(targets::plain(41), 42);
    assert_eq!(seen.get(), at.as_usize());
}

pub(super) fn stepped_as_chosen() {
    let steps = || cpu::online().map(|cpu| cpu.steps.load(SeqCst)).sum::<usize>();
    let (probe, before, after) = counting("target_plain");
    let start = steps();
    (0..10).for_each(|n| assert_eq!(targets::plain(n), n + 1));
    let is_stepped = Native::CAN_STEP && cmdline::value("step") == Some("hardware");
    assert_eq!(steps() - start, if is_stepped { 10 } else { 0 });
    assert_eq!([before.get(), after.get()], [10; 2]);
    drop(probe);
}

pub(super) fn emulated() {
    let (jump, before, after) = counting("target_jump");
    assert_eq!(targets::jump(1), 2);
    drop(jump);
    let (call, called, returned) = counting(place(label!(target_call_insn)));
    assert_eq!(targets::call(1), 3);
    drop(call);
    assert_eq!([before, after, called, returned].map(|counter| counter.get()), [1; 4]);
    assert_eq!(targets::call(1), 3);
}

pub(super) fn kretprobe_fires() {
    let probe = register(Kretprobe::<Backend>::at("target_plain").entry(|call| call.argument(0)).exit(
        |ret, argument| {
            assert_eq!(ret.value(), argument + 1);
            ret.set_value(argument * 100);
        },
    ));
    assert_eq!(targets::plain(5), 500);
    assert_eq!(probe.counters().hits, 1);
    drop(probe);
    assert_eq!(targets::plain(5), 6);
}

static ARGUMENTS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

extern "C" fn on_open(_path: *const u8, flags: i32, mode: u32) {
    ARGUMENTS[0].store(flags as usize, SeqCst);
    ARGUMENTS[1].store(mode as usize, SeqCst);
}

pub(super) fn jprobe_fires() {
    // SAFETY: the handler has the function's signature.
    let probe =
        register(unsafe { Jprobe::<Backend>::from_raw("do_sys_open", on_open as *const () as usize) });
    assert!(syscalls::do_sys_open(c"/etc/motd".as_ptr(), 77, 0o644) >= 3);
    assert_eq!(syscalls::do_sys_open(c"/nowhere".as_ptr(), 78, 0o600), -2);
    assert_eq!(probe.counters().hits, 2);
    assert_eq!([ARGUMENTS[0].load(SeqCst), ARGUMENTS[1].load(SeqCst)], [78, 0o600]);
}

pub(super) fn all_kinds() {
    static ORDER: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
    static CLOCK: AtomicUsize = AtomicUsize::new(1);
    fn note(index: usize) {
        ORDER[index].store(CLOCK.fetch_add(1, SeqCst), SeqCst);
    }
    extern "C" fn on_fork(_flags: usize, _start: usize, _size: usize, _tid: usize) {
        note(1);
    }
    let exit = register(Kretprobe::<Backend>::at("do_fork").exit(|_, ()| note(3)));
    // SAFETY: the handler has the function's signature.
    let arguments =
        register(unsafe { Jprobe::<Backend>::from_raw("do_fork", on_fork as *const () as usize) });
    let entry = register(Kprobe::<Backend>::at("do_fork").pre(|_| note(0)));
    let pid = syscalls::do_fork(1, 2, 3, 4);
    note(2);
    assert!(pid > 0);
    let [first, second, body, last] = [0, 1, 2, 3].map(|index| ORDER[index].load(SeqCst));
    assert!(0 < first && first < second && second < last && last < body, "{first} {second} {last} {body}");
    drop((exit, arguments, entry));
}

pub(super) fn watched_in_interrupts() {
    // Only interrupt handlers write to it.
    let flag = &cpu::online().next().expect("the boot CPU").reschedule;
    let watchpoint = Watchpoint::<Backend>::at(core::ptr::from_ref(flag).addr(), 1).write();
    if let Err(reason) = Native::watchpoints() {
        assert_eq!(PROBES.watch(watchpoint).err().map(|error| error.errno()), Some(Errno::EOPNOTSUPP));
        return skip(reason.sentence);
    }
    let watch = PROBES.watch(watchpoint).unwrap_or_else(|error| panic!("{error}"));
    while watch.counters().hits < 5 {
        Native::relax();
    }
    drop(watch);
}

pub(super) fn watched_in_handler() {
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    let watchpoint = Watchpoint::at((&raw const WATCHED).addr(), size_of::<usize>()).write();
    if let Err(reason) = Native::watchpoints() {
        return skip(reason.sentence);
    }
    let watch = PROBES.watch(watchpoint).unwrap_or_else(|error| panic!("{error}"));
    let probe = register(Kprobe::<Backend>::at("target_plain").pre(|_| WATCHED.store(1, SeqCst)));
    assert_eq!(targets::plain(1), 2);
    // aarch64 masks debug exceptions in its traps.
    let missed = u64::from(!cfg!(target_arch = "aarch64"));
    assert_eq!((watch.counters().hits, watch.counters().missed_nested), (0, missed));
    drop((watch, probe));
}

pub(super) fn foreign_breakpoint() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    fn skip(regs: &mut Regs, number: u32, _addr: usize) -> bool {
        if number != Native::BREAKPOINT {
            return false;
        }
        SEEN.fetch_add(1, SeqCst);
        let at = start_of("target_foreign");
        let len = <Backend as probe_core::arch::Arch>::BREAKPOINT.len();
        regs.set_pc(at.wrapping_add(len));
        true
    }
    trap::set_hook(Some(skip));
    assert_eq!(targets::foreign(), 7);
    assert_eq!(SEEN.load(SeqCst), 1);
    let refused = PROBES.register(Kprobe::<Backend>::at("target_foreign").pre(|_| ())).expect_err("REG_7");
    assert_eq!(refused.errno(), Errno::EILSEQ);
    assert_eq!(targets::foreign(), 7);
    trap::set_hook(None);
}
