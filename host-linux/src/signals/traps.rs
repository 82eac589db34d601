//! Our handlers: traps and faults go to the core; those that no probe caused go on to the program.

use super::beginning;
use super::delivery::{deliver, deliver_trap, refault, stands_at};
use super::recorded::{Begins, Called, FIRST, OwnEntries, Version, entries};
use super::wished::deliver_due;
use crate::arch::{self, Native, Regs, UContext, is_breakpoint_trap, is_step_trap, nofault_fixup};
use crate::host::PROBES;
use crate::sys::{self, SigInfo};
use crate::{clock, threads, watch};
use core::ffi::{c_int, c_void};
use probe_core::CodeAddr;
use probe_core::arch::{Access, Arch, MemFault, Regs as _};
use probe_core::traps::{Copied, FaultVerdict, Trap};

/// Nothing is mapped there: the `si_code` of a SIGSEGV.
const SEGV_MAPERR: c_int = 1;

/// The kernel's handlers of SIGTRAP.
static TRAPS: OwnEntries = OwnEntries { open: entries!(on_trap, false), quiet: entries!(on_trap, true) };
/// The kernel's handlers of the other `OWNED` signals.
static FAULTS: OwnEntries = OwnEntries { open: entries!(on_fault, false), quiet: entries!(on_fault, true) };

/// The kernel's handlers of an owned signal.
pub(super) fn entries_of(signal: c_int) -> &'static OwnEntries {
    if signal == libc::SIGTRAP { &TRAPS } else { &FAULTS }
}

/// SIGTRAP.
#[unsafe(link_section = "probe_signal_entry")]
unsafe extern "C" fn on_trap<const VERSION: usize, const IS_QUIET: bool>(
    _signal: c_int,
    info: *mut SigInfo,
    raw: *mut c_void,
) {
    // SAFETY: the kernel's own arguments.
    unsafe { trap(info, raw, Version::of(VERSION), begins(IS_QUIET)) };
}

/// How an entry begins.
#[inline(always)]
const fn begins(is_quiet: bool) -> Begins {
    if is_quiet { Begins::Quiet } else { Begins::Open }
}

/// As [`on_trap`]. `version` is the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
#[unsafe(link_section = "probe_signal_entry")]
unsafe fn trap(info: *mut SigInfo, raw: *mut c_void, version: Version, begins: Begins) {
    arch::uncheck_alignment();
    // SAFETY: these are the arguments that the kernel passes with SA_SIGINFO.
    let context = unsafe { UContext::new(raw) };
    // SAFETY: as above; nobody else uses the frame.
    let info = unsafe { &mut *info };
    if info.code > 0 && begins == Begins::Quiet {
        beginning::open(libc::SIGTRAP, context);
    }
    let block = threads::current_or_new();
    let outer = block.map(|block| block.enter(context));
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
        Verdict::Deliver => {
            deliver_trap(Called { signal: libc::SIGTRAP, version, entries: &TRAPS }, info, context)
        }
        Verdict::Step => {
            context.set_step();
            *info = SigInfo::fault(libc::SIGTRAP, libc::TRAP_TRACE, context.pc());
            deliver(Called { signal: libc::SIGTRAP, version, entries: &TRAPS }, info, context);
        }
        Verdict::Raise(fault) => raise(fault, context, block),
    }
    deliver_due(block, context);
}

/// What is left to do for a signal.
enum Verdict {
    /// Nothing.
    Done,
    /// It is the program's.
    Deliver,
    /// The program steps itself, and an instruction of its own has run.
    Step,
    /// A simulated access has faulted.
    Raise(MemFault),
}

