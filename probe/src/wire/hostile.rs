//! The command's view of the region, in which the traced program may write anything at any time.
//!
//! No reference into the region leaves this file, only copies: a word is loaded once, a ring's bytes are
//! copied before anything in them is looked at, and the position up to which the command has read is the
//! command's own. The work of one call is bounded by the length of a ring, whatever the ring holds.

use super::plan::MapPlan;
use super::region::Region;
use super::ring::{ALIGN, OPEN, Owner, Ring, WRAP};
use super::stats::{Counts, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that are copied out of a ring at once: as many as stay in a near cache until they have been
/// looked at.
const PIECE: usize = 64 << 10;
/// More bytes than any record has: 128 arguments of 64 strings each have half of that.
pub const LONGEST_RECORD: usize = 16 << 20;
/// How long, and for how many looks, a thread may be in the middle of one event before it is waited for no
/// longer.
const STUCK: (u64, u32) = (1_000_000_000, 32);

/// How far the command has read a ring, in memory of its own.
#[derive(Debug, Default)]
struct Cursor {
    /// Bytes ever read. The ring's own word only tells the producer.
    tail: u64,
    /// Times that a ring held what no agent writes.
    spoilt: u64,
    /// The drops that have been reported.
    dropped: u64,
    /// The event that is being written: its word, when it was first seen, and how often.
    busy: Option<(u64, u64, u32)>,
}

/// What a look into a ring has given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many bytes were read.
    pub bytes: usize,
    /// Whether something that was there at the beginning is still to be read.
    pub is_partial: bool,
}

/// The reader of a region.
pub struct Reader {
    region: Region,
    cursors: Vec<Cursor>,
    piece: Vec<u8>,
}

impl Reader {
    /// The one reader of a region that this process has created.
    pub fn new(region: Region) -> Self {
        let mut cursors = Vec::new();
        cursors.resize_with(region.ring_count(), Cursor::default);
        Self { region, cursors, piece: Vec::new() }
    }

    /// How many rings, from the first, have ever been taken.
    pub fn rings_used(&self) -> usize {
        self.region.rings_used()
    }

    /// How many bytes can wait in all rings that have ever been taken.
    pub fn capacity(&self) -> usize {
        self.rings_used().saturating_mul(self.region.ring_len())
    }

    /// Reads up to `most` bytes of whole records of a ring, oldest first, but at least one record, and gives
    /// their room back. `visit` gets copies, without the length word.
    ///
    /// A record that no agent writes ends the reading: everything up to there is skipped and counted
    /// ([`Reader::spoilt`]).
    pub fn read(&mut self, index: usize, most: usize, visit: impl FnMut(&[u8])) -> Progress {
        let Some(cursor) = self.cursors.get_mut(index) else { return Progress::default() };
        cursor.read(&self.region.ring(index), &mut self.piece, most, visit)
    }

    /// The time before which no more event of this ring will come, judged by the event that is being written;
    /// ask before the ring is read. `None`: not known yet.
    ///
    /// A thread that is in the middle of one event for a second (it is stopped, or only says so) is waited
    /// for no longer.
    pub fn horizon_ns(&mut self, index: usize, now_ns: u64) -> Option<u64> {
        let busy = self.region.ring(index).busy();
        let cursor = self.cursors.get_mut(index)?;
        let before = cursor.busy.filter(|&(word, ..)| word == busy && busy != 0);
        let (since_ns, looks) = before.map_or((now_ns, 0), |(_, since_ns, looks)| (since_ns, looks));
        cursor.busy = (busy != 0).then_some((busy, since_ns, looks.saturating_add(1)));
        if now_ns.saturating_sub(since_ns) > STUCK.0 && looks >= STUCK.1 {
            return Some(u64::MAX);
        }
        match busy {
            0 => Some(u64::MAX),
            OPEN => None,
            time_ns => Some(time_ns),
        }
    }

    /// Who writes into a ring, if anybody does, and under which name.
    pub fn owner(&self, index: usize) -> Option<(Owner, [u8; 16])> {
        let ring = self.region.ring(index);
        Some((ring.owner()?, ring.comm()))
    }

    /// The name of who writes into a ring.
    pub fn comm(&self, index: usize) -> [u8; 16] {
        self.region.ring(index).comm()
    }

