//! How compiled code makes system calls.

use super::frame::Regs;
use memchr::memmem;
use probe_arch_native::Native;
use probe_core::CodeAddr;
use probe_core::arch::{Arch, Memory};

/// How compiled code makes a system call with a constant number.
#[derive(Clone, Copy)]
pub(crate) struct SyscallCode {
    /// The instructions that load the number.
    pub(crate) loads: &'static [Load],
    /// How many instructions, on one path, may lie between the number and the call.
    pub(crate) between: usize,
    /// The instructions that make the call.
    pub(crate) calls: &'static [Call],
    /// Where the instruction at an address leads, which the bytes start with.
    pub(crate) leads: fn(CodeAddr, &[u8]) -> Leads,
    /// What the call with this index takes for its number.
    pub(crate) number: fn(&Regs, usize) -> usize,
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

/// An instruction that loads a number of a system call.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// How many bytes it has.
    pub(crate) len_bytes: usize,
    /// Its first byte lies at a multiple of this.
    align: usize,
    /// What its address has in bit 0, which says the instruction set where there are two.
    pub(crate) set: usize,
    /// The instruction, if the number fits; zeros behind a short one.
    insn: fn(u32) -> Option<[u8; Self::MAX_LEN]>,
}

impl Load {
    const MAX_LEN: usize = 5;

    /// An instruction of the only set.
    #[allow(dead_code, reason = "not on arm")]
    pub(super) const fn new(len_bytes: usize, insn: fn(u32) -> Option<[u8; Self::MAX_LEN]>) -> Self {
        Self { len_bytes, align: Native::INSN_ALIGN, set: 0, insn }
    }

    /// An instruction of one of two sets.
    #[allow(dead_code, reason = "on arm only")]
    pub(super) const fn of_set(set: usize, align: usize, new: Self) -> Self {
        Self { align, set, ..new }
    }

    /// The offsets in `text` of those that load `number`, with their set.
    pub(crate) fn find(self, text: &[u8], number: u32) -> impl Iterator<Item = usize> {
        let insn = (self.insn)(number);
        let finder = insn.map(|insn| memmem::Finder::new(&insn[..self.len_bytes]).into_owned());
        let mut from = 0;
        let any = std::iter::from_fn(move || {
            let at = from + finder.as_ref()?.find(text.get(from..)?)?;
            // What is found may begin within an instruction, and one that it overlaps with is one.
            from = at + 1;
            Some(at)
        });
        any.filter(move |at| at.is_multiple_of(self.align)).map(move |at| at | self.set)
    }
}

/// An instruction of one word.
#[allow(dead_code, reason = "not on x86")]
pub(super) const fn word([a, b, c, d]: [u8; 4]) -> Option<[u8; Load::MAX_LEN]> {
    Some([a, b, c, d, 0])
}

/// How far from the instruction that the bytes start with the function lies that it calls, if it calls one.
type Distance = fn(&[u8]) -> Option<isize>;

/// An instruction that makes a system call, or calls a function that does.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Its length in bytes.
    pub(crate) len_bytes: usize,
    /// What its address has in bit 0.
    set: usize,
    /// Its bytes, or those of the function.
    code: &'static [u8],
    /// Of one that calls a function.
    distance: Option<Distance>,
}

impl Call {
    /// An instruction of the only set.
    pub(super) const fn new(insn: &'static [u8]) -> Self {
        Self { len_bytes: insn.len(), set: 0, code: insn, distance: None }
    }

    /// An instruction of one of two sets.
    #[allow(dead_code, reason = "on arm only")]
    pub(super) const fn of_set(set: usize, insn: &'static [u8]) -> Self {
        Self { set, ..Self::new(insn) }
    }

    /// One that calls the function with this code, in its own set.
    #[allow(dead_code, reason = "on arm only")]
    pub(super) const fn function(
        set: usize,
        len_bytes: usize,
        distance: Distance,
        code: &'static [u8],
    ) -> Self {
        Self { len_bytes, set, code, distance: Some(distance) }
    }

    /// Whether it lies at `at`; `read` fills a piece of text, from an address of bytes on, or says that it
    /// cannot.
    pub(crate) fn is_at(&self, at: CodeAddr, read: &dyn Fn(usize, &mut [u8]) -> bool) -> bool {
        if at != CodeAddr::new(Native::first_byte(at).as_usize() | self.set) {
            return false;
        }
        let first = Native::first_byte(at).as_usize();
        let code = match self.distance {
            None => Some(first),
            Some(distance) => {
                let mut insn = [0; 8];
                let insn = &mut insn[..self.len_bytes];
                let distance = if read(first, insn) { distance(insn) } else { None };
                distance.map(|distance| first.wrapping_add_signed(distance))
            }
        };
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..self.code.len()];
        code.is_some_and(|code| read(code, bytes) && *bytes == *self.code)
    }
}

impl SyscallCode {
    /// Which of the calls lies at `at`.
    pub(crate) fn call_at(&self, at: CodeAddr, read: &dyn Fn(usize, &mut [u8]) -> bool) -> Option<usize> {
        self.calls.iter().position(|call| call.is_at(at, read))
    }
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
