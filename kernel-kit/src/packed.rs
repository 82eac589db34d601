//! The functions of a kernel from a compressed table: [`Host::find_symbols`], [`Host::symbol_at`].
//!
//! [`pack`](crate::pack) makes the table when the kernel is built; the kernel has it as bytes and needs no
//! memory to read it. Names are made of tokens, as in Linux's kallsyms: a byte stands for a byte or for two
//! tokens, those pairs that are most frequent. A look-up by address takes as many steps as the logarithm of
//! the number of functions, and one by name as many names.
//!
//! ```text
//! word    "PKS1"
//! word    how many functions: n
//! 2 words the address that all others are distances from, low half first
//! 256 × 2 bytes: the pair that each byte stands for; for itself, if both are that byte
//! n words the distances of the functions' starts, ascending
//! n words their lengths; in the upper eight bits the distance to the local entry
//! n words the numbers of the functions in the order of their names
//! ⌈n / 16⌉ words: where in the names every sixteenth begins
//! names   each a length of two bytes and its tokens
//! ```
//! All numbers are little-endian, whatever the kernel is.
//!
//! [`Host::find_symbols`]: probe_core::host::Host::find_symbols
//! [`Host::symbol_at`]: probe_core::host::Host::symbol_at

use crate::symbols::{Function, partition};
use core::cmp::Ordering;

/// What a table begins with.
pub(crate) const MAGIC: [u8; 4] = *b"PKS1";
/// The most bytes of a name.
pub const MAX_NAME: usize = 511;
/// Where the pairs begin, in bytes.
pub(crate) const PAIRS_AT: usize = 16;
/// Where the functions' words begin.
pub(crate) const WORDS_AT: usize = PAIRS_AT + 512;
/// How many names there are for each mark.
pub(crate) const EACH: usize = 16;
/// How many bits of a length are its own.
pub(crate) const LEN_BITS: u32 = 24;
/// How deeply tokens may lie in one another.
pub(crate) const MAX_DEPTH: usize = 64;

/// A compressed table.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    bytes: &'a [u8],
    len: usize,
    base: usize,
}

impl<'a> Packed<'a> {
    /// The table in `bytes`; `None` if it is none, or shorter than it says.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut table = Self { bytes, len: 0, base: 0 };
        let is_packed = bytes.get(..4)? == MAGIC;
        table.len = table.word(4)?;
        let base = table.word(8)? as u64 | (table.word(12)? as u64) << 32;
        table.base = usize::try_from(base).ok()?;
        let words = table.len.checked_mul(12)?.checked_add(table.len.div_ceil(EACH).checked_mul(4)?)?;
        let is_whole = bytes.len() >= WORDS_AT.checked_add(words)?;
        (is_packed && is_whole).then_some(table)
    }

    /// How many functions there are.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `found` with the functions called `name`.
    pub fn named(&self, name: &str, mut found: impl FnMut(Function<'_>)) {
        let mut buffer = [0; MAX_NAME];
        let first = partition(self.len, |rank| self.compare(rank, name, &mut buffer) == Ordering::Less);
        for rank in first..self.len {
            if self.compare(rank, name, &mut buffer) != Ordering::Equal {
                break;
            }
            self.function(self.of_rank(rank), &mut buffer).into_iter().for_each(&mut found);
        }
    }

    /// Calls `found` with the function that covers `addr`, if there is one.
    pub fn covering(&self, addr: usize, found: impl FnOnce(Function<'_>)) {
        let behind = partition(self.len, |index| self.start(index) <= addr);
        let Some(mut index) = behind.checked_sub(1) else { return };
        // Of those that start at one address the longest comes first.
        while index > 0 && self.start(index - 1) == self.start(index) {
            index -= 1;
        }
        let mut buffer = [0; MAX_NAME];
        if let Some(function) = self.function(index, &mut buffer)
            && addr - function.start < function.len_bytes
        {
            found(function);
        }
    }

    /// Calls `found` with each function, in the order of their addresses.
    pub fn for_each(&self, mut found: impl FnMut(Function<'_>)) {
        let mut buffer = [0; MAX_NAME];
        for index in 0..self.len {
            self.function(index, &mut buffer).into_iter().for_each(&mut found);
        }
    }

    fn function<'b>(&self, index: usize, buffer: &'b mut [u8; MAX_NAME]) -> Option<Function<'b>> {
        let len = self.word(WORDS_AT + (self.len + index) * 4)?;
        Some(Function {
            start: self.start(index),
            len_bytes: len & ((1 << LEN_BITS) - 1),
            local_entry: (len >> LEN_BITS) as u8,
            name: str::from_utf8(self.name(index, buffer)?).ok()?,
        })
    }

    fn compare(&self, rank: usize, name: &str, buffer: &mut [u8; MAX_NAME]) -> Ordering {
        self.name(self.of_rank(rank), buffer).unwrap_or_default().cmp(name.as_bytes())
    }

    fn start(&self, index: usize) -> usize {
        self.base.wrapping_add(self.word(WORDS_AT + index * 4).unwrap_or_default())
    }

    fn of_rank(&self, rank: usize) -> usize {
        self.word(WORDS_AT + (2 * self.len + rank) * 4).unwrap_or_default()
    }

    /// The name of number `index`.
    fn name<'b>(&self, index: usize, buffer: &'b mut [u8; MAX_NAME]) -> Option<&'b [u8]> {
        let names = WORDS_AT + self.len * 12;
        let mut at = names + self.len.div_ceil(EACH) * 4 + self.word(names + index / EACH * 4)?;
        let len_at = |at: usize| Some(usize::from(u16::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?)));
        for _ in 0..index % EACH {
            at = at.checked_add(2 + len_at(at)?)?;
        }
        let tokens = self.bytes.get(at + 2..)?.get(..len_at(at)?)?;
        let mut len = 0;
        for &token in tokens {
            self.expand(token, buffer, &mut len)?;
        }
        buffer.get(..len)
    }

    /// Appends what a token stands for.
    fn expand(&self, token: u8, buffer: &mut [u8; MAX_NAME], len: &mut usize) -> Option<()> {
        let mut waiting = [0; MAX_DEPTH];
        let (mut depth, mut token) = (0, token);
        loop {
            let [left, right] = *self.bytes.get(PAIRS_AT + usize::from(token) * 2..)?.first_chunk()?;
            if left == token && right == token {
                *buffer.get_mut(*len)? = token;
                *len += 1;
                let Some(next) = usize::checked_sub(depth, 1) else { return Some(()) };
                (depth, token) = (next, *waiting.get(next)?);
            } else {
                *waiting.get_mut(depth)? = right;
                (depth, token) = (depth + 1, left);
            }
        }
    }

    fn word(&self, at: usize) -> Option<usize> {
        Some(u32::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?) as usize)
    }
}
