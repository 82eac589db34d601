//! Unwind information for return stubs, so that a stack walk passes through them (RET_8, RET_7).
//!
//! An unwinder that finds a stub's address where a return address should be looks up the frame description of
//! the stub's chunk. The one built here says: the caller's registers are what they are, its stack pointer is
//! the present one, and its return address is in a table, at the stub's number.
//!
//! The *table* holds one doubleword per stub of the chunk, number 0 included: the **final** return address, in the
//! program's own text, of the call that the stub was handed out for (where it had found another stub as its return
//! address, that stub's word). It is written before the stub is put into LR.
//!
//! Which stub it is, the description reads from the LR save doubleword of the caller's frame, where a function that calls
//! another one has put it; where that holds no stub of the chunk (a leaf, interrupted by a signal), from LR, which
//! libgcc's unwinder knows and LLVM's does not. Where neither does, it answers 0 (the table's first word): the end.
//!
//! r2 needs a rule: a caller in another object has its TOC pointer saved in its frame, and reloads it at the return
//! address (`ld 2,24(1)` on ELFv2, `ld 2,40(1)` on ELFv1). Unwinders look for that instruction at the return address, which
//! they find at a stub's only here.
//!
//! The frame's CFA is one byte above its stack pointer, on purpose: libgcc's second phase recognises the frame
//! with the handler by its CFA, and a stub's frame with the same CFA as the probed function's would be taken for it.
//!
//! Format: Linux Standard Base core 5.0, 10.6 (.eh_frame); DWARF 5, 2.5 and 6.4; register numbers: ELFv2 ABI 1.5, 2.4.
//! Pure; called at registration.

use crate::call::STUB_LEN;
use crate::{Abi, Endian};
use probe_core::CodeAddr;

/// The room that the description of one chunk takes, in bytes; see [`eh_frame`].
pub const EH_FRAME_LEN: usize = 224;

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

const LR: u8 = 65;
const SP: u8 = 1;
const TOC: u8 = 2;
const DW_CFA_DEF_CFA: u8 = 0x0c;
const DW_CFA_VAL_EXPRESSION: u8 = 0x16;
const DW_OP_DEREF: u8 = 0x06;
const DW_OP_CONST1U: u8 = 0x08;
const DW_OP_CONST4U: u8 = 0x0c;
const DW_OP_CONST8U: u8 = 0x0e;
const DW_OP_DUP: u8 = 0x12;
const DW_OP_DROP: u8 = 0x13;
const DW_OP_MINUS: u8 = 0x1c;
const DW_OP_MUL: u8 = 0x1e;
const DW_OP_PLUS: u8 = 0x22;
const DW_OP_SHR: u8 = 0x25;
const DW_OP_BRA: u8 = 0x28;
const DW_OP_EQ: u8 = 0x29;
const DW_OP_SKIP: u8 = 0x2f;
const DW_OP_LIT0: u8 = 0x30;
const DW_OP_BREG0: u8 = 0x70;
const DW_OP_BREGX: u8 = 0x92;
const DW_OP_DEREF_SIZE: u8 = 0x94;

