//! What the command hands to the agents for each probe: its definition, and what decides about its hits.

use super::record::{Decoder, Encoder};
use crate::def::End;

/// The helper that gives the value r1 of a rule. A value that cannot be read ends the program.
pub const FETCH: i32 = 0x7100_0001;
/// The helper that says whether the text of the value r1 is, or matches, the pattern r2 (1 or 0).
pub const MATCH: i32 = 0x7100_0002;

/// The helper that adds r2 to the sum of the thread's name in the hash r1.
pub const COUNT_COMM: i32 = 0x7100_0003;
/// The helper that gives the number of the text of the value r2 in the texts r1; 0 where there is no room.
pub const NUMBER_TEXT: i32 = 0x7100_0004;
/// The most frames of a stack that hits are counted by: what a text keeps, less a word.
pub const COUNTED_STACK: usize = probe_bpf::map::MAX_TEXT / 8 - 1;
/// The most values in a rule's context.
pub const MOST_WORDS: usize = 8;

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its definition, as typed.
    pub definition: String,
    /// How many frames of the stack are wanted with each hit; 0: none.
    pub stack: u32,
    /// Which end of a time between two places it is.
    pub end: Option<End>,
    /// What decides about its hits, if anything does.
    pub rule: Option<Rule>,
}

/// What is run at each hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Instructions as they lie in memory: 0 where the hit does not count.
    pub program: Vec<u8>,
    /// What it may ask for.
    pub values: Vec<Value>,
    /// The indices of the values that lie in its context, a word each.
    pub words: Vec<u32>,
    /// Arguments beyond those of the definition.
    pub extras: Vec<String>,
    /// Texts to compare with.
    pub patterns: Vec<Pattern>,
    /// What it counts in.
    pub maps: Vec<MapPlan>,
}

/// A map in the statistics of the region: zero at first, and shared by all programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPlan {
    /// What it is.
    pub kind: MapKind,
    /// Where it is ([`Region::map`](super::Region::map)).
    pub offset: u32,
}

/// The kind of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// A sum.
    Sum,
    /// Counts of values by size.
    Histogram,
    /// Sums by key.
    Table,
    /// Counts of values by key and size.
    Histograms,
    /// Numbers for texts.
    Texts,
}

const KINDS: [MapKind; 5] =
    [MapKind::Sum, MapKind::Histogram, MapKind::Table, MapKind::Histograms, MapKind::Texts];

/// A value that a rule may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// An argument of the definition, by its index.
    Argument(u32),
    /// One of [`Rule::extras`].
    Extra(u32),
    /// The return value as C's `int` or `long`: a word that is negative as either is so.
    Result,
    /// How long the call took, in nanoseconds.
    Took,
    /// The process.
    Process,
    /// The thread.
    Thread,
    /// The processor.
    Processor,
    /// The thread's name.
    Comm,
    /// Where the call returns to, and in which program: a [`Site`].
    Caller,
}

/// An address and the image that it is one of, in a word: no program has more than 48 bits of addresses here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The address.
    pub addr: u64,
    /// The image, or its lower bits.
    pub image: u32,
}

impl Site {
    const ADDR_BITS: u32 = 48;

    /// In a word.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.addr & ((1 << Self::ADDR_BITS) - 1) | (self.image as u64) << Self::ADDR_BITS
    }

    /// From a word; of later images than 65535 the image's lower bits.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self { addr: word & ((1 << Self::ADDR_BITS) - 1), image: (word >> Self::ADDR_BITS) as u32 }
    }
}

/// A text to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Whether it is a shell-style pattern, or the text itself.
    pub is_glob: bool,
    /// Its bytes.
    pub text: Vec<u8>,
}

/// Values without an index, by their kind.
const PLAIN: [Value; 7] =
    [Value::Result, Value::Took, Value::Process, Value::Thread, Value::Processor, Value::Comm, Value::Caller];

impl Value {
    fn encoded(self) -> (u32, u32) {
        match self {
            Self::Argument(index) => (0, index),
            Self::Extra(index) => (1, index),
            plain => (2, PLAIN.iter().position(|known| *known == plain).unwrap_or(PLAIN.len()) as u32),
        }
    }

