//! What was counted in hits: read, compared with what had been counted before, sorted by what matters.
//!
//! The traced program can write into the maps: what is read from them may be any numbers.

use super::foreign::Foreign;
use super::functions::Function;
use super::query::Query;
use super::value;
use crate::file;
use crate::filter::{Column, Holds, Looks};
use crate::wire::{Reader, Site};
use probe_bpf::Map;
use probe_bpf::map::{Scale, Texts};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, HashMap};

/// What one probe's hits were counted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The probe's name, else its place.
    pub(super) probe: Foreign<String>,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Counts of [`Scale::Steps`].
    Histogram(Column, Vec<u64>),
    Sum(Column, u64),
    Table(Table),
    Histograms(Histograms),
}

/// One of the values that tell hits apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Cell {
    Word(u64),
    /// A text's beginning, and whether there was more of it.
    Text(Vec<u8>, bool),
    /// Frames' functions, innermost first.
    Stack(Vec<Function>),
}

/// For each key how many hits there were, and the sums of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) keys: Vec<Column>,
    pub(super) sums: Vec<Column>,
    pub(super) rows: HashMap<Vec<Cell>, (u64, Vec<u64>)>,
    /// Hits whose key found no room.
    pub(super) lost: u64,
}

/// For each key the counts of [`Scale::Steps`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Histograms {
    pub(super) key: Column,
    pub(super) of: Column,
    pub(super) rows: HashMap<Cell, BTreeMap<usize, u64>>,
    /// Hits whose key found no room.
    pub(super) lost: u64,
}

/// Reads all that was counted so far.
pub(super) fn read(queries: &[Query], reader: &Reader, functions: &dyn Functions) -> Vec<Answer> {
    let of_query = |query: &Query| {
        let name = query.definition.name.clone().unwrap_or_else(|| {
            query.definition.text[query.definition.place_span.0..query.definition.place_span.1].to_owned()
        });
        let maps = || query.maps.iter().filter_map(|(holds, plan)| Some((holds, reader.map(*plan)?)));
        let texts = maps().find_map(|(_, map)| if let Map::Texts(texts) = map { Some(texts) } else { None });
        let mut answers: Vec<Answer> = Vec::new();
        for (holds, map) in maps() {
            add(&mut answers, &name, holds, &map, Names { texts: texts.as_ref(), functions });
        }
        answers
    };
    queries.iter().flat_map(of_query).collect()
}

/// What has names for addresses.
pub(super) trait Functions {
    /// The function that an address is in, or else what is known of it.
    fn function(&self, site: Site) -> Vec<u8>;

    /// The functions at the place of a program's frame, each inlined in the one behind it.
    fn functions(&self, image: u32, place: u64) -> Vec<Function>;
}

/// The functions of a stack: its first word has the program in its upper half.
fn stack(bytes: &[u8], functions: &dyn Functions) -> Vec<Function> {
    let Some((head, frames)) = file::frames(bytes) else { return Vec::new() };
    let frames = value::with_signals(frames).map(|(frame, is_signal)| match is_signal {
        true => vec![value::signal()],
        false => functions.functions((head >> 32) as u32, file::place(frame)),
    });
    let mut all: Vec<Function> = frames.flatten().collect();
    if head as u32 != 0 {
        all.push(Function::new("…", ""));
    }
    all
}

/// What has names for words of keys.
#[derive(Clone, Copy)]
struct Names<'a> {
    texts: Option<&'a Texts>,
    functions: &'a dyn Functions,
}

/// What a key of a map says; `None` for a text that has found no room.
fn cells(columns: &[Column], key: [u64; 2], names: Names<'_>) -> Option<Vec<Cell>> {
    let cell = |(column, word): (&Column, &u64)| match column.looks {
        Looks::Name => Some(Cell::Text(name_of(key), false)),
        Looks::Stack => {
            names.texts?.text(*word).map(|(bytes, _)| Cell::Stack(stack(&bytes, names.functions)))
        }
        Looks::Text => names.texts?.text(*word).map(|(text, is_cut)| Cell::Text(text, is_cut)),
        Looks::Function => Some(Cell::Text(names.functions.function(Site::from_word(*word)), false)),
        _ => Some(Cell::Word(*word)),
    };
    columns.iter().zip(&key).map(cell).collect()
}

