//! Sums by key.
//!
//! A slot is empty, then claimed by one hit, which writes the key, then ready for good. A hit that finds a
//! slot claimed goes on to the next one, as if it held another key: it cannot wait, as it may have
//! interrupted the very hit that claims the slot. So a key may be in several slots; reading adds them up.

use super::lines::{Line, Lines, NoMemory};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};
use alloc::vec::Vec;

/// How many slots a key may be in: what bounds a hit's steps.
pub const PROBES: usize = 32;

const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;
const READY: u64 = 2;

/// Its state, its key, its sum.
const SLOT_WORDS: usize = 4;
/// In a row, before the slots: how often a key did not fit.
const HEAD_WORDS: usize = SLOT_WORDS;

/// Sums by keys of up to 16 bytes, kept per context.
#[derive(Debug)]
pub struct Hash {
    lines: Lines,
    slot_mask: usize,
}

/// The words of a slot.
struct Slot<'a> {
    state: &'a AtomicU64,
    key: [&'a AtomicU64; 2],
    sum: &'a AtomicU64,
}

impl Slot<'_> {
    #[inline(always)]
    fn has(&self, key: [u64; 2]) -> bool {
        self.key[0].load(Relaxed) == key[0] && self.key[1].load(Relaxed) == key[1]
    }
}

impl Hash {
    /// An empty hash with room for `capacity` keys in each of `contexts` contexts. It has at least twice as
    /// many slots.
    ///
    /// # Errors
    /// No memory.
    pub fn new(capacity: usize, contexts: usize) -> Result<Self, NoMemory> {
        let (slots, words) = size(capacity)?;
        Ok(Self { lines: Lines::new(contexts, words)?, slot_mask: slots - 1 })
    }

    /// How many lines of memory one needs; `None` where there are not so many.
    #[must_use]
    pub fn lines(capacity: usize, contexts: usize) -> Option<usize> {
        Some(Lines::needed(contexts, size(capacity).ok()?.1))
    }

    /// One in memory that others see, too; all zero is empty.
    ///
    /// # Errors
    /// There are too few lines.
    pub fn over(lines: &'static [Line], capacity: usize, contexts: usize) -> Result<Self, NoMemory> {
        let (slots, words) = size(capacity)?;
        Ok(Self { lines: Lines::over(lines, contexts, words)?, slot_mask: slots - 1 })
    }

    /// Adds to the sum of a key; `false` if it did not fit, which is counted.
    #[inline]
    pub fn add(&self, context: usize, key: [u64; 2], amount: u64) -> bool {
        let row = self.lines.row(context);
        let first = mix(key) as usize;
        for distance in 0..PROBES.min(self.slot_mask + 1) {
            let Some(slot) = self.slot(row, first.wrapping_add(distance)) else { break };
            let mut state = slot.state.load(Acquire);
            if state == EMPTY {
                match slot.state.compare_exchange(EMPTY, CLAIMED, Acquire, Acquire) {
                    Ok(_) => {
                        slot.key[0].store(key[0], Relaxed);
                        slot.key[1].store(key[1], Relaxed);
                        slot.sum.store(amount, Relaxed);
                        slot.state.store(READY, Release);
                        return true;
                    }
                    Err(now) => state = now,
                }
            }
            if state == READY && slot.has(key) {
                slot.sum.fetch_add(amount, Relaxed);
                return true;
            }
        }
        if let Some(lost) = self.lines.word(row, 0) {
            lost.fetch_add(1, Relaxed);
        }
        false
    }

    /// How often a key did not fit.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let rows = (0..self.lines.rows()).filter_map(|row| self.lines.word(row, 0));
        rows.fold(0, |sum: u64, lost| sum.wrapping_add(lost.load(Relaxed)))
    }

    /// All keys with their sums, in the order of the keys, each once.
    #[must_use]
    pub fn sums(&self) -> Vec<([u64; 2], u64)> {
        let slots = (0..self.lines.rows())
            .flat_map(|row| (0..=self.slot_mask).filter_map(move |index| self.slot(row, index)))
            .filter(|slot| slot.state.load(Acquire) == READY);
        let mut sums: Vec<_> =
            slots.map(|slot| (slot.key.map(|word| word.load(Relaxed)), slot.sum.load(Relaxed))).collect();
        sums.sort_unstable_by_key(|(key, _)| *key);
        sums.dedup_by(|(key, sum), (kept, total)| {
            let is_same = key == kept;
            if is_same {
                *total = total.wrapping_add(*sum);
            }
            is_same
        });
        sums
    }

    #[inline(always)]
    fn slot(&self, row: usize, index: usize) -> Option<Slot<'_>> {
        let first = HEAD_WORDS + (index & self.slot_mask) * SLOT_WORDS;
        // A slot lies in one line, as its words are a power of two and so are those before the first one.
        let [state, low, high, sum] = self.lines.words::<SLOT_WORDS>(row, first)?;
        Some(Slot { state, key: [low, high], sum })
    }
}

/// The slots for so many keys, and the words of a row.
fn size(capacity: usize) -> Result<(usize, usize), NoMemory> {
    let slots = capacity.max(1).checked_mul(2).and_then(usize::checked_next_power_of_two).ok_or(NoMemory)?;
    let words = slots.checked_mul(SLOT_WORDS).and_then(|words| words.checked_add(HEAD_WORDS));
    Ok((slots, words.ok_or(NoMemory)?))
}

/// Spreads keys over slots: the finaliser of MurmurHash3 (Appleby, 2011, public domain), over both words.
#[inline(always)]
const fn mix(key: [u64; 2]) -> u64 {
    let mut mixed = key[0] ^ key[1].wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::at_operation;
    use alloc::rc::Rc;
    use alloc::vec;

    /// Keys that are inserted or found before, then a hit with `inner` at each operation of a hit with [1,
    /// 2].
    fn nested(before: &[[u64; 2]], inner: [u64; 2], want: &[([u64; 2], u64)]) {
        let mut index = 0;
        loop {
            let hash = Rc::new(Hash::new(4, 1).unwrap());
            assert!(before.iter().all(|key| hash.add(0, *key, 100)));
            let interrupting = hash.clone();
            let hit = move || assert!(interrupting.add(0, inner, 10));
            let was_hit = at_operation(index, hit, || assert!(hash.add(0, [1, 2], 1)));
            if !was_hit {
                break;
            }
            assert_eq!((hash.sums(), hash.lost()), (want.to_vec(), 0), "operation {index}");
            index += 1;
        }
        assert!(index >= 3, "{index}");
    }

    #[test]
    fn prg_1_a_hit_at_any_operation_of_an_insertion_is_counted_once() {
        nested(&[], [1, 2], &[([1, 2], 11)]);
        nested(&[[1, 2]], [1, 2], &[([1, 2], 111)]);
        let other = (0..).map(|key| [key, 3]).find(|key| (mix(*key) ^ mix([1, 2])) & 7 == 0).unwrap();
        let mut want = vec![([1, 2], 1), (other, 10)];
        want.sort_unstable();
        nested(&[], other, &want);
    }
}
