//! The signals that probes live on, and the program's own handlers behind them.
//!
//! SIGTRAP, SIGSEGV, SIGBUS, SIGILL and SIGFPE are ours ([`OWNED`]): installed with SA_SIGINFO, SA_NODEFER (a hit inside
//! a handler must not kill the process) and SA_ONSTACK. All other signals are kept away meanwhile, by the handler's mask or by
//! `deferral`. A signal that is not about a probe goes on to the program's action, called exactly as the kernel would have
//! called it: mask, SA_NODEFER, SA_RESETHAND, siginfo and the untouched `ucontext_t`. The default action ends the process
//! with that signal, its siginfo and its core, with the registers of the faulting instruction.
//!
//! What the program had installed before `start` is its action. What it installs later would replace our
//! handlers; an agent interposes `sigaction` and `signal` and calls [`program_action`] instead, and takes [`OWNED`] out
//! of the masks that the program sets: a synchronous signal that is blocked kills the process.
//!
//! A trap is ours only if the kernel raised it for a breakpoint instruction (`si_code`) and the core knows the place: a
//! `kill -TRAP`, a debugger's step or the program's own breakpoints never get here.

mod deferral;
mod delivery;
pub(crate) mod owned;
mod recorded;

pub use self::owned::{NEVER_BLOCKED, OWNED, OWNED_SET};

use self::delivery::{deliver, deliver_trap, raise, refault};
use self::owned::BLOCKED;
use self::recorded::{Entries, FIRST, Version, Versions, entries};
use crate::arch::{Native, RESTORER_FLAG, UContext, is_breakpoint_trap, nofault_fixup, restorer};
use crate::lock::Lock;
use crate::process::LinuxProcess;
use crate::sys::{self, Action, AltStack, SigInfo, SignalSet};
use crate::{clock, memory, threads, watch};
use core::ffi::{c_int, c_void};
use probe_core::arch::{Arch, MemFault, Regs};
use probe_core::{FaultVerdict, Probes, Trap};

/// Nothing is mapped there: the `si_code` of a SIGSEGV.
const SEGV_MAPERR: c_int = 1;

/// The program's actions for the signals of [`OWNED`], in that order.
static PROGRAM: [Versions; OWNED.len()] = [const { Versions::new() }; OWNED.len()];
/// Serialises those who install actions.
static WRITER: Lock<()> = Lock::new(());

/// The kernel's handlers of SIGTRAP.
static TRAPS: Entries = entries!(on_trap);
/// The kernel's handlers of the other [`OWNED`] signals.
static FAULTS: Entries = entries!(on_fault);

/// Installs our handlers; what was there before becomes the program's action.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub(crate) fn start() -> Result<(), c_int> {
    for signal in OWNED {
        // SAFETY: asks only.
        let before = unsafe { sys::sigaction(signal, None) }?;
        if entries_of(signal).version(before.handler).is_none() {
            if let Some(versions) = versions_of(signal) {
                versions.write(FIRST, &before);
            }
            // SAFETY: the handlers below may run at any moment: all they need is static.
            unsafe { sys::sigaction(signal, Some(&our_action(signal, FIRST))) }?;
        }
    }
    Ok(())
}

/// Whether our handler is still the kernel's action for every owned signal.
pub fn are_installed() -> bool {
    OWNED.iter().all(|&signal| {
        // SAFETY: asks only.
        let now = unsafe { sys::sigaction(signal, None) };
        now.is_ok_and(|now| entries_of(signal).version(now.handler).is_some())
    })
}

/// Lets asynchronous signals wait for the end of a hit without being blocked during it (`deferral`). Whoever calls this
/// calls [`install_action`] at every `rt_sigaction` of the program's from now on.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn defer_asynchronous() -> Result<(), c_int> {
    let mask = if deferral::start() { SignalSet::EMPTY } else { BLOCKED };
    block_in_traps(mask)
}

