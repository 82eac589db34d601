//! The kernel's symbol table, its kallsyms, written into the image by the runner (the layout:
//! `runner/src/image.rs`).

use core::arch::global_asm;
use core::cmp::Ordering;
use probe_core::CodeAddr;
use probe_core::host::Symbol;

const LEN_BYTES: usize = 256 * 1024;

global_asm!(
    ".section .kallsyms, \"a\"",
    ".balign 16",
    ".globl __kallsyms",
    "__kallsyms: .skip {len}",
    ".text",
    len = const LEN_BYTES,
);

/// A function of the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// The distance from its global to its local entry (ppc64 ELFv2).
    pub local_entry: u8,
    /// Its demangled name.
    pub name: &'static str,
}

impl Function {
    /// As the probes want it.
    pub fn to_symbol(self) -> Symbol<'static> {
        Symbol {
            name: self.name,
            start: CodeAddr::new(self.start),
            len_bytes: self.len_bytes,
            module: None,
            local_entry: self.local_entry,
        }
    }

    /// Whether a breakpoint in it could be hit while a breakpoint is handled: trap entry, the probes' own
    /// crates, and what they call.
    pub fn is_blacklisted(&self) -> bool {
        unsafe extern "C" {
            static __entry_start: u8;
            static __entry_end: u8;
        }
        const INSIDE: [&str; 8] = [
            "probe_core::",
            "probe_arch_",
            "probe_x86_decode::",
            "compiler_builtins::",
            "kernel::arch::",
            "kernel::host::",
            "probe_kernel_kit::",
            "kernel::trap::",
        ];
        const CALLED: [&str; 8] =
            ["core::", "<core::", "kernel::task::current", "memcpy", "memmove", "memset", "memcmp", "bcmp"];
        ((&raw const __entry_start).addr()..(&raw const __entry_end).addr()).contains(&self.start)
            || INSIDE.iter().any(|path| self.name.contains(path))
            || CALLED.iter().any(|start| self.name.starts_with(start))
    }
}

/// The words of the table.
struct Table(&'static [u8]);

impl Table {
    fn open() -> Self {
        unsafe extern "C" {
            static __kallsyms: [u8; LEN_BYTES];
        }
        // SAFETY: the section is as long as its type says, and never changes while the kernel runs.
        Self(unsafe { &__kallsyms })
    }

    fn word(&self, index: usize) -> usize {
        self.0
            .get(index * 4..)
            .and_then(|bytes| bytes.first_chunk())
            .map_or(0, |word| u32::from_ne_bytes(*word) as usize)
    }

    fn len(&self) -> usize {
        self.word(0)
    }

    fn start(&self, index: usize) -> usize {
        self.word(1 + index * 5)
    }

    fn function(&self, index: usize) -> Function {
        let word = |i| self.word(1 + index * 5 + i);
        let name = self.0.get(word(3)..word(3) + word(4)).and_then(|name| str::from_utf8(name).ok());
        Function { start: word(0), len_bytes: word(1), local_entry: word(2) as u8, name: name.unwrap_or("?") }
    }

    fn by_name(&self, rank: usize) -> Function {
        self.function(self.word(1 + self.len() * 5 + rank))
    }
}

/// The first index from 0 to `len` for which `is_before` does not hold.
fn partition(len: usize, mut is_before: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The functions called `name`.
pub fn named(name: &str) -> impl Iterator<Item = Function> {
    let table = Table::open();
    let first = partition(table.len(), |rank| table.by_name(rank).name.cmp(name) == Ordering::Less);
    (first..table.len())
        .map(move |rank| table.by_name(rank))
        .take_while(move |function| function.name == name)
}

/// The function that covers `addr`.
pub fn covering(addr: usize) -> Option<Function> {
    let table = Table::open();
    let last = partition(table.len(), |index| table.start(index) <= addr).checked_sub(1)?;
    // Of functions with the same start the longest comes first.
    let start = table.start(last);
    let first = (0..last).rev().take_while(|index| table.start(*index) == start).last().unwrap_or(last);
    let function = table.function(first);
    (addr - start < function.len_bytes).then_some(function)
}

/// All functions, in the order of their addresses.
pub fn all() -> impl Iterator<Item = Function> {
    let table = Table::open();
    (0..table.len()).map(move |index| table.function(index))
}
