//! Symbols of an ELF file in memory: the kernel's own, as its boot loader has left it (Limine's kernel file,
//! a module of Multiboot or PVH), or a module's.
//!
//! The file is that of this machine, linked: addresses are where the code runs. Nothing in it is believed;
//! what lies outside of it is not there.

use crate::symbols::{Function, Table};
use alloc::vec::Vec;
use core::fmt;

/// Why a file has no symbols for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ElfError {
    /// It does not begin as ELF files do.
    NotElf,
    /// It is for machines with other words or another byte order.
    OtherMachine,
    /// Its section headers, or the table of symbols or names that they lead to, are not all in the file.
    CutOff,
    /// It has no table of symbols: it was stripped.
    Stripped,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotElf => "this is no ELF file",
            Self::OtherMachine => "the ELF file is for a machine with other words or another byte order",
            Self::CutOff => "the ELF file ends before its sections do: is all of it in memory?",
            Self::Stripped => "the ELF file has no table of symbols: link the kernel without --strip-all",
        })
    }
}

impl core::error::Error for ElfError {}

/// The functions of an ELF file.
pub struct ElfSymbols<'a> {
    functions: Vec<Function<'a>>,
    /// Their numbers, by name.
    names: Vec<u32>,
}

impl<'a> ElfSymbols<'a> {
    /// Reads the file's table of symbols. Allocates; at boot.
    ///
    /// # Errors
    /// It has none that can be read.
    pub fn read(file: &'a [u8]) -> Result<Self, ElfError> {
        let file = File::open(file)?;
        let mut functions = file.functions()?;
        functions.sort_unstable_by_key(|function| {
            (function.start, core::cmp::Reverse(function.len_bytes), function.name)
        });
        let mut functions = file.with_lengths(functions);
        functions.shrink_to_fit();
        let mut names: Vec<u32> = (0..functions.len() as u32).collect();
        names.sort_unstable_by_key(|&index| (functions[index as usize].name, index));
        Ok(Self { functions, names })
    }
}

impl Table for ElfSymbols<'_> {
    fn len(&self) -> usize {
        self.functions.len()
    }

    fn by_address(&self, index: usize) -> Function<'_> {
        self.functions[index]
    }

    fn by_name(&self, rank: usize) -> Function<'_> {
        self.functions[self.names[rank] as usize]
    }
}

/// Whether words have 64 bits.
const WIDE: bool = size_of::<usize>() == 8;

const SHT_SYMTAB: usize = 2;
const SHF_EXECINSTR: usize = 4;
const STT_FUNC: u8 = 2;
const EM_PPC64: usize = 21;

/// A section's header.
#[derive(Clone, Copy)]
struct Section<'a> {
    name: usize,
    kind: usize,
    flags: usize,
    addr: usize,
    len_bytes: usize,
    link: usize,
    /// What the file has of it.
    bytes: &'a [u8],
}

struct File<'a> {
    machine: usize,
    sections: Vec<Section<'a>>,
    /// The number of the section with function descriptors (ppc64 ELFv1).
    descriptors: Option<usize>,
}

/// `len` bytes from `at` on, as a number.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    let mut word = [0; 8];
    if cfg!(target_endian = "little") {
        word[..len].copy_from_slice(bytes);
        usize::try_from(u64::from_le_bytes(word)).ok()
    } else {
        word[8 - len..].copy_from_slice(bytes);
        usize::try_from(u64::from_be_bytes(word)).ok()
    }
}