/// Lets `mask` be blocked while SIGTRAP is handled.
fn block_in_traps(mask: SignalSet) -> Result<(), c_int> {
    installing(|| {
        // SAFETY: asks only.
        let now = unsafe { sys::sigaction(libc::SIGTRAP, None) }?;
        let version = TRAPS.version(now.handler).unwrap_or(FIRST);
        // SAFETY: a handler of ours, the one that is there already.
        unsafe { sys::sigaction(libc::SIGTRAP, Some(&Action { mask, ..our_action(libc::SIGTRAP, version) })) }
            .map(drop)
    })
}

/// Runs `body` as the only one who installs actions. No signal's handler that comes between may want to install one, too: in a trap
/// those wait anyway.
fn installing<T>(body: impl FnOnce() -> T) -> T {
    let mask = interrupted().is_none().then(|| sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL)));
    let writer = WRITER.lock();
    let done = body();
    drop(writer);
    if let Some(mask) = mask {
        sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    }
    done
}

/// Ends what [`defer_asynchronous`] began: they are blocked during a trap, and not during a hit by a jump.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn block_during_traps() -> Result<(), c_int> {
    block_in_traps(BLOCKED)?;
    deferral::stop();
    Ok(())
}

/// Reads, and with `new` sets, the program's own action for any signal; returns the one before. What an agent calls in
/// place of `rt_sigaction`.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub fn install_action(signal: c_int, new: Option<&Action>) -> Result<Action, c_int> {
    if OWNED.contains(&signal) { Ok(program_action(signal, new)) } else { deferral::install(signal, new) }
}

/// Whether an action's handler is a function.
fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

fn entries_of(signal: c_int) -> &'static Entries {
    if signal == libc::SIGTRAP { &TRAPS } else { &FAULTS }
}

fn versions_of(signal: c_int) -> Option<&'static Versions> {
    OWNED.iter().position(|&owned| owned == signal).map(|at| &PROGRAM[at])
}

/// What the kernel must not do by itself with a program's action that is behind ours: the handlers differ, and so do the ways out.
const NOT_OURS: usize = libc::SA_RESETHAND as usize | SA_RESTORER;

/// `SA_RESTORER`, the same everywhere.
const SA_RESTORER: usize = 0x0400_0000;

/// The program's action as the kernel would tell it, where `kernel` is ours in its place: the kernel drops flags that it does not know.
fn as_told(action: Action, kernel: &Action) -> Action {
    Action { flags: action.flags & (kernel.flags | NOT_OURS), ..action }
}

/// The kernel's action where the one of this version is the program's.
fn our_action(signal: c_int, version: Version) -> Action {
    let program = action_of(signal, version);
    let ours = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
    // A signal that no handler of the program's takes ends no system call: it does not come, or ends the process.
    let restart = if is_handler(program.handler) { 0 } else { libc::SA_RESTART };
    Action {
        handler: entries_of(signal).address(version),
        flags: program.flags & !NOT_OURS | (ours | restart) as usize | RESTORER_FLAG,
        restorer: restorer(),
        mask: BLOCKED,
    }
}

/// Reads, and with `new` sets, the program's own action for one of the [`OWNED`] signals; returns the one before.
///
/// What an agent calls in place of `sigaction`. For other signals it does nothing and returns the default action.
pub fn program_action(signal: c_int, new: Option<&Action>) -> Action {
    let Some(versions) = versions_of(signal) else { return Action::DEFAULT };
    installing(|| {
        // SAFETY: asks only.
        let Ok(kernel) = (unsafe { sys::sigaction(signal, None) }) else { return Action::DEFAULT };
        let version = entries_of(signal).version(kernel.handler);
        let before = version.map_or(kernel, |version| as_told(versions.read(version), &kernel));
        if let Some(new) = new {
            let next = version.map_or(FIRST, Version::next);
            versions.write(next, new);
            let mask = if version.is_some() { kernel.mask } else { BLOCKED };
            // SAFETY: a handler of ours: all that it needs is static.
            let _ = unsafe { sys::sigaction(signal, Some(&Action { mask, ..our_action(signal, next) })) };
        }
        before
    })
}

/// Before a fork.
pub(crate) fn hold() {
    WRITER.take();
}

/// After a fork, in both processes.
///
/// # Safety
/// This thread has called [`hold`] before.
pub(crate) unsafe fn release() {
    // SAFETY: the caller's promise.
    unsafe { WRITER.give() };
}

