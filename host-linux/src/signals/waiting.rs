//! Threads that wait for signals that the kernel must not block (`rt_sigtimedwait`).
//!
//! The guard's probe on the call looks at what waits with us already ([`begin_wait`]). If there is nothing,
//! the kernel is given a set without ours: one that comes later comes to our handler.
//!
//! From that look to the kernel's own sleep nothing that comes may be overlooked. So a wait that is
//! interrupted before its call is made begins again at the probe, which looks once more: where the hit is
//! over ([`end_hit`]), and before a handler of the program's is called or a signal kept ([`begin_again`]).
//! A call that a signal has interrupted in the kernel is answered ([`takes`]).
//!
//! Where libc's calls that wait cannot be told from others, the call is made elsewhere, with what the program
//! blocks really blocked (`super::blocked_wait`): one that comes then is pending in the kernel.
//!
//! Which thread sees what the other has done: `threads::wait`.

use super::interrupted::interrupted;
use super::kept::{kept_block, look, openly, quietly, take, waiting, without_ours};
use super::owned::NEVER_BLOCKED;
use crate::arch::{Regs, SYSCALL, UContext};
use crate::host::PROBES;
use crate::sys::{SigInfo, SignalSet};
use crate::threads::{Begun, Block, Takes, WrittenDown};
use core::ffi::c_long;
use probe_core::CodeAddr;
use probe_core::arch::{Memory, Regs as _};
use probe_core::host::Host;

/// The system calls that wait for signals of a set: as they are, and with 64 bits of time on 32-bit machines.
pub(crate) const WAITS: [c_long; 2] = [libc::SYS_rt_sigtimedwait, 421];

/// The interrupted thread is about to make system call `call` of [`SYSCALL`], which waits for a signal of a
/// set, with these registers: the answer, if one is here already. If not, the kernel is given another set.
pub(crate) fn begin_wait(regs: &mut Regs, call: usize) -> Answer {
    begin(regs, call).unwrap_or(Answer::Made)
}

/// What becomes of a call that waits.
pub(crate) enum Answer {
    /// It is made.
    Made,
    /// It is made elsewhere, where the registers lead now.
    Elsewhere,
    /// It is not made: this is its result.
    Result(isize),
}

fn begin(regs: &mut Regs, call: usize) -> Option<Answer> {
    let (block, context) = (kept_block()?, interrupted()?);
    let wait = &block.wished.wait;
    let [set, info, _, len] = core::array::from_fn(|index| (SYSCALL.argument)(regs, index));
    // What was left there by the last wait.
    let set = if set == wait.set() { wait.begun().of_program } else { set };
    let mut bytes = [0; 8];
    if len != bytes.len() || PROBES.host().memory().read(set, &mut bytes).is_err() {
        return None;
    }
    let all = SignalSet::from_memory(bytes);
    let ours = SignalSet::from_bits(all.bits() & NEVER_BLOCKED.bits());
    if ours == SignalSet::EMPTY {
        return None;
    }
    let begun = Begun { place: regs.pc().as_usize(), of_program: set };
    let noted = wait.begin(ours, without_ours(all), begun, context.as_ptr());
    if let Some(answer) = answer_of(info, || look(block, ours, &noted)) {
        wait.end();
        return Some(Answer::Result(answer));
    }
    (SYSCALL.set_first)(regs, wait.set());
    let is_elsewhere = (SYSCALL.make_directly)(regs, call, PROBES.host().memory());
    wait.be_at(regs.sp());
    Some(if is_elsewhere { Answer::Elsewhere } else { Answer::Made })
}

/// What a hit does last, `context` being its own or one of a signal in it: where a wait is to begin behind it
/// for what has come meanwhile, the wait begins once more. All signals are blocked until then.
pub(super) fn end_hit(block: &Block, context: UContext) {
    let wait = &block.wished.wait;
    if !wait.begins_in(context.as_ptr()) {
        return;
    }
    if waiting(block).bits() & wait.own_signals().bits() != 0 {
        begin_again(context);
    }
    wait.be_made();
}

/// What a signal does first that was sent: where it has interrupted a wait before the call is made, the wait
/// begins again when the thread goes on.
#[inline]
pub(super) fn begin_again(context: UContext) {
    if let Some(block) = kept_block().filter(|block| block.wished.wait.is_at(context.sp())) {
        rewind(context, block);
    }
}

