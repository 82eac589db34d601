//! Data breakpoints: what DR0 to DR3 and DR7 hold. Source: SDM volume 3, 17.2.
//!
//! Data breakpoints trap after the access, with a bit of DR6 for each register; a kernel loads the registers
//! on every CPU. Pure.

use crate::mode::Mode;
use probe_core::error::Refusal;
use probe_core::{Trigger, WatchRange};

/// How many ranges there are: DR0 to DR3.
pub const COUNT: usize = 4;

/// The length or the alignment is none that the processor has.
pub const BAD_RANGE: Refusal = Refusal::invalid(
    "x86.watch_range",
    "a data breakpoint is 1, 2, 4 or, on a 64-bit processor, 8 bytes long and aligned to its length",
);

/// Whether the processor can watch `range`.
///
/// # Errors
/// [`BAD_RANGE`].
pub fn check<M: Mode>(range: &WatchRange) -> Result<(), Refusal> {
    let is_length = matches!(range.len_bytes, 1 | 2 | 4) || M::IS_LONG && range.len_bytes == 8;
    if is_length && range.addr.is_multiple_of(range.len_bytes) { Ok(()) } else { Err(BAD_RANGE) }
}

/// The value of DR7 that arms the given ranges, each in the register of its number, for all tasks.
#[must_use]
pub fn control<'a>(ranges: impl IntoIterator<Item = Option<&'a WatchRange>>) -> usize {
    /// Reserved, set.
    const ALWAYS: usize = 1 << 10;
    /// Exact data breakpoints, on processors before P6.
    const EXACT: usize = 1 << 9;
    ranges.into_iter().take(COUNT).enumerate().fold(ALWAYS, |control, (index, range)| {
        let Some(range) = range else { return control };
        let kind = match range.trigger {
            Trigger::Write => 0b01,
            Trigger::ReadWrite => 0b11,
        };
        let len = match range.len_bytes {
            1 => 0b00,
            2 => 0b01,
            8 => 0b10,
            _ => 0b11,
        };
        control | EXACT | 0b10 << (2 * index) | (kind | len << 2) << (16 + 4 * index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::{LongMode, ProtectedMode};

    const fn range(addr: usize, len_bytes: usize, trigger: Trigger) -> WatchRange {
        WatchRange { addr, len_bytes, trigger }
    }

    #[test]
    fn ranges_are_powers_of_two_aligned_to_themselves() {
        for (addr, len_bytes, long, protected) in [
            (0x1001, 1, true, true),
            (0x1002, 2, true, true),
            (0x1004, 4, true, true),
            (0x1008, 8, true, false),
            (0x1004, 8, false, false),
            (0x1001, 2, false, false),
            (0x1000, 3, false, false),
            (0x1000, 0, false, false),
            (0x1000, 16, false, false),
        ] {
            let range = range(addr, len_bytes, Trigger::Write);
            assert_eq!(check::<LongMode>(&range).is_ok(), long, "{range:?}");
            assert_eq!(check::<ProtectedMode>(&range).is_ok(), protected, "{range:?}");
        }
    }

    /// SDM volume 3, figure 17-1.
    #[test]
    fn control_enables_globally_with_kind_and_length() {
        assert_eq!(control([]), 0x400);
        let write = range(0x1000, 4, Trigger::Write);
        assert_eq!(control([Some(&write)]), 0x000d_0602);
        let all = range(0x1000, 8, Trigger::ReadWrite);
        assert_eq!(control([None, None, None, Some(&all)]), 0xb000_0680);
        assert_eq!(control([Some(&write), None, Some(&all)]), 0x0b0d_0622);
    }
}
