//! The agent's object, as it is put into another process: its segments, relocated. It is ours, position
//! independent, and has no undefined symbol; what it must not have is an error.

use object::elf::{
    FileHeader64, PF_R, PF_W, PF_X, PT_DYNAMIC, PT_LOAD, ProgramHeader64, R_X86_64_DTPMOD64,
    R_X86_64_RELATIVE,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela};
use object::{LittleEndian, elf};
use std::ops::Range;

/// The length of a page on x86-64.
pub(super) const PAGE: usize = 4096;

/// The object.
pub(super) struct Image<'a> {
    file: &'a [u8],
    /// The bytes that it takes in memory, whole pages.
    pub(super) len: usize,
    /// Where it is entered, from its start.
    pub(super) entry: usize,
    segments: Vec<ProgramHeader64<LittleEndian>>,
    relocations: Vec<Relocation>,
}

/// A word that depends on where the object lies.
struct Relocation {
    at: usize,
    value: Value,
}

enum Value {
    /// The object's start and this.
    Address(usize),
    /// The number of a module of thread-local storage: it has one.
    Module,
}

/// What a part of the object becomes in memory.
pub(super) struct Part {
    /// Where, in whole pages.
    pub(super) pages: Range<usize>,
    /// The protection.
    pub(super) protection: i32,
    /// Where its bytes begin; what they do not reach is zero.
    pub(super) at: usize,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
}

