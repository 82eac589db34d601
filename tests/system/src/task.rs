//! Tasks: a queue that all CPUs share, switched when a task yields, ends, or has used up its time.

use crate::arch::{Backend, Interrupts, Ipi, Machine, Native};
use crate::cpu;
use crate::host::PROBES;
use crate::lock::SpinLock;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use probe_core::host::Waiting;

const STACK_WORDS: usize = 4096;

/// A task: a stack and what runs on it.
#[repr(C)]
pub struct Task {
    /// Its calls whose return is probed. First: what leads to the task leads to them.
    pub probes: probe_core::host::Task<Backend>,
    /// The stack pointer while it does not run.
    sp: Cell<usize>,
    stack: UnsafeCell<Vec<u128>>,
    entry: Cell<Option<Box<dyn FnOnce() + Send>>>,
    /// Its name, for messages.
    pub name: &'static str,
    /// How often preemption was disabled and not enabled again, where the machine keeps it here. Changed by
    /// the task itself only.
    pub preemption_off: Cell<usize>,
    killed: AtomicBool,
    dead: AtomicBool,
    /// Whether it has given its CPU away by itself: then all its return addresses are on its stack.
    waits: AtomicBool,
    /// How often it was preempted.
    pub preempted: AtomicUsize,
    _counted: Option<Counted>,
}

/// How many tasks have been made and not let go of.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Stands for one of [`LIVE`].
struct Counted;

impl Counted {
    fn new() -> Self {
        LIVE.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Release);
    }
}

// SAFETY: the cells are used by the CPU that runs the task, or by the one that makes it ready, never by two
// at once: a task that was switched away from is queued only by its successor (`after_switch`).
unsafe impl Sync for Task {}
// SAFETY: as above; what `entry` owns is `Send`.
unsafe impl Send for Task {}

static READY: SpinLock<VecDeque<Arc<Task>>> = SpinLock::new(VecDeque::new());

/// What each CPU runs until it has its idle task: there is always a running task.
static BOOT: [Task; cpu::MAX] = [const { Task::bare("boot") }; cpu::MAX];

impl Task {
    const fn bare(name: &'static str) -> Self {
        Self {
            sp: Cell::new(0),
            stack: UnsafeCell::new(Vec::new()),
            entry: Cell::new(None),
            name,
            preemption_off: Cell::new(0),
            killed: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            preempted: AtomicUsize::new(0),
            probes: probe_core::host::Task::new(),
            _counted: None,
        }
    }

    fn new(name: &'static str, stack: Vec<u128>, entry: Option<Box<dyn FnOnce() + Send>>) -> Arc<Self> {
        let known = stack.as_ptr_range();
        let known = known.start.addr()..known.end.addr();
        let (stack, entry) = (UnsafeCell::new(stack), Cell::new(entry));
        // A boot stack, which an idle task runs on, is not known here.
        let probes = probe_core::host::Task::on_stack(known);
        Arc::new(Self { probes, stack, entry, _counted: Some(Counted::new()), ..Self::bare(name) })
    }

    /// Asks the task to end the next time that it could be switched away from.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
    }

    /// Waits until the task has ended.
    pub fn join(&self) {
        while !self.dead.load(Ordering::Acquire) {
            yield_now();
        }
    }
}

/// Makes room for the queue, so that no interrupt allocates.
pub fn init() {
    READY.lock().reserve(64);
}

/// Starts a task.
pub fn spawn(name: &'static str, entry: impl FnOnce() + Send + 'static) -> Arc<Task> {
    let task = Task::new(name, vec![0; STACK_WORDS], Some(Box::new(entry)));
    // SAFETY: nobody else knows the task yet.
    let top = unsafe { &mut *task.stack.get() }.as_mut_ptr_range().end.expose_provenance();
    // SAFETY: the stack was allocated just now and is large enough for a switch frame.
    task.sp.set(unsafe { Native::new_stack(top) });
    READY.lock().push_back(task.clone());
    for cpu in cpu::online() {
        if cpu.number != Native::this_cpu().number {
            Native::send_ipi(cpu.number, Ipi::Reschedule);
        }
    }
    task
}

/// Makes the running context (a boot stack) this CPU's idle task, and runs the others.
pub fn run() -> ! {
    // Lives as long as the CPU.
    let idle = Arc::into_raw(Task::new("idle", Vec::new(), None));
    Native::this_cpu().idle.set(idle);
    Native::set_current(idle);
    Native::start_timer();
    Native::enable_interrupts();
    loop {
        yield_now();
        Native::idle();
    }
}

/// Makes this CPU, which has got its area just now, run its boot task.
pub fn init_cpu(number: usize) {
    Native::set_current(&BOOT[number]);
}

/// Waits until no task is left but this one, which is the only one that is not idle, and what the others had
/// is free.
pub fn settle() {
    while LIVE.load(Ordering::Acquire) != cpu::online().count() + 1 {
        yield_now();
    }
    // Whoever has let go of the last one did it with interrupts disabled: its memory is free before it
    // synchronises.
    cpu::RENDEZVOUS.synchronise();
}

/// The running task.
#[inline(always)]
pub fn current() -> &'static Task {
    // SAFETY: `init_cpu` has set one. The running task is kept alive by running: `after_switch` alone drops
    // that reference, from its successor.
    unsafe { &*Native::current() }
}

