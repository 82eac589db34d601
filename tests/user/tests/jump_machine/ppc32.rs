//! What lies where in the victims of jumps, which displace one instruction here.

use crate::Case;
use probe_host_linux::Native;
use probe_host_linux::probe_core::arch::Arch;

/// No others than everywhere.
pub(crate) fn victims() -> Vec<Case> {
    Vec::new()
}

/// How many bytes the simulated instruction of [`make_42`] pushes.
pub(crate) const PUSHED: usize = 0;

/// Makes 42 in a register, after an instruction that is simulated.
macro_rules! make_42 {
    () => {
        "b 2f; .long 0; 2: li {0}, 42"
    };
}
pub(crate) use make_42;

/// Moves the stack pointer that the program goes on with.
pub(crate) fn move_stack(regs: &mut <Native as Arch>::Regs, bytes: isize) {
    let sp = &mut regs.gpr[1];
    *sp = sp.wrapping_add_signed(bytes as _);
}
