//! The functions that a program may call: those for maps, and the caller's.

/// Adds r2 to the counter r1; 0.
pub const COUNT: i32 = 0x7000_0001;
/// Counts r2, signed, in the histogram r1; 0.
pub const RECORD: i32 = 0x7000_0002;
/// Adds r4 to the sum of the key r2 (its low word) and r3 (its high word) in the hash r1; 0, or 1 where it
/// did not fit.
pub const COUNT_KEY: i32 = 0x7000_0003;
/// The address of value r2 of the array r1; 0 where there is none.
pub const VALUE: i32 = 0x7000_0004;
/// Counts r3, signed, for the key r2 in the hash r1: adds one to the sum of r2 (its low word) and r3's bucket
/// of [`Scale::Steps`](crate::map::Scale::Steps) (its high word); 0, or 1 where it did not fit.
pub const RECORD_KEY: i32 = 0x7000_0005;

/// The helpers of the engine itself: all others are the caller's. The numbers that the kernel uses are free.
pub const MAP_HELPERS: [i32; 5] = [COUNT, RECORD, COUNT_KEY, VALUE, RECORD_KEY];

/// The functions that a program may call beside [`MAP_HELPERS`]. They run in hits: no lock, no allocation, no
/// panic, and an end.
pub trait Helpers {
    /// Whether there is a helper of this number. Asked when a program is loaded.
    fn is_known(&self, number: i32) -> bool;
    /// Calls it with r1 to r5; returns the value of r0, or `None` to end the program.
    fn call(&self, number: i32, arguments: [u64; 5]) -> Option<u64>;
}

/// No helper but those for maps.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHelpers;

impl Helpers for NoHelpers {
    fn is_known(&self, _: i32) -> bool {
        false
    }
    fn call(&self, _: i32, _: [u64; 5]) -> Option<u64> {
        None
    }
}
