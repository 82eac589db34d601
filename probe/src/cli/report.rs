//! `probe report`: a record by function: calls, time, and what of it was spent in the function itself.

use super::args::{Choice, Format, Report, Sort};
use super::failure::Failure;
use super::foreign::{self, Foreign};
use super::nests::{Done, Left, Nests};
use super::saved::{self, Ended, Saved};
use super::style::{Role, Style, time};
use super::times::Times;
use super::trace::Outcome;
use super::value::{self, Faults};
use crate::file::{Event, Item};
use crate::wire::Values;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::ops::ControlFlow;

/// The most rows; what finds no room is one row together.
const MOST_ROWS: usize = if cfg!(target_pointer_width = "64") { 1 << 17 } else { 1 << 14 };
/// The most functions on a page.
const MOST_ON_A_PAGE: usize = 5_000;
/// What that row is called, and a caller that is not known.
const OTHERS: &str = "(others)";
const NO_CALLER: &str = "-";

/// What tells rows apart: a function, and a caller, thread or argument.
type Key = (String, Option<String>);

/// What was found of a kind of call.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Hits, and calls that have returned.
    calls: u64,
    /// Calls that were left without a return.
    left: u64,
    self_ns: u64,
    times: Times,
}

/// What is told apart beside functions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum By {
    Nothing,
    Caller,
    Task,
    Argument(String),
}

/// A call that waits for its caller: the time inside, and, where callers are asked for, whose that is.
#[derive(Default)]
struct Inside {
    ns: u64,
    /// What was not counted yet.
    call: Option<Call>,
}

/// A call whose caller is not known yet.
struct Call {
    function: u32,
    way: Way,
}

/// How a call ended.
#[derive(Clone, Copy)]
enum Way {
    /// It returned, after so long, so much of it in itself.
    Returned { duration_ns: u64, self_ns: u64 },
    /// It was left.
    Left,
}

/// All rows, as far as events have been seen.
struct Rows {
    by: By,
    numbers: HashMap<Key, usize>,
    rows: Vec<(Key, Row)>,
    /// For each place the number of its function, and of its row where only functions are told apart.
    places: Vec<Option<(u32, usize)>>,
    functions: Vec<String>,
    nests: Nests<Inside>,
    left: Left,
    buckets: usize,
    events: u64,
    lost: u64,
}

/// Prints the report of a record, or the difference of two.
///
/// # Errors
/// A record cannot be read.
pub(super) fn run(args: &Report) -> Result<Outcome, Failure> {
    let by = match args.by.as_deref() {
        None => By::Nothing,
        Some("caller") => By::Caller,
        Some("task") => By::Task,
        Some(name) => By::Argument(name.to_owned()),
    };
    let (mut rows, ended) = read(&args.choice, by.clone())?;
    if let By::Argument(name) = &by
        && rows.events > 0
        && rows.rows.iter().all(|((_, key), _)| key.is_none())
    {
        return Err(Failure::new(format!(
            "no event has an argument `{name}`; --by takes one, caller or task"
        )));
    }
    let before = match &args.diff {
        None => None,
        Some(file) => {
            let choice = Choice { file: file.clone(), ..args.choice.clone() };
            Some(read(&choice, by)?.0)
        }
    };
    rows.sort(args.sort, before.as_ref());
    let text = match (args.format, &before) {
        (Format::Json, _) => rows.json(before.as_ref(), ended),
        (Format::Text, None) => rows.text(args),
        (Format::Text, Some(before)) => rows.difference(before, args),
    };
    let mut to = io::stdout().lock();
    Outcome::written(to.write_all(text.as_bytes()).and_then(|()| to.flush()), "the report")
}

/// The functions of a record, for a page.
///
/// # Errors
/// The record cannot be read.
pub(super) fn page(choice: &Choice, sort: Sort) -> Result<Json, Failure> {
    let (mut rows, _) = read(choice, By::Nothing)?;
    rows.sort(sort, None);
    let row = |((function, _), row): &(Key, Row)| {
        let mut object =
            json!({ "name": Foreign::new(function.as_str()).shown().to_string(), "calls": row.calls });
        if row.left > 0 {
            object["left"] = row.left.into();
        }
        if row.times.count > 0 {
            let [median_ns, p99_ns] = row.times.percentiles();
            object["total_ns"] = row.times.sum_ns.into();
            object["self_ns"] = row.self_ns.into();
            object["min_ns"] = row.times.min_ns().into();
            object["median_ns"] = median_ns.into();
            object["p99_ns"] = p99_ns.into();
            object["max_ns"] = row.times.max_ns.into();
            object["buckets"] = json!(row.times.octaves());
        }
        object
    };
    Ok(rows.rows.iter().take(MOST_ON_A_PAGE).map(row).collect())
}

