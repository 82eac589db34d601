//! Restartable sequences in an object: the kernel restarts code that it interrupts there, so no probe may
//! stand in one (REG_20).
//!
//! A sequence's descriptor (`struct rseq_cs`) holds the address of its first instruction, its length, and the
//! address of its abort handler. Descriptors lie in the section `__rseq_cs`, or anywhere among the data that
//! the loader relocates; there their shape identifies them, and the signature that the kernel wants before
//! the abort handler. A breakpoint between start and commit leads to the abort handler each time, or ends the
//! program. The instructions right before a sequence, which arm it, are not probed either: behind them, in a
//! slot, an interruption would find the program outside of the sequence and disarm it. Sources: Linux,
//! include/uapi/linux/rseq.h; rseq(2).

use crate::class::Elf;
use object::{Object as _, ObjectSection, ObjectSegment, RelocationTarget, SectionFlags, elf};
use probe_core::error::Refusal;

/// Why nothing in a sequence is probed.
pub const INSIDE: Refusal = Refusal::invalid(
    "place.rseq",
    "it is part of a restartable sequence, which the kernel aborts at every interruption, a breakpoint's too",
);
/// Why what arms a sequence is not probed.
pub const ARMS: Refusal = Refusal::invalid(
    "place.rseq_start",
    "it stands right before a restartable sequence, which it arms, and nothing may come between",
);
/// Why the signature is not probed.
pub const SIGNATURE: Refusal = Refusal::invalid(
    "place.rseq_signature",
    "it is the signature before a restartable sequence's abort handler, which the kernel reads",
);

/// The length and the alignment of a descriptor, in bytes.
const DESCRIPTOR_LEN: u64 = 32;
/// The longest sequence that is believed. The kernel has no limit, but no real sequence is longer.
const MAX_LEN: u64 = 1 << 16;
/// How many segments of a file are read. Linkers write about ten; a hostile file may claim thousands.
const MAX_SEGMENTS: usize = 64;
/// The shortest relocation: `Elf32_Rel`.
const MIN_RELOCATION_LEN: usize = 8;
/// The signatures of librseq: x86, aarch64, powerpc, riscv, arm.
const SIGNATURES: [u32; 5] = [0x5305_3053, 0xd428_bc00, 0x0fe5_000b, 0xf140_1073, 0xe7f5_def3];
/// On x86 the signature is the last four bytes of an instruction that is never executed (UD1); these are its
/// first.
const BEFORE_SIGNATURE: [u8; 3] = [0x0f, 0xb9, 0x3d];

/// One restartable sequence, in the file's own numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence {
    /// Its first instruction.
    pub start: u64,
    /// One past its last instruction, the commit.
    pub end: u64,
    /// Where the signature begins, on x86 with its instruction.
    pub signature: u64,
    /// Where the kernel resumes an aborted sequence; right behind the signature.
    pub abort: u64,
}

/// All sequences of an object, found once.
#[derive(Clone, Debug, Default)]
pub struct Sequences(Vec<Sequence>);

impl Sequences {
    /// Those in a file.
    #[must_use]
    pub fn of_file(data: &[u8]) -> Self {
        Elf::parse(data).map(|file| Self(Finder::new(&file).find())).unwrap_or_default()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Why no probe can stand on the instruction at `at`, in the file's own numbering. `len_bytes` tells how
    /// long it is.
    pub fn refusal(&self, at: u64, len_bytes: impl Fn() -> Option<usize>) -> Option<Refusal> {
        self.0.iter().find_map(|sequence| {
            let before_start = sequence.start.wrapping_sub(at);
            if (sequence.start..sequence.end).contains(&at) {
                Some(INSIDE)
            } else if (sequence.signature..sequence.abort).contains(&at) {
                Some(SIGNATURE)
            } else if (1..=16).contains(&before_start)
                && len_bytes().map(|len| len as u64) == Some(before_start)
            {
                Some(ARMS)
            } else {
                None
            }
        })
    }

    /// The ranges without probes: first address and one past the last.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0
            .iter()
            .flat_map(|sequence| [(sequence.start, sequence.end), (sequence.signature, sequence.abort)])
    }
}

/// The search through a file.
struct Finder<'file, 'data> {
    file: &'file Elf<'data>,
    /// Where code is.
    texts: Vec<(u64, u64)>,
    /// The relocated words that lead into code and could be in a descriptor: their addresses and values,
    /// sorted.
    relocated: Vec<(u64, u64)>,
}

