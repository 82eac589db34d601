//! The row of a place: where the caller's registers are. [`gimli`] parses the instructions; they are run
//! here, as [`gimli::UnwindTableRow`] does not tell an undefined register from one that nothing is said of,
//! and keeps its rows in the heap.

use super::bytes::Bytes;
use super::expression;
use super::machine::{Machine, REGISTERS, Registers};
use super::objects::Object;
use gimli::{
    BaseAddresses, CallFrameInstruction, CallFrameInstructionIter, EhFrame, EhFrameHdr, Operation, Pointer,
    Reader, UnwindExpression, UnwindSection,
};
use probe_core::arch::Memory;

/// How many rows can be remembered at once.
const REMEMBERED: usize = 2;

/// An expression, by its place in the section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    offset: u32,
    len: u16,
}

/// Where a caller's register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Unsaid,
    Undefined,
    Same,
    /// Stored so far from the caller's stack pointer.
    At(i32),
    /// So far from it.
    Value(i32),
    Register(u16),
    StoredAt(Place),
    Computed(Place),
}

/// The caller's stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cfa {
    Unsaid,
    At(u16, i64),
    Computed(Place),
}

/// What holds at a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) cfa: Cfa,
    pub(super) rules: [Rule; REGISTERS],
}

/// A row with what its expressions need.
pub(super) struct Found<'m, M> {
    pub(super) row: Row,
    pub(super) return_address: u16,
    pub(super) is_signal: bool,
    section: Bytes<'m, M>,
}

impl<M: Memory> Found<'_, M> {
    /// The value of an expression.
    pub(super) fn evaluate(
        &self,
        place: Place,
        machine: &Machine,
        registers: &Registers,
        memory: &M,
        first: Option<usize>,
    ) -> Option<usize> {
        expression::evaluate(self.bytes(place)?, machine, registers, memory, first)
    }

    /// What an expression loads from, if it does nothing else: a register and a distance.
    pub(super) fn load_from(&self, place: Place) -> Option<(u16, i64)> {
        let mut bytes = self.bytes(place)?;
        let first = Operation::parse(&mut bytes, expression::ENCODING).ok()?;
        let second = Operation::parse(&mut bytes, expression::ENCODING).ok()?;
        let word = size_of::<usize>() as u8;
        match (first, second, bytes.is_empty()) {
            (
                Operation::RegisterOffset { register, offset, .. },
                Operation::Deref { size, space: false, .. },
                true,
            ) if size == word => Some((register.0, offset)),
            _ => None,
        }
    }
}

impl<'m, M: Memory> Found<'m, M> {
    fn bytes(&self, place: Place) -> Option<Bytes<'m, M>> {
        let mut bytes = self.section;
        bytes.skip(place.offset as usize).ok()?;
        bytes.truncate(place.len.into()).ok()?;
        Some(bytes)
    }
}

/// What an object says of a place of its own.
pub(super) fn find<'m, M: Memory>(
    machine: &Machine,
    object: &Object,
    memory: &'m M,
    place: usize,
) -> Option<Found<'m, M>> {
    const WORD: u8 = size_of::<usize>() as u8;
    let mut bases = BaseAddresses::default().set_eh_frame_hdr(object.header as u64);
    let bytes = Bytes::new(memory, object.header, object.header_len);
    // The count of entries has four bytes, as all linkers write it: it is multiplied by their length.
    let mut encoding = bytes;
    encoding.skip(2).ok()?;
    if encoding.read_u8().ok()? != gimli::DW_EH_PE_udata4.0 {
        return None;
    }
    let header = EhFrameHdr::from(bytes).parse(&bases, WORD).ok()?;
    let Pointer::Direct(start) = header.eh_frame_ptr() else { return None };
    bases = bases.set_eh_frame(start);
    let Pointer::Direct(entry) = header.table()?.lookup(place as u64, &bases).ok()? else { return None };
    let start = usize::try_from(start).ok()?;
    let section = Bytes::new(memory, start, object.end.checked_sub(start)?);
    let mut frames = EhFrame::from(section);
    frames.set_address_size(WORD);
    frames.set_vendor(machine.vendor);
    let offset = usize::try_from(entry).ok()?.checked_sub(start)?;
    let found = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
    if !found.contains(place as u64) {
        return None;
    }
    let cie = found.cie();
    let mut way = Way {
        machine,
        data_factor: cie.data_alignment_factor(),
        code_factor: cie.code_alignment_factor(),
        at: found.initial_address(),
        row: Row { cfa: Cfa::Unsaid, rules: [Rule::Unsaid; REGISTERS] },
        initial: [Rule::Unsaid; REGISTERS],
        remembered: [None; REMEMBERED],
    };
    way.run(cie.instructions(&frames, &bases), u64::MAX)?;
    way.initial = way.row.rules;
    way.run(found.instructions(&frames, &bases), place as u64)?;
    Some(Found {
        row: way.row,
        return_address: cie.return_address_register().0,
        is_signal: found.is_signal_trampoline(),
        section,
    })
}

