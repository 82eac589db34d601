//! What a backend tells this crate of its word size, byte order and reasons.

use crate::Reason;
use probe_core::arch::{MemFault, Memory};
use probe_core::error::Refusal;

/// A word size and a byte order, with the reasons that a backend gives.
pub trait Mode: 'static {
    /// Whether there are prefixed instructions and those of 64-bit implementations alone.
    const IS_64_BIT: bool;
    /// The size of a word of the stack in bytes: 8 or 4.
    const WORD: usize = if Self::IS_64_BIT { 8 } else { 4 };

    /// An instruction word from memory.
    fn insn(bytes: [u8; 4]) -> u32;

    /// An instruction word as it lies in memory.
    fn insn_bytes(word: u32) -> [u8; 4];

    /// A word of the stack in the byte order of the probed program.
    ///
    /// # Errors
    /// It cannot be read.
    fn load<M: Memory>(memory: &M, at: usize) -> Result<u64, MemFault>;

    /// The backend's code and sentence.
    fn refusal(reason: Reason) -> Refusal;
}
