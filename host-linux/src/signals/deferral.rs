//! Asynchronous signals wait for the end of a hit.
//!
//! A signal must not interrupt a hit: its handler's own hits would be missed, and a handler that leaves by
//! `siglongjmp` would leave the hit open for ever. Blocking the signals in the trap (`sa_mask`) would do, at
//! the price of two more rounds with the kernel's lock on the process's signals in every hit, which hits of
//! many threads contend for; and a hit by a jump would need two system calls.
//!
//! So once [`start`] has been called, the kernel's handler of every signal that the program handles is
//! [`on_signal`]. Outside of hits it calls the program's handler directly. During a hit it blocks all
//! asynchronous signals in the interrupted context, sends the signal once more, to the same thread and with
//! the same siginfo, and returns: the signal is pending, as if it had been blocked. The end of the hit
//! restores the mask: the signal return after a trap, [`threads::restore_errno`] after a jump.
//!
//! A hit lasts while one of our signal handlers runs, whose first and last instructions lie in a section of
//! their own so that they can be recognised ([`is_entry`]), and from [`threads::keep_errno`] to
//! [`threads::restore_errno`].

use super::installing::{NOT_OURS, as_told, installing, is_handler};
use super::owned::{BLOCKED, NEVER_BLOCKED, OWNED_SET};
use super::queue::queue_in_front;
use super::recorded::{Entries, FIRST, Version, Versions, entries};
use super::stack::{give_way, is_on_stack, leave, take_back};
use super::{waiting, wished};
use crate::arch::{self, Native, RESTORER_FLAG, UContext, restorer};
use crate::host::PROBES;
use crate::sys::{self, Action, Restorer, SigInfo, SignalSet};
use crate::threads::{self, Block};
use crate::{memory, text};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use probe_core::arch::{Arch, Calls};
use probe_core::host::Host;

/// How many signals there are, from number 1 on.
const SIGNALS: usize = 64;

/// The handlers that the program wants for its signals. Default if the kernel's action is the program's own.
static ACTIONS: [Versions; SIGNALS] = [const { Versions::new() }; SIGNALS];

/// The kernel's handlers of the program's signals.
static ENTRIES: Entries = entries!(on_signal);

/// Whether the program's handlers are ours to call.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The most signals that the kernel delivers on top of each other at once: one of each number.
const MOST_STACKED: usize = SIGNALS;

unsafe extern "C" {
    // The linker's names for the bounds of the section of that name.
    #[link_name = "__start_probe_signal_entry"]
    static ENTRY_START: u8;
    #[link_name = "__stop_probe_signal_entry"]
    static ENTRY_END: u8;
}

/// Whether `pc` is in a signal handler of ours, or on the way out of one.
fn is_entry(pc: usize) -> bool {
    let entry = (&raw const ENTRY_START) as usize..(&raw const ENTRY_END) as usize;
    entry.contains(&pc)
}

/// Takes over the program's present handlers, and those that [`install`] is told of later. `false` where
/// asynchronous signals have to stay blocked during a trap, because an emulator does not send all of a
/// siginfo again.
pub(super) fn start() -> bool {
    IS_ON.store(true, Ordering::Relaxed);
    for signal in (1..=SIGNALS as c_int).filter(|&signal| is_asynchronous(signal)) {
        // An action that was installed by a call unknown to us is installed once more, behind our handler.
        if let Ok(action) = install(signal, None)
            && is_handler(action.handler)
        {
            let _ = install(signal, Some(&action));
        }
    }
    !text::is_unprotecting()
}

/// Makes the kernel call handlers directly that are installed from now on.
pub(super) fn stop() {
    IS_ON.store(false, Ordering::Relaxed);
}

fn is_asynchronous(signal: c_int) -> bool {
    OWNED_SET.bits() & SignalSet::EMPTY.with(signal).bits() == 0
}

/// Reads, and with `new` sets, the program's action for a signal that is not one of [`super::OWNED`]; returns
/// the one before.
///
/// # Errors
/// The errno of `rt_sigaction`.
pub(super) fn install(signal: c_int, new: Option<&Action>) -> Result<Action, c_int> {
    let versions = usize::try_from(signal).ok().and_then(|signal| ACTIONS.get(signal.checked_sub(1)?));
    let versions = versions.ok_or(libc::EINVAL)?;
    installing(|| exchange(signal, versions, new))
}

/// As [`install`]; called by [`installing`].
fn exchange(signal: c_int, versions: &Versions, new: Option<&Action>) -> Result<Action, c_int> {
    // SAFETY: asks only.
    let kernel = unsafe { sys::sigaction(signal, None) }?;
    let version = ENTRIES.version(kernel.handler);
    let before = version.map_or(kernel, |version| as_told(versions.read(version), &kernel));
    let Some(new) = new else { return Ok(before) };
    let action = if IS_ON.load(Ordering::Relaxed) && is_handler(new.handler) {
        let next = version.map_or(FIRST, Version::next);
        versions.write(next, new);
        wrapped(new, next)
    } else {
        *new
    };
    // Without a handler the mask is only something to be told again.
    let kept = if is_handler(action.handler) { NEVER_BLOCKED.bits() } else { 0 };
    let mask = SignalSet::from_bits(action.mask.bits() & !kept);
    // SAFETY: the program has asked for this action, or it is ours, which needs nothing but what is static.
    unsafe { sys::sigaction(signal, Some(&Action { mask, ..action })) }?;
    Ok(before)
}