/// The text at `at`, up to its zero.
fn text(bytes: &[u8], at: usize) -> Option<&str> {
    let bytes = bytes.get(at..)?;
    let len = bytes.iter().position(|byte| *byte == 0)?;
    str::from_utf8(&bytes[..len]).ok()
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, ElfError> {
        let ident = bytes.get(..16).ok_or(ElfError::NotElf)?;
        if !ident.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        let (class, data) = (1 + u8::from(WIDE), 1 + u8::from(cfg!(target_endian = "big")));
        if ident[4..6] != [class, data] {
            return Err(ElfError::OtherMachine);
        }
        let field = |wide: (usize, usize), narrow: (usize, usize)| {
            let (at, len) = if WIDE { wide } else { narrow };
            number(bytes, at, len).ok_or(ElfError::CutOff)
        };
        let machine = field((18, 2), (18, 2))?;
        let start = field((40, 8), (32, 4))?;
        let len_bytes = field((58, 2), (46, 2))?;
        let count = field((60, 2), (48, 2))?;
        let names = field((62, 2), (50, 2))?;
        let at = |index: usize| start.checked_add(index.checked_mul(len_bytes)?);
        let section = |index| at(index).and_then(|at| Section::read(bytes, at)).ok_or(ElfError::CutOff);
        let sections = (0..count).map(section).collect::<Result<Vec<_>, _>>()?;
        let names = sections.get(names).map_or(&[][..], |section| section.bytes);
        let descriptors = sections.iter().position(|section| text(names, section.name) == Some(".opd"));
        Ok(Self { machine, sections, descriptors })
    }

    /// The symbols that are functions or labels in code; the lengths of labels are 0.
    fn functions(&self) -> Result<Vec<Function<'a>>, ElfError> {
        let table =
            self.sections.iter().find(|section| section.kind == SHT_SYMTAB).ok_or(ElfError::Stripped)?;
        let names = self.sections.get(table.link).ok_or(ElfError::CutOff)?;
        if table.bytes.len() != table.len_bytes || names.bytes.len() != names.len_bytes {
            return Err(ElfError::CutOff);
        }
        let symbols = table.bytes.chunks_exact(if WIDE { 24 } else { 16 });
        Ok(symbols.filter_map(|symbol| self.function(symbol, names.bytes)).collect())
    }

    /// A symbol, if it is one of those.
    fn function(&self, symbol: &[u8], names: &'a [u8]) -> Option<Function<'a>> {
        let field = |wide: (usize, usize), narrow: (usize, usize)| {
            let (at, len) = if WIDE { wide } else { narrow };
            number(symbol, at, len)
        };
        let name = text(names, field((0, 4), (0, 4))?)?;
        let kind = field((4, 1), (12, 1))? as u8 & 15;
        let other = field((5, 1), (13, 1))?;
        let section = field((6, 2), (14, 2))?;
        let value = field((8, 8), (4, 4))?;
        let len_bytes = field((16, 8), (8, 4))?;
        // `$x` and their like say what the bytes behind them are.
        let is_named = !name.is_empty() && !name.starts_with(['$', '.']);
        let is_code = section != 0
            && (self.descriptors == Some(section)
                || self.sections.get(section).is_some_and(|section| section.flags & SHF_EXECINSTR != 0));
        if !is_named || !is_code || !matches!(kind, 0 | STT_FUNC) {
            return None;
        }
        let start = match self.sections.get(section) {
            Some(descriptors) if self.descriptors == Some(section) => {
                number(descriptors.bytes, value.checked_sub(descriptors.addr)?, size_of::<usize>())?
            }
            _ => value,
        };
        // The distance to the local entry is a power of two in the upper three bits (ELFv2, 3.4.1).
        let local_entry = if self.machine == EM_PPC64 { ((1_u8 << (other >> 5)) >> 2) << 2 } else { 0 };
        Some(Function { start, len_bytes, local_entry, name })
    }

    /// Drops labels inside functions; a label by itself (assembly) is as long as the way to the next symbol,
    /// or to the end of its section.
    fn with_lengths(&self, sorted: Vec<Function<'a>>) -> Vec<Function<'a>> {
        let mut kept: Vec<Function<'a>> = Vec::with_capacity(sorted.len());
        let mut end = 0;
        for function in sorted {
            if function.len_bytes == 0 && function.start < end {
                continue;
            }
            if let Some(label) = kept.last_mut().filter(|last| last.len_bytes == 0) {
                label.len_bytes = self.end_of_section(label.start).min(function.start) - label.start;
            }
            end = end.max(function.start.saturating_add(function.len_bytes));
            kept.push(function);
        }
        if let Some(label) = kept.last_mut().filter(|last| last.len_bytes == 0) {
            label.len_bytes = self.end_of_section(label.start) - label.start;
        }
        kept.retain(|function| function.len_bytes != 0);
        kept
    }

    /// Where the section with code ends that holds `addr`; `addr` itself if none does.
    fn end_of_section(&self, addr: usize) -> usize {
        let code = self.sections.iter().filter(|section| section.flags & SHF_EXECINSTR != 0);
        let mut ends = code.filter_map(|section| {
            let end = section.addr.checked_add(section.len_bytes)?;
            (section.addr..end).contains(&addr).then_some(end)
        });
        ends.next().unwrap_or(addr)
    }
}

impl<'a> Section<'a> {
    fn read(file: &'a [u8], at: usize) -> Option<Self> {
        let word = size_of::<usize>();
        let field = |wide: usize, narrow: usize, len: usize| {
            number(file, at.checked_add(if WIDE { wide } else { narrow })?, len)
        };
        let offset = field(24, 16, word)?;
        let len_bytes = field(32, 20, word)?;
        let bytes = offset.checked_add(len_bytes).and_then(|end| file.get(offset..end));
        Some(Self {
            name: field(0, 0, 4)?,
            kind: field(4, 4, 4)?,
            flags: field(8, 8, word)?,
            addr: field(16, 12, word)?,
            len_bytes,
            link: field(40, 24, 4)?,
            bytes: bytes.unwrap_or_default(),
        })
    }
}
