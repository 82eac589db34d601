//! Makes a backend of this crate. The two backends differ in registers, mode, reach of slots and trampolines.

/// Implements [`Arch`](probe_core::arch::Arch) and [`SingleStep`](probe_core::arch::SingleStep) for
/// `$backend`, a type of the crate that uses it, with saved registers `$regs` in `$mode`: every function
/// forwards to this crate.
///
/// `$reach` is how far from what it replaces a slot may lie, in bytes. The crate needs `probe-core` by its
/// own name.
#[macro_export]
macro_rules! backend {
    ($backend:ident, name: $name:literal, mode: $mode:ident, registers: $regs:ident, slot reach: $reach:expr) => {
        const _: () = {
            use probe_core::CodeAddr;
            use probe_core::arch::{
                Arch, Calls, Decoded, DetourCalls, DetourLayout, Displaced, Entry, Jumps, MemFault, Memory,
                Regs as _, SingleStep, Site, Tail, TailPatch, Text,
            };
            use probe_core::error::Refusal;
            use $crate::{Plan, Registers as _, StepState};

            // SAFETY: the slots that `fill_slot` builds hold the original instruction, relocated where it
            // refers to its own address, and end with the tail that `tail` names; held by the native
            // transparency tests.
            unsafe impl Arch for $backend {
                type Regs = $regs;
                type Plan = Plan;
                type StepState = StepState;
                type Calls = Self;
                type Jumps = Self;

                const CALLS: Option<Self> = Some(Self);
                const JUMPS: Option<Self> = Some(Self);
                const NAME: &'static str = $name;
                const BREAKPOINT: &'static [u8] = $crate::BREAKPOINT;
                const INSN_ALIGN: usize = 1;
                const MAX_INSN_LEN: usize = $crate::MAX_INSN_LEN;
                const SLOT_LEN: usize = $crate::SLOT_LEN;
                const SLOT_REACH: usize = $reach;
                const TRAP_GAP: usize = $crate::call::LOWERED_BY;

                fn insn_len(_at: CodeAddr, bytes: &[u8]) -> Option<usize> {
                    $crate::insn_len::<$mode>(bytes)
                }

                fn is_breakpoint(_at: CodeAddr, bytes: &[u8]) -> bool {
                    $crate::is_breakpoint(bytes)
                }

                fn decode(site: &Site<'_>) -> Result<Decoded<Plan>, Refusal> {
                    $crate::decode::<$mode>(site)
                }

                fn entry_offset(text: &dyn Text, function: CodeAddr, _local_entry: u8) -> usize {
                    $crate::call::entry_offset::<$mode>(text, function)
                }

                fn breakpoint_address(regs: &$regs) -> CodeAddr {
                    regs.pc().wrapping_offset(-1)
                }

                fn is_system_call(plan: &Plan) -> bool {
                    matches!(plan.effect, $crate::Effect::SystemCall)
                }

                fn keeps_state(plan: &Plan) -> bool {
                    $crate::slot::keeps_state(plan)
                }

                fn simulate<M: Memory>(
                    plan: &Plan,
                    place: CodeAddr,
                    regs: &mut $regs,
                    memory: &M,
                ) -> Result<(), MemFault> {
                    $crate::simulate(plan, place, regs, memory)
                }

                fn fill_slot(
                    plan: &Plan,
                    insn: &[u8],
                    place: CodeAddr,
                    slot: CodeAddr,
                    tail: Tail,
                    out: &mut [u8],
                ) -> Result<(), Refusal> {
                    $crate::slot::fill_slot::<$mode>(plan, insn, place, slot, tail, out)
                }

                fn tail(
                    plan: &Plan,
                    _insn_len: usize,
                    place: CodeAddr,
                    slot: CodeAddr,
                    tail: Tail,
                ) -> Option<TailPatch> {
                    $crate::slot::tail(plan, place, slot, tail)
                }

                fn before_step(plan: &Plan, place: CodeAddr, slot: CodeAddr, regs: &mut $regs) -> StepState {
                    $crate::slot::before_step(plan, place, slot, regs)
                }

                fn after_step(
                    plan: &Plan,
                    _insn_len: usize,
                    place: CodeAddr,
                    slot: CodeAddr,
                    regs: &mut $regs,
                    state: &StepState,
                ) {
                    $crate::slot::after_step(plan, place, slot, regs, state);
                }

                fn abort_step(plan: &Plan, place: CodeAddr, regs: &mut $regs, state: &StepState) {
                    $crate::slot::abort_step(plan, place, regs, state);
                }
            }

            // SAFETY: the return address lies on the stack; held by the native tests of stubs and jprobes.
            unsafe impl Calls<$regs> for $backend {
                const STUB_LEN: usize = <$mode as $crate::Mode>::STUB_LEN;

                fn argument<M: Memory>(self, regs: &$regs, index: usize, memory: &M) -> Option<usize> {
                    $crate::call::argument(regs, index, memory)
                }

                fn return_value(self, regs: &$regs) -> usize {
                    regs.general(0) as usize
                }

                fn set_return_value(self, regs: &mut $regs, value: usize) {
                    regs.set_general(0, value as u64);
                }

                fn entry<M: Memory>(self, regs: &$regs, memory: &M) -> Result<Entry, MemFault> {
                    $crate::call::entry(regs, memory)
                }

                fn set_return_address<M: Memory>(
                    self,
                    regs: &mut $regs,
                    to: CodeAddr,
                    memory: &M,
                ) -> Result<(), MemFault> {
                    $crate::call::set_return_address(regs, to, memory)
                }

                fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, _sp: usize, memory: &M) -> bool {
                    $crate::call::may_return::<$regs, M>(frame, stub, memory)
                }

                fn fill_stubs(
                    self,
                    chunk: CodeAddr,
                    trampoline: CodeAddr,
                    handler: usize,
                    out: &mut [u8],
                ) -> usize {
                    $crate::call::fill_stubs::<$mode>(chunk, trampoline, handler, out)
                }

                fn enter_jprobe<M: Memory>(
                    self,
                    regs: &mut $regs,
                    handler: usize,
                    return_to: CodeAddr,
                    memory: &M,
                ) -> Result<(), MemFault> {
                    $crate::call::enter_jprobe(regs, handler, return_to, memory)
                }
            }

            // SAFETY: the copies are those of slots or written anew; held by the tests of detours, which
            // compare them with the unprobed execution.
            unsafe impl Jumps<$regs> for $backend {
                const JUMP_LEN: usize = $crate::detour::JUMP_LEN;
                const DETOUR_LEN: usize = $crate::detour::DETOUR_LEN;
                const DETOUR_HEADER_LEN: usize = $crate::detour::header_len::<$mode>();

                fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal> {
                    $crate::detour::displace::<$mode>(site)
                }

                fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr> {
                    $crate::detour::branch_target::<$mode>(text, at)
                }

                fn detour_entry(
                    self,
                    place: CodeAddr,
                    displaced: &Displaced,
                    from: CodeAddr,
                ) -> Option<CodeAddr> {
                    $crate::detour::target::<$mode>(place, displaced, from)
                }

                fn fill_detour(
                    self,
                    displaced: &Displaced,
                    text: &[u8],
                    place: CodeAddr,
                    entry: CodeAddr,
                    calls: &DetourCalls,
                    out: &mut [u8],
                ) -> Result<DetourLayout, Refusal> {
                    let to = $crate::detour::Trampoline::Plain;
                    $crate::detour::fill::<$mode>(displaced, text, place, entry, to, calls, out)
                }

                fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8] {
                    $crate::detour::jump(place, entry)
                }

                fn detour_regs(self, regs: &$regs) -> usize {
                    regs.general(5) as usize
                }
            }

            // SAFETY: only the trap flag changes; PUSHF and POPF, which would show it, are simulated.
            unsafe impl SingleStep for $backend {
                fn begin(regs: &mut $regs) -> u32 {
                    $crate::step::begin(regs)
                }

                fn end(regs: &mut $regs, kept: u32) {
                    $crate::step::end(regs, kept);
                }
            }
        };
    };
}