    fn decoded(kind: u32, index: u32) -> Option<Self> {
        match kind {
            0 => Some(Self::Argument(index)),
            1 => Some(Self::Extra(index)),
            2 => PLAIN.get(index as usize).copied(),
            _ => None,
        }
    }
}

/// Ends by number.
const ENDS: [Option<End>; 3] = [None, Some(End::From), Some(End::To)];

impl Plan {
    /// The bytes of all plans.
    #[must_use]
    pub fn encode_all(plans: &[Self]) -> Vec<u8> {
        let mut out = Encoder(Vec::new());
        out.u32(plans.len() as u32);
        for plan in plans {
            let end = ENDS.iter().position(|end| *end == plan.end).unwrap_or_default();
            out.text(&plan.definition).u32(plan.stack).u32(end as u32).u32(plan.rule.is_some().into());
            if let Some(rule) = &plan.rule {
                rule.encode(&mut out);
            }
        }
        out.0
    }

    /// Reads all plans; `None` for what no command writes.
    #[must_use]
    pub fn decode_all(bytes: &[u8]) -> Option<Vec<Self>> {
        let mut from = Decoder(bytes);
        let count = from.u32()?;
        let plan = |from: &mut Decoder<'_>| {
            let (definition, stack) = (from.text()?, from.u32()?);
            let end = *ENDS.get(from.u32()? as usize)?;
            let rule = if from.u32()? != 0 { Some(Rule::decode(from)?) } else { None };
            Some(Self { definition, stack, end, rule })
        };
        (0..count).map(|_| plan(&mut from)).collect()
    }
}

impl Rule {
    fn encode(&self, out: &mut Encoder) {
        out.bytes(&self.program).u32(self.values.len() as u32);
        for value in &self.values {
            let (kind, index) = value.encoded();
            out.u32(kind).u32(index);
        }
        out.u32(self.words.len() as u32);
        for word in &self.words {
            out.u32(*word);
        }
        out.u32(self.extras.len() as u32);
        for extra in &self.extras {
            out.text(extra);
        }
        out.u32(self.patterns.len() as u32);
        for pattern in &self.patterns {
            out.u32(pattern.is_glob.into()).bytes(&pattern.text);
        }
        out.u32(self.maps.len() as u32);
        for map in &self.maps {
            out.u32(map.kind as u32).u32(map.offset);
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Option<Self> {
        /// All items of a list: each takes bytes, so that a false count ends early.
        fn all<T>(from: &mut Decoder<'_>, one: impl Fn(&mut Decoder<'_>) -> Option<T>) -> Option<Vec<T>> {
            (0..from.u32()?).map(|_| one(from)).collect()
        }
        Some(Self {
            program: from.bytes()?,
            values: all(from, |from| Value::decoded(from.u32()?, from.u32()?))?,
            words: all(from, |from| from.u32())?,
            extras: all(from, |from| from.text())?,
            patterns: all(from, |from| Some(Pattern { is_glob: from.u32()? != 0, text: from.bytes()? }))?,
            maps: all(from, |from| {
                Some(MapPlan { kind: *KINDS.get(from.u32()? as usize)?, offset: from.u32()? })
            })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_survive_the_journey_and_nothing_shorter_does() {
        let rule = Rule {
            program: vec![1; 16],
            values: [Value::Argument(3), Value::Extra(1)].into_iter().chain(PLAIN).collect(),
            words: vec![0, 7],
            extras: vec!["$arg1:u32".into()],
            patterns: vec![Pattern { is_glob: true, text: b"/etc/\xff*".to_vec() }],
            maps: KINDS.iter().map(|&kind| MapPlan { kind, offset: 128 }).collect(),
        };
        let plans = [
            Plan { definition: "p f".into(), stack: 16, end: Some(End::To), rule: None },
            Plan { definition: "r g".into(), stack: 0, end: None, rule: Some(rule) },
        ];
        let bytes = Plan::encode_all(&plans);
        assert_eq!(Plan::decode_all(&bytes).as_deref(), Some(&plans[..]));
        for len in 0..bytes.len() {
            assert_eq!(Plan::decode_all(&bytes[..len]), None, "{len} bytes");
        }
    }
}
