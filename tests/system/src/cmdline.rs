//! The kernel's command line, written into the image by the runner.

use core::arch::global_asm;

const LEN_BYTES: usize = 1024;

global_asm!(
    ".section .cmdline, \"a\"",
    ".globl __cmdline",
    "__cmdline: .skip {len}",
    ".text",
    len = const LEN_BYTES,
);

/// The words of the command line.
pub fn words() -> impl Iterator<Item = &'static str> {
    unsafe extern "C" {
        static __cmdline: [u8; LEN_BYTES];
    }
    // SAFETY: the section is as long as its type says, and never changes while the kernel runs.
    let bytes = unsafe { &__cmdline };
    let len = bytes.iter().position(|&b| b == 0).unwrap_or(LEN_BYTES);
    str::from_utf8(&bytes[..len]).unwrap_or_default().split_ascii_whitespace()
}

/// The value of the word `key=value`.
pub fn value(key: &str) -> Option<&'static str> {
    words().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}
