//! The functions that are probed: one per case, so that all probes are planted at once and the rounds of all
//! cases interleave.

use machine::{FIELD_RETURN_LEN, breakpoint, slotted};
use std::arch::asm;

/// [`FIELD_FUNCTIONS`] functions back to back, each of [`FIELD_INSNS`] instructions and the one that returns.
macro_rules! field {
    ($insn:literal, $return:literal) => {
        std::arch::global_asm!(
            ".macro bench_field_function",
            ".type bench_field_\\@, %function",
            "bench_field_\\@:",
            concat!(".rept 100\n", $insn, "\n.endr"),
            $return,
            ".size bench_field_\\@, . - bench_field_\\@",
            ".endm",
            ".globl bench_field",
            "bench_field:",
            ".rept 1000",
            "bench_field_function",
            ".endr",
        );
    };
}

probe_arch_native::native_module!(pub(crate) mod machine by family);

/// A function of two words, as all victims are.
pub(crate) type Victim = extern "C" fn(usize, usize) -> usize;

/// Defines victims whose first instruction is run in a slot. The constant keeps the linker from folding them
/// into one.
macro_rules! adders {
    ($($name:ident $constant:literal),* $(,)?) => {$(
        #[doc = concat!("The sum of its arguments and ", $constant, ".")]
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $name(mut a: usize, b: usize) -> usize {
            slotted!(a);
            a.wrapping_add(b).wrapping_add($constant)
        }
    )*};
}

adders! {
    bench_bare 1, bench_boosted 2, bench_post 3, bench_j 4, bench_r 5, bench_kr 6, bench_jr 7, bench_many 8,
    bench_uprobe_stepped 9, bench_alone 10, bench_k_optimised 11, bench_k_optimised_simd 12, bench_r_optimised 13,
    bench_r_optimised_simd 14, bench_k_optimised_post 15, bench_k_optimised_post_simd 16, bench_hook 17, bench_kprobe_crate 18, bench_frida 19,
    bench_r_optimised_entry 22,
}

/// Victims whose first instruction does nothing: the kernel emulates it in a uprobe.
macro_rules! nops {
    ($($name:ident $constant:literal),*) => {$(
        #[doc = concat!("A `nop`, then the sum of its arguments and ", $constant, ".")]
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $name(a: usize, b: usize) -> usize {
            // SAFETY: it does nothing.
            unsafe { asm!("nop", options(nomem, nostack)) };
            a.wrapping_add(b).wrapping_add($constant)
        }
    )*};
}

nops! { bench_uprobe_nop 20, bench_uretprobe_nop 21 }

/// A tail call: its first and only instruction is a jump, which every backend simulates.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn bench_emulated(a: usize, b: usize) -> usize {
    bench_bare(a, b)
}

/// One trap.
#[inline(never)]
pub(crate) extern "C" fn floor_one(a: usize, b: usize) -> usize {
    breakpoint();
    a.wrapping_add(b)
}

/// Two traps.
#[inline(never)]
pub(crate) extern "C" fn floor_two(a: usize, b: usize) -> usize {
    breakpoint();
    breakpoint();
    a.wrapping_add(b).wrapping_add(30)
}

/// How many functions [`field`] has.
pub(crate) const FIELD_FUNCTIONS: usize = 1_000;
/// How many instructions each of them has, all of which can be boosted; a return follows.
pub(crate) const FIELD_INSNS: usize = 100;

/// The length in bytes of one instruction of the field.
pub(crate) const FIELD_INSN_LEN: usize = 4;

unsafe extern "C" {
    /// The first byte of the field: [`FIELD_FUNCTIONS`] functions back to back.
    static bench_field: u8;
}

/// The addresses of all 100 000 places of the field.
pub(crate) fn field() -> impl Iterator<Item = usize> {
    let start = &raw const bench_field as usize;
    let function_len = FIELD_INSNS * FIELD_INSN_LEN + FIELD_RETURN_LEN;
    (0..FIELD_FUNCTIONS)
        .flat_map(move |f| (0..FIELD_INSNS).map(move |i| start + f * function_len + i * FIELD_INSN_LEN))
}
