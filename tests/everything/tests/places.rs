//! Every instruction of an object's file: decoded from the start to the end of each function, which symbols
//! and the unwind table tell.

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, RunTimeEndian, UnwindSection};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use probe_core::arch::Arch;
use probe_host_linux::Native;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An object's code.
pub(crate) struct Code {
    /// Its executable sections: address and bytes.
    sections: Vec<(usize, Vec<u8>)>,
    /// Where functions start, with their length in bytes.
    functions: BTreeMap<usize, usize>,
}

impl Code {
    /// Reads it.
    ///
    /// # Errors
    /// The file cannot be read, or is none that a loader loads.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let data = std::fs::read(path).map_err(|error| failed(&error))?;
        let file = object::File::parse(&*data).map_err(|error| failed(&error))?;
        let is_text = |section: &object::Section<'_, '_>| section.kind() == SectionKind::Text;
        let text = file.sections().filter(is_text);
        let sections: Vec<_> = text
            .filter_map(|section| Some((section.address() as usize, section.data().ok()?.to_vec())))
            .collect();
        let mut functions = BTreeMap::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let is_code = symbol.kind() == SymbolKind::Text && symbol.size() != 0;
            if is_code
                && sections.iter().any(|(start, bytes)| {
                    symbol.address() as usize - start.min(&(symbol.address() as usize)) < bytes.len()
                })
            {
                functions.insert(symbol.address() as usize, symbol.size() as usize);
            }
        }
        if let Some(section) = file.section_by_name(".eh_frame") {
            let bytes = section.uncompressed_data().map_err(|error| failed(&error))?;
            let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
            let mut frames = EhFrame::from(EndianSlice::new(&bytes, endian));
            frames.set_address_size(size_of::<usize>() as u8);
            let text = sections.first().map_or(0, |section| section.0 as u64);
            let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text);
            let mut entries = frames.entries(&bases);
            while let Some(entry) = entries.next().map_err(|error| failed(&error))? {
                if let CieOrFde::Fde(partial) = entry {
                    let fde = partial.parse(|frames, bases, at| frames.cie_from_offset(bases, at));
                    let fde = fde.map_err(|error| failed(&error))?;
                    functions.entry(fde.initial_address() as usize).or_insert(fde.len() as usize);
                }
            }
        }
        Ok(Self { sections, functions })
    }

    /// The bytes from `at` to the end of its section.
    pub(crate) fn bytes(&self, at: usize) -> Option<&[u8]> {
        self.sections.iter().find_map(|(start, bytes)| bytes.get(at.checked_sub(*start)?..))
    }

    /// Where instructions start.
    pub(crate) fn instructions(&self) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut covered = 0;
        for (&start, &len) in &self.functions {
            // A second name for what lies in the middle of a function.
            if start < covered && !found.contains(&start) {
                continue;
            }
            let mut at = start;
            while let Some(bytes) = self.bytes(at).filter(|bytes| at < start + len && !bytes.is_empty()) {
                found.insert(at);
                let window = &bytes[..bytes.len().min(Native::MAX_INSN_LEN)];
                match Native::insn_len(at.into(), window) {
                    Some(len) => at += len,
                    None => break,
                }
            }
            covered = covered.max(at);
        }
        found
    }

    /// Whether a repeated string instruction stands at `at` (x86): the processor's single step stops between
    /// its iterations.
    pub(crate) fn is_repeated(&self, at: usize) -> bool {
        let bytes = self.bytes(at).unwrap_or_default();
        let prefixes =
            bytes.iter().take_while(|byte| matches!(byte, 0xf2 | 0xf3 | 0x66 | 0x67 | 0x40..=0x4f));
        let prefixes = prefixes.count();
        bytes[..prefixes].iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
            && bytes
                .get(prefixes)
                .is_some_and(|opcode| matches!(opcode, 0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf))
    }

    /// Whether a function starts at `at`.
    pub(crate) fn is_entry(&self, at: usize) -> bool {
        self.functions.contains_key(&at)
    }
}
