//! The x86_64 backend of probe-core.
//!
//! A façade on [`probe_x86_decode`], which holds everything that the two x86 backends share. In reading order:
//! [`regs`] the saved registers · [`insn`] named encodings · `decode` bytes to a plan · `simulate` effects on
//! registers · `slot` out-of-line copies · `call` the calling convention · `patch` why nothing is to be done ·
//! `asm` trampolines (only on this architecture).
//!
//! Everything but `asm` is pure and may be called in a trap handler. CET's shadow stack is not kept by simulated
//! calls and returns: do not probe tasks that have one.
#![no_std]

mod call;
mod decode;
mod detour;
pub mod insn;
mod patch;
pub mod regs;
mod simulate;
mod slot;
pub mod watch;

#[cfg(target_arch = "x86_64")]
mod asm;
use probe_core::arch::{
    Arch, Decoded, DetourLayout, Displaced, Entry, MemFault, Memory, SingleStep, Site, Tail, TailPatch, Text,
};
use probe_core::{CodeAddr, Refusal};
use probe_x86_decode::{Plan, StepState};

pub use regs::Regs;

/// The x86-64 backend, in 64-bit mode.
#[derive(Debug)]
pub enum X86_64 {}

// SAFETY: the slots that `fill_slot` builds hold the original instruction, relocated where it refers to its own
// address, and end with the tail that `tail` names; held by the native transparency tests.
unsafe impl Arch for X86_64 {
    type Regs = Regs;
    type Plan = Plan;
    type StepState = StepState;

    const NAME: &'static str = "x86_64";
    const BREAKPOINT: &'static [u8] = insn::BREAKPOINT;
    const INSN_ALIGN: usize = 1;
    const MAX_INSN_LEN: usize = insn::MAX_INSN_LEN;
    const SLOT_LEN: usize = insn::SLOT_LEN;
    // Half of what a displacement spans: what an instruction addresses within 1 GiB stays in reach of its slot.
    const SLOT_REACH: usize = 1 << 30;
    const STUB_LEN: usize = insn::STUB_LEN;
    const TRAP_GAP: usize = probe_x86_decode::call::LOWERED_BY;

    fn insn_len(bytes: &[u8]) -> Option<usize> {
        decode::insn_len(bytes)
    }

    fn is_breakpoint(bytes: &[u8]) -> bool {
        insn::is_breakpoint(bytes)
    }

    fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
        decode::decode(site)
    }

    fn entry_offset(text: &dyn Text, function: CodeAddr, _local_entry: u8) -> usize {
        decode::entry_offset(text, function)
    }

    fn breakpoint_address(regs: &Regs) -> CodeAddr {
        use probe_core::arch::Regs as _;
        regs.pc().wrapping_offset(-1)
    }

    fn is_system_call(plan: &Plan) -> bool {
        matches!(plan.effect, probe_x86_decode::Effect::SystemCall)
    }

    fn keeps_state(plan: &Plan) -> bool {
        slot::keeps_state(plan)
    }

    fn simulate<M: Memory>(
        plan: &Plan,
        place: CodeAddr,
        regs: &mut Regs,
        memory: &M,
    ) -> Result<(), MemFault> {
        simulate::simulate(plan, place, regs, memory)
    }

    fn fill_slot(
        plan: &Plan,
        insn: &[u8],
        place: CodeAddr,
        slot: CodeAddr,
        tail: Tail,
        out: &mut [u8],
    ) -> Result<(), Refusal> {
        slot::fill_slot(plan, insn, place, slot, tail, out)
    }

    fn tail(plan: &Plan, _insn_len: usize, place: CodeAddr, slot: CodeAddr, tail: Tail) -> Option<TailPatch> {
        slot::tail(plan, place, slot, tail)
    }

    fn before_step(plan: &Plan, place: CodeAddr, slot: CodeAddr, regs: &mut Regs) -> StepState {
        slot::before_step(plan, place, slot, regs)
    }

    fn after_step(
        plan: &Plan,
        _insn_len: usize,
        place: CodeAddr,
        slot: CodeAddr,
        regs: &mut Regs,
        state: &StepState,
    ) {
        slot::after_step(plan, place, slot, regs, state);
    }

    fn abort_step(plan: &Plan, place: CodeAddr, regs: &mut Regs, state: &StepState) {
        slot::abort_step(plan, place, regs, state);
    }

    const JUMP_LEN: usize = detour::JUMP_LEN;
    const DETOUR_LEN: usize = detour::DETOUR_LEN;
    const DETOUR_HEADER_LEN: usize = detour::HEADER_LEN;

    fn displace(site: &Site<'_>) -> Result<Displaced, Refusal> {
        detour::displace(site)
    }

    fn branch_target(text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
        detour::branch_target(text, at)
    }

    fn detour_entry(place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr> {
        detour::entry(place, displaced, from)
    }

    fn fill_detour(
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        trampoline: CodeAddr,
        word: usize,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        detour::fill(displaced, text, place, entry, (trampoline, word), out)
    }

    fn jump(place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
        detour::jump(place, entry)
    }

    fn detour_regs(regs: &Regs) -> usize {
        regs.rbp as usize
    }

    fn argument<M: Memory>(regs: &Regs, index: usize, memory: &M) -> Option<usize> {
        call::argument(regs, index, memory)
    }

    fn return_value(regs: &Regs) -> usize {
        call::return_value(regs)
    }

    fn set_return_value(regs: &mut Regs, value: usize) {
        call::set_return_value(regs, value);
    }

    fn entry<M: Memory>(regs: &Regs, memory: &M) -> Result<Entry, MemFault> {
        call::entry(regs, memory)
    }

    fn set_return_address<M: Memory>(regs: &mut Regs, to: CodeAddr, memory: &M) -> Result<(), MemFault> {
        call::set_return_address(regs, to, memory)
    }

    fn may_return<M: Memory>(frame: usize, stub: CodeAddr, _sp: usize, memory: &M) -> bool {
        call::may_return(frame, stub, memory)
    }

    fn fill_stubs(chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize {
        call::fill_stubs(chunk, trampoline, handler, out)
    }

    fn enter_jprobe<M: Memory>(
        regs: &mut Regs,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault> {
        call::enter_jprobe(regs, handler, return_to, memory)
    }
}

// SAFETY: only the trap flag changes; PUSHF and POPF, which would show it, are simulated.
unsafe impl SingleStep for X86_64 {
    fn begin(regs: &mut Regs) -> u32 {
        probe_x86_decode::step::begin(regs)
    }

    fn end(regs: &mut Regs, kept: u32) {
        probe_x86_decode::step::end(regs, kept);
    }
}
