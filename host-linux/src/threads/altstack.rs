//! Alternate stacks.
//!
//! Hits are handled on an alternate stack of at least [`ALTSTACK_LEN`] bytes. A thread that has none, or only
//! the small one that Rust's runtime gives every thread, gets one at its first hit, in the handler; then the
//! breakpoint is hit once more. So the core never runs on the interrupted stack itself, where simulated
//! pushes and jprobes would write into the signal frame. A thread that is on an alternate stack of the
//! program's at the time (in a signal handler) stays there.
//!
//! The new stack goes into the signal frame, and the signal return puts it in force. The kernel does not let
//! a thread change the alternate stack that it stands on; there the handler makes the system call itself,
//! with another stack pointer.

use super::preparation::Preparation;
use crate::arch::{self, UContext};
use crate::signals::owned::BLOCKED;
use crate::sys::{self, AltStack};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// The size of the alternate stacks in bytes. User handlers run on them: room for formatting and for nested
/// hits, each of which costs a signal frame (3 KiB with AVX-512, 11 KiB with AMX).
pub const ALTSTACK_LEN: usize = 256 << 10;

/// An alternate stack that a program has set is good enough from this size on.
const ALTSTACK_ENOUGH: usize = 64 << 10;

/// Our alternate stack of a thread, and the program's.
pub(crate) struct Stacks {
    /// The lowest address of ours, 0 before there is one.
    base: AtomicUsize,
    /// The program's own while ours is in its place.
    program: ProgramStack,
    /// See [`Stacks::has_given_up`].
    given_up_at: AtomicUsize,
    /// Whether none is in force only for a handler that wants none: `program` is the program's.
    is_hidden: AtomicBool,
}

impl Stacks {
    /// Ours, mapped at its first use.
    fn ours(&self) -> Option<AltStack> {
        let mut base = self.base.load(Ordering::Relaxed);
        if base == 0 {
            let page = sys::page_len();
            let mapped = sys::map(0, page + ALTSTACK_LEN, libc::PROT_READ | libc::PROT_WRITE).ok()?;
            // SAFETY: the lowest page was just mapped and is used by nobody: the guard.
            unsafe { sys::protect(mapped, page, libc::PROT_NONE) }.ok()?;
            base = mapped + page;
            self.base.store(base, Ordering::Relaxed);
        }
        self.made()
    }

    /// Ours, if it is there.
    fn made(&self) -> Option<AltStack> {
        let base = self.base.load(Ordering::Relaxed);
        (base != 0).then_some(AltStack { base, flags: 0, len_bytes: ALTSTACK_LEN })
    }

    fn is_ours(&self, stack: &AltStack) -> bool {
        self.made().is_some_and(|ours| ours.base == stack.base)
    }

    /// The program's, `now` being in force.
    fn program_behind(&self, now: AltStack) -> AltStack {
        let is_hidden = now.is_none() && self.is_hidden.load(Ordering::Relaxed);
        if is_hidden || self.is_ours(&now) { self.program.get() } else { now }
    }

    /// Lets `program` be the program's while ours is in force.
    fn keep_program(&self, program: &AltStack) {
        self.program.set(program);
        self.is_hidden.store(false, Ordering::Relaxed);
    }

    /// Puts our stack in force before the first hit, unless the program's has room.
    pub(super) fn put_early(&self) {
        if sys::is_confined() {
            return;
        }
        // SAFETY: asks only.
        let Ok(now) = (unsafe { sys::sigaltstack(None) }) else { return };
        if now.flags & (libc::SS_ONSTACK | libc::SS_DISABLE) == 0 && now.len_bytes >= ALTSTACK_ENOUGH
            || now.flags & libc::SS_ONSTACK != 0
        {
            return;
        }
        if let Some(stack) = self.ours() {
            self.keep_program(&self.program_behind(now));
            // SAFETY: the stack belongs to this thread's block and is used for nothing else. The error
            // (EPERM: on the old one) leaves everything as it was, and the next hit tries again.
            let _ = unsafe { sys::sigaltstack(Some(&stack)) };
        }
    }

    /// Gives the calling thread the one that its program has set.
    pub(crate) fn put_back(&self) {
        // SAFETY: asks only.
        if (unsafe { sys::sigaltstack(None) }).is_ok_and(|now| self.is_ours(&now)) {
            // SAFETY: the program's own, as it has promised. The error (the thread stands on ours, in a
            // handler of the program's) leaves everything as it was.
            let _ = unsafe { sys::sigaltstack(Some(&self.program.get())) };
        }
    }

