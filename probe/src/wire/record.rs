//! The records of a ring: events, and the facts that the command needs to understand them.

/// The word before a value: its length in bytes, or one of the flags.
const LEN_MASK: u32 = 0x00ff_ffff;
/// The flag of a value that could not be read.
pub const FAULT: u32 = 1 << 31;
/// The flag of a string that was cut.
pub const TRUNCATED: u32 = 1 << 30;

/// The bit of a stack's frame whose address is the next instruction of its function, and not where a call
/// returns to.
pub const EXACT: u64 = probe_unwind::walk::EXACT;

/// The number of a process image: a program between two execs, with its forked children.
pub type Image = u32;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A hit or a return.
    Event = 1,
    /// A program has started.
    Started = 2,
    /// An object that is loaded in it.
    Object = 3,
    /// A planted point.
    Point = 4,
    /// A function that matched a pattern and was refused.
    Refused = 5,
    /// A definition that cannot be used; the program ends before its `main`.
    Failed = 6,
    /// Everything is planted; `main` comes next.
    Ready = 7,
    /// A program is executed that the agent cannot be loaded into.
    NotFollowed = 8,
    /// As [`Kind::Event`]: a call that no handler has seen return has been found.
    Left = 9,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A hit or a return.
    Event(Event<'a>),
    /// Anything else.
    Meta(Meta),
}

/// A hit or a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// CLOCK_MONOTONIC at the hit or the return, in nanoseconds.
    pub time_ns: u64,
    /// How long the call took, or was known of, if it was left; 0 for a hit.
    pub duration_ns: u64,
    /// Whether the call was left without a return: by an exception, longjmp, its thread's or process's end.
    pub is_left: bool,
    /// The image that the point belongs to.
    pub image: Image,
    /// The point's number in its image.
    pub point: u32,
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// The fetched values.
    pub values: Values<'a>,
}

/// The encoded values of an event, in the order of the definition's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values<'a>(pub &'a [u8]);

/// One value of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The bytes in native order; `None` where memory could not be read.
    pub bytes: Option<&'a [u8]>,
    /// Whether a string was cut.
    pub truncated: bool,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let (word, rest) = self.0.split_first_chunk::<4>()?;
        let word = u32::from_ne_bytes(*word);
        let (bytes, rest) = rest.split_at_checked((word & LEN_MASK) as usize)?;
        self.0 = rest;
        Some(Value { bytes: (word & FAULT == 0).then_some(bytes), truncated: word & TRUNCATED != 0 })
    }
}

/// A planted point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its number in its image.
    pub point: u32,
    /// The number of its definition, from 0.
    pub definition: u32,
    /// Its address.
    pub addr: u64,
    /// Its distance in bytes from the symbol.
    pub offset: u64,
    /// Where its counters are ([`Region::counters`](super::Region::counters)).
    pub counters: u32,
    /// Where its durations are; `u32::MAX` where it has none.
    pub durations: u32,
    /// The symbol's name; empty where no symbol covers it.
    pub symbol: String,
    /// The object's file name.
    pub object: String,
}

/// What the command must know to understand events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meta {
    /// A program has started.
    Started {
        /// Its number.
        image: Image,
        /// Its process.
        pid: u32,
        /// Its executable.
        program: String,
    },
    /// An object is loaded.
    Object {
        /// Where.
        image: Image,
        /// Its first address.
        start: u64,
        /// One past its last address.
        end: u64,
        /// What is added to an address in the file.
        bias: u64,
        /// Its file.
        path: String,
        /// Which file that was: device and number.
        file: (u64, u64),
        /// Its build id in hexadecimal digits; empty where it has none.
        build_id: String,
    },
    /// A point is planted.
    Point(Image, Point),
    /// A function that matched a pattern was refused.
    Refused {
        /// Where.
        image: Image,
        /// The number of the definition.
        definition: u32,
        /// The function.
        symbol: String,
        /// Why.
        reason: String,
    },
    /// A definition cannot be used.
    Failed {
        /// Where.
        image: Image,
        /// The number of the definition; `u32::MAX` where none is to blame.
        definition: u32,
        /// The bytes of the definition that are to blame.
        span: (u32, u32),
        /// One sentence.
        sentence: String,
    },
    /// Everything is planted.
    Ready(Image),
    /// A program is executed that the agent cannot be loaded into.
    NotFollowed {
        /// Where it is executed.
        image: Image,
        /// Its file.
        program: String,
        /// Why.
        reason: String,
    },
}

impl Meta {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder(Vec::with_capacity(128));
        match self {
            Self::Started { image, pid, program } => {
                out.head(Kind::Started, *image).u32(*pid).text(program);
            }
            Self::Object { image, start, end, bias, path, file, build_id } => {
                out.head(Kind::Object, *image).u64(*start).u64(*end).u64(*bias).text(path);
                out.u64(file.0).u64(file.1).text(build_id);
            }
            Self::Point(image, p) => {
                out.head(Kind::Point, *image).u32(p.point).u32(p.definition).u64(p.addr).u64(p.offset);
                out.u32(p.counters).u32(p.durations).text(&p.symbol).text(&p.object);
            }
            Self::Refused { image, definition, symbol, reason } => {
                out.head(Kind::Refused, *image).u32(*definition).text(symbol).text(reason);
            }
            Self::Failed { image, definition, span, sentence } => {
                out.head(Kind::Failed, *image).u32(*definition).u32(span.0).u32(span.1).text(sentence);
            }
            Self::Ready(image) => {
                out.head(Kind::Ready, *image);
            }
            Self::NotFollowed { image, program, reason } => {
                out.head(Kind::NotFollowed, *image).text(program).text(reason);
            }
        }
        out.0
    }
}

