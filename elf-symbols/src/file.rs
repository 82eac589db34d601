//! Where symbols come from: ELF files, their separate debug files, and the image in memory.

use crate::arrival;
use crate::class::{Elf, Header};
use crate::index::{Builder, Index, Kind, RawSymbol};
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader as _, Sym};
use object::{Object, ObjectSection};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where separate debug files are installed.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// A file in memory.
pub struct Mapped {
    start: *const u8,
    len_bytes: usize,
}

impl Mapped {
    /// Maps a whole file for reading.
    ///
    /// # Errors
    /// As opening and mapping it has.
    pub fn open(path: &Path) -> io::Result<Self> {
        // What has taken a file's place, such as a FIFO, must not keep us waiting.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
        let metadata = file.metadata()?;
        let len_bytes = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        if !metadata.is_file() || len_bytes == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len_bytes,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len_bytes })
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives. Object files are replaced, not rewritten, by package
        // managers and linkers; a private mapping of one does not change.
        unsafe { core::slice::from_raw_parts(self.start, self.len_bytes) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.cast_mut().cast(), self.len_bytes) };
    }
}

/// The symbols of an object file: its own tables, and the full table of its separate debug file or its mini
/// symbol table where it has been stripped.
///
/// # Errors
/// It cannot be read or is no ELF file of this machine's word size.
pub fn read_symbols(path: &Path) -> io::Result<Index> {
    let data = Mapped::open(path)?;
    symbols_of(&data, Some(path))
}

/// As [`read_symbols`], for an object in memory. `path` tells where to look for the debug file that it names;
/// without one, only the system's own is taken.
///
/// # Errors
/// It is no ELF file of this machine's word size.
pub fn symbols_of(data: &[u8], path: Option<&Path>) -> io::Result<Index> {
    let elf = Elf::parse(data).map_err(io::Error::other)?;
    let mut builder = Builder::default();
    add_table(&elf, Table::Full, &mut builder);
    if builder.is_empty() {
        add_separate(&elf, path, &mut builder);
    }
    add_table(&elf, Table::Dynamic, &mut builder);
    if builder.is_empty() && is_static(&elf) {
        add_nameless(&elf, &mut builder);
    }
    Ok(builder.finish())
}

/// What functions without a name are called by, before their address in the file in hexadecimal digits.
pub const NAMELESS: &str = "sub_";

/// Whether no loader starts the program, by which it would have dynamic symbols.
fn is_static(elf: &Elf<'_>) -> bool {
    let endian = elf.endian();
    elf.elf_program_headers().iter().all(|segment| segment.p_type(endian) != elf::PT_INTERP)
}

/// The functions of a program that has been stripped, from its unwind tables.
fn add_nameless(elf: &Elf<'_>, builder: &mut Builder) {
    arrival::for_each_called(elf, &mut |addr, len_bytes| {
        let name = format!("{NAMELESS}{addr:x}");
        builder.add(&RawSymbol {
            name: &name,
            addr,
            len_bytes,
            kind: Kind::Function,
            locality: 2,
            local_entry: 0,
        });
    });
}

/// The build id in an ELF file.
#[must_use]
pub fn build_id(data: &[u8]) -> Option<Vec<u8>> {
    Elf::parse(data).ok()?.build_id().ok()?.map(<[u8]>::to_vec)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    Full,
    Dynamic,
}

