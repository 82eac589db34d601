//! The machines that ELF files are for, and the backends for them.

use super::judge::{Judge, walk};
use object::elf;

/// What the command knows of a machine that has a backend.
pub(super) struct Backend {
    machine: elf::Machine,
    is_big_endian: bool,
    name: &'static str,
    /// Judges functions of its programs.
    pub(super) judge: Judge,
    /// Instructions begin at multiples of so many bytes.
    pub(super) insn_align: usize,
}

macro_rules! table {
    ($($variant:ident $bits:literal $name:literal $machine:literal $is_big:literal $arch:ty;)*) => {
        const BACKENDS: &[Backend] = &[$(Backend {
            machine: elf::Machine($machine),
            is_big_endian: $is_big,
            name: $name,
            judge: walk::<$arch>,
            insn_align: <$arch as probe_core::arch::Arch>::INSN_ALIGN,
        }),*];
    };
}
probe_arch_native::for_each_backend!(table);

/// The backend for a machine.
pub(super) fn backend(machine: elf::Machine, is_big_endian: bool) -> Option<&'static Backend> {
    BACKENDS.iter().find(|row| (row.machine, row.is_big_endian) == (machine, is_big_endian))
}

/// The name of a machine, by an ELF file's class, byte order and machine.
pub(super) fn name((class, data, machine): (u8, u8, elf::Machine)) -> String {
    if let Some(backend) = backend(machine, data == elf::ELFDATA2MSB.0) {
        let is_short = class == elf::ELFCLASS32.0 && machine == elf::EM_X86_64;
        return if is_short { "x32" } else { backend.name }.into();
    }
    match machine {
        elf::EM_ARM => "arm".into(),
        elf::EM_RISCV => "riscv".into(),
        elf::EM_S390 => "s390x".into(),
        other => format!("ELF machine {}", other.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::native((2, 1, elf::EM_X86_64), "x86_64")]
    #[case::addresses_of_32_bits((1, 1, elf::EM_X86_64), "x32")]
    #[case::of_one_byte_order((2, 2, elf::EM_PPC64), "ppc64")]
    #[case::of_the_other((2, 1, elf::EM_PPC64), "ppc64le")]
    #[case::without_a_backend((2, 2, elf::EM_S390), "s390x")]
    #[case::not_known((2, 1, elf::Machine(9999)), "ELF machine 9999")]
    fn a_machine_has_a_name(#[case] header: (u8, u8, elf::Machine), #[case] want: &str) {
        assert_eq!(name(header), want);
    }
}
