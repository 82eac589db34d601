//! The summary at the end: hits, misses by cause, durations.

use super::answers::Answer;
use super::foreign::Foreign;
use super::losses::Loss;
use super::query::Query;
use super::style::{Role, Style, bar, time};
use crate::wire::{BUCKETS, Counts, Histogram, bucket_bounds};
use std::collections::BTreeMap;
use std::fmt::Write;

/// One line of the summary: a place, over all processes in which it was planted.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// The event's name.
    pub(super) name: Foreign<String>,
    /// The object's file name.
    pub(super) object: Foreign<String>,
    /// The symbol, with its offset.
    pub(super) symbol: Foreign<String>,
    /// Whether the definition named a pattern.
    pub(super) from_pattern: bool,
    /// Whether its hits are counted for answers, which then stand in its histogram's place.
    pub(super) is_counted: bool,
    /// Hits whose handler ran.
    pub(super) hits: u64,
    /// Hits inside another probe's handler.
    pub(super) missed_nested: u64,
    /// Calls without a free return instance.
    pub(super) missed_pool: u64,
    /// Followed calls that did not return.
    pub(super) abandoned: u64,
    /// Events that found no room in a ring.
    pub(super) dropped: u64,
    /// Hits for which the condition held, and those for which it could not be told; where there is one.
    pub(super) judged: Option<Judged>,
    /// Durations of those, for a return probe.
    pub(super) durations: Option<Histogram>,
}

/// What a condition has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// Hits for which it held.
    pub(super) passed: u64,
    /// Hits for which it could not be told.
    pub(super) unjudged: u64,
}

/// For each definition's text and each reason: the functions that were refused.
pub(super) type Refused = BTreeMap<Foreign<String>, BTreeMap<Foreign<String>, Vec<Foreign<String>>>>;

/// A program that a traced one has executed, and that was not traced.
#[derive(Clone, Debug)]
pub(super) struct NotFollowed {
    /// Its file.
    pub(super) program: Foreign<String>,
    /// Why not.
    pub(super) reason: Foreign<String>,
    /// How often it was executed.
    pub(super) times: u64,
}

/// Everything that is known at the end.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    /// One per place, in the order of the definitions.
    pub(super) rows: Vec<Row>,
    /// For each definition's text: why functions that match its pattern were refused, and which.
    pub(super) refused: Refused,
    /// Programs that were executed and not traced.
    pub(super) not_followed: Vec<NotFollowed>,
    /// What was counted in hits.
    pub(super) answers: Vec<Answer>,
    /// Definitions that were planted nowhere (only with `-f`).
    pub(super) never_planted: Vec<Foreign<String>>,
    /// Events that found no ring at all.
    pub(super) lost: u64,
    /// Which threads have dropped events.
    pub(super) lost_by: Vec<Loss>,
    /// Records in the buffers that no agent has written: the program writes there.
    pub(super) garbled: u64,
    /// How long the program ran, in nanoseconds.
    pub(super) ran_ns: u64,
    /// How it ended.
    pub(super) ended: String,
    /// The program.
    pub(super) program: Foreign<String>,
}

impl Summary {
    /// The number of hits that were counted but have no event: the one figure that says whether all events
    /// are there.
    pub(super) fn all_lost(&self) -> u64 {
        sum(self.rows.iter().map(|row| row.dropped)).saturating_add(self.lost)
    }
}

impl Row {
    /// The row of a definition's place, without counts.
    pub(super) fn new(name: &str, query: &Query, object: &str, symbol: &str) -> Self {
        let definition = &query.definition;
        Self {
            name: Foreign::new(name.to_owned()),
            object: Foreign::new(object.to_owned()),
            symbol: Foreign::new(symbol.to_owned()),
            from_pattern: matches!(definition.place, crate::def::Place::Glob(_)),
            is_counted: !query.maps.is_empty(),
            judged: query.is_judged.then(Judged::default),
            durations: definition.is_timed().then(Histogram::default),
            ..Self::default()
        }
    }

    /// Adds what one process image counted.
    pub(super) fn add(&mut self, counts: &Counts) {
        let add = |to: &mut u64, count: u64| *to = to.saturating_add(count);
        add(&mut self.hits, counts.hits);
        add(&mut self.missed_nested, counts.missed_nested);
        add(&mut self.missed_pool, counts.missed_pool);
        add(&mut self.abandoned, counts.abandoned);
        add(&mut self.dropped, counts.dropped);
        if let Some(judged) = &mut self.judged {
            add(&mut judged.passed, counts.passed);
            add(&mut judged.unjudged, counts.unjudged);
        }
    }

