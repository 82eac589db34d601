//! Bytes of text that wait to be stored by one call: a run within one block, with the bytes between.
//!
//! The bytes between are stored once more as they stand there, so a run may wait only while nobody else can
//! write any of them: [`super`] says when that is.

use crate::memory;

/// A run lies in one such block, which is never larger than a page.
const BLOCK_LEN: usize = 4096;

/// A run, or none.
struct Run {
    /// Where the block begins that `bytes` is a copy of, as far as `from` to `to` say.
    block: usize,
    from: usize,
    to: usize,
    has_changes: bool,
    bytes: [u8; BLOCK_LEN],
}

impl Run {
    const fn none() -> Self {
        Self { block: 0, from: 0, to: 0, has_changes: false, bytes: [0; BLOCK_LEN] }
    }

    /// Begins a run with bytes that have just been stored at `at`; none if they lie in two blocks.
    fn begin(&mut self, at: usize, bytes: &[u8]) {
        let from = at % BLOCK_LEN;
        if let Some(room) = self.bytes.get_mut(from..from + bytes.len()) {
            room.copy_from_slice(bytes);
            (self.block, self.from, self.to) = (at - from, from, from + bytes.len());
        }
    }

    /// Adds bytes to be stored at `at`; `false` where they do not belong to this run's block, or what lies
    /// between cannot be read.
    fn add(&mut self, at: usize, bytes: &[u8]) -> bool {
        let from = at % BLOCK_LEN;
        let to = from + bytes.len();
        if self.from == self.to || at - from != self.block || to > BLOCK_LEN {
            return false;
        }
        if to < self.from && !self.read(to, self.from) || from > self.to && !self.read(self.to, from) {
            return false;
        }
        (self.from, self.to) = (self.from.min(from), self.to.max(to));
        self.bytes[from..to].copy_from_slice(bytes);
        self.has_changes = true;
        true
    }

    /// Reads a part of the block.
    fn read(&mut self, from: usize, to: usize) -> bool {
        memory::read_some(self.block + from, &mut self.bytes[from..to]) == to - from
    }

    /// Whether something waits to be stored among these bytes.
    fn meets(&self, at: usize, len_bytes: usize) -> bool {
        self.has_changes && at < self.block + self.to && at.saturating_add(len_bytes) > self.block + self.from
    }

    /// Ends the run; calls `store` with what waits.
    fn end(&mut self, store: &mut dyn FnMut(usize, &[u8])) {
        if self.has_changes {
            store(self.block + self.from, &self.bytes[self.from..self.to]);
        }
        (self.from, self.to, self.has_changes) = (0, 0, false);
    }
}

/// How many runs may wait: slots and detours lie in several places, which are filled in turn.
const RUNS: usize = 4;

/// The runs that wait.
pub(super) struct Runs {
    runs: [Run; RUNS],
    /// The one that has waited longest.
    oldest: usize,
}

impl Runs {
    pub(super) const fn none() -> Self {
        Self { runs: [const { Run::none() }; RUNS], oldest: 0 }
    }

    /// Adds bytes to the run that they belong to; `false` where there is none.
    pub(super) fn add(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.runs.iter_mut().any(|run| run.add(at, bytes))
    }

    /// Ends the runs in whose blocks these bytes are to be stored past them, and the oldest one, so that
    /// another one can begin: calls `store` with what waits there.
    pub(super) fn make_room(&mut self, at: usize, len_bytes: usize, store: &mut dyn FnMut(usize, &[u8])) {
        let block = |at: usize| at - at % BLOCK_LEN;
        let passed = block(at)..=block(at + len_bytes.saturating_sub(1));
        for (index, run) in self.runs.iter_mut().enumerate() {
            if index == self.oldest || passed.contains(&run.block) {
                run.end(store);
            }
        }
    }

    /// Begins a run, in the room that was made, with bytes that have just been stored.
    pub(super) fn begin(&mut self, at: usize, bytes: &[u8]) {
        if let Some(run) = self.runs.get_mut(self.oldest) {
            run.begin(at, bytes);
            self.oldest = (self.oldest + 1) % RUNS;
        }
    }

    /// Whether something waits to be stored among these bytes.
    pub(super) fn meets(&self, at: usize, len_bytes: usize) -> bool {
        self.runs.iter().any(|run| run.meets(at, len_bytes))
    }

