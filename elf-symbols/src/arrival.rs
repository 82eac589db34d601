//! How control arrives at a place, according to the object's unwind tables (REG_19).
//!
//! Code that is entered by a call has the frame that the ABI's call leaves: on x86 the frame (CFA) begins
//! right behind the return address at the stack pointer; with a link register it begins at the stack pointer,
//! and the register holds the return address. A part of a function that is jumped to, a stub or a resolver
//! describes a frame that exists already. The first function of a program or of a context has no return
//! address.
//!
//! One binary search per place. Sources: LSB 5.0 core, 10.6; DWARF 5, 6.4; the register numbers of each
//! psABI.

use crate::class::{Elf, Header};
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, CieOrFde, EhFrame, EhFrameHdr,
    EndianSlice, FrameDescriptionEntry, ParsedEhFrameHdr, Pointer, Register, RunTimeEndian, UnwindSection,
    Vendor,
};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{Object as _, ObjectSection, elf};
use probe_core::host::Arrival;

type Bytes<'a> = EndianSlice<'a, RunTimeEndian>;

/// The unwind tables of one object, from its file or from memory.
#[derive(Clone, Copy, Debug)]
pub struct Tables<'a> {
    machine: Machine,
    /// `.eh_frame_hdr`: its bytes and its address.
    header: (&'a [u8], u64),
    /// `.eh_frame`: its bytes, or more that follow, and its address.
    frames: (&'a [u8], u64),
}

/// The properties of a machine and its ABI that the description of a frame depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    is_big_endian: bool,
    address_size: u8,
    vendor: Vendor,
    stack_pointer: Register,
    return_address: Register,
    /// How many bytes a call pushes: the return address is at the CFA minus that. 0: in a register.
    pushed: i64,
    /// Whether a call names the register that takes the return address (`jal t0, …`): elsewhere it is one for
    /// all calls.
    is_link_named: bool,
}

impl Machine {
    /// The machine that an ELF header names, if this library has a backend for it.
    fn new(machine: elf::Machine, is_big_endian: bool) -> Option<Self> {
        let (address_size, vendor, stack_pointer, return_address, pushed) = match machine {
            elf::EM_X86_64 => (8, Vendor::Default, 7, 16, 8),
            elf::EM_386 => (4, Vendor::Default, 4, 8, 4),
            elf::EM_AARCH64 => (8, Vendor::AArch64, 31, 30, 0),
            elf::EM_PPC64 => (8, Vendor::Default, 1, 65, 0),
            elf::EM_PPC => (4, Vendor::Default, 1, 65, 0),
            elf::EM_RISCV => (8, Vendor::Default, 2, 1, 0),
            elf::EM_ARM => (4, Vendor::Default, 13, 14, 0),
            _ => return None,
        };
        let (stack_pointer, return_address) = (Register(stack_pointer), Register(return_address));
        let is_link_named = machine == elf::EM_RISCV;
        Some(Self {
            is_big_endian,
            address_size,
            vendor,
            stack_pointer,
            return_address,
            pushed,
            is_link_named,
        })
    }

    fn endian(&self) -> RunTimeEndian {
        if self.is_big_endian { RunTimeEndian::Big } else { RunTimeEndian::Little }
    }

    /// The verdict on the row that holds at a function's first instruction.
    fn judge(&self, row: &Row) -> Arrival {
        let is_called = match row.return_address {
            Rule::Undefined => return Arrival::START,
            Rule::Unsaid | Rule::Same => self.pushed == 0,
            Rule::At(offset) => self.pushed != 0 && offset == -self.pushed,
            Rule::Elsewhere => false,
        };
        match row.cfa {
            Cfa::Computed | Cfa::Unsaid => Arrival::Unknown,
            Cfa::At(register, offset)
                if is_called && register == self.stack_pointer && offset == self.pushed =>
            {
                Arrival::Called
            }
            Cfa::At(..) => Arrival::PART,
        }
    }
}

