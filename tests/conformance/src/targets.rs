//! The functions that the suite probes. Each is a symbol of the program; hosts find them by name.

pub use crate::borrow::conformance_borrow;
use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Calls a target through a pointer that the compiler cannot see through.
macro_rules! call {
    ($target:ident($($argument:expr),*)) => {
        core::hint::black_box($crate::targets::$target as extern "C" fn($($crate::targets::call!(@word $argument)),*) -> usize)($($argument),*)
    };
    (@word $argument:expr) => { usize };
}
pub(crate) use call;

/// How often the body of [`conformance_add`] ran.
pub static ADDED: AtomicUsize = AtomicUsize::new(0);

/// `a + b`, and counts its calls.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_add(a: usize, b: usize) -> usize {
    ADDED.fetch_add(1, Relaxed);
    a.wrapping_add(b)
}

/// `a - b`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_sub(a: usize, b: usize) -> usize {
    black_box(a).wrapping_sub(b)
}

/// `a * b`: called by handlers.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_mul(a: usize, b: usize) -> usize {
    black_box(a).wrapping_mul(b)
}

/// Functions of two arguments that nothing else probes, so that their places have no history: name, function,
/// and what they add.
macro_rules! fresh {
    ($($name:ident $constant:literal),*) => {
        $(
            /// `3 * a + b`, and a constant.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub extern "C" fn $name(a: usize, b: usize) -> usize {
                black_box(a).wrapping_mul(3).wrapping_add(black_box(b)).wrapping_add($constant)
            }
        )*

        /// Places without a history; each is for one use.
        pub static FRESH: &[Fresh] =
            &[$(Fresh { name: stringify!($name), function: $name, constant: $constant }),*];
    };
}

/// One of [`FRESH`].
#[derive(Clone, Copy, Debug)]
pub struct Fresh {
    /// Its symbol.
    pub name: &'static str,
    /// To be called through a pointer that the compiler cannot see through.
    pub function: extern "C" fn(usize, usize) -> usize,
    constant: usize,
}

impl Fresh {
    /// Calls it; whether the result is right.
    pub fn is_right(&self, a: usize, b: usize) -> bool {
        black_box(self.function)(a, b) == a.wrapping_mul(3).wrapping_add(b).wrapping_add(self.constant)
    }
}

fresh! {
    conformance_fresh_0 100, conformance_fresh_1 101, conformance_fresh_2 102, conformance_fresh_3 103,
    conformance_fresh_4 104, conformance_fresh_5 105, conformance_fresh_6 106, conformance_fresh_7 107,
    conformance_fresh_8 108, conformance_fresh_9 109, conformance_fresh_10 110, conformance_fresh_11 111
}

/// `n!`, by recursion that cannot become a loop.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_factorial(n: usize) -> usize {
    if n < 2 { 1 } else { black_box(n).wrapping_mul(call!(conformance_factorial(n - 1))) }
}

/// Calls [`conformance_inner`] with its argument plus one and adds a hundred.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_outer(n: usize) -> usize {
    call!(conformance_inner(n + 1)).wrapping_add(100)
}

/// Ten times its argument.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_inner(n: usize) -> usize {
    black_box(n).wrapping_mul(10)
}

/// A tail call of [`conformance_inner`] (a jump, where the compiler makes it one).
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_tail(n: usize) -> usize {
    conformance_inner(n)
}

/// Ten words, of which some are passed on the stack on every architecture: `sum(position * argument)`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_ten(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
) -> usize {
    let words = black_box([a, b, c, d, e, f, g, h, i, j]);
    words.iter().zip(1..).fold(0, |sum, (word, position)| sum + word * position)
}

/// A loop with a branch, a call and memory in it: the sum of the bytes of a pseudo-random sequence that
/// starts with `seed`, over `rounds` steps.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_mix(seed: usize, rounds: usize) -> usize {
    let mut table = [0_u8; 64];
    let mut state = seed as u32 | 1;
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let slot = &mut table[state as usize % 64];
        *slot = slot.wrapping_add((state >> 24) as u8);
        if state & 1 == 0 {
            *slot = call!(conformance_inner(usize::from(*slot))) as u8;
        }
    }
    table.iter().fold(0, |sum, &byte| (sum << 1) ^ usize::from(byte))
}

/// Twice its argument, under the name of a part that is jumped to: where a host knows better, it is a
/// function.
#[unsafe(export_name = "conformance_part.cold")]
#[inline(never)]
pub extern "C" fn conformance_part(n: usize) -> usize {
    black_box(n).wrapping_mul(2)
}

/// Calls the function at `function` with `n` and adds one.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn conformance_through(function: usize, n: usize) -> usize {
    // SAFETY: callers pass an `extern "C" fn(usize) -> usize` as a number.
    let function = unsafe { core::mem::transmute::<usize, extern "C" fn(usize) -> usize>(function) };
    function(n).wrapping_add(1)
}
