//! Calls, an optional power of backends: the basis of return probes, jprobes and a handler's view of
//! arguments.

use super::{MemFault, Memory, Regs, SaveSet, Text};
use crate::addr::CodeAddr;

/// Where return probes find and change the return address of the call that has just entered a function.
///
/// `frame` identifies the call: the address of the return address on the stack (x86), or the stack pointer
/// at entry (link-register architectures).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The return address.
    pub return_address: CodeAddr,
    /// The identity of the call.
    pub frame: usize,
}

/// How a word on a stack returns to a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// It does not.
    Elsewhere,
    /// It is the return address: another one can be put in its place.
    Plainly,
    /// It is the return address, signed for the place it is loaded from: nobody else can write another one.
    Signed,
}

/// The calling convention: arguments, return value, return address, and the stubs that calls return through.
///
/// A backend has it by [`Arch::Calls`](super::Arch::Calls). Every function takes the value, so its caller has
/// the proof that the architecture has the power; [`NoCalls`] has no value. All functions are pure.
///
/// # Safety
/// The core resumes contexts with the registers that these functions leave, and uses the stubs that
/// [`Calls::fill_stubs`] writes as return addresses. An implementation promises that
/// [`Calls::set_return_address`] makes the call return there and changes nothing else, and that each stub
/// keeps the protocol described at that function.
pub unsafe trait Calls<R: Regs>: Copy + Send + Sync + 'static {
    /// The size of a return stub in bytes.
    const STUB_LEN: usize;

    /// The number of bytes between a function's symbol and the last place that counts as its entry for return
    /// probes and jprobes (REG_17): on aarch64 it lies behind the instruction that signs the return address.
    /// The probes are planted at `entry_offset` ([`Arch::entry_offset`](super::Arch::entry_offset)) all the
    /// same.
    fn entry_end(self, text: &dyn Text, function: CodeAddr, entry_offset: usize) -> usize {
        let _ = (text, function);
        entry_offset
    }

    /// The integer argument number `index`, from 0, of the call that has just entered a function.
    fn argument<M: Memory>(self, regs: &R, index: usize, memory: &M) -> Option<usize>;

    /// The ABI's integer return register.
    fn return_value(self, regs: &R) -> usize;

    /// Sets the ABI's integer return register.
    fn set_return_value(self, regs: &mut R, value: usize);

    /// Reads the return address and the frame of the call that has just entered a function.
    ///
    /// # Errors
    /// The stack could not be read.
    fn entry<M: Memory>(self, regs: &R, memory: &M) -> Result<Entry, MemFault>;

    /// Makes the call that has just entered a function return to `to`.
    ///
    /// # Errors
    /// The stack could not be written.
    fn set_return_address<M: Memory>(self, regs: &mut R, to: CodeAddr, memory: &M) -> Result<(), MemFault>;

    /// Whether the call with this `frame` may still return to `stub`, judged by the contents of the stack;
    /// `sp` is the context's stack pointer now. `false` only if it certainly will not, because a longjmp or
    /// unwinding has left its frame.
    fn may_return<M: Memory>(self, frame: usize, stub: CodeAddr, sp: usize, memory: &M) -> bool;

    /// How a `word` on a stack returns to `stub`.
    fn returns(self, word: usize, stub: CodeAddr) -> Returns {
        if word == stub.as_usize() { Returns::Plainly } else { Returns::Elsewhere }
    }

    /// Fills a chunk of executable memory at `chunk` with return stubs and the veneer that they share, and
    /// returns how many stubs it holds.
    ///
    /// Stub `i` lies at `chunk + i * STUB_LEN`. An unwinder looks up a return address minus one, which for
    /// stub 0 may lie outside the chunk, so stub 0 is never handed out. A stub transfers to `trampoline`
    /// ([`NativeCalls::return_trampoline`]) and tells it which stub it was and the word `handler`.
    ///
    /// `out` is a power of two less the last `size_of::<usize>()` bytes, which belong to the core; `chunk` is
    /// aligned to that power of two.
    fn fill_stubs(self, chunk: CodeAddr, trampoline: CodeAddr, handler: usize, out: &mut [u8]) -> usize;

    /// Turns the registers of a context at a function's entry into a call of `handler` with copies of the
    /// same arguments, which returns to `return_to`. The caller's argument area is not touched (JMP_2,
    /// JMP_3).
    ///
    /// # Errors
    /// The stack could not be read or written; then nothing has changed.
    fn enter_jprobe<M: Memory>(
        self,
        regs: &mut R,
        handler: usize,
        return_to: CodeAddr,
        memory: &M,
    ) -> Result<(), MemFault>;
}