/// Describes the chunk of `len_bytes` bytes of return stubs at `chunk`, whose real return addresses are in the table of
/// doublewords at `table` (see the module's description).
///
/// `chunk` is aligned to the power of two that is `len_bytes` or the next above it, as
/// [`Arch::fill_stubs`](probe_core::arch::Arch::fill_stubs) says.
#[must_use]
pub fn eh_frame<E: Endian, A: Abi>(chunk: CodeAddr, len_bytes: usize, table: usize) -> EhFrame {
    let mut section = Section::<E>::default();
    let cie = section.begin();
    section.u32(0);
    // Version 1, augmentation "zR", code alignment 4, data alignment -8, return address in LR.
    section.put(&[1, b'z', b'R', 0, 4, 0x78, LR]);
    // One byte of augmentation data: absolute pointers.
    section.put(&[1, 0]);
    section.put(&[DW_CFA_DEF_CFA, SP, 1]);
    section.put(&[DW_CFA_VAL_EXPRESSION, SP, 2, DW_OP_BREG0 + SP, 0]);
    section.end(cie);

    let description_at = section.len;
    let fde = section.begin();
    section.u32(section.len as u32);
    section.u64(chunk.as_usize());
    section.u64(len_bytes);
    section.put(&[0]);
    section.put(&[DW_CFA_VAL_EXPRESSION, LR, LOOKUP_LEN]);
    let stubs = Stubs { chunk, log2: len_bytes.next_power_of_two().trailing_zeros() as u8, table };
    section.look_up(&stubs);
    section.restored_toc::<A>(&stubs);
    section.end(fde);

    // The zeros behind are the terminator.
    EhFrame { bytes: section.bytes, description_at }
}

/// The length of the expression that looks the return address up.
const LOOKUP_LEN: u8 = 60;

/// The LR save doubleword, from the caller's stack pointer; the same on both ABIs.
const LR_SAVE: u8 = 16;

/// A chunk: its address, the logarithm of its size, and the table of its return addresses.
struct Stubs {
    chunk: CodeAddr,
    log2: u8,
    table: usize,
}

struct Section<E> {
    bytes: [u8; EH_FRAME_LEN],
    len: usize,
    _endian: core::marker::PhantomData<E>,
}

impl<E> Default for Section<E> {
    fn default() -> Self {
        Self { bytes: [0; EH_FRAME_LEN], len: 0, _endian: core::marker::PhantomData }
    }
}

impl<E: Endian> Section<E> {
    /// `*(table + distance / STUB_LEN * 8)`, where distance is how far a stub's address lies above the chunk's start.
    fn look_up(&mut self, stubs: &Stubs) {
        const { assert!(8 % STUB_LEN == 0) };
        self.put(&[DW_OP_BREG0 + SP, LR_SAVE, DW_OP_DEREF]);
        self.distance(stubs);
        self.skip_if_in_chunk(stubs, 14);
        self.put(&[DW_OP_DROP, DW_OP_BREGX, LR, 0]);
        self.distance(stubs);
        self.skip_if_in_chunk(stubs, 2);
        self.put(&[DW_OP_DROP, DW_OP_LIT0]);
        self.put(&[DW_OP_LIT0 + (8 / STUB_LEN) as u8, DW_OP_MUL, DW_OP_CONST8U]);
        self.u64(stubs.table);
        self.put(&[DW_OP_PLUS, DW_OP_DEREF]);
    }

    fn distance(&mut self, stubs: &Stubs) {
        self.put(&[DW_OP_CONST8U]);
        self.u64(stubs.chunk.as_usize());
        self.put(&[DW_OP_MINUS]);
    }

    /// Skips the next `bytes` if the distance on top of the stack is less than the chunk's size (it is unsigned: shifted).
    fn skip_if_in_chunk(&mut self, stubs: &Stubs, bytes: u8) {
        self.put(&[DW_OP_DUP, DW_OP_CONST1U, stubs.log2, DW_OP_SHR, DW_OP_LIT0, DW_OP_EQ]);
        self.branch(DW_OP_BRA, bytes);
    }

    /// r2: from the caller's TOC doubleword, if the instruction at the return address reloads it; else as it is.
    fn restored_toc<A: Abi>(&mut self, stubs: &Stubs) {
        const RELOAD: u32 = 58 << 26 | 2 << 21 | 1 << 16;
        let slot = if A::HAS_LOCAL_ENTRY { 24 } else { 40 };
        self.put(&[DW_CFA_VAL_EXPRESSION, TOC, LOOKUP_LEN + 28]);
        self.look_up(stubs);
        // No return address: nothing to look at.
        self.put(&[DW_OP_DUP]);
        self.branch(DW_OP_BRA, 5);
        self.put(&[DW_OP_BREG0 + TOC, 0]);
        self.branch(DW_OP_SKIP, 19);
        self.put(&[DW_OP_DEREF_SIZE, 4, DW_OP_CONST4U]);
        self.u32(RELOAD | u32::from(slot));
        self.put(&[DW_OP_EQ]);
        self.branch(DW_OP_BRA, 5);
        self.put(&[DW_OP_BREG0 + TOC, 0]);
        self.branch(DW_OP_SKIP, 3);
        self.put(&[DW_OP_BREG0 + SP, slot, DW_OP_DEREF]);
    }