fn probes() -> &'static Probes<LinuxProcess> {
    &crate::process::PROBES
}

/// SIGTRAP.
#[unsafe(link_section = "probe_signal_entry")]
unsafe extern "C" fn on_trap<const VERSION: usize>(_signal: c_int, info: *mut SigInfo, raw: *mut c_void) {
    // SAFETY: the kernel's own arguments.
    unsafe { trap(info, raw, Version::of(VERSION)) };
}

/// As [`on_trap`]. `version` is the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
#[unsafe(link_section = "probe_signal_entry")]
unsafe fn trap(info: *mut SigInfo, raw: *mut c_void, version: Version) {
    // SAFETY: these are the arguments that the kernel passes with SA_SIGINFO.
    let context = unsafe { UContext::new(raw) };
    // SAFETY: as above; nobody else uses the frame.
    let info = unsafe { &mut *info };
    let block = threads::current_or_new();
    let outer = block.map(|block| block.interrupted.enter(context));
    let mut verdict = Verdict::Done;
    if has_stack(info, context, block) {
        threads::keep_errno();
        verdict = handle_trap(info, context);
        threads::restore_errno(Some(context));
    }
    if let (Some(block), Some(outer)) = (block, outer) {
        block.interrupted.leave(outer);
    }
    // A handler of the program may leave by a longjmp: nothing of ours is open any more.
    match verdict {
        Verdict::Done => {}
        Verdict::Deliver => deliver_trap(version, info, context),
        Verdict::Raise(fault) => raise(fault, context, block),
    }
}

/// What is left to do for a signal.
enum Verdict {
    /// Nothing.
    Done,
    /// It is the program's.
    Deliver,
    /// A simulated access has faulted.
    Raise(MemFault),
}

/// Whether the handler may go on where it runs. If not, the breakpoint is hit again, on a stack where hits nest: nothing that
/// may be probed has been called before.
#[inline(always)]
fn has_stack(info: &SigInfo, context: UContext, block: Option<&threads::Block>) -> bool {
    let moves = block.is_some_and(|block| {
        is_breakpoint_trap(info.code) && !block.ensure_altstack(context) && stands_at(&context.load_regs())
    });
    if moves {
        context.rewind_breakpoint();
    }
    !moves
}

#[inline(always)]
fn handle_trap(info: &SigInfo, context: UContext) -> Verdict {
    if !is_breakpoint_trap(info.code) {
        return handle_event(info, context);
    }
    let mut regs = context.load_regs();
    let trap = probes().breakpoint(&mut regs);
    match trap {
        Trap::NotOurs => Verdict::Deliver,
        Trap::Handled => {
            context.store_regs(&regs);
            Verdict::Done
        }
        Trap::Fault(fault) => {
            context.store_regs(&regs);
            Verdict::Raise(fault)
        }
    }
}

/// A SIGTRAP that no breakpoint has raised: a watchpoint's, or the program's.
#[cold]
fn handle_event(info: &SigInfo, context: UContext) -> Verdict {
    match watch::signal(info) {
        watch::Signal::NotOurs => return Verdict::Deliver,
        watch::Signal::Late => {}
        watch::Signal::Of(index) => {
            let mut regs = context.load_regs();
            probes().watchpoint(&mut regs, index);
            context.store_regs(&regs);
        }
    }
    Verdict::Done
}

/// Whether a breakpoint still stands where `regs` say that one was hit.
#[cold]
fn stands_at(regs: &crate::arch::Regs) -> bool {
    let mut insn = [0; 4];
    let len = memory::read_some(Native::breakpoint_address(regs).as_usize(), &mut insn);
    Native::is_breakpoint(&insn[..len])
}

/// SIGSEGV, SIGBUS, SIGILL, SIGFPE.
#[unsafe(link_section = "probe_signal_entry")]
unsafe extern "C" fn on_fault<const VERSION: usize>(signal: c_int, info: *mut SigInfo, raw: *mut c_void) {
    // SAFETY: the kernel's own arguments.
    unsafe { fault(signal, info, raw, Version::of(VERSION)) };
}

