//! Probes where only a kernel can have them: traps, interrupts, page faults, CPUs and modules.
//!
//! Each check names the rules of the contract that it holds. What is asked of kernels only, and the check that holds it:
//!
//! | what | check |
//! |---|---|
//! | probes in interrupt handlers | `interrupt_handler`, `watched_in_interrupts` |
//! | probes in code that runs with interrupts off | `interrupt_state` |
//! | a hit while an interrupt arrives | `interrupts_during_hits` |
//! | a page fault in a stepped instruction | `fault_in_step`, `fault_handler_answers` |
//! | a page fault in a pre handler, in a post handler | `fault_in_handlers` |
//! | nested probes in every phase | `nesting` (pre, post, entry, return), `nesting_in_fault_handler` |
//! | nested probes at every depth | the suite's `hit_6_…_deeper_than_the_stack_of_hits` |
//! | a task killed while return instances are pending | `killed_in_call` |
//! | a context switch inside a probed function | `switches_in_calls` |
//! | CPUs hit one probe while another registers and unregisters | `registration_storm` |
//! | `__switch_to`-like blacklisting | `blacklist` |
//! | handlers with preemption off | `handlers_are_pinned`, `handlers_of_jumps_are_pinned` |
//! | the interrupt state restored exactly | `interrupt_state`, `fault_in_step` |

use super::Check;
use crate::arch::{Backend, Interrupts, Machine, Native, Regs};
use crate::host::{Kernel, PROBES};
use crate::modules::Module;
use crate::nofault::KernelMemory;
use crate::{cmdline, cpu, heap, memory, shell, symbols, syscalls, targets, task, trap};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use probe_core::arch::{Memory, Regs as _};
use probe_core::{Answer, CodeAddr, Errno, Jprobe, Kprobe, Kretprobe, Place, Probe, Switch, Watchpoint};

/// The checks of this file.
pub const CHECKS: &[Check] = &[
    ("the host keeps what the self test can see", self_test),
    ("HIT_1 handlers run before and after the instruction", kprobe_fires),
    ("HIT_1 slots are stepped in the way that was chosen", stepped_as_chosen),
    ("HIT_1 an emulated jump and an emulated call are what they were", emulated),
    ("RET_4 a return handler sees and changes the value", kretprobe_fires),
    ("JMP_1 a jprobe gets the arguments", jprobe_fires),
    ("RET_9 kprobe, jprobe and kretprobe fire in their order", all_kinds),
    ("HIT_12 watched memory is seen in interrupt handlers", watched_in_interrupts),
    ("HIT_6 a handler's references are missed where they trap", watched_in_handler),
    ("HIT_5 a foreign breakpoint is passed on", foreign_breakpoint),
    ("HIT_12 a probe in an interrupt handler fires", interrupt_handler),
    ("HIT_12 interrupts arrive between hits", interrupts_during_hits),
    ("HIT_1 the interrupt state is restored", interrupt_state),
    ("HIT_6 handlers cannot be interrupted or preempted", handlers_are_pinned),
    ("HIT_6 handlers that a jump leads to cannot be preempted", handlers_of_jumps_are_pinned),
    ("HIT_9 a page fault in a stepped instruction is handled in its place", fault_in_step),
    ("HIT_9 a fault handler may answer a fault", fault_handler_answers),
    ("HIT_9 page faults in handlers are handled", fault_in_handlers),
    ("HIT_6 probes nest in every phase", nesting),
    ("HIT_6 probes nest in a fault handler", nesting_in_fault_handler),
    ("RET_5 calls return exactly through context switches", switches_in_calls),
    ("RET_7 a killed task gives its instances back", killed_in_call),
    ("HIT_7 cpus hit while others register", registration_storm),
    ("REG_3 trap entry and context switch are blacklisted", blacklist),
    ("REG_18 handlers may not register", registering_in_handler),
    ("CTL_5 a module takes its text along", module_goes),
    ("CTL_5 probes packaged with a module come and go", packaged_probes),
    ("CTL_3 the files read as the kernel's do", files),
    ("REG_8 a refused registration changes nothing", refused_changes_nothing),
    ("REG_13 nothing leaks", nothing_leaks),
];

