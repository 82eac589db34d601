//! Functions whose instructions the checks know, in each machine's assembly (`targets.s`).

use core::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(include_str!("arch/x86/targets64.s"), options(att_syntax));
#[cfg(target_arch = "x86")]
global_asm!(include_str!("arch/x86/targets32.s"), options(att_syntax));
#[cfg(target_arch = "aarch64")]
global_asm!(include_str!("arch/aarch64/targets.s"));
#[cfg(target_arch = "powerpc64")]
global_asm!(
    include_str!("arch/ppc64/function.s"),
    include_str!("arch/ppc64/targets.s"),
    elfv1 = const cfg!(target_endian = "big") as i32,
);

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
    /// Returns 7 after a breakpoint that nobody planted.
    foreign as target_foreign()
);
