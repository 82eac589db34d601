// The toy instruction set's backend, with all powers. Included by the documentation's example, too.

use super::instructions::*;
use super::machine::*;
use probe_core::arch::{
    Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory, Method,
    NativeArch, NativeCalls, NativeJumps, Returns, SaveSet, SingleStep, Site, Tail, TailPatch, Text,
};
use probe_core::error::Refusal;
use probe_core::host::Host;
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Probes};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToyPlan {
    pub insn: [u8; 5],
}

#[derive(Clone, Copy, Default)]
pub struct Borrowed(Option<usize>);

#[derive(Clone, Copy, Debug)]
pub struct Toy;

// SAFETY: slots hold the original instruction, or one with the same effect after `after_step`, and end as
// `tail` says.
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

    fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
        len_of(*bytes.first()?).filter(|len| *len <= bytes.len())
    }
    fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
        matches!(bytes.first(), Some(&(BREAK | FOREIGN_BREAK)))
    }
    fn decode(site: &Site<'_>) -> Result<Decoded<ToyPlan>, Refusal> {
        let mut insn = [0; 5];
        let read = site.text.read(site.at, &mut insn);
        let refused = Refusal::not_an_instruction("toy.unknown", "no such instruction");
        let len = Self::insn_len(site.at, &insn[..read]).ok_or(refused)?;
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
        simulated(plan.insn, place, regs, memory)
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
    fn returns(self, word: usize, stub: CodeAddr) -> Returns {
        match word ^ stub.as_usize() {
            0 => Returns::Plainly,
            SIGNED => Returns::Signed,
            _ => Returns::Elsewhere,
        }
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
            let len = Self::insn_len(at, &insn[..read])
                .filter(|len| at.wrapping_add(*len) <= end)
                .ok_or(refused)?;
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

/// What a host does when a slot is entered that the processor steps.
#[allow(dead_code, reason = "the models step nothing")]
pub fn begin_step(regs: &mut ToyRegs) -> u32 {
    Toy::begin(regs)
}

/// What it does when that is left.
#[allow(dead_code, reason = "the models step nothing")]
pub fn end_step(regs: &mut ToyRegs, kept: u32) {
    Toy::end(regs, kept);
}

/// Where the trap of a stepped processor leads.
#[allow(dead_code, reason = "the models step nothing")]
pub fn step_trap<H: Host<Arch = Toy>>(probes: &Probes<H>, regs: &mut ToyRegs) -> Trap {
    probes.traps().step(regs)
}
