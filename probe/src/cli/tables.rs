//! Answers as text: tables whose columns line up, histograms, bars.

use super::answers::{Answer, Cell, Histograms, Table, What, quantile, whole};
use super::foreign::Foreign;
use super::functions::Function;
use super::style::{Role, Style, bar, column, time};
use crate::filter::{Column, Looks};
use probe_bpf::map::Scale;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

impl Answer {
    /// The answer as text; of what has come in `per`, also per second.
    pub(super) fn text(&self, out: &mut String, style: Style, top: usize, per: Option<Duration>) {
        let probe = self.probe.shown();
        match &self.what {
            What::Histogram(column, counts) => {
                let _ = writeln!(out, "\n{}", style.paint(Role::Head, format!("{probe}: {}", column.name)));
                histogram(out, column.looks, counts, per);
            }
            What::Sum(column, sum) => {
                let head = style.paint(Role::Head, format!("{probe}: sum of {}", column.name));
                let rate = per.map(|per| format!(", {}/s", rate(number_of(*sum, column.looks), per)));
                let _ = writeln!(out, "\n{head}  {}{}", shown(*sum, column.looks), rate.unwrap_or_default());
            }
            What::Table(table) => {
                let names: Vec<&str> = table.keys.iter().map(|key| key.name.as_str()).collect();
                let head = format!("{probe} by {}", names.join(", "));
                let _ = writeln!(out, "\n{}", style.paint(Role::Head, head));
                table.text(out, style, top, per);
            }
            What::Histograms(all) => {
                let head = format!("{probe}: {} by {}", all.of.name, all.key.name);
                let _ = writeln!(out, "\n{}", style.paint(Role::Head, head));
                all.text(out, style, top, per);
            }
        }
    }
}

impl Table {
    fn text(&self, out: &mut String, style: Style, top: usize, per: Option<Duration>) {
        let with_rate = |cells: &mut Vec<String>, cell: String, by_second: &dyn Fn(Duration) -> String| {
            cells.push(cell);
            cells.extend(per.map(by_second));
        };
        let mut head: Vec<String> = self.keys.iter().map(|column| column.name.clone()).collect();
        with_rate(&mut head, "HITS".into(), &|_| "HITS/s".into());
        for column in &self.sums {
            with_rate(&mut head, column.name.clone(), &|_| format!("{}/s", column.name));
        }
        let mut grid = Grid::new(&self.keys, head);
        let mut most = 1;
        let mut weights = Vec::new();
        for (key, count, sums) in self.sorted().take(top) {
            let mut line: Vec<String> =
                self.keys.iter().zip(key).map(|(column, cell)| cell_text(column, cell)).collect();
            with_rate(&mut line, count.to_string(), &|per| rate(count.into(), per));
            for (column, sum) in self.sums.iter().zip(sums) {
                with_rate(&mut line, shown(*sum, column.looks), &|per| {
                    rate(number_of(*sum, column.looks), per)
                });
            }
            grid.lines.push((line, String::new()));
            grid.below.push(below(key));
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
        for ((_, end), weight) in grid.lines.iter_mut().skip(1).zip(weights) {
            *end = bar(weight, most);
        }
        grid.text(out, style);
        left_out(out, style, self.rows.len().saturating_sub(top), self.lost);
    }
}

impl Histograms {
    /// A line for each key; on it the powers of two, from the least to the greatest of all.
    fn text(&self, out: &mut String, style: Style, top: usize, per: Option<Duration>) {
        let rows = self.sorted(top);
        let shapes: Vec<BTreeMap<usize, u64>> = rows.iter().map(|(_, _, counts)| octaves(counts)).collect();
        let used = shapes.iter().flat_map(BTreeMap::keys).copied();
        let range = used.clone().min().unwrap_or(0)..=used.max().unwrap_or(0);
        let from = |octave: usize| match Scale::Log2.least(octave) {
            None => "below 0".into(),
            Some(least) => shown(least.cast_unsigned(), self.of.looks),
        };
        let mut head = vec![self.key.name.clone(), "HITS".into()];
        head.extend(per.map(|_| "HITS/s".into()));
        head.extend(["MEDIAN", "P90", "P99"].map(String::from));
        let mut grid = Grid::new(std::slice::from_ref(&self.key), head);
        grid.lines[0].1 = match (from(*range.start()), from(*range.end())) {
            (first, last) if first == last => first,
            (first, last) => format!("{first} … {last}"),
        };
        for ((key, count, counts), shape) in rows.iter().zip(shapes) {
            let most = shape.values().copied().max().unwrap_or(1);
            let bars = range.clone().map(|octave| column(shape.get(&octave).copied().unwrap_or(0), most));
            let mut line = vec![cell_text(&self.key, key), count.to_string()];
            line.extend(per.map(|per| rate((*count).into(), per)));
            line.extend([0.5, 0.9, 0.99].map(|share| quantile_text(counts, share, self.of.looks)));
            grid.lines.push((line, bars.collect()));
            grid.below.push(below(std::slice::from_ref(key)));
        }
        grid.text(out, style);
        left_out(out, style, self.rows.len().saturating_sub(top), self.lost);
    }
}

/// Lines of cells that line up, the head first, each with what stands behind its cells.
struct Grid<'a> {
    keys: &'a [Column],
    lines: Vec<(Vec<String>, String)>,
    /// Lines below those of keys.
    below: Vec<Vec<String>>,
}

