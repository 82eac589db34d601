//! What must be executed on the architecture itself, and what trampolines and the core tell each other.

use super::{Arch, NativeCalls, NativeJumps};
use crate::addr::CodeAddr;

/// Which registers a trampoline saves around the handler, beside the general registers and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveSet {
    /// None: the handlers are built without floating point (a kernel).
    General,
    /// All floating-point and vector state that the ABI can return in or a handler can clobber (a process).
    Full,
}

/// How a context goes on from a trampoline, which has called the core with the registers that it has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resume {
    /// Behind the call, with the same registers: none has been changed but, perhaps, the link register and those that every
    /// call may change. So a register that calls preserve need not be restored.
    Unchanged = 0,
    /// The same with all registers as they are saved now, but for pc and the stack pointer.
    Changed = 1,
    /// The stack pointer has been changed, too: by way of [`NativeJumps::detour_resume_trap`], pc being the first copy.
    Moved = 2,
    /// By way of [`NativeJumps::detour_resume_trap`], pc being what was saved.
    Redirected = 3,
    /// Answered to [`NativeJumps::entry_trampoline`] alone: as [`Resume::Unchanged`], and the return address is a stub now.
    Followed = 4,
    /// The same as [`Resume::Changed`].
    ChangedFollowed = 5,
}

impl Resume {
    /// After a handler that may have changed registers, if they have been lent to it.
    pub(crate) fn of(is_lent: bool) -> Self {
        if is_lent { Self::Changed } else { Self::Unchanged }
    }
}

/// A function of the core's that trampolines call: with a word, and the registers that they have saved.
pub trait TrampolineHandler<R> {
    /// The function.
    const FUNCTION: extern "C" fn(word: usize, regs: *mut R) -> Resume;
}

/// What must be executed on the architecture itself; of the optional powers, [`NativeCalls`] and [`NativeJumps`] say it.
///
/// # Safety
/// After [`NativeArch::publish`] this core fetches what has been written.
pub unsafe trait NativeArch:
    Arch<Calls: NativeCalls<<Self as Arch>::Regs>, Jumps: NativeJumps<<Self as Arch>::Regs>>
{
    /// Whether one instruction adds to a word in memory, so that a word that has been loaded is better not kept for that.
    const ADDS_TO_MEMORY: bool = false;

    /// The address of what the trampolines call for `T`: its function, or one that passes arguments on to it, where the
    /// trampolines can pass them in a better way than `extern "C"` does.
    fn handler<T: TrampolineHandler<Self::Regs>>() -> usize {
        T::FUNCTION as usize
    }

    /// Keeps the compiler from moving accesses to memory across this point, as far as code that interrupts this context
    /// can see. On the hit path; no instruction: a backend for which the default becomes one has its own.
    #[inline(always)]
    fn program_order() {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    }

    /// Makes `len_bytes` bytes of text just written at `at` visible to instruction fetch on this core, as the
    /// architecture's rules on self-modifying code ask (nothing on x86).
    ///
    /// # Safety
    /// The range is mapped and readable.
    unsafe fn publish(at: CodeAddr, len_bytes: usize);
}