    /// Takes our stack away from a thread that ends; `false` if the thread stands on it (a handler has called
    /// `pthread_exit`), or may make no such system call.
    pub(super) fn leave(&self) -> bool {
        if self.made().is_none() || sys::is_confined() {
            return self.made().is_none();
        }
        let none = AltStack { base: 0, flags: libc::SS_DISABLE, len_bytes: 0 };
        // SAFETY: asks only.
        let now = unsafe { sys::sigaltstack(None) };
        // SAFETY: sets none.
        !now.is_ok_and(|now| self.is_ours(&now)) || unsafe { sys::sigaltstack(Some(&none)) }.is_ok()
    }

    /// Makes sure that the thread has an alternate stack. `false`: the handler runs on the interrupted stack
    /// and must return at once, to be called again on the new one.
    #[inline]
    pub(super) fn ensure(&self, context: UContext, preparation: &Preparation) -> bool {
        let now = context.altstack();
        if now.flags & libc::SS_DISABLE == 0 && now.len_bytes >= ALTSTACK_ENOUGH || now.holds(context.sp()) {
            return true;
        }
        // A hit in what the making of the stack calls (libc's `syscall`) is handled where it is.
        let Some(preparing) = preparation.begin() else { return true };
        let stack = self.ours();
        drop(preparing);
        // No memory for a stack, or the kernel does not want it: go on where we are.
        let Some(stack) = stack else { return true };
        // Where the thread has none, the signal return sets it: no system call. Since Linux 6.12 that looks
        // at the stack pointer before it brings the interrupted one back, so that a thread on another one
        // needs the call. SAFETY: the block's stack belongs to this thread and nothing is on it, as the
        // thread has another one or none; a signal's handler that uses it meanwhile has returned before this
        // goes on (the module `signals::deferral`).
        let set = |stack: &AltStack| unsafe { arch::sigaltstack_from(stack, stack.base + stack.len_bytes) };
        if now.flags & libc::SS_DISABLE == 0 && (sys::is_confined() || set(&stack) < 0) {
            return true;
        }
        self.keep_program(&self.program_behind(now));
        context.set_altstack(&stack);
        false
    }

    /// The alternate stack that the interrupted program would have without probes.
    pub(crate) fn program_stack(&self, context: UContext) -> AltStack {
        let stack = self.program_behind(context.altstack());
        if stack.flags & libc::SS_DISABLE == 0 && stack.holds(context.sp()) {
            return AltStack { flags: stack.flags | libc::SS_ONSTACK, ..stack };
        }
        AltStack { flags: stack.flags & !libc::SS_ONSTACK, ..stack }
    }

    /// Puts the stack in force that a handler of the program's would run on without probes, where the running
    /// handler stands on another one; returns whether it did. `on_alternate`: it wants to run on the
    /// program's alternate stack, if there is one; else it is to run on the interrupted stack.
    pub(crate) fn give_up(&self, context: UContext, on_alternate: bool) -> bool {
        let here = core::ptr::from_ref(&context) as usize;
        let now = context.altstack();
        let program = self.program_behind(now);
        let stands_on_it = !now.is_none() && now.holds(here) && !now.holds(context.sp());
        let wanted = if on_alternate { program } else { AltStack::NONE };
        let gives_up = stands_on_it && wanted.base != now.base && put(context, &wanted);
        if gives_up && !on_alternate && !program.is_none() {
            self.program.set(&program);
            self.is_hidden.store(true, Ordering::Relaxed);
        }
        self.given_up_at.store(if gives_up { context.pc() } else { 0 }, Ordering::Relaxed);
        gives_up
    }

    /// Whether [`Stacks::give_up`] has put another stack in force at `pc`, and no handler of the program has
    /// been called since.
    pub(crate) fn has_given_up(&self, pc: usize) -> bool {
        self.given_up_at.load(Ordering::Relaxed) == pc
    }

    /// Lets a handler of the program, which is about to be called, find its own alternate stack in `context`.
    /// If it has a small one, ours is in force during the handler, so that hits have room. If it has none,
    /// the next hit puts ours in force again.
    pub(crate) fn show_program_stack(&self, context: UContext) {
        let given_up_at = self.given_up_at.swap(0, Ordering::Relaxed);
        let now = context.altstack();
        if now.is_none() && self.is_hidden.load(Ordering::Relaxed) {
            // A signal that comes on top of the one that was raised again leaves the rest to that one.
            let is_other = context.pc() != given_up_at;
            self.given_up_at.store(if is_other { given_up_at } else { 0 }, Ordering::Relaxed);
            self.is_hidden.store(is_other, Ordering::Relaxed);
            return self.show_again(context);
        }
        let Some(ours) = self.made() else { return };
        let is_ours = self.is_ours(&now);
        if ours.holds(context.sp()) || !is_ours && now.needs_ours().is_none() {
            return;
        }
        let program = if is_ours { self.program.get() } else { now };
        if is_ours {
            context.set_altstack(&program);
        } else if !set(&ours, ours.base + ours.len_bytes) {
            return;
        }
        // The kernel takes such a stack away for the time of a handler.
        let is_away = program.flags & SS_AUTODISARM != 0;
        self.program.set(if is_away { &AltStack::NONE } else { &program });
    }

