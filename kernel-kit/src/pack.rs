//! Makes the table of [`packed`](crate::packed): in a build script, or in a tool that completes an image.
//!
//! A kernel is linked without its table first, its functions are read from that file, and it is linked once
//! more with the table, whose bytes do not move the text if they lie behind it:
//!
//! ```
//! use probe_kernel_kit::pack::{Named, assembly, pack};
//!
//! let functions = [Named { start: 0x1000, len_bytes: 16, local_entry: 0, name: "do_fork" }];
//! let table = pack(&functions)?;
//! let source = assembly(&table, "kernel_symbols"); // for a kernel in C, or for `global_asm!`
//! # assert!(source.contains("kernel_symbols:"));
//! # Ok::<(), probe_kernel_kit::pack::PackError>(())
//! ```

use crate::packed::{EACH, LEN_BITS, MAGIC, MAX_DEPTH, MAX_NAME};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt::{self, Write};

/// A function that is to be found by its name and by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Its first byte; on ppc64 ELFv1 the code, not the descriptor.
    pub start: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The distance from its global to its local entry (ppc64 ELFv2).
    pub local_entry: u8,
    /// Its name.
    pub name: &'a str,
}

/// Why functions cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackError {
    /// The function of this name lies too far from the first one, or is too long.
    TooFar(String),
    /// A name is longer than [`MAX_NAME`].
    TooLong(String),
    /// There are too many.
    TooMany,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFar(name) => write!(f, "{name} lies 4 GiB from the first function, or is 16 MiB long"),
            Self::TooLong(name) => write!(f, "a name has more than {MAX_NAME} bytes: {name}"),
            Self::TooMany => f.write_str("there are too many functions"),
        }
    }
}

impl core::error::Error for PackError {}

/// The table of `functions`, in whatever order they are.
///
/// # Errors
/// One of them has no place in such a table.
pub fn pack(functions: &[Named<'_>]) -> Result<Vec<u8>, PackError> {
    let mut functions = functions.to_vec();
    // Of those that start at one address the longest comes first.
    functions.sort_by_key(|function| (function.start, Reverse(function.len_bytes), function.name));
    let count = u32::try_from(functions.len()).map_err(|_| PackError::TooMany)?;
    let base = functions.first().map_or(0, |function| function.start);
    let mut ranks: Vec<u32> = (0..count).collect();
    ranks.sort_by_key(|&index| (functions[index as usize].name, index));
    let mut names: Vec<Vec<u8>> =
        functions.iter().map(|function| function.name.as_bytes().to_vec()).collect();
    if let Some(function) = functions.iter().find(|function| function.name.len() > MAX_NAME) {
        return Err(PackError::TooLong(function.name.into()));
    }
    let pairs = compress(&mut names);
    let mut table = MAGIC.to_vec();
    table.extend(count.to_le_bytes());
    table.extend(base.to_le_bytes());
    table.extend(pairs.as_flattened());
    for function in &functions {
        let too_far = |_| PackError::TooFar(function.name.into());
        table.extend(u32::try_from(function.start - base).map_err(too_far)?.to_le_bytes());
    }
    for function in &functions {
        if function.len_bytes >> LEN_BITS != 0 {
            return Err(PackError::TooFar(function.name.into()));
        }
        let len = function.len_bytes as u32 | u32::from(function.local_entry) << LEN_BITS;
        table.extend(len.to_le_bytes());
    }
    table.extend(ranks.iter().flat_map(|rank| rank.to_le_bytes()));
    let mut at = 0_u32;
    for group in names.chunks(EACH) {
        table.extend(at.to_le_bytes());
        let len: usize = group.iter().map(|name| 2 + name.len()).sum();
        at = u32::try_from(len).ok().and_then(|len| at.checked_add(len)).ok_or(PackError::TooMany)?;
    }
    for name in &names {
        table.extend((name.len() as u16).to_le_bytes());
        table.extend(name);
    }
    Ok(table)
}

/// The table as assembly for the section `.rodata`, under a name; `NAME_end` is its end. GNU's assembler
/// takes it for every architecture.
pub fn assembly(table: &[u8], name: &str) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, ".section .rodata, \"a\"\n.balign 4\n.globl {name}, {name}_end\n{name}:");
    for line in table.chunks(16) {
        let bytes: Vec<String> = line.iter().map(|byte| alloc::format!("{byte}")).collect();
        let _ = writeln!(text, ".byte {}", bytes.join(","));
    }
    let _ = writeln!(text, "{name}_end:\n.previous");
    text
}

/// Replaces the most frequent pairs by bytes that no name has; returns what each byte stands for.
fn compress(names: &mut [Vec<u8>]) -> Vec<[u8; 2]> {
    let mut pairs: Vec<[u8; 2]> = (0..=u8::MAX).map(|byte| [byte; 2]).collect();
    let mut depths = vec![0_usize; 256];
    let mut counts = vec![0_u32; 1 << 16];
    let mut is_used = [false; 256];
    names.iter().flatten().for_each(|&byte| is_used[usize::from(byte)] = true);
    let unused: Vec<u8> = (0..=u8::MAX).filter(|&byte| !is_used[usize::from(byte)]).collect();
    for token in unused {
        counts.fill(0);
        for pair in names.iter().flat_map(|name| name.windows(2)) {
            counts[usize::from(u16::from_be_bytes([pair[0], pair[1]]))] += 1;
        }
        let depth = |pair: [u8; 2]| 1 + depths[usize::from(pair[0])].max(depths[usize::from(pair[1])]);
        let found = counts.iter().zip(0..=u16::MAX).map(|(&count, pair)| (count, pair.to_be_bytes()));
        let worth = found.filter(|&(count, pair)| count > 1 && depth(pair) < MAX_DEPTH);
        let Some((_, pair)) = worth.max_by_key(|&(count, pair)| (count, Reverse(pair))) else { break };
        depths[usize::from(token)] = depth(pair);
        pairs[usize::from(token)] = pair;
        names.iter_mut().for_each(|name| replace(name, pair, token));
    }
    pairs
}

fn replace(name: &mut Vec<u8>, pair: [u8; 2], token: u8) {
    let (mut to, mut from) = (0, 0);
    while from < name.len() {
        if name[from..].starts_with(&pair) {
            name[to] = token;
            from += 2;
        } else {
            name[to] = name[from];
            from += 1;
        }
        to += 1;
    }
    name.truncate(to);
}
