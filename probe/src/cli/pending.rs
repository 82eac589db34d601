//! Events that wait for their turn: in one piece of memory, without an allocation for each.

/// The most bytes that may wait. More come together only if a program announces older events for ever, and
/// writes on.
pub(super) const MOST_BYTES: usize = if cfg!(target_pointer_width = "64") { 64 << 20 } else { 16 << 20 };

/// One event.
#[derive(Clone, Copy)]
struct Entry {
    time_ns: u64,
    comm: [u8; 16],
    start: usize,
    len: usize,
}

/// The events that wait.
#[derive(Default)]
pub(super) struct Pending {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// Where the bytes of those that go on waiting are moved to.
    spare: Vec<u8>,
}

impl Pending {
    /// Adds an event.
    pub(super) fn push(&mut self, time_ns: u64, comm: [u8; 16], record: &[u8]) {
        let entry = Entry { time_ns, comm, start: self.bytes.len(), len: record.len() };
        self.bytes.extend_from_slice(record);
        self.entries.push(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether more waits than should.
    pub(super) fn is_too_much(&self) -> bool {
        self.bytes.len() + self.entries.len() * size_of::<Entry>() > MOST_BYTES
    }

    /// Shows the events that are not younger than `until_ns`, in order of time, and forgets them.
    pub(super) fn release(&mut self, until_ns: u64, show: impl FnMut(&[u8; 16], &[u8])) {
        self.entries.sort_by_key(|entry| entry.time_ns);
        let ready = self.entries.partition_point(|entry| entry.time_ns <= until_ns);
        self.take(ready, show);
    }

    /// Shows the older half of the events, even if older ones are still to come, and forgets them.
    pub(super) fn release_half(&mut self, show: impl FnMut(&[u8; 16], &[u8])) {
        self.entries.sort_by_key(|entry| entry.time_ns);
        self.take(self.entries.len().div_ceil(2), show);
    }

    fn take(&mut self, ready: usize, mut show: impl FnMut(&[u8; 16], &[u8])) {
        if ready == 0 {
            return;
        }
        for entry in self.entries.drain(..ready) {
            show(&entry.comm, &self.bytes[entry.start..entry.start + entry.len]);
        }
        self.spare.clear();
        for entry in &mut self.entries {
            let start = self.spare.len();
            self.spare.extend_from_slice(&self.bytes[entry.start..entry.start + entry.len]);
            entry.start = start;
        }
        std::mem::swap(&mut self.bytes, &mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pending: &mut Pending, until_ns: u64) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        pending.release(until_ns, |_, record| all.push(record.to_vec()));
        all
    }

    #[test]
    fn events_come_out_in_order_of_time_and_once() {
        let mut pending = Pending::default();
        for (time_ns, record) in [(5, "five"), (1, "one"), (9, "nine"), (5, "again"), (3, "")] {
            pending.push(time_ns, [0; 16], record.as_bytes());
        }
        assert_eq!(shown(&mut pending, 0), Vec::<Vec<u8>>::new());
        assert_eq!(shown(&mut pending, 5), [&b"one"[..], b"", b"five", b"again"]);
        pending.push(7, [0; 16], b"seven");
        assert_eq!(shown(&mut pending, u64::MAX), [&b"seven"[..], b"nine"]);
        assert!(pending.is_empty() && pending.bytes.is_empty());
    }

    #[test]
    fn evt_2_what_waits_is_bounded() {
        let mut pending = Pending::default();
        for i in 0..200_000_u64 {
            pending.push(u64::MAX - i, [0; 16], &[0; 1024]);
            if pending.is_too_much() {
                pending.release_half(|_, _| ());
            }
            assert!(pending.bytes.len() <= MOST_BYTES);
        }
        assert!(!pending.is_empty());
    }
}
