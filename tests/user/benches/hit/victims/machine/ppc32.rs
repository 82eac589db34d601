//! What the victims are made of.

/// Executes an instruction that is run in a slot.
macro_rules! slotted {
    ($word:ident) => {
        // SAFETY: it changes the one register, and flags.
        unsafe { std::arch::asm!("xori {0}, {0}, 0xff", inout(reg_nonzero) $word, options(nomem, nostack)) };
    };
}

pub(crate) use slotted;

field!("add 3, 3, 4", "blr");

/// The length in bytes of the instruction that returns.
pub(crate) const FIELD_RETURN_LEN: usize = 4;

/// Executes one breakpoint of nobody's.
#[inline(always)]
pub(crate) fn breakpoint() {
    // SAFETY: only called while the bare SIGTRAP handler is installed, which steps over it.
    unsafe { std::arch::asm!("trap", options(nomem, nostack)) };
}

/// Steps over the breakpoint.
pub(crate) fn skip_breakpoint(context: *mut libc::c_void) {
    /// Offset in bytes of `nip` in the kernel's ucontext (uc_mcontext at 192, register 32).
    const NIP: usize = 192 + 32 * 4;
    // SAFETY: the kernel passes this thread's own frame; `nip` lies at that offset of it.
    let nip = unsafe { context.cast::<u8>().add(NIP) }.cast::<u32>();
    // SAFETY: `nip` points into the frame, aligned.
    unsafe { *nip += 4 };
}
