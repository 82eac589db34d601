//! Probes where only a kernel can have them: traps, interrupts, page faults, CPUs and modules.
//!
//! Each check names the rules of the contract that it holds. What is asked of kernels only, and the check
//! that holds it:
//!
//! | what | check |
//! |---|---|
//! | probes in interrupt handlers | `interrupt_handler`, `watched_in_interrupts` |
//! | probes in code that runs with interrupts off | `interrupt_state` |
//! | a hit while an interrupt arrives | `interrupts_during_hits`, `interrupts_during_hits_by_jumps`, `hits_in_the_middle_of_hits` |
//! | a page fault in a stepped instruction | `fault_in_step`, `fault_handler_answers` |
//! | a page fault in a pre handler, in a post handler | `fault_in_handlers` |
//! | nested probes in every phase | `nesting` (pre, post, entry, return), `nesting_in_fault_handler` |
//! | nested probes at every depth | the suite's `hit_6_…_deeper_than_the_stack_of_hits` |
//! | a task killed while return instances are pending | `killed_in_call` |
//! | a context switch inside a probed function | `switches_in_calls` |
//! | a task that the host names late | `wrong_task` |
//! | a "current" that changes before the stack, and after it | `switched_stacks` |
//! | breakpoint traps on stacks of their own (x86-64's IST) | `own_trap_stacks` |
//! | interrupts on stacks of their own, and while a call returns | `interrupt_stacks` |
//! | calls that wait while all probes stop | `stopping_by_traps`, `stopping_by_jumps` |
//! | CPUs hit one probe while another registers and unregisters | `registration_storm` |
//! | no page writable and executable meanwhile, by the page tables | `registration_storm`, and after each check |
//! | `__switch_to`-like blacklisting | `blacklist` |
//! | handlers with preemption off | `handlers_are_pinned`, `handlers_of_jumps_are_pinned` |
//! | records of hits on all CPUs and in interrupts, read meanwhile | `events::storm` |
//! | the interrupt state restored exactly | `interrupt_state`, `fault_in_step` |

mod events;
mod faults;
mod interrupts;
mod kinds;
mod registry;
mod stacks;
mod stop;
mod tasks;

use super::{Check, skip};
use crate::arch::{Backend, Machine, Native};
use crate::host::{Kernel, Named, PROBES};
use crate::{cpu, shell, symbols};
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use probe_core::arch::Arch;
use probe_core::{CodeAddr, Kprobe, Place, Probe};

/// All of them, in the order in which they run.
pub const CHECKS: &[Check] = &[
    ("the host keeps what the self test can see", kinds::self_test),
    ("HIT_1 handlers run before and after the instruction", kinds::kprobe_fires),
    ("HIT_1 slots are stepped in the way that was chosen", kinds::stepped_as_chosen),
    ("HIT_1 an emulated jump and an emulated call are what they were", kinds::emulated),
    ("RET_4 a return handler sees and changes the value", kinds::kretprobe_fires),
    ("JMP_1 a jprobe gets the arguments", kinds::jprobe_fires),
    ("RET_9 kprobe, jprobe and kretprobe fire in their order", kinds::all_kinds),
    ("HIT_12 watched memory is seen in interrupt handlers", kinds::watched_in_interrupts),
    ("HIT_6 a handler's references are missed where they trap", kinds::watched_in_handler),
    ("HIT_5 a foreign breakpoint is passed on", kinds::foreign_breakpoint),
    ("HIT_12 a probe in an interrupt handler fires", interrupts::interrupt_handler),
    ("HIT_12 interrupts arrive between hits", interrupts::interrupts_during_hits),
    ("HIT_12 interrupts arrive in hits by jumps", interrupts::interrupts_during_hits_by_jumps),
    ("HIT_12 hits come in the middle of hits", || interrupts::hits_in_the_middle_of_hits(false)),
    ("HIT_12 hits come in the middle of hits by jumps", || interrupts::hits_in_the_middle_of_hits(true)),
    ("HIT_1 the interrupt state is restored", interrupts::interrupt_state),
    ("HIT_6 handlers cannot be interrupted or preempted", interrupts::handlers_are_pinned),
    ("HIT_6 handlers that a jump leads to cannot be preempted", interrupts::handlers_of_jumps_are_pinned),
    ("HIT_9 a page fault in a stepped instruction is handled in its place", faults::fault_in_step),
    ("HIT_9 a fault handler may answer a fault", faults::fault_handler_answers),
    ("HIT_9 page faults in handlers are handled", faults::fault_in_handlers),
    ("HIT_6 probes nest in every phase", faults::nesting),
    ("HIT_6 probes nest in a fault handler", faults::nesting_in_fault_handler),
    ("RET_5 calls return exactly through context switches", tasks::switches_in_calls),
    ("RET_7 RET_13 a killed task gives its instances back, and they count", tasks::killed_in_call),
    ("RET_11 calls return whatever task the host names", tasks::wrong_task),
    ("RET_11 calls return where current changes before the stack", || stacks::switched_stacks(false)),
    ("RET_11 calls return where current changes after the stack", || stacks::switched_stacks(true)),
    ("RET_11 calls return that interrupts on stacks of their own are in", || {
        stacks::interrupt_stacks(Named::Running, false)
    }),
    ("RET_11 calls return on interrupt stacks that the host tells of", || {
        stacks::interrupt_stacks(Named::Stack, false)
    }),
    ("RET_11 calls return on interrupt stacks that nobody owns", || {
        stacks::interrupt_stacks(Named::NoneInInterrupts, false)
    }),
    ("RET_11 calls by jumps return on interrupt stacks", || stacks::interrupt_stacks(Named::Running, true)),
    ("RET_11 calls by jumps return on interrupt stacks that the host tells of", || {
        stacks::interrupt_stacks(Named::Stack, true)
    }),
    ("HIT_6 RET_11 breakpoint traps on stacks of their own nest", stacks::own_trap_stacks),
    ("HIT_7 SAFE_1 cpus hit while others register", tasks::registration_storm),
    ("REG_3 trap entry and context switch are blacklisted", registry::blacklist),
    ("REG_18 handlers may not register", registry::registering_in_handler),
    ("REG_19 no return probe stands where a task begins", registry::task_start),
    ("REG_20 no jump lies over what others patch", registry::others_patch),
    ("CTL_5 a module takes its text along", registry::module_goes),
    ("CTL_5 probes packaged with a module come and go", registry::packaged_probes),
    ("CTL_3 the files read as the kernel's do", registry::files),
    ("CTL_3 lines of kprobe_events become probes and their hits lines", events::lines),
    ("HIT_7 cpus and interrupts record while one reads and nothing is lost", events::storm),
    ("REG_8 a refused registration changes nothing", registry::refused_changes_nothing),
    ("CTL_7 all probes stop, and calls that wait return by themselves", stop::stopping_by_traps),
    ("CTL_7 all probes stop, and calls by jumps that wait return by themselves", stop::stopping_by_jumps),
    ("REG_13 nothing leaks", registry::nothing_leaks),
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
        probe_core::CodeAddr::new((&raw const $name).addr())
    }};
}
use label;

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

/// Whether the backend has no jumps, so that the check that asks has nothing to check.
fn lacks_jumps() -> bool {
    let lacks = Backend::JUMPS.is_none();
    if lacks {
        skip("the backend has no jumps");
    }
    lacks
}

/// What the file `list` reads.
fn list() -> String {
    shell::read("list").expect("it is a file")
}