    /// As [`Stacks::show_program_stack`], of a stack that was hidden from a handler that runs on the
    /// interrupted one.
    #[cold]
    fn show_again(&self, context: UContext) {
        let program = self.program.get();
        context.set_altstack(&program);
        let in_force = program.needs_ours().and_then(|_| self.ours()).unwrap_or(program);
        set(&in_force, (core::ptr::from_ref(&program) as usize - BELOW_SP) & !15);
    }

    /// Ends what [`Stacks::show_program_stack`] began, when the program's handler has returned. The stack in
    /// `context` is the program's from now on, unless the handler has run on one: the kernel lets nobody
    /// leave the one that he stands on.
    pub(crate) fn keep_ours(&self, context: UContext) {
        let (told, now) = (context.altstack(), self.program.get());
        let Some(ours) = self.made().filter(|ours| ours.base != told.base) else { return };
        let here = core::ptr::from_ref(&context) as usize;
        let stays = now.flags & SS_AUTODISARM == 0 && now.holds(here);
        if let Some(program) = if stays { now } else { told }.needs_ours() {
            self.program.set(&program);
            context.set_altstack(&ours);
        }
    }

    /// Gives the interrupted thread the alternate stack that the program wants, or one of ours if the program
    /// wants none or one without room for a hit; `false` if there is no memory for it.
    pub(crate) fn set_program_stack(&self, context: UContext, wanted: &AltStack) -> bool {
        self.is_hidden.store(false, Ordering::Relaxed);
        if wanted.flags & libc::SS_DISABLE == 0 && wanted.len_bytes >= ALTSTACK_ENOUGH {
            return put(context, wanted);
        }
        let Some(ours) = self.ours() else { return false };
        if context.altstack().base != ours.base && !put(context, &ours) {
            return false;
        }
        self.keep_program(wanted);
        true
    }
}

/// The program's alternate stack, while a bigger one of ours is in force.
struct ProgramStack {
    base: AtomicUsize,
    flags: AtomicI32,
    len_bytes: AtomicUsize,
}

impl ProgramStack {
    fn get(&self) -> AltStack {
        AltStack {
            base: self.base.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            len_bytes: self.len_bytes.load(Ordering::Relaxed),
        }
    }

    fn set(&self, stack: &AltStack) {
        self.base.store(stack.base, Ordering::Relaxed);
        self.flags.store(stack.flags, Ordering::Relaxed);
        self.len_bytes.store(stack.len_bytes, Ordering::Relaxed);
    }
}

/// Farther below the stack pointer than any red zone goes.
const BELOW_SP: usize = 1024;

/// Puts an alternate stack in force for the interrupted thread; `false` if the kernel refuses it.
fn put(context: UContext, stack: &AltStack) -> bool {
    // The handler may stand on the one that goes: the call is made from another stack pointer.
    let is_put = set(stack, (context.sp() - BELOW_SP) & !15);
    if is_put {
        context.set_altstack(stack);
    }
    is_put
}

/// Sets an alternate stack from the stack pointer `sp`, which is not on the one that goes; `false` if the
/// kernel, or the program's filter, refuses it.
fn set(stack: &AltStack, sp: usize) -> bool {
    if sys::is_confined() {
        return false;
    }
    let mask = sys::sigprocmask(libc::SIG_BLOCK, Some(BLOCKED));
    // SAFETY: the block's own stack, or the program's, which it promises. All signals are blocked, so that
    // nothing is written below `sp`: the call uses no stack.
    let answer = unsafe { arch::sigaltstack_from(stack, sp) };
    sys::sigprocmask(libc::SIG_SETMASK, Some(mask));
    answer >= 0
}

/// The kernel takes such a stack away while a handler runs.
const SS_AUTODISARM: i32 = 1 << 31;

impl AltStack {
    /// No stack.
    const NONE: Self = Self { base: 0, flags: libc::SS_DISABLE, len_bytes: 0 };

    /// Whether it is no stack at all.
    const fn is_none(&self) -> bool {
        self.flags & libc::SS_DISABLE != 0
    }

    /// The stack, if it is one without room for a hit.
    fn needs_ours(self) -> Option<Self> {
        (!self.is_none() && self.len_bytes < ALTSTACK_ENOUGH).then_some(self)
    }
}
