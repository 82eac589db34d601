//! Jumps, an optional power of backends: detours that a jump in text leads to, instead of a trap.

use super::{Regs, SaveSet, Site};
use crate::addr::CodeAddr;
use crate::error::Refusal;

/// The most instructions that the jump of an optimised probe displaces.
pub const MAX_DISPLACED: usize = 5;

/// The instructions that the jump of an optimised probe displaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Displaced {
    /// Their length in bytes, with padding that the jump covers, too.
    pub len_bytes: u8,
    count: u8,
    starts: [u8; MAX_DISPLACED],
}

impl Displaced {
    /// Adds the next instruction; `None` where there are too many.
    pub fn push(&mut self, len_bytes: u8) -> Option<()> {
        *self.starts.get_mut(usize::from(self.count))? = self.len_bytes;
        self.count += 1;
        self.len_bytes = self.len_bytes.checked_add(len_bytes)?;
        Some(())
    }

    /// Where each of them starts, in bytes from the place.
    pub fn starts(&self) -> impl Iterator<Item = usize> {
        self.starts.into_iter().take(usize::from(self.count)).map(usize::from)
    }
}

/// The layout of a detour, in bytes from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetourLayout {
    /// The copies of the displaced instructions, in their order.
    pub copies: [u8; MAX_DISPLACED],
    /// The jump back, or one past the last copy.
    pub back: u8,
    /// Its length.
    pub len_bytes: u8,
}

/// The trampoline that a detour calls, and the words for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetourCalls {
    /// [`NativeJumps::detour_trampoline`], or [`NativeJumps::entry_trampoline`].
    pub trampoline: CodeAddr,
    /// The word of the call before the copies.
    pub word: usize,
    /// The word of a second call behind the first copy, if there is to be one; then the first instruction
    /// does not change the control flow.
    pub post_word: Option<usize>,
}

