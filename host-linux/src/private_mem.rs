//! Private `memcpy`, `memmove`, `memset`, `memcmp`, `bcmp`: hidden symbols, so that this object's compiled
//! code does not call libc's, and libc's can be probed like all other code.
//!
//! They are plain string instructions or byte loops: the hit path copies a few dozen words.

/// The functions, whose labels are among the lines, each a symbol of this object alone.
macro_rules! string_functions {
    ($($line:expr),* $(,)?) => {
        core::arch::global_asm!(
            ".pushsection .text.probe_host_linux_mem,\"ax\",@progbits",
            ".balign 4",
            ".irp name, memcpy, memmove, memset, memcmp, bcmp",
            ".hidden \\name",
            ".globl \\name",
            ".type \\name, %function",
            ".endr",
            $($line,)*
            ".popsection",
        );
    };
}

probe_arch_native::native_module!(mod functions);
