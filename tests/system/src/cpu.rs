//! CPUs: their areas, starting them, and interrupting them.

use crate::arch::{Backend, Interrupts, Ipi, Machine, Native, Paging};
use crate::cmdline;
use crate::task::{self, Task};
use crate::watch;
use alloc::vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use probe_core::host::Context;
use probe_kernel_kit::rendezvous::{Cpus, Rendezvous};

/// How many CPUs there can be.
pub const MAX: usize = 8;

/// One CPU's area.
#[repr(C)]
pub struct Cpu {
    /// The hits that are active on this CPU. First: what leads to the area leads to them.
    pub probes: Context<Backend>,
    /// Where this area lies.
    pub this: Cell<*const Cpu>,
    /// The running task, where the machine keeps it here.
    pub current: Cell<*const Task>,
    /// The CPU's number, from 0.
    pub number: usize,
    /// How often the running task has disabled preemption and not enabled it again, where the machine keeps
    /// it here.
    pub preemption_off: Cell<usize>,
    /// Whether another task should run when the interrupt ends.
    pub reschedule: Cell<bool>,
    /// The task that ran before the running one, until it is queued again.
    pub previous: Cell<*const Task>,
    /// The task that is being switched to.
    pub next: Cell<*const Task>,
    /// The task that runs when there is no other.
    pub idle: Cell<*const Task>,
    /// How many timer interrupts there were.
    pub timer_ticks: AtomicUsize,
    /// How many slots were stepped in hardware.
    pub steps: AtomicUsize,
    /// Which version of the watchpoints its debug registers hold.
    pub watch_version: Cell<usize>,
}

// SAFETY: the cells are used by their own CPU only, with interrupts disabled.
unsafe impl Sync for Cpu {}

impl Cpu {
    const fn new(number: usize) -> Self {
        Self {
            probes: Context::new(),
            this: Cell::new(core::ptr::null()),
            current: Cell::new(core::ptr::null()),
            number,
            preemption_off: Cell::new(0),
            reschedule: Cell::new(false),
            previous: Cell::new(core::ptr::null()),
            next: Cell::new(core::ptr::null()),
            idle: Cell::new(core::ptr::null()),
            timer_ticks: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
            watch_version: Cell::new(0),
        }
    }
}

static CPUS: [Cpu; MAX] = {
    let mut cpus = [const { Cpu::new(0) }; MAX];
    let mut i = 0;
    while i < MAX {
        cpus[i].number = i;
        i += 1;
    }
    cpus
};

/// The CPUs as they meet.
pub struct Meeting;

// SAFETY: an interrupt controller loses no interrupt, and each instruction is the machine's.
unsafe impl Cpus for Meeting {
    fn this(&self) -> usize {
        Native::this_cpu().number
    }

    fn interrupt(&self, number: usize) {
        Native::send_ipi(number, Ipi::Sync);
    }

    fn disable_interrupts(&self) -> bool {
        Native::disable_interrupts() == Interrupts::Enabled
    }

    fn enable_interrupts(&self) {
        Native::enable_interrupts();
    }

    fn synchronise(&self) {
        Native::flush_all();
        watch::synchronise();
        Native::synchronise();
    }

    fn relax(&self) {
        Native::relax();
    }
}

/// Where the CPUs meet.
pub static RENDEZVOUS: Rendezvous<Meeting, MAX> = Rendezvous::new(Meeting);

/// Whether text is patched while the other CPUs wait.
static NEEDS_RENDEZVOUS: AtomicBool = AtomicBool::new(false);

/// The running CPUs.
pub fn online() -> impl Iterator<Item = &'static Cpu> {
    RENDEZVOUS.online().map(|number| &CPUS[number])
}

/// Gives the boot CPU its area.
pub fn init_boot() {
    NEEDS_RENDEZVOUS.store(cmdline::value("rendezvous").is_some(), Ordering::Relaxed);
    init_secondary(0);
}

/// Gives this CPU its area.
pub fn init_secondary(number: usize) {
    let cpu = &CPUS[number];
    cpu.this.set(cpu);
    Native::set_this_cpu(cpu);
    task::init_cpu(number);
}

/// Starts the other CPUs, one after the other.
pub fn start_others() {
    let wanted = cmdline::value("cpus").and_then(|n| n.parse().ok()).unwrap_or(1).min(MAX);
    for cpu in &CPUS[1..wanted] {
        let stack = vec![0u128; 4096].leak();
        Native::start_cpu(cpu.number, stack.as_mut_ptr_range().end.expose_provenance());
        while !RENDEZVOUS.is_online(cpu.number) {
            Native::relax();
        }
    }
}

/// Enables interrupts again if they were.
pub fn restore(interrupts: Interrupts) {
    if interrupts == Interrupts::Enabled {
        Native::enable_interrupts();
    }
}

/// Runs `patch` while the other CPUs wait in an interrupt, if the command line says `rendezvous=yes`.
///
/// Only QEMU 7.2 with a thread per CPU needs that: it loses patches of text that another CPU executes.
pub fn rendezvous(patch: impl FnOnce()) {
    if NEEDS_RENDEZVOUS.load(Ordering::Relaxed) { RENDEZVOUS.stopped(patch) } else { patch() }
}
