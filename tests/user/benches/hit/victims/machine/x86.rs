//! What the victims are made of.

/// Executes an instruction that is run in a slot.
macro_rules! slotted {
    ($word:ident) => {
        // SAFETY: it changes the one register, and flags.
        unsafe { std::arch::asm!("shld {0:e}, {0:e}, 3", inout(reg) $word, options(nomem, nostack)) };
    };
}

pub(crate) use slotted;

field!("shld eax, ecx, 3", "ret");

/// The length in bytes of the instruction that returns.
pub(crate) const FIELD_RETURN_LEN: usize = 1;

/// Executes one breakpoint of nobody's.
#[inline(always)]
pub(crate) fn breakpoint() {
    // SAFETY: only called while the bare SIGTRAP handler is installed, which steps over it.
    unsafe { std::arch::asm!("int3", options(nomem, nostack)) };
}

/// Nothing: the saved program counter is behind the breakpoint already.
pub(crate) fn skip_breakpoint(_: *mut libc::c_void) {}
