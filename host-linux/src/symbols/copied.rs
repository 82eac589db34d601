//! The unwind tables of a loaded object, as they are in memory.

use crate::memory::read_some;
use probe_core::host::Arrival;
use probe_elf_symbols::arrival::{Machine, Tables, frames_of};

/// The unwind tables of a loaded object, copied from memory: reading them there could fault when the object
/// goes.
#[derive(Debug)]
pub(super) struct Copied {
    machine: Machine,
    header: (Vec<u8>, u64),
    frames: (Vec<u8>, u64),
}

impl Copied {
    /// Copies the tables whose header is at `header`. `end_of` tells where the segment that an address lies
    /// in ends.
    pub(super) fn new(
        machine: Machine,
        header: usize,
        end_of: impl Fn(usize) -> Option<usize>,
    ) -> Option<Self> {
        let read = |start: usize| {
            let mut bytes = vec![0; end_of(start)?.checked_sub(start)?];
            let len = read_some(start, &mut bytes);
            bytes.truncate(len);
            Some((bytes, start as u64))
        };
        let mut header = read(header)?;
        let frames = frames_of(machine, &header.0, header.1)?;
        if let Some(len) = frames.checked_sub(header.1).and_then(|len| usize::try_from(len).ok()) {
            header.0.truncate(len);
        }
        Some(Self { machine, frames: read(usize::try_from(frames).ok()?)?, header })
    }

    /// How `at` is come to.
    pub(super) fn arrival(&self, at: usize) -> Arrival {
        let header = (self.header.0.as_slice(), self.header.1);
        let frames = (self.frames.0.as_slice(), self.frames.1);
        Tables::new(self.machine, header, frames).arrival(at as u64)
    }
}
