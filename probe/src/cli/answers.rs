//! What was counted in hits, as it is shown: sorted by what matters, with bars and percentiles.
//!
//! The traced program can write into the maps: what is read from them may be any numbers.

use super::foreign::Foreign;
use super::query::Query;
use super::style::{Role, Style, bar, time};
use crate::filter::{Column, Holds, Looks};
use crate::wire::Reader;
use probe_bpf::Map;
use probe_bpf::map::Scale;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// What one probe's hits were counted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The probe's name, else its place.
    probe: Foreign<String>,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Counts of [`Scale::Steps`].
    Histogram(Column, Vec<u64>),
    Sum(Column, u64),
    Table(Table),
}

/// For each key how many hits there were, and the sums of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    keys: Vec<Column>,
    sums: Vec<Column>,
    rows: HashMap<[u64; 2], (u64, Vec<u64>)>,
    /// Hits whose key found no room.
    lost: u64,
}

/// Reads all that was counted so far.
pub(super) fn read(queries: &[Query], reader: &Reader) -> Vec<Answer> {
    let of_query = |query: &Query| {
        let name = query.definition.name.clone().unwrap_or_else(|| {
            query.definition.text[query.definition.place_span.0..query.definition.place_span.1].to_owned()
        });
        let mut answers: Vec<Answer> = Vec::new();
        for (holds, plan) in &query.maps {
            let Some(map) = reader.map(*plan) else { continue };
            add(&mut answers, &name, holds, &map);
        }
        answers
    };
    queries.iter().flat_map(of_query).collect()
}

fn add(answers: &mut Vec<Answer>, name: &str, holds: &Holds, map: &Map) {
    let what = match (holds, map) {
        (Holds::Histogram(column), Map::Histogram(histogram)) => {
            What::Histogram(column.clone(), histogram.counts())
        }
        (Holds::Sum(column), Map::Counter(counter)) => What::Sum(column.clone(), counter.sum()),
        (Holds::Table(keys, None), Map::Hash(hash)) => {
            let rows = hash.sums().into_iter().map(|(key, count)| (key, (count, Vec::new())));
            let (keys, sums, lost) = (keys.clone(), Vec::new(), hash.lost());
            What::Table(Table { keys, sums, rows: rows.collect(), lost })
        }
        (Holds::Table(_, Some(column)), Map::Hash(hash)) => {
            // Behind the table of counts.
            let Some(Answer { what: What::Table(table), .. }) = answers.last_mut() else { return };
            table.sums.push(column.clone());
            let len = table.sums.len();
            for (key, sum) in hash.sums() {
                let (_, sums) = table.rows.entry(key).or_default();
                sums.resize(len - 1, 0);
                sums.push(sum);
            }
            table.rows.values_mut().for_each(|(_, sums)| sums.resize(len, 0));
            return;
        }
        _ => return,
    };
    answers.push(Answer { probe: Foreign::new(name.to_owned()), what });
}

