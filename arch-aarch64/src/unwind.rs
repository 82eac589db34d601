//! Unwind information for return stubs, so that a stack walk passes through them (RET_8, RET_7).
//!
//! An unwinder that finds a stub's address where a return address should be looks up the frame description of
//! the stub's chunk. The one built here says: the caller's registers are what they are, its stack pointer is
//! the present one, and its return address is in a table, at the stub's number.
//!
//! The *table* holds one word per stub of the chunk, number 0 included: the **final** return address, in the
//! program's own text, of the call that the stub was handed out for (where it had found another stub as its return
//! address, that stub's word). It is written before the stub is put into X30.
//!
//! Which stub it is, the description reads from X30 where that is a stub of the chunk, else from the program counter:
//! - libgcc restores X30 with the other registers from the probed function's frame (perhaps signed: only the bits that
//!   pointer authentication leaves alone are looked at) and gives no access to the program counter.
//! - LLVM's libunwind restores the program counter only, and leaves in X30 what was there when the walk began.
//!
//! The frame's CFA is one byte above its stack pointer, on purpose: libgcc's second phase recognises the frame
//! with the handler by its CFA, and a stub's frame with the same CFA as the probed function's would be taken for it.
//!
//! Format: Linux Standard Base core 5.0, 10.6 (.eh_frame); DWARF 5, 2.5 and 6.4; DWARF for the Arm 64-bit Architecture
//! (IHI 0057) 4.1 for the register numbers. Pure; called at registration.

use probe_core::CodeAddr;

/// The room that the description of one chunk takes, in bytes; see [`eh_frame`].
pub const EH_FRAME_LEN: usize = 144;

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
/// eight-byte words at `table` (see the module's description).
#[must_use]
pub fn eh_frame(chunk: CodeAddr, len_bytes: usize, table: usize) -> EhFrame {
    let mut section = Section { bytes: [0; EH_FRAME_LEN], len: 0 };
    let cie = section.begin();
    section.put(&0u32.to_ne_bytes());
    // Version 1, augmentation "zR", code alignment 4, data alignment -8, return address in X30.
    section.put(&[1, b'z', b'R', 0, 4, 0x78, X30]);
    // One byte of augmentation data: absolute pointers.
    section.put(&[1, 0]);
    section.put(&[DW_CFA_DEF_CFA, SP, 1]);
    section.put(&[DW_CFA_VAL_EXPRESSION, SP, 2, DW_OP_BREG0 + SP, 0]);
    section.end(cie);

    let description_at = section.len;
    let fde = section.begin();
    let to_cie = section.len as u32;
    section.put(&to_cie.to_ne_bytes());
    section.word(chunk.as_usize());
    section.word(len_bytes);
    section.put(&[0]);
    section.put(&[DW_CFA_VAL_EXPRESSION, X30, LOOKUP_LEN as u8]);
    let lookup = section.len;
    // The stub's offset in the chunk, from X30 …
    section.put(&[DW_OP_BREG0 + X30, 0]);
    section.constant(chunk.as_usize() as u64);
    section.put(&[DW_OP_MINUS]);
    section.constant(UNSIGNED_BITS);
    section.put(&[DW_OP_AND, DW_OP_DUP]);
    section.constant(len_bytes as u64);
    // … if it is less than the chunk's length, else from the program counter.
    section.put(&[DW_OP_LT, DW_OP_BRA]);
    section.put(&FROM_PC_LEN.to_ne_bytes());
    let from_pc = section.len;
    section.put(&[DW_OP_DROP, DW_OP_BREGX, PC, 0]);
    section.constant(chunk.as_usize() as u64);
    section.put(&[DW_OP_MINUS]);
    debug_assert_eq!(section.len - from_pc, usize::from(FROM_PC_LEN));
    // A stub is as long as a word of the table.
    const { assert!(crate::call::STUB_LEN == size_of::<u64>()) };
    section.constant(table as u64);
    section.put(&[DW_OP_PLUS, DW_OP_DEREF]);
    debug_assert_eq!(section.len - lookup, LOOKUP_LEN);
    section.end(fde);

    // The zeros behind are the terminator.
    EhFrame { bytes: section.bytes, description_at }
}

const X30: u8 = 30;
const SP: u8 = 31;
const PC: u8 = 32;
/// The bits of a code address that pointer authentication never replaces: the smallest virtual address space has 36.
const UNSIGNED_BITS: u64 = (1 << 36) - 1;
const FROM_PC_LEN: u16 = 4 + 9 + 1;
const LOOKUP_LEN: usize = 2 + 9 + 1 + 9 + 2 + 9 + 4 + FROM_PC_LEN as usize + 9 + 2;
const DW_CFA_DEF_CFA: u8 = 0x0c;
const DW_CFA_VAL_EXPRESSION: u8 = 0x16;
const DW_OP_DEREF: u8 = 0x06;
const DW_OP_CONST8U: u8 = 0x0e;
const DW_OP_DUP: u8 = 0x12;
const DW_OP_DROP: u8 = 0x13;
const DW_OP_AND: u8 = 0x1a;
const DW_OP_MINUS: u8 = 0x1c;
const DW_OP_PLUS: u8 = 0x22;
const DW_OP_BRA: u8 = 0x28;
const DW_OP_LT: u8 = 0x2d;
const DW_OP_BREG0: u8 = 0x70;
const DW_OP_BREGX: u8 = 0x92;

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
    fn end(&mut self, start: usize) {
        self.len = start + (self.len - start).next_multiple_of(8);
        let length = (self.len - start - 4) as u32;
        if let Some(room) = self.bytes.get_mut(start..start + 4) {
            room.copy_from_slice(&length.to_ne_bytes());
        }
    }

    fn word(&mut self, value: usize) {
        self.put(&(value as u64).to_ne_bytes());
    }

    fn constant(&mut self, value: u64) {
        self.put(&[DW_OP_CONST8U]);
        self.put(&value.to_ne_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_well_formed() {
        let frame = eh_frame(CodeAddr::new(0x12_0000), 0x1_0000 - 8, 0x7777_0000);
        let u32_at = |at: usize| u32::from_ne_bytes(*frame.bytes[at..].first_chunk().unwrap()) as usize;
        let u64_at = |at: usize| u64::from_ne_bytes(*frame.bytes[at..].first_chunk().unwrap());
        assert_eq!(u32_at(0) + 4, frame.description_at);
        let fde = frame.description_at;
        let end = fde + 4 + u32_at(fde);
        assert_eq!(u32_at(fde + 4), fde + 4, "leads back to the CIE at 0");
        assert_eq!((u64_at(fde + 8), u64_at(fde + 16)), (0x12_0000, 0xfff8));
        assert_eq!(u32_at(end), 0, "a terminator fits behind");
        // The expression ends in DW_OP_deref where its length says.
        let expression = fde + 25;
        let len = usize::from(frame.bytes[expression + 2]);
        assert_eq!(frame.bytes[expression..expression + 2], [DW_CFA_VAL_EXPRESSION, X30]);
        assert_eq!(frame.bytes[expression + 2 + len], DW_OP_DEREF);
        assert_eq!(u64_at(expression + 2 + len - 9), 0x7777_0000);
        assert!(frame.bytes[expression + 3 + len..].iter().all(|byte| *byte == 0));
    }
}
