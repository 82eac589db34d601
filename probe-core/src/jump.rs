//! The instructions that the jump of an optimised probe displaces, and why a place may have none.

use crate::addr::CodeAddr;
use crate::arch::{Arch, Displaced, Jumps, Method, Site, Text};
use crate::error::Refusal;
use alloc::vec::Vec;

/// The text of one walk is read in pieces of this many bytes.
pub(crate) const WINDOW: usize = 256;

/// No jump: the core cannot plant one here, whatever the instructions are.
pub(crate) mod refusal {
    use crate::error::Refusal;

    pub(crate) const NO_JUMPS: Refusal =
        Refusal::unsupported("core.no_jumps", "there are no jumps for probes on this architecture");
    pub(crate) const JPROBE: Refusal =
        Refusal::unsupported("core.jprobe", "a jprobe's handler is entered by a trap");
    pub(crate) const POST: Refusal = Refusal::unsupported(
        "core.post_handler",
        "a post handler after this instruction is called by a trap",
    );
    pub(crate) const NEIGHBOUR: Refusal =
        Refusal::unsupported("core.neighbour", "another probe stands on an instruction under the jump");
    pub(crate) const FORBIDDEN: Refusal =
        Refusal::unsupported("core.forbidden", "the host forbids probes on an instruction under the jump");
    pub(crate) const JUMP_TARGET: Refusal =
        Refusal::unsupported("core.jump_target", "the function jumps to an instruction under the jump");
    pub(crate) const NO_ROOM: Refusal =
        Refusal::unsupported("core.no_room", "no memory is free where the jump could lead");
    pub(crate) const NOT_WRITTEN: Refusal =
        Refusal::unsupported("core.detour_not_written", "the memory for a detour cannot be written");
    pub(crate) const NOT_WANTED: Refusal =
        Refusal::unsupported("core.not_wanted", "the probe asks for a breakpoint");
    pub(crate) const NO_MEMORY: Refusal =
        Refusal::unsupported("core.no_memory", "there is no memory for a detour");
    pub(crate) const CHANGED: Refusal = Refusal::unsupported(
        "core.changed",
        "the text has changed, or the registers to save, since the detour was made",
    );
}

/// The instructions that a jump at a place displaces, for tools that explain text without planting anything.
/// It does not say whether a detour finds room where the jump can lead. `targets` is kept for the next place
/// of the same function.
///
/// # Errors
/// Why the place keeps its breakpoint.
pub fn displaced_by_jump<A: Arch>(
    targets: &mut BranchTargets,
    site: &Site<'_>,
) -> Result<Displaced, Refusal> {
    let jumps = A::JUMPS.ok_or(refusal::NO_JUMPS)?;
    let displaced = jumps.displace(site)?;
    if A::Jumps::JUMP_LEN > A::INSN_ALIGN {
        let end = site.at.wrapping_add(usize::from(displaced.len_bytes));
        let jump_end = site.at.wrapping_add(A::Jumps::JUMP_LEN).min(end);
        let function = site.function.unwrap_or((site.at, end));
        if targets.has::<A>(jumps, site.text, function, site.at.wrapping_add(1), jump_end)? {
            return Err(refusal::JUMP_TARGET);
        }
    }
    Ok(displaced)
}

/// Whether post handlers can be called where a jump stands instead of a breakpoint.
///
/// # Errors
/// Why the place keeps its breakpoint if it has a post handler.
pub fn post_by_jump<A: Arch>(method: Method, plan: &A::Plan) -> Result<(), Refusal> {
    // What is simulated at a trap is simulated in the detour; behind the copy of another one the detour calls
    // again.
    let is_called = method == Method::Simulate || method == Method::Boost && !A::is_system_call(plan);
    if is_called { Ok(()) } else { Err(refusal::POST) }
}

/// The targets of the direct branches of the function that was looked at last.
#[derive(Debug)]
pub struct BranchTargets {
    function: Option<(CodeAddr, CodeAddr)>,
    targets: Vec<CodeAddr>,
}

impl BranchTargets {
    /// The targets of no function yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { function: None, targets: Vec::new() }
    }

    /// Whether a direct branch of `function` leads to somewhere within `from..to`.
    fn has<A: Arch>(
        &mut self,
        jumps: A::Jumps,
        text: &dyn Text,
        function: (CodeAddr, CodeAddr),
        from: CodeAddr,
        to: CodeAddr,
    ) -> Result<bool, Refusal> {
        if self.function != Some(function) {
            self.targets.clear();
            self.function = Some(function);
            self.collect::<A>(jumps, text, function)?;
            self.targets.sort_unstable();
        }
        let first = self.targets.partition_point(|target| *target < from);
        Ok(self.targets.get(first).is_some_and(|target| *target < to))
    }

    fn collect<A: Arch>(
        &mut self,
        jumps: A::Jumps,
        text: &dyn Text,
        (start, end): (CodeAddr, CodeAddr),
    ) -> Result<(), Refusal> {
        let mut window = [0; WINDOW];
        let (mut window_start, mut window_len) = (start, 0);
        let mut at = start;
        while at < end {
            let mut offset = at.as_usize().wrapping_sub(window_start.as_usize());
            if offset.saturating_add(A::MAX_INSN_LEN) > window_len {
                window_len = text.read(at, &mut window);
                (window_start, offset) = (at, 0);
            }
            let insn = window.get(offset..window_len).unwrap_or(&[]);
            let insn = insn.get(..A::MAX_INSN_LEN).unwrap_or(insn);
            // What cannot be decoded cannot be walked over: what follows is data, or traps are the safe
            // choice.
            let Some(len) = A::insn_len(at, insn).filter(|len| *len != 0) else { return Ok(()) };
            if let Some(target) = jumps.branch_target(insn, at).filter(|target| (start..end).contains(target))
            {
                self.targets.try_reserve(1).map_err(|_| refusal::NO_MEMORY)?;
                self.targets.push(target);
            }
            at = at.wrapping_add(len);
        }
        Ok(())
    }
}

impl Default for BranchTargets {
    fn default() -> Self {
        Self::new()
    }
}