impl<'a> Grid<'a> {
    fn new(keys: &'a [Column], head: Vec<String>) -> Self {
        Self { keys, lines: vec![(head, String::new())], below: vec![Vec::new()] }
    }

    fn text(&self, out: &mut String, style: Style) {
        let widths: Vec<usize> = (0..self.lines[0].0.len())
            .map(|column| self.lines.iter().map(|(line, _)| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let is_text = |column: usize| {
            self.keys.get(column).is_some_and(|key| {
                matches!(key.looks, Looks::Name | Looks::Text | Looks::Function | Looks::Stack)
            })
        };
        for (index, (line, end)) in self.lines.iter().enumerate() {
            let mut text = String::from(" ");
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let blanks = " ".repeat(width - cell.chars().count());
                let padded =
                    if is_text(column) { format!("{cell}{blanks}") } else { format!("{blanks}{cell}") };
                let role = if index == 0 { Role::Head } else { Role::Name };
                if column < self.keys.len() || index == 0 {
                    let _ = write!(text, " {} ", style.paint(role, padded));
                } else {
                    let _ = write!(text, " {padded} ");
                }
            }
            let _ = write!(text, " {end}");
            let _ = writeln!(out, "{}", text.trim_end());
            for line in self.below.get(index).into_iter().flatten() {
                let _ = writeln!(out, "{line}");
            }
        }
    }
}

/// What a table does not show.
fn left_out(out: &mut String, style: Style, more: usize, lost: u64) {
    if more > 0 {
        let _ = writeln!(out, "{}", style.paint(Role::Dim, format!("  … and {more} more (--top)")));
    }
    if lost > 0 {
        let sentence = format!("  {lost} found no room for their key");
        let _ = writeln!(out, "{}", style.paint(Role::Bad, sentence));
    }
}

fn cell_text(column: &Column, cell: &Cell) -> String {
    match cell {
        Cell::Word(word) => shown(*word, column.looks),
        Cell::Text(text, is_cut) => Foreign::new(whole(text, *is_cut)).shown().to_string(),
        Cell::Stack(all) => all.first().map(Function::shown).unwrap_or_default(),
    }
}

/// The lines below a key's: of a stack who has called.
fn below(key: &[Cell]) -> Vec<String> {
    let callers = key.iter().filter_map(|cell| if let Cell::Stack(all) = cell { all.get(1..) } else { None });
    callers.flatten().map(|function| format!("      {}", function.shown())).collect()
}

/// So many in that time, per second.
fn rate(count: i128, per: Duration) -> String {
    let rate = count as f64 / per.as_secs_f64().max(1e-9);
    if rate.abs() < 9.95 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

fn number_of(word: u64, looks: Looks) -> i128 {
    if looks == Looks::Signed { word.cast_signed().into() } else { word.into() }
}

fn shown(word: u64, looks: Looks) -> String {
    match looks {
        Looks::Signed => word.cast_signed().to_string(),
        Looks::Time => time(word),
        _ => word.to_string(),
    }
}

/// The counts of powers of two.
fn octaves(counts: &[u64]) -> BTreeMap<usize, u64> {
    let mut octaves: BTreeMap<usize, u64> = BTreeMap::new();
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count != 0) {
        let octave = match Scale::Steps.least(bucket) {
            None => 0,
            Some(least) => Scale::Log2.bucket(least),
        };
        let all = octaves.entry(octave).or_default();
        *all = all.saturating_add(*count);
    }
    octaves
}

fn quantile_text(counts: &[u64], share: f64, looks: Looks) -> String {
    quantile(counts, share).map_or("below 0".into(), |at| shown(at.cast_unsigned(), looks))
}

/// One line per power of two, and percentiles.
fn histogram(out: &mut String, looks: Looks, counts: &[u64], per: Option<Duration>) {
    let octaves = octaves(counts);
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
    let rate = per.map(|per| format!(", {}/s", rate(total.into(), per))).unwrap_or_default();
    let [median, p90, p99] = [0.5, 0.9, 0.99].map(|share| quantile_text(counts, share, looks));
    let _ = writeln!(out, "  {total} in all{rate}; median {median}, p90 {p90}, p99 {p99}");
}
