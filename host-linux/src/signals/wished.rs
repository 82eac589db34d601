//! Signals that were sent while the program blocks them, where the kernel must not.
//!
//! The kernel never has [`NEVER_BLOCKED`] in a thread's mask, so that a hit can raise them. What the program
//! has blocked of them is `threads::Wished`: the guard writes it at every `rt_sigprocmask`, and
//! tells it. One of them that is sent meanwhile comes to our handler and waits in the thread, or in the
//! process, until the program unblocks it, waits for it, or executes another program, which finds it pending.
//! One that is raised ends the process, as the kernel ends one that has it blocked.
//!
//! A thread that waits for one is `super::waiting`'s.
//!
//! What is sent to the process comes to any thread, as none has it blocked. Where another one waits for it,
//! or has not blocked it, it is passed on: it lies in that thread's block, and [`KNOCK`] tells. No thread is
//! ever sent a SIGTRAP of its own by us: one that is pending when a breakpoint is hit would take the
//! breakpoint's place.

use super::interrupted::interrupted;
use super::kept::{
    IS_KEPT, KNOCK, OF_PROCESS, WITH_VALUE, bring_by_knock, is_knock, kept_block, knock, quietly, take,
    waiting, without_ours,
};
use super::owned::{NEVER_BLOCKED, run_in};
use super::{beginning, waiting};
use crate::arch::UContext;
use crate::sys::{self, SigInfo, SignalSet};
use crate::threads::{self, Block, How, WrittenDown};
use core::ffi::c_int;
use core::sync::atomic::Ordering;

/// `SI_TKILL`: sent to a thread.
const TO_THREAD: c_int = -6;

/// The guard is about to be planted, and writes down what is blocked from now on: what the calling thread has
/// blocked is its program's wish and the kernel's no more. What is pending waits with us.
pub fn adopt_mask() {
    IS_KEPT.store(true, Ordering::Relaxed);
    let Some(block) = threads::current_or_new() else { return };
    let ours = sys::sigprocmask(libc::SIG_BLOCK, None).bits() & NEVER_BLOCKED.bits();
    set_blocked(block, SignalSet::from_bits(ours));
    if ours != 0 {
        sys::sigprocmask(libc::SIG_UNBLOCK, Some(NEVER_BLOCKED));
    }
}

/// As [`adopt_mask`], later and for a thread that was stopped with this mask, which runs this; `false` if
/// nobody writes down what is blocked.
pub fn adopt(mask: SignalSet) -> bool {
    let Some(block) =
        kept_block().or_else(|| IS_KEPT.load(Ordering::Relaxed).then(threads::current_or_new)?)
    else {
        return false;
    };
    set_blocked(block, SignalSet::from_bits(mask.bits() & NEVER_BLOCKED.bits()));
    threads::thread_started();
    true
}

/// Gives the kernel what waits for the calling thread, and returns what that has blocked.
pub(crate) fn leave_thread() -> SignalSet {
    let Some(block) = kept_block() else { return SignalSet::EMPTY };
    let mask = block.wished.blocked();
    quietly(|| give_to_kernel(block, NEVER_BLOCKED));
    mask
}

/// Nobody writes down any more what is blocked: nothing is.
pub(crate) fn stop() {
    IS_KEPT.store(false, Ordering::Relaxed);
}

/// The guard could not be planted: what the calling thread has blocked is the kernel's again.
pub fn give_mask_back() {
    let mask = blocked();
    stop();
    sys::sigprocmask(libc::SIG_BLOCK, Some(mask));
}

/// Gives the kernel what the calling thread has blocked, and what waits. Nothing of ours is hit any more.
pub(crate) fn leave() {
    if let Some(block) = kept_block() {
        let mask = block.wished.blocked();
        quietly(|| give_to_kernel(block, NEVER_BLOCKED));
        stop();
        sys::sigprocmask(libc::SIG_BLOCK, Some(mask));
    }
}

/// In a fork's child, which has no pending signals.
pub(crate) fn forked() {
    OF_PROCESS.clear();
    if let Some(block) = threads::current() {
        block.wished.forget();
    }
}

