//! Random states with the edges that matter: pointers into each region, page ends, small counters.

use super::Native;
use super::arena::{Arena, PAGE};
use probe_core::CodeAddr;
use probe_core::arch::Regs as _;
use probe_x86_decode::{FlagBits, Mode, Registers};

/// A xorshift generator: the states are the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}

/// The flags that a process can set freely (not TF, which would trap, and not AC, which would fault
/// anywhere).
const FREE_FLAGS: u64 =
    FlagBits::CF | FlagBits::PF | FlagBits::AF | FlagBits::ZF | FlagBits::SF | FlagBits::DF | FlagBits::OF;

/// Where jumps may go: a part of the code region that holds breakpoints only.
fn jump_target(arena: &Arena, random: &mut Random) -> u64 {
    (arena.code() + random.below(0x700)) as u64
}

/// A number that is no address of anything in this process, wherever it is used: in 64-bit mode neither
/// canonical with 48 nor with 57 bits, in 32-bit mode between the heap and the libraries (also when it is
/// scaled by 4 or 8).
fn nowhere(random: &mut Random) -> u64 {
    if <Native as Registers>::Mode::IS_LONG {
        random.next() & !(1 << 63) | 1 << 62
    } else {
        random.next() & 0x00ff_ffff | 0x1000_0000
    }
}

fn number(arena: &Arena, pointers: Pointers, random: &mut Random) -> u64 {
    let data = arena.data() as u64;
    match random.below(12) {
        0..=4 => data + 0x800 + (random.below(0x800) & !7) as u64,
        5 => data + random.below(Arena::LEN) as u64,
        6 => data + (Arena::LEN - random.below(16)) as u64,
        7 if pointers == Pointers::AlsoToCode => jump_target(arena, random),
        7 => data + 0x800,
        8 => random.below(5) as u64,
        9 => (random.below(5) as u64) << 32 | random.below(3) as u64,
        _ => nowhere(random),
    }
}

/// What registers may point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointers {
    /// Data and the stack: an instruction must not read the text, which has a breakpoint in it when probed.
    ToData,
    /// Also code, for branches.
    AlsoToCode,
}

/// Registers for a run at `place`.
pub(crate) fn registers(arena: &Arena, place: usize, pointers: Pointers, random: &mut Random) -> Native {
    const CX: u8 = 1;
    const SP: u8 = 4;
    let mut regs = Native::default();
    for register in 0..16 {
        regs.set_general(register, number(arena, pointers, random));
    }
    if random.below(2) == 0 {
        regs.set_general(CX, random.below(4) as u64);
    }
    let middle = arena.stack() + PAGE + 8 * random.below(64);
    let stack = match random.below(16) {
        0 => arena.stack() + random.below(12),
        1 => arena.stack() + Arena::LEN - random.below(12),
        2 => middle + random.below(8),
        _ => middle,
    };
    regs.set_general(SP, stack as u64);
    regs.set_flags(FlagBits::IF | 2 | random.next() & FREE_FLAGS);
    regs.set_pc(CodeAddr::new(place));
    regs
}

/// What data and stack are filled with: jump targets, flag images and noise.
pub(crate) struct Pattern(Vec<u8>);

impl Pattern {
    pub(crate) fn new(arena: &Arena, random: &mut Random) -> Self {
        let word = <<Native as Registers>::Mode as Mode>::WORD;
        let words = (0..8 * Arena::LEN / word).flat_map(|_| {
            // No trap flag, no alignment check in what POPF may find.
            let noise = nowhere(random) & !(FlagBits::TF | FlagBits::AC);
            let value = if random.below(4) == 0 { noise } else { jump_target(arena, random) & !FlagBits::TF };
            value.to_le_bytes().into_iter().take(word)
        });
        Self(words.collect())
    }

    /// Fills data and stack, differently for each seed.
    pub(crate) fn fill(&self, arena: &Arena, seed: u64) {
        let mut random = Random::new(seed);
        for region in [arena.data(), arena.stack()] {
            let from = 8 * random.below((self.0.len() - Arena::LEN) / 8);
            arena.bytes(region).copy_from_slice(&self.0[from..from + Arena::LEN]);
        }
    }
}