/// Where the frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cfa {
    Unsaid,
    At(Register, i64),
    /// By an expression: a procedure linkage table.
    Computed,
}

/// Where the return address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Unsaid,
    Undefined,
    Same,
    /// So many bytes from the CFA.
    At(i64),
    /// In another register, or by an expression.
    Elsewhere,
}

/// The unwind row of one place. [`gimli::UnwindTableRow`] does not tell an undefined return address from one
/// that is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    cfa: Cfa,
    return_address: Rule,
}

/// Parses `.eh_frame_hdr`. Its count of entries has four bytes, as all linkers write it: [`gimli`] multiplies
/// it by their length unchecked, and a longer one could overflow (EVT_2).
fn parse<'a>(
    header: &'a [u8],
    machine: Machine,
    bases: &BaseAddresses,
) -> gimli::Result<ParsedEhFrameHdr<Bytes<'a>>> {
    if header.get(2) != Some(&gimli::DW_EH_PE_udata4.0) {
        return Err(gimli::Error::UnsupportedPointerEncoding);
    }
    EhFrameHdr::new(header, machine.endian()).parse(bases, machine.address_size)
}

/// The address of `.eh_frame`, according to the header at `at` whose bytes begin with `header`.
#[must_use]
pub fn frames_of(machine: Machine, header: &[u8], at: u64) -> Option<u64> {
    let bases = BaseAddresses::default().set_eh_frame_hdr(at);
    match parse(header, machine, &bases).ok()?.eh_frame_ptr() {
        Pointer::Direct(frames) => Some(frames),
        Pointer::Indirect(_) => None,
    }
}

impl<'a> Tables<'a> {
    /// Tables from `header`, the bytes and address of `.eh_frame_hdr`, and `frames`, those of `.eh_frame`
    /// (more bytes may follow).
    #[must_use]
    pub fn new(machine: Machine, header: (&'a [u8], u64), frames: (&'a [u8], u64)) -> Self {
        Self { machine, header, frames }
    }

    /// How control arrives at `at`, by the descriptions alone: code without one is unknown.
    #[must_use]
    pub fn arrival(&self, at: u64) -> Arrival {
        self.try_arrival(at).unwrap_or(Arrival::Unknown)
    }