/// Jumps instead of breakpoints: the instructions that they displace, and the detours that they lead to.
///
/// A backend has it by [`Arch::Jumps`](super::Arch::Jumps). Every function takes the value, so its caller has
/// the proof that the architecture has the power; [`NoJumps`] has no value. All functions are pure.
///
/// # Safety
/// The core writes what these functions return into executable memory and into text. An implementation
/// promises that a filled detour has exactly the effect of the displaced instructions, beside its calls, and
/// goes on behind them.
pub unsafe trait Jumps<R: Regs>: Copy + Send + Sync + 'static {
    /// How many bytes of text the jump to a detour takes.
    const JUMP_LEN: usize;
    /// The most bytes that a detour takes.
    const DETOUR_LEN: usize;
    /// How far before its entry a detour's memory begins, in bytes.
    const DETOUR_HEADER_LEN: usize;

    /// Finds the instructions that a jump at a place displaces.
    ///
    /// # Errors
    /// A [`Refusal`] says why the place keeps its breakpoint.
    fn displace(self, site: &Site<'_>) -> Result<Displaced, Refusal>;

    /// Where the instruction that `text` starts with, at `at`, may branch directly.
    fn branch_target(self, text: &[u8], at: CodeAddr) -> Option<CodeAddr>;

    /// The lowest address from `from` on where the entry of the detour of `place` may lie, if one is in
    /// reach.
    fn detour_entry(self, place: CodeAddr, displaced: &Displaced, from: CodeAddr) -> Option<CodeAddr>;

    /// Builds the detour with this entry: it makes the first of `calls`, runs the copies of the displaced
    /// instructions and goes on behind them. `text` holds the displaced instructions as they were.
    ///
    /// # Errors
    /// A [`Refusal`] if the detour is out of reach of the instructions' operands.
    fn fill_detour(
        self,
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal>;

    /// The jump from `place` to a detour's entry: the first [`Jumps::JUMP_LEN`] bytes count.
    ///
    /// If it is longer than the breakpoint, it has the breakpoint's bytes wherever a displaced instruction
    /// but the first starts.
    fn jump(self, place: CodeAddr, entry: CodeAddr) -> [u8; 8];

    /// The address of the [`Regs`] that a detour's trampoline hands to [`NativeJumps::detour_resume_trap`],
    /// from the registers at that trap.
    fn detour_regs(self, regs: &R) -> usize;

    /// Makes a context that has trapped at [`NativeJumps::detour_resume_trap`] resume with `kept`, the
    /// registers at [`Jumps::detour_regs`]. A machine's state that only a trap can save and change
    /// (privilege, translation, interrupts) stays the trap's if the trampoline cannot save it.
    #[inline]
    fn resume_with(self, regs: &mut R, kept: R) {
        *regs = kept;
    }
}

/// The part of [`Jumps`] that must be executed on the architecture.
///
/// # Safety
/// These functions return addresses of code that keeps the protocol described there.
pub unsafe trait NativeJumps<R: Regs>: Jumps<R> {
    /// The address of the assembly that detours call. It saves the registers that `save` names and calls the
    /// function that the detour's word leads to. The word is the address of a structure: its first word is a
    /// [handler](super::NativeArch::handler), its second one the place, where `regs` are. Then it resumes as
    /// the answer says.
    fn detour_trampoline(self, save: SaveSet) -> CodeAddr;

    /// A trampoline for detours of functions whose calls are followed, which makes the processor predict the
    /// function's return to its stub. It also knows [`Resume::Followed`](super::Resume::Followed). `None` if
    /// the backend has none.
    fn entry_trampoline(self, _save: SaveSet) -> Option<CodeAddr> {
        None
    }

    /// [`Jumps::fill_detour`] for [`NativeJumps::entry_trampoline`].
    ///
    /// # Errors
    /// As of [`Jumps::fill_detour`].
    fn fill_entry_detour(
        self,
        displaced: &Displaced,
        text: &[u8],
        place: CodeAddr,
        entry: CodeAddr,
        calls: &DetourCalls,
        out: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        self.fill_detour(displaced, text, place, entry, calls, out)
    }

    /// The address of a breakpoint instruction in the trampolines: the context resumes with all of the `Regs`
    /// that [`Jumps::detour_regs`] names. [`Arch::breakpoint_address`](super::Arch::breakpoint_address) of
    /// that trap is this address.
    fn detour_resume_trap(self) -> CodeAddr;
}

/// [`Arch::Jumps`](super::Arch::Jumps) of a backend whose probes keep their breakpoints. It has no value.
#[derive(Clone, Copy, Debug)]
pub enum NoJumps {}

// SAFETY: nothing can be called without a value.
unsafe impl<R: Regs> Jumps<R> for NoJumps {
    const JUMP_LEN: usize = 0;
    const DETOUR_LEN: usize = 0;
    const DETOUR_HEADER_LEN: usize = 0;

    fn displace(self, _: &Site<'_>) -> Result<Displaced, Refusal> {
        match self {}
    }

    fn branch_target(self, _: &[u8], _: CodeAddr) -> Option<CodeAddr> {
        match self {}
    }

    fn detour_entry(self, _: CodeAddr, _: &Displaced, _: CodeAddr) -> Option<CodeAddr> {
        match self {}
    }

    fn fill_detour(
        self,
        _: &Displaced,
        _: &[u8],
        _: CodeAddr,
        _: CodeAddr,
        _: &DetourCalls,
        _: &mut [u8],
    ) -> Result<DetourLayout, Refusal> {
        match self {}
    }

    fn jump(self, _: CodeAddr, _: CodeAddr) -> [u8; 8] {
        match self {}
    }

    fn detour_regs(self, _: &R) -> usize {
        match self {}
    }
}

// SAFETY: as above.
unsafe impl<R: Regs> NativeJumps<R> for NoJumps {
    fn detour_trampoline(self, _: SaveSet) -> CodeAddr {
        match self {}
    }

    fn detour_resume_trap(self) -> CodeAddr {
        match self {}
    }
}