/// What the program has blocked of [`NEVER_BLOCKED`] in the calling thread.
#[inline]
pub(crate) fn blocked() -> SignalSet {
    kept_block().map_or(SignalSet::EMPTY, |block| block.wished.blocked())
}

/// The program's mask of the interrupted thread; `None` outside of a handler.
pub(crate) fn interrupted_mask() -> Option<SignalSet> {
    interrupted().map(|context| context.mask().union(blocked()))
}

/// Lets `mask` be the program's when the interrupted thread goes on.
pub(crate) fn set_interrupted_mask(mask: SignalSet) {
    let Some(context) = interrupted() else { return };
    let Some(block) = kept_block() else {
        // What was blocked before anybody guarded stays blocked unless it is unblocked now.
        let added = mask.bits() & !context.mask().bits() & NEVER_BLOCKED.bits();
        return context.set_mask(SignalSet::from_bits(mask.bits() & !added));
    };
    if is_of_libc_alone(mask) {
        block.wished.block(mask);
    } else {
        set_blocked(block, mask);
    }
    context.set_mask(without_ours(mask));
    note_due(block);
}

/// Lets the program have blocked those of `mask` from now on.
pub(super) fn set_blocked(block: &Block, mask: SignalSet) {
    if mask.has(libc::SIGTRAP) {
        beginning::expect_traps(block);
    }
    block.wished.block(mask);
}

/// Whether libc sets such a mask for itself, for a moment, as it makes a thread: it lets no program block
/// these two.
fn is_of_libc_alone(mask: SignalSet) -> bool {
    cfg!(target_env = "gnu") && mask.has(32) && mask.has(33)
}

/// Changes what is blocked of ours, as `rt_sigprocmask` would; what was. Outside of handlers.
pub(crate) fn change(how: c_int, signals: SignalSet) -> SignalSet {
    let Some(block) = kept_block() else { return SignalSet::EMPTY };
    let before = block.wished.blocked();
    set_blocked(
        block,
        match how {
            libc::SIG_BLOCK => before.union(signals),
            libc::SIG_UNBLOCK => SignalSet::from_bits(before.bits() & !signals.bits()),
            _ => signals,
        },
    );
    let open = SignalSet::from_bits(!block.wished.blocked().bits());
    if waiting(block).bits() & open.bits() != 0 {
        bring_all(block, open);
    }
    before
}

/// What waits and is blocked no more comes when this hit is over.
fn note_due(block: &Block) {
    if waiting(block).bits() & !block.wished.blocked().bits() != 0 {
        block.wished.be_due();
    }
}

/// What a hit does last: what waits and is blocked no more comes with the signal return, as the kernel lets
/// it come when a mask has changed. A call that waits for what has come begins once more.
#[inline]
pub(super) fn deliver_due(block: Option<&Block>, context: UContext) {
    let is_due = |block: &&Block| block.wished.take_due() || block.wished.wait.begins_in(context.as_ptr());
    if let Some(block) = block.filter(is_due) {
        deliver_now(block, context);
    }
}

/// As [`deliver_due`]. All signals are blocked from then on; the signal return brings the mask back.
#[cold]
fn deliver_now(block: &Block, context: UContext) {
    loop {
        let mask = sys::sigprocmask(libc::SIG_SETMASK, Some(SignalSet::ALL));
        let open = SignalSet::from_bits(!block.wished.blocked().bits());
        while let Some(info) = block.wished.passed.take(open.without(KNOCK)).or_else(|| take(block, open)) {
            bring(block, &info);
        }
        let passed = block.wished.passed.set();
        if open.has(KNOCK) && passed.has(KNOCK) {
            bring_by_knock(block);
        }
        if passed.bits() & !open.bits() == 0 {
            return waiting::end_hit(block, context);
        }
        sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
        keep_passed(block, context);
    }
}

/// Keeps what has been passed on and is blocked.
fn keep_passed(block: &Block, context: UContext) {
    let blocked = block.wished.blocked();
    while let Some(info) = quietly(|| block.wished.passed.take(blocked)) {
        keep_blocked(&info, context, block);
    }
}

