//! Calls: arguments, return value, return address, return stubs, jprobes.
//!
//! The Procedure Call Standard for the Arm 64-bit Architecture (AAPCS64, IHI 0055, release 2023Q3). The
//! return address of a call is in X30 until the function saves it, so return probes replace X30 *before* the
//! prologue, on the function's first instruction or after its BTI: PACIASP then signs the stub's address and
//! AUTIASP or RETAA authenticates it, exactly as it would the caller's. After PACIASP X30 is signed and must
//! not be replaced; [`crate::decode::entry_offset`] ends before it, and a return probe that is asked for
//! behind it is set there ([`crate::decode::entry_end`]).
//!
//! Not supported: FEAT_GCS. A guarded control stack holds the real return address and faults on a return to a
//! stub; likewise the simulated `bl` and `ret` do not push or pop it. Pure; on the hit path but for
//! [`fill_stubs`].

use crate::insn;
use crate::regs::PtRegs;
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory, Returns};

/// The registers that carry integer arguments: X0 to X7 (AAPCS64 6.8.2).
const REGISTER_ARGUMENTS: usize = 8;
/// The size of a return stub.
pub(crate) const STUB_LEN: usize = 8;
/// How much of the caller's argument area a jprobe copies: 32 stack words.
pub(crate) const ARGUMENT_AREA: usize = 256;

pub(crate) fn argument<M: Memory>(regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
    if index < REGISTER_ARGUMENTS {
        return Some(regs.x[index] as usize);
    }
    // AAPCS64 6.8.2 C.14 to C.16: every integer argument takes eight bytes of stack.
    let offset = (index - REGISTER_ARGUMENTS).checked_mul(8)?;
    memory.read_usize((regs.sp as usize).checked_add(offset)?).ok()
}

/// How much of live stack is scanned for a stub's address.
const LIVE_SCAN: usize = 16 * 1024;
/// How much of the running stack is scanned for a signal frame.
const SIGNAL_SCAN: usize = 64 * 1024;
/// How much dead stack below a frame is searched where the stack pointer is not below the frame.
const DEAD_SCAN: usize = 2 * 1024;
/// The bits of a code address that pointer authentication never replaces: the smallest virtual address space
/// of Linux has 36 bits, and bit 55 selects the half (DDI 0487J.a D8.8).
const UNSIGNED_BITS: u64 = ((1 << 36) - 1) | (1 << 55);

