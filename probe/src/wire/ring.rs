//! A ring of records with one producer and one consumer, in memory that two processes share.
//!
//! The producer is a thread inside a probe handler: it takes no lock, makes no system call and never waits.
//! The consumer is the command. `head` and `tail` count bytes since the beginning of time; they are never
//! reset, so that an owner that died in the middle of a record leaves nothing but an unfinished record behind
//! `head`.

use super::futex;
use probe_host_linux::sys;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

/// The bytes that a record's length is rounded up to.
pub(super) const ALIGN: usize = 8;
/// The length word that means: the rest of the ring is empty, go on at its start.
pub(super) const WRAP: u32 = u32::MAX;

/// The bit of an owner that is gone: the ring is free once it has been read. Above all numbers of processes.
const RELEASED: u64 = 1 << 63;

/// An event is being written whose timestamp is still to come.
pub(super) const OPEN: u64 = 1;

/// The words of a ring that both sides use, each group in its own cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct RingControl {
    /// Who writes: 0 nobody, else process and thread (see [`Owner`]), with [`RELEASED`] when it is gone.
    owner: AtomicU64,
    /// The owner's name when it took the ring, NUL padded.
    comm: [AtomicU64; 2],
    /// The timestamp of the event that is just being written, [`OPEN`] before it is known, 0 between events.
    busy: AtomicU64,
    _line0: [u64; 4],
    /// Bytes ever written.
    head: AtomicU64,
    /// Events that found no room.
    dropped: AtomicU64,
    _line1: [u64; 6],
    /// Bytes ever read.
    tail: AtomicU64,
    /// Changes whenever `tail` has; the owner sleeps on it (futex).
    room: AtomicU32,
    /// Whether the owner sleeps.
    waiting: AtomicU32,
    _line2: [u64; 6],
}

/// The owner of a ring that the consumer is just giving back.
const CONSUMER: u64 = u32::MAX as u64;

/// The thread that writes into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
}

/// Which rings a thread may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// One that nobody has, or that the same thread has released.
    Free,
    /// One that another thread of the same process has released, whether it has been read or not.
    Released,
    /// One whose owner has ended without releasing it. Asks the kernel.
    Dead,
}

impl Owner {
    fn word(self) -> u64 {
        (u64::from(self.pid) << 32) | u64::from(self.tid)
    }

    fn of(word: u64) -> Self {
        Self { pid: ((word & !RELEASED) >> 32) as u32, tid: word as u32 }
    }

    /// Whether the thread has ended; where it is not known (0), whether its process has. One system call.
    pub fn is_dead(self) -> bool {
        let thread = if self.tid == 0 { self.pid } else { self.tid };
        !sys::thread_lives(self.pid, thread)
    }
}

/// A ring: its control words and its bytes.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    control: &'a RingControl,
    data: *mut u8,
    len: usize,
}

// SAFETY: all access to `data` follows the single-producer, single-consumer protocol of `head` and `tail`;
// `Ring::new` and `Ring::reserve` oblige their callers to it.
unsafe impl Send for Ring<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for Ring<'_> {}

impl<'a> Ring<'a> {
    /// A ring over `len` bytes at `data`.
    ///
    /// # Safety
    /// `data` is aligned to 8, valid for reads and writes of `len` bytes (a multiple of 8) as long as `'a`,
    /// and accessed through rings with this `control` only.
    pub const unsafe fn new(control: &'a RingControl, data: *mut u8, len: usize) -> Self {
        Self { control, data, len }
    }

    /// Takes a ring for a thread if it is what `from` says; `false` if it is not, or somebody was faster.
    ///
    /// What its last owner has written stays in it and will be read.
    pub fn claim(&self, owner: Owner, comm: [u8; 16], from: From) -> bool {
        let now = self.control.owner.load(Ordering::Relaxed);
        let may_take = match from {
            From::Free => now == 0 || now == owner.word() | RELEASED,
            From::Released => now & RELEASED != 0 && now >> 32 == (owner.word() | RELEASED) >> 32,
            From::Dead => now != 0 && now != CONSUMER && Owner::of(now).is_dead(),
        };
        if !may_take
            || self
                .control
                .owner
                .compare_exchange(now, owner.word(), Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return false;
        }
        self.close();
        let (low, high) = comm.split_at(8);
        for (word, half) in self.control.comm.iter().zip([low, high]) {
            word.store(u64::from_ne_bytes(half.try_into().unwrap_or_default()), Ordering::Relaxed);
        }
        true
    }

