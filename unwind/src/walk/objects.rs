//! The loaded objects: written by one thread, read in hits.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

/// How many objects are known.
pub const MOST_OBJECTS: usize = 512;

/// A loaded object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its first address.
    pub start: usize,
    /// One past its last address.
    pub end: usize,
    /// Where its `.eh_frame_hdr` is.
    pub header: usize,
    /// How long that is, in bytes.
    pub header_len: usize,
}

impl Object {
    const NONE: Self = Self { start: 0, end: 0, header: 0, header_len: 0 };

    fn words(&self) -> [usize; 4] {
        [self.start, self.end, self.header, self.header_len]
    }
}

/// An object, and a number that is odd while it changes.
#[derive(Debug)]
struct Slot {
    version: AtomicU32,
    words: [AtomicUsize; 4],
}

impl Slot {
    const fn new() -> Self {
        Self { version: AtomicU32::new(0), words: [const { AtomicUsize::new(0) }; 4] }
    }

    fn get(&self) -> Option<Object> {
        let version = self.version.load(Ordering::Acquire);
        let [start, end, header, header_len] = [0, 1, 2, 3]
            .map(|index: usize| self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed)));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (is_whole && end != 0).then_some(Object { start, end, header, header_len })
    }

    fn set(&self, object: &Object) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        for (to, word) in self.words.iter().zip(object.words()) {
            to.store(word, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

#[derive(Debug)]
pub(super) struct Objects {
    slots: [Slot; MOST_OBJECTS],
    used: AtomicUsize,
}

impl Objects {
    pub(super) const fn new() -> Self {
        let slots = [const { Slot::new() }; MOST_OBJECTS];
        Self { slots, used: AtomicUsize::new(0) }
    }

    /// The object that an address lies in.
    pub(super) fn find(&self, addr: usize) -> Option<Object> {
        let used = self.slots.get(..self.used.load(Ordering::Acquire))?;
        used.iter().filter_map(Slot::get).find(|object| (object.start..object.end).contains(&addr))
    }

    /// These are all objects now. Whether one that was there has gone.
    pub(super) fn set(&self, all: &[Object]) -> bool {
        let mut has_gone = false;
        for slot in &self.slots {
            if slot.get().is_some_and(|object| !all.contains(&object)) {
                slot.set(&Object::NONE);
                has_gone = true;
            }
        }
        let is_known = |object: &Object| self.slots.iter().any(|slot| slot.get() == Some(*object));
        for object in all {
            if is_known(object) {
                continue;
            }
            let Some((index, slot)) = self.slots.iter().enumerate().find(|(_, slot)| slot.get().is_none())
            else {
                break;
            };
            slot.set(object);
            self.used.fetch_max(index + 1, Ordering::Release);
        }
        has_gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_and_go() {
        static OBJECTS: Objects = Objects::new();
        let object = |start| Object { start, end: start + 0x100, header: start, header_len: 8 };
        assert!(!OBJECTS.set(&[object(0x1000), object(0x2000)]));
        assert_eq!(OBJECTS.find(0x20ff), Some(object(0x2000)));
        assert_eq!((OBJECTS.find(0x2100), OBJECTS.find(0xfff)), (None, None));
        assert!(!OBJECTS.set(&[object(0x1000), object(0x2000), object(0x3000)]), "one more");
        assert!(OBJECTS.set(&[object(0x3000), object(0x1000)]), "one has gone");
        assert_eq!((OBJECTS.find(0x2000), OBJECTS.find(0x3000)), (None, Some(object(0x3000))));
        assert!(!OBJECTS.set(&[object(0x4000), object(0x3000), object(0x1000)]));
        assert_eq!(OBJECTS.used.load(Ordering::Relaxed), 3, "its slot is taken again");
    }
}