/// Whether the handler may go on where it runs. If not, it returns and the breakpoint is hit again, on a
/// stack where hits nest; it has called nothing that may be probed by then.
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
    let trap = PROBES.traps().breakpoint(&mut regs);
    match trap {
        Trap::NotOurs => Verdict::Deliver,
        Trap::Handled if context.steps_itself() => stepped(&regs, context),
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

/// Ends a hit in a program that steps itself. The processor does not trap behind what the core has simulated,
/// nor behind the breakpoint at a slot's end; behind a copy it will.
#[cold]
fn stepped(regs: &Regs, context: UContext) -> Verdict {
    let place = Native::breakpoint_address(&context.load_regs());
    context.store_regs(regs);
    let has_run = regs.pc() != place && PROBES.traps().copied_at(regs.pc()).is_none();
    if has_run { Verdict::Step } else { Verdict::Done }
}

/// Handles a SIGTRAP that no breakpoint has raised: a watchpoint's, or the program's.
#[cold]
fn handle_event(info: &SigInfo, context: UContext) -> Verdict {
    // It comes behind what the slot ends in.
    if is_step_trap(info.code) && PROBES.traps().copied_at(CodeAddr::new(context.pc())) == Some(Copied::Slot)
    {
        return Verdict::Done;
    }
    match watch::signal(info) {
        watch::Signal::NotOurs => return Verdict::Deliver,
        watch::Signal::Late => {}
        watch::Signal::Of(index) => {
            let mut regs = context.load_regs();
            PROBES.traps().watchpoint(&mut regs, index);
            context.store_regs(&regs);
        }
    }
    Verdict::Done
}

/// SIGSEGV, SIGBUS, SIGILL, SIGFPE.
#[unsafe(link_section = "probe_signal_entry")]
unsafe extern "C" fn on_fault<const VERSION: usize, const IS_QUIET: bool>(
    signal: c_int,
    info: *mut SigInfo,
    raw: *mut c_void,
) {
    // SAFETY: the kernel's own arguments.
    unsafe { fault(signal, info, raw, Version::of(VERSION), begins(IS_QUIET)) };
}

/// As [`on_fault`]. `version` is the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
#[unsafe(link_section = "probe_signal_entry")]
unsafe fn fault(signal: c_int, info: *mut SigInfo, raw: *mut c_void, version: Version, begins: Begins) {
    arch::uncheck_alignment();
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
    if is_raised && begins == Begins::Quiet {
        beginning::open(signal, context);
    }
    if is_raised && clock::skip_counter(context) {
        return;
    }
    let block = threads::current_or_new();
    if !is_raised && threads::is_asked(info) {
        deliver_due(block, context);
        if let Some(block) = block.filter(|block| !block.is_in_hit()) {
            block.executing.halt.stand();
        }
        return;
    }
    let called = Called { signal, version, entries: &FAULTS };
    // Outside of a hit: it has been offered before, where there was room for that.
    let is_offered =
        is_raised && block.is_some_and(|block| !block.is_in_hit() && block.stacks.has_given_up(context.pc()));
    if is_raised && !is_offered {
        match offer_fault(signal, info, context, block) {
            FaultVerdict::Handled => {}
            FaultVerdict::NotOurs => refault(called, info, context),
            FaultVerdict::Restored => deliver(called, info, context),
        }
    } else {
        deliver(called, info, context);
    }
    deliver_due(block, context);
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
        (block, block.enter(context))
    });
    threads::keep_errno();
    let verdict = PROBES.traps().fault(&mut regs, context.trap_number(signal));
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
                info.addr = Native::first_byte(regs.pc()).as_usize();
            }
            context.store_regs(&regs);
        }
    }
    verdict
}

/// Raises the fault of a simulated access in the program, as the instruction itself would have.
fn raise(fault: MemFault, context: UContext, block: Option<&threads::Block>) {
    // The fault-free copy has really faulted: what the kernel said then is what it would say now.
    let mut info = block
        .map_or_else(|| SigInfo::fault(libc::SIGSEGV, SEGV_MAPERR, fault.addr), |block| block.fault.info());
    context.set_fault(info.addr, fault.access == Access::Write);
    if offer_fault(info.signal, &mut info, context, block) != FaultVerdict::Handled {
        // Nothing has been delivered to an entry that would tell the version.
        // SAFETY: asks only.
        let now = unsafe { sys::sigaction(info.signal, None) };
        let entries = entries_of(info.signal);
        let version = now.ok().and_then(|now| entries.version(now.handler)).unwrap_or(FIRST);
        deliver(Called { signal: info.signal, version, entries }, &mut info, context);
    }
}
