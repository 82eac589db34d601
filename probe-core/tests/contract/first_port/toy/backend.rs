//! The smallest backend: what a first port of an architecture writes. Six functions of `Arch`, and `publish`.
//!
//! What needs more than a copy is simulated, or refused: this one has no slot that borrows a register or is
//! set right afterwards, none that ends in a jump, no calls and no jumps.

use super::instructions::*;
use probe_core::arch::{
    Arch, Decoded, MemFault, Memory, Method, NativeArch, NoCalls, NoJumps, Regs, Site, Tail,
};
use probe_core::error::Refusal;
use probe_core::host::Host;
use probe_core::traps::Trap;
use probe_core::{CodeAddr, Probes};

#[derive(Clone, Copy, Debug)]
pub struct Toy;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ToyPlan {
    pub insn: [u8; 5],
}

// SAFETY: slots hold the original instruction, which does not see where it is, and a breakpoint.
unsafe impl Arch for Toy {
    type Regs = ToyRegs;
    type Plan = ToyPlan;
    type StepState = ();
    type Calls = NoCalls;
    type Jumps = NoJumps;

    const CALLS: Option<NoCalls> = None;
    const JUMPS: Option<NoJumps> = None;
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
        let unknown = Refusal::not_an_instruction("toy.unknown", "no such instruction");
        let len = Self::insn_len(site.at, &insn[..read]).ok_or(unknown)?;
        insn[len..].fill(0);
        let method = match insn[0] {
            FORBIDDEN | SYSTEM => {
                return Err(Refusal::unsupported("toy.forbidden", "this instruction is forbidden"));
            }
            NOP | ADD | SUB | SET | LOAD | STORE | HALT | BORROW => Method::Step,
            _ => Method::Simulate,
        };
        Ok(Decoded { plan: ToyPlan { insn }, len_bytes: len as u8, method })
    }

    fn breakpoint_address(regs: &ToyRegs) -> CodeAddr {
        regs.pc().wrapping_offset(-1)
    }

    fn is_system_call(_: &ToyPlan) -> bool {
        false
    }

    fn simulate<M: Memory>(
        plan: &ToyPlan,
        place: CodeAddr,
        regs: &mut ToyRegs,
        memory: &M,
    ) -> Result<(), MemFault> {
        let [opcode, a, b, ..] = plan.insn;
        if opcode == ADDRESS {
            let next = place.as_usize() + len_of(opcode).unwrap();
            regs.r[usize::from(a)] = next + usize::from(b);
        }
        simulated(plan.insn, place, regs, memory)
    }

    fn fill_slot(
        _: &ToyPlan,
        insn: &[u8],
        _: CodeAddr,
        _: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        assert_eq!((out.len(), tail), (SLOT - OWN, Tail::Breakpoint));
        out.fill(BREAK);
        out[..insn.len()].copy_from_slice(insn);
        Ok(())
    }
}

// SAFETY: it has no instruction cache.
unsafe impl NativeArch for Toy {
    unsafe fn publish(_: CodeAddr, _: usize) {}
}

/// Slots end in breakpoints: nothing is stepped.
pub fn begin_step(_: &mut ToyRegs) -> u32 {
    0
}

/// As above.
pub fn end_step(_: &mut ToyRegs, _: u32) {}

/// As above.
pub fn step_trap<H: Host<Arch = Toy>>(_: &Probes<H>, _: &mut ToyRegs) -> Trap {
    Trap::NotOurs
}
