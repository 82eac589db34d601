//! How compiled code makes system calls.

use super::frame::Regs;

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
    /// Stores what the call, the one of this index, has resulted in: below 0 an errno, negative.
    pub(crate) set_result: fn(&mut Regs, usize, isize),
}

/// Where an instruction leads that is looked at on the way from a system call's number to the call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leads {
    /// To the next one.
    On,
    /// To the target of a direct branch.
    Elsewhere,
    /// Either of both.
    Either,
    /// Out of what can be followed: it returns, calls a function, or branches indirectly.
    Away,
}