    /// Events that found no room in a ring since the last call.
    pub fn new_drops(&mut self, index: usize) -> u64 {
        let Some(cursor) = self.cursors.get_mut(index) else { return 0 };
        let dropped = self.region.ring(index).dropped();
        let new = dropped.saturating_sub(cursor.dropped);
        cursor.dropped = cursor.dropped.max(dropped);
        new
    }

    /// Frees a ring if its owner has released it, or is dead, and everything has been read.
    pub fn free_if_drained(&self, index: usize, owner_is_dead: bool) -> bool {
        let Some(cursor) = self.cursors.get(index) else { return false };
        let ring = self.region.ring(index);
        ring.free(cursor.tail, owner_is_dead)
    }

    /// Times that a ring held what no agent writes.
    pub fn spoilt(&self) -> u64 {
        self.cursors.iter().map(|cursor| cursor.spoilt).fold(0, u64::saturating_add)
    }

    /// Events that found no free ring so far.
    pub fn lost(&self) -> u64 {
        self.region.lost()
    }

    /// A copy of the counters at an offset; `None` where none can be.
    pub fn counts(&self, offset: u32) -> Option<Counts> {
        self.region.counters(offset).map(Counts::of)
    }

    /// Adds the durations at an offset; nothing where none can be.
    pub fn add_durations(&self, offset: u32, to: &mut Histogram) {
        if let Some(durations) = self.region.durations(offset) {
            to.add(durations);
        }
    }

    /// A map that the command has placed; what is read from it is copied word by word, and may be anything.
    pub fn map(&self, plan: MapPlan) -> Option<probe_bpf::Map> {
        self.region.map(plan).ok()
    }

    /// Sleeps until somebody wakes the command, or for `timeout_ms`.
    pub fn sleep(&self, timeout_ms: u32) {
        self.region.sleep(timeout_ms);
    }
}

impl Cursor {
    fn read(
        &mut self,
        ring: &Ring<'_>,
        piece: &mut Vec<u8>,
        most: usize,
        mut visit: impl FnMut(&[u8]),
    ) -> Progress {
        let words = ring.words();
        let len = (words.len() * ALIGN) as u64;
        let (begin, head) = (self.tail, ring.head());
        if head == begin {
            return Progress::default();
        }
        if head.wrapping_sub(begin) > len || !head.is_multiple_of(ALIGN as u64) {
            self.spoil(ring, head);
            return Progress::default();
        }
        let mut wanted = PIECE;
        loop {
            let (left, read) = (head.wrapping_sub(self.tail), self.tail.wrapping_sub(begin) as usize);
            if left == 0 || read >= most {
                return Progress { bytes: read, is_partial: left != 0 };
            }
            let at = self.tail % len;
            let room = (left.min(len - at) as usize).min(wanted);
            copy(piece, words, at as usize / ALIGN, room);
            let parsed = parse(&piece[..room], len - at, left, &mut visit);
            match parsed {
                Parsed::Up(0, needed) if needed > wanted && needed <= LONGEST_RECORD => wanted = needed,
                Parsed::Up(0, _) | Parsed::Garbage => {
                    self.spoil(ring, head);
                    return Progress { bytes: read, is_partial: false };
                }
                Parsed::Up(bytes, _) => {
                    wanted = PIECE;
                    self.tail = self.tail.wrapping_add(bytes as u64);
                    ring.give_back(self.tail);
                }
            }
        }
    }

    /// Skips bytes that nobody can understand. `head` may be anything.
    fn spoil(&mut self, ring: &Ring<'_>, head: u64) {
        self.spoilt = self.spoilt.saturating_add(1);
        self.tail = head & !(ALIGN as u64 - 1);
        ring.give_back(self.tail);
    }
}

