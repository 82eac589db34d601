//! The part of a backend that must be executed on the architecture itself, and the answers that the core
//! gives to trampolines.

use super::{Arch, NativeCalls, NativeJumps};
use crate::addr::CodeAddr;

/// The registers that a trampoline saves around the handler, beside the general registers and flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveSet {
    /// None: the handlers are built without floating point (a kernel).
    General,
    /// All floating-point and vector state that the ABI can return in or a handler can clobber (a process).
    Full,
}

/// How a context resumes from a trampoline, which has called the core with the registers that it has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Resume {
    /// Behind the call, with the same registers: at most the link register and the registers that every call
    /// may change are different. So the registers that calls preserve need not be loaded.
    Unchanged = 0,
    /// Behind the call, with all registers as they are saved now, except pc and the stack pointer.
    Changed = 1,
    /// The stack pointer has been changed, too: through [`NativeJumps::detour_resume_trap`], with the first
    /// copy as pc.
    Moved = 2,
    /// Through [`NativeJumps::detour_resume_trap`], with the saved pc.
    Redirected = 3,
    /// For [`NativeJumps::entry_trampoline`] alone: as [`Resume::Unchanged`], and the return address is a
    /// stub now.
    Followed = 4,
    /// For [`NativeJumps::entry_trampoline`] alone: as [`Resume::Changed`], and the return address is a stub
    /// now.
    ChangedFollowed = 5,
}

impl Resume {
    /// After a handler that may have changed the registers if they were lent to it.
    pub(crate) fn of(is_lent: bool) -> Self {
        if is_lent { Self::Changed } else { Self::Unchanged }
    }
}

/// A function of the core that trampolines call, with a word and the registers that they have saved.
pub trait TrampolineHandler<R> {
    /// The function.
    const FUNCTION: extern "C" fn(word: usize, regs: *mut R) -> Resume;
}

/// The part of [`Arch`] that must be executed on the architecture; those of the optional powers
/// are [`NativeCalls`] and [`NativeJumps`].
///
/// # Safety
/// After [`NativeArch::publish`] this core fetches what has been written.
pub unsafe trait NativeArch:
    Arch<Calls: NativeCalls<<Self as Arch>::Regs>, Jumps: NativeJumps<<Self as Arch>::Regs>>
{
    /// Whether one instruction adds to a word in memory. If so, code adds without keeping a loaded copy in a
    /// register.
    const ADDS_TO_MEMORY: bool = false;

    /// The address that trampolines call for `T`: its function, or one that passes the arguments on, if the
    /// trampolines can pass them in a better way than `extern "C"` does.
    fn handler<T: TrampolineHandler<Self::Regs>>() -> usize {
        T::FUNCTION as usize
    }

    /// Keeps the compiler from moving memory accesses across this point, as seen by code that interrupts this
    /// context. On the hit path. It should compile to no instruction: a backend for which the default does
    /// overrides it.
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