impl Answer {
    /// What has come since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut now = self.clone();
        match (&mut now.what, &before.what) {
            (What::Histogram(_, now), What::Histogram(_, before)) => {
                now.iter_mut().zip(before).for_each(|(now, before)| *now = now.saturating_sub(*before));
            }
            (What::Sum(_, now), What::Sum(_, before)) => *now = now.wrapping_sub(*before),
            (What::Table(now), What::Table(before)) => {
                now.lost = now.lost.saturating_sub(before.lost);
                now.rows.retain(|key, (count, sums)| {
                    if let Some((count_before, sums_before)) = before.rows.get(key) {
                        *count = count.saturating_sub(*count_before);
                        sums.iter_mut()
                            .zip(sums_before)
                            .for_each(|(now, before)| *now = now.wrapping_sub(*before));
                    }
                    *count != 0 || sums.iter().any(|sum| *sum != 0)
                });
            }
            _ => {}
        }
        now
    }

    /// The answer as text.
    pub(super) fn text(&self, out: &mut String, style: Style, top: usize) {
        let probe = self.probe.shown();
        match &self.what {
            What::Histogram(column, counts) => {
                let _ = writeln!(out, "\n{}", style.paint(Role::Head, format!("{probe}: {}", column.name)));
                histogram(out, column.looks, counts);
            }
            What::Sum(column, sum) => {
                let head = style.paint(Role::Head, format!("{probe}: sum of {}", column.name));
                let _ = writeln!(out, "\n{head}  {}", shown(*sum, column.looks));
            }
            What::Table(table) => {
                let names: Vec<&str> = table.keys.iter().map(|key| key.name.as_str()).collect();
                let head = format!("{probe} by {}", names.join(", "));
                let _ = writeln!(out, "\n{}", style.paint(Role::Head, head));
                table.text(out, style, top);
            }
        }
    }

    /// The answer as JSON.
    pub(super) fn json(&self, top: usize) -> Json {
        let probe = self.probe.json();
        match &self.what {
            What::Histogram(column, counts) => {
                let buckets = counts.iter().enumerate().filter(|(_, count)| **count != 0);
                let buckets = buckets.map(|(bucket, count)| {
                    json!({ "from": Scale::Steps.least(bucket), "below": Scale::Steps.least(bucket + 1), "count": count })
                });
                let buckets: Vec<Json> = buckets.collect();
                let total = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
                let quantile = |share| quantile(counts, share);
                json!({
                    "probe": probe, "type": "histogram", "of": column.name, "count": total,
                    "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "buckets": buckets,
                })
            }
            What::Sum(column, sum) => {
                json!({ "probe": probe, "type": "sum", "of": column.name, "sum": number(*sum, column.looks) })
            }
            What::Table(table) => {
                let names: Vec<&str> = table.keys.iter().map(|key| key.name.as_str()).collect();
                let rows: Vec<Json> = table.sorted().take(top).map(|row| table.row_json(&row)).collect();
                json!({
                    "probe": probe, "type": "table", "by": names, "rows": rows,
                    "keys": table.rows.len(), "lost": table.lost,
                })
            }
        }
    }
}

/// A key, its count and its sums.
type Row<'a> = (&'a [u64; 2], u64, &'a [u64]);

impl Table {
    /// The rows with the most first: the greatest sum, or the most hits where there is none.
    fn sorted(&self) -> impl Iterator<Item = Row<'_>> {
        let mut rows: Vec<Row<'_>> =
            self.rows.iter().map(|(key, (count, sums))| (key, *count, sums.as_slice())).collect();
        let weight = |(_, count, sums): &Row<'_>| match (sums.first(), self.sums.first()) {
            (Some(sum), Some(column)) if column.looks == Looks::Signed => i128::from(sum.cast_signed()),
            (Some(sum), _) => i128::from(*sum),
            (None, _) => i128::from(*count),
        };
        rows.sort_by(|a, b| weight(b).cmp(&weight(a)).then(b.1.cmp(&a.1)).then(a.0.cmp(b.0)));
        rows.into_iter()
    }

    /// A key's words as they are shown.
    fn key(&self, key: &[u64; 2]) -> Vec<String> {
        let of = |(column, word): (&Column, &u64)| match column.looks {
            Looks::Name => Foreign::new(name_of(key)).shown().to_string(),
            looks => shown(*word, looks),
        };
        self.keys.iter().zip(key).map(of).collect()
    }

    fn row_json(&self, (key, count, sums): &Row<'_>) -> Json {
        let keys = self.keys.iter().zip(*key).map(|(column, word)| match column.looks {
            Looks::Name => Foreign::new(name_of(key)).json(),
            looks => number(*word, looks),
        });
        let keys: Vec<Json> = keys.collect();
        let sums = self
            .sums
            .iter()
            .zip(*sums)
            .map(|(column, sum)| (column.name.clone(), number(*sum, column.looks)));
        json!({ "key": keys, "count": count, "sums": Json::Object(sums.collect()) })
    }

    fn text(&self, out: &mut String, style: Style, top: usize) {
        let heads = self.keys.iter().chain(&self.sums).map(|column| column.name.clone());
        let mut heads: Vec<String> = heads.collect();
        heads.insert(self.keys.len(), "HITS".into());
        let mut lines = vec![heads];
        let mut most = 1;
        let mut weights = vec![0];
        for (key, count, sums) in self.sorted().take(top) {
            let mut line = self.key(key);
            line.push(count.to_string());
            line.extend(self.sums.iter().zip(sums).map(|(column, sum)| shown(*sum, column.looks)));
            lines.push(line);
            let weight = match (self.sums.first(), sums.first()) {
                (Some(column), Some(sum)) if column.looks == Looks::Signed => {
                    sum.cast_signed().max(0).cast_unsigned()
                }
                (_, Some(sum)) => *sum,
                _ => count,
            };
            most = most.max(weight);
            weights.push(weight);
        }
        let widths: Vec<usize> = (0..lines[0].len())
            .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let is_name = |column: usize| self.keys.get(column).is_some_and(|key| key.looks == Looks::Name);
        for (index, line) in lines.iter().enumerate() {
            let mut text = String::from(" ");
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let blanks = " ".repeat(width - cell.chars().count());
                let padded =
                    if is_name(column) { format!("{cell}{blanks}") } else { format!("{blanks}{cell}") };
                let role = if index == 0 { Role::Head } else { Role::Name };
                if column < self.keys.len() || index == 0 {
                    let _ = write!(text, " {} ", style.paint(role, padded));
                } else {
                    let _ = write!(text, " {padded} ");
                }
            }
            let _ = write!(text, " {}", bar(weights[index], most));
            let _ = writeln!(out, "{}", text.trim_end());
        }
        let more = self.rows.len().saturating_sub(top);
        if more > 0 {
            let _ = writeln!(out, "{}", style.paint(Role::Dim, format!("  … and {more} more (--top)")));
        }
        if self.lost > 0 {
            let sentence = format!("  {} found no room for their key", self.lost);
            let _ = writeln!(out, "{}", style.paint(Role::Bad, sentence));
        }
    }
}