#[allow(clippy::useless_conversion, reason = "32-bit files have 32-bit fields")]
fn add_table(elf: &Elf<'_>, which: Table, builder: &mut Builder) {
    let endian = elf.endian();
    let symbols = match which {
        Table::Full => elf.elf_symbol_table(),
        Table::Dynamic => elf.elf_dynamic_symbol_table(),
    };
    let versions = (which == Table::Dynamic)
        .then(|| elf.elf_section_table().versions(endian, elf.data()).ok().flatten())
        .flatten();
    let machine = elf.elf_header().e_machine(endian);
    // 1 is ELFv1, 2 is ELFv2, 0 leaves it open: then big-endian files are ELFv1.
    let abi = elf.elf_header().e_flags(endian).0 & elf::EF_PPC64_ABI;
    let is_elf_v1 = machine == elf::EM_PPC64 && (abi == 1 || abi == 0 && !elf.is_little_endian());
    let opd = is_elf_v1.then(|| elf.section_by_name(".opd")).flatten();
    let mut versioned = String::new();
    for (i, symbol) in symbols.enumerate() {
        let Some(kind) = kind_of(elf, symbol) else { continue };
        let Ok(name) = symbols.symbol_name(endian, symbol) else { continue };
        let Ok(mut name) = core::str::from_utf8(name) else { continue };
        if name.starts_with('$') || name.starts_with(".L") {
            continue;
        }
        if let Some(versions) = &versions {
            let version = versions.version_index(endian, i);
            if let Ok(Some(known)) = versions.version(version.index())
                && let Ok(text) = core::str::from_utf8(known.name())
            {
                versioned.clear();
                versioned.push_str(name);
                versioned.push_str(if version.is_hidden() { "@" } else { "@@" });
                versioned.push_str(text);
                name = &versioned;
            }
        }
        let mut addr = u64::from(symbol.st_value(endian));
        // An indirect function keeps its descriptor's address: its resolver is called through that.
        if let Some(opd) = opd.as_ref().filter(|_| kind == Kind::Function) {
            addr = through_descriptor(opd, addr).unwrap_or(addr);
        }
        let local_entry = match symbol.st_other().0 >> 5 {
            exponent @ 2..=6 if machine == elf::EM_PPC64 && !is_elf_v1 => 1 << exponent,
            _ => 0,
        };
        builder.add(&RawSymbol {
            name,
            addr,
            len_bytes: u64::from(symbol.st_size(endian)),
            kind,
            locality: match symbol.st_bind() {
                elf::STB_LOCAL => 2,
                elf::STB_WEAK => 1,
                _ => 0,
            },
            local_entry,
        });
    }
}

fn kind_of(elf: &Elf<'_>, symbol: &<Header as FileHeader>::Sym) -> Option<Kind> {
    let endian = elf.endian();
    if symbol.is_undefined(endian) {
        return None;
    }
    Some(match symbol.st_type() {
        elf::STT_FUNC => Kind::Function,
        elf::STT_GNU_IFUNC => Kind::Indirect,
        elf::STT_OBJECT | elf::STT_COMMON => Kind::Data,
        elf::STT_NOTYPE => {
            let section = object::SectionIndex(usize::from(symbol.st_shndx(endian).0));
            let section = elf.elf_section_table().section(section).ok()?;
            let flags = object::read::elf::SectionHeader::sh_flags(section, endian);
            if !flags.contains(elf::SHF_EXECINSTR) {
                return None;
            }
            Kind::Label
        }
        _ => return None,
    })
}

/// The code behind an ELFv1 function descriptor.
fn through_descriptor(opd: &object::read::elf::ElfSection<'_, '_, Header>, addr: u64) -> Option<u64> {
    let word = opd.data_range(addr, 8).ok()??;
    Some(u64::from_be_bytes(word.try_into().ok()?))
}

/// Where a file has its `.eh_frame`, by its own numbering, and how long that is.
#[must_use]
pub fn eh_frame(data: &[u8]) -> Option<(u64, u64)> {
    let file = Elf::parse(data).ok()?;
    let section = file.section_by_name(".eh_frame")?;
    Some((section.address(), section.size()))
}

/// Adds the full table from elsewhere: by build id, by `.gnu_debuglink`, in `.gnu_debugdata`.
fn add_separate(elf: &Elf<'_>, path: Option<&Path>, builder: &mut Builder) {
    let build_id = elf.build_id().ok().flatten();
    let by_id = build_id.filter(|id| id.len() > 1).map(debug_path);
    let by_link = elf.gnu_debuglink().ok().flatten().filter(|(name, _)| !name.contains(&b'/'));
    let by_link = path.zip(by_link).into_iter().flat_map(|(path, (name, checksum))| {
        let directory = path.parent().unwrap_or(Path::new("/"));
        let name = std::ffi::OsStr::new(core::str::from_utf8(name).unwrap_or("")).to_owned();
        let below_root = Path::new(DEBUG_ROOT).join(directory.strip_prefix("/").unwrap_or(directory));
        [directory.join(&name), directory.join(".debug").join(&name), below_root.join(&name)]
            .map(|path| (path, Some(checksum)))
    });
    for (candidate, checksum) in by_id.map(|path| (path, None)).into_iter().chain(by_link) {
        let Ok(data) = Mapped::open(&candidate) else { continue };
        if checksum.is_some_and(|wanted| crc32(&data) != wanted) {
            continue;
        }
        let Ok(debug) = Elf::parse(&*data) else { continue };
        if checksum.is_none() && debug.build_id().ok().flatten() != build_id {
            continue;
        }
        add_table(&debug, Table::Full, builder);
        if !builder.is_empty() {
            return;
        }
    }
    add_mini(elf, builder);
}

