//! What the victims are made of.

/// Executes an instruction that is run in a slot.
macro_rules! slotted {
    ($word:ident) => {
        // SAFETY: it changes the one register.
        unsafe { std::arch::asm!("eor {0}, {0}, #0xff", inout(reg) $word, options(nomem, nostack)) };
    };
}

pub(crate) use slotted;

field!("add r0, r0, r1", "bx lr");

/// The length in bytes of the instruction that returns.
pub(crate) const FIELD_RETURN_LEN: usize = 4;

/// Executes one breakpoint of nobody's.
#[inline(always)]
pub(crate) fn breakpoint() {
    // SAFETY: only called while the bare SIGTRAP handler is installed, which steps over it.
    unsafe { std::arch::asm!("bkpt #0", options(nomem, nostack)) };
}

/// Steps over the breakpoint.
pub(crate) fn skip_breakpoint(context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel passes this thread's own frame, which nobody else sees.
    unsafe { (*context).uc_mcontext.arm_pc += 4 };
}