    /// Who writes into it, if anybody does.
    pub fn owner(&self) -> Option<Owner> {
        let word = self.control.owner.load(Ordering::Acquire) & !RELEASED;
        (word != 0).then(|| Owner::of(word))
    }

    /// Notes which thread of the owner's process the owner is, which was not known when the ring was taken.
    pub fn belong_to(&self, owner: Owner) {
        self.control.owner.store(owner.word(), Ordering::Release);
    }

    /// The owner's name when it took the ring.
    pub fn comm(&self) -> [u8; 16] {
        let mut name = [0; 16];
        for (half, word) in name.chunks_exact_mut(8).zip(&self.control.comm) {
            half.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        name
    }

    /// Declares that the owner will write no more. The consumer frees the ring when it has read everything.
    pub fn release(&self) {
        self.control.owner.fetch_or(RELEASED, Ordering::Release);
    }

    /// Frees a ring that has been read up to `tail` if that is all, and its owner has released it or is known
    /// to be dead.
    pub(super) fn free(&self, tail: u64, owner_is_dead: bool) -> bool {
        let owner = self.control.owner.load(Ordering::Acquire);
        if !(owner & RELEASED != 0 || owner_is_dead && owner != 0) || self.head() != tail {
            return false;
        }
        // Fails if the owner, or another thread, has taken it again.
        if self.control.owner.compare_exchange(owner, CONSUMER, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return false;
        }
        self.close();
        self.control.owner.store(0, Ordering::Release);
        true
    }

    /// Events that found no room so far.
    pub fn dropped(&self) -> u64 {
        self.control.dropped.load(Ordering::Relaxed)
    }

    /// Declares that an event is going to be written, before its time is taken: until [`Ring::close`] the
    /// consumer holds back younger events, however long this thread is kept from running.
    #[inline]
    pub fn open(&self) {
        self.control.busy.store(OPEN, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Whether an event was declared and is not there yet.
    pub fn is_open(&self) -> bool {
        self.control.busy.load(Ordering::Relaxed) != 0
    }

    /// Says the time of the event.
    #[inline]
    pub fn stamp(&self, time_ns: u64) {
        self.control.busy.store(time_ns, Ordering::Relaxed);
    }

    /// Says that the event has been committed, or dropped.
    #[inline]
    pub fn close(&self) {
        self.control.busy.store(0, Ordering::Release);
    }

    /// Makes room for a record of up to `most` bytes. `None`: there is none.
    ///
    /// # Safety
    /// The calling thread owns the ring ([`Ring::claim`]) and holds no other reservation of it.
    #[inline]
    pub unsafe fn reserve(&self, most: usize) -> Option<Reservation<'a>> {
        let most = most.next_multiple_of(ALIGN);
        let head = self.control.head.load(Ordering::Relaxed);
        let at = (head % self.len as u64) as usize;
        let to_end = self.len - at;
        let skipped = if to_end < most { to_end } else { 0 };
        if !self.has_room(head, skipped + most) {
            return None;
        }
        if skipped != 0 {
            // SAFETY: `at` < `len`.
            let skip = unsafe { self.data.add(at) };
            // SAFETY: both are multiples of 8, so at least 8 bytes of the ring's own follow; the consumer
            // does not read behind `head`, which has not moved yet.
            unsafe { skip.cast::<u32>().write(WRAP) };
        }
        let start = if skipped == 0 { at } else { 0 };
        // SAFETY: `start + most <= len` by the choice of `start`.
        let data = unsafe { self.data.add(start) };
        Some(Reservation { control: self.control, head: head + skipped as u64, data, most, len: 4 })
    }

    /// Whether `len` bytes are free behind `head`.
    fn has_room(&self, head: u64, len: usize) -> bool {
        let used = head.wrapping_sub(self.control.tail.load(Ordering::Acquire)) as usize;
        used <= self.len && len <= self.len - used
    }

    /// Counts an event that found no room.
    pub fn count_drop(&self) {
        self.control.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a record of up to `most` bytes finds room when everything has been read, wherever the ring's
    /// end is.
    pub fn can_hold(&self, most: usize) -> bool {
        most.next_multiple_of(ALIGN) <= self.len / 2
    }

    /// Sleeps until the command has read something, if there is no room for `most` bytes; for `timeout_ms` at
    /// the most. One system call.
    pub fn wait(&self, most: usize, timeout_ms: u32) {
        let control = self.control;
        let seen = control.room.load(Ordering::Acquire);
        control.waiting.store(1, Ordering::Relaxed);
        // The command gives back, then looks whether we wait; so we say that we wait, then look what it has
        // given back.
        fence(Ordering::SeqCst);
        // With what is skipped at the ring's end.
        if !self.has_room(control.head.load(Ordering::Relaxed), 2 * most.next_multiple_of(ALIGN)) {
            futex::wait(&control.room, seen, timeout_ms);
        }
        control.waiting.store(0, Ordering::Relaxed);
    }

    /// Whether more than half of the ring is waiting to be read.
    #[inline]
    pub fn is_half_full(&self) -> bool {
        let head = self.control.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.control.tail.load(Ordering::Relaxed));
        used > self.len as u64 / 2
    }

    /// Bytes ever written, as the ring says now.
    pub(super) fn head(&self) -> u64 {
        self.control.head.load(Ordering::Acquire)
    }

    /// What is just being written: [`OPEN`], a time, or 0.
    pub(super) fn busy(&self) -> u64 {
        self.control.busy.load(Ordering::Acquire)
    }

    /// Tells the producer how much has been read.
    pub(super) fn give_back(&self, tail: u64) {
        self.control.tail.store(tail, Ordering::Release);
        let room = self.control.room.load(Ordering::Relaxed);
        self.control.room.store(room.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        if self.control.waiting.load(Ordering::Relaxed) != 0 {
            futex::wake(&self.control.room);
        }
    }

    /// The ring's bytes as words that may change at any time.
    pub(super) fn words(&self) -> &'a [AtomicU64] {
        // SAFETY: `Ring::new` demands memory for so many words, aligned to 8; any bits are valid, and the
        // words are atomic.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.len / ALIGN) }
    }

    /// Bytes ever read, as the ring says now.
    #[cfg(test)]
    pub(super) fn tail(&self) -> u64 {
        self.control.tail.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn set_head(&self, head: u64) {
        self.control.head.store(head, Ordering::Release);
    }
}

/// Room for one record: filled byte by byte, visible to the consumer at [`Reservation::commit`]. Dropping it
/// gives the room back.
#[must_use]
pub struct Reservation<'a> {
    control: &'a RingControl,
    head: u64,
    data: *mut u8,
    most: usize,
    len: usize,
}

impl Reservation<'_> {
    /// Bytes that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.most - self.len
    }