/// The kernel's action for the program's action `action`. The restorer of the program's libc is not taken
/// over: on i386 it differs with SA_SIGINFO.
fn wrapped(action: &Action, version: Version) -> Action {
    Action {
        handler: ENTRIES.address(version),
        flags: action.flags & !NOT_OURS | libc::SA_SIGINFO as usize | RESTORER_FLAG,
        restorer: Restorer::new(restorer()),
        mask: action.mask,
    }
}

/// The kernel's handler of all signals that the program handles, except those that probes live on.
#[unsafe(link_section = "probe_signal_entry")]
unsafe extern "C" fn on_signal<const VERSION: usize>(signal: c_int, info: *mut SigInfo, raw: *mut c_void) {
    // SAFETY: the kernel's own arguments.
    unsafe { handle(signal, info, raw, Version::of(VERSION)) };
}

/// As [`on_signal`]. `version` is the program's action.
///
/// # Safety
/// The arguments are those of a signal handler.
#[unsafe(link_section = "probe_signal_entry")]
unsafe fn handle(signal: c_int, info: *mut SigInfo, raw: *mut c_void, version: Version) {
    arch::uncheck_alignment();
    // SAFETY: these are the arguments that the kernel passes with SA_SIGINFO.
    let context = unsafe { UContext::new(raw) };
    if let Some(block) = threads::current()
        && is_in_hit(block, context)
    {
        // SAFETY: the kernel's frame, which nobody else uses.
        let info = unsafe { &*info };
        if defer(info, context, block) {
            return;
        }
    }
    let Some(versions) = ACTIONS.get(signal as usize - 1) else { return };
    let action = versions.read(version);
    if is_on_stack(&action) {
        // SAFETY: as above.
        let info = unsafe { &*info };
        if give_way(info, context, &action) {
            return;
        }
    }
    waiting::begin_again(context);
    take_back(signal, context);
    if action.flags as c_int & libc::SA_RESETHAND != 0 {
        // SAFETY: the default action needs no handler.
        let _ = unsafe { sys::sigaction(signal, Some(&action.used_up())) };
    }
    // SAFETY: the program has given this function to be called at this signal; without SA_SIGINFO it ignores
    // what comes after the first argument, which no calling convention minds. `info` is the kernel's.
    wished::in_handler(context, action.mask, || unsafe {
        context.call_handler(action.handler, signal, info)
    });
    leave(context);
}

/// Whether a signal has interrupted a hit, or another of our signal handlers that has: several signals that
/// are delivered at once interrupt each other before the first instruction.
fn is_in_hit(block: &Block, context: UContext) -> bool {
    // While a step is under way signals are blocked: one that comes all the same is at the signal return that
    // begins it, and waits for the step's end.
    if block.is_in_hit() {
        return true;
    }
    let mut context = context;
    for _ in 0..MOST_STACKED {
        if !is_at_entry(context.pc()) {
            break;
        }
        // The third argument, in its register or on the stack.
        let Some(raw) =
            Native::CALLS.and_then(|calls| calls.argument(&context.load_regs(), 2, PROBES.host().memory()))
        else {
            break;
        };
        // SAFETY: the interrupted handler has not begun to run: this is what the kernel has passed to it.
        context = unsafe { UContext::new(raw as *mut c_void) };
    }
    !is_at_entry(context.pc()) && is_entry(context.pc())
}

/// Whether `pc` is the first instruction of an [`on_signal`].
fn is_at_entry(pc: usize) -> bool {
    is_entry(pc) && ENTRIES.0.iter().any(|&entry| code_of(entry as usize) == pc)
}

/// The first instruction of the function at `function`, which is a descriptor in one of the ABIs.
fn code_of(function: usize) -> usize {
    if is_entry(function) {
        return function;
    }
    let mut word = [0; size_of::<usize>()];
    let len = memory::read_some(function, &mut word);
    if len == word.len() { usize::from_ne_bytes(word) } else { function }
}

/// Lets a signal wait until the hit in `context` is over; `false`: the kernel has no memory to keep it, or
/// may not be asked.
#[cold]
fn defer(info: &SigInfo, context: UContext, block: &Block) -> bool {
    if sys::is_confined() {
        return false;
    }
    // Also where the program allows the signal during its own handler; the signal return brings this back.
    sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED));
    if !queue_in_front(info) {
        return false;
    }
    let mask = context.mask();
    context.set_mask(mask.union(BLOCKED));
    // The mask of a trap comes back by itself. Where signals lie on top of each other, the last one here has
    // interrupted the hit itself.
    if block.interrupted.innermost().is_none() && block.is_busy() {
        block.deferral.keep_mask(mask);
    }
    true
}
