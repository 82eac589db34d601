//! Where the host had no executable memory for a detour: it is asked there once in a batch, not once for each
//! point of it.

use crate::addr::CodeAddr;
use crate::state::slots::{CHUNK_LEN, chunk_base};
use alloc::vec::Vec;

/// What the host was asked for.
#[derive(Clone, Copy)]
pub(crate) enum Asked {
    /// The chunk around an address.
    Chunk(CodeAddr),
    /// Any chunk within so many bytes of a place.
    Near(CodeAddr, usize),
}

impl Asked {
    /// Places that are as good as one share theirs: a 64th of the reach is the edge of what either reaches.
    fn key(self) -> usize {
        match self {
            Self::Chunk(at) => chunk_base(at).as_usize(),
            Self::Near(place, reach) => {
                let grain = (reach / 64).max(CHUNK_LEN).next_power_of_two();
                place.as_usize() & !(grain - 1) | 1
            }
        }
    }
}

/// What it has refused in this batch, in order of keys. What there is no memory to note is asked again.
pub(crate) struct Refused(Vec<usize>);

impl Refused {
    /// Nothing.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Another batch begins: there may be room now.
    pub(crate) fn forget(&mut self) {
        *self = Self::new();
    }

    /// Whether it has refused this.
    pub(crate) fn has(&self, asked: Asked) -> bool {
        self.0.binary_search(&asked.key()).is_ok()
    }

    /// Notes that it has.
    pub(crate) fn add(&mut self, asked: Asked) {
        if let Err(index) = self.0.binary_search(&asked.key())
            && self.0.try_reserve(1).is_ok()
        {
            self.0.insert(index, asked.key());
        }
    }
}
