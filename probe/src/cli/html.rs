//! `probe report --html`: one file to look at in a browser, which needs nothing else.
//!
//! It has what can be looked at: all functions, the ways that take time, the longest calls of each thread,
//! how many events there were when. So its size does not grow with the record's.

use super::args::{Choice, Report};
use super::calls::{Call, Part, Visitor, Walked};
use super::failure::{Failure, failed};
use super::fold::Folds;
use super::foreign::{self, Foreign};
use super::report;
use super::saved::{self, Origin};
use super::trace::Outcome;
use super::value;
use super::walk;
use crate::file::Event;
use serde_json::{Value as Json, json};
use std::cmp::Reverse;
use std::fs;
use std::io;
use std::path::Path;

const PAGE: &str = include_str!("page/report.html");
const STYLE: &str = include_str!("page/report.css");
const SCRIPT: &str = include_str!("page/report.js");

/// The threads that have a line of their own; the others have one together.
const MOST_LINES: usize = 32;
/// The longest calls that are shown over time, and how deep.
const MOST_SLICES: usize = 3_000;
const MOST_DEPTH: usize = 16;
/// Columns of a thread's line.
const BINS: u64 = 800;
/// The most ways that are shown, and of how much of the whole they are at the least.
const MOST_WAYS: usize = 20_000;
const LEAST_SHARE: u64 = 5_000;
/// Arguments are shown up to here.
const LONGEST_ARGS: usize = 200;

/// A thread's line.
struct Line {
    pid: u32,
    tid: u32,
    comm: Vec<u8>,
    events: u64,
    /// How many there were when.
    bins: Vec<u64>,
}

/// A call that is shown over time.
struct Slice {
    line: usize,
    depth: usize,
    function: usize,
    start_ns: u64,
    took_ns: u64,
    args: Box<[u8]>,
}

/// What is shown.
#[derive(Default)]
struct Looked {
    folds: Folds,
    lines: Vec<Line>,
    threads: usize,
    slices: Vec<Slice>,
    /// When the first event began, and how wide a column is.
    start_ns: u64,
    bin_ns: u64,
}

/// Writes the page of a record into a file.
///
/// # Errors
/// The record cannot be read, or the file not be written.
pub(super) fn run(args: &Report, path: &Path) -> Result<Outcome, Failure> {
    let origin = saved::origin(&args.choice)?;
    let functions = report::page(&args.choice, args.sort)?;
    let (looked, walked) = Looked::read(&args.choice, &origin)?;
    let data = looked.json(&origin, &functions, walked);
    fs::write(path, page(&data))
        .map_err(|error| failed(format!("`{}` cannot be written: {error}", foreign::path(path))))?;
    walked.warn();
    Outcome::written(Ok(()), "the page")
}

/// The page with its data in it.
fn page(data: &Json) -> String {
    // Nothing in it ends the element that it stands in.
    let data = foreign::json(data).replace('<', "\\u003c");
    let mut page = String::with_capacity(PAGE.len() + STYLE.len() + SCRIPT.len() + data.len());
    let mut rest = PAGE;
    for (mark, text) in [("/*STYLE*/", STYLE), ("/*DATA*/", &data), ("/*SCRIPT*/", SCRIPT)] {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(text);
        rest = after;
    }
    page + rest
}

impl Looked {
    fn read(choice: &Choice, origin: &Origin) -> Result<(Self, Walked), Failure> {
        let (start_ns, end_ns) = origin.times.unwrap_or_default();
        let bin_ns = 1 + (end_ns - start_ns) / BINS;
        let mut looked = Self { start_ns, bin_ns, ..Self::default() };
        let walked = walk::walk(choice, &Part::default(), &mut looked)?;
        looked.folds.sort();
        looked.prune(MOST_SLICES);
        // Nothing of it is written to anywhere.
        Ok((looked, walked.unwrap_or_default()))
    }

    /// The number of a thread's line.
    fn line(&mut self, call: &Call<'_>) -> usize {
        self.threads = self.threads.max(call.thread + 1);
        let index = call.thread.min(MOST_LINES);
        while self.lines.len() <= index {
            let (pid, tid, comm) = (call.pid, call.tid, call.comm.to_owned());
            self.lines.push(Line { pid, tid, comm, events: 0, bins: vec![0; BINS as usize] });
        }
        let line = &mut self.lines[index];
        if line.events == 0 {
            (line.pid, line.tid) = (call.pid, call.tid);
            line.comm = call.comm.to_owned();
        }
        index
    }

