//! The bytes of a section: numbers in the program's byte order, entries with their lengths, rules with
//! theirs.

use crate::{ByteOrder, EH_FRAME_LEN};

pub(crate) const DW_CFA_DEF_CFA: u8 = 0x0c;
pub(crate) const DW_CFA_VAL_EXPRESSION: u8 = 0x16;
pub(crate) const DW_OP_DEREF: u8 = 0x06;
pub(crate) const DW_OP_CONST1U: u8 = 0x08;
pub(crate) const DW_OP_CONST4U: u8 = 0x0c;
pub(crate) const DW_OP_CONST8U: u8 = 0x0e;
pub(crate) const DW_OP_DUP: u8 = 0x12;
pub(crate) const DW_OP_DROP: u8 = 0x13;
pub(crate) const DW_OP_AND: u8 = 0x1a;
pub(crate) const DW_OP_MINUS: u8 = 0x1c;
pub(crate) const DW_OP_MUL: u8 = 0x1e;
pub(crate) const DW_OP_PLUS: u8 = 0x22;
pub(crate) const DW_OP_SHR: u8 = 0x25;
pub(crate) const DW_OP_BRA: u8 = 0x28;
pub(crate) const DW_OP_EQ: u8 = 0x29;
pub(crate) const DW_OP_LT: u8 = 0x2d;
pub(crate) const DW_OP_SKIP: u8 = 0x2f;
pub(crate) const DW_OP_LIT0: u8 = 0x30;
pub(crate) const DW_OP_BREG0: u8 = 0x70;
pub(crate) const DW_OP_BREGX: u8 = 0x92;
pub(crate) const DW_OP_DEREF_SIZE: u8 = 0x94;

/// What the format wants to know of an architecture.
#[derive(Debug)]
pub(crate) struct Machine {
    /// The stack pointer's DWARF number.
    pub(crate) stack_pointer: u8,
    /// The return address's DWARF number.
    pub(crate) return_address: u8,
    pub(crate) code_alignment: u8,
    /// The length of a word in bytes.
    pub(crate) word: usize,
    pub(crate) order: ByteOrder,
}

impl Machine {
    /// -word as SLEB128.
    pub(crate) fn minus_word(&self) -> u8 {
        0x80 - self.word as u8
    }
}

/// A section that is being written. A section that does not fit is cut off: the tests hold that
/// [`EH_FRAME_LEN`] is enough for the longest.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) bytes: [u8; EH_FRAME_LEN],
    len: usize,
    machine: &'static Machine,
}

impl Section {
    pub(crate) fn new(machine: &'static Machine) -> Self {
        Self { bytes: [0; EH_FRAME_LEN], len: 0, machine }
    }

    /// The length of a word in bytes.
    pub(crate) fn word_len(&self) -> usize {
        self.machine.word
    }

    /// Leaves room for an entry's length and returns where it starts.
    pub(crate) fn begin(&mut self) -> usize {
        let at = self.len;
        self.u32(0);
        at
    }

    /// Pads the entry with DW_CFA_nop and writes its length.
    pub(crate) fn end(&mut self, start: usize) {
        self.len = start + (self.len - start).next_multiple_of(self.machine.word);
        let end = self.len;
        self.len = start;
        self.u32((end - start - 4) as u32);
        self.len = end;
    }

    /// The rule that a register is what an expression says, which is less than 128 bytes long.
    pub(crate) fn rule(&mut self, register: u8, expression: impl FnOnce(&mut Self)) {
        self.put(&[DW_CFA_VAL_EXPRESSION, register, 0]);
        let start = self.len;
        expression(self);
        let len = (self.len - start) as u8;
        if let Some(room) = self.bytes.get_mut(start - 1) {
            *room = len;
        }
    }

    /// Pushes a register plus `offset`, a byte of SLEB128.
    pub(crate) fn register(&mut self, number: u8, offset: u8) {
        match number {
            0..32 => self.put(&[DW_OP_BREG0 + number, offset]),
            _ => self.put(&[DW_OP_BREGX, number, offset]),
        }
    }

    /// Pushes a constant of a word's length.
    pub(crate) fn constant(&mut self, value: usize) {
        self.put(&[if self.machine.word == 8 { DW_OP_CONST8U } else { DW_OP_CONST4U }]);
        self.word(value);
    }

    /// A branch over the next `bytes`.
    pub(crate) fn branch(&mut self, op: u8, bytes: u8) {
        self.put(&[op]);
        self.number(u64::from(bytes), 2);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.number(u64::from(value), 4);
    }

    pub(crate) fn word(&mut self, value: usize) {
        self.number(value as u64, self.machine.word);
    }

    fn number(&mut self, value: u64, len_bytes: usize) {
        let image = match self.machine.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => (value << (64 - 8 * len_bytes)).to_be_bytes(),
        };
        self.put(image.get(..len_bytes).unwrap_or(&image));
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

/// Where the operations of an expression start.
#[cfg(test)]
pub(crate) fn operations(expression: &[u8]) -> Starts {
    let mut starts = Starts { at: [0; EH_FRAME_LEN], len: 0 };
    let mut at = 0;
    while let Some(&op) = expression.get(at) {
        starts.at[starts.len] = at;
        starts.len += 1;
        at += match op {
            DW_OP_CONST8U => 9,
            DW_OP_CONST4U => 5,
            DW_OP_BRA | DW_OP_SKIP | DW_OP_BREGX => 3,
            DW_OP_CONST1U | DW_OP_DEREF_SIZE | DW_OP_BREG0..0x90 => 2,
            _ => 1,
        };
    }
    starts
}

/// The answer of [`operations`], without a heap.
#[cfg(test)]
pub(crate) struct Starts {
    at: [usize; EH_FRAME_LEN],
    len: usize,
}

#[cfg(test)]
impl Starts {
    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.at[..self.len]
    }
}