/// The way through a description's instructions.
struct Way<'a> {
    machine: &'a Machine,
    data_factor: i64,
    code_factor: u64,
    /// Where the row begins to hold.
    at: u64,
    row: Row,
    /// What the common entry says.
    initial: [Rule; REGISTERS],
    remembered: [Option<Row>; REMEMBERED],
}

fn place(expression: UnwindExpression<usize>) -> Option<Place> {
    Some(Place { offset: expression.offset.try_into().ok()?, len: expression.length.try_into().ok()? })
}

impl Way<'_> {
    /// Goes on until the next row holds behind `place`, or to the end. `None` for what cannot be followed.
    fn run<M: Memory>(
        &mut self,
        mut all: CallFrameInstructionIter<'_, Bytes<'_, M>>,
        place: u64,
    ) -> Option<()> {
        while let Some(next) = all.next().ok()? {
            match next {
                CallFrameInstruction::SetLoc { address } => self.at = address,
                CallFrameInstruction::AdvanceLoc { delta } => {
                    self.at = self.at.wrapping_add(u64::from(delta).wrapping_mul(self.code_factor));
                }
                CallFrameInstruction::RememberState => {
                    let free = self.remembered.iter_mut().find(|row| row.is_none())?;
                    *free = Some(self.row);
                }
                CallFrameInstruction::RestoreState => {
                    let last = self.remembered.iter_mut().rev().find(|row| row.is_some())?;
                    self.row = last.take()?;
                }
                other => self.change(other)?,
            }
            if self.at > place {
                break;
            }
        }
        Some(())
    }

    /// Changes the row.
    fn change(&mut self, instruction: CallFrameInstruction<usize>) -> Option<()> {
        use CallFrameInstruction as I;
        let factor = self.data_factor;
        let scaled = |factored: i64| i32::try_from(factored.wrapping_mul(factor)).ok();
        let unsigned = |offset: u64| i64::try_from(offset).ok();
        let (register, rule) = match instruction {
            I::DefCfa { register, offset } => {
                self.row.cfa = Cfa::At(register.0, unsigned(offset)?);
                return Some(());
            }
            I::DefCfaSf { register, factored_offset } => {
                self.row.cfa = Cfa::At(register.0, scaled(factored_offset)?.into());
                return Some(());
            }
            I::DefCfaRegister { register } => {
                let Cfa::At(_, offset) = self.row.cfa else { return None };
                self.row.cfa = Cfa::At(register.0, offset);
                return Some(());
            }
            I::DefCfaOffset { offset } => {
                let Cfa::At(register, _) = self.row.cfa else { return None };
                self.row.cfa = Cfa::At(register, unsigned(offset)?);
                return Some(());
            }
            I::DefCfaOffsetSf { factored_offset } => {
                let Cfa::At(register, _) = self.row.cfa else { return None };
                self.row.cfa = Cfa::At(register, scaled(factored_offset)?.into());
                return Some(());
            }
            I::DefCfaExpression { expression } => {
                self.row.cfa = Cfa::Computed(place(expression)?);
                return Some(());
            }
            I::Undefined { register } => (register, Rule::Undefined),
            I::SameValue { register } => (register, Rule::Same),
            I::Offset { register, factored_offset } => {
                (register, Rule::At(scaled(unsigned(factored_offset)?)?))
            }
            I::OffsetExtendedSf { register, factored_offset } => {
                (register, Rule::At(scaled(factored_offset)?))
            }
            I::ValOffset { register, factored_offset } => {
                (register, Rule::Value(scaled(unsigned(factored_offset)?)?))
            }
            I::ValOffsetSf { register, factored_offset } => (register, Rule::Value(scaled(factored_offset)?)),
            I::Register { dest_register, src_register } => (dest_register, Rule::Register(src_register.0)),
            I::Expression { register, expression } => (register, Rule::StoredAt(place(expression)?)),
            I::ValExpression { register, expression } => (register, Rule::Computed(place(expression)?)),
            I::Restore { register } => {
                let initial = self.machine.index(register.0).and_then(|index| self.initial.get(index));
                (register, initial.copied().unwrap_or(Rule::Unsaid))
            }
            // Sizes of arguments, signatures of addresses (all bits that they use are masked), padding.
            _ => return Some(()),
        };
        if let Some(at) = self.machine.index(register.0).and_then(|index| self.row.rules.get_mut(index)) {
            *at = rule;
        }
        Some(())
    }
}
