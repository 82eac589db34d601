//! Functions whose instructions the checks know, in assembly (`arch/targets.s`, with each machine's
//! instructions).

/// Wraps an assembly function that is safe to call.
macro_rules! target {
    ($(#[$doc:meta])* $name:ident as $symbol:ident($($arg:ident),*)) => {
        $(#[$doc])*
        pub fn $name($($arg: usize),*) -> usize {
            unsafe extern "C" {
                fn $symbol($($arg: usize),*) -> usize;
            }
            // SAFETY: the function has this signature; it accesses no memory but what its description says.
            unsafe { $symbol($($arg),*) }
        }
    };
}

target!(
    /// Returns `a + 1`; the first instruction runs out of line.
    plain as target_plain(a)
);
target!(
    /// Returns the word at `address`, which has to be mapped, or appear on demand.
    load as target_load(address)
);
target!(
    /// Returns `a + 1`; the first instruction is emulated.
    jump as target_jump(a)
);
target!(
    /// Returns `a + 2`; calls [`plain`] on the way.
    call as target_call(a)
);
target!(
    /// Enables interrupts and returns `a`: an interrupt that waits comes while it returns.
    enable as target_enable(a)
);
target!(
    /// Returns 7 after a breakpoint that nobody planted.
    foreign as target_foreign()
);