/// The name that two words hold.
fn name_of(key: &[u64; 2]) -> Vec<u8> {
    let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn number(word: u64, looks: Looks) -> Json {
    if looks == Looks::Signed { word.cast_signed().into() } else { word.into() }
}

fn shown(word: u64, looks: Looks) -> String {
    match looks {
        Looks::Signed => word.cast_signed().to_string(),
        Looks::Time => time(word),
        _ => word.to_string(),
    }
}

/// The value below which the share of all lies, to 1/32; `None` without values, or where it is below zero.
fn quantile(counts: &[u64], share: f64) -> Option<i64> {
    let total = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let rank = ((total as f64 * share).ceil() as u64).max(1);
    let mut below = 0_u64;
    for (bucket, count) in counts.iter().enumerate() {
        below = below.saturating_add(*count);
        if *count != 0 && below >= rank {
            let from = Scale::Steps.least(bucket)?;
            let to = Scale::Steps.least(bucket + 1).map_or(i64::MAX, |next| next - 1);
            return Some(from + (to - from) / 2);
        }
    }
    None
}

/// One line per power of two, and percentiles.
fn histogram(out: &mut String, looks: Looks, counts: &[u64]) {
    let mut octaves: BTreeMap<usize, u64> = BTreeMap::new();
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count != 0) {
        let octave = match Scale::Steps.least(bucket) {
            None => 0,
            Some(least) => Scale::Log2.bucket(least),
        };
        let all = octaves.entry(octave).or_default();
        *all = all.saturating_add(*count);
    }
    let (Some(first), Some(last)) = (octaves.keys().next().copied(), octaves.keys().last().copied()) else {
        let _ = writeln!(out, "  nothing was counted");
        return;
    };
    let most = octaves.values().copied().max().unwrap_or(1);
    let from = |octave: usize| match Scale::Log2.least(octave) {
        None => "below 0".into(),
        Some(least) => shown(least.cast_unsigned(), looks),
    };
    let lines: Vec<(String, u64)> =
        (first..=last).map(|octave| (from(octave), octaves.get(&octave).copied().unwrap_or(0))).collect();
    let width = lines.iter().map(|(from, _)| from.chars().count()).max().unwrap_or(0).max(8);
    let digits = most.to_string().len();
    for (from, count) in &lines {
        let _ = writeln!(
            out,
            "{}",
            format!("  {from:>width$}  {count:>digits$}  {}", bar(*count, most)).trim_end()
        );
    }
    let total = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let at = |share| quantile(counts, share).map_or("below 0".into(), |at| shown(at.cast_unsigned(), looks));
    let _ = writeln!(out, "  {total} in all; median {}, p90 {}, p99 {}", at(0.5), at(0.9), at(0.99));
}
