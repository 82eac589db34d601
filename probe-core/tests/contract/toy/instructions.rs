// The toy instruction set, as a backend: one byte per opcode. Included by the documentation's example, too.
//
// ENTRY, written 0xe1 and without effect, is what ENDBR is on x86: probes on a function's entry go behind it.

use super::machine::*;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, Method,
    NativeArch, NativeCalls, NativeJumps, Regs, SaveSet, SingleStep, Site, Tail, TailPatch, Text,
};
use probe_core::{CodeAddr, Refusal};
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
/// In text: to the first detour that this place has had; the opcodes behind it, to the next ones. Five bytes, all others BREAK.
pub const DETOUR_JUMP: u8 = 0xe8;
/// The last of these opcodes.
pub const LAST_DETOUR_JUMP: u8 = 0xef;
/// In detours: calls the handler with the word in the next eight bytes.
pub const DETOUR_CALL: u8 = 0xf3;
/// The same at the entry of followed functions.
pub const ENTRY_CALL: u8 = 0xf4;

/// Where the jumps of text lead: what a real one has in its displacement. Place and entry, in the order of the opcodes.
pub static DETOURS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Where the jump `opcode` at `place` leads.
#[allow(dead_code, reason = "the models have no jumps")]
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

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToyPlan {
    pub insn: [u8; 5],
}

#[derive(Clone, Copy, Default)]
pub struct Borrowed(Option<usize>);

#[derive(Clone, Copy, Debug)]
pub struct Toy;

pub static JPROBE_RETURN: AtomicU8 = AtomicU8::new(BREAK);
pub static DETOUR_RESUME: AtomicU8 = AtomicU8::new(BREAK);

pub fn word<M: Memory>(memory: &M, at: usize) -> Result<usize, MemFault> {
    memory.read_usize(at)
}

// SAFETY: slots hold the original instruction, or one with the same effect after `after_step`, and end as `tail` says.
unsafe impl Arch for Toy {
    type Regs = ToyRegs;
    type Plan = ToyPlan;
    type StepState = Borrowed;
    type Calls = Self;
    type Jumps = Self;

    const CALLS: Option<Self> = Some(Self);
    const JUMPS: Option<Self> = Some(Self);
    const NAME: &'static str = "toy";
    const BREAKPOINT: &'static [u8] = &[BREAK];
    const INSN_ALIGN: usize = 1;
    const MAX_INSN_LEN: usize = 5;
    const SLOT_LEN: usize = SLOT;
    const TRAP_GAP: usize = 0;
    const SLOT_REACH: usize = usize::MAX;

    fn insn_len(bytes: &[u8]) -> Option<usize> {
        len_of(*bytes.first()?).filter(|len| *len <= bytes.len())
    }
    fn is_breakpoint(bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(BREAK | FOREIGN_BREAK)))
    }
    fn decode(site: &Site<'_>) -> Result<Decoded<ToyPlan>, Refusal> {
        let mut insn = [0; 5];
        let read = site.text.read(site.at, &mut insn);
        let refused = Refusal::not_an_instruction("toy.unknown", "no such instruction");
        let len = Self::insn_len(&insn[..read]).ok_or(refused)?;
        insn[len..].fill(0);
        let method = match insn[0] {
            FORBIDDEN => return Err(Refusal::unsupported("toy.forbidden", "this instruction is forbidden")),
            NOP | ADD | SUB | SET | LOAD | STORE | HALT => Method::Boost,
            ADDRESS | SYSTEM | BORROW => Method::Step,
            _ => Method::Simulate,
        };
        Ok(Decoded { plan: ToyPlan { insn }, len_bytes: len as u8, method })
    }
    fn entry_offset(text: &dyn Text, function: CodeAddr, _local_entry: u8) -> usize {
        let mut first = [0];
        usize::from(text.read(function, &mut first) == 1 && first[0] == ENTRY)
    }
    fn is_system_call(plan: &ToyPlan) -> bool {
        plan.insn[0] == SYSTEM
    }
    fn keeps_state(plan: &ToyPlan) -> bool {
        plan.insn[0] == BORROW
    }
    fn breakpoint_address(regs: &ToyRegs) -> CodeAddr {
        CodeAddr::new(regs.pc - 1)
    }
    fn simulate<M: Memory>(
        plan: &ToyPlan,
        place: CodeAddr,
        regs: &mut ToyRegs,
        memory: &M,
    ) -> Result<(), MemFault> {
        let insn = plan.insn;
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
    fn fill_slot(
        plan: &ToyPlan,
        insn: &[u8],
        place: CodeAddr,
        _slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        assert_eq!(out.len(), SLOT - OWN);
        out.fill(BREAK);
        if plan.insn[0] == BORROW {
            out[..3].copy_from_slice(&[ADD, 6, 1]);
            return Ok(());
        }
        out[..insn.len()].copy_from_slice(insn);
        out[insn.len()] = if tail == Tail::Jump { SLOT_JUMP } else { BREAK };
        let back = place.as_usize() + insn.len();
        out[insn.len() + 1..insn.len() + 9].copy_from_slice(&(back as u64).to_le_bytes());
        Ok(())
    }
    fn tail(_: &ToyPlan, len: usize, _: CodeAddr, _: CodeAddr, tail: Tail) -> Option<TailPatch> {
        let byte = if tail == Tail::Jump { SLOT_JUMP } else { BREAK };
        Some(TailPatch { offset: len as u8, len_bytes: 1, bytes: [byte, 0, 0, 0] })
    }
    fn before_step(plan: &ToyPlan, _: CodeAddr, slot: CodeAddr, regs: &mut ToyRegs) -> Borrowed {
        regs.pc = slot.as_usize();
        if plan.insn[0] != BORROW {
            return Borrowed(None);
        }
        let kept = regs.r[6];
        regs.r[6] = regs.r[usize::from(plan.insn[1])];
        Borrowed(Some(kept))
    }
    fn after_step(
        plan: &ToyPlan,
        len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut ToyRegs,
        state: &Borrowed,
    ) {
        let moved = slot.as_usize().wrapping_sub(place.as_usize());
        match (plan.insn[0], state.0) {
            (ADDRESS, _) => {
                let register = &mut regs.r[usize::from(plan.insn[1])];
                *register = register.wrapping_sub(moved);
            }
            (SYSTEM, _) => regs.r[7] = regs.r[7].wrapping_sub(moved),
            (BORROW, Some(kept)) => {
                let value = std::mem::replace(&mut regs.r[6], kept);
                regs.r[usize::from(plan.insn[1])] = value;
            }
            _ => {}
        }
        regs.pc = place.as_usize() + len;
    }
    fn abort_step(_: &ToyPlan, place: CodeAddr, regs: &mut ToyRegs, state: &Borrowed) {
        if let Some(kept) = state.0 {
            regs.r[6] = kept;
        }
        regs.pc = place.as_usize();
    }
}

