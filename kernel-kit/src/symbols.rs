//! The functions of a kernel by name and by address: [`Host::find_symbols`], [`Host::symbol_at`].
//!
//! A [`Table`] is anything that has its functions in the order of their addresses, and their numbers in the
//! order of their names: a look-up takes as many steps as the logarithm of their count. [`elf`](crate::elf)
//! makes one of an ELF file that is in memory.
//!
//! [`Host::find_symbols`]: probe_core::host::Host::find_symbols
//! [`Host::symbol_at`]: probe_core::host::Host::symbol_at

use core::cmp::Ordering;
use probe_core::CodeAddr;
use probe_core::host::Symbol;

/// A function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its first byte; on ppc64 ELFv1 the code, not the descriptor.
    pub start: usize,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// The distance from its global to its local entry (ppc64 ELFv2).
    pub local_entry: u8,
    /// Its name.
    pub name: &'a str,
}

impl<'a> Function<'a> {
    /// As the probes want it: of the kernel itself.
    pub const fn to_symbol(self) -> Symbol<'a> {
        Symbol {
            name: self.name,
            start: CodeAddr::new(self.start),
            len_bytes: self.len_bytes,
            module: None,
            local_entry: self.local_entry,
        }
    }
}

/// Functions that can be found.
pub trait Table {
    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `index` in the order of addresses; of those that start at one address the longest comes first.
    fn by_address(&self, index: usize) -> Function<'_>;

    /// Where number `index` in that order starts.
    fn start(&self, index: usize) -> usize {
        self.by_address(index).start
    }

    /// Number `rank` in the order of names.
    fn by_name(&self, rank: usize) -> Function<'_>;

    /// All functions, in the order of their addresses.
    fn all(&self) -> impl Iterator<Item = Function<'_>> {
        (0..self.len()).map(|index| self.by_address(index))
    }

    /// The functions called `name`.
    fn named(&self, name: &str) -> impl Iterator<Item = Function<'_>> {
        let first = partition(self.len(), |rank| self.by_name(rank).name.cmp(name) == Ordering::Less);
        (first..self.len()).map(|rank| self.by_name(rank)).take_while(move |function| function.name == name)
    }

    /// The function that covers `addr`.
    fn covering(&self, addr: usize) -> Option<Function<'_>> {
        let last = partition(self.len(), |index| self.start(index) <= addr).checked_sub(1)?;
        let start = self.start(last);
        let first = (0..last).rev().take_while(|index| self.start(*index) == start).last().unwrap_or(last);
        let function = self.by_address(first);
        (addr - start < function.len_bytes).then_some(function)
    }
}

/// The first index from 0 to `len` for which `is_before` does not hold.
pub(crate) fn partition(len: usize, mut is_before: impl FnMut(usize) -> bool) -> usize {
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
