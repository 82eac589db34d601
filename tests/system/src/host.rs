//! The kernel as the probes see it: everything that [`Host`] asks for, in its order.
//!
//! What a kernel that vendors the probes writes is this file, and the two calls in `trap.rs`.

use crate::arch::{Backend, Interrupts, Machine, Native, Regs};
use crate::watch::DebugRegisters;
use crate::{cmdline, cpu, memory, modules, println, stacks, symbols, task};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use probe_core::arch::SaveSet;
use probe_core::error::{Refusal, TextError};
use probe_core::host::{
    Arrival, Blacklisted, Context, Host, Notice, Probeable, Symbol, Task, Waiting, Watchpoints,
};
use probe_core::{CodeAddr, Probes};
use probe_kernel_kit::extable::{self, FaultFree};

/// The kernel.
pub struct Kernel;

/// Whether slots are stepped by the CPU instead of by the breakpoint at their end (`step=hardware`). Both are
/// right; a kernel decides once and needs neither the variable nor the other way.
static HARDWARE_STEP: AtomicBool = AtomicBool::new(false);

/// Which task [`Host::task`] names (RET_11): what a kernel may answer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Named {
    /// The running one, in interrupts the interrupted one.
    Running,
    /// One that ran somewhere a moment ago, or none.
    Before,
    /// The running one, on an interrupt stack that stack's own.
    Stack,
    /// On an interrupt stack none.
    NoneInInterrupts,
}

static NAMED: AtomicU8 = AtomicU8::new(Named::Running as u8);

/// Changes what [`Host::task`] names.
pub fn name_tasks(named: Named) {
    NAMED.store(named as u8, Ordering::SeqCst);
}

/// What [`Host::task`] answers if it is not [`Named::Running`].
#[cold]
fn otherwise_named(named: u8) -> Option<&'static Task<Backend>> {
    if named == Named::Before as u8 {
        return late_task();
    }
    match stacks::running() {
        Some(stack) => Some(stack).filter(|_| named == Named::Stack as u8),
        None => Some(&task::current().probes),
    }
}

/// A byte of text that somebody else patches, as the checks have it; 0 for none (REG_20).
pub static PATCHED: AtomicUsize = AtomicUsize::new(0);

/// The task that ran when somebody asked before, wherever that was; none for the first one that asks.
fn late_task() -> Option<&'static Task<Backend>> {
    static BEFORE: AtomicPtr<Task<Backend>> = AtomicPtr::new(ptr::null_mut());
    let now = (&raw const task::current().probes).cast_mut();
    let before = BEFORE.swap(now, Ordering::Relaxed);
    // SAFETY: the check that asks for it holds all tasks that run meanwhile, and the idle ones stay.
    unsafe { before.as_ref() }
}

/// Reads what the command line says; before the first probe.
pub fn init() {
    stacks::init();
    let is_asked = cmdline::value("step") == Some("hardware");
    if is_asked && !Native::CAN_STEP {
        println!("probes: this machine cannot step; slots end with a breakpoint");
    }
    HARDWARE_STEP.store(is_asked && Native::CAN_STEP, Ordering::Relaxed);
}

/// All probes of the kernel.
pub static PROBES: Probes<Kernel> = Probes::new(Kernel);

// SAFETY: what each function owes is kept as said at each.
unsafe impl Host for Kernel {
    type Arch = Backend;
    type Memory = FaultFree;

    // The kernel is built without floating point.
    const SAVE_SET: SaveSet = SaveSet::General;

    fn read_text(&self, at: CodeAddr, out: &mut [u8]) -> usize {
        extable::read(at.as_usize(), out)
    }

    unsafe fn write_text(&self, at: CodeAddr, bytes: &[u8]) -> Result<(), TextError> {
        // SAFETY: the core owns the range, or replaces an instruction of it.
        unsafe { memory::write_text(at, bytes) }
    }

    fn sync_cores(&self) {
        cpu::RENDEZVOUS.synchronise();
    }

    fn alloc_exec(&self, len_bytes: usize, near: Option<(CodeAddr, usize)>) -> Option<CodeAddr> {
        // The pool lies right behind the text; every architecture reaches it. Some jumps on x86 want their
        // detours elsewhere.
        memory::alloc_exec(len_bytes, near)
    }

    unsafe fn free_exec(&self, at: CodeAddr, len_bytes: usize) {
        // SAFETY: the core's promise.
        unsafe { memory::free_exec(at, len_bytes) };
    }

    #[inline(always)]
    fn context(&self) -> Option<&Context<Backend>> {
        // Traps run with interrupts off, and others pin themselves first: it stays this CPU.
        Some(&Native::this_cpu().probes)
    }

