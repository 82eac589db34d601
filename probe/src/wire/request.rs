//! What the command has an agent do that it has mapped into a running program: a structure on the stack on
//! which a stopped thread of the program runs the agent's entry.

/// What is to be done, in the thread that runs it.
pub mod what {
    /// Start, and plant everything. Answer: 1, or 0 where the command has been told why not.
    pub const START: u64 = 1;
    /// As START, in a program that a traced one has executed: one that does not have what the definitions
    /// want runs untraced.
    pub const FOLLOW: u64 = 9;
    /// Make the agent's what the program has blocked in this thread, which is [`super::Request::mask`].
    /// Answer: what the kernel is to block.
    pub const ADOPT: u64 = 2;
    /// Read what START needs that may be read while threads run. Answer: 1, or 0: START reads it.
    pub const PREPARE: u64 = 8;
    /// Take everything out of the text. Answer: 1, 0 where something could not be written, or 2:
    /// later, a thread is planting.
    pub const DISARM: u64 = 3;
    /// Say whether this thread is in a hit. Answer: 1 or 0.
    pub const IS_IN_HIT: u64 = 4;
    /// Say whether followed calls may still return. Answer: 1, 0, or 2 if nobody will ever know.
    pub const FOLLOWS: u64 = 7;
    /// Give this thread back what it had. Answer: what is to be blocked beside its mask.
    pub const LEAVE_THREAD: u64 = 5;
    /// Give the process back what it had. Answer: 1.
    pub const LEAVE: u64 = 6;
}

/// The structure.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// One of [`what`].
    pub what: u64,
    /// The answer.
    pub answer: u64,
    /// The thread's signal mask.
    pub mask: u64,
    /// The address of the program's `__errno_location`, or 0.
    pub errno_location: u64,
    /// Where that is 0: how far behind each thread pointer `errno` lies, or 0.
    pub errno_behind: i64,
    /// Where the agent keeps what it has mapped (`probe_host_linux::ledger`); written by PREPARE and START.
    pub ledger: u64,
    /// The path of the shared memory, NUL-terminated.
    pub region: [u8; PATH_LEN],
    /// That of the agent which a dynamic linker loads into programs that are executed; empty: into none.
    pub loaded: [u8; PATH_LEN],
}

/// The longest path that is told, with its NUL.
pub const PATH_LEN: usize = 64;

/// As a path is told; `None`: it is too long.
pub fn told(path: &str) -> Option<[u8; PATH_LEN]> {
    let mut told = [0; PATH_LEN];
    told[..PATH_LEN - 1].get_mut(..path.len())?.copy_from_slice(path.as_bytes());
    Some(told)
}

impl Request {
    /// As the bytes that go to the other process.
    pub fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let errno_behind = self.errno_behind.cast_unsigned();
        let words = [self.what, self.answer, self.mask, self.errno_location, errno_behind, self.ledger];
        let mut bytes = [0; size_of::<Self>()];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[48..48 + PATH_LEN].copy_from_slice(&self.region);
        bytes[48 + PATH_LEN..].copy_from_slice(&self.loaded);
        bytes
    }

    /// From the bytes that have come back.
    pub fn from_bytes(bytes: &[u8; size_of::<Self>()]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        Self {
            what: word(0),
            answer: word(1),
            mask: word(2),
            errno_location: word(3),
            errno_behind: word(4).cast_signed(),
            ledger: word(5),
            region: std::array::from_fn(|i| bytes[48 + i]),
            loaded: std::array::from_fn(|i| bytes[48 + PATH_LEN + i]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let [region, loaded] = ["/a", "/b"].map(|path| told(path).unwrap());
        let errno_behind = -5;
        let sent = Request {
            what: 1,
            answer: 2,
            mask: 3,
            errno_location: 4,
            errno_behind,
            ledger: 6,
            region,
            loaded,
        };
        let got = Request::from_bytes(&sent.to_bytes());
        assert_eq!(
            (got.what, got.answer, got.mask, got.errno_location, got.ledger, got.region, got.loaded),
            (1, 2, 3, 4, 6, region, loaded)
        );
        assert_eq!(got.errno_behind, -5);
        assert_eq!(told(&"x".repeat(PATH_LEN)), None);
    }
}