/// Reads a record; `None` for what no agent writes.
pub fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    let mut from = Decoder(bytes);
    let kind = from.u32()?;
    if kind == Kind::Event as u32 || kind == Kind::Left as u32 {
        return Some(Record::Event(Event {
            time_ns: from.u64()?,
            duration_ns: from.u64()?,
            is_left: kind == Kind::Left as u32,
            image: from.u32()?,
            point: from.u32()?,
            pid: from.u32()?,
            tid: from.u32()?,
            values: Values(from.0),
        }));
    }
    let image = from.u32()?;
    let meta = match kind {
        k if k == Kind::Started as u32 => Meta::Started { image, pid: from.u32()?, program: from.text()? },
        k if k == Kind::Object as u32 => Meta::Object {
            image,
            start: from.u64()?,
            end: from.u64()?,
            bias: from.u64()?,
            path: from.text()?,
            file: (from.u64()?, from.u64()?),
            build_id: from.text()?,
        },
        k if k == Kind::Point as u32 => Meta::Point(
            image,
            Point {
                point: from.u32()?,
                definition: from.u32()?,
                addr: from.u64()?,
                offset: from.u64()?,
                counters: from.u32()?,
                durations: from.u32()?,
                symbol: from.text()?,
                object: from.text()?,
            },
        ),
        k if k == Kind::Refused as u32 => {
            Meta::Refused { image, definition: from.u32()?, symbol: from.text()?, reason: from.text()? }
        }
        k if k == Kind::Failed as u32 => Meta::Failed {
            image,
            definition: from.u32()?,
            span: (from.u32()?, from.u32()?),
            sentence: from.text()?,
        },
        k if k == Kind::Ready as u32 => Meta::Ready(image),
        k if k == Kind::NotFollowed as u32 => {
            Meta::NotFollowed { image, program: from.text()?, reason: from.text()? }
        }
        _ => return None,
    };
    Some(Record::Meta(meta))
}

/// The bytes of an event before its values, with the ring's length word.
pub const EVENT_HEAD: usize = 4 + 4 + 8 + 8 + 4 * 4;

pub(super) struct Encoder(pub(super) Vec<u8>);

impl Encoder {
    fn head(&mut self, kind: Kind, image: Image) -> &mut Self {
        self.u32(kind as u32).u32(image)
    }

    pub(super) fn u32(&mut self, word: u32) -> &mut Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    fn u64(&mut self, word: u64) -> &mut Self {
        self.0.extend_from_slice(&word.to_ne_bytes());
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }
}

pub(super) struct Decoder<'a>(pub(super) &'a [u8]);

impl Decoder<'_> {
    pub(super) fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk::<4>()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    pub(super) fn text(&mut self) -> Option<String> {
        self.bytes().map(|text| String::from_utf8_lossy(&text).into_owned())
    }

    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = self.u32()? as usize;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Meta> {
        vec![
            Meta::Started { image: 1, pid: 2, program: "/bin/ls".into() },
            Meta::Object {
                image: 1,
                start: 0x1000,
                end: 0x2000,
                bias: 0x1000,
                path: "/lib/x.so".into(),
                file: (8, 9),
                build_id: "ab01".into(),
            },
            Meta::Point(
                3,
                Point {
                    point: 4,
                    definition: 5,
                    addr: 6,
                    offset: 7,
                    counters: 64,
                    durations: u32::MAX,
                    symbol: "malloc".into(),
                    object: String::new(),
                },
            ),
            Meta::Refused { image: 1, definition: 0, symbol: "f".into(), reason: "because".into() },
            Meta::Failed { image: 1, definition: 0, span: (2, 9), sentence: "no".into() },
            Meta::Ready(9),
            Meta::NotFollowed { image: 2, program: "/bin/busybox".into(), reason: "it is static".into() },
        ]
    }

    #[test]
    fn meta_records_survive_the_journey() {
        for meta in all() {
            assert_eq!(decode(&meta.encode()), Some(Record::Meta(meta)));
        }
    }

    #[test]
    fn a_record_cut_anywhere_is_refused_or_still_a_record() {
        for meta in all() {
            let bytes = meta.encode();
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), None, "{meta:?} cut to {len} bytes");
            }
        }
    }

    #[test]
    fn values_carry_faults_and_cuts() {
        let mut bytes = Vec::new();
        for (word, data) in [(3, &b"abc"[..]), (FAULT, b""), (TRUNCATED | 2, b"xy"), (0, b"")] {
            bytes.extend_from_slice(&u32::to_ne_bytes(word));
            bytes.extend_from_slice(data);
        }
        let values: Vec<Value<'_>> = Values(&bytes).collect();
        let value = |bytes, truncated| Value { bytes, truncated };
        assert_eq!(
            values,
            [
                value(Some(&b"abc"[..]), false),
                value(None, false),
                value(Some(b"xy"), true),
                value(Some(b""), false)
            ]
        );
        let [a, b, c, d] = u32::to_ne_bytes(9);
        assert_eq!(Values(&[a, b, c, d, 1]).next(), None, "a length beyond the end");
    }
}
