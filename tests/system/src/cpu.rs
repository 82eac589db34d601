//! CPUs: their areas, starting them, and interrupting them.

use crate::arch::{Backend, Interrupts, Ipi, Machine, Native, Paging};
use crate::cmdline;
use crate::task::{self, Task};
use crate::watch;
use alloc::vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use probe_core::host::Context;

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
    online: AtomicBool,
    /// The latest synchronisation that this CPU has taken part in.
    synchronised: AtomicUsize,
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
            online: AtomicBool::new(false),
            synchronised: AtomicUsize::new(0),
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

/// The latest synchronisation that was asked for.
static ASKED: AtomicUsize = AtomicUsize::new(0);
/// Whether the CPUs that synchronise wait.
static HOLD: AtomicBool = AtomicBool::new(false);
/// Whether text is patched while the other CPUs wait.
static NEEDS_RENDEZVOUS: AtomicBool = AtomicBool::new(false);

/// The running CPUs.
pub fn online() -> impl Iterator<Item = &'static Cpu> {
    CPUS.iter().filter(|cpu| cpu.online.load(Ordering::Acquire))
}

/// Gives the boot CPU its area.
pub fn init_boot() {
    NEEDS_RENDEZVOUS.store(cmdline::value("rendezvous").is_some(), Ordering::Relaxed);
    init_secondary(0);
    CPUS[0].online.store(true, Ordering::Release);
}

/// Gives this CPU its area.
pub fn init_secondary(number: usize) {
    let cpu = &CPUS[number];
    cpu.this.set(cpu);
    Native::set_this_cpu(cpu);
    task::init_cpu(number);
}

/// Says that this CPU runs.
pub fn announce() {
    let cpu = Native::this_cpu();
    // It knows no older text or tables than those of now.
    cpu.synchronised.store(ASKED.load(Ordering::Acquire), Ordering::Release);
    cpu.online.store(true, Ordering::Release);
}

/// Starts the other CPUs, one after the other.
pub fn start_others() {
    let wanted = cmdline::value("cpus").and_then(|n| n.parse().ok()).unwrap_or(1).min(MAX);
    for cpu in &CPUS[1..wanted] {
        let stack = vec![0u128; 4096].leak();
        Native::start_cpu(cpu.number, stack.as_mut_ptr_range().end.expose_provenance());
        while !cpu.online.load(Ordering::Acquire) {
            Native::relax();
        }
    }
}

/// Returns after every CPU has synchronised its core, and its translations, since the call.
///
/// Takes part itself in what others ask for meanwhile, so that two CPUs that ask with interrupts disabled do
/// not wait for each other.
pub fn synchronise_all() {
    let interrupts = Native::disable_interrupts();
    let asked = ask();
    for cpu in online() {
        while cpu.synchronised.load(Ordering::SeqCst) < asked {
            on_sync();
            Native::relax();
        }
    }
    restore(interrupts);
}

/// What a CPU does when it is asked to synchronise; interrupts are disabled.
pub fn on_sync() {
    loop {
        let asked = ASKED.load(Ordering::SeqCst);
        Native::flush_all();
        watch::synchronise();
        Native::synchronise();
        Native::this_cpu().synchronised.store(asked, Ordering::SeqCst);
        // Who holds may have asked since: answered in the next turn.
        if !HOLD.load(Ordering::SeqCst) {
            break;
        }
        Native::relax();
    }
    Native::synchronise();
}

/// Interrupts the other CPUs; returns the number of this synchronisation.
fn ask() -> usize {
    let asked = ASKED.fetch_add(1, Ordering::SeqCst) + 1;
    let me = Native::this_cpu().number;
    for cpu in online().filter(|cpu| cpu.number != me) {
        Native::send_ipi(cpu.number, Ipi::Sync);
    }
    asked
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
    static HOLDER: AtomicBool = AtomicBool::new(false);
    if !NEEDS_RENDEZVOUS.load(Ordering::Relaxed) {
        return patch();
    }
    let interrupts = Native::disable_interrupts();
    while HOLDER.swap(true, Ordering::Acquire) {
        on_sync();
        Native::relax();
    }
    HOLD.store(true, Ordering::SeqCst);
    let asked = ask();
    let me = Native::this_cpu().number;
    for cpu in online().filter(|cpu| cpu.number != me) {
        while cpu.synchronised.load(Ordering::SeqCst) < asked {
            Native::relax();
        }
    }
    patch();
    HOLD.store(false, Ordering::Release);
    HOLDER.store(false, Ordering::Release);
    restore(interrupts);
}
