//! How frames are left, as hits keep it.

/// The most registers that a rule can restore.
pub(super) const MOST_SAVED: usize = 24;

/// How most frames are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// The caller's stack pointer is so far from this register, or what is stored there.
    pub(super) register: u16,
    pub(super) offset: i32,
    pub(super) is_indirect: bool,
    /// Whether this is the frame of a signal.
    pub(super) is_signal: bool,
    /// Whether nobody has called.
    pub(super) is_outermost: bool,
    /// For each of the machine's saved registers how many words from the caller's stack pointer it is stored;
    /// 0: it is as it was.
    pub(super) saved: [i16; MOST_SAVED],
}