    fn try_arrival(&self, at: u64) -> gimli::Result<Arrival> {
        const NOTHING: gimli::Error = gimli::Error::NoUnwindInfoForAddress;
        let bases = BaseAddresses::default().set_eh_frame_hdr(self.header.1).set_eh_frame(self.frames.1);
        let header = parse(self.header.0, self.machine, &bases)?;
        let table = header.table().ok_or(NOTHING)?;
        let mut frames = EhFrame::new(self.frames.0, self.machine.endian());
        frames.set_address_size(self.machine.address_size);
        frames.set_vendor(self.machine.vendor);
        // Not `fde_for_address`: it subtracts unchecked, and an entry may lead to before `.eh_frame` (EVT_2).
        let (Pointer::Direct(entry), Pointer::Direct(start)) =
            (table.lookup(at, &bases)?, header.eh_frame_ptr())
        else {
            return Err(NOTHING);
        };
        let offset =
            entry.checked_sub(start).and_then(|offset| usize::try_from(offset).ok()).ok_or(NOTHING)?;
        let found = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset)?;
        if !found.contains(at) {
            return Err(NOTHING);
        }
        self.judge(&frames, &bases, &found, at)
    }

    /// How control arrives at `at`, as the description `found` of the code there says.
    fn judge(
        &self,
        frames: &EhFrame<Bytes<'_>>,
        bases: &BaseAddresses,
        found: &FrameDescriptionEntry<Bytes<'_>>,
        at: u64,
    ) -> gimli::Result<Arrival> {
        if found.is_signal_trampoline() {
            return Ok(Arrival::SIGNAL_RETURN);
        }
        // The column is the whole description's. Where all calls leave the return address in one register, it
        // tells where the body keeps it (X15 in aarch64's `rawmemchr`), and nothing of the entry.
        if self.machine.pushed == 0 && found.cie().return_address_register() != self.machine.return_address {
            return Ok(if self.machine.is_link_named { Arrival::OTHER_LINK } else { Arrival::Unknown });
        }
        Ok(self.machine.judge(&self.row(frames, bases, found, at)?))
    }

    /// Start and length of each function that is called, as the descriptions say, in their order; up to one
    /// that cannot be read.
    fn for_each_called(&self, found: &mut dyn FnMut(u64, u64)) {
        let bases = BaseAddresses::default().set_eh_frame(self.frames.1);
        let mut frames = EhFrame::new(self.frames.0, self.machine.endian());
        frames.set_address_size(self.machine.address_size);
        frames.set_vendor(self.machine.vendor);
        let mut entries = frames.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            let CieOrFde::Fde(entry) = entry else { continue };
            let Ok(entry) = entry.parse(EhFrame::cie_from_offset) else { continue };
            let start = entry.initial_address();
            if self.judge(&frames, &bases, &entry, start) == Ok(Arrival::Called) {
                found(start, entry.len());
            }
        }
    }

    /// What `description` says about `at`.
    fn row(
        &self,
        frames: &EhFrame<Bytes<'_>>,
        bases: &BaseAddresses,
        description: &FrameDescriptionEntry<Bytes<'_>>,
        at: u64,
    ) -> gimli::Result<Row> {
        let cie = description.cie();
        let mut walk = Walk {
            return_address: cie.return_address_register(),
            data_factor: cie.data_alignment_factor(),
            code_factor: cie.code_alignment_factor(),
            place: description.initial_address(),
            row: Row { cfa: Cfa::Unsaid, return_address: Rule::Unsaid },
            initial: Rule::Unsaid,
            kept: None,
        };
        if walk.return_address != self.machine.return_address {
            return Err(gimli::Error::UnsupportedRegister(walk.return_address.0.into()));
        }
        walk.run(cie.instructions(frames, bases), u64::MAX)?;
        walk.initial = walk.row.return_address;
        walk.run(description.instructions(frames, bases), at)?;
        Ok(walk.row)
    }
}

/// The way through a description's instructions.
struct Walk {
    return_address: Register,
    data_factor: i64,
    code_factor: u64,
    /// Where the row begins to hold.
    place: u64,
    row: Row,
    /// The return address's rule of the common part.
    initial: Rule,
    /// One is enough: rows are only asked for at entries.
    kept: Option<Row>,
}

impl Walk {
    /// Goes on until the next row holds behind `at`, or to the end.
    fn run(&mut self, mut all: CallFrameInstructionIter<'_, Bytes<'_>>, at: u64) -> gimli::Result<()> {
        while let Some(next) = all.next()? {
            match next {
                CallFrameInstruction::SetLoc { address } => self.place = address,
                CallFrameInstruction::AdvanceLoc { delta } => {
                    self.place = self.place.wrapping_add(u64::from(delta).wrapping_mul(self.code_factor));
                }
                CallFrameInstruction::RememberState => self.kept = Some(self.row),
                CallFrameInstruction::RestoreState => {
                    self.row = self.kept.ok_or(gimli::Error::PopWithEmptyStack)?;
                }
                other => self.change(&other),
            }
            if self.place > at {
                break;
            }
        }
        Ok(())
    }

