//! The saved registers: Linux's `struct pt_regs` for this architecture.

use probe_core::CodeAddr;
use probe_x86_decode::{ProtectedMode, Registers};

/// A segment register as PUSH stores it: the selector, and two bytes above it that PUSH may leave as they
/// were (SDM volume 2, "PUSH"). Only the selector counts.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Segment {
    /// What the register holds.
    pub selector: u16,
    rest: u16,
}

impl Segment {
    /// With nothing above the selector.
    #[inline]
    #[must_use]
    pub const fn new(selector: u16) -> Self {
        Self { selector, rest: 0 }
    }
}

impl PartialEq for Segment {
    fn eq(&self, other: &Self) -> bool {
        self.selector == other.selector
    }
}

impl Eq for Segment {}

impl core::fmt::Debug for Segment {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#06x}", self.selector)
    }
}

/// The registers of an interrupted context, laid out as Linux's `struct pt_regs`.
///
/// A trap from the same privilege level saves neither ESP nor SS: the host fills both, and leaves a gap of at
/// least 24 bytes between its frame and the interrupted stack for what a simulated CALL or ENTER pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Regs {
    /// General register.
    pub ebx: u32,
    /// General register.
    pub ecx: u32,
    /// General register.
    pub edx: u32,
    /// General register.
    pub esi: u32,
    /// General register.
    pub edi: u32,
    /// General register.
    pub ebp: u32,
    /// General register.
    pub eax: u32,
    /// The data segment.
    pub ds: Segment,
    /// The extra segment.
    pub es: Segment,
    /// The FS segment.
    pub fs: Segment,
    /// The GS segment.
    pub gs: Segment,
    /// The system call number, or -1.
    pub orig_eax: u32,
    /// The instruction pointer.
    pub eip: u32,
    /// The code segment.
    pub cs: Segment,
    /// The flags.
    pub eflags: u32,
    /// The stack pointer.
    pub esp: u32,
    /// The stack segment.
    pub ss: Segment,
}

const _: () = assert!(size_of::<Regs>() == 68);
const _: () = assert!(core::mem::offset_of!(Regs, eip) == 48);
const _: () = assert!(core::mem::offset_of!(Regs, esp) == 60);

/// Where each general register stands in [`Regs`], in words, in the order of their encodings.
const GENERAL: [usize; 8] = [6, 1, 2, 0, 15, 5, 3, 4];

/// Where segments stand in [`Regs`], in words.
const SEGMENTS: [usize; 6] = [7, 8, 9, 10, 13, 16];

impl Regs {
    #[inline]
    const fn words(&self) -> &[u32; 17] {
        // SAFETY: nothing but 17 words, as asserted above for their size; any value is one.
        unsafe { &*core::ptr::from_ref(self).cast() }
    }

    #[inline]
    const fn words_mut(&mut self) -> &mut [u32; 17] {
        // SAFETY: as above.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

impl probe_core::arch::Regs for Regs {
    #[inline]
    fn pc(&self) -> CodeAddr {
        CodeAddr::new(self.eip as usize)
    }

    #[inline]
    fn set_pc(&mut self, pc: CodeAddr) {
        self.eip = pc.as_usize() as u32;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.esp as usize
    }

    fn names() -> &'static [(&'static str, usize)] {
        NAMES
    }

    fn register(&self, index: usize) -> Option<usize> {
        let mask = if SEGMENTS.contains(&index) { 0xffff } else { u32::MAX };
        self.words().get(index).map(|value| (*value & mask) as usize)
    }
}

/// Names as in kprobe events, and as in assembly.
#[rustfmt::skip]
const NAMES: &[(&str, usize)] = &[
    ("ebx", 0), ("bx", 0), ("ecx", 1), ("cx", 1), ("edx", 2), ("dx", 2), ("esi", 3), ("si", 3), ("edi", 4),
    ("di", 4), ("ebp", 5), ("bp", 5), ("eax", 6), ("ax", 6), ("ds", 7), ("es", 8), ("fs", 9), ("gs", 10),
    ("orig_eax", 11), ("orig_ax", 11), ("eip", 12), ("ip", 12), ("cs", 13), ("eflags", 14), ("flags", 14),
    ("esp", 15), ("sp", 15), ("ss", 16),
];

impl Registers for Regs {
    type Mode = ProtectedMode;

    #[inline]
    fn general(&self, number: u8) -> u64 {
        let index = GENERAL.get(usize::from(number));
        index.and_then(|index| self.words().get(*index)).map_or(0, |value| u64::from(*value))
    }

    #[inline]
    fn set_general(&mut self, number: u8, value: u64) {
        let Some(index) = GENERAL.get(usize::from(number)) else { return };
        if let Some(register) = self.words_mut().get_mut(*index) {
            *register = value as u32;
        }
    }

    #[inline]
    fn flags(&self) -> u64 {
        u64::from(self.eflags)
    }

    #[inline]
    fn set_flags(&mut self, flags: u64) {
        self.eflags = flags as u32;
    }

    #[inline]
    fn code_segment(&self) -> u64 {
        u64::from(self.cs.selector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_core::arch::Regs as _;

    #[test]
    fn what_push_leaves_above_a_selector_does_not_count() {
        let pushed = Segment { selector: 0x7b, rest: 0xdead };
        assert_eq!(pushed, Segment::new(0x7b));
        let regs = Regs {
            cs: pushed,
            ss: pushed,
            ds: pushed,
            es: pushed,
            fs: pushed,
            gs: pushed,
            ..Regs::default()
        };
        assert_eq!(regs.code_segment(), 0x7b);
        for name in ["cs", "ss", "ds", "es", "fs", "gs"] {
            let (_, index) = Regs::names().iter().find(|(known, _)| *known == name).expect("it has a name");
            assert_eq!(regs.register(*index), Some(0x7b), "{name}");
        }
    }
}