// SAFETY: the return address lies on the stack, and nothing else is changed.
unsafe impl Calls<ToyRegs> for Toy {
    const STUB_LEN: usize = 16;

    fn entry_end(self, text: &dyn Text, function: CodeAddr, entry_offset: usize) -> usize {
        // A NOP behind the landing pad belongs to the entry, as aarch64's PACIASP does.
        let mut first = [0; 2];
        match (text.read(function, &mut first), first) {
            (2, [ENTRY, NOP]) => 2,
            _ => entry_offset,
        }
    }
    fn argument<M: Memory>(self, regs: &ToyRegs, index: usize, memory: &M) -> Option<usize> {
        match index {
            0..3 => Some(regs.r[index]),
            _ => word(memory, regs.sp + 8 * (index - 2)).ok(),
        }
    }
    fn return_value(self, regs: &ToyRegs) -> usize {
        regs.r[0]
    }
    fn set_return_value(self, regs: &mut ToyRegs, value: usize) {
        regs.r[0] = value;
    }
    fn entry<M: Memory>(self, regs: &ToyRegs, memory: &M) -> Result<Entry, MemFault> {
        Ok(Entry { return_address: CodeAddr::new(word(memory, regs.sp)?), frame: regs.sp })
    }
    fn set_return_address<M: Memory>(
        self,
        regs: &mut ToyRegs,
        to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        memory.write_usize(regs.sp, to.as_usize())
    }
    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, _sp: usize, memory: &M) -> bool {
        // In its place, or as the PC in an interrupt's frame right below.
        (0..16).any(|below| word(memory, frame - 8 * below).is_ok_and(|found| found == stub.as_usize()))
    }
    fn fill_stubs(self, chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        assert_eq!(out.len(), CHUNK - OWN);
        assert_eq!(chunk.as_usize() % CHUNK, 0);
        assert_eq!(trampoline, self.return_trampoline(SaveSet::General));
        for stub in out.chunks_mut(Self::STUB_LEN) {
            stub[0] = STUB;
        }
        out[1..9].copy_from_slice(&(handler as u64).to_ne_bytes());
        out.len() / Self::STUB_LEN
    }
    fn enter_jprobe<M: Memory>(
        self,
        regs: &mut ToyRegs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        // The caller's argument area: copied, so that the handler has its own.
        let sp = regs.sp - 64;
        for offset in (8..40).step_by(8) {
            memory.write_usize(sp + offset, word(memory, regs.sp + offset)?)?;
        }
        memory.write_usize(sp, return_to.as_usize())?;
        regs.sp = sp;
        regs.pc = handler;
        Ok(())
    }
}