    /// Changes the row.
    fn change(&mut self, instruction: &CallFrameInstruction<usize>) {
        use CallFrameInstruction as I;
        let scaled = |factored: i64| factored.wrapping_mul(self.data_factor);
        let unsigned = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
        let (register, rule) = match *instruction {
            I::DefCfa { register, offset } => return self.row.cfa = Cfa::At(register, unsigned(offset)),
            I::DefCfaSf { register, factored_offset } => {
                return self.row.cfa = Cfa::At(register, scaled(factored_offset));
            }
            I::DefCfaRegister { register } => return self.move_cfa(Some(register), None),
            I::DefCfaOffset { offset } => return self.move_cfa(None, Some(unsigned(offset))),
            I::DefCfaOffsetSf { factored_offset } => {
                return self.move_cfa(None, Some(scaled(factored_offset)));
            }
            I::DefCfaExpression { .. } => return self.row.cfa = Cfa::Computed,
            I::Undefined { register } => (register, Rule::Undefined),
            I::SameValue { register } => (register, Rule::Same),
            I::Offset { register, factored_offset } => {
                (register, Rule::At(scaled(unsigned(factored_offset))))
            }
            I::OffsetExtendedSf { register, factored_offset } => {
                (register, Rule::At(scaled(factored_offset)))
            }
            I::Restore { register } => (register, self.initial),
            I::ValOffset { register, .. }
            | I::ValOffsetSf { register, .. }
            | I::Register { dest_register: register, .. }
            | I::Expression { register, .. }
            | I::ValExpression { register, .. } => (register, Rule::Elsewhere),
            _ => return,
        };
        if register == self.return_address {
            self.row.return_address = rule;
        }
    }

    fn move_cfa(&mut self, register: Option<Register>, offset: Option<i64>) {
        if let Cfa::At(old_register, old_offset) = self.row.cfa {
            self.row.cfa = Cfa::At(register.unwrap_or(old_register), offset.unwrap_or(old_offset));
        }
    }
}

/// Combines the evidence. The program's start and names that decide alone come before the description
/// (`told`): the start can be compiled code with a description like any other.
pub fn judge(is_start: bool, name: Option<&str>, told: impl FnOnce() -> Arrival) -> Arrival {
    if is_start {
        return Arrival::START;
    }
    name.and_then(known).unwrap_or_else(told)
}

/// The verdict that a name alone gives: in some of glibc's versions `__start_context` has the description of
/// a called function, and a thunk is called. Which parts of functions are entered with a frame, only the
/// description tells.
fn known(name: &str) -> Option<Arrival> {
    let named = Arrival::by_name(name);
    (!matches!(named, Arrival::Unknown | Arrival::PART)).then_some(named)
}

/// What the ELF header of an object in memory says.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The machine that it is for.
    pub machine: Machine,
    /// Where it is entered, in the file's own numbering; `None` if nowhere.
    pub entry: Option<usize>,
}

impl Head {
    /// How many bytes it has.
    pub const LEN: usize = size_of::<Header>();

    /// Reads it; `None` where it is none, or this library has no backend for the machine.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let header = Header::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let machine = Machine::new(header.e_machine(endian), header.is_big_endian())?;
        #[allow(clippy::useless_conversion, reason = "32-bit files have 32-bit fields")]
        let entry = usize::try_from(u64::from(header.e_entry(endian))).ok().filter(|&entry| entry != 0);
        Some(Self { machine, entry })
    }
}

/// Start and length of each function of a file that is called, as its unwind tables say: they are found by
/// their section, or, in a file without section headers, by the segment that leads to them.
pub(crate) fn for_each_called(file: &Elf<'_>, found: &mut dyn FnMut(u64, u64)) {
    let endian = file.endian();
    let Some(machine) = Machine::new(file.elf_header().e_machine(endian), !file.is_little_endian()) else {
        return;
    };
    let by_section = || {
        let section = file.section_by_name(".eh_frame")?;
        Some((section.data().ok()?, section.address()))
    };
    #[allow(clippy::useless_conversion, reason = "32-bit files have 32-bit fields")]
    let by_segment = || {
        let segments = file.elf_program_headers();
        let header = segments.iter().find(|segment| segment.p_type(endian) == elf::PT_GNU_EH_FRAME)?;
        let at = frames_of(machine, header.data(endian, file.data()).ok()?, header.p_vaddr(endian).into())?;
        let bytes = segments.iter().find_map(|segment| {
            let from = at.checked_sub(segment.p_vaddr(endian).into())?;
            segment.data(endian, file.data()).ok()?.get(usize::try_from(from).ok()?..)
        });
        Some((bytes.filter(|bytes| !bytes.is_empty())?, at))
    };
    if let Some(frames) = by_section().or_else(by_segment) {
        Tables { machine, header: (&[], 0), frames }.for_each_called(found);
    }
}