/// As [`on_fault`]. `version` is the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
#[unsafe(link_section = "probe_signal_entry")]
unsafe fn fault(signal: c_int, info: *mut SigInfo, raw: *mut c_void, version: Version) {
    // SAFETY: these are the arguments that the kernel passes with SA_SIGINFO.
    let context = unsafe { UContext::new(raw) };
    // SAFETY: as above; nobody else uses the frame.
    let info = unsafe { &mut *info };
    let is_raised = info.code > 0;
    if is_raised && let Some(fixup) = nofault_fixup(context.pc()) {
        if let Some(block) = threads::current() {
            block.fault.keep(signal, info);
        }
        return context.set_pc(fixup);
    }
    if is_raised && clock::skip_counter(context) {
        return;
    }
    let block = threads::current_or_new();
    if !is_raised {
        return deliver(signal, version, info, context);
    }
    match offer_fault(signal, info, context, block) {
        FaultVerdict::Handled => {}
        FaultVerdict::NotOurs => refault(signal, version, info, context),
        FaultVerdict::Restored => deliver(signal, version, info, context),
    }
}

/// Offers a fault to the core; the program goes on where it is handled.
fn offer_fault(
    signal: c_int,
    info: &mut SigInfo,
    context: UContext,
    block: Option<&threads::Block>,
) -> FaultVerdict {
    let mut regs = context.load_regs();
    let outer = block.map(|block| {
        block.ensure_altstack(context);
        (block, block.interrupted.enter(context))
    });
    threads::keep_errno();
    let verdict = probes().fault(&mut regs, context.trap_number(signal));
    threads::restore_errno(Some(context));
    if let Some((block, outer)) = outer {
        block.interrupted.leave(outer);
    }
    match verdict {
        FaultVerdict::Handled => context.store_regs(&regs),
        FaultVerdict::NotOurs => {}
        FaultVerdict::Restored => {
            // SIGILL and SIGFPE name the instruction itself.
            if info.addr == context.pc() {
                info.addr = regs.pc().as_usize();
            }
            context.store_regs(&regs);
        }
    }
    verdict
}

/// The program's action.
fn action_of(signal: c_int, version: Version) -> Action {
    versions_of(signal).map_or(Action::DEFAULT, |versions| versions.read(version))
}

/// The signal mask of the interrupted thread, all asynchronous signals blocked from now on; `None` outside of a handler.
pub(crate) fn block_asynchronous() -> Option<SignalSet> {
    let context = interrupted()?;
    // A signal that waits for the end of a jump probe's handler has left its mask: what runs now goes on in the function.
    let mask = threads::current().and_then(|block| block.deferral.take_kept_mask()).unwrap_or(context.mask());
    context.set_mask(mask.union(BLOCKED));
    Some(mask)
}

/// Gives the interrupted thread back the mask that [`block_asynchronous`] has returned.
pub(crate) fn unblock_asynchronous(mask: SignalSet) {
    if let Some(context) = interrupted() {
        context.set_mask(mask);
    }
}

/// The signal mask of the interrupted thread; `None` outside of a handler.
pub(crate) fn interrupted_mask() -> Option<SignalSet> {
    interrupted().map(UContext::mask)
}

/// Lets `mask` be the interrupted thread's when it goes on.
pub(crate) fn set_interrupted_mask(mask: SignalSet) {
    if let Some(context) = interrupted() {
        context.set_mask(mask);
    }
}

/// The alternate stack of the interrupted thread's program, as the kernel would tell it; `None` outside of a handler.
pub(crate) fn interrupted_stack() -> Option<AltStack> {
    Some(threads::current()?.stacks.program_stack(interrupted()?))
}

/// Lets `stack` be that from now on; `false`: it cannot be kept.
pub(crate) fn set_interrupted_stack(stack: &AltStack) -> bool {
    let (Some(context), Some(block)) = (interrupted(), threads::current()) else { return false };
    block.stacks.set_program_stack(context, stack)
}

fn interrupted() -> Option<UContext> {
    threads::current()?.interrupted.innermost()
}
