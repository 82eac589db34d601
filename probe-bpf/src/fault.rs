//! Faults: why a run ended before its EXIT.

use core::fmt;

/// Why a run ended before its EXIT. Its counts up to then stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The index of the instruction.
    pub pc: usize,
    /// What was wrong.
    pub cause: Cause,
}

/// What ends a run before its EXIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// An access outside of all regions.
    OutOfBounds {
        /// The program's address.
        addr: u64,
        /// How many bytes.
        len: usize,
    },
    /// An access to a map's value that its length does not divide.
    Unaligned {
        /// The program's address.
        addr: u64,
        /// How many bytes.
        len: usize,
    },
    /// A store into the context.
    ReadOnly {
        /// The program's address.
        addr: u64,
    },
    /// All instructions that were allowed have been executed.
    BudgetSpent,
    /// A helper that does not serve this kind of map, or an index without a map.
    WrongMap {
        /// The helper.
        helper: i32,
        /// r1.
        map: u64,
    },
    /// A helper of the caller's that has ended the program, or no longer exists.
    Helper {
        /// Its number.
        number: i32,
    },
    /// Not reached by any program that was loaded.
    NoInstruction,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "instruction {}: ", self.pc)?;
        match self.cause {
            Cause::OutOfBounds { addr, len } => write!(f, "{len} bytes at {addr:#x} are in no region"),
            Cause::Unaligned { addr, len } => write!(f, "{len} bytes of a map at {addr:#x} are not aligned"),
            Cause::ReadOnly { addr } => write!(f, "the context at {addr:#x} cannot be written"),
            Cause::BudgetSpent => f.write_str("no instruction more may be executed"),
            Cause::WrongMap { helper, map } => write!(f, "helper {helper:#x} is not for map {map}"),
            Cause::Helper { number } => write!(f, "helper {number} has ended the program"),
            Cause::NoInstruction => f.write_str("there is no instruction"),
        }
    }
}

impl core::error::Error for Fault {}