/// What a file tells of the functions in it.
#[derive(Debug)]
pub struct InFile<'a> {
    tables: Option<Tables<'a>>,
    /// Where the program starts, if it is one.
    start: Option<u64>,
}

impl<'a> InFile<'a> {
    /// Reads the headers.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        let Ok(file) = Elf::parse(data) else { return Self { tables: None, start: None } };
        let header = file.elf_header();
        let machine = Machine::new(header.e_machine(file.endian()), !file.is_little_endian());
        let section = |name| {
            let section = file.section_by_name(name)?;
            Some((section.data().ok()?, section.address()))
        };
        let tables = machine.zip(section(".eh_frame_hdr")).zip(section(".eh_frame"));
        let tables = tables.map(|((machine, header), frames)| Tables { machine, header, frames });
        let is_program =
            header.e_type(file.endian()) == elf::ET_EXEC || file.section_by_name(".interp").is_some();
        Self { tables, start: is_program.then(|| file.entry()) }
    }

    /// Where each description of the unwind tables begins.
    #[must_use]
    pub fn described(&self) -> Vec<u64> {
        let mut all = Vec::new();
        let Some(tables) = self.tables else { return all };
        let bases = BaseAddresses::default().set_eh_frame_hdr(tables.header.1).set_eh_frame(tables.frames.1);
        let Ok(header) = parse(tables.header.0, tables.machine, &bases) else { return all };
        let Some(table) = header.table() else { return all };
        let mut entries = table.iter(&bases);
        while let Ok(Some((Pointer::Direct(start), _))) = entries.next() {
            all.push(start);
        }
        all
    }

    /// How control arrives at the function `name` at `at`.
    #[must_use]
    pub fn arrival(&self, name: &str, at: u64) -> Arrival {
        judge(self.start == Some(at), Some(name), || {
            let told = self.tables.map_or(Arrival::Unknown, |tables| tables.arrival(at));
            if told == Arrival::Unknown { Arrival::by_name(name) } else { told }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decides_before_the_description_is_the_start_and_some_names() {
        assert_eq!(judge(true, Some("begin"), || Arrival::Called), Arrival::START);
        assert_eq!(judge(false, Some("begin"), || Arrival::Called), Arrival::Called);
        assert_eq!(judge(false, Some("__start_context"), || Arrival::Called), Arrival::START);
        assert_eq!(judge(false, Some("work.cold"), || Arrival::Called), Arrival::Called);
    }

    /// The first row of a description decides, and those behind it do not.
    #[test]
    fn what_a_call_leaves_is_told_from_a_frame_that_is_there() {
        let x86 = Machine::new(elf::EM_X86_64, false).unwrap();
        let arm = Machine::new(elf::EM_AARCH64, false).unwrap();
        let power = Machine::new(elf::EM_PPC64, true).unwrap();
        let row = |register, offset, return_address| Row {
            cfa: Cfa::At(Register(register), offset),
            return_address,
        };
        for (machine, row, arrival) in [
            (x86, row(7, 8, Rule::At(-8)), Arrival::Called),
            (x86, row(7, 96, Rule::At(-8)), Arrival::PART),
            (x86, row(6, 16, Rule::At(-8)), Arrival::PART),
            (x86, row(7, 8, Rule::Undefined), Arrival::START),
            (x86, Row { cfa: Cfa::Computed, return_address: Rule::At(-8) }, Arrival::Unknown),
            (arm, row(31, 0, Rule::Unsaid), Arrival::Called),
            (arm, row(31, 0, Rule::Same), Arrival::Called),
            (arm, row(31, 0, Rule::Undefined), Arrival::START),
            (arm, row(31, 32, Rule::At(-8)), Arrival::PART),
            (arm, row(31, 32, Rule::Unsaid), Arrival::PART),
            (power, row(1, 0, Rule::Unsaid), Arrival::Called),
            (power, row(1, 112, Rule::At(16)), Arrival::PART),
            (power, row(1, 0, Rule::Elsewhere), Arrival::PART),
        ] {
            assert_eq!(machine.judge(&row), arrival, "{row:?}");
        }
    }

    /// riscv64's millicode is called by T0, and its description says so.
    #[test]
    fn what_is_called_by_another_link_register_is_told_by_its_return_column() {
        let arrival = |machine, stack_pointer, column| {
            let machine = Machine::new(machine, false).unwrap();
            // Length, a common part of version 1, factors 1 and -8, the column, the frame at the stack
            // pointer.
            let mut frames = vec![12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, column, 0x0c, stack_pointer, 0];
            // Length, back to that; from 0x3000 on, 256 bytes.
            [24, 20_u32].iter().for_each(|word| frames.extend(word.to_le_bytes()));
            [0x3000, 0x100, 0_u64].iter().for_each(|word| frames.extend(word.to_le_bytes()));
            let udata4 = gimli::DW_EH_PE_udata4.0;
            let mut header = vec![1, udata4, udata4, 0x3b];
            [0x2000, 1, 0x2000, 0x1010_u32].iter().for_each(|word| header.extend(word.to_le_bytes()));
            Tables { machine, header: (&header, 0x1000), frames: (&frames, 0x2000) }.arrival(0x3000)
        };
        assert_eq!(arrival(elf::EM_RISCV, 2, 1), Arrival::Called);
        assert_eq!(arrival(elf::EM_RISCV, 2, 5), Arrival::OTHER_LINK);
        assert_eq!(arrival(elf::EM_AARCH64, 31, 30), Arrival::Called);
        assert_eq!(arrival(elf::EM_AARCH64, 31, 15), Arrival::Unknown);
        assert_eq!(arrival(elf::EM_PPC64, 1, 0), Arrival::Unknown);
        assert_eq!(arrival(elf::EM_X86_64, 7, 5), Arrival::Unknown);
    }

    /// Tables whose entry leads to before `.eh_frame`, and whose count is as large as a number can be.
    #[test]
    fn evt_2_no_table_makes_the_search_overflow() {
        let machine = Machine::new(elf::EM_X86_64, false).unwrap();
        // The count's encoding and bytes, and where the entries of the only row and the next lead.
        let arrival = |count_encoding, count: &[u8], description: i32| {
            let mut header = vec![1, gimli::DW_EH_PE_udata4.0, count_encoding, 0x3b];
            header.extend_from_slice(&0x2000_u32.to_le_bytes());
            header.extend_from_slice(count);
            for word in [0x2000, description, 0x3000, description] {
                header.extend_from_slice(&word.to_le_bytes());
            }
            Tables { machine, header: (&header, 0x1000), frames: (&[0; 64], 0x2000) }.arrival(0x3010)
        };
        for description in [-0x800, 0, 0x1000, 0x103f, i32::MAX, i32::MIN] {
            for count in [1, 2, u32::MAX] {
                let told = arrival(gimli::DW_EH_PE_udata4.0, &count.to_le_bytes(), description);
                assert_eq!(told, Arrival::Unknown);
            }
            let told = arrival(gimli::DW_EH_PE_udata8.0, &u64::MAX.to_le_bytes(), description);
            assert_eq!(told, Arrival::Unknown);
        }
    }
}