// SAFETY: a detour holds the displaced instructions, which none of them can tell.
unsafe impl Jumps<ToyRegs> for Toy {
    const JUMP_LEN: usize = 5;
    const DETOUR_LEN: usize = 64;
    const DETOUR_HEADER_LEN: usize = 0;

    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
        let refused = Refusal::unsupported("toy.not_copied", "this instruction has no copy");
        let (_, end) = site.function.ok_or(refused)?;
        let mut displaced = Displaced::default();
        while usize::from(displaced.len_bytes) < Self::JUMP_LEN {
            let at = site.at.wrapping_add(usize::from(displaced.len_bytes));
            let mut insn = [0; 5];
            let read = site.text.read(at, &mut insn);
            let len =
                Self::insn_len(&insn[..read]).filter(|len| at.wrapping_add(*len) <= end).ok_or(refused)?;
            if !matches!(insn[0], NOP | ADD | SUB | SET | LOAD | STORE | PUSH | ENTRY) {
                return Err(refused);
            }
            displaced.push(len as u8).ok_or(refused)?;
        }
        Ok(displaced)
    }
    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        match text {
            [BRANCH, _, distance, ..] => Some(at.wrapping_add(3 + usize::from(*distance))),
            [JUMP | CALL, a, b, c, d, ..] => {
                let offset = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                Some(CodeAddr::new(arena_of(at.as_usize()) + offset))
            }
            _ => None,
        }
    }
    fn detour_entry(self, _: CodeAddr, _: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
        Some(from)
    }
    fn fill_detour(
        self,
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        _entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        let mut layout = DetourLayout::default();
        let DetourCalls { trampoline, word, post_word: post } = *calls;
        out[0] = if Some(trampoline) == self.entry_trampoline(SaveSet::General) {
            ENTRY_CALL
        } else {
            assert_eq!(trampoline, self.detour_trampoline(SaveSet::General));
            DETOUR_CALL
        };
        out[1..9].copy_from_slice(&(word as u64).to_le_bytes());
        let first = displaced.starts().nth(1).unwrap_or(text.len());
        let mut back = 9;
        for (index, insn) in [&text[..first], &text[first..]].into_iter().enumerate() {
            out[back..back + insn.len()].copy_from_slice(insn);
            back += insn.len();
            if let Some(post) = post.filter(|_| index == 0) {
                out[back] = DETOUR_CALL;
                out[back + 1..back + 9].copy_from_slice(&(post as u64).to_le_bytes());
                back += 9;
            }
        }
        for (copy, start) in layout.copies.iter_mut().zip(displaced.starts()) {
            *copy = 9 + start as u8 + if start > 0 && post.is_some() { 9 } else { 0 };
        }
        out[back] = SLOT_JUMP;
        let next = place.as_usize() + text.len();
        out[back + 1..back + 9].copy_from_slice(&(next as u64).to_le_bytes());
        (layout.back, layout.len_bytes) = (back as u8, back as u8 + 9);
        Ok(layout)
    }
    fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
        let jump = (place.as_usize(), entry.as_usize());
        let mut detours = DETOURS.lock().unwrap();
        if !detours.contains(&jump) {
            detours.push(jump);
        }
        let number =
            detours.iter().filter(|known| known.0 == jump.0).position(|known| *known == jump).unwrap();
        let opcode = DETOUR_JUMP + number as u8;
        assert!(opcode <= LAST_DETOUR_JUMP, "more detours than a place can have");
        [opcode, BREAK, BREAK, BREAK, BREAK, 0, 0, 0]
    }
    fn detour_regs(self, regs: &ToyRegs) -> usize {
        regs.r[0]
    }
}

// SAFETY: no instruction sees whether it is stepped.
unsafe impl SingleStep for Toy {
    fn begin(regs: &mut ToyRegs) -> u32 {
        u32::from(std::mem::replace(&mut regs.is_stepped, true))
    }
    fn end(regs: &mut ToyRegs, kept: u32) {
        regs.is_stepped = kept != 0;
    }
}

// SAFETY: it has no instruction cache.
unsafe impl NativeArch for Toy {
    unsafe fn publish(_: CodeAddr, _: usize) {}
}

// SAFETY: `Cpu::run` is the trampoline, and the breakpoint stands where it is said to.
unsafe impl NativeCalls<ToyRegs> for Toy {
    fn return_trampoline(self, _: SaveSet) -> CodeAddr {
        CodeAddr::new(0x7_0000)
    }
    fn jprobe_return_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const JPROBE_RETURN).expose_provenance())
    }
}

// SAFETY: as above.
unsafe impl NativeJumps<ToyRegs> for Toy {
    fn detour_trampoline(self, _: SaveSet) -> CodeAddr {
        CodeAddr::new(0x8_0000)
    }
    fn entry_trampoline(self, _: SaveSet) -> Option<CodeAddr> {
        Some(CodeAddr::new(0x9_0000))
    }
    fn detour_resume_trap(self) -> CodeAddr {
        CodeAddr::new((&raw const DETOUR_RESUME).expose_provenance())
    }
}