fn read(choice: &Choice, by: By) -> Result<(Rows, Ended), Failure> {
    let mut rows = Rows {
        by,
        numbers: HashMap::new(),
        rows: Vec::new(),
        places: Vec::new(),
        functions: Vec::new(),
        nests: Nests::default(),
        left: Left::default(),
        buckets: 0,
        events: 0,
        lost: 0,
    };
    let mut saved = Saved::open(choice)?;
    let ended = saved.read(|item| {
        if let Item::Event(event) = item {
            rows.add(&event);
        }
        ControlFlow::Continue(())
    })?;
    rows.lost = saved.reader().lost();
    rows.finish();
    Ok((rows, ended))
}

impl Rows {
    /// The number of a row.
    fn number(&mut self, key: Key) -> usize {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let key = if self.rows.len() < MOST_ROWS { key } else { (OTHERS.to_owned(), None) };
        let next = self.rows.len();
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.rows.push((key, Row::default()));
        }
        number
    }

    /// The number of a place's function, and of the row that it has by itself.
    fn place(&mut self, event: &Event<'_>) -> (u32, usize) {
        let index = event.place_number as usize;
        if let Some(Some(known)) = self.places.get(index) {
            return *known;
        }
        let name = saved::function(event).to_owned();
        let function = self.functions.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.functions.push(name.clone());
            self.functions.len() - 1
        });
        let row = if self.by == By::Nothing { self.number((name, None)) } else { 0 };
        self.places.resize(self.places.len().max(index + 1), None);
        *self.places[index].insert((function as u32, row))
    }

    fn add(&mut self, event: &Event<'_>) {
        self.events += 1;
        let (function, row) = self.place(event);
        let task = (event.pid, event.tid);
        let Some(span_ns) = event.span_ns() else {
            let row = self.row_of(event, row);
            self.rows[row].1.calls += 1;
            return;
        };
        let start_ns = event.time_ns.saturating_sub(span_ns);
        let mut inside_ns = 0_u64;
        let mut calls = Vec::new();
        let is_late = self.left.ended_before(event).is_some();
        if !is_late {
            for done in self.nests.claim(task, start_ns) {
                inside_ns = inside_ns.saturating_add(done.what.ns);
                calls.extend(done.what.call);
            }
        }
        let way = match event.duration_ns {
            Some(ns) => Way::Returned { duration_ns: ns, self_ns: ns.saturating_sub(inside_ns) },
            None => Way::Left,
        };
        // The call that it was made in has counted its time.
        let mut what = Inside { ns: if is_late { 0 } else { span_ns }, call: None };
        if self.by == By::Caller {
            what.call = Some(Call { function, way });
            self.called(Some(function), &calls);
        } else {
            let row = self.row_of(event, row);
            self.count(row, way);
        }
        let mut early = Vec::new();
        self.nests.wait(task, Done { start_ns, what }, |to, more| {
            to.ns = to.ns.saturating_add(more.ns);
            // Whose they are is known too late.
            early.extend(to.call.take());
            early.extend(more.call);
        });
        if !early.is_empty() {
            self.called(None, &early);
        }
    }

    /// The row that an event counts in.
    fn row_of(&mut self, event: &Event<'_>, row: usize) -> usize {
        let key = match &self.by {
            By::Nothing => return row,
            By::Caller => Some(NO_CALLER.to_owned()),
            By::Task => {
                let name = Foreign::new(saved::comm(event)).shown().to_string();
                Some(format!("{name}-{}/{}", event.pid, event.tid))
            }
            By::Argument(name) => argument(event, name),
        };
        self.number((saved::function(event).to_owned(), key))
    }

    fn count(&mut self, row: usize, way: Way) {
        let row = &mut self.rows[row].1;
        let Way::Returned { duration_ns, self_ns } = way else {
            row.left += 1;
            return;
        };
        row.calls += 1;
        row.self_ns = row.self_ns.saturating_add(self_ns);
        row.times.add(duration_ns, &mut self.buckets);
    }

    /// Counts calls whose caller is known now, or never will be.
    fn called<'a>(&mut self, caller: Option<u32>, calls: impl IntoIterator<Item = &'a Call>) {
        for Call { function, way } in calls {
            let name = |function: u32| self.functions.get(function as usize).cloned().unwrap_or_default();
            let caller = caller.map_or_else(|| NO_CALLER.to_owned(), name);
            let row = self.number((name(*function), Some(caller)));
            self.count(row, *way);
        }
    }

    fn finish(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.nests).rest() {
            waiting.iter().for_each(|done| self.called(None, &done.what.call));
        }
    }

    fn of(&self, key: &Key) -> Option<&Row> {
        self.numbers.get(key).map(|number| &self.rows[*number].1)
    }

    /// The greatest first; of a difference, the greatest difference.
    fn sort(&mut self, sort: Sort, before: Option<&Self>) {
        if let Some(before) = before {
            let gone: Vec<Key> = before
                .rows
                .iter()
                .map(|(key, _)| key)
                .filter(|key| self.of(key).is_none())
                .cloned()
                .collect();
            for key in gone {
                self.number(key);
            }
        }
        let weight = |row: &Row| match sort {
            Sort::Total => row.times.sum_ns,
            Sort::Own => row.self_ns,
            Sort::Calls | Sort::Name => row.calls,
            Sort::Min => row.times.min_ns(),
            Sort::Median => row.times.percentiles()[0],
            Sort::P99 => row.times.percentiles()[1],
            Sort::Max => row.times.max_ns,
        };
        let weight = |key: &Key, row: &Row| match before {
            None => weight(row),
            Some(before) => weight(row).abs_diff(before.of(key).map_or(0, weight)),
        };
        if sort == Sort::Name {
            self.rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        } else {
            self.rows.sort_by_cached_key(|(key, row)| {
                (std::cmp::Reverse((weight(key, row), row.calls)), key.clone())
            });
        }
        self.numbers = self.rows.iter().enumerate().map(|(number, (key, _))| (key.clone(), number)).collect();
    }

    /// A table, in columns.
    fn text(&self, args: &Report) -> String {
        let timed = self.rows.iter().any(|(_, row)| row.times.count > 0);
        let mut lines = Vec::new();
        let left = self.rows.iter().any(|(_, row)| row.left > 0);
        let mut head: Vec<String> = if timed { words(&["TOTAL", "SELF"]) } else { Vec::new() };
        head.push("CALLS".into());
        head.extend(left.then(|| "LEFT".into()));
        head.extend(if timed { words(&["MIN", "MEDIAN", "P99", "MAX"]) } else { Vec::new() });
        lines.push((head, "FUNCTION".to_owned(), self.by.head()));
        for (key, row) in self.shown(args) {
            let of_times = |ns: u64| if row.times.count > 0 { time(ns) } else { String::new() };
            let mut line = Vec::new();
            if timed {
                line.extend([row.times.sum_ns, row.self_ns].map(of_times));
            }
            line.push(row.calls.to_string());
            line.extend(left.then(|| row.left.to_string()));
            if timed {
                let [median, p99] = row.times.percentiles();
                line.extend([row.times.min_ns(), median, p99, row.times.max_ns].map(of_times));
            }
            lines.push((line, key.0.clone(), key.1.clone()));
        }
        self.table(&lines, args)
    }

    /// The same for the difference from an earlier record.
    fn difference(&self, before: &Self, args: &Report) -> String {
        let mut lines = vec![(
            words(&["CALLS", "", "TOTAL", "", "SELF", "", "MEDIAN", ""]),
            "FUNCTION".to_owned(),
            self.by.head(),
        )];
        let none = Row::default();
        for (key, row) in self.shown(args) {
            let old = before.of(key).unwrap_or(&none);
            let mut line = vec![row.calls.to_string(), signed(row.calls, old.calls, |n| n.to_string())];
            let figures = |row: &Row| [row.times.sum_ns, row.self_ns, row.times.percentiles()[0]];
            for (now, then) in figures(row).into_iter().zip(figures(old)) {
                line.extend([time(now), signed(now, then, time)]);
            }
            lines.push((line, key.0.clone(), key.1.clone()));
        }
        self.table(&lines, args)
    }

    fn shown(&self, args: &Report) -> impl Iterator<Item = &(Key, Row)> {
        self.rows.iter().take(args.top.unwrap_or(usize::MAX))
    }

    fn table(&self, lines: &[(Vec<String>, String, Option<String>)], args: &Report) -> String {
        let style = Style::new(args.color, &io::stdout());
        let width =
            |column: usize| lines.iter().map(|line| line.0[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..lines[0].0.len()).map(width).collect();
        let mut out = String::new();
        for (number, (cells, function, key)) in lines.iter().enumerate() {
            let mut line = String::new();
            for (cell, &width) in cells.iter().zip(&widths) {
                let _ = write!(line, "{cell:>width$}  ");
            }
            let mut name = Foreign::new(function.as_str()).shown().to_string();
            if let Some(key) = key {
                let key = Foreign::new(key.as_str());
                let _ = write!(name, "  {}", key.shown());
            }
            let role = if number == 0 { Role::Head } else { Role::Name };
            let _ = writeln!(out, "{line}{}", style.paint(role, name));
        }
        let more = self.rows.len().saturating_sub(lines.len() - 1);
        if more > 0 {
            let _ = writeln!(out, "{}", style.paint(Role::Dim, format!("… and {more} more")));
        }
        if self.lost > 0 {
            let sentence = format!("{} events were lost, and are not in here", self.lost);
            let _ = writeln!(out, "{}", style.paint(Role::Bad, sentence));
        }
        out
    }

    /// An object.
    fn json(&self, before: Option<&Self>, ended: Ended) -> String {
        let one = |row: &Row| {
            let [median, p99] = row.times.percentiles();
            let mut object = json!({ "calls": row.calls });
            if row.left > 0 {
                object["left"] = row.left.into();
            }
            if row.times.count > 0 {
                object["total_ns"] = row.times.sum_ns.into();
                object["self_ns"] = row.self_ns.into();
                let (min, max) = (row.times.min_ns(), row.times.max_ns);
                object["duration_ns"] = json!({ "min": min, "median": median, "p99": p99, "max": max });
            }
            object
        };
        let row = |((function, by), row): &(Key, Row)| {
            let mut object = one(row);
            object["function"] = Foreign::new(function.as_str()).json();
            if let Some(by) = by {
                object["by"] = Foreign::new(by.as_str()).json();
            }
            if let Some(before) = before {
                object["before"] = before.of(&(function.clone(), by.clone())).map_or(Json::Null, one);
            }
            object
        };
        let rows: Vec<Json> = self.rows.iter().map(row).collect();
        let object = json!({
            "type": "report",
            "events": self.events,
            "lost_events": self.lost,
            "is_whole": ended == Ended::Whole,
            "functions": rows,
        });
        foreign::json(&object) + "\n"
    }
}

