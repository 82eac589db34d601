//! Calls: arguments, return value, return address, return stubs, jprobes.
//!
//! The RISC-V Calling Convention (psABI 1.0). The return address of a call is in RA until the function saves
//! it, so return probes replace RA on the function's first instruction, or behind its landing pad. Functions
//! that are called with another link register (`__riscv_save_0` and its kin: T0) return through that one:
//! they are `Arrival::OTHER_LINK`, by unwind information or by name.
//!
//! Not supported: Zicfiss. A shadow stack holds the real return address, and `sspopchk` traps at a return to
//! a stub. Pure; on the hit path but for [`fill_stubs`].

use crate::insn;
use crate::regs::{A0, PtRegs, RA, SP};
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory};

/// The registers that carry integer arguments: A0 to A7 (psABI, Integer Calling Convention).
const REGISTER_ARGUMENTS: usize = 8;
/// The size of a return stub.
pub(crate) const STUB_LEN: usize = 8;
/// How much of the caller's argument area a jprobe copies: 32 stack words.
pub(crate) const ARGUMENT_AREA: usize = 256;

pub(crate) fn argument<M: Memory>(regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
    if index < REGISTER_ARGUMENTS {
        return Some(regs.x(A0 + index as u8) as usize);
    }
    // Every integer of up to eight bytes takes eight bytes of stack.
    let offset = (index - REGISTER_ARGUMENTS).checked_mul(8)?;
    memory.read_usize((regs.x(SP) as usize).checked_add(offset)?).ok()
}

/// How much of live stack is scanned for a stub's address.
const LIVE_SCAN: usize = 16 * 1024;
/// How much of the running stack is scanned for a signal frame.
const SIGNAL_SCAN: usize = 64 * 1024;
/// How much dead stack below a frame is searched where the stack pointer is not below the frame.
const DEAD_SCAN: usize = 2 * 1024;

/// Whether a call that was entered with the stack pointer at `frame` may still return to `stub`.
///
/// A live call that calls others has saved its return address, `stub`, somewhere below `frame`. So if the
/// stack pointer is below the frame, the stack between the two is searched. If it is above, the frame has
/// been left, or this is another stack, and two areas are searched: the memory below the frame (a sleeping
/// coroutine's frames are intact), and the running stack (a leaf has its return address in RA only, and a
/// signal that interrupts it saves RA in the signal frame). If the stack pointer is at the frame, another
/// call has taken the frame's place, and the old one is over.
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
    let wanted = (stub.as_usize() as u64).to_ne_bytes();
    let mut top = high & !7;
    while top > low {
        let len = CHUNK.min(top - low);
        let mut bytes = [0; CHUNK];
        memory.read(top - len, &mut bytes[..len])?;
        let (words, _) = bytes[..len].as_chunks::<8>();
        if words.contains(&wanted) {
            return Ok(true);
        }
        top -= len;
    }
    Ok(false)
}

/// A stub, except for its last word, `jal t0, veneer`.
///
/// No register is free at a return (a caller that knows its callee may keep T0 over the call), so T0 is saved
/// at SP, in 32 bytes that the trampoline takes away.
const STUB: [u16; 2] = [
    0x713d, // c.addi16sp sp, -32
    0xe016, // c.sdsp t0, 0(sp)
];
/// The veneer at the end of a chunk of stubs, and the two words that it loads. It leaves at SP: T0 as it was,
/// the stub's end, and the handler.
const VENEER: [u32; 8] = [
    0x0051_3423, // sd t0, 8(sp)
    0x0000_0297, // auipc t0, 0
    0x0242_b283, // ld t0, 36(t0): handler
    0x0051_3823, // sd t0, 16(sp)
    0x0000_0297, // auipc t0, 0
    0x0102_b283, // ld t0, 16(t0): trampoline
    0x0002_8067, // jr t0
    0x9002_9002, // so that the two words are aligned
];
const VENEER_LEN: usize = VENEER.len() * 4 + 16;

/// Fills `out`, to lie at a multiple of 8, with stubs and the veneer; returns their number.
pub(crate) fn fill_stubs(trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    let count = out.len().saturating_sub(VENEER_LEN) / STUB_LEN;
    let veneer = count * STUB_LEN;
    for (index, stub) in out[..veneer].chunks_exact_mut(STUB_LEN).enumerate() {
        const LINK_T0: u32 = 5 << 7;
        let jump_at = index * STUB_LEN + 4;
        // A chunk beyond the reach of `jal` is 1 MiB: none is.
        let jump = insn::jump((veneer - jump_at) as isize).unwrap_or(0) | LINK_T0;
        stub[..2].copy_from_slice(&STUB[0].to_le_bytes());
        stub[2..4].copy_from_slice(&STUB[1].to_le_bytes());
        stub[4..].copy_from_slice(&jump.to_le_bytes());
    }
    for half in out[veneer..].chunks_exact_mut(2) {
        half.copy_from_slice(&insn::BREAKPOINT.to_le_bytes());
    }
    let Some(bytes) = out.get_mut(veneer..veneer + VENEER_LEN) else { return 0 };
    let (code, words) = bytes.split_at_mut(VENEER.len() * 4);
    for (bytes, word) in code.chunks_exact_mut(4).zip(VENEER) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    words[..8].copy_from_slice(&(trampoline.as_usize() as u64).to_ne_bytes());
    words[8..].copy_from_slice(&(handler as u64).to_ne_bytes());
    count
}

/// Calls `handler` with copies of the arguments of the call that `regs` has just entered.
///
/// A0 to A7 and FA0 to FA7 hold them already; the stack arguments are copied to a new argument area (as much
/// of [`ARGUMENT_AREA`] as can be read: what lies beyond the stack's end is no argument).
pub(crate) fn enter_jprobe<M: Memory>(
    regs: &mut PtRegs,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let mut area = [0; ARGUMENT_AREA];
    let from = regs.x(SP) as usize;
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
    regs.set_x(SP, to as u64);
    regs.set_x(RA, return_to.as_usize() as u64);
    regs.pc = handler as u64;
    Ok(())
}

#[cfg(test)]
mod tests;
