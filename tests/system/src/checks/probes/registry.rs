//! What is refused, what comes and goes with modules, the files, and what is left at the end.

use super::faults::nesting;
use super::kinds::{kprobe_fires, kretprobe_fires};
use super::{CHECKS, counting, lacks_jumps, list, place, register, start_of};
use crate::arch::Backend;
use crate::host::{Kernel, PATCHED, PROBES};
use crate::modules::Module;
use crate::{heap, memory, shell, symbols, syscalls, targets, task};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use probe_core::arch::Memory;
use probe_core::error::Errno;
use probe_core::{CodeAddr, Kprobe, Kretprobe, Place, Probe};
use probe_kernel_kit::extable::FaultFree;

pub(super) fn blacklist() {
    for name in ["switch_stacks", "call_on_stack"] {
        let error = PROBES.register(Kprobe::<Backend>::at(name).pre(|_| ())).expect_err("REG_3");
        assert_eq!(error.errno(), Errno::EINVAL, "{name}");
    }
    let text = shell::read("blacklist").expect("it is a file");
    assert!(text.lines().any(|line| line.ends_with("\tswitch_stacks")));
    let data = CodeAddr::new(core::ptr::from_ref(CHECKS).addr());
    let error = PROBES.register(Kprobe::<Backend>::at(place(data)).pre(|_| ())).expect_err("not text");
    assert_eq!(error.errno(), Errno::EINVAL);
}

pub(super) fn registering_in_handler() {
    static ERRNO: AtomicUsize = AtomicUsize::new(0);
    let probe = register(Kprobe::<Backend>::at("target_plain").pre(|_| {
        let errno = PROBES
            .register(Kprobe::<Backend>::at("target_jump").pre(|_| ()))
            .err()
            .map_or(0, |error| error.errno().as_i32());
        ERRNO.store(errno as usize, SeqCst);
    }));
    targets::plain(1);
    assert_eq!(ERRNO.load(SeqCst), Errno::EBUSY.as_i32() as usize);
    drop(probe);
}

pub(super) fn task_start() {
    let at = place(start_of("kernel::task::first_run"));
    let error = PROBES.register(Kretprobe::<Backend>::at(at.clone())).expect_err("REG_19");
    assert_eq!((error.errno(), error.code()), (Errno::EINVAL, "entry.start"));
    drop(register(Kprobe::<Backend>::at(at)));
}

/// No other check has a jump here: the host is asked before a place's first one.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn patched_site(a: usize) -> usize {
    core::hint::black_box(a) + 1
}

/// A host that names one byte under a jump keeps the jump away, not the probe.
pub(super) fn others_patch() {
    if lacks_jumps() {
        return;
    }
    let at = register(Kprobe::<Backend>::at("patched_site").pre(|_| ())).addr();
    let jump = || {
        let probe = register(Kprobe::<Backend>::at("patched_site").pre(|_| ()));
        let answer = PROBES.explain(&place(at)).expect("it can be probed").jump;
        let laid = PROBES.jumps().lay().expect("text can be written");
        // Where one may be laid, its detour may find no room (riscv64).
        assert!(laid <= usize::from(answer.is_ok()), "{laid} jumps, although {answer:?}");
        assert_eq!((patched_site(1), probe.counters().hits), (2, 1));
        answer
    };
    // Not the first byte, which the breakpoint takes as well.
    PATCHED.store(at.as_usize() + 1, SeqCst);
    let refused = jump().map_err(|refusal| refusal.code);
    PATCHED.store(at.as_usize(), SeqCst);
    let error = PROBES.register(Kprobe::<Backend>::at(place(at)).pre(|_| ())).expect_err("REG_20");
    PATCHED.store(0, SeqCst);
    assert_eq!((refused, error.code()), (Err("host.others_patch"), "host.others_patch"));
    assert_eq!(jump(), Ok(()));
}

