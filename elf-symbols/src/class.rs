//! ELF files of this machine's word size.

use object::Endianness;
use object::elf;
use object::read::elf::ElfFile;

#[cfg(target_pointer_width = "64")]
pub(crate) type Header = elf::FileHeader64<Endianness>;
#[cfg(target_pointer_width = "32")]
pub(crate) type Header = elf::FileHeader32<Endianness>;
pub(crate) type Elf<'data> = ElfFile<'data, Header>;
