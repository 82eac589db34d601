//! What the victims are made of.

/// Executes an instruction that is run in a slot.
macro_rules! slotted {
    ($word:ident) => {
        // SAFETY: it changes the one register.
        unsafe { std::arch::asm!("xori {0}, {0}, 0xff", inout(reg) $word, options(nomem, nostack)) };
    };
}

pub(crate) use slotted;

field!(
    ".option push\n.option norvc\nadd a0, a0, a1\n.option pop",
    ".option push\n.option norvc\nret\n.option pop"
);

/// The length in bytes of the instruction that returns.
pub(crate) const FIELD_RETURN_LEN: usize = 4;

/// Executes one breakpoint of nobody's.
#[inline(always)]
pub(crate) fn breakpoint() {
    // SAFETY: only called while the bare SIGTRAP handler is installed, which steps over it.
    unsafe { std::arch::asm!("c.ebreak", options(nomem, nostack)) };
}

/// Steps over the breakpoint.
pub(crate) fn skip_breakpoint(context: *mut libc::c_void) {
    const PC: usize = 176;
    let pc = context.wrapping_byte_add(PC).cast::<usize>();
    // SAFETY: the kernel passes this thread's own frame, which nobody else sees.
    unsafe { *pc += 2 };
}