pub(super) fn module_goes() {
    let module = Module::load("sample").expect("there is room");
    let add = module.function(0);
    assert_eq!(add(2, 3), 5);
    let (probe, before, after) = counting("sample_add");
    assert_eq!(add(2, 3), 5);
    assert!(list().lines().any(|line| line.contains("  k  sample_add+0x0  sample ")), "{}", list());
    drop(module);
    assert!(probe.is_gone());
    assert!(list().contains("[GONE]"));
    // Its text may be something else by now: enabling is refused, nothing is written.
    assert!(probe.enable().is_err());
    drop(probe);
    assert_eq!(list(), "");
    assert_eq!([before.get(), after.get()], [1, 1]);
}

/// A module that brings its own probes, as loadable modules do.
struct Packaged {
    // Dropped first: the probes before the text.
    probes: [Probe<Kernel>; 2],
    module: Module,
}

impl Packaged {
    fn load() -> Self {
        let module = Module::load("packaged").expect("there is room");
        let own =
            register(Kprobe::<Backend>::at(Place::symbol("sample_twice").in_module("packaged")).pre(|_| ()));
        let kernels = register(Kretprobe::<Backend>::at("target_plain").exit(|_, ()| ()));
        Self { probes: [own, kernels], module }
    }
}

pub(super) fn packaged_probes() {
    for _ in 0..3 {
        let packaged = Packaged::load();
        assert_eq!(packaged.module.function(1)(4, 0), 8);
        assert_eq!(targets::plain(1), 2);
        assert_eq!([0, 1].map(|index| packaged.probes[index].counters().hits), [1, 1]);
        drop(packaged);
        assert_eq!(list(), "");
    }
}

pub(super) fn files() {
    let probe = register(Kprobe::<Backend>::at("do_fork").pre(|_| ()).disabled());
    let exit = register(Kretprobe::<Backend>::at("do_sys_open").exit(|_, ()| ()));
    let text = list();
    let digits = size_of::<usize>() * 2;
    // An entry is past what only some callers run through (ppc64 ELFv2: the global entry).
    let entry = |name| symbols::named(name).next().expect("it is a symbol").local_entry;
    let fork = alloc::format!(
        "{:0digits$x}  k  do_fork+{:#x}    [DISABLED]",
        probe.addr().as_usize(),
        entry("do_fork")
    );
    let open = alloc::format!(
        "{:0digits$x}  r  do_sys_open+{:#x}    ",
        exit.addr().as_usize(),
        entry("do_sys_open")
    );
    for line in [fork, open] {
        assert!(text.lines().any(|found| found.starts_with(&line)), "{line:?} is not in {text:?}");
    }
    let enabled = || shell::read("/debug/kprobes/enabled").expect("it is a file");
    assert_eq!(enabled(), "1\n");
    shell::write("enabled", "0").expect("a boolean");
    assert_eq!(enabled(), "0\n");
    syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0);
    assert_eq!(exit.counters().hits, 0);
    shell::write("enabled", "Y\n").expect("a boolean");
    syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0);
    assert_eq!(exit.counters().hits, 1);
    assert!(shell::write("enabled", "maybe").is_err());
    drop((probe, exit));
}

pub(super) fn refused_changes_nothing() {
    let before = (heap::used_bytes(), list());
    for place in [Place::symbol("no_such_function"), Place::symbol("target_plain").offset(1 << 20)] {
        assert!(PROBES.register(Kprobe::<Backend>::at(place).pre(|_| ())).is_err());
    }
    assert_eq!((heap::used_bytes(), list()), before);
}

pub(super) fn nothing_leaks() {
    // The first round makes what is kept for good: tables and slot chunks.
    for check in [kprobe_fires, kretprobe_fires, nesting, kprobe_fires, kretprobe_fires, nesting] {
        check();
    }
    task::settle();
    let before = heap::used_bytes();
    for check in [kprobe_fires, kretprobe_fires, nesting] {
        check();
    }
    task::settle();
    assert_eq!(heap::used_bytes(), before);
    assert_eq!(FaultFree.read_usize(start_of("target_plain").as_usize()), {
        // The text is what it was: through the alias, too.
        FaultFree.read_usize(start_of("target_plain").as_usize() + memory::ALIAS)
    });
}