impl By {
    fn head(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Caller => Some("CALLER".into()),
            Self::Task => Some("TASK".into()),
            Self::Argument(name) => Some(name.clone()),
        }
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A difference with its sign.
fn signed(now: u64, before: u64, show: impl Fn(u64) -> String) -> String {
    match now.cmp(&before) {
        std::cmp::Ordering::Equal => "=".into(),
        std::cmp::Ordering::Greater => format!("+{}", show(now - before)),
        std::cmp::Ordering::Less => format!("-{}", show(before - now)),
    }
}

/// An argument of an event, as it is printed.
fn argument(event: &Event<'_>, name: &str) -> Option<String> {
    let mut values = Values(event.values.0);
    for arg in &event.probe.args {
        let rest = values.0;
        value::skip(arg, &mut values);
        if arg.name == name {
            if let Some((frames, _)) = value::stack(std::slice::from_ref(arg), Values(rest), &event.names) {
                let functions = frames.iter().flat_map(|frame| &frame.functions);
                return Some(
                    functions.map(|function| function.name.as_str()).collect::<Vec<_>>().join(" < "),
                );
            }
            let mut text = String::new();
            value::text(&mut text, std::slice::from_ref(arg), Values(rest), &event.names, Faults::Shown);
            return text.split_once('=').map(|(_, text)| text.to_owned());
        }
    }
    None
}