    /// Appends bytes; cuts what does not fit.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(self.room());
        // SAFETY: `self.len + len <= most`, which `Ring::reserve` found room for.
        let to = unsafe { self.data.add(self.len) };
        // SAFETY: as above; the reservation's owner is the only writer of this part of the ring.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
        self.len += len;
    }

    /// Appends a word.
    #[inline]
    pub fn put_u32(&mut self, word: u32) {
        self.put(&word.to_ne_bytes());
    }

    /// Appends a word.
    #[inline]
    pub fn put_u64(&mut self, word: u64) {
        self.put(&word.to_ne_bytes());
    }

    /// The next `len` bytes (or what fits), for the caller to fill; [`Reservation::advance`] keeps them.
    #[inline]
    pub fn spare(&mut self, len: usize) -> &mut [u8] {
        let len = len.min(self.room());
        // SAFETY: `self.len + len <= most`.
        let start = unsafe { self.data.add(self.len) };
        // SAFETY: initialised memory of the mapping, which only the owner of the reservation touches; the
        // borrow of `self` keeps a second slice away.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Keeps `len` bytes of [`Reservation::spare`].
    #[inline]
    pub fn advance(&mut self, len: usize) {
        self.len += len.min(self.room());
    }

    /// Forgets what was put from `position` on.
    #[inline]
    pub fn truncate(&mut self, position: usize) {
        self.len = self.len.min(position.max(4));
    }

    /// The position of the next byte, for [`Reservation::patch_u32`].
    #[inline]
    pub fn position(&self) -> usize {
        self.len
    }

    /// Overwrites the word that was put at `position`.
    #[inline]
    pub fn patch_u32(&mut self, position: usize, word: u32) {
        if position + 4 <= self.len {
            // SAFETY: within the bytes already put.
            let to = unsafe { self.data.add(position) };
            // SAFETY: as above.
            unsafe { to.cast::<u32>().write_unaligned(word) };
        }
    }

    /// Hands the record to the consumer.
    #[inline]
    pub fn commit(self) {
        // SAFETY: the record's first word, within the reservation and aligned to 8.
        unsafe { self.data.cast::<u32>().write(self.len as u32) };
        let end = self.head + self.len.next_multiple_of(ALIGN) as u64;
        self.control.head.store(end, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::hostile;
    use super::*;

    /// A ring on the heap.
    struct Owned {
        control: Box<RingControl>,
        data: Box<[u64]>,
    }

    impl Owned {
        fn new(len: usize) -> Self {
            Self { control: Box::default(), data: vec![0; len / 8].into() }
        }

        fn ring(&mut self) -> Ring<'_> {
            let len = self.data.len() * 8;
            // SAFETY: the boxes live as long as the borrow of `self`.
            unsafe { Ring::new(&self.control, self.data.as_mut_ptr().cast(), len) }
        }
    }

    fn put(ring: &Ring<'_>, bytes: &[u8]) -> bool {
        // SAFETY: one thread.
        match unsafe { ring.reserve(4 + bytes.len()) } {
            Some(mut room) => {
                room.put(bytes);
                room.commit();
                true
            }
            None => {
                ring.count_drop();
                false
            }
        }
    }

    fn take(ring: &Ring<'_>) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        hostile::read_all(ring, |record| all.push(record.to_vec()));
        all
    }

    fn is_empty(ring: &Ring<'_>) -> bool {
        ring.head() == ring.tail()
    }

    fn free(ring: &Ring<'_>, owner_is_dead: bool) -> bool {
        ring.free(ring.tail(), owner_is_dead)
    }

    #[test]
    fn records_come_out_as_they_went_in() {
        let mut owned = Owned::new(256);
        let ring = owned.ring();
        assert!(put(&ring, b"one") && put(&ring, b"") && put(&ring, b"three bytes more"));
        assert_eq!(take(&ring), [b"one".to_vec(), b"".to_vec(), b"three bytes more".to_vec()]);
        assert!(take(&ring).is_empty() && is_empty(&ring));
    }

    #[test]
    fn a_full_ring_drops_the_newest_and_counts_it() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        let kept = (0..10).filter(|&i| put(&ring, &[i; 12])).count();
        assert_eq!((kept, ring.dropped()), (4, 6));
        let read = take(&ring);
        assert_eq!(read, (0..4).map(|i| vec![i; 12]).collect::<Vec<_>>());
        assert!(put(&ring, b"room again"));
        assert_eq!(take(&ring), [b"room again".to_vec()]);
    }

    #[test]
    fn records_never_straddle_the_end() {
        let mut owned = Owned::new(128);
        let ring = owned.ring();
        for round in 0..500_u32 {
            let bytes = vec![round as u8; (round as usize * 7) % 60];
            assert!(put(&ring, &bytes), "round {round}");
            assert_eq!(take(&ring), [bytes], "round {round}");
        }
    }

    #[test]
    fn a_record_longer_than_the_ring_is_dropped() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        assert!(!put(&ring, &[0; 100]));
        assert_eq!(ring.dropped(), 1);
    }

    #[test]
    fn a_dropped_reservation_leaves_nothing() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        // SAFETY: one thread.
        assert!(unsafe { ring.reserve(32) }.is_some());
        assert!(take(&ring).is_empty());
        assert!(put(&ring, b"x"));
        assert_eq!(take(&ring), [b"x".to_vec()]);
    }

    #[test]
    fn what_does_not_fit_the_reservation_is_cut() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        // SAFETY: one thread.
        let mut room = unsafe { ring.reserve(12) }.unwrap();
        room.put(b"0123456789abcdef0123456789");
        assert_eq!(room.room(), 0);
        room.commit();
        assert_eq!(take(&ring), [b"0123456789ab".to_vec()], "12 is rounded up to 16 with the length word");
    }

    #[test]
    fn a_ring_has_one_owner_and_is_freed_when_drained() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        let (first, second) = (Owner { pid: 7, tid: 8 }, Owner { pid: 9, tid: 9 });
        assert!(ring.claim(first, *b"name\0\0\0\0\0\0\0\0\0\0\0\0", From::Free));
        assert!(!ring.claim(second, [0; 16], From::Free));
        assert_eq!((ring.owner(), &ring.comm()[..5]), (Some(first), &b"name\0"[..]));
        assert!(put(&ring, b"last words"));
        ring.release();
        assert!(!free(&ring, false), "there is something to read");
        assert_eq!(take(&ring).len(), 1);
        assert!(free(&ring, false) && ring.claim(second, [0; 16], From::Free));
        assert!(!free(&ring, false), "its new owner has not released it");
        assert!(free(&ring, true));
    }

    #[test]
    fn a_thread_may_take_its_released_ring_again() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        let owner = Owner { pid: 7, tid: 8 };
        assert!(ring.claim(owner, [0; 16], From::Free));
        assert!(!ring.claim(owner, [0; 16], From::Free), "not released");
        ring.release();
        assert!(!ring.claim(Owner { pid: 7, tid: 9 }, [0; 16], From::Free), "another thread");
        assert!(ring.claim(owner, [0; 16], From::Free));
        assert!(!free(&ring, false));
    }

    #[test]
    fn a_released_ring_goes_to_another_thread_of_the_process_before_it_is_read() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        assert!(ring.claim(Owner { pid: 7, tid: 8 }, [0; 16], From::Free));
        assert!(put(&ring, b"unread"));
        let (same, other) = (Owner { pid: 7, tid: 9 }, Owner { pid: 6, tid: 9 });
        assert!(!ring.claim(same, [0; 16], From::Released), "not released");
        ring.release();
        assert!(!ring.claim(other, [0; 16], From::Released), "another process");
        assert!(ring.claim(same, [0; 16], From::Released));
        assert!(put(&ring, b"more"));
        assert_eq!(take(&ring), [b"unread".to_vec(), b"more".to_vec()]);
    }

    #[test]
    fn the_ring_of_a_dead_thread_can_be_taken() {
        let mut owned = Owned::new(64);
        let ring = owned.ring();
        let pid = std::process::id();
        let gone = std::thread::spawn(sys::thread_id).join().unwrap();
        let alive = sys::thread_id();
        let me = Owner { pid, tid: alive };
        assert!(ring.claim(me, [0; 16], From::Free));
        assert!(!ring.claim(Owner { pid, tid: 1 }, [0; 16], From::Dead), "its owner lives");
        ring.release();
        assert!(free(&ring, false));
        // The kernel may take a moment to forget a thread that has been joined.
        while !(Owner { pid, tid: gone }).is_dead() {
            std::thread::yield_now();
        }
        assert!(ring.claim(Owner { pid, tid: gone }, [0; 16], From::Free));
        assert!(ring.claim(me, [0; 16], From::Dead));
    }

    #[test]
    fn evt_1_a_thread_that_waits_for_room_loses_nothing() {
        let mut owned = Owned::new(256);
        let ring = owned.ring();
        const ROUNDS: u64 = 20_000;
        let mut next = 0_u64;
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| {
                for i in 0..ROUNDS {
                    let most = 12 + 8 * (i % 9) as usize;
                    let put = |mut room: Reservation<'_>| {
                        room.put_u64(i);
                        room.commit();
                    };
                    // SAFETY: this thread is the only producer.
                    while unsafe { ring.reserve(most) }.map(put).is_none() {
                        ring.wait(most, 60_000);
                    }
                }
            });
            while next < ROUNDS {
                hostile::read_all(&ring, |record| {
                    assert_eq!(record, next.to_ne_bytes());
                    next += 1;
                });
            }
            producer.join().unwrap();
        });
        assert_eq!((next, ring.dropped()), (ROUNDS, 0));
    }

    #[test]
    fn two_threads_lose_and_change_nothing() {
        let mut owned = Owned::new(1024);
        let ring = owned.ring();
        const ROUNDS: u64 = 200_000;
        let (mut next, mut seen) = (0_u64, 0_u64);
        std::thread::scope(|scope| {
            let producer = scope.spawn(|| {
                let mut sent = 0_u64;
                for i in 0..ROUNDS {
                    let words = 1 + (i % 9) as usize;
                    // SAFETY: this thread is the only producer.
                    if let Some(mut room) = unsafe { ring.reserve(4 + 8 * words) } {
                        (0..words).for_each(|_| room.put_u64(i));
                        room.commit();
                        sent += 1;
                    } else {
                        ring.count_drop();
                    }
                }
                sent
            });
            loop {
                let done = producer.is_finished();
                hostile::read_all(&ring, |record| {
                    let first = u64::from_ne_bytes(record[..8].try_into().unwrap());
                    assert!(first >= next, "out of order");
                    assert_eq!(record.len(), 8 * (1 + (first % 9) as usize));
                    assert!(record.chunks(8).all(|word| word == first.to_ne_bytes()), "torn record");
                    next = first + 1;
                    seen += 1;
                });
                if done {
                    break;
                }
            }
            assert_eq!(producer.join().unwrap(), seen);
        });
        assert_eq!(seen + ring.dropped(), ROUNDS, "every event is either read or counted");
    }
}