    fn is_silent(&self) -> bool {
        [self.hits, self.missed_nested, self.missed_pool, self.abandoned, self.dropped] == [0; 5]
    }
}

/// The sum of what programs have counted.
fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// The summary as text.
pub(super) fn text(summary: &Summary, style: Style, top: usize) -> String {
    let mut out = String::new();
    let hits = sum(summary.rows.iter().map(|row| row.hits));
    let _ = writeln!(
        out,
        "\n{} at {} in {}; {} {}",
        style.paint(Role::Head, count(hits, "hit")),
        count(summary.rows.len() as u64, "place"),
        time(summary.ran_ns),
        summary.program.shown(),
        summary.ended,
    );
    table(&mut out, summary, style);
    for row in &summary.rows {
        if let Some(durations) = row
            .durations
            .as_ref()
            .filter(|durations| durations.count > 1 && !row.from_pattern && !row.is_counted)
        {
            let _ = writeln!(out, "\n{}", style.paint(Role::Head, format!("{} took", row.name.shown())));
            histogram(&mut out, durations);
        }
    }
    summary.answers.iter().for_each(|answer| answer.text(&mut out, style, top, None));
    remarks(&mut out, summary, style);
    out
}

/// `1 hit`, `2 hits`.
fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// The table: one line per place.
fn table(out: &mut String, summary: &Summary, style: Style) {
    let shown: Vec<&Row> = summary.rows.iter().filter(|row| !(row.from_pattern && row.is_silent())).collect();
    let timed = shown.iter().any(|row| row.durations.is_some());
    let judged = shown.iter().any(|row| row.judged.is_some());
    let mut head = vec!["EVENT", "HITS"];
    head.extend(judged.then_some("PASSED"));
    let bad = head.len()..head.len() + 4;
    head.extend(["NESTED", "NO ROOM", "ABANDONED", "DROPPED"]);
    if timed {
        head.extend(["MIN", "MEDIAN", "P99", "MAX"]);
    }
    let mut lines: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
    for row in &shown {
        let mut line = vec![row.name.shown().to_string(), row.hits.to_string()];
        if judged {
            line.push(row.judged.map(|judged| judged.passed.to_string()).unwrap_or_default());
        }
        let counts = [row.missed_nested, row.missed_pool, row.abandoned, row.dropped];
        line.extend(counts.iter().map(u64::to_string));
        if timed {
            line.extend(times(row.durations.as_ref()));
        }
        lines.push(line);
    }
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    for (number, line) in lines.iter().enumerate() {
        let mut shown_line = String::new();
        for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            if column == 0 {
                let role = if number == 0 { Role::Head } else { Role::Name };
                let _ = write!(shown_line, "{}", style.paint(role, format!("{cell:<width$}")));
            } else if number > 0 && bad.contains(&column) && cell != "0" {
                let _ = write!(shown_line, "  {}", style.paint(Role::Bad, format!("{cell:>width$}")));
            } else {
                let _ = write!(shown_line, "  {cell:>width$}");
            }
        }
        let _ = writeln!(out, "{}", shown_line.trim_end());
    }
    let silent = summary.rows.len() - shown.len();
    if silent > 0 {
        let _ = writeln!(
            out,
            "{}",
            style.paint(Role::Dim, format!("… and {} never called", count(silent as u64, "place")))
        );
    }
}

/// Minimum, median, p99 and maximum, or nothing.
fn times(durations: Option<&Histogram>) -> [String; 4] {
    match durations.filter(|durations| durations.count > 0) {
        None => Default::default(),
        Some(durations) => [
            time(durations.min_ns),
            durations.quantile(0.5).map(time).unwrap_or_default(),
            durations.quantile(0.99).map(time).unwrap_or_default(),
            time(durations.max_ns),
        ],
    }
}