#[cold]
fn rewind(context: UContext, block: &Block) {
    let wait = &block.wished.wait;
    let mut regs = context.load_regs();
    if let Some(At { is_made: false, .. }) = openly(|| at_call(&regs, wait.set())) {
        let Begun { place, of_program } = wait.begun();
        (SYSCALL.leave_directly)(&mut regs);
        (SYSCALL.set_first)(&mut regs, of_program);
        regs.set_pc(CodeAddr::new(place));
        context.store_regs(&regs);
    }
}

/// Whether the interrupted thread takes what it has just written down: the wait that it begins in this hit
/// will look again, or the call that has been interrupted is answered. Any other wait is over.
pub(super) fn takes(context: UContext, block: &Block, written: &WrittenDown) -> bool {
    let wait = &block.wished.wait;
    match wait.takes(written) {
        Takes::WhenHitEnds => true,
        Takes::Others => false,
        Takes::IfInterrupted => {
            let is_answered = answer(context, block);
            wait.end();
            is_answered
        }
    }
}

/// The signals of the program's set at `set`, if some of [`NEVER_BLOCKED`] are among them and the guard sees
/// to those.
pub(crate) fn wanted(set: usize) -> Option<SignalSet> {
    let mut bytes = [0; 8];
    kept_block()?;
    PROBES.host().memory().read(set, &mut bytes).ok()?;
    let all = SignalSet::from_memory(bytes);
    (all.bits() & NEVER_BLOCKED.bits() != 0).then_some(all)
}

/// What a call that waits is answered, with what `take` takes, which is told at `info`.
fn answer_of(info: usize, take: impl FnOnce() -> Option<SigInfo>) -> Option<isize> {
    // Reading and writing may fault: nothing is blocked then.
    let taken = quietly(take)?;
    let is_told = info == 0 || PROBES.host().memory().write(info, &taken.to_memory()).is_ok();
    Some(if is_told { taken.signal as isize } else { -(libc::EFAULT as isize) })
}

/// Where a signal has interrupted the call of a wait for what has come, that is its answer; whether it is.
fn answer(context: UContext, block: &Block) -> bool {
    let wait = &block.wished.wait;
    let ours = wait.own_signals();
    if ours == SignalSet::EMPTY || !wait.is_at(context.sp()) {
        return false;
    }
    let mut regs = context.load_regs();
    let Some(At { call, is_made: true }) = openly(|| at_call(&regs, wait.set())) else { return false };
    let info = (SYSCALL.argument)(&regs, 1);
    let Some(answer) = openly(|| answer_of(info, || take(block, ours))) else { return false };
    (SYSCALL.set_result)(&mut regs, call, answer);
    context.store_regs(&regs);
    true
}

/// Where a thread is in a wait.
struct At {
    /// Which of [`SYSCALL`]'s calls it makes.
    call: usize,
    /// Whether a signal has interrupted it; if not, it is the next instruction.
    is_made: bool,
}

/// Whether a call that waits is about to be made with this set, or has been interrupted.
fn at_call(regs: &Regs, set: usize) -> Option<At> {
    let first = (SYSCALL.argument)(regs, 0);
    let number = |call| (SYSCALL.number)(regs, call);
    let is_number = |call| WAITS.contains(&(number(call) as c_long));
    let read = |at: usize, out: &mut [u8]| crate::memory::read_some(at, out) == out.len();
    let pc = regs.pc();
    if first == set
        && let Some(call) = SYSCALL.call_at(pc, &read).filter(|&call| is_number(call))
    {
        return Some(At { call, is_made: false });
    }
    // The result lies where the number was (x86), or the first argument.
    let is_interrupted = |result: usize| [INTERRUPTED, INTERRUPTED.wrapping_neg()].contains(&result);
    let mut calls = SYSCALL.calls.iter();
    let call = calls.position(|call| call.is_at(pc.wrapping_offset(-(call.len_bytes as isize)), &read))?;
    let is_made = is_number(call) && is_interrupted(first) || is_interrupted(number(call)) && first == set;
    is_made.then_some(At { call, is_made: true })
}

const INTERRUPTED: usize = libc::EINTR as usize;