/// A counter that a handler and its check share.
#[derive(Clone, Default)]
struct Counter(Arc<AtomicUsize>);

impl Counter {
    fn rise(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    fn set(&self, value: usize) {
        self.0.store(value, SeqCst);
    }

    fn get(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn register(probe: impl Into<probe_core::AnyProbe<Backend>>) -> Probe<Kernel> {
    PROBES.register(probe).unwrap_or_else(|error| panic!("{error}"))
}

/// A kprobe with a post handler that count, on `place`.
fn counting(place: impl Into<Place>) -> (Probe<Kernel>, Counter, Counter) {
    let (before, after) = (Counter::default(), Counter::default());
    let (b, a) = (before.clone(), after.clone());
    let probe = Kprobe::<Backend>::at(place).pre(move |_| b.rise()).post(move |_| a.rise());
    (register(probe), before, after)
}

/// The address of a label in the assembly targets.
macro_rules! label {
    ($name:ident) => {{
        unsafe extern "C" {
            static $name: u8;
        }
        CodeAddr::new((&raw const $name).addr())
    }};
}

fn place(at: CodeAddr) -> Place {
    Place::from(at)
}

fn start_of(name: &str) -> CodeAddr {
    CodeAddr::new(symbols::named(name).next().expect("it is a symbol").start)
}

fn without_interrupts<R>(run: impl FnOnce() -> R) -> R {
    let interrupts = Native::disable_interrupts();
    let result = run();
    cpu::restore(interrupts);
    result
}

fn self_test() {
    let tested = PROBES.self_test().and_then(|()| {
        PROBES.self_test_at("target_plain", || {
            targets::plain(1);
        })
    });
    tested.unwrap_or_else(|error| panic!("{error}"));
}

fn kprobe_fires() {
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

fn stepped_as_chosen() {
    let steps = || cpu::online().map(|cpu| cpu.steps.load(SeqCst)).sum::<usize>();
    let (probe, before, after) = counting("target_plain");
    let start = steps();
    (0..10).for_each(|n| assert_eq!(targets::plain(n), n + 1));
    assert_eq!(steps() - start, if cmdline::value("step") == Some("hardware") { 10 } else { 0 });
    assert_eq!([before.get(), after.get()], [10; 2]);
    drop(probe);
}

fn emulated() {
    let (jump, before, after) = counting("target_jump");
    assert_eq!(targets::jump(1), 2);
    drop(jump);
    let (call, called, returned) = counting(place(label!(target_call_insn)));
    assert_eq!(targets::call(1), 3);
    drop(call);
    assert_eq!([before, after, called, returned].map(|counter| counter.get()), [1; 4]);
    assert_eq!(targets::call(1), 3);
}

fn kretprobe_fires() {
    let probe = register(Kretprobe::<Backend>::on("target_plain").entry(|call| call.argument(0)).exit(
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

fn jprobe_fires() {
    // SAFETY: the handler has the function's signature.
    let probe = register(unsafe { Jprobe::<Backend>::on("do_sys_open", on_open as *const () as usize) });
    assert!(syscalls::do_sys_open(c"/etc/motd".as_ptr(), 77, 0o644) >= 3);
    assert_eq!(syscalls::do_sys_open(c"/nowhere".as_ptr(), 78, 0o600), -2);
    assert_eq!(probe.counters().hits, 2);
    assert_eq!([ARGUMENTS[0].load(SeqCst), ARGUMENTS[1].load(SeqCst)], [78, 0o600]);
}

fn all_kinds() {
    static ORDER: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
    static CLOCK: AtomicUsize = AtomicUsize::new(1);
    fn note(index: usize) {
        ORDER[index].store(CLOCK.fetch_add(1, SeqCst), SeqCst);
    }
    extern "C" fn on_fork(_flags: usize, _start: usize, _size: usize, _tid: usize) {
        note(1);
    }
    let exit = register(Kretprobe::<Backend>::on("do_fork").exit(|_, ()| note(3)));
    // SAFETY: the handler has the function's signature.
    let arguments = register(unsafe { Jprobe::<Backend>::on("do_fork", on_fork as *const () as usize) });
    let entry = register(Kprobe::<Backend>::at("do_fork").pre(|_| note(0)));
    let pid = syscalls::do_fork(1, 2, 3, 4);
    note(2);
    assert!(pid > 0);
    let [first, second, body, last] = [0, 1, 2, 3].map(|index| ORDER[index].load(SeqCst));
    assert!(0 < first && first < second && second < last && last < body, "{first} {second} {last} {body}");
    drop((exit, arguments, entry));
}

fn watched_in_interrupts() {
    // Only interrupt handlers write to it.
    let flag = &cpu::online().next().expect("the boot CPU").reschedule;
    let watchpoint = Watchpoint::<Backend>::on(core::ptr::from_ref(flag).addr(), 1).write();
    if Native::watchpoints().is_err() {
        assert_eq!(PROBES.watch(watchpoint).err().map(|error| error.errno()), Some(Errno::EOPNOTSUPP));
        return;
    }
    let watch = PROBES.watch(watchpoint).unwrap_or_else(|error| panic!("{error}"));
    while watch.counters().hits < 5 {
        Native::relax();
    }
    drop(watch);
}

fn watched_in_handler() {
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    let watchpoint = Watchpoint::on((&raw const WATCHED).addr(), size_of::<usize>()).write();
    let Ok(watch) = PROBES.watch(watchpoint) else { return };
    let probe = register(Kprobe::<Backend>::at("target_plain").pre(|_| WATCHED.store(1, SeqCst)));
    assert_eq!(targets::plain(1), 2);
    // aarch64 masks debug exceptions in its traps.
    let missed = u64::from(!cfg!(target_arch = "aarch64"));
    assert_eq!((watch.counters().hits, watch.counters().missed_nested), (0, missed));
    drop((watch, probe));
}

fn foreign_breakpoint() {
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

fn interrupt_handler() {
    let (probe, before, after) = counting("on_timer_tick");
    while before.get() < 3 {
        Native::relax();
    }
    drop(probe);
    // No hit of this CPU is half done: the timer that was interrupted has ended. Another CPU may have been between the two
    // handlers when the probe went.
    assert!(before.get() - after.get() < cpu::online().count());
}

fn interrupts_during_hits() {
    let ticks = || cpu::online().map(|cpu| cpu.timer_ticks.load(SeqCst)).sum::<usize>();
    let (probe, before, after) = counting("target_plain");
    let (in_interrupt, interrupts, _) = counting("on_timer_tick");
    let start = ticks();
    let mut calls = 0;
    while ticks() < start + 5 {
        assert_eq!(targets::plain(calls), calls + 1);
        calls += 1;
    }
    assert_eq!([before.get(), after.get()], [calls; 2]);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_nested), (calls as u64, 0));
    drop((probe, in_interrupt));
    assert!(interrupts.get() >= 4);
}

fn interrupt_state() {
    let (probe, plain_before, plain_after) = counting("target_plain");
    let (jump, jump_before, jump_after) = counting("target_jump");
    let both = || {
        assert_eq!(targets::plain(1), 2);
        assert_eq!(targets::jump(1), 2);
        task::interrupts()
    };
    assert_eq!(both(), Interrupts::Enabled);
    assert_eq!(without_interrupts(both), Interrupts::Disabled);
    assert_eq!(both(), Interrupts::Enabled);
    let counts = [plain_before, plain_after, jump_before, jump_after].map(|counter| counter.get());
    assert_eq!(counts, [3; 4]);
    drop((probe, jump));
}

fn handlers_are_pinned() {
    let seen = Counter::default();
    let (s, t, u) = (seen.clone(), seen.clone(), seen.clone());
    let pinned = |counter: &Counter| {
        let is_pinned = task::interrupts() == Interrupts::Disabled || !task::is_preemptible();
        counter.0.fetch_add(usize::from(is_pinned), SeqCst);
    };
    let probe =
        register(Kprobe::<Backend>::at("target_plain").pre(move |_| pinned(&s)).post(move |_| pinned(&t)));
    let exit = register(Kretprobe::<Backend>::on("target_plain").exit(move |_, ()| pinned(&u)));
    targets::plain(1);
    assert_eq!(seen.get(), 3);
    assert!(task::is_preemptible());
    drop((probe, exit));
}

fn handlers_of_jumps_are_pinned() {
    let seen = Counter::default();
    let (s, t) = (seen.clone(), seen.clone());
    let pinned = |counter: &Counter| counter.set(counter.get() + usize::from(!task::is_preemptible()));
    PROBES.set_optimising(true);
    let probe = register(Kprobe::<Backend>::at("target_plain").pre(move |_| pinned(&s)));
    let exit = register(Kretprobe::<Backend>::on("target_plain").exit(move |_, ()| pinned(&t)));
    PROBES.set_optimising(false);
    assert!(list().lines().any(|line| line.contains("[OPTIMIZED]")), "{}", list());
    assert_eq!(targets::plain(1), 2);
    assert_eq!(seen.get(), 2);
    assert!(task::is_preemptible());
    assert_eq!(task::interrupts(), Interrupts::Enabled);
    assert_eq!(without_interrupts(|| (targets::plain(1), task::interrupts())), (2, Interrupts::Disabled));
    assert_eq!(seen.get(), 4);
    drop((probe, exit));
}

fn fault_in_step() {
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

fn fault_handler_answers() {
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

fn fault_in_handlers() {
    fn touch() {
        // SAFETY: the page appears when it is read.
        unsafe { core::ptr::with_exposed_provenance::<usize>(memory::DEMAND).read_volatile() };
    }
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
}

fn nesting() {
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
        Kretprobe::<Backend>::on("do_sys_open")
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

fn nesting_in_fault_handler() {
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

/// Yields, so that its callers' calls are in flight through context switches; returns `a * 3`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn yielding_triple(a: usize, depth: usize) -> usize {
    task::yield_now();
    if depth > 0 {
        return core::hint::black_box(yielding_triple(a, depth - 1));
    }
    core::hint::black_box(a) * 3
}

fn switches_in_calls() {
    let probe = register(
        Kretprobe::<Backend>::on("yielding_triple")
            .max_active(64)
            .entry(|call| call.argument(0))
            .exit(|ret, a| ret.set_value(ret.value() + a)),
    );
    let wrong = Counter::default();
    let tasks: Vec<_> = (1..9)
        .map(|a| {
            let wrong = wrong.clone();
            task::spawn("caller", move || {
                for _ in 0..20 {
                    // Five calls deep, each of which adds `a`.
                    if yielding_triple(a, 4) != a * 8 {
                        wrong.rise();
                    }
                }
            })
        })
        .collect();
    tasks.iter().for_each(|task| task.join());
    assert_eq!(wrong.get(), 0);
    let counters = probe.counters();
    assert_eq!((counters.hits, counters.missed_pool, counters.abandoned), (8 * 20 * 5, 0, 0));
    drop(probe);
}

fn killed_in_call() {
    let probe = register(
        Kretprobe::<Backend>::on("yielding_triple")
            .max_active(1)
            .entry(|call| call.argument(0))
            .exit(|_, _| ()),
    );
    let victim = task::spawn("victim", || {
        yielding_triple(1, usize::MAX);
    });
    while probe.counters().missed_pool == 0 {
        task::yield_now();
    }
    assert_eq!(probe.counters().hits, 1);
    victim.kill();
    victim.join();
    // It is another CPU that may give the instance back, after it has left the task's stack.
    let missed = || probe.counters().missed_pool;
    let mut before = missed();
    yielding_triple(2, 0);
    for _ in 0..1000 {
        if missed() == before {
            break;
        }
        before = missed();
        task::yield_now();
        yielding_triple(2, 0);
    }
    assert_eq!(probe.counters().hits, 2);
    drop(probe);
}

fn registration_storm() {
    let (stable, before, after) = counting("target_plain");
    let stop = Arc::new(AtomicBool::new(false));
    let (calls, wrong) = (Counter::default(), Counter::default());
    let callers: Vec<_> = (0..cpu::online().count() + 1)
        .map(|_| {
            let (stop, calls, wrong) = (stop.clone(), calls.clone(), wrong.clone());
            task::spawn("caller", move || {
                while !stop.load(SeqCst) {
                    let n = calls.0.fetch_add(1, SeqCst);
                    if targets::plain(n) != n + 1 || targets::jump(n) != n + 1 || targets::call(n) != n + 2 {
                        wrong.rise();
                    }
                    Native::relax();
                }
            })
        })
        .collect();
    // Every patch stops all CPUs at a rendezvous; there a few rounds are contention enough.
    let rounds = if cmdline::value("rendezvous").is_some() { 8 } else { 60 };
    for round in 0..rounds {
        let (again, ..) = counting("target_plain");
        let jump = counting("target_jump");
        let exit = register(Kretprobe::<Backend>::on("target_call").exit(|_, ()| ()));
        let insn = register(Kprobe::<Backend>::at(place(label!(target_call_insn))).pre(|_| ()));
        if round % 2 == 0 {
            PROBES.switch(Switch::Off).expect("text can be written");
            PROBES.switch(Switch::On).expect("text can be written");
        }
        task::yield_now();
        drop((again, jump, exit, insn));
    }
    stop.store(true, SeqCst);
    callers.iter().for_each(|task| task.join());
    assert!(calls.get() > 0);
    assert_eq!(wrong.get(), 0);
    assert_eq!(before.get(), after.get());
    let counters = stable.counters();
    assert_eq!(counters.hits + counters.missed_nested, before.get() as u64);
    drop(stable);
}

fn blacklist() {
    for name in ["switch_stacks", "nofault_copy"] {
        let error = PROBES.register(Kprobe::<Backend>::at(name).pre(|_| ())).expect_err("REG_3");
        assert_eq!(error.errno(), Errno::EINVAL, "{name}");
    }
    let mut text = String::new();
    shell::read("blacklist", &mut text).expect("it is a file").expect("strings take everything");
    assert!(text.lines().any(|line| line.ends_with("\tswitch_stacks")));
    let data = CodeAddr::new(core::ptr::from_ref(CHECKS).addr());
    let error = PROBES.register(Kprobe::<Backend>::at(place(data)).pre(|_| ())).expect_err("not text");
    assert_eq!(error.errno(), Errno::EINVAL);
}

fn registering_in_handler() {
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

fn list() -> String {
    let mut text = String::new();
    shell::read("list", &mut text).expect("it is a file").expect("strings take everything");
    text
}

fn module_goes() {
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
        let kernels = register(Kretprobe::<Backend>::on("target_plain").exit(|_, ()| ()));
        Self { probes: [own, kernels], module }
    }
}

fn packaged_probes() {
    for _ in 0..3 {
        let packaged = Packaged::load();
        assert_eq!(packaged.module.function(1)(4, 0), 8);
        assert_eq!(targets::plain(1), 2);
        assert_eq!([0, 1].map(|index| packaged.probes[index].counters().hits), [1, 1]);
        drop(packaged);
        assert_eq!(list(), "");
    }
}

fn files() {
    let probe = register(Kprobe::<Backend>::at("do_fork").pre(|_| ()).disabled());
    let exit = register(Kretprobe::<Backend>::on("do_sys_open").exit(|_, ()| ()));
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
    let enabled = || {
        let mut text = String::new();
        shell::read("/debug/kprobes/enabled", &mut text)
            .expect("it is a file")
            .expect("strings take everything");
        text
    };
    assert_eq!(enabled(), "1\n");
    PROBES.write_enabled("0").expect("a boolean");
    assert_eq!(enabled(), "0\n");
    syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0);
    assert_eq!(exit.counters().hits, 0);
    PROBES.write_enabled("Y\n").expect("a boolean");
    syscalls::do_sys_open(c"/nowhere".as_ptr(), 0, 0);
    assert_eq!(exit.counters().hits, 1);
    assert!(PROBES.write_enabled("maybe").is_err());
    drop((probe, exit));
}

fn refused_changes_nothing() {
    let before = (heap::used_bytes(), list());
    for place in [Place::symbol("no_such_function"), Place::symbol("target_plain").offset(1 << 20)] {
        assert!(PROBES.register(Kprobe::<Backend>::at(place).pre(|_| ())).is_err());
    }
    assert_eq!((heap::used_bytes(), list()), before);
}

fn nothing_leaks() {
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
    assert_eq!(KernelMemory.read_usize(start_of("target_plain").as_usize()), {
        // The text is what it was: through the alias, too.
        KernelMemory.read_usize(start_of("target_plain").as_usize() + memory::ALIAS)
    });
}
