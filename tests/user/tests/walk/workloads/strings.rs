//! The repeated string instructions of x86: one hit for each time that one is executed, however many elements
//! it moves, also none.

use super::Output;
use core::arch::global_asm;
use std::hint::black_box;

/// The function's text. `$wide` is the widest move of the mode.
macro_rules! strings {
    ($enter:literal, $wide:literal, $a:literal, $b:literal, $c:literal, $d:literal, $si:literal, $di:literal, $bp:literal) => {
        concat!(
            ".pushsection .text.walk_strings, \"ax\", @progbits\n",
            ".globl walk_strings\n.type walk_strings, @function\nwalk_strings:\n",
            "push ",
            $b,
            "\npush ",
            $bp,
            "\npush ",
            $si,
            "\npush ",
            $di,
            "\n",
            $enter,
            "\n",
            // Forwards, as many as wanted; then none.
            "cld\nmov ",
            $di,
            ", ",
            $b,
            "\nlea ",
            $si,
            ", [",
            $b,
            " + 256]\nmov ",
            $c,
            ", ",
            $d,
            "\n",
            "rep movsb\nrep movsb\nmov ",
            $bp,
            ", ",
            $di,
            "\nsub ",
            $bp,
            ", ",
            $si,
            "\n",
            // Fills, in three widths.
            "mov eax, 0x5a6b7c8d\nlea ",
            $di,
            ", [",
            $b,
            " + 128]\n",
            "mov ",
            $c,
            ", ",
            $d,
            "\nshr ",
            $c,
            ", 2\nrep stosd\n",
            "mov ",
            $c,
            ", ",
            $d,
            "\nshr ",
            $c,
            ", 1\nand ",
            $c,
            ", 7\nrep stosw\nrep stosb\n",
            // Comparisons that end early: the counter tells where.
            "mov ",
            $si,
            ", ",
            $b,
            "\nlea ",
            $di,
            ", [",
            $b,
            " + 256]\nlea ",
            $c,
            ", [",
            $d,
            " + 1]\n",
            "repe cmpsb\nrol ",
            $bp,
            ", 7\nadd ",
            $bp,
            ", ",
            $c,
            "\n",
            "mov ",
            $di,
            ", ",
            $b,
            "\nlea ",
            $c,
            ", [",
            $d,
            " + 2]\nmov al, 0x17\n",
            "repne scasb\nrol ",
            $bp,
            ", 7\nadd ",
            $bp,
            ", ",
            $c,
            "\n",
            "mov ",
            $di,
            ", ",
            $b,
            "\nmov ",
            $c,
            ", ",
            $d,
            "\nmov al, [",
            $b,
            "]\n",
            "repe scasb\nrol ",
            $bp,
            ", 7\nadd ",
            $bp,
            ", ",
            $c,
            "\n",
            "lea ",
            $si,
            ", [",
            $b,
            " + 1]\nlea ",
            $di,
            ", [",
            $b,
            " + 257]\nmov ",
            $c,
            ", ",
            $d,
            "\n",
            "repne cmpsw\nrol ",
            $bp,
            ", 7\nadd ",
            $bp,
            ", ",
            $c,
            "\n",
            // Loads: the last one stays.
            "mov ",
            $si,
            ", ",
            $b,
            "\nlea ",
            $c,
            ", [",
            $d,
            " + 1]\nrep lodsw\nadd ",
            $bp,
            ", ",
            $a,
            "\n",
            // Backwards, over itself.
            "std\nlea ",
            $si,
            ", [",
            $b,
            " + ",
            $d,
            "]\nlea ",
            $di,
            ", [",
            $b,
            " + ",
            $d,
            " + 5]\n",
            "mov ",
            $c,
            ", ",
            $d,
            "\nrep movsb\ncld\n",
            // The widest, onto an odd address.
            "lea ",
            $si,
            ", [",
            $b,
            " + 256]\nlea ",
            $di,
            ", [",
            $b,
            " + 129]\nmov ",
            $c,
            ", ",
            $d,
            "\nshr ",
            $c,
            ", 3\n",
            "rep ",
            $wide,
            "\nmov ",
            $a,
            ", ",
            $bp,
            "\n",
            "pop ",
            $di,
            "\npop ",
            $si,
            "\npop ",
            $bp,
            "\npop ",
            $b,
            "\nret\n",
            ".size walk_strings, . - walk_strings\n.popsection"
        )
    };
}

#[cfg(target_arch = "x86_64")]
global_asm!(strings!("mov rbx, rdi\nmov rdx, rsi", "movsq", "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp"));
#[cfg(target_arch = "x86")]
global_asm!(strings!("mov ebx, ecx", "movsd", "eax", "ebx", "ecx", "edx", "esi", "edi", "ebp"));

#[cfg(target_arch = "x86_64")]
unsafe extern "sysv64" {
    /// Moves, fills, compares and scans the 512 bytes at `buffer`, about `len` (at most 64) at a time.
    fn walk_strings(buffer: *mut u8, len: usize) -> usize;
}
#[cfg(target_arch = "x86")]
unsafe extern "fastcall" {
    /// Moves, fills, compares and scans the 512 bytes at `buffer`, about `len` (at most 64) at a time.
    #[link_name = "\x01walk_strings"]
    fn walk_strings(buffer: *mut u8, len: usize) -> usize;
}

pub(super) fn strings(output: &mut Output) {
    let mut buffer: [u8; 512] = std::array::from_fn(|index| (index * 7 % 251) as u8);
    for len in [0, 1, 2, 7, 40, 64] {
        // SAFETY: it stays within 512 bytes for lengths up to 64, and keeps the registers that the ABI says.
        let sum = unsafe { walk_strings(buffer.as_mut_ptr(), black_box(len)) };
        output.push_word(sum as u32);
    }
    buffer.iter().for_each(|&byte| output.push(byte));
}