/// `.gnu_debugdata`: an xz-compressed ELF file with nothing but a symbol table.
fn add_mini(elf: &Elf<'_>, builder: &mut Builder) {
    let Some(section) = elf.section_by_name(".gnu_debugdata") else { return };
    let Ok(mut packed) = section.data() else { return };
    let mut data = Bounded(Vec::new());
    if lzma_rs::xz_decompress(&mut packed, &mut data).is_err() {
        return;
    }
    if let Ok(mini) = Elf::parse(&*data.0) {
        add_table(&mini, Table::Full, builder);
    }
}

/// A buffer as large as a symbol table can be, which refuses more: a few bytes can be packed that unpack to
/// gigabytes.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const MOST_BYTES: usize = 64 << 20;
        if self.0.len() + bytes.len() > MOST_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `/usr/lib/debug/.build-id/ab/cdef….debug`.
fn debug_path(id: &[u8]) -> PathBuf {
    use std::fmt::Write;
    let mut name = format!("{DEBUG_ROOT}/.build-id/{:02x}/", id[0]);
    for byte in &id[1..] {
        let _ = write!(name, "{byte:02x}");
    }
    name.push_str(".debug");
    PathBuf::from(name)
}

/// The checksum of `.gnu_debuglink` (CRC-32, polynomial 0xedb88320).
fn crc32(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut value = i as u32;
            let mut bit = 0;
            while bit < 8 {
                value = value >> 1 ^ if value & 1 != 0 { 0xedb8_8320 } else { 0 };
                bit += 1;
            }
            table[i] = value;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0, |crc: u32, byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn debug_files_are_named_by_build_id() {
        assert_eq!(debug_path(&[0xab, 0x01, 0xff]).to_str(), Some("/usr/lib/debug/.build-id/ab/01ff.debug"));
    }

    /// Debian's `ldconfig` is static and stripped. What its unwind tables call functions does not overlap.
    #[test]
    fn functions_of_a_stripped_program_are_called_by_their_addresses() {
        let data = std::fs::read("/sbin/ldconfig").unwrap();
        let whole = symbols_of(&data, None).unwrap();
        assert!(whole.entries().len() > 500);
        for pair in whole.entries().windows(2) {
            assert!(pair[0].addr + pair[0].len_bytes <= pair[1].addr, "{pair:?}");
            assert_eq!(whole.name(&pair[0]), format!("{NAMELESS}{:x}", pair[0].addr));
        }
        // Nobody calls the program's start.
        let entry = Elf::parse(&*data).unwrap().entry();
        assert!(whole.entries().iter().all(|known| known.addr as u64 != entry));
        // Without section headers: `e_shoff`, `e_shnum` and `e_shstrndx` are 0.
        let mut bare = data.clone();
        bare[0x28..0x30].fill(0);
        bare[0x3c..0x40].fill(0);
        let bare = symbols_of(&bare, None).unwrap();
        let addresses = |index: &Index| index.entries().iter().map(|entry| entry.addr).collect::<Vec<_>>();
        assert_eq!(addresses(&bare), addresses(&whole));
    }

    #[test]
    fn this_program_knows_its_own_functions() {
        let index = read_symbols(Path::new("/proc/self/exe")).unwrap();
        let mut count = 0;
        index.find("probe_elf_symbols::file::tests::this_program_knows_its_own_functions", &mut |entry| {
            assert_eq!(entry.kind, Kind::Function);
            count += 1;
        });
        assert_eq!(count, 1);
    }
}
