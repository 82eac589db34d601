/// The offset of the program counter in `ucontext_t`.
pub(crate) const PC_OFFSET: usize = 92;

/// How far behind a breakpoint's saved program counter the next instruction is.
pub(crate) const AFTER_TRAP: usize = 4;

/// Executes a breakpoint of nobody's.
pub(crate) fn breakpoint() {
    // SAFETY: the program's handler for SIGTRAP goes on behind it.
    unsafe { core::arch::asm!("bkpt #0") };
}
