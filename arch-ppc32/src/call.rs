//! Calls: arguments, the return value and address, entries, jprobes, return stubs.
//!
//! Source: *System V Application Binary Interface, PowerPC Processor Supplement* (SunSoft, 1995), chapter 3,
//! "Function Calling Sequence", as the *Power Architecture 32-bit ABI Supplement* 1.0 (Linux) has it.
//!
//! Integers take r3 to r10 and then the stack, from 8(r1) of the caller on, a word for an argument here: one
//! of 64 bits takes two, the first of which is r3, r5, r7 or r9, or at a multiple of eight; a register that
//! is skipped for it holds nothing. Floating point takes f1 to f8, which handlers do not see. A result of 64
//! bits is in r3 and r4. Nothing below the stack pointer is the interrupted code's: there is no red zone.
//!
//! Runs on the hit path. Pure.

use crate::Ppc32;
use crate::insn;
use crate::regs::{PtRegs, SP};
use core::mem::offset_of;
use probe_core::CodeAddr;
use probe_core::arch::{Entry, MemFault, Memory};
pub(crate) use probe_ppc_decode::call::may_return;
use probe_ppc_decode::call::read_as_far_as_mapped;

/// Arguments in r3 to r10.
const REGISTER_ARGUMENTS: usize = 8;
/// Where the stack arguments start, in bytes above the caller's stack pointer: behind the back chain and the
/// LR save word.
const STACK_ARGUMENTS: usize = 8;
/// How much of the stack arguments a jprobe handler gets a copy of: 32 words.
const COPIED_ARGUMENTS: usize = 32 * 4;

/// The integer argument number `index` at a function's entry.
pub(crate) fn argument<M: Memory>(regs: &PtRegs, index: usize, memory: &M) -> Option<usize> {
    if let Some(register) = regs.gpr[3..3 + REGISTER_ARGUMENTS].get(index) {
        return Some(*register as usize);
    }
    let offset = (index - REGISTER_ARGUMENTS).checked_mul(4)?.checked_add(STACK_ARGUMENTS)?;
    let at = (regs.gpr[SP] as usize).checked_add(offset)?;
    load(memory, at).ok().map(|value| value as usize)
}

/// The return address and the frame at a function's entry.
pub(crate) fn entry(regs: &PtRegs) -> Entry {
    Entry { return_address: CodeAddr::new(regs.link as usize), frame: regs.gpr[SP] as usize }
}

/// How much lower than its caller's a jprobe's handler finds the stack pointer, at most, in bytes.
pub(crate) const LOWERED_BY: usize = STACK_ARGUMENTS + COPIED_ARGUMENTS + 16;

/// Makes a context at a function's entry call `handler`, which returns to `return_to`.
///
/// Below the stack pointer: a frame with a back chain to the caller's and a copy of the stack arguments.
pub(crate) fn enter_jprobe<M: Memory>(
    regs: &mut PtRegs,
    handler: usize,
    return_to: CodeAddr,
    memory: &M,
) -> Result<(), MemFault> {
    let caller = regs.gpr[SP] as usize;
    let callee = caller.wrapping_sub(STACK_ARGUMENTS + COPIED_ARGUMENTS) & !15;
    let mut arguments = [0; COPIED_ARGUMENTS];
    read_as_far_as_mapped::<Ppc32, M>(memory, caller.wrapping_add(STACK_ARGUMENTS), &mut arguments)?;
    memory.write(callee.wrapping_add(STACK_ARGUMENTS), &arguments)?;
    memory.write(callee, &(caller as u32).to_be_bytes())?;
    regs.gpr[SP] = callee as u32;
    regs.nip = handler as u32;
    regs.link = return_to.as_usize() as u32;
    Ok(())
}

/// Loads a word of the stack.
pub(crate) fn load<M: Memory>(memory: &M, at: usize) -> Result<u32, MemFault> {
    let mut bytes = [0; 4];
    memory.read(at, &mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

/// The size of a return stub: `bl` to the chunk's veneer, which leaves the stub's address in the link
/// register.
///
/// The link register is volatile across a call, so no code relies on it. The trampoline puts the return
/// address there, as the function's own `blr` would have.
pub(crate) const STUB_LEN: usize = 4;

/// The veneer's frame: what a handler needs, and the registers.
pub(crate) const VENEER_FRAME: usize = REGS + size_of::<PtRegs>();
/// Where the registers lie in it, and those among them that the veneer stores.
pub(crate) const REGS: usize = 16;
const KEPT_R0: usize = REGS;
const KEPT_R11: usize = REGS + 4 * 11;
const KEPT_R12: usize = REGS + 4 * 12;
const KEPT_CTR: usize = REGS + offset_of!(PtRegs, ctr);

const VENEER_WORDS: usize = 12;

/// Makes the frame, stores the registers that it uses itself, and goes to `trampoline` with r11 = `handler`
/// and r12 = the stub's end.
fn veneer(trampoline: usize, handler: usize) -> [u32; VENEER_WORDS] {
    let [trampoline, handler] = [trampoline, handler].map(|word| (word as u32 >> 16, word as u32 & 0xffff));
    [
        0x9421_0000 | (0x1_0000 - VENEER_FRAME) as u32, // stwu 1,-frame(1)
        stw(0, KEPT_R0),
        stw(11, KEPT_R11),
        stw(12, KEPT_R12),
        insn::mfspr(0, insn::SPR_CTR),
        stw(0, KEPT_CTR),
        insn::mfspr(12, insn::SPR_LR),
        15 << 26 | 11 << 21 | trampoline.0,            // lis 11,…
        24 << 26 | 11 << 21 | 11 << 16 | trampoline.1, // ori 11,11,…
        insn::mtspr(insn::SPR_CTR, 11),
        15 << 26 | 11 << 21 | handler.0,
        24 << 26 | 11 << 21 | 11 << 16 | handler.1,
    ]
}

/// Fills `out`, to lie at a multiple of 4, with stubs and their veneer, and returns the number of stubs.
pub(crate) fn fill_stubs(trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
    let stubs = (out.len() / 4).saturating_sub(VENEER_WORDS + 1);
    for bytes in out.chunks_exact_mut(4) {
        bytes.copy_from_slice(&insn::TRAP.to_be_bytes());
    }
    if stubs == 0 {
        return 0;
    }
    let branches =
        (1..=stubs).rev().map(|index| insn::b((index * STUB_LEN) as i64).map_or(insn::TRAP, |b| b | 1));
    let words = branches.chain(veneer(trampoline.as_usize(), handler)).chain([BCTR]);
    for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    stubs
}

const BCTR: u32 = insn::OP_XL << 26 | 20 << 21 | insn::XO_BCCTR << 1;

/// `stw rs,d(1)`.
const fn stw(rs: u32, d: usize) -> u32 {
    36 << 26 | rs << 21 | 1 << 16 | d as u32
}

#[cfg(test)]
mod tests;