/// Lets another task run, if one is ready.
pub fn yield_now() {
    let interrupts = Native::disable_interrupts();
    let me = current();
    me.waits.store(true, Ordering::Relaxed);
    schedule();
    me.waits.store(false, Ordering::Relaxed);
    cpu::restore(interrupts);
    Native::relax();
}

/// Calls `visit` with each task that is ready to go on in [`yield_now`]; it goes on later.
pub fn for_each_waiting(visit: &mut dyn FnMut(&Waiting<'_, Backend>)) {
    let ready = READY.lock();
    for task in ready.iter().filter(|task| task.waits.load(Ordering::Relaxed)) {
        // SAFETY: what is in the queue does not run, and its stack's memory stays where it is.
        let end = unsafe { &*task.stack.get() }.as_ptr_range().end.addr();
        visit(&Waiting { task: &task.probes, stack: task.sp.get()..end, elsewhere: &[] });
    }
}

/// At the end of an interrupt: lets another task run if this one's time is up.
pub fn preempt() {
    let cpu = Native::this_cpu();
    if !cpu.reschedule.get() {
        return;
    }
    if is_preemptible() {
        cpu.reschedule.set(false);
        current().preempted.fetch_add(1, Ordering::Relaxed);
        schedule();
    }
}

/// Keeps the running task on its CPU until [`enable_preemption`].
pub fn disable_preemption() {
    Native::disable_preemption();
}

/// Ends what [`disable_preemption`] began.
pub fn enable_preemption() {
    Native::enable_preemption();
}

/// Whether the running task may be switched away from.
pub fn is_preemptible() -> bool {
    Native::preemption_off() == 0
}

/// Ends the running task.
pub fn exit() -> ! {
    Native::disable_interrupts();
    current().dead.store(true, Ordering::Release);
    schedule();
    unreachable!("a dead task ran again")
}

/// Switches to the next ready task; interrupts are disabled. Returns when this one runs again.
fn schedule() {
    let cpu = Native::this_cpu();
    if cpu.idle.get().is_null() {
        // Still booting.
        return;
    }
    assert!(is_preemptible(), "a task that is to stay on its CPU gives it away");
    let me = current();
    let is_idle = ptr::eq(me, cpu.idle.get());
    if me.killed.load(Ordering::Acquire) && !me.dead.load(Ordering::Relaxed) {
        me.dead.store(true, Ordering::Release);
    }
    let next = match READY.lock().pop_front() {
        Some(task) => Arc::into_raw(task),
        None if me.dead.load(Ordering::Relaxed) => cpu.idle.get(),
        None => return,
    };
    cpu.previous.set(if is_idle { ptr::null() } else { me });
    // SAFETY: `next` came from the queue, which holds a reference to each, or is this CPU's idle task.
    let to = unsafe { &*next }.sp.get();
    cpu.next.set(next);
    if !LATE_CURRENT.load(Ordering::Relaxed) {
        Native::set_current(next);
    }
    assert_eq!(in_switch(1), 2);
    if is_idle {
        // No call that is followed: it may not go on before the kernel ends.
        // SAFETY: a task in the queue has a saved stack that nobody else uses.
        unsafe { Native::switch(me.sp.as_ptr(), to) };
    } else {
        switch_task(me.sp.as_ptr(), to);
    }
    after_switch();
}

/// Whether [`current`] changes after the stack does, as in some kernels; else it changes before.
pub static LATE_CURRENT: AtomicBool = AtomicBool::new(false);

/// Called on both sides of a switch, while [`current`] is wrong on one of them: a place for probes. Returns
/// `a + 1`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn in_switch(a: usize) -> usize {
    core::hint::black_box(a) + 1
}

/// Goes on with the task whose stack pointer is `to`: a place for probes on a call that other tasks run in.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn switch_task(from: *mut usize, to: usize) {
    // SAFETY: a task in the queue, and an idle task that does not run, has a saved stack that nobody else
    // uses.
    unsafe { Native::switch(from, to) };
}

/// Queues the task that ran before, now that its stack is not in use any more, or lets go of it if it has
/// ended.
fn after_switch() {
    assert_eq!(in_switch(2), 3);
    Native::set_current(Native::this_cpu().next.get());
    let previous = Native::this_cpu().previous.replace(ptr::null());
    if previous.is_null() {
        return;
    }
    // SAFETY: made by `Arc::into_raw` when the task was taken from the queue.
    let previous = unsafe { Arc::from_raw(previous) };
    if previous.dead.load(Ordering::Acquire) {
        // Its calls will not return.
        PROBES.events().task_exit(&previous.probes);
    } else {
        READY.lock().push_back(previous);
    }
}

/// Where a new stack begins: [`Machine::new_stack`].
pub extern "C" fn first_run() -> ! {
    after_switch();
    Native::enable_interrupts();
    if let Some(entry) = current().entry.take() {
        entry();
    }
    exit()
}

/// Whether interrupts are enabled now.
pub fn interrupts() -> Interrupts {
    let interrupts = Native::disable_interrupts();
    cpu::restore(interrupts);
    interrupts
}