    /// Ends all runs; calls `store` with what waits.
    pub(super) fn end(&mut self, store: &mut dyn FnMut(usize, &[u8])) {
        self.runs.iter_mut().for_each(|run| run.end(store));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of bytes, at a multiple of its length.
    #[repr(align(4096))]
    struct Block([u8; BLOCK_LEN]);

    fn block() -> Box<Block> {
        Box::new(Block(core::array::from_fn(|i| (i * 7 + i / 256) as u8)))
    }

    #[test]
    fn a_run_grows_to_both_sides_and_keeps_what_lies_between() {
        let block = block();
        let at = block.0.as_ptr().expose_provenance();
        let mut expected = block.0;
        let mut run = Run::none();
        assert!(!run.add(at, &[1]), "there is none yet");
        run.begin(at + 100, &[block.0[100]]);
        assert!(!run.has_changes, "what it begins with stands there already");
        for (offset, byte) in [(200, 1), (50, 2), (201, 3), (50, 4), (120, 5), (0, 6), (BLOCK_LEN - 1, 7)] {
            assert!(run.add(at + offset, &[byte]));
            expected[offset] = byte;
        }
        assert!(run.meets(at + BLOCK_LEN - 1, 1) && !run.meets(at + BLOCK_LEN, 9));
        assert!(!run.add(at + BLOCK_LEN, &[1]), "another block");
        assert!(!run.add(at + BLOCK_LEN - 1, &[1, 2]), "two blocks");
        let mut stored = Vec::new();
        run.end(&mut |at, bytes| stored.push((at, bytes.to_vec())));
        assert_eq!(stored, [(at, expected.to_vec())]);
        run.end(&mut |_, _| panic!("nothing waits any more"));
        assert!(!run.add(at, &[1]));
    }

    #[test]
    fn bytes_of_two_blocks_begin_no_run() {
        let block = block();
        let end = block.0.as_ptr().expose_provenance() + BLOCK_LEN;
        let mut run = Run::none();
        run.begin(end - 1, &[1, 2]);
        assert!(!run.add(end - 2, &[1]) && !run.add(end + 2, &[1]));
    }

    #[test]
    fn several_runs_wait_and_the_oldest_makes_room() {
        let blocks: Vec<_> = (0..=RUNS).map(|_| block()).collect();
        let starts: Vec<_> = blocks.iter().map(|block| block.0.as_ptr().expose_provenance()).collect();
        let mut runs = Runs::none();
        let mut stored = Vec::new();
        let mut put = |runs: &mut Runs, at: usize, byte: u8| {
            if !runs.add(at, &[byte]) {
                runs.make_room(at, 1, &mut |at, bytes| stored.push((at, bytes.to_vec())));
                runs.begin(at, &[byte]);
            }
        };
        for round in 0..3 {
            starts[..RUNS].iter().for_each(|start| put(&mut runs, start + round, round as u8));
        }
        assert!(starts[..RUNS].iter().all(|start| runs.meets(*start, 1)));
        put(&mut runs, starts[RUNS], 9);
        assert_eq!(stored, [(starts[0], vec![0, 1, 2])]);
        assert!(!runs.meets(starts[0], 9) && runs.meets(starts[1], 1));
        let mut rest = Vec::new();
        runs.end(&mut |at, bytes| rest.push((at, bytes.to_vec())));
        rest.sort_unstable();
        let mut expected: Vec<_> = starts[1..RUNS].iter().map(|start| (*start, vec![0, 1, 2])).collect();
        expected.sort_unstable();
        assert_eq!(rest, expected, "the newest has only what it began with");
    }

    #[test]
    fn what_is_stored_past_a_run_ends_it() {
        let block = block();
        let at = block.0.as_ptr().expose_provenance();
        let mut runs = Runs::none();
        runs.begin(at, &[0]);
        assert!(runs.oldest != 0 && runs.add(at + BLOCK_LEN - 1, &[7]));
        // Over the end of the block.
        assert!(!runs.add(at + BLOCK_LEN - 1, &[1, 2]));
        let mut stored = 0;
        runs.make_room(at + BLOCK_LEN - 1, 2, &mut |_, bytes| stored += bytes.len());
        assert_eq!(stored, BLOCK_LEN);
    }
}