/// Lets a signal come with the signal return, as one that was sent to this thread. All signals are blocked.
fn bring(block: &Block, info: &SigInfo) {
    if info.signal == KNOCK {
        // It would be lost where another thread's knock is pending.
        // The knock tells this thread.
        let _written = block.wished.passed.replace(info);
        bring_by_knock(block);
    } else {
        sys::queue_to_self(info);
    }
}

/// Lets what waits of `signals` come at once.
pub(super) fn bring_all(block: &Block, signals: SignalSet) {
    quietly(|| {
        while let Some(info) = take(block, signals) {
            bring(block, &info)
        }
    });
}

/// Makes what waits of `signals` pending in the kernel, in this thread. All signals are blocked.
fn give_to_kernel(block: &Block, signals: SignalSet) {
    while let Some(info) = take(block, signals) {
        sys::queue_to_self(&info);
    }
}

/// Takes the knocks that are pending, which are nobody's but ours, and makes what they tell of pending
/// itself. All signals are blocked.
pub(super) fn take_knocks(block: &Block) {
    if !IS_KEPT.load(Ordering::Relaxed) || block.wished.is_lent() {
        return;
    }
    let mut of_program = None;
    while let Some(info) = sys::take_pending(KNOCK) {
        if !is_knock(&info) && !threads::is_asked(&info) {
            of_program = Some(info);
        }
    }
    of_program.inspect(|info| _ = sys::queue_to_self(info));
    while let Some(info) = block.wished.passed.take(NEVER_BLOCKED) {
        sys::queue_to_self(&info);
    }
}

/// Gives the kernel the mask that the program believes is in force, `mask` being the kernel's, and what
/// waits. All signals are blocked, and nothing is hit until the kernel's mask is `mask` again.
pub(super) fn show_kernel(block: &Block, mask: SignalSet) -> SignalSet {
    if !IS_KEPT.load(Ordering::Relaxed) {
        return mask;
    }
    if !block.wished.is_lent() {
        give_to_kernel(block, block.wished.blocked());
    }
    mask.union(block.wished.blocked())
}

/// Runs a signal handler of the program's, which the kernel's frame `context` was made for, with the signals
/// of `mask` blocked beside what is. It sees, and leaves, the program's mask in the frame.
#[inline]
pub(super) fn in_handler(context: UContext, mask: SignalSet, handler: impl FnOnce()) {
    let Some(block) = threads::current() else { return run_in(context, handler) };
    if !IS_KEPT.load(Ordering::Relaxed) {
        return block.executing.interrupt(|| run_in(context, handler));
    }
    let outer = block.wished.blocked();
    if block.executing.is_under_way() {
        // The frame has the program's mask, to which it returns.
        let wait = block.wished.wait.suspend();
        set_blocked(block, outer.union(mask));
        block.executing.interrupt(handler);
        set_blocked(block, outer);
        // All signals are blocked. What has come meanwhile is what the call finds.
        let _noted = block.wished.wait.resume(wait);
        return give_to_kernel(block, outer);
    }
    if outer != SignalSet::EMPTY {
        context.set_mask(context.mask().union(outer));
    }
    set_blocked(block, outer.union(mask));
    handler();
    let left = context.mask();
    set_blocked(block, left);
    context.set_mask(without_ours(left));
    if waiting(block).bits() & !left.bits() != 0 {
        deliver_now(block, context);
    }
}

/// Keeps a signal that was sent, if the program has it blocked in the thread that it has come to, or if it is
/// none but a knock; whether it is dealt with. If not, `info` may be another one, for which it is the knock.
pub(super) fn keep(info: &mut SigInfo, context: UContext) -> bool {
    // A confined program's signals cannot be sent once more.
    let keeps = |block: &&Block| !sys::is_confined() && !block.wished.is_lent();
    let Some(block) = kept_block().filter(keeps) else { return false };
    if is_knock(info) {
        keep_passed(block, context);
        let open = SignalSet::EMPTY.with(KNOCK).bits() & !block.wished.blocked().bits();
        let own = quietly(|| block.wished.passed.take(SignalSet::from_bits(open)));
        if let Some(own) = own {
            *info = own;
            return false;
        }
        // The end of a hit may have taken it already.
        if block.wished.passed.set() != SignalSet::EMPTY {
            deliver_now(block, context);
        }
        return true;
    }
    let is_starting = !block.wished.is_told() && (info.code != TO_THREAD || is_of_libc(context.mask()));
    let is_blocked = is_starting || block.wished.blocked().has(info.signal);
    if is_blocked {
        keep_blocked(info, context, block);
    }
    is_blocked
}

