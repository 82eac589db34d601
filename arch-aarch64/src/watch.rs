//! Watchpoints: the values of DBGWVR and DBGWCR. Source: DDI 0487J.a D2.10 and D24.3.12.
//!
//! A watchpoint traps *before* the access. Its handler disables it, steps over the instruction (by the
//! single-step of the module `slot`), enables it again and then calls
//! [`Traps::watchpoint`](probe_core::traps::Traps::watchpoint). The exceptions of the step clear the
//! exclusive monitor (B2.9.5), so a loop of LDXR and STXR on watched memory never ends: do not watch atomics
//! of ARMv8.0 code. Pure.

use probe_core::error::Refusal;
use probe_core::{Trigger, WatchRange};

/// The length or the alignment is none that is offered.
pub const BAD_RANGE: Refusal = Refusal::invalid(
    "aarch64.watch_range",
    "a watchpoint is 1, 2, 4 or 8 bytes long and aligned to its length",
);

/// Whether the processor can watch `range`.
///
/// # Errors
/// [`BAD_RANGE`].
pub const fn check(range: &WatchRange) -> Result<(), Refusal> {
    match range.len_bytes {
        1 | 2 | 4 | 8 if range.addr.is_multiple_of(range.len_bytes) => Ok(()),
        _ => Err(BAD_RANGE),
    }
}

/// How many watchpoints a processor with this `ID_AA64DFR0_EL1` has.
#[must_use]
pub const fn count(id_aa64dfr0: u64) -> usize {
    (id_aa64dfr0 >> 20 & 0xf) as usize + 1
}

/// DBGWVR and DBGWCR that watch `range` at EL1.
#[must_use]
pub const fn registers(range: &WatchRange) -> (u64, u64) {
    const ENABLE: u64 = 1;
    const EL1: u64 = 0b01 << 1;
    let kind = match range.trigger {
        Trigger::Write => 0b10,
        Trigger::ReadWrite => 0b11,
    };
    let in_doubleword = range.addr & 7;
    let bytes = ((1 << range.len_bytes) - 1_u64) << in_doubleword;
    (range.addr as u64 - in_doubleword as u64, ENABLE | EL1 | kind << 3 | (bytes & 0xff) << 5)
}

/// Which of the armed `ranges` an access that trapped with `far` in FAR_EL1 refers to: the range that holds
/// `far`, else the nearest (FAR may be anywhere in the access, D2.10.5).
pub fn hit<'a>(ranges: impl IntoIterator<Item = Option<&'a WatchRange>>, far: usize) -> Option<usize> {
    let distance = |range: &WatchRange| {
        let last = range.addr + (range.len_bytes - 1);
        range.addr.saturating_sub(far).max(far.saturating_sub(last))
    };
    ranges
        .into_iter()
        .enumerate()
        .filter_map(|(index, range)| Some((distance(range?), index)))
        .min()
        .map(|(_, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn range(addr: usize, len_bytes: usize, trigger: Trigger) -> WatchRange {
        WatchRange { addr, len_bytes, trigger }
    }

    #[test]
    fn bytes_are_selected_within_the_doubleword() {
        assert_eq!(registers(&range(0x1000, 8, Trigger::Write)), (0x1000, 0xff << 5 | 0b10 << 3 | 0b11));
        assert_eq!(registers(&range(0x1004, 4, Trigger::ReadWrite)), (0x1000, 0xf0 << 5 | 0b11 << 3 | 0b11));
        assert_eq!(registers(&range(0x1007, 1, Trigger::Write)), (0x1000, 0x80 << 5 | 0b10 << 3 | 0b11));
    }

    #[test]
    fn what_is_not_aligned_to_itself_is_refused() {
        for (addr, len_bytes) in [(0x1000, 0), (0x1000, 3), (0x1000, 16), (0x1001, 2), (0x1004, 8)] {
            assert_eq!(check(&range(addr, len_bytes, Trigger::Write)), Err(BAD_RANGE));
        }
        assert_eq!(check(&range(0x1002, 2, Trigger::Write)), Ok(()));
    }

    #[test]
    fn the_nearest_range_was_hit() {
        let (low, high) = (range(0x1000, 8, Trigger::Write), range(0x1010, 4, Trigger::Write));
        let ranges = || [Some(&low), None, Some(&high)];
        assert_eq!(hit(ranges(), 0x1004), Some(0));
        assert_eq!(hit(ranges(), 0x1013), Some(2));
        assert_eq!(hit(ranges(), 0x100e), Some(2));
        assert_eq!(hit(ranges(), 0xff8), Some(0));
        assert_eq!(hit([None, None], 0x1000), None);
    }

    /// Cortex-A57: four.
    #[test]
    fn the_count_is_one_more_than_the_field() {
        assert_eq!(count(0x1030_5106), 4);
    }
}
