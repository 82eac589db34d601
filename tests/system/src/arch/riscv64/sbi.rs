//! What the firmware below does: start harts, interrupt them, set the timer (RISC-V SBI 1.0, chapters 6, 7
//! and 9).

use core::arch::asm;

const TIMER: usize = 0x5449_4d45;
const IPI: usize = 0x73_5049;
const HART_STATE: usize = 0x48_534d;

/// Calls function 0 of an extension.
fn call(extension: usize, arguments: [usize; 3]) {
    let error: isize;
    // SAFETY: the firmware changes a0 and a1 alone; what it does is the callers' wish.
    unsafe {
        asm!("ecall", inlateout("a0") arguments[0] => error, inlateout("a1") arguments[1] => _, in("a2") arguments[2],
            in("a6") 0, in("a7") extension, options(nostack));
    }
    assert!(error == 0, "the SBI's extension {extension:#x} answers {error}");
}

/// Starts `hart` at the physical address `at`, with a1 = `argument`.
pub fn start_hart(hart: usize, at: usize, argument: usize) {
    call(HART_STATE, [hart, at, argument]);
}

/// Makes the software interrupt of `hart` pending.
pub fn interrupt(hart: usize) {
    call(IPI, [1, hart, 0]);
}

/// Interrupts this hart at `time`, and no longer for an earlier one.
pub fn set_timer(time: u64) {
    call(TIMER, [time as usize, 0, 0]);
}