/// Whether libc has blocked all signals that the kernel may block, as for a thread that starts. Musl leaves
/// out those that are its own.
fn is_of_libc(mask: SignalSet) -> bool {
    const OF_LIBC: SignalSet = SignalSet::EMPTY.with(32).with(33).with(34);
    let never = NEVER_BLOCKED.with(libc::SIGKILL).with(libc::SIGSTOP);
    mask.union(OF_LIBC).union(never) == SignalSet::ALL
}

fn keep_blocked(info: &SigInfo, context: UContext, block: &Block) {
    let is_of_thread = info.code == TO_THREAD;
    let written = quietly(|| if is_of_thread { &block.wished.sent } else { &OF_PROCESS }.put(info));
    if !waiting::takes(context, block, &written) && !is_of_thread {
        quietly(|| pass_on(info.signal, block, written));
    }
}

/// Gives what was sent to the process to a thread that has not blocked it, or waits for it.
fn pass_on(signal: c_int, own: &Block, mut written: WrittenDown) {
    let of = SignalSet::EMPTY.with(signal);
    let mut looks = false;
    loop {
        let takes = |(other, thread): (&'static Block, u32)| {
            let is_open = other.wished.is_told() && !other.wished.blocked_by_owner().has(signal);
            let how = other.wished.wait.waits_for(of, &written).or(is_open.then_some(How::Knocked))?;
            (!looks || sys::thread_lives(sys::process_id(), thread)).then_some((other, thread, how))
        };
        let Some((other, thread, how)) = threads::others(own).find_map(takes) else { return };
        let Some(info) = OF_PROCESS.take(of) else { return };
        if pass_to(other, thread, how, &info) {
            return;
        }
        // That thread has ended, and somebody else may wait meanwhile.
        written = OF_PROCESS.put(&info);
        looks = true;
    }
}

/// Gives `thread`, whose block is `other`, a signal that was sent to the process; `false`: there is no such
/// thread, and nothing has changed.
fn pass_to(other: &Block, thread: u32, how: How, info: &SigInfo) -> bool {
    if how == How::Blocked {
        // The wait itself takes it. A thread may not be sent what another process has.
        let mut sent = *info;
        sent.code = info.code.min(WITH_VALUE);
        return sys::queue_to_thread(thread, &sent);
    }
    // The knock tells its owner.
    let _written = other.wished.passed.replace(info);
    other.wished.be_due();
    sys::queue_to_thread(thread, &knock())
        || other.wished.passed.take(SignalSet::EMPTY.with(info.signal)).is_none()
}

/// Whether an execution has to tell the kernel something.
pub(crate) fn has_any() -> bool {
    kept_block().is_some_and(|block| block.wished.blocked() != SignalSet::EMPTY)
}

/// What is pending in the interrupted thread, in the program's view; `None` outside of a handler.
pub(crate) fn pending() -> Option<SignalSet> {
    let (context, block) = (interrupted()?, kept_block()?);
    // The kernel tells what is blocked now: in a handler that may be more.
    let told = sys::pending().bits() & context.mask().bits();
    Some(SignalSet::from_bits(told | waiting(block).bits() & block.wished.blocked().bits()))
}

/// An action ignores `signal`: what waits is dropped.
pub(super) fn drop_pending(signal: c_int) {
    let Some(own) = kept_block() else { return };
    let of = SignalSet::EMPTY.with(signal);
    let waits = |block: &Block| block.wished.sent.set().has(signal);
    if !OF_PROCESS.set().has(signal) && !waits(own) && !threads::others(own).any(|(other, _)| waits(other)) {
        return;
    }
    quietly(|| {
        OF_PROCESS.take(of);
        own.wished.sent.take(of);
        threads::others(own).for_each(|(other, _)| _ = other.wished.sent.take(of));
    });
}
