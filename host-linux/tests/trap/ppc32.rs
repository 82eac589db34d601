/// The offset of the program counter in `ucontext_t` (`mc_gregs[32]`).
pub(crate) const PC_OFFSET: usize = 320;

/// How far behind a breakpoint's saved program counter the next instruction is.
pub(crate) const AFTER_TRAP: usize = 4;

/// Executes a breakpoint of nobody's.
pub(crate) fn breakpoint() {
    // SAFETY: the program's handler for SIGTRAP goes on behind it.
    unsafe { core::arch::asm!("trap") };
}

/// Executes an instruction that is none.
pub(crate) fn undefined() {
    // SAFETY: none; what is asked is what comes of it.
    unsafe { core::arch::asm!(".long 0") };
}
