//! Unwind information for return stubs, so that a stack walk passes through them (RET_8, RET_7).
//!
//! An unwinder that finds a stub's address where a return address should be looks up the frame description of
//! the stub's chunk. The one built here says: the caller's registers are what they are, its stack pointer is
//! the present one, and its return address is in a table, at the stub's number.
//!
//! The *table* holds one word (`usize`) per stub of the chunk, number 0 included: the **final** return address, in
//! the program's own text, of the call that the stub was handed out for. Where a second return probe finds the
//! first one's stub as its return address, the table's word is the first one's word, not the stub: then one
//! step of the unwinder passes the whole chain. The word is written before the stub is put on the stack.
//!
//! The frame's CFA is one byte above its stack pointer, on purpose. libgcc's second phase recognises the frame
//! with the handler by its CFA, and a stub's frame with the same CFA as the probed function's would be
//! taken for it.
//!
//! Format: Linux Standard Base core 5.0, 10.6 (.eh_frame); DWARF 5, 2.5 and 6.4.

use crate::STUB_LEN;
use crate::mode::Mode;
use probe_core::CodeAddr;

/// The room that the description of one chunk takes, in bytes; see [`eh_frame`].
pub const EH_FRAME_LEN: usize = 128;

/// The frame description of one chunk of return stubs, as the bytes of an `.eh_frame` section.
///
/// glibc's and libgcc's `__register_frame` take the address of the section; LLVM's libunwind takes that of the
/// frame description itself, at [`EhFrame::description_at`]. The bytes must stay where they are while
/// registered; they hold absolute addresses only, so it does not matter where that is.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub struct EhFrame {
    /// The section: a common information entry, a frame description entry, a terminator.
    pub bytes: [u8; EH_FRAME_LEN],
    /// Where in `bytes` the frame description entry starts.
    pub description_at: usize,
}

/// Describes the chunk of `len_bytes` bytes of return stubs at `chunk`, whose real return addresses are in the table of
/// words at `table` (see the module's description).
#[must_use]
pub fn eh_frame<M: Mode>(chunk: CodeAddr, len_bytes: usize, table: usize) -> EhFrame {
    let mut section = Section { bytes: [0; EH_FRAME_LEN], len: 0 };
    let (stack_pointer, return_address) = if M::IS_LONG { (7, 16) } else { (4, 8) };

    // -word as SLEB128.
    let data_alignment = if M::IS_LONG { 0x78 } else { 0x7c };

    let cie = section.begin();
    section.put(&0u32.to_le_bytes());
    // Version 1, augmentation "zR", code alignment 1, data alignment -word.
    section.put(&[1, b'z', b'R', 0, 1, data_alignment, return_address]);
    // One byte of augmentation data: absolute pointers.
    section.put(&[1, 0]);
    section.put(&[DW_CFA_DEF_CFA, stack_pointer, 1]);
    section.put(&[DW_CFA_VAL_EXPRESSION, stack_pointer, 2, DW_OP_BREG0 + stack_pointer, 0]);
    section.end(cie, M::WORD);

    let description_at = section.len;
    let fde = section.begin();
    let to_cie = section.len as u32;
    section.put(&to_cie.to_le_bytes());
    section.word::<M>(chunk.as_usize());
    section.word::<M>(len_bytes);
    section.put(&[0]);
    section.put(&[DW_CFA_VAL_EXPRESSION, return_address, lookup_len::<M>()]);
    // table[(stub - chunk) / STUB_LEN], where the stub's address lies right below the stack pointer (or that plus
    // STUB_CALL_LEN, once the stub has run). Not all unwinders can name the program counter in an expression. What the
    // unwinder pushed first is left below.
    section.put(&[DW_OP_BREG0 + stack_pointer, data_alignment, DW_OP_DEREF, word_op::<M>()]);
    section.word::<M>(chunk.as_usize());
    section.put(&[DW_OP_MINUS, DW_OP_LIT0 + STUB_LEN.trailing_zeros() as u8, DW_OP_SHR]);
    section.put(&[DW_OP_LIT0 + M::WORD as u8, DW_OP_MUL, word_op::<M>()]);
    section.word::<M>(table);
    section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
    section.end(fde, M::WORD);

    // The zeros behind are the terminator.
    EhFrame { bytes: section.bytes, description_at }
}

const DW_CFA_DEF_CFA: u8 = 0x0c;
const DW_CFA_VAL_EXPRESSION: u8 = 0x16;
const DW_OP_DEREF: u8 = 0x06;
const DW_OP_CONST4U: u8 = 0x0c;
const DW_OP_CONST8U: u8 = 0x0e;
const DW_OP_MINUS: u8 = 0x1c;
const DW_OP_MUL: u8 = 0x1e;
const DW_OP_PLUS: u8 = 0x22;
const DW_OP_SHR: u8 = 0x25;
const DW_OP_LIT0: u8 = 0x30;
const DW_OP_BREG0: u8 = 0x70;

const fn word_op<M: Mode>() -> u8 {
    if M::IS_LONG { DW_OP_CONST8U } else { DW_OP_CONST4U }
}

/// The length of the expression that looks the return address up.
const fn lookup_len<M: Mode>() -> u8 {
    12 + 2 * M::WORD as u8
}

struct Section {
    bytes: [u8; EH_FRAME_LEN],
    len: usize,
}

impl Section {
    /// Leaves room for an entry's length and returns where it starts.
    fn begin(&mut self) -> usize {
        let at = self.len;
        self.put(&[0; 4]);
        at
    }

    /// Pads the entry with DW_CFA_nop and writes its length.
    fn end(&mut self, start: usize, word: usize) {
        self.len = start + (self.len - start).next_multiple_of(word);
        let length = (self.len - start - 4) as u32;
        if let Some(room) = self.bytes.get_mut(start..start + 4) {
            room.copy_from_slice(&length.to_le_bytes());
        }
    }

    fn word<M: Mode>(&mut self, value: usize) {
        let image = (value as u64).to_le_bytes();
        self.put(image.get(..M::WORD).unwrap_or(&image));
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}
