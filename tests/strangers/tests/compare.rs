//! A probed run beside the bare one.

use crate::mode::Mode;
use crate::program::Program;
use crate::run::{End, Seen};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// What came of a program in a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// As bare.
    Ok,
    /// It differs where a document says so.
    Documented,
    /// It differs.
    Differs,
    /// It did not end.
    Hang,
    /// `probe` did not run it.
    Refused,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Documented => "said",
            Self::Differs => "DIFFERS",
            Self::Hang => "HANG",
            Self::Refused => "REFUSED",
        })
    }
}

/// What differs, by its kind.
#[derive(Debug, Default)]
struct Differences(Vec<(&'static str, String)>);

impl Differences {
    fn add(&mut self, kind: &'static str, said: impl Into<String>) {
        self.0.push((kind, said.into()));
    }
}

/// What a comparison has come to.
#[derive(Debug)]
pub(crate) struct Compared {
    pub(crate) verdict: Verdict,
    /// What differs and no document says, in words.
    pub(crate) said: String,
    /// All that differs.
    pub(crate) kinds: Vec<&'static str>,
}

/// Compares, and says what differs.
pub(crate) fn compare(program: &Program, mode: &Mode, bare: &Seen, seen: &Seen) -> Compared {
    let mut found = Differences::default();
    let report = Report::read(&seen.report);
    if seen.end == End::Hang && bare.end != End::Hang {
        found.add("hang", format!("it has no end; it had printed\n{}", shown(&seen.stdout)));
    } else {
        if seen.end != bare.end {
            found.add("status", format!("bare {}, probed {}", bare.end, seen.end));
        }
        match &report {
            Err(wrong) => found.add("refused", format!("{wrong}\n{}", shown(&seen.stderr))),
            Ok(_) if !program.has_counts => {}
            Ok(report) => report.check(program, mode, &bare.stdout, &mut found),
        }
    }
    bytes(&mut found, "stdout", &bare.stdout, &seen.stdout);
    bytes(&mut found, "stderr", &bare.stderr, &seen.stderr);
    if seen.left != bare.left {
        found.add("left", format!("{} processes were left; bare {}", seen.left, bare.left));
    }
    let (known, new): (Vec<_>, Vec<_>) =
        found.0.iter().partition(|(kind, _)| program.is_documented(mode, kind));
    let has = |kind| new.iter().any(|difference| difference.0 == kind);
    let verdict = match () {
        () if has("hang") => Verdict::Hang,
        () if has("refused") => Verdict::Refused,
        () if !new.is_empty() => Verdict::Differs,
        () if !known.is_empty() => Verdict::Documented,
        () => Verdict::Ok,
    };
    let mut said = String::new();
    for (kind, difference) in new {
        let _ = writeln!(said, "  {kind}: {}", difference.trim_end().replace('\n', "\n    "));
    }
    Compared { verdict, said, kinds: found.0.iter().map(|(kind, _)| *kind).collect() }
}

/// The first lines that differ.
fn bytes(found: &mut Differences, kind: &'static str, bare: &[u8], probed: &[u8]) {
    if bare == probed {
        return;
    }
    let lines = |bytes: &[u8]| bytes.split(|&byte| byte == b'\n').map(escaped).collect::<Vec<_>>();
    let (bare, probed) = (lines(bare), lines(probed));
    let same = bare.iter().zip(&probed).take_while(|(a, b)| a == b).count();
    let mut said = format!("from line {} on", same + 1);
    for (mark, lines) in [('-', &bare), ('+', &probed)] {
        for line in lines.iter().skip(same).take(6) {
            let _ = write!(said, "\n{mark} {line:.300}");
        }
    }
    found.add(kind, said);
}

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn shown(bytes: &[u8]) -> String {
    let lines = bytes.split(|&byte| byte == b'\n').take(12).map(escaped);
    lines.collect::<Vec<_>>().join("\n")
}

/// The object, symbol and offset of a place.
type Place = (String, String, u64);

/// What one place counted.
#[derive(Debug, Default)]
struct Row {
    hits: u64,
    nested: u64,
    no_room: u64,
    abandoned: u64,
    dropped: u64,
    events: u64,
}

/// What `probe` wrote.
#[derive(Debug, Default)]
struct Report {
    rows: BTreeMap<Place, Row>,
    lost: u64,
    has_events: bool,
    refused: Vec<String>,
}

impl Report {
    /// # Errors
    /// It has no end.
    fn read(text: &str) -> Result<Self, String> {
        let mut report = Self::default();
        let mut has_end = false;
        for line in text.lines() {
            let object: Value =
                serde_json::from_str(line).map_err(|error| format!("the report: {error}: {line:.200}"))?;
            match object["type"].as_str() {
                // A call that was left is no hit of its return.
                Some("event") if object["left_ns"].is_null() => {
                    report.has_events = true;
                    report.row(&object).events += 1;
                }
                Some("summary") => {
                    has_end = true;
                    report.summary(&object);
                }
                _ => {}
            }
        }
        if has_end { Ok(report) } else { Err("the report has no summary; standard error:".to_owned()) }
    }

    fn row(&mut self, object: &Value) -> &mut Row {
        let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
        let symbol = text("symbol");
        let (symbol, offset) = match object["offset"].as_u64() {
            Some(offset) => (symbol, offset),
            None => match symbol.split_once("+0x") {
                Some((symbol, offset)) => {
                    (symbol.to_owned(), u64::from_str_radix(offset, 16).unwrap_or_default())
                }
                None => (symbol, 0),
            },
        };
        self.rows.entry((text("object"), symbol, offset)).or_default()
    }

    fn summary(&mut self, object: &Value) {
        self.lost = object["lost_events"].as_u64().unwrap_or(u64::MAX);
        for probe in object["probes"].as_array().into_iter().flatten() {
            let count = |name: &str| probe[name].as_u64().unwrap_or(u64::MAX);
            let row = self.row(probe);
            row.hits += count("hits");
            row.nested += count("missed_nested");
            row.no_room += count("missed_pool");
            row.abandoned += count("abandoned");
            row.dropped += count("dropped_events");
        }
        let reasons = object["refused"].as_object().into_iter().flat_map(|by| by.values());
        let symbols = reasons.filter_map(Value::as_object).flat_map(|by| by.values());
        let symbols = symbols.filter_map(Value::as_array).flatten();
        self.refused.extend(symbols.filter_map(Value::as_str).map(str::to_owned));
    }

    /// Holds the counts against each other, and against what the program says of its own calls.
    fn check(&self, program: &Program, mode: &Mode, bare: &[u8], found: &mut Differences) {
        let mut lines = Vec::new();
        for ((_, symbol, _), row) in &self.rows {
            let Row { hits, nested, no_room, dropped, events, .. } = *row;
            // Which places lost events have had is not known.
            let is_whole = !program.has_events || self.lost != 0 || hits == events + dropped;
            let missed = if program.has_misses { 0 } else { no_room };
            if !is_whole || nested + missed + dropped != 0 {
                lines.push(format!(
                    "{symbol}: {hits} hits, {events} events, {dropped} dropped, {nested} nested, {no_room} without room"
                ));
            }
        }
        if self.lost != 0 {
            let missing = |row: &Row| row.hits.saturating_sub(row.events + row.dropped);
            let missing: u64 = self.rows.values().map(missing).sum();
            lines.push(format!("{} events are lost, {missing} are missing", self.lost));
        }
        if program.has_events && !self.has_events && self.rows.values().any(|row| row.hits != 0) {
            lines.push("there are hits and no events".to_owned());
        }
        if !lines.is_empty() {
            let more = lines.len().saturating_sub(8);
            lines.truncate(8);
            found.add("counts", format!("{}\n(and {more} more)", lines.join("\n")));
        }
        for line in String::from_utf8_lossy(bare).lines() {
            let mut words = line.split_whitespace();
            if words.next() == Some("calls") {
                let (Some(object), Some(symbol), Some(Ok(calls))) =
                    (words.next(), words.next(), words.next().map(str::parse::<u64>))
                else {
                    found.add("calls", format!("`{line}` is not `calls OBJECT SYMBOL NUMBER`"));
                    continue;
                };
                self.check_calls(mode, program, (object, symbol, calls), found);
            }
        }
    }

    /// One line `calls OBJECT SYMBOL NUMBER` of a program; the object `.` is the program itself.
    fn check_calls(
        &self,
        mode: &Mode,
        program: &Program,
        (object, symbol, calls): (&str, &str, u64),
        found: &mut Differences,
    ) {
        let object = if object == "." { &program.name } else { object };
        if object != mode.object(&program.name) {
            return;
        }
        match self.rows.get(&(object.to_owned(), symbol.to_owned(), 0)) {
            Some(row)
                if row.hits
                    + row.abandoned * u64::from(mode.kind == 'r')
                    + row.no_room * u64::from(program.has_misses)
                    == calls => {}
            Some(row) => found.add(
                "calls",
                format!("{symbol} was called {calls} times; {} hits, {} abandoned", row.hits, row.abandoned),
            ),
            None if self.refused.iter().any(|refused| refused == symbol) => {}
            None => found.add("calls", format!("{symbol} has no probe and is not said to be refused")),
        }
    }
}