impl<'a> Image<'a> {
    /// Reads the object.
    ///
    /// # Errors
    /// It is not what it has to be.
    pub(super) fn parse(file: &'a [u8]) -> Result<Self, &'static str> {
        let garbled = "the agent's object is garbled";
        let endian = LittleEndian;
        let header = FileHeader64::<LittleEndian>::parse(file).map_err(|_| garbled)?;
        let headers = header.program_headers(endian, file).map_err(|_| garbled)?;
        let segments: Vec<_> = headers.iter().copied().filter(|h| h.p_type(endian) == PT_LOAD).collect();
        let end = segments.iter().map(|h| h.p_vaddr(endian).saturating_add(h.p_memsz(endian))).max();
        let len = end.and_then(|end| usize::try_from(end).ok()).ok_or(garbled)?.next_multiple_of(PAGE);
        let dynamic = headers.iter().find(|header| header.p_type(endian) == PT_DYNAMIC).ok_or(garbled)?;
        let dynamic = dynamic.dynamic(endian, file).map_err(|_| garbled)?.ok_or(garbled)?;
        let value = |tag: elf::DynamicTag| {
            dynamic.iter().find(|entry| entry.tag(endian) == tag).map(|entry| entry.val(endian))
        };
        // Some linkers name libraries of which nothing is needed.
        if value(elf::DT_JMPREL).is_some() {
            return Err("the agent's object needs another one");
        }
        let (at, bytes) = (value(elf::DT_RELA).unwrap_or(0), value(elf::DT_RELASZ).unwrap_or(0));
        let entries =
            if bytes == 0 { &[][..] } else { bytes_at(&segments, file, at, bytes).ok_or(garbled)? };
        let entries: &[elf::Rela64<LittleEndian>] =
            object::slice_from_all_bytes(entries).map_err(|()| garbled)?;
        let relocations = entries
            .iter()
            .map(|entry| {
                let at =
                    usize::try_from(entry.r_offset(endian)).ok().filter(|at| at + 8 <= len).ok_or(garbled)?;
                let value = match (entry.r_type(endian, false), entry.r_sym(endian, false)) {
                    (R_X86_64_RELATIVE, 0) => Value::Address(entry.r_addend(endian) as usize),
                    (R_X86_64_DTPMOD64, 0) => Value::Module,
                    _ => return Err("the agent's object has a relocation that only a loader can make"),
                };
                Ok(Relocation { at, value })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { file, len, entry: header.e_entry(endian) as usize, segments, relocations })
    }

    /// Its parts where it lies at `base`.
    ///
    /// # Errors
    /// A relocation is in no segment's bytes.
    pub(super) fn at(&self, base: usize) -> Result<Vec<Part>, &'static str> {
        let mut parts: Vec<Part> =
            self.segments.iter().filter_map(|header| self.part(header, base)).collect();
        for Relocation { at, value } in &self.relocations {
            let value = match value {
                Value::Address(offset) => base.wrapping_add(*offset),
                Value::Module => 1,
            };
            let place = parts.iter_mut().find_map(|part| {
                let from = (base + at).checked_sub(part.at)?;
                part.bytes.get_mut(from..from + 8)
            });
            place
                .ok_or("the agent's object is relocated where it has no bytes")?
                .copy_from_slice(&value.to_le_bytes());
        }
        Ok(parts)
    }

    fn part(&self, header: &ProgramHeader64<LittleEndian>, base: usize) -> Option<Part> {
        let endian = LittleEndian;
        let at = base + header.p_vaddr(endian) as usize;
        let end = at + header.p_memsz(endian) as usize;
        let flags = header.p_flags(endian);
        let has =
            |flag: elf::ProgramFlags, protection: i32| if flags.contains(flag) { protection } else { 0 };
        Some(Part {
            pages: at & !(PAGE - 1)..end.next_multiple_of(PAGE),
            protection: has(PF_R, libc::PROT_READ) | has(PF_W, libc::PROT_WRITE) | has(PF_X, libc::PROT_EXEC),
            at,
            bytes: header.data(endian, self.file).ok()?.to_vec(),
        })
    }
}

/// The bytes of the file that lie at an address.
fn bytes_at<'a>(
    segments: &[ProgramHeader64<LittleEndian>],
    file: &'a [u8],
    at: u64,
    len: u64,
) -> Option<&'a [u8]> {
    segments.iter().find_map(|header| header.data_range(LittleEndian, file, at, len).ok().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSegment, ObjectSymbol};

    fn agent() -> &'static [u8] {
        crate::MAPPED_AGENT.expect("built with it")
    }

    /// An object that needs nothing of the program's: no other object, no symbol, no thread-local storage at
    /// a place of the program's choice.
    #[test]
    fn the_agent_needs_nothing() {
        let file = object::File::parse(agent()).unwrap();
        let undefined: Vec<_> = file.dynamic_symbols().filter(|symbol| symbol.is_undefined()).collect();
        let names: Vec<_> = undefined
            .iter()
            .filter_map(|symbol| symbol.name().ok())
            .filter(|name| !name.is_empty())
            .collect();
        assert_eq!(names, [""; 0]);
        Image::parse(agent()).unwrap();
    }

    #[test]
    fn parts_are_the_segments_and_relocations_are_made() {
        let image = Image::parse(agent()).unwrap();
        let file = object::File::parse(agent()).unwrap();
        let (low, high) = (image.at(0x10_0000).unwrap(), image.at(0x30_0000).unwrap());
        assert_eq!(low.len(), file.segments().count());
        for ((part, other), segment) in low.iter().zip(&high).zip(file.segments()) {
            assert_eq!(
                (part.at, part.bytes.len()),
                (0x10_0000 + segment.address() as usize, segment.data().unwrap().len())
            );
            assert_eq!((part.pages.start % PAGE, part.pages.end % PAGE), (0, 0));
            let both = libc::PROT_WRITE | libc::PROT_EXEC;
            assert_ne!(part.protection & both, both, "SAFE_1");
            // What differs differs by as much as the places do.
            let words = part.bytes.chunks_exact(8).zip(other.bytes.chunks_exact(8));
            for (one, two) in words.filter(|(one, two)| one != two) {
                let [one, two] = [one, two].map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                assert_eq!(two - one, 0x20_0000);
            }
        }
        let differ =
            low.iter().zip(&high).flat_map(|(one, two)| one.bytes.chunks(8).zip(two.bytes.chunks(8)));
        let relative =
            image.relocations.iter().filter(|known| matches!(known.value, Value::Address(_))).count();
        assert_eq!(differ.filter(|(one, two)| one != two).count(), relative);
        let entry = 0x10_0000 + image.entry;
        assert!(low.iter().any(|part| part.pages.contains(&entry) && part.protection & libc::PROT_EXEC != 0));
    }

    #[test]
    fn another_object_is_refused() {
        assert!(Image::parse(b"\x7fELF").is_err());
        assert!(
            Image::parse(crate::AGENT.expect("built with it"))
                .is_err_and(|why| why.contains("needs another"))
        );
    }
}