    fn branch(&mut self, op: u8, bytes: u8) {
        // A two-byte offset in the target's byte order.
        let [a, b, c, d] = E::bytes(u32::from(bytes));
        let offset = if a == 0 { [c, d] } else { [a, b] };
        self.put(&[op, offset[0], offset[1]]);
    }

    /// Leaves room for an entry's length and returns where it starts.
    fn begin(&mut self) -> usize {
        let at = self.len;
        self.u32(0);
        at
    }

    /// Pads the entry with DW_CFA_nop and writes its length.
    fn end(&mut self, start: usize) {
        self.len = start + (self.len - start).next_multiple_of(8);
        let length = (self.len - start - 4) as u32;
        if let Some(room) = self.bytes.get_mut(start..start + 4) {
            room.copy_from_slice(&E::bytes(length));
        }
    }

    fn u32(&mut self, value: u32) {
        self.put(&E::bytes(value));
    }

    fn u64(&mut self, value: usize) {
        self.put(&E::doubleword_bytes(value as u64));
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
    use crate::{Big, ElfV1, ElfV2, Little};

    fn is_well_formed<E: Endian, A: Abi>() {
        let frame = eh_frame::<E, A>(CodeAddr::new(0x12_0000), 0xfff8, 0x7777_0000);
        let u32_at = |at: usize| E::word(*frame.bytes[at..].first_chunk().unwrap()) as usize;
        let u64_at = |at: usize| E::doubleword(*frame.bytes[at..].first_chunk().unwrap());
        assert_eq!(u32_at(0) + 4, frame.description_at);
        let fde = frame.description_at;
        let end = fde + 4 + u32_at(fde);
        assert_eq!(u32_at(fde + 4), fde + 4, "leads back to the CIE at 0");
        assert_eq!((u64_at(fde + 8), u64_at(fde + 16)), (0x12_0000, 0xfff8));
        assert_eq!(u32_at(end), 0, "a terminator fits behind");
        // Both expressions end in DW_OP_deref where their lengths say.
        let first = fde + 25;
        assert_eq!(frame.bytes[first..first + 3], [DW_CFA_VAL_EXPRESSION, LR, LOOKUP_LEN]);
        let second = first + 3 + usize::from(LOOKUP_LEN);
        assert_eq!(frame.bytes[second - 1], DW_OP_DEREF);
        assert_eq!(frame.bytes[second..second + 2], [DW_CFA_VAL_EXPRESSION, TOC]);
        let last = second + 2 + usize::from(frame.bytes[second + 2]);
        assert_eq!(frame.bytes[last], DW_OP_DEREF);
        assert!(frame.bytes[last + 1..].iter().all(|byte| *byte == 0));
        // The branches land on DW_OP_breg1 and on the end.
        let (bra, skip) = (last - 10, last - 5);
        let offset = |at: usize| usize::from(frame.bytes[at + 1] | frame.bytes[at + 2]);
        assert_eq!((frame.bytes[bra], bra + 3 + offset(bra)), (DW_OP_BRA, last - 2));
        assert_eq!((frame.bytes[skip], skip + 3 + offset(skip)), (DW_OP_SKIP, last + 1));
    }

    #[test]
    fn the_section_is_well_formed() {
        is_well_formed::<Big, ElfV1>();
        is_well_formed::<Big, ElfV2>();
        is_well_formed::<Little, ElfV2>();
    }
}