fn add(answers: &mut Vec<Answer>, name: &str, holds: &Holds, map: &Map, names: Names<'_>) {
    let what = match (holds, map) {
        (Holds::Histogram(column), Map::Histogram(histogram)) => {
            What::Histogram(column.clone(), histogram.counts())
        }
        (Holds::Sum(column), Map::Counter(counter)) => What::Sum(column.clone(), counter.sum()),
        (Holds::Table(keys, None), Map::Hash(hash)) => {
            let mut table =
                Table { keys: keys.clone(), sums: Vec::new(), rows: HashMap::new(), lost: hash.lost() };
            for (key, count) in hash.sums() {
                let to = match cells(keys, key, names) {
                    Some(key) => &mut table.rows.entry(key).or_default().0,
                    None => &mut table.lost,
                };
                // A text may have several numbers.
                *to = to.saturating_add(count);
            }
            What::Table(table)
        }
        (Holds::Table(keys, Some(column)), Map::Hash(hash)) => {
            // Behind the table of counts.
            let Some(Answer { what: What::Table(table), .. }) = answers.last_mut() else { return };
            table.sums.push(column.clone());
            let len = table.sums.len();
            for (key, sum) in hash.sums() {
                let Some(key) = cells(keys, key, names) else { continue };
                let (_, sums) = table.rows.entry(key).or_default();
                sums.resize(len, 0);
                sums[len - 1] = sums[len - 1].wrapping_add(sum);
            }
            table.rows.values_mut().for_each(|(_, sums)| sums.resize(len, 0));
            return;
        }
        (Holds::Histograms(key, of), Map::Hash(hash)) => {
            let mut all =
                Histograms { key: key.clone(), of: of.clone(), rows: HashMap::new(), lost: hash.lost() };
            for ([word, bucket], count) in hash.sums() {
                let key = cells(std::slice::from_ref(key), [word, 0], names).and_then(|mut key| key.pop());
                let bucket = usize::try_from(bucket).ok().filter(|bucket| *bucket < Scale::Steps.len());
                let to = match key.zip(bucket) {
                    Some((key, bucket)) => all.rows.entry(key).or_default().entry(bucket).or_default(),
                    None => &mut all.lost,
                };
                *to = to.saturating_add(count);
            }
            What::Histograms(all)
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
            (What::Histograms(now), What::Histograms(before)) => {
                now.lost = now.lost.saturating_sub(before.lost);
                now.rows.retain(|key, counts| {
                    for (bucket, before) in before.rows.get(key).into_iter().flatten() {
                        let count = counts.entry(*bucket).or_default();
                        *count = count.saturating_sub(*before);
                    }
                    counts.retain(|_, count| *count != 0);
                    !counts.is_empty()
                });
            }
            _ => {}
        }
        now
    }

    /// The answer as JSON.
    pub(super) fn json(&self, top: usize) -> Json {
        let probe = self.probe.json();
        match &self.what {
            What::Histogram(column, counts) => {
                let mut answer = histogram_json(counts);
                answer["probe"] = probe;
                answer["type"] = "histogram".into();
                answer["of"] = column.name.clone().into();
                answer
            }
            What::Histograms(all) => {
                let row = |(key, _, counts): (&Cell, u64, Vec<u64>)| {
                    let mut row = histogram_json(&counts);
                    row["key"] = json!([cell_json(&all.key, key)]);
                    row
                };
                let rows: Vec<Json> = all.sorted(top).into_iter().map(row).collect();
                json!({
                    "probe": probe, "type": "histograms", "of": all.of.name, "by": [all.key.name], "rows": rows,
                    "keys": all.rows.len(), "lost": all.lost,
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
pub(super) type Row<'a> = (&'a [Cell], u64, &'a [u64]);

impl Table {
    /// The rows with the most first: the greatest sum, or the most hits where there is none.
    pub(super) fn sorted(&self) -> impl Iterator<Item = Row<'_>> {
        let mut rows: Vec<Row<'_>> =
            self.rows.iter().map(|(key, (count, sums))| (key.as_slice(), *count, sums.as_slice())).collect();
        let weight = |(_, count, sums): &Row<'_>| match (sums.first(), self.sums.first()) {
            (Some(sum), Some(column)) if column.looks == Looks::Signed => i128::from(sum.cast_signed()),
            (Some(sum), _) => i128::from(*sum),
            (None, _) => i128::from(*count),
        };
        rows.sort_by(|a, b| weight(b).cmp(&weight(a)).then(b.1.cmp(&a.1)).then(a.0.cmp(b.0)));
        rows.into_iter()
    }

    fn row_json(&self, (key, count, sums): &Row<'_>) -> Json {
        let keys: Vec<Json> =
            self.keys.iter().zip(*key).map(|(column, cell)| cell_json(column, cell)).collect();
        let sums = self
            .sums
            .iter()
            .zip(*sums)
            .map(|(column, sum)| (column.name.clone(), number(*sum, column.looks)));
        json!({ "key": keys, "count": count, "sums": Json::Object(sums.collect()) })
    }
}

impl Histograms {
    /// The keys with the most hits first, with these and the counts of all buckets.
    pub(super) fn sorted(&self, top: usize) -> Vec<(&Cell, u64, Vec<u64>)> {
        let all =
            |counts: &BTreeMap<usize, u64>| counts.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let mut rows: Vec<(&Cell, u64)> = self.rows.iter().map(|(key, counts)| (key, all(counts))).collect();
        rows.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let dense = |key: &Cell| {
            let mut counts = vec![0; Scale::Steps.len()];
            self.rows[key].iter().for_each(|(bucket, count)| counts[*bucket] = *count);
            counts
        };
        rows.into_iter().take(top).map(|(key, count)| (key, count, dense(key))).collect()
    }
}

fn cell_json(column: &Column, cell: &Cell) -> Json {
    match cell {
        Cell::Word(word) => number(*word, column.looks),
        Cell::Text(text, is_cut) => Foreign::new(whole(text, *is_cut)).json(),
        Cell::Stack(all) => all.iter().map(|function| Json::from(function.shown())).collect(),
    }
}

/// A text with a sign that there was more of it.
pub(super) fn whole(text: &[u8], is_cut: bool) -> Vec<u8> {
    if is_cut { [text, "…".as_bytes()].concat() } else { text.to_vec() }
}

/// The name that two words hold.
fn name_of(key: [u64; 2]) -> Vec<u8> {
    let bytes: Vec<u8> = key.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn number(word: u64, looks: Looks) -> Json {
    if looks == Looks::Signed { word.cast_signed().into() } else { word.into() }
}

/// The value below which the share of all lies, to 1/32; `None` without values, or where it is below zero.
pub(super) fn quantile(counts: &[u64], share: f64) -> Option<i64> {
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

/// A histogram's count, percentiles and buckets.
fn histogram_json(counts: &[u64]) -> Json {
    let buckets = counts.iter().enumerate().filter(|(_, count)| **count != 0);
    let buckets = buckets.map(|(bucket, count)| {
        json!({ "from": Scale::Steps.least(bucket), "below": Scale::Steps.least(bucket + 1), "count": count })
    });
    let buckets: Vec<Json> = buckets.collect();
    let total = counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count));
    let quantile = |share| quantile(counts, share);
    json!({
        "count": total, "p50": quantile(0.5), "p90": quantile(0.9), "p99": quantile(0.99), "buckets": buckets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::style::Style;
    use crate::wire::{Flags, Layout, MapKind, MapRoom, Region};
    use std::sync::atomic::Ordering;

    /// Of a sparse mixture of bits: most words of a program that lies are far from what hits count.
    fn word(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        match *state % 4 {
            0 => u64::MAX,
            1 => 1 << (*state >> 58),
            // A slot with a key.
            2 => 2,
            _ => *state >> (*state >> 58),
        }
    }

    struct NoFunctions;

    impl Functions for NoFunctions {
        fn function(&self, _: Site) -> Vec<u8> {
            Vec::new()
        }

        fn functions(&self, _: u32, _: u64) -> Vec<Function> {
            Vec::new()
        }
    }

    /// Each kind of map in memory that the traced program has filled.
    fn answers(region: &Region, room: &[crate::wire::MapPlan]) -> Vec<Answer> {
        let reader = Reader::new(*region);
        let column = |looks| Column { name: "n".into(), looks };
        let all = [Looks::Unsigned, Looks::Signed, Looks::Time];
        let mut answers = Vec::new();
        for looks in all {
            let table = |sum| Holds::Table(vec![column(looks), column(Looks::Unsigned)], sum);
            let holds = [
                Holds::Sum(column(looks)),
                Holds::Histogram(column(looks)),
                Holds::Table(vec![column(Looks::Name)], None),
                table(None),
                table(Some(column(looks))),
            ];
            for holds in holds {
                let plan = room.iter().find(|plan| plan.kind == holds.kind()).expect("one of each kind");
                let map = reader.map(*plan).expect("it is there");
                let names = Names { texts: None, functions: &NoFunctions };
                add(&mut answers, "a\x1b[31m", &holds, &map, names);
            }
        }
        answers
    }

    /// Whatever the words are, what is shown is plain, bounded, and valid JSON.
    #[test]
    fn evt_2_maps_of_any_words_are_shown() {
        let mut room = MapRoom::default();
        let plans = [MapKind::Sum, MapKind::Histogram, MapKind::Table].map(|kind| room.place(kind).unwrap());
        let layout = Layout { ring_count: 1, ..Layout::new(0, &room, 4096) };
        let (region, _file) = Region::create(layout, b"", Flags::default()).unwrap();
        // The statistics begin at the second page.
        let end = 512 + plans.iter().map(|plan| plan.offset as usize / 8).max().unwrap() + (1 << 15);
        let mut state = 0x5eed_0001;
        let mut before: Option<Vec<Answer>> = None;
        for _ in 0..3 {
            for stored in &region.words()[512..end] {
                stored.store(word(&mut state), Ordering::Relaxed);
            }
            let now = answers(&region, &plans);
            let since = before.iter().flatten().zip(&now).map(|(before, now)| now.since(before));
            for answer in since.chain(now.iter().cloned()) {
                let mut text = String::new();
                answer.text(&mut text, Style::plain(), 10, None);
                assert!(text.lines().count() < 100, "{text}");
                assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
                let json = answer.json(10).to_string();
                assert!(json.len() < 1 << 20 && json.is_ascii() | !json.contains('\x1b'), "{json}");
            }
            before = Some(now);
        }
    }
}
