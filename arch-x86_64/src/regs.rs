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
        let value = match index {
            0 => self.r15,
            1 => self.r14,
            2 => self.r13,
            3 => self.r12,
            4 => self.rbp,
            5 => self.rbx,
            6 => self.r11,
            7 => self.r10,
            8 => self.r9,
            9 => self.r8,
            10 => self.rax,
            11 => self.rcx,
            12 => self.rdx,
            13 => self.rsi,
            14 => self.rdi,
            15 => self.orig_rax,
            16 => self.rip,
            17 => self.cs,
            18 => self.eflags,
            19 => self.rsp,
            20 => self.ss,
            _ => return None,
        };
        Some(value as usize)
    }
}

/// Names as in kprobe events, and as in assembly.
const NAMES: &[(&str, usize)] = &[
    ("r15", 0),
    ("r14", 1),
    ("r13", 2),
    ("r12", 3),
    ("rbp", 4),
    ("bp", 4),
    ("rbx", 5),
    ("bx", 5),
    ("r11", 6),
    ("r10", 7),
    ("r9", 8),
    ("r8", 9),
    ("rax", 10),
    ("ax", 10),
    ("rcx", 11),
    ("cx", 11),
    ("rdx", 12),
    ("dx", 12),
    ("rsi", 13),
    ("si", 13),
    ("rdi", 14),
    ("di", 14),
    ("orig_rax", 15),
    ("orig_ax", 15),
    ("rip", 16),
    ("ip", 16),
    ("cs", 17),
    ("eflags", 18),
    ("flags", 18),
    ("rflags", 18),
    ("rsp", 19),
    ("sp", 19),
    ("ss", 20),
];

impl Registers for Regs {
    type Mode = LongMode;

    #[inline]
    fn general(&self, number: u8) -> u64 {
        match number {
            0 => self.rax,
            1 => self.rcx,
            2 => self.rdx,
            3 => self.rbx,
            4 => self.rsp,
            5 => self.rbp,
            6 => self.rsi,
            7 => self.rdi,
            8 => self.r8,
            9 => self.r9,
            10 => self.r10,
            11 => self.r11,
            12 => self.r12,
            13 => self.r13,
            14 => self.r14,
            15 => self.r15,
            _ => 0,
        }
    }

    #[inline]
    fn set_general(&mut self, number: u8, value: u64) {
        let register = match number {
            0 => &mut self.rax,
            1 => &mut self.rcx,
            2 => &mut self.rdx,
            3 => &mut self.rbx,
            4 => &mut self.rsp,
            5 => &mut self.rbp,
            6 => &mut self.rsi,
            7 => &mut self.rdi,
            8 => &mut self.r8,
            9 => &mut self.r9,
            10 => &mut self.r10,
            11 => &mut self.r11,
            12 => &mut self.r12,
            13 => &mut self.r13,
            14 => &mut self.r14,
            15 => &mut self.r15,
            _ => return,
        };
        *register = value;
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