/// Copies `len` bytes (a multiple of a word's) from the word number `from` on into the beginning of `to`.
fn copy(to: &mut Vec<u8>, words: &[AtomicU64], from: usize, len: usize) {
    if to.len() < len {
        to.resize(len, 0);
    }
    let from = words.get(from..).unwrap_or_default();
    for (to, word) in to[..len].chunks_exact_mut(ALIGN).zip(from) {
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

/// What has been understood of a copy.
enum Parsed {
    /// So many bytes; the record behind them has so many.
    Up(usize, usize),
    /// It cannot be.
    Garbage,
}

/// Parses a copy of the first bytes of what is waiting: `to_end` bytes are left up to the end of the ring,
/// `left` are waiting.
fn parse(copy: &[u8], to_end: u64, left: u64, visit: &mut impl FnMut(&[u8])) -> Parsed {
    let mut at = 0;
    while let Some(word) = copy.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let (len, passed) = (u32::from_ne_bytes(*word), at as u64);
        let (to_end, left) = (to_end - passed, left - passed);
        if len == WRAP {
            // It has to lead to the ring's beginning, and there has to be something there.
            return if to_end <= left { Parsed::Up(at + to_end as usize, 0) } else { Parsed::Garbage };
        }
        // In 64 bits, as garbage may be as long as it likes.
        let rounded = u64::from(len).next_multiple_of(ALIGN as u64);
        if len < 4 || rounded > to_end || rounded > left {
            return Parsed::Garbage;
        }
        let Some(record) = copy.get(at + 4..at + len as usize) else {
            return Parsed::Up(at, rounded as usize);
        };
        visit(record);
        at += rounded as usize;
    }
    Parsed::Up(at, 0)
}

/// Reads everything that waits in a ring, as the tests of its other end need it.
#[cfg(test)]
pub(super) fn read_all(ring: &Ring<'_>, visit: impl FnMut(&[u8])) {
    let mut cursor = Cursor { tail: ring.tail(), ..Cursor::default() };
    cursor.read(ring, &mut Vec::new(), usize::MAX, visit);
    assert_eq!(cursor.spoilt, 0);
}

#[cfg(test)]
mod tests {
    use super::super::region::{Flags, Layout};
    use super::super::ring::{From, RingControl};
    use super::*;

    const LEN: usize = 128;

    struct Owned {
        control: Box<RingControl>,
        data: Box<[u64]>,
        cursor: Cursor,
    }

    impl Owned {
        fn new() -> Self {
            Self { control: Box::default(), data: vec![0; LEN / 8].into(), cursor: Cursor::default() }
        }

        fn ring(&mut self) -> Ring<'_> {
            // SAFETY: the boxes live as long as the borrow of `self`.
            unsafe { Ring::new(&self.control, self.data.as_mut_ptr().cast(), LEN) }
        }

        fn put(&mut self, bytes: &[u8]) {
            // SAFETY: one thread.
            let mut room = unsafe { self.ring().reserve(4 + bytes.len()) }.expect("room");
            room.put(bytes);
            room.commit();
        }

        fn take(&mut self) -> (Vec<Vec<u8>>, Progress) {
            let mut all = Vec::new();
            // SAFETY: the boxes live as long as the borrow of `self`.
            let ring = unsafe { Ring::new(&self.control, self.data.as_mut_ptr().cast(), LEN) };
            let visit = |record: &[u8]| all.push(record.to_vec());
            let progress = self.cursor.read(&ring, &mut Vec::new(), usize::MAX, visit);
            (all, progress)
        }
    }

    /// EVT_2: what the program writes over the command's own index changes nothing but its own view.
    #[test]
    fn evt_2_a_tail_that_the_program_writes_is_not_read() {
        for tail in [1, 3, LEN as u64 - 2, LEN as u64 - 1, u64::MAX, u64::MAX - 6, 1 << 40] {
            let mut owned = Owned::new();
            owned.put(b"first");
            owned.ring().give_back(tail);
            let (read, progress) = owned.take();
            assert_eq!(read, [b"first"], "tail {tail:#x}");
            assert_eq!((progress.bytes, owned.cursor.spoilt), (16, 0));
        }
    }

    #[test]
    fn evt_2_a_head_that_cannot_be_is_counted_and_left_behind() {
        for head in [1, 12, LEN as u64 + 8, u64::MAX, u64::MAX - 7, 1 << 63] {
            let mut owned = Owned::new();
            owned.ring().set_head(head);
            assert_eq!(owned.take(), (vec![], Progress::default()), "head {head:#x}");
            assert_eq!(owned.cursor.spoilt, 1);
            owned.ring().set_head(head & !7);
            assert_eq!(owned.take(), (vec![], Progress::default()));
            assert_eq!(owned.cursor.spoilt, 1);
        }
    }

    #[test]
    fn evt_2_a_length_that_cannot_be_ends_the_reading() {
        for len in [0, 3, LEN as u32, 1 << 20, u32::MAX - 1, u32::MAX - 8] {
            let mut owned = Owned::new();
            owned.put(b"12345678");
            owned.put(b"12345678");
            owned.data[0] = u64::from_ne_bytes([u32::to_ne_bytes(len), [0; 4]].concat().try_into().unwrap());
            assert_eq!(owned.take().0, Vec::<Vec<u8>>::new(), "length {len:#x}");
            assert_eq!(owned.cursor.spoilt, 1);
            owned.put(b"again");
            assert_eq!(owned.take().0, [b"again"]);
        }
    }

    #[test]
    fn evt_2_a_wrap_that_leads_past_what_is_there_is_garbage() {
        let mut owned = Owned::new();
        owned.put(b"12345678");
        owned.data[0] = u64::MAX;
        assert_eq!(owned.take().0, Vec::<Vec<u8>>::new());
        assert_eq!(owned.cursor.spoilt, 1);
    }

    #[test]
    fn evt_2_one_look_reads_no_more_than_it_is_asked_for() {
        let len = 8 * PIECE;
        let (control, mut data) = (Box::<RingControl>::default(), vec![0_u64; len / 8]);
        // SAFETY: both live as long as the ring.
        let ring = unsafe { Ring::new(&control, data.as_mut_ptr().cast(), len) };
        for _ in 0..4 * PIECE / 1024 {
            // SAFETY: one thread.
            let mut room = unsafe { ring.reserve(1024) }.expect("room");
            room.put(&[1; 1020]);
            room.commit();
        }
        let (mut cursor, mut piece) = (Cursor::default(), Vec::new());
        for look in 1..=4 {
            let progress = cursor.read(&ring, &mut piece, PIECE, |_| ());
            assert_eq!(progress, Progress { bytes: PIECE, is_partial: look < 4 });
        }
        assert_eq!(cursor.read(&ring, &mut piece, PIECE, |_| ()), Progress::default());
    }

    #[test]
    fn an_event_that_is_being_written_bounds_what_may_be_printed() {
        let layout = Layout { config_len: 0, stats_len: 4096, maps_len: 0, ring_count: 1, ring_len: 4096 };
        let (region, _fd) = Region::create(layout, b"", Flags::default()).unwrap();
        let (ring, mut reader) = (region.ring(0), Reader::new(region));
        assert_eq!(reader.horizon_ns(0, 1), Some(u64::MAX));
        ring.open();
        assert_eq!(reader.horizon_ns(0, 2), None);
        ring.stamp(1234);
        assert_eq!(reader.horizon_ns(0, 3), Some(1234));
        ring.close();
        assert_eq!(reader.horizon_ns(0, 4), Some(u64::MAX));
        assert!(ring.claim(Owner { pid: 1, tid: 1 }, [0; 16], From::Free));
        ring.open();
        assert!(reader.free_if_drained(0, true));
        assert_eq!(reader.horizon_ns(0, 5), Some(u64::MAX), "its thread was killed meanwhile");
    }

    #[test]
    fn evt_2_a_thread_that_is_always_busy_is_not_waited_for_for_ever() {
        let layout = Layout { config_len: 0, stats_len: 4096, maps_len: 0, ring_count: 1, ring_len: 4096 };
        let (region, _fd) = Region::create(layout, b"", Flags::default()).unwrap();
        let (ring, mut reader) = (region.ring(0), Reader::new(region));
        ring.open();
        let look = STUCK.0 / u64::from(STUCK.1);
        let waited = (0..1000).take_while(|i| reader.horizon_ns(0, i * look).is_none()).count();
        assert_eq!(waited, STUCK.1 as usize + 1, "a second, and not by one slow look");
        ring.stamp(99);
        assert_eq!(reader.horizon_ns(0, 1000 * look), Some(99), "another event begins anew");
        assert_eq!(reader.horizon_ns(0, 2000 * look), Some(99), "the command itself was kept from looking");
    }

    #[test]
    fn a_record_longer_than_a_piece_arrives_whole() {
        let len = 4 * PIECE;
        let (control, mut data) = (Box::<RingControl>::default(), vec![0_u64; len / 8]);
        // SAFETY: both live as long as the ring.
        let ring = unsafe { Ring::new(&control, data.as_mut_ptr().cast(), len) };
        let (mut cursor, mut piece) = (Cursor::default(), Vec::new());
        for size in [10, 3 * PIECE, 20, PIECE - 4, 30] {
            // SAFETY: one thread.
            let mut room = unsafe { ring.reserve(4 + size) }.expect("room");
            room.put(&vec![7; size]);
            room.commit();
            let mut seen = Vec::new();
            cursor.read(&ring, &mut piece, usize::MAX, |record| seen.push(record.len()));
            assert_eq!((seen, cursor.spoilt), (vec![size], 0));
        }
    }
}
