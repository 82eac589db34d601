//! The end of a record: what was counted, and what was lost.

use super::bytes::{From, put, put_bytes};
use crate::wire::{BUCKETS, Histogram};

/// What is known at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// One for each place, over all programs, in the order of the probes.
    pub rows: Vec<Row>,
    /// Functions that match a pattern and were refused.
    pub refused: Vec<Refused>,
    /// Programs that were executed and not traced.
    pub not_followed: Vec<NotFollowed>,
    /// The definitions that were planted nowhere.
    pub never_planted: Vec<String>,
    /// Which threads have lost events.
    pub lost_by: Vec<Loss>,
    /// Events that found no buffer at all.
    pub lost: u64,
    /// Records that no agent has written.
    pub garbled: u64,
    /// How long the program ran, in nanoseconds.
    pub ran_ns: u64,
    /// How it ended.
    pub ended: String,
    /// The program.
    pub program: String,
}

/// What was counted at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// What its events are called.
    pub name: String,
    /// The object's file name.
    pub object: String,
    /// The symbol with its offset.
    pub symbol: String,
    /// Whether the definition named a pattern.
    pub from_pattern: bool,
    /// Hits, nested ones, calls without room, calls that did not return, dropped events.
    pub counts: [u64; 5],
    /// Hits that passed the condition, and those for which it could not be told; where there is one.
    pub judged: Option<(u64, u64)>,
    /// How long calls took, for a return probe.
    pub times: Option<Times>,
}

/// Durations, in a [`Histogram`]'s buckets.
pub type Times = Histogram;

/// A function that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The definition.
    pub definition: String,
    /// Why.
    pub reason: String,
    /// Which.
    pub symbol: String,
}

/// A program that was executed and not traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFollowed {
    /// Its file.
    pub program: String,
    /// Why not.
    pub reason: String,
    /// How often.
    pub times: u64,
}

/// A thread that has lost events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Its name, NUL padded.
    pub comm: [u8; 16],
    /// How many.
    pub events: u64,
}

/// The kind of the last item.
const TOTALS: u64 = 0;

impl End {
    /// All items, each a piece of bytes of its own; the last one says that it is the last.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let piece = |kind: u64, body: &[u8]| {
            let mut out = Vec::with_capacity(body.len() + 8);
            put(&mut out, kind);
            put_bytes(&mut out, body);
            out
        };
        let rows = self.rows.iter().map(move |row| piece(1, &row.body()));
        let refused = self.refused.iter().map(move |Refused { definition, reason, symbol }| {
            let mut body = Vec::new();
            [definition, reason, symbol].into_iter().for_each(|text| put_bytes(&mut body, text.as_bytes()));
            piece(2, &body)
        });
        let never = self.never_planted.iter().map(move |text| piece(3, text.as_bytes()));
        let lost_by = self.lost_by.iter().map(move |loss| {
            let mut body = Vec::new();
            [loss.pid.into(), loss.tid.into(), loss.events].into_iter().for_each(|n| put(&mut body, n));
            body.extend_from_slice(&loss.comm);
            piece(4, &body)
        });
        let not_followed = self.not_followed.iter().map(move |NotFollowed { program, reason, times }| {
            let mut body = Vec::new();
            [program, reason].into_iter().for_each(|text| put_bytes(&mut body, text.as_bytes()));
            put(&mut body, *times);
            piece(5, &body)
        });
        let totals = std::iter::once_with(move || {
            let mut body = Vec::new();
            [self.lost, self.garbled, self.ran_ns].into_iter().for_each(|n| put(&mut body, n));
            [&self.ended, &self.program].into_iter().for_each(|text| put_bytes(&mut body, text.as_bytes()));
            piece(TOTALS, &body)
        });
        rows.chain(refused).chain(never).chain(lost_by).chain(not_followed).chain(totals)
    }

    /// Adds the next item; `true` for the last one.
    pub(super) fn read(&mut self, all: &mut From<'_>) -> Option<bool> {
        let (kind, body) = (all.number()?, all.bytes()?);
        let from = &mut From(body);
        match kind {
            TOTALS => {
                (self.lost, self.garbled, self.ran_ns) = (from.number()?, from.number()?, from.number()?);
                (self.ended, self.program) = (from.text()?, from.text()?);
            }
            1 => self.rows.push(Row::read(from)?),
            2 => {
                let (definition, reason, symbol) = (from.text()?, from.text()?, from.text()?);
                self.refused.push(Refused { definition, reason, symbol });
            }
            3 => self.never_planted.push(String::from_utf8_lossy(body).into_owned()),
            4 => {
                let (pid, tid, events) = (from.number32()?, from.number32()?, from.number()?);
                self.lost_by.push(Loss { pid, tid, events, comm: from.0.try_into().ok()? });
            }
            5 => {
                let (program, reason, times) = (from.text()?, from.text()?, from.number()?);
                self.not_followed.push(NotFollowed { program, reason, times });
            }
            _ => {}
        }
        Some(kind == TOTALS)
    }
}

impl Row {
    fn body(&self) -> Vec<u8> {
        let mut out = Vec::new();
        [&self.name, &self.object, &self.symbol].iter().for_each(|text| put_bytes(&mut out, text.as_bytes()));
        let flags = [self.from_pattern, self.judged.is_some(), self.times.is_some()];
        put(&mut out, flags.iter().rev().fold(0, |flags, flag| flags << 1 | u64::from(*flag)));
        self.counts.iter().for_each(|count| put(&mut out, *count));
        if let Some((passed, unjudged)) = self.judged {
            put(&mut out, passed);
            put(&mut out, unjudged);
        }
        if let Some(times) = &self.times {
            [times.count, times.sum_ns, times.min_ns, times.max_ns].iter().for_each(|n| put(&mut out, *n));
            let used = || times.buckets.iter().enumerate().filter(|(_, n)| **n != 0);
            put(&mut out, used().count() as u64);
            for (bucket, n) in used() {
                put(&mut out, bucket as u64);
                put(&mut out, *n);
            }
        }
        out
    }

    fn read(from: &mut From<'_>) -> Option<Self> {
        let (name, object, symbol) = (from.text()?, from.text()?, from.text()?);
        let flags = from.number()?;
        let mut counts = [0; 5];
        for count in &mut counts {
            *count = from.number()?;
        }
        let judged = if flags & 2 != 0 { Some((from.number()?, from.number()?)) } else { None };
        let times = if flags & 4 != 0 { Some(times(from)?) } else { None };
        Some(Self { name, object, symbol, from_pattern: flags & 1 != 0, counts, judged, times })
    }
}

fn times(from: &mut From<'_>) -> Option<Times> {
    let (count, sum_ns) = (from.number()?, from.number()?);
    let (min_ns, max_ns) = (from.number()?, from.number()?);
    let mut times = Times { count, sum_ns, min_ns, max_ns, ..Times::default() };
    for _ in 0..from.number().filter(|used| *used <= BUCKETS as u64)? {
        let (bucket, n) = (usize::try_from(from.number()?).ok()?, from.number()?);
        *times.buckets.get_mut(bucket)? = n;
    }
    Some(times)
}