    #[inline(always)]
    fn task(&self) -> Option<&Task<Backend>> {
        let named = NAMED.load(Ordering::Relaxed);
        if named != Named::Running as u8 {
            return otherwise_named(named);
        }
        Some(&task::current().probes)
    }

    fn for_each_context(&self, visit: &mut dyn FnMut(&Context<Backend>)) {
        cpu::online().for_each(|cpu| visit(&cpu.probes));
    }

    fn for_each_waiting(&self, visit: &mut dyn FnMut(&Waiting<'_, Backend>)) {
        task::for_each_waiting(visit);
    }

    fn parallelism(&self) -> usize {
        cpu::online().count()
    }

    #[inline(always)]
    fn memory(&self) -> &FaultFree {
        &FaultFree
    }

    /// Interrupts stay away while a slot is stepped: their handlers would run on this CPU's stack of hits.
    #[inline]
    fn enter_slot(&self, regs: &mut Regs) -> u64 {
        let interrupts = Native::interrupts_of(regs);
        Native::set_interrupts_of(regs, Interrupts::Disabled);
        let kept = u64::from(interrupts == Interrupts::Enabled);
        if HARDWARE_STEP.load(Ordering::Relaxed) {
            kept | u64::from(Native::begin_step(regs)) << 32
        } else {
            kept
        }
    }

    #[inline]
    fn leave_slot(&self, regs: &mut Regs, kept: u64) {
        if HARDWARE_STEP.load(Ordering::Relaxed) {
            Native::end_step(regs, (kept >> 32) as u32);
        }
        let interrupts = if kept & 1 == 1 { Interrupts::Enabled } else { Interrupts::Disabled };
        Native::set_interrupts_of(regs, interrupts);
    }

    #[inline]
    fn pin(&self) {
        task::disable_preemption();
    }

    #[inline]
    fn unpin(&self) {
        task::enable_preemption();
    }

    fn find_symbols(&self, name: &str, found: &mut dyn FnMut(&Symbol<'_>)) {
        symbols::named(name).for_each(|function| found(&function.to_symbol()));
        modules::find(name, found);
    }

    fn symbol_at(&self, at: CodeAddr, found: &mut dyn FnMut(&Symbol<'_>)) {
        match symbols::covering(at.as_usize()) {
            Some(function) => found(&function.to_symbol()),
            None => modules::covering(at, found),
        }
    }

    fn probeable(&self, at: CodeAddr) -> Probeable {
        let (start, end) = memory::text_range();
        if !(start..end).contains(&at.as_usize()) {
            return if modules::contains(at) { Probeable::Yes } else { Probeable::NotText };
        }
        match symbols::covering(at.as_usize()) {
            Some(function) if symbols::is_blacklisted(&function) => Probeable::Blacklisted,
            Some(_) if at.as_usize() == PATCHED.load(Ordering::Relaxed) => Probeable::OTHERS_PATCH,
            Some(_) => Probeable::Yes,
            // Padding between functions.
            None => Probeable::NotText,
        }
    }

    fn arrival(&self, at: CodeAddr) -> Arrival {
        // What a CPU and a task begin with: a jump, or a return on a stack that was made by hand.
        const STARTS: [&str; 4] = ["first_run", "secondary_start", "start32", "trampoline_start"];
        let function = symbols::covering(at.as_usize());
        let is_start =
            function.is_some_and(|function| STARTS.iter().any(|start| function.name.contains(start)));
        if is_start { Arrival::START } else { Arrival::Unknown }
    }

    fn for_each_blacklisted(&self, visit: &mut dyn FnMut(&Blacklisted<'_>)) {
        for function in symbols::all().filter(symbols::is_blacklisted) {
            visit(&Blacklisted {
                start: CodeAddr::new(function.start),
                end: CodeAddr::new(function.start + function.len_bytes),
                name: function.name,
            });
        }
    }

    fn watchpoints(&self) -> Result<&dyn Watchpoints, Refusal> {
        Native::watchpoints().map(|_| &DebugRegisters as &dyn Watchpoints)
    }

    fn relax(&self) {
        if task::interrupts() == Interrupts::Disabled {
            // Whoever is waited for may wait for this CPU.
            cpu::RENDEZVOUS.answer();
        } else if task::is_preemptible() {
            task::yield_now();
        }
        Native::relax();
    }

    fn notice(&self, notice: Notice) {
        println!("probes: {notice:?}");
    }

    fn stop(&self, regs: &Regs) -> ! {
        panic!("a return that belongs to no call: {regs:x?}");
    }
}