/// Whether a call that was entered with the stack pointer at `frame` may still return to `stub`.
///
/// A live call that calls others has saved its return address, `stub`, somewhere below `frame`, perhaps
/// signed. So if the stack pointer is below the frame, the stack between the two is searched. If it is above,
/// the frame has been left, or this is another stack, and two areas are searched: the memory below the frame
/// (a sleeping coroutine's frames are intact, and the next calls overwrite a frame that was left), and the
/// running stack (a leaf has its return address in X30 only, and a signal that interrupts it saves X30 in the
/// signal frame, perhaps on a stack of its own). If the stack pointer is at the frame, another call has taken
/// the frame's place, and the old one is over.
///
/// The caller must not ask about a `stub` that is in X30 right now (a tail call): that call is live, and on
/// no stack yet.
pub(crate) fn may_return<M: Memory>(frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool {
    if sp == frame {
        return false;
    }
    let is_live = sp < frame;
    let low = if is_live { sp } else { frame.saturating_sub(DEAD_SCAN) };
    if is_live && frame - low > LIVE_SCAN {
        return true;
    }
    holds_stub(low & !7, frame, stub, memory).unwrap_or(is_live)
        || !is_live && stack_holds_stub(sp, stub, memory)
}

/// How a `word` that a call has saved returns to `stub`.
pub(crate) fn returns(word: usize, stub: CodeAddr) -> Returns {
    let (word, stub) = (word as u64, stub.as_usize() as u64);
    match (word == stub, word & UNSIGNED_BITS == stub & UNSIGNED_BITS) {
        (true, _) => Returns::Plainly,
        (false, true) => Returns::Signed,
        (false, false) => Returns::Elsewhere,
    }
}

/// Searches the running stack from `sp` upwards, to its end or as far as signal frames lie from their
/// handlers' calls.
fn stack_holds_stub<M: Memory>(sp: usize, stub: CodeAddr, memory: &M) -> bool {
    // Aligned pieces, which end where the mapping ends.
    const PIECE: usize = 128;
    let start = sp & !(PIECE - 1);
    for at in (start..start.saturating_add(SIGNAL_SCAN)).step_by(PIECE) {
        match holds_stub(at.max(sp & !7), at + PIECE, stub, memory) {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Searches `low..high` from the top down: only the lowest part of a dead stack may be unmapped, and that
/// ends the search.
fn holds_stub<M: Memory>(low: usize, high: usize, stub: CodeAddr, memory: &M) -> Result<bool, MemFault> {
    const CHUNK: usize = 128;
    let wanted = stub.as_usize() as u64 & UNSIGNED_BITS;
    let mut top = high & !7;
    while top > low {
        let len = CHUNK.min(top - low);
        let mut bytes = [0; CHUNK];
        memory.read(top - len, &mut bytes[..len])?;
        let (words, _) = bytes[..len].as_chunks::<8>();
        if words.iter().any(|word| u64::from_ne_bytes(*word) & UNSIGNED_BITS == wanted) {
            return Ok(true);
        }
        top -= len;
    }
    Ok(false)
}

/// The veneer at the end of a chunk of stubs, and the two words that it loads.
///
/// At a return the ABI leaves X9 to X17 dead; X16 and X17 may be changed even between a call and its callee
/// (AAPCS64 6.1.1). Only those two are changed here, and they are saved on the dead stack below SP, kept
/// 16-byte aligned.
const VENEER: [u32; 4] = [
    0x5800_00d1, // ldr x17, handler
    0xa9bf_47f0, // stp x16, x17, [sp, #-16]!
    0x5800_0051, // ldr x17, trampoline
    0xd61f_0220, // br x17
];
const VENEER_LEN: usize = VENEER.len() * 4 + 16;

/// Fills `out`, to lie at a multiple of 8, with `adr x16, . ; b veneer` stubs and the veneer; returns their
/// number.
pub(crate) fn fill_stubs(trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    let count = out.len().saturating_sub(VENEER_LEN) / STUB_LEN;
    let veneer = count * STUB_LEN;
    for (index, stub) in out[..veneer].chunks_exact_mut(STUB_LEN).enumerate() {
        const ADR_X16_HERE: u32 = 0x1000_0010;
        let branch_at = index * STUB_LEN + 4;
        // A chunk beyond the reach of `b` is 128 MiB: none is.
        let branch = insn::branch((veneer - branch_at) as isize).unwrap_or(insn::breakpoint(insn::PROBE_IMM));
        stub[..4].copy_from_slice(&ADR_X16_HERE.to_le_bytes());
        stub[4..].copy_from_slice(&branch.to_le_bytes());
    }
    let breakpoints = core::iter::repeat(insn::breakpoint(insn::PROBE_IMM));
    for (bytes, word) in out[veneer..].chunks_exact_mut(4).zip(VENEER.into_iter().chain(breakpoints)) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    if let Some(words) = out.get_mut(veneer + VENEER.len() * 4..veneer + VENEER_LEN) {
        let (first, second) = words.split_at_mut(8);
        first.copy_from_slice(&(trampoline.as_usize() as u64).to_ne_bytes());
        second.copy_from_slice(&(handler as u64).to_ne_bytes());
    }
    count
}

/// Calls `handler` with copies of the arguments of the call that `regs` has just entered.
///
/// X0 to X8 and the vector registers hold them already; the stack arguments are copied to a new argument area
/// (as much of [`ARGUMENT_AREA`] as can be read: what lies beyond the stack's end is no argument).
pub(crate) fn enter_jprobe<M: Memory>(
    regs: &mut PtRegs,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let mut area = [0; ARGUMENT_AREA];
    let from = regs.sp as usize;
    let to = from.wrapping_sub(ARGUMENT_AREA) & !15;
    if memory.read(from, &mut area).is_err() {
        for (index, piece) in area.chunks_exact_mut(16).enumerate() {
            if memory.read(from.wrapping_add(index * 16), piece).is_err() {
                piece.fill(0);
                break;
            }
        }
    }
    memory.write(to, &area)?;
    regs.sp = to as u64;
    regs.x[30] = return_to.as_usize() as u64;
    regs.pc = handler as u64;
    regs.set_btype(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bytes, NoMemory};

    fn numbered() -> PtRegs {
        PtRegs { x: core::array::from_fn(|i| i as u64 + 100), sp: 0x7000, ..PtRegs::default() }
    }

    fn words(values: impl IntoIterator<Item = u64>) -> std::vec::Vec<u8> {
        values.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    #[test]
    fn arguments_are_in_eight_registers_and_then_on_the_stack() {
        let stack = Bytes::new(0x7000, &words([900, 901]));
        let got: std::vec::Vec<_> = (0..11).map(|i| argument(&numbered(), i, &stack)).collect();
        let want = (100..108).chain([900, 901]).map(Some).chain([None]);
        assert!(got.into_iter().eq(want));
        assert_eq!(argument(&numbered(), usize::MAX, &stack), None);
    }

    #[test]
    fn stubs_lead_to_the_veneer() {
        let mut out = [0xffu8; 64];
        assert_eq!(fill_stubs(CodeAddr::new(0x1234_5678), 0x9abc_def0, &mut out), 4);
        let word = |offset: usize| insn::word_at(&out[offset..]).unwrap();
        for index in 0..4 {
            assert_eq!(word(index * 8), 0x1000_0010, "adr x16, .");
            let target = index as i32 * 8 + 4 + insn::offset26(word(index * 8 + 4));
            assert_eq!(target, 32, "b veneer");
        }
        assert_eq!(core::array::from_fn(|i| word(32 + i * 4)), VENEER);
        // The literals that the veneer names: trampoline at +16, handler at +24.
        assert_eq!(8 + insn::offset19(VENEER[2]), 16);
        assert_eq!(insn::offset19(VENEER[0]), 24);
        assert_eq!(out[48..56], 0x1234_5678u64.to_ne_bytes());
        assert_eq!(out[56..], 0x9abc_def0u64.to_ne_bytes());
    }

    #[test]
    fn a_chunk_too_small_for_a_veneer_holds_no_stub() {
        let mut out = [0xffu8; 24];
        assert_eq!(fill_stubs(CodeAddr::new(8), 16, &mut out), 0);
        assert_eq!(insn::word_at(&out), Some(VENEER[0]));
    }

    const STUB: CodeAddr = CodeAddr::new(0x55_5550);

    /// A frame of 64 bytes below 0x7040 that holds `saved` at 0x7008.
    fn stack(saved: u64) -> Bytes {
        let mut frame = [0u64; 520];
        frame[513] = saved;
        Bytes::new(0x6000, &words(frame))
    }

    #[test]
    fn a_call_that_has_saved_the_stub_may_return() {
        assert!(may_return(0x7040, STUB, 0x7000, &stack(0x55_5550)));
        assert!(may_return(0x7040, STUB, 0x7000, &stack(0x0033_0000_0055_5550)), "signed");
        assert!(!may_return(0x7040, STUB, 0x7000, &stack(0x55_5558)));
        assert!(!may_return(0x7040, STUB, 0x7010, &stack(0x55_5550)), "that part of the frame is gone");
    }

    #[test]
    fn a_signed_return_address_is_told_from_a_plain_one() {
        assert_eq!(returns(STUB.as_usize(), STUB), Returns::Plainly);
        assert_eq!(returns(0x0033_0000_0055_5550, STUB), Returns::Signed);
        assert_eq!(returns(STUB.as_usize() + 8, STUB), Returns::Elsewhere);
    }

    #[test]
    fn a_frame_above_which_the_stack_has_been_unwound_is_left() {
        assert!(!may_return(0x7040, STUB, 0x7040, &stack(0)));
        assert!(!may_return(0x7040, STUB, 0x7040, &stack(0x55_5550)), "another call is there now");
        assert!(!may_return(0x7040, STUB, 0x7100, &stack(0)));
        assert!(may_return(0x7040, STUB, 0x9000, &stack(0x55_5550)), "perhaps a sleeping coroutine");
    }

    #[test]
    fn a_leaf_that_a_signal_has_interrupted_may_return() {
        // Its frame is on a stack that cannot be read here; the signal frame is on this one, which ends at
        // 0x8000.
        let running = |saved| {
            let mut words = [0; 0x2000 / 8];
            words[0x1008 / 8] = saved;
            Bytes::new(0x6000, &self::words(words))
        };
        assert!(may_return(0x3000, STUB, 0x6ff0, &running(0x55_5550)));
        assert!(may_return(0x3000, STUB, 0x6040, &running(0x55_5550)), "a page further up");
        assert!(!may_return(0x3000, STUB, 0x7010, &running(0x55_5550)), "below the stack pointer");
        assert!(!may_return(0x3000, STUB, 0x6ff0, &running(0)));
    }

    #[test]
    fn what_cannot_be_read_is_not_taken_for_left() {
        assert!(may_return(0x7040, STUB, 0x7000, &NoMemory));
        assert!(may_return(0x100_7040, STUB, 0x7000, &stack(0)), "too far to search");
        assert!(!may_return(0x7040, STUB, 0x7040, &NoMemory), "dead and unmapped");
    }

    #[test]
    fn a_jprobe_handler_gets_a_copy_of_the_argument_area() {
        let stack = Bytes::new(0x6000, &words((0..0x2000 / 8).map(|i| i as u64)));
        let mut regs = PtRegs { pstate: 0x6000_0800, ..numbered() };
        enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6666), &stack).expect("readable");
        let mut want = PtRegs { sp: 0x6f00, pc: 0x5000, pstate: 0x6000_0000, ..numbered() };
        want.x[30] = 0x6666;
        assert_eq!(regs, want);
        let mut copy = [0; 256];
        let mut original = [0; 256];
        stack.read(0x6f00, &mut copy).unwrap();
        stack.read(0x7000, &mut original).unwrap();
        assert_eq!(copy, original);
        assert_eq!(original[..8], (0x1000u64 / 8).to_ne_bytes());
    }

    #[test]
    fn the_argument_area_may_end_with_the_stack() {
        let stack = Bytes::new(0x6000, &words((0..0x1010 / 8).map(|i| i as u64)));
        let mut regs = numbered();
        enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6666), &stack).expect("readable");
        let mut copy = [0; 32];
        stack.read(0x6f00, &mut copy).unwrap();
        assert_eq!(copy[..16], words([0x200, 0x201])[..]);
        assert_eq!(copy[16..], [0; 16]);
    }

    #[test]
    fn a_jprobe_without_stack_changes_nothing() {
        let mut regs = numbered();
        assert!(enter_jprobe(&mut regs, 0x5000, CodeAddr::new(0x6666), &NoMemory).is_err());
        assert_eq!(regs, numbered());
    }
}