    fn add(&mut self, call: &Call<'_>) {
        let index = self.line(call);
        let end_ns = call.start_ns.saturating_add(call.took_ns.unwrap_or(0));
        let line = &mut self.lines[index];
        line.events += 1;
        // What is written meanwhile may be later.
        let bin = (end_ns.saturating_sub(self.start_ns) / self.bin_ns).min(BINS - 1);
        line.bins[bin as usize] += 1;
        let Some(took_ns) = call.took_ns else { return };
        if index == MOST_LINES || call.depth >= MOST_DEPTH {
            return;
        }
        let args = call.kept[..call.kept.len().min(LONGEST_ARGS)].into();
        let (depth, function, start_ns) = (call.depth, call.function, call.start_ns);
        self.slices.push(Slice { line: index, depth, function, start_ns, took_ns, args });
        if self.slices.len() > 4 * MOST_SLICES {
            self.prune(MOST_SLICES);
        }
    }

    /// Keeps the longest calls.
    fn prune(&mut self, most: usize) {
        if self.slices.len() > most {
            self.slices.select_nth_unstable_by_key(most, |slice| Reverse(slice.took_ns));
            self.slices.truncate(most);
        }
    }

    fn json(&self, origin: &Origin, functions: &Json, walked: Walked) -> Json {
        json!({
            "program": Foreign::new(origin.program.as_str()).shown().to_string(),
            "began_ms": origin.began_ns / 1_000_000,
            "is_whole": origin.is_whole,
            "events": walked.events,
            "lost": walked.lost,
            "functions": functions,
            "names": self.folds.names().map(|name| name.shown().to_string()).collect::<Vec<_>>(),
            "flame": self.flame(),
            "thread_count": self.threads,
            "threads": self.lines.iter().enumerate().map(|(index, line)| line.json(index)).collect::<Vec<_>>(),
            "bin_ns": self.bin_ns,
            "start_ns": self.start_ns,
            "end_ns": origin.times.unwrap_or_default().1,
            "slices": self.slices.iter().map(Slice::json).collect::<Vec<_>>(),
        })
    }

    /// Ways, each behind that it goes on from.
    fn flame(&self) -> Vec<Json> {
        let all_ns: u64 = self.folds.roots().map(|(_, root)| self.folds.inside_ns(root)).sum();
        let mut nodes = vec![json!([-1, "all", all_ns, 0, 0])];
        let mut to_do = Vec::new();
        for (comm, root) in self.folds.roots() {
            let index = nodes.len();
            nodes.push(json!([0, comm.shown().to_string(), self.folds.inside_ns(root), 0, 0]));
            to_do.extend(root.inside.iter().rev().map(|way| (index, *way)));
        }
        while let Some((parent, way)) = to_do.pop() {
            let fold = self.folds.way(way);
            if fold.total_ns < all_ns / LEAST_SHARE || nodes.len() >= MOST_WAYS {
                continue;
            }
            let index = nodes.len();
            let name = self.folds.name(fold.function).shown().to_string();
            nodes.push(json!([parent, name, fold.total_ns, fold.self_ns, fold.calls]));
            to_do.extend(fold.inside.iter().rev().map(|way| (index, *way)));
        }
        nodes
    }
}

impl Line {
    fn json(&self, index: usize) -> Json {
        let is_one = index < MOST_LINES;
        let comm = Foreign::new(self.comm.as_slice()).shown().to_string();
        json!({
            "name": if is_one { comm } else { "other threads".to_owned() },
            "pid": is_one.then_some(self.pid),
            "tid": is_one.then_some(self.tid),
            "events": self.events,
            "bins": self.bins,
        })
    }
}

impl Slice {
    fn json(&self) -> Json {
        let args = String::from_utf8_lossy(&self.args);
        json!([self.line, self.depth, self.function, self.start_ns, self.took_ns, args])
    }
}

impl Visitor for Looked {
    fn keep(&mut self, event: &Event<'_>) -> Box<[u8]> {
        value::kept_with_end(event)
    }

    fn function(&mut self, event: &Event<'_>) {
        self.folds.function(event);
    }

    fn enter(&mut self, call: Call<'_>) -> io::Result<()> {
        self.add(&call);
        self.folds.enter(call)
    }

    fn leave(&mut self, call: Call<'_>) -> io::Result<()> {
        self.folds.leave(call)
    }

    fn leaf(&mut self, call: Call<'_>) -> io::Result<()> {
        self.add(&call);
        self.folds.leaf(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EVT_2: names are somebody else's, and may say that the data ends there.
    #[test]
    fn evt_2_no_name_leaves_the_page_s_data() {
        let page = page(&json!({ "name": "</script><script>alert(1)</script><!--" }));
        assert_eq!(page.matches("</script").count(), 2);
        let data = page.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
        let data: Json = serde_json::from_str(data.unwrap().0).unwrap();
        assert_eq!(data["name"], "</script><script>alert(1)</script><!--");
        assert!(!["/*STYLE*/", "/*DATA*/", "/*SCRIPT*/"].iter().any(|mark| page.contains(mark)));
    }
}
