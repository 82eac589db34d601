//! The head of a file and those of its blocks.

use super::bytes;
use std::fmt;

/// The first bytes: a byte that no text has, a name, and line ends that a transfer as text would change.
pub const MAGIC: [u8; 12] = *b"\x89PROBEREC\r\n\x1a";
/// The version of the format that is written.
pub const VERSION: u16 = 2;
/// The oldest version that is read: it knows no calls that were left.
pub(super) const OLDEST: u16 = 1;

/// The bytes of the head.
pub(super) const HEAD_LEN: usize = 32;
/// The bytes before a block's payload.
pub(super) const BLOCK_HEAD_LEN: usize = 44;
/// The most bytes of a block's payload. An event is never longer than half of that.
const MOST_PAYLOAD: usize = 32 << 20;
/// The most tasks and the most names that are known at a time.
pub(super) const MOST_KNOWN: usize = 1 << 16;
/// Where a task's number stands: the next event is of a call that was left.
pub(super) const LEFT: u64 = MOST_KNOWN as u64;

/// Blocks with facts, with events, with the end.
pub(super) const FACTS: [u8; 4] = *b"PRBF";
pub(super) const EVENTS: [u8; 4] = *b"PRBE";
pub(super) const END: [u8; 4] = *b"PRBZ";

/// What a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The bytes of a machine word where it was recorded.
    pub word_bytes: u8,
    /// Whether that machine is big endian. Nothing in the file depends on it.
    pub is_big_endian: bool,
    /// When the recording began, in nanoseconds since 1970; times of events count from there.
    pub began_ns: u64,
}

impl Head {
    /// Of this machine.
    #[must_use]
    pub const fn here(began_ns: u64) -> Self {
        let word_bytes = size_of::<usize>() as u8;
        Self { word_bytes, is_big_endian: cfg!(target_endian = "big"), began_ns }
    }

    pub(super) fn to_bytes(self) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        out[..12].copy_from_slice(&MAGIC);
        out[12..14].copy_from_slice(&VERSION.to_le_bytes());
        out[14] = self.word_bytes;
        out[15] = 1 + u8::from(self.is_big_endian);
        out[16..24].copy_from_slice(&self.began_ns.to_le_bytes());
        let sum = bytes::checksum(&out[..28]);
        out[28..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8; HEAD_LEN]) -> Result<Self, Damage> {
        let (told, sum) = (&bytes[..28], bytes::u32_at(bytes, 28));
        if bytes[..12] != MAGIC {
            return Err(Damage::NoRecord);
        }
        match u16::from_le_bytes([bytes[12], bytes[13]]) {
            OLDEST..=VERSION if sum == bytes::checksum(told) => {
                let began_ns = bytes::u64_at(bytes, 16);
                Ok(Self { word_bytes: bytes[14], is_big_endian: bytes[15] == 2, began_ns })
            }
            OLDEST..=VERSION => Err(Damage::Checksum),
            version => Err(Damage::Version(version)),
        }
    }
}

/// What stands before a block's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockHead {
    pub(super) kind: [u8; 4],
    pub(super) len: u32,
    /// The time that the first event's counts from.
    pub(super) first_ns: u64,
    /// The latest time of an event in it.
    pub(super) last_ns: u64,
    pub(super) events: u32,
    /// How many events had been lost when it was written.
    pub(super) lost: u64,
    /// The payload's checksum.
    pub(super) sum: u32,
}

impl BlockHead {
    pub(super) fn to_bytes(self) -> [u8; BLOCK_HEAD_LEN] {
        let mut out = [0; BLOCK_HEAD_LEN];
        out[..4].copy_from_slice(&self.kind);
        out[4..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..16].copy_from_slice(&self.first_ns.to_le_bytes());
        out[16..24].copy_from_slice(&self.last_ns.to_le_bytes());
        out[24..28].copy_from_slice(&self.events.to_le_bytes());
        out[28..36].copy_from_slice(&self.lost.to_le_bytes());
        out[36..40].copy_from_slice(&self.sum.to_le_bytes());
        let sum = bytes::checksum(&out[..40]);
        out[40..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8; BLOCK_HEAD_LEN]) -> Result<Self, Damage> {
        if bytes::checksum(&bytes[..40]) != bytes::u32_at(bytes, 40) {
            return Err(Damage::Checksum);
        }
        let (len, kind) = (bytes::u32_at(bytes, 4), [bytes[0], bytes[1], bytes[2], bytes[3]]);
        if len as usize > MOST_PAYLOAD {
            return Err(Damage::TooLong);
        }
        Ok(Self {
            kind,
            len,
            first_ns: bytes::u64_at(bytes, 8),
            last_ns: bytes::u64_at(bytes, 16),
            events: bytes::u32_at(bytes, 24),
            lost: bytes::u64_at(bytes, 28),
            sum: bytes::u32_at(bytes, 36),
        })
    }
}

/// The kinds of blocks.
pub const BLOCKS: [[u8; 4]; 3] = [FACTS, EVENTS, END];

/// Appends a block with this payload, and before it, where there is nothing yet, a head: what anybody can
/// write by hand, with the right checksums.
pub fn seal(out: &mut Vec<u8>, kind: [u8; 4], payload: &[u8]) {
    if out.is_empty() {
        out.extend_from_slice(&Head::here(0).to_bytes());
    }
    let len = payload.len() as u32;
    let sum = bytes::checksum(payload);
    out.extend_from_slice(
        &BlockHead { kind, len, sum, last_ns: u64::MAX, ..BlockHead::default() }.to_bytes(),
    );
    out.extend_from_slice(payload);
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// It does not begin as one.
    NoRecord,
    /// It has another version.
    Version(u16),
    /// A checksum is wrong.
    Checksum,
    /// A block is longer than any is.
    TooLong,
    /// What a block says makes no sense.
    Nonsense,
    /// It has more facts than there is room for.
    TooMuch,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRecord => f.write_str("it is no file of `probe record`"),
            Self::Version(version) => {
                write!(
                    f,
                    "it has version {version} of the format, and this `probe` knows {OLDEST} to {VERSION}"
                )
            }
            Self::Checksum => f.write_str("a checksum is wrong"),
            Self::TooLong => f.write_str("a block is longer than any that `probe record` writes"),
            Self::Nonsense => f.write_str("a block says what makes no sense"),
            Self::TooMuch => f.write_str("it names more places and threads than there is room for"),
        }
    }
}
