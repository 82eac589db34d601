//! Objects that are mapped, but that the loader does not name: C libraries of other namespaces (`dlmopen`),
//! and the vDSO of a static program.
//!
//! The libraries matter because they change the process's signals by system calls of their own. They are
//! found among the mappings.

use crate::maps::{self, Mapping};
use crate::memory;
use std::ffi::CString;

#[cfg(target_pointer_width = "32")]
use libc::{Elf32_Ehdr as Header, Elf32_Phdr as Segment};
#[cfg(target_pointer_width = "64")]
use libc::{Elf64_Ehdr as Header, Elf64_Phdr as Segment};

/// An object, described as the loader would.
pub(super) struct Found {
    pub(super) info: libc::dl_phdr_info,
    _name: CString,
}

/// The loaded objects whose file's name is one that `is_wanted`, and that do not begin where `is_known`.
pub(super) fn objects(is_wanted: fn(&str) -> bool, is_known: &dyn Fn(usize) -> bool) -> Vec<Found> {
    let maps = maps::read().unwrap_or_default();
    let may_begin =
        |map: &&Mapping| map.name.rsplit('/').next().is_some_and(is_wanted) && !is_known(map.start);
    maps.iter().filter(may_begin).filter_map(|map| begins_at(map, &maps)).collect()
}

/// The object that the kernel has mapped at `at`.
pub(super) fn vdso(at: usize) -> Option<Found> {
    let maps = maps::read().ok()?;
    begins_at(maps.iter().find(|map| map.start == at)?, &maps)
}

/// The object whose first page is mapped by `first`; `None` if its text is not mapped behind it, as in a file
/// that somebody reads.
fn begins_at(first: &Mapping, maps: &[Mapping]) -> Option<Found> {
    let header: Header = read(first.start)?;
    let at = first.start.checked_add(header.e_phoff as usize)?;
    let count = usize::from(header.e_phnum);
    let is_text = |index: usize| {
        let header: Segment = read(at + index * size_of::<Segment>())?;
        let is_text = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0;
        is_text.then_some(first.start.wrapping_add(header.p_vaddr as usize))
    };
    let mut text = (0..count).filter_map(is_text).peekable();
    let is_mapped = |at: usize| {
        let holds = |map: &&Mapping| (map.start..map.end).contains(&at) && map.name == first.name;
        maps.iter().find(holds).is_some_and(|map| map.protection & libc::PROT_EXEC != 0)
    };
    let is_whole = header.e_ident.starts_with(b"\x7fELF")
        && at + count * size_of::<Segment>() <= first.end
        && text.peek().is_some()
        && text.all(is_mapped);
    if !is_whole {
        return None;
    }
    let name = CString::new(first.name.as_str()).ok()?;
    // SAFETY: numbers and pointers, of which zero is a value.
    let mut info = unsafe { core::mem::zeroed::<libc::dl_phdr_info>() };
    // Shared objects are linked from address 0 on.
    info.dlpi_addr = first.start as _;
    info.dlpi_name = name.as_ptr();
    info.dlpi_phdr = core::ptr::with_exposed_provenance(at);
    info.dlpi_phnum = header.e_phnum;
    Some(Found { info, _name: name })
}

/// A structure of plain numbers in memory that may go.
fn read<T: Plain>(at: usize) -> Option<T> {
    let mut bytes = [0; 64];
    let bytes = bytes.get_mut(..size_of::<T>())?;
    let is_whole = memory::read_some(at, bytes) == bytes.len();
    // SAFETY: so many bytes, and any are a value, as the trait says.
    is_whole.then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// # Safety
/// Any bytes are a value.
unsafe trait Plain {}

// SAFETY: numbers alone.
unsafe impl Plain for Header {}
// SAFETY: as above.
unsafe impl Plain for Segment {}