/// A small histogram: one line per power of two.
fn histogram(out: &mut String, durations: &Histogram) {
    let mut octaves: BTreeMap<u32, u64> = BTreeMap::new();
    for bucket in 0..BUCKETS {
        if durations.buckets[bucket] != 0 {
            let (from, _) = bucket_bounds(bucket);
            *octaves.entry(from.max(1).ilog2()).or_default() += durations.buckets[bucket];
        }
    }
    let (Some(first), Some(last)) = (octaves.keys().next().copied(), octaves.keys().last().copied()) else {
        return;
    };
    let most = octaves.values().copied().max().unwrap_or(1);
    let digits = most.to_string().len();
    for octave in first..=last {
        let n = octaves.get(&octave).copied().unwrap_or(0);
        let bar = bar(n, most);
        let from = time(1 << octave);
        let _ = writeln!(out, "{}", format!("  {from:>8}  {n:>digits$}  {bar}").trim_end());
    }
}

/// `name-pid/tid`.
fn task(loss: &Loss) -> String {
    let name = Foreign::new(loss.comm.split(|&byte| byte == 0).next().unwrap_or_default());
    let name = name.shown();
    if loss.tid == loss.pid {
        format!("{name}-{}", loss.pid)
    } else {
        format!("{name}-{}/{}", loss.pid, loss.tid)
    }
}

/// Hits whose condition could not be told.
fn unjudged(out: &mut String, summary: &Summary, style: Style) {
    for row in &summary.rows {
        let unjudged = row.judged.map_or(0, |judged| judged.unjudged);
        if unjudged > 0 {
            let hint = "something that its condition needs could not be read";
            let unjudged = count(unjudged, "hit");
            let sentence = format!("{unjudged} of {} did not pass: {hint}", row.name.shown());
            let _ = writeln!(out, "{}", style.paint(Role::Bad, sentence));
        }
    }
}

/// What else must not stay unsaid.
fn remarks(out: &mut String, summary: &Summary, style: Style) {
    for (definition, reasons) in &summary.refused {
        let all: usize = reasons.values().map(Vec::len).sum();
        let _ = writeln!(
            out,
            "\n{} for `{}`:",
            style.paint(Role::Bad, format!("{} refused", count(all as u64, "function"))),
            definition.shown()
        );
        for (reason, symbols) in reasons {
            let some: Vec<String> = symbols.iter().take(4).map(|symbol| symbol.shown().to_string()).collect();
            let more = if symbols.len() > some.len() { ", …" } else { "" };
            let _ = writeln!(out, "  {:>5}  {}: {}{more}", symbols.len(), reason.shown(), some.join(", "));
        }
    }
    for definition in &summary.never_planted {
        let is_refused = summary.refused.contains_key(definition);
        let why = if is_refused { "all that it means was refused" } else { "its object was never loaded" };
        let _ = writeln!(
            out,
            "{}",
            style.paint(Role::Bad, format!("`{}` was planted nowhere: {why}", definition.shown()))
        );
    }
    for NotFollowed { program, reason, times } in &summary.not_followed {
        let times = if *times == 1 { String::new() } else { format!(" ({times} times)") };
        let sentence = format!("`{}` was not followed{times}: {}", program.shown(), reason.shown());
        let _ = writeln!(out, "{}", style.paint(Role::Bad, sentence));
    }
    unjudged(out, summary, style);
    let dropped = sum(summary.rows.iter().map(|row| row.dropped));
    if dropped > 0 {
        let hint = "the buffer of a thread was full (see --buffer, and --on-full wait); hits and durations above are complete";
        let _ = writeln!(
            out,
            "{}",
            style.paint(Role::Bad, format!("{} dropped: {hint}", count(dropped, "event")))
        );
        for loss in summary.lost_by.iter().take(4) {
            let _ = writeln!(out, "  {:>9}  {}", loss.events, task(loss));
        }
        if summary.lost_by.len() > 4 {
            let _ = writeln!(out, "  … and {} more", count(summary.lost_by.len() as u64 - 4, "thread"));
        }
    }
    if summary.lost > 0 {
        let hint = "more threads than buffers; hits and durations above are complete";
        let _ = writeln!(
            out,
            "{}",
            style.paint(Role::Bad, format!("{} lost: {hint}", count(summary.lost, "event")))
        );
    }
    if summary.garbled > 0 {
        let hint = "the program has written into the buffers that it shares with this command";
        let garbled = count(summary.garbled, "record");
        let _ =
            writeln!(out, "{}", style.paint(Role::Bad, format!("{garbled} could not be understood: {hint}")));
    }
}
