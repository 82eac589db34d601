//! Calls: arguments, return value, return address, return stubs, jprobes.
//!
//! The Procedure Call Standard for the Arm Architecture (AAPCS32, 2024Q3). The return address of a call is
//! in LR until the function saves it, with the caller's instruction set in bit 0; return probes replace LR
//! on the function's first instruction. Stubs are A32: a function returns to one by BX, or by loading the
//! program counter, which change the set (A2.3.1). A function of T32 that returned by `mov pc, lr`, which
//! does not, would have to have been called from T32 only; compilers write `bx lr`.
//!
//! Integers and, in the base variant, floating point take R0 to R3 and then the stack, one word for an
//! argument here: one of 64 bits takes two, the first of which is even (6.5, C.3, C.6). In the hard-float
//! variant floating point takes S0 to S15, which handlers do not see. A result of 64 bits is in R0 and R1.
//!
//! Pure; on the hit path but for [`fill_stubs`].

use crate::insn;
use crate::regs::{LR, PtRegs, SP};
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory, Regs};

/// The registers that carry integer arguments: R0 to R3 (6.1.1).
const REGISTER_ARGUMENTS: usize = 4;
/// The size of a return stub.
pub(crate) const STUB_LEN: usize = 8;
/// How much of the caller's argument area a jprobe copies: 32 words.
pub(crate) const ARGUMENT_AREA: usize = 128;

/// The word at an address of the stack.
fn word<M: Memory>(addr: usize, memory: &M) -> Result<u32, MemFault> {
    let mut bytes = [0; 4];
    memory.read(addr, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

pub(crate) fn argument<M: Memory>(regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
    if index < REGISTER_ARGUMENTS {
        return Some(regs.r(index as u8) as usize);
    }
    let offset = (index - REGISTER_ARGUMENTS).checked_mul(4)?;
    word(regs.sp().checked_add(offset)?, memory).ok().map(|value| value as usize)
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
/// coroutine's frames are intact), and the running stack (a leaf has its return address in LR only, and a
/// signal that interrupts it saves LR in the signal frame). If the stack pointer is at the frame, another
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
    holds_stub(low & !3, frame, stub, memory).unwrap_or(is_live)
        || !is_live && stack_holds_stub(sp, stub, memory)
}

/// Searches the running stack from `sp` upwards, to its end or as far as signal frames lie from their
/// handlers' calls.
fn stack_holds_stub<M: Memory>(sp: usize, stub: CodeAddr, memory: &M) -> bool {
    // Aligned pieces, which end where the mapping ends.
    const PIECE: usize = 128;
    let start = sp & !(PIECE - 1);
    for at in (start..start.saturating_add(SIGNAL_SCAN)).step_by(PIECE) {
        match holds_stub(at.max(sp & !3), at + PIECE, stub, memory) {
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
    let wanted = (stub.as_usize() as u32).to_le_bytes();
    let mut top = high & !3;
    while top > low {
        let len = CHUNK.min(top - low);
        let mut bytes = [0; CHUNK];
        memory.read(top - len, &mut bytes[..len])?;
        let (words, _) = bytes[..len].as_chunks::<4>();
        if words.contains(&wanted) {
            return Ok(true);
        }
        top -= len;
    }
    Ok(false)
}

/// `push {ip, pc}`: the second word is the stub's end, since PC is stored 8 ahead (A2.3.1). No register is
/// free at a return, as a caller that knows its callee may keep IP over the call. Then `b veneer`.
const STUB: u32 = 0xe92d_9000;
/// The veneer at the end of a chunk of stubs, and the two words that it loads. It leaves at SP: the handler,
/// nothing, IP as it was, the stub's end.
const VENEER: [u32; 4] = [
    0xe24d_d008, // sub sp, sp, #8
    0xe59f_c008, // ldr ip, [pc, #8]: handler
    0xe58d_c000, // str ip, [sp]
    0xe51f_f004, // ldr pc, [pc, #-4]: trampoline
];
const VENEER_LEN: usize = VENEER.len() * 4 + 8;

/// Fills `out`, to lie at a multiple of 8, with stubs and the veneer; returns their number.
pub(crate) fn fill_stubs(trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    let count = out.len().saturating_sub(VENEER_LEN) / STUB_LEN;
    let veneer = count * STUB_LEN;
    for (index, stub) in out[..veneer].chunks_exact_mut(STUB_LEN).enumerate() {
        let branch_at = index * STUB_LEN + 4;
        // A chunk beyond the reach of a branch is 32 MiB: none is.
        let branch = insn::branch_a32((veneer - branch_at) as isize).unwrap_or(insn::BREAKPOINT_A32);
        stub[..4].copy_from_slice(&STUB.to_le_bytes());
        stub[4..].copy_from_slice(&branch.to_le_bytes());
    }
    for word in out[veneer..].chunks_exact_mut(4) {
        word.copy_from_slice(&insn::BREAKPOINT_A32.to_le_bytes());
    }
    let words = VENEER.into_iter().chain([trampoline.as_usize() as u32, handler as u32]);
    let Some(bytes) = out.get_mut(veneer..veneer + VENEER_LEN) else { return 0 };
    for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    count
}

/// Calls `handler` with copies of the arguments of the call that `regs` has just entered.
///
/// R0 to R3 and S0 to S15 hold them already; the stack arguments are copied to a new argument area (as much
/// of [`ARGUMENT_AREA`] as can be read: what lies beyond the stack's end is no argument).
pub(crate) fn enter_jprobe<M: Memory>(
    regs: &mut PtRegs,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let mut area = [0; ARGUMENT_AREA];
    let from = regs.sp();
    let to = from.wrapping_sub(ARGUMENT_AREA) & !7;
    if memory.read(from, &mut area).is_err() {
        for (index, piece) in area.chunks_exact_mut(8).enumerate() {
            if memory.read(from.wrapping_add(index * 8), piece).is_err() {
                piece.fill(0);
                break;
            }
        }
    }
    memory.write(to, &area)?;
    regs.set_r(SP, to as u32);
    regs.set_r(LR, return_to.as_usize() as u32);
    regs.set_it_state(0);
    regs.set_pc(CodeAddr::new(handler));
    Ok(())
}

#[cfg(test)]
mod tests;
