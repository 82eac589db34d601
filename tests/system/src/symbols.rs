//! The kernel's symbol table, its kallsyms, written into the image by the runner (the layout:
//! `runner/src/image.rs`).

use core::arch::global_asm;
use probe_kernel_kit::symbols;
use probe_kernel_kit::symbols::Table as _;

/// A function of the kernel.
pub type Function = symbols::Function<'static>;

const LEN_BYTES: usize = 256 * 1024;

global_asm!(
    ".section .kallsyms, \"a\"",
    ".balign 16",
    ".globl __kallsyms",
    "__kallsyms: .skip {len}",
    ".text",
    len = const LEN_BYTES,
);

/// Whether a breakpoint in it could be hit while a breakpoint is handled: trap entry, the probes' own crates,
/// and what they call.
pub fn is_blacklisted(function: &Function) -> bool {
    unsafe extern "C" {
        static __entry_start: u8;
        static __entry_end: u8;
    }
    const INSIDE: [&str; 9] = [
        "probe_core::",
        "probe_arch_",
        "probe_ppc_decode::",
        "probe_x86_decode::",
        "compiler_builtins::",
        "kernel::arch::",
        "kernel::host::",
        "probe_kernel_kit::",
        "kernel::trap::",
    ];
    const CALLED: [&str; 8] =
        ["core::", "<core::", "kernel::task::current", "memcpy", "memmove", "memset", "memcmp", "bcmp"];
    ((&raw const __entry_start).addr()..(&raw const __entry_end).addr()).contains(&function.start)
        || INSIDE.iter().any(|path| function.name.contains(path))
        || CALLED.iter().any(|start| function.name.starts_with(start))
}

/// The words of the table.
struct Table(&'static [u8]);

/// The kernel's.
fn table() -> &'static Table {
    unsafe extern "C" {
        static __kallsyms: [u8; LEN_BYTES];
    }
    static TABLE: Table = Table(
        // SAFETY: the section is as long as its type says, and never changes while the kernel runs.
        unsafe { &__kallsyms },
    );
    &TABLE
}

impl Table {
    fn word(&self, index: usize) -> usize {
        self.0
            .get(index * 4..)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |word| u32::from_ne_bytes(*word) as usize)
    }

    fn function(&self, index: usize) -> Function {
        let word = |i| self.word(1 + index * 5 + i);
        let name = self.0.get(word(3)..word(3) + word(4)).and_then(|name| str::from_utf8(name).ok());
        Function { start: word(0), len_bytes: word(1), local_entry: word(2) as u8, name: name.unwrap_or("?") }
    }
}

impl symbols::Table for Table {
    fn len(&self) -> usize {
        self.word(0)
    }

    fn by_address(&self, index: usize) -> Function {
        self.function(index)
    }

    fn start(&self, index: usize) -> usize {
        self.word(1 + index * 5)
    }

    fn by_name(&self, rank: usize) -> Function {
        self.function(self.word(1 + self.len() * 5 + rank))
    }
}

/// The functions called `name`.
pub fn named(name: &str) -> impl Iterator<Item = Function> {
    table().named(name)
}

/// The function that covers `addr`.
pub fn covering(addr: usize) -> Option<Function> {
    table().covering(addr)
}

/// All functions, in the order of their addresses.
pub fn all() -> impl Iterator<Item = Function> {
    table().all()
}