/// The part of [`Calls`] that must be executed on the architecture.
///
/// # Safety
/// [`NativeCalls::return_trampoline`] and [`NativeCalls::jprobe_return_trap`] return addresses of code that
/// keeps the protocol described there.
pub unsafe trait NativeCalls<R: Regs>: Calls<R> {
    /// The address of the assembly that return stubs lead to. It saves the registers that `save` names and
    /// calls the [handler](super::NativeArch::handler) that was given to [`Calls::fill_stubs`], with `regs`
    /// as at the function's return and the stub's address as the word. Then it loads the registers that the
    /// answer names from `regs` and resumes at `regs.pc`. The answer is
    /// [`Resume::Unchanged`](super::Resume::Unchanged) or [`Resume::Changed`](super::Resume::Changed), which
    /// here means all registers.
    fn return_trampoline(self, save: SaveSet) -> CodeAddr;

    /// The address of a breakpoint instruction in the backend's own text, to which a jprobe's handler
    /// returns. [`Arch::breakpoint_address`](super::Arch::breakpoint_address) of that trap is this address.
    fn jprobe_return_trap(self) -> CodeAddr;

    /// [`Calls::fill_stubs`] for the machine that this runs on.
    fn fill_return_stubs(
        self,
        chunk: CodeAddr,
        trampoline: CodeAddr,
        handler: usize,
        out: &mut [u8],
    ) -> usize {
        self.fill_stubs(chunk, trampoline, handler, out)
    }
}

/// [`Arch::Calls`](super::Arch::Calls) of a backend that follows no calls. It has no value.
#[derive(Clone, Copy, Debug)]
pub enum NoCalls {}

// SAFETY: nothing can be called without a value.
unsafe impl<R: Regs> Calls<R> for NoCalls {
    const STUB_LEN: usize = 0;

    fn argument<M: Memory>(self, _: &R, _: usize, _: &M) -> Option<usize> {
        match self {}
    }

    fn return_value(self, _: &R) -> usize {
        match self {}
    }

    fn set_return_value(self, _: &mut R, _: usize) {
        match self {}
    }

    fn entry<M: Memory>(self, _: &R, _: &M) -> Result<Entry, MemFault> {
        match self {}
    }

    fn set_return_address<M: Memory>(self, _: &mut R, _: CodeAddr, _: &M) -> Result<(), MemFault> {
        match self {}
    }

    fn may_return<M: Memory>(self, _: usize, _: CodeAddr, _: usize, _: &M) -> bool {
        match self {}
    }

    fn fill_stubs(self, _: CodeAddr, _: CodeAddr, _: usize, _: &mut [u8]) -> usize {
        match self {}
    }

    fn enter_jprobe<M: Memory>(self, _: &mut R, _: usize, _: CodeAddr, _: &M) -> Result<(), MemFault> {
        match self {}
    }
}

// SAFETY: as above.
unsafe impl<R: Regs> NativeCalls<R> for NoCalls {
    fn return_trampoline(self, _: SaveSet) -> CodeAddr {
        match self {}
    }

    fn jprobe_return_trap(self) -> CodeAddr {
        match self {}
    }
}
