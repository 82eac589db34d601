//! How compiled code makes system calls.

use super::frame::Regs;
use probe_core::arch::Memory;

/// How compiled code makes a system call with a constant number, which an instruction of so many bytes loads.
#[derive(Clone, Copy)]
pub(crate) struct SyscallCode<const LOAD_LEN: usize> {
    /// The instruction that loads the number.
    pub(crate) load: fn(u32) -> [u8; LOAD_LEN],
    /// How many instructions, on one path, may lie between the number and the call.
    pub(crate) between: usize,
    /// The instructions that make the call.
    pub(crate) calls: &'static [&'static [u8]],
    /// Where the instruction that the bytes start with leads.
    pub(crate) leads: fn(&[u8]) -> Leads,
    pub(crate) number: fn(&Regs) -> usize,
    /// The first six.
    pub(crate) argument: fn(&Regs, usize) -> usize,
    /// Replaces the first.
    pub(crate) set_first: fn(&mut Regs, usize),
    /// Stores the result of the call with this index: an errno is negative.
    pub(crate) set_result: fn(&mut Regs, usize, isize),
    /// Lets the call with this index be made by an instruction of ours, behind which the program goes on,
    /// where code that is not the program's would lead to the kernel; whether it does.
    pub(crate) make_directly: fn(&mut Regs, usize, &dyn Memory) -> bool,
    /// Undoes `make_directly`, if the next instruction is that, except for the program counter.
    pub(crate) leave_directly: fn(&mut Regs),
}

/// Libc's own instruction leads to the kernel at once.
#[allow(dead_code, reason = "not on i386")]
pub(super) fn is_direct(_: &mut Regs, _: usize, _: &dyn Memory) -> bool {
    false
}

/// Where an instruction between the load of a system call's number and the call leads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To the next instruction.
    On,
    /// To the target of a direct branch.
    Elsewhere,
    /// Either of both.
    Either,
    /// Where it cannot be followed: it returns, calls a function, or branches indirectly.
    Away,
}
