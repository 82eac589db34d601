//! Where a static program keeps `errno`, which the agent leaves as it is: by the name of the function that
//! tells, or, where that is not linked or has no name any more, by what the C library's code does.

use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags, elf};
use std::collections::BTreeSet;

/// How it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrnoAt {
    /// `__errno_location` tells, at this address of the file's.
    Told(usize),
    /// It lies so far behind every thread pointer.
    Behind(i32),
}

/// A four-byte or one-byte number between these.
struct Code {
    before: &'static [u8],
    len: usize,
    after: &'static [u8],
}

/// What all of glibc's system calls do that fail: `mov $errno,%rcx; neg %eax; mov %eax,%fs:(%rcx)`, with this
/// register or another one.
const OF_GLIBC: [Code; 2] = [
    Code { before: &[0x48, 0xc7, 0xc1], len: 4, after: &[0xf7, 0xd8, 0x64, 0x89, 0x01] },
    Code { before: &[0x48, 0xc7, 0xc2], len: 4, after: &[0xf7, 0xd8, 0x64, 0x89, 0x02] },
];

/// What musl's `__errno_location` does: `mov %fs:0,%rax; add $errno,%rax; ret`.
const OF_MUSL: Code =
    Code { before: &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x83, 0xc0], len: 1, after: &[0xc3] };

/// So many of glibc's system calls say the same.
const FEWEST: usize = 4;

impl Code {
    /// All numbers that stand in such code.
    fn find_in(&self, text: &[u8]) -> Vec<i32> {
        let whole = self.before.len() + self.len + self.after.len();
        let number = |window: &[u8]| {
            let (number, rest) = window.strip_prefix(self.before)?.split_at(self.len);
            let number = match *number {
                [one] => i32::from(one.cast_signed()),
                _ => i32::from_le_bytes(number.try_into().ok()?),
            };
            (rest == self.after).then_some(number)
        };
        text.windows(whole).filter_map(number).collect()
    }
}

/// Where the program in `file` keeps it; `None`: its C library is neither glibc nor musl.
pub(crate) fn find(file: &object::File<'_>) -> Option<ErrnoAt> {
    let is_it =
        |symbol: &object::Symbol<'_, '_>| symbol.name() == Ok("__errno_location") && symbol.is_definition();
    if let Some(symbol) = file.symbols().find(is_it) {
        return Some(ErrnoAt::Told(symbol.address() as usize));
    }
    let is_text = |segment: &object::Segment<'_, '_>| matches!(segment.flags(), SegmentFlags::Elf { p_flags, .. } if p_flags.contains(elf::PF_X));
    let texts: Vec<&[u8]> = file.segments().filter(is_text).filter_map(|text| text.data().ok()).collect();
    let all = |code: &Code| texts.iter().flat_map(|text| code.find_in(text)).collect::<Vec<_>>();
    let found: Vec<i32> = OF_GLIBC.iter().flat_map(all).collect();
    let of_glibc = agreed(&found).filter(|_| found.len() >= FEWEST);
    of_glibc.or_else(|| agreed(&all(&OF_MUSL))).map(ErrnoAt::Behind)
}

/// What all of them say.
fn agreed(found: &[i32]) -> Option<i32> {
    let different: BTreeSet<i32> = found.iter().copied().collect();
    if different.len() == 1 { different.first().copied() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_code_and_have_to_agree() {
        let call = |at: i32| {
            let mut code = vec![0x90, 0x48, 0xc7, 0xc1];
            code.extend(at.to_le_bytes());
            code.extend([0xf7, 0xd8, 0x64, 0x89, 0x01]);
            code
        };
        let all = |numbers: &[i32]| numbers.iter().flat_map(|&at| call(at)).collect::<Vec<u8>>();
        assert_eq!(OF_GLIBC[0].find_in(&all(&[-80, -80])), [-80, -80]);
        assert_eq!(agreed(&[-80, -80]), Some(-80));
        assert_eq!((agreed(&[-80, -72]), agreed(&[])), (None, None));
        let musl = [0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0, 0x48, 0x83, 0xc0, 0x34, 0xc3];
        assert_eq!(OF_MUSL.find_in(&musl), [0x34]);
    }

    /// Debian's `ldconfig` is static, of glibc, and stripped.
    #[test]
    fn a_stripped_program_says_where_it_is_by_its_code() {
        let data = std::fs::read("/sbin/ldconfig").unwrap();
        let file = object::File::parse(&*data).unwrap();
        assert!(matches!(find(&file), Some(ErrnoAt::Behind(distance)) if distance < 0 && distance % 4 == 0));
    }
}