impl<'file, 'data> Finder<'file, 'data> {
    fn new(file: &'file Elf<'data>) -> Self {
        let texts = file.segments().filter(|segment| {
            matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. } if p_flags.contains(elf::PF_X))
        });
        let texts =
            texts.map(|segment| (segment.address(), segment.address().saturating_add(segment.size())));
        // An address of 32 bits is the second half of a descriptor's word in a big-endian file.
        let low = if file.is_64() || file.is_little_endian() { 0 } else { 4 };
        let mut finder = Self { file, texts: texts.take(MAX_SEGMENTS).collect(), relocated: Vec::new() };
        // Relocation sections of a hostile file may overlap; those of an honest one all have room in the
        // file.
        let most = file.data().len() / MIN_RELOCATION_LEN;
        let relocations = file.dynamic_relocations().into_iter().flatten().take(most);
        finder.relocated = relocations
            .filter(|(_, relocation)| {
                relocation.target() == RelocationTarget::Absolute && !relocation.has_implicit_addend()
            })
            .map(|(at, relocation)| (at.wrapping_sub(low), relocation.addend().cast_unsigned()))
            .filter(|&(at, value)| at % 16 == 8 && finder.is_code(value))
            .collect();
        finder.relocated.sort_unstable();
        finder
    }

    fn is_code(&self, at: u64) -> bool {
        self.texts.iter().any(|&(start, end)| (start..end).contains(&at))
    }

    fn find(&self) -> Vec<Sequence> {
        let mut found = Vec::new();
        // Sections of a hostile file may overlap thousands of times (EVT_2): no more is searched than the
        // file has bytes.
        let mut left = self.file.data().len();
        for section in self.file.sections() {
            let SectionFlags::Elf { sh_flags, .. } = section.flags() else { continue };
            let is_named = section.name().is_ok_and(|name| name == "__rseq_cs");
            // Constants need no relocation where a program is not moved.
            let is_fixed = self.file.kind() == object::ObjectKind::Executable;
            let is_data = sh_flags.contains(elf::SHF_ALLOC) && !sh_flags.contains(elf::SHF_EXECINSTR);
            if is_data && (is_named || is_fixed || sh_flags.contains(elf::SHF_WRITE)) {
                let Some(rest) = left.checked_sub(section.data().map_or(0, <[u8]>::len)) else { break };
                left = rest;
                self.find_in(&section, is_named, &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn find_in<'section>(
        &self,
        section: &impl ObjectSection<'section>,
        is_named: bool,
        found: &mut Vec<Sequence>,
    ) {
        let Ok(data) = section.data() else { return };
        let start = section.address();
        // No program has a section that reaches past the end of the address space.
        let ends = (start.checked_next_multiple_of(DESCRIPTOR_LEN), start.checked_add(data.len() as u64));
        let (Some(first), Some(end)) = ends else { return };
        for at in (first..end).step_by(DESCRIPTOR_LEN as usize) {
            let offset = (at - start) as usize;
            let Some(descriptor) = data.get(offset..offset + DESCRIPTOR_LEN as usize) else { break };
            found.extend(self.descriptor(at, descriptor, is_named));
        }
    }

    /// The sequence that the bytes at `at` describe, if they do.
    fn descriptor(&self, at: u64, bytes: &[u8], is_named: bool) -> Option<Sequence> {
        let word = |index: usize| {
            let bytes = bytes[8 * index..8 * index + 8].try_into().unwrap_or_default();
            let read = if self.file.is_little_endian() { u64::from_le_bytes } else { u64::from_be_bytes };
            let place = at + 8 * index as u64;
            let relocated = self.relocated.binary_search_by_key(&place, |&(place, _)| place);
            relocated.map_or(read(bytes), |index| self.relocated[index].1)
        };
        let start = word(1);
        if !self.is_code(start) {
            return None;
        }
        // Version 0; flags, which no kernel heeds any more, have three bits.
        let (head, len, abort) = (u64::from_ne_bytes(bytes[..8].try_into().ok()?), word(2), word(3));
        let is_head = [0, 4].iter().all(|half| (head >> (8 * half)) as u32 <= 7);
        let end = start.checked_add(len)?;
        if !is_head
            || !(1..=MAX_LEN).contains(&len)
            || !self.is_code(end - 1)
            || (start..end).contains(&abort)
        {
            return None;
        }
        let signature = abort.checked_sub(4).filter(|_| self.is_code(abort))?;
        let is_signed = SIGNATURES.contains(&self.word_of_code(signature)?);
        if !is_named && !is_signed {
            return None;
        }
        let whole = signature.checked_sub(3)?;
        let is_ud1 = self.code(whole).is_some_and(|code| code.starts_with(&BEFORE_SIGNATURE));
        Some(Sequence { start, end, signature: if is_ud1 { whole } else { signature }, abort })
    }

    fn word_of_code(&self, at: u64) -> Option<u32> {
        let bytes = self.code(at)?.get(..4)?.try_into().ok()?;
        Some(if self.file.is_little_endian() { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    /// The bytes of code from `at` on.
    fn code(&self, at: u64) -> Option<&'data [u8]> {
        self.file.segments().take(MAX_SEGMENTS).find_map(|segment| {
            let offset = usize::try_from(at.checked_sub(segment.address())?).ok()?;
            segment.data().ok()?.get(offset..).filter(|rest| !rest.is_empty())
        })
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    /// 65,000 sections, each the whole file with room for half a million descriptors: an hour if each were
    /// searched.
    #[test]
    fn evt_2_sections_that_overlap_are_not_searched_again_and_again() {
        const SECTIONS: u16 = 0xfe00;
        const LEN: u64 = 16 << 20;
        let order = if cfg!(target_endian = "big") { 2 } else { 1 };
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, order, 1, 0];
        let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
        put(&[0; 8]);
        // A shared object without segments; the section headers come next.
        [3_u16, 62].iter().for_each(|half| put(&half.to_ne_bytes()));
        put(&1_u32.to_ne_bytes());
        [0, 0, 64_u64].iter().for_each(|word| put(&word.to_ne_bytes()));
        put(&0_u32.to_ne_bytes());
        [64, 56, 0, 64, SECTIONS, 1].iter().for_each(|half: &u16| put(&half.to_ne_bytes()));
        put(&[0; 64]);
        for _ in 1..SECTIONS {
            // No name, writable data; flags, address, offset, length, link and info, alignment, entry length.
            [0, 1_u32].iter().for_each(|word| put(&word.to_ne_bytes()));
            [3, 0x10_0000, 0, LEN, 0, 32, 0].iter().for_each(|word: &u64| put(&word.to_ne_bytes()));
        }
        file.resize(LEN as usize, 0);
        let parsed = Elf::parse(&*file).unwrap();
        assert_eq!(
            parsed
                .sections()
                .filter(|section| section.data().is_ok_and(|data| data.len() == file.len()))
                .count(),
            0xfdff
        );
        assert!(Sequences::of_file(&file).is_empty());
    }
}
