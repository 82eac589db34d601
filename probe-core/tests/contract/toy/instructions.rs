// The toy instruction set, one byte per opcode: what its processor does. Included by the documentation's
// example, too.
//
// ENTRY, written 0xe1 and without effect, is what ENDBR is on x86: probes on a function's entry go behind it.

use super::machine::*;
use probe_core::CodeAddr;
use probe_core::arch::{MemFault, Memory, Regs};
use std::sync::Mutex;
use std::sync::atomic::AtomicU8;

pub const NOP: u8 = 0x10;
/// `r[a]` += b
pub const ADD: u8 = 0x11;
/// `r[a]` = the two bytes
pub const SET: u8 = 0x12;
/// To the arena's offset in the four bytes.
pub const JUMP: u8 = 0x13;
/// As JUMP, with the return address pushed.
pub const CALL: u8 = 0x14;
pub const RETURN: u8 = 0x15;
/// `r[a]` = the next instruction's address + b; stepped, and corrected after the step.
pub const ADDRESS: u8 = 0x16;
/// `r[a]` = memory at `r[b]`
pub const LOAD: u8 = 0x17;
/// memory at `r[a]` = `r[b]`
pub const STORE: u8 = 0x18;
/// A system call: r7 = the next instruction's address, and what the world's hook does.
pub const SYSTEM: u8 = 0x19;
/// Pushes `r[a]`; simulated.
pub const PUSH: u8 = 0x1a;
/// `r[a]` += 1; its slot borrows r6 for it.
pub const BORROW: u8 = 0x1b;
/// Jumps b bytes on if `r[a]` is not zero; simulated.
pub const BRANCH: u8 = 0x1c;
/// Cannot be probed.
pub const FORBIDDEN: u8 = 0x1d;
/// A system call that may be boosted, for the core to tell them from steps: as NOP.
pub const HALT: u8 = 0x1e;
/// `r[a]` -= 1
pub const SUB: u8 = 0x1f;
pub const ENTRY: u8 = 0xe1;
pub const BREAK: u8 = 0xcc;
pub const FOREIGN_BREAK: u8 = 0xcd;
/// In slots: jump to the address in the next eight bytes.
pub const SLOT_JUMP: u8 = 0xf0;
/// In return stubs.
pub const STUB: u8 = 0xf1;
/// In text: to the first detour that this place has had; the opcodes behind it, to the next ones. Five bytes,
/// all others BREAK.
pub const DETOUR_JUMP: u8 = 0xe8;
/// The last of these opcodes.
pub const LAST_DETOUR_JUMP: u8 = 0xef;
/// In detours: calls the handler with the word in the next eight bytes.
pub const DETOUR_CALL: u8 = 0xf3;
/// The same at the entry of followed functions.
pub const ENTRY_CALL: u8 = 0xf4;

/// Where the jumps of text lead: what a real one has in its displacement. Place and entry, in the order of
/// the opcodes.
pub static DETOURS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Where the jump `opcode` at `place` leads.
pub fn detour_of(place: usize, opcode: u8) -> Option<usize> {
    let detours = DETOURS.lock().unwrap();
    let mut entries = detours.iter().filter(|(from, _)| *from == place).map(|(_, entry)| *entry);
    entries.nth(usize::from(opcode - DETOUR_JUMP))
}

pub const CHUNK: usize = 1 << 16;
pub const SLOT: usize = 32;
pub const OWN: usize = size_of::<usize>();

pub fn len_of(opcode: u8) -> Option<usize> {
    Some(match opcode {
        NOP | RETURN | FORBIDDEN | HALT | ENTRY | BREAK | FOREIGN_BREAK => 1,
        SYSTEM | PUSH | BORROW => 2,
        ADD | SUB | ADDRESS | LOAD | STORE | BRANCH => 3,
        SET => 4,
        JUMP | CALL => 5,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ToyRegs {
    pub pc: usize,
    pub sp: usize,
    pub r: [usize; 8],
    /// Whether interruptions are kept away.
    pub is_masked: bool,
    /// Whether the processor traps after the next instruction.
    pub is_stepped: bool,
}

impl Regs for ToyRegs {
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.pc)
    }
    fn set_pc(&mut self, pc: CodeAddr) {
        self.pc = pc.as_usize();
    }
    fn sp(&self) -> usize {
        self.sp
    }
    fn names() -> &'static [(&'static str, usize)] {
        &[("r0", 0), ("r1", 1), ("r2", 2), ("r3", 3), ("r4", 4), ("r5", 5), ("r6", 6), ("r7", 7)]
    }
    fn register(&self, index: usize) -> Option<usize> {
        self.r.get(index).copied()
    }
}

pub static JPROBE_RETURN: AtomicU8 = AtomicU8::new(BREAK);
pub static DETOUR_RESUME: AtomicU8 = AtomicU8::new(BREAK);

pub fn word<M: Memory>(memory: &M, at: usize) -> Result<usize, MemFault> {
    memory.read_usize(at)
}

/// What the processor does for an instruction that changes the flow or the stack.
pub fn simulated<M: Memory>(
    insn: [u8; 5],
    place: CodeAddr,
    regs: &mut ToyRegs,
    memory: &M,
) -> Result<(), MemFault> {
    let next = place.as_usize() + len_of(insn[0]).unwrap();
    let absolute =
        || arena_of(place.as_usize()) + u32::from_le_bytes(insn[1..5].try_into().unwrap()) as usize;
    match insn[0] {
        JUMP => regs.pc = absolute(),
        CALL => {
            memory.write_usize(regs.sp - 8, next)?;
            regs.sp -= 8;
            regs.pc = absolute();
        }
        RETURN => {
            regs.pc = word(memory, regs.sp)?;
            regs.sp += 8;
        }
        PUSH => {
            memory.write_usize(regs.sp - 8, regs.r[usize::from(insn[1])])?;
            regs.sp -= 8;
            regs.pc = next;
        }
        BRANCH if regs.r[usize::from(insn[1])] != 0 => regs.pc = next + usize::from(insn[2]),
        _ => regs.pc = next,
    }
    Ok(())
}
