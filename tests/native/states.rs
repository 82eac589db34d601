//! What is executed, and from which states: rows of the vectors, numbers that their seed determines.

use super::machine::Run;
use crate::coverage::Way;
use probe_core::arch::Method;

/// A row of the vectors, or a word made from one.
pub(crate) struct Vector {
    pub(crate) word: u32,
    pub(crate) asm: &'static str,
    pub(crate) note: &'static str,
}

/// The rows of `tests/vectors/ARCH.txt` that may be probed: bytes of a little-endian architecture, or words.
pub(crate) fn vectors(text: &'static str) -> Vec<Vector> {
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>())
        .filter(|columns| !columns[2].starts_with("refuse"))
        .map(|columns| {
            let bytes = columns[0].split(' ').map(|byte| u32::from_str_radix(byte, 16).unwrap());
            let word = bytes.rev().fold(0, |word, byte| word << 8 | byte);
            Vector { word, asm: columns[1], note: columns[3] }
        })
        .collect()
}

/// xorshift64*: reproducible, no dependency.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Edges as often as anything.
    pub(crate) fn value(&mut self) -> u64 {
        const EDGES: [u64; 10] = [
            0,
            1,
            u64::MAX,
            1 << 63,
            0x7fff_ffff_ffff_ffff,
            0xffff_ffff,
            0x8000_0000,
            0xffff_ffff_0000_0000,
            0x7fff_ffff,
            0x0000_0001_0000_0000,
        ];
        if self.next() & 1 == 0 { EDGES[self.below(EDGES.len())] } else { self.next() >> self.below(64) }
    }
}

/// What the general registers hold.
#[derive(Clone, Copy)]
pub(crate) enum Values {
    /// Anything: loads fault, branches go astray.
    Anything,
    /// Addresses in the data.
    Data,
    /// Addresses of the arena's breakpoints, some misaligned.
    Code,
}

/// The runs that are compared with the bare one, and the ways that they are.
pub(crate) fn runs_of(method: Method) -> &'static [(Run, Way)] {
    match method {
        Method::Simulate => &[(Run::Probed, Way::Emulated)],
        Method::Boost => &[(Run::Probed, Way::Boosted), (Run::ProbedWithPost, Way::Stepped)],
        Method::Step => &[(Run::Probed, Way::Stepped), (Run::WithoutFrame, Way::Stepped)],
    }
}

/// How many encodings are generated, `otherwise` or `PROBE_GENERATE`, and from which seed
/// (`PROBE_GENERATE_SEED`).
pub(crate) fn to_generate(otherwise: u64) -> (u64, u64) {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    (number("PROBE_GENERATE", otherwise), number("PROBE_GENERATE_SEED", 1))
}
