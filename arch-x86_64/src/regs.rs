//! The saved registers: Linux's `struct pt_regs` for this architecture.

use probe_core::CodeAddr;
use probe_x86_decode::{LongMode, Registers};

/// The registers of an interrupted context, laid out as Linux's `struct pt_regs`.
///
/// A kernel's trap entry that saves this frame passes it as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Regs {
    /// General register.
    pub r15: u64,
    /// General register.
    pub r14: u64,
    /// General register.
    pub r13: u64,
    /// General register.
    pub r12: u64,
    /// General register.
    pub rbp: u64,
    /// General register.
    pub rbx: u64,
    /// General register.
    pub r11: u64,
    /// General register.
    pub r10: u64,
    /// General register.
    pub r9: u64,
    /// General register.
    pub r8: u64,
    /// General register.
    pub rax: u64,
    /// General register.
    pub rcx: u64,
    /// General register.
    pub rdx: u64,
    /// General register.
    pub rsi: u64,
    /// General register.
    pub rdi: u64,
    /// The system call number, or -1.
    pub orig_rax: u64,
    /// The instruction pointer.
    pub rip: u64,
    /// The code segment.
    pub cs: u64,
    /// The flags.
    pub eflags: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The stack segment.
    pub ss: u64,
}

const _: () = assert!(size_of::<Regs>() == 168);
const _: () = assert!(core::mem::offset_of!(Regs, rip) == 128);
const _: () = assert!(core::mem::offset_of!(Regs, rsp) == 152);

/// Where each general register stands in [`Regs`], in words, in the order of their encodings.
const GENERAL: [usize; 16] = [10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0];

impl Regs {
    #[inline]
    const fn words(&self) -> &[u64; 21] {
        // SAFETY: nothing but 21 words, as asserted above for their size; any value is one.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    #[inline]
    const fn words_mut(&mut self) -> &mut [u64; 21] {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

impl probe_core::arch::Regs for Regs {
    #[inline]
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.rip as usize)
    }

    #[inline]
    fn set_pc(&mut self, pc: CodeAddr) {
        self.rip = pc.as_usize() as u64;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.rsp as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        self.words().get(index).map(|value| *value as usize)
    }
}

/// Names as in kprobe events, and as in assembly.
#[rustfmt::skip]
const NAMES: &[(&str, usize)] = &[
    ("r15", 0), ("r14", 1), ("r13", 2), ("r12", 3), ("rbp", 4), ("bp", 4), ("rbx", 5), ("bx", 5),
    ("r11", 6), ("r10", 7), ("r9", 8), ("r8", 9), ("rax", 10), ("ax", 10), ("rcx", 11), ("cx", 11),
    ("rdx", 12), ("dx", 12), ("rsi", 13), ("si", 13), ("rdi", 14), ("di", 14), ("orig_rax", 15),
    ("orig_ax", 15), ("rip", 16), ("ip", 16), ("cs", 17), ("eflags", 18), ("flags", 18), ("rflags", 18),
    ("rsp", 19), ("sp", 19), ("ss", 20),
];

impl Registers for Regs {
    type Mode = LongMode;

    #[inline]
    fn general(&self, number: u8) -> u64 {
        let index = GENERAL.get(usize::from(number));
        index.and_then(|index| self.words().get(*index)).map_or(0, |value| *value)
    }

    #[inline]
    fn set_general(&mut self, number: u8, value: u64) {
        let Some(index) = GENERAL.get(usize::from(number)) else { return };
        if let Some(register) = self.words_mut().get_mut(*index) {
            *register = value;
        }
    }

    #[inline]
    fn flags(&self) -> u64 {
        self.eflags
    }

    #[inline]
    fn set_flags(&mut self, flags: u64) {
        self.eflags = flags;
    }

    #[inline]
    fn code_segment(&self) -> u64 {
        self.cs
    }
}
