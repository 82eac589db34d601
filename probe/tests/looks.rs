//! `probe report`, `graph` and `export`: what a record's events add up to, who called whom, and other
//! formats.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, probe, program, scratch};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

/// A file that is gone with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn record(probes: &[&str], of: &[&str]) -> Scratch {
    let file = Scratch(scratch("record"));
    let mut command = probe();
    command.args(["record", "-o"]).arg(&file.0);
    probes.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    let output = command.arg("--").arg(program(of[0])).args(&of[1..]).output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    file
}

fn asked(words: &[&str], file: &Path) -> String {
    let output = probe().args(words).arg(file).output().expect("the command runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("it is text")
}

fn lines(output: &Output) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    String::from_utf8_lossy(&output.stdout).lines().map(line).collect()
}

fn printed(file: &Path, options: &[&str]) -> Vec<Value> {
    let output = probe().args(["print", "--format", "json"]).args(options).arg(file).output();
    lines(&output.expect("the command runs"))
}

fn report(file: &Path, options: &[&str]) -> Value {
    let output = probe().arg("report").arg(file).args(["--format", "json"]).args(options).output();
    let output = output.expect("the command runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    lines(&output).remove(0)
}

fn row<'a>(report: &'a Value, function: &str, by: Option<&str>) -> &'a Value {
    let rows = report["functions"].as_array().expect("there are rows");
    let found = rows.iter().find(|row| row["function"] == function && row["by"].as_str() == by);
    found.unwrap_or_else(|| panic!("no {function} {by:?}: {report}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// A program whose calls nest: `nested [times]`.
fn nested() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("nested", &["-O1", "-fno-optimize-sibling-calls", "-pthread"]))
}

/// Its functions; a name of a function is enough.
fn nested_probes() -> [&'static str; 5] {
    [
        "r outer n=$arg1:s32",
        "r inner n=$arg1:s32 $retval:s32",
        "r leaf n=$arg1:s32",
        "r deep n=$arg1:s32",
        "p mark n=$arg1:s32",
    ]
}

#[test]
fn a_report_is_what_its_events_add_up_to() {
    let file = record(&nested_probes(), &[nested(), "50"]);
    let events = printed(&file.0, &["--event", "*%return"]);
    let all = report(&file.0, &[]);
    assert_eq!(all["lost_events"], 0);
    assert!(all["is_whole"] == true && all["functions"].as_array().map(Vec::len) == Some(5), "{all}");
    for name in ["outer", "inner", "leaf", "deep"] {
        let event = format!("{name}%return");
        let mut times: Vec<u64> =
            events.iter().filter(|e| e["event"] == *event).map(|e| number(&e["duration_ns"])).collect();
        times.sort_unstable();
        let row = row(&all, name, None);
        assert_eq!(
            (number(&row["calls"]), number(&row["total_ns"])),
            (times.len() as u64, times.iter().sum())
        );
        let of = &row["duration_ns"];
        assert_eq!((number(&of["min"]), number(&of["max"])), (times[0], times[times.len() - 1]));
        let median = times[(times.len() - 1) / 2];
        assert!(number(&of["median"]).abs_diff(median) <= median / 32 + 1, "{of} {median}");
    }
    assert_eq!(row(&all, "mark", None), &serde_json::json!({ "function": "mark", "calls": 100 }));
    // outer calls inner and leaf, inner calls leaf: what is not in their own time is in that of a call.
    let own = |name: &str| number(&row(&all, name, None)["self_ns"]);
    let total = |name: &str| number(&row(&all, name, None)["total_ns"]);
    assert_eq!(own("leaf"), total("leaf"));
    assert_eq!(own("outer") + own("inner") + own("leaf"), total("outer"));
}

#[test]
fn a_report_tells_callers_tasks_and_arguments_apart() {
    let file = record(&nested_probes(), &[nested(), "50"]);
    let calls = |by: &str, function: &str, key: &str| {
        number(&row(&report(&file.0, &["--by", by]), function, Some(key))["calls"])
    };
    assert_eq!((calls("caller", "leaf", "outer"), calls("caller", "leaf", "inner")), (100, 200));
    assert_eq!((calls("caller", "inner", "outer"), calls("caller", "outer", "-")), (100, 100));
    assert_eq!((calls("caller", "deep", "deep"), calls("caller", "deep", "-")), (2 * 4, 2));
    assert_eq!((calls("n", "outer", "7"), calls("n", "mark", "49")), (2, 2));
    let tasks = report(&file.0, &["--by", "task"]);
    let outer = |row: &&Value| row["function"] == "outer";
    let rows: Vec<&Value> = tasks["functions"].as_array().expect("rows").iter().filter(outer).collect();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["calls"] == 50), "{tasks}");
    let output = probe().arg("report").arg(&file.0).args(["--by", "nothing"]).output().expect("it runs");
    assert!(output.status.code() == Some(2), "{output:?}");
}

#[test]
fn a_report_is_sorted_and_compared() {
    let few = record(&nested_probes(), &[nested(), "10"]);
    let many = record(&nested_probes(), &[nested(), "50"]);
    let first = |options: &[&str]| report(&many.0, options)["functions"][0]["function"].clone();
    assert_eq!((first(&["--sort", "calls"]), first(&["--sort", "name"])), ("leaf".into(), "deep".into()));
    assert_eq!(first(&["--event", "mark"]), "mark");
    let difference = report(&many.0, &["--diff", few.0.to_str().expect("a path"), "--sort", "calls"]);
    let leaf = &difference["functions"][0];
    assert_eq!(
        (&leaf["function"], &leaf["calls"], &leaf["before"]["calls"]),
        (&"leaf".into(), &300.into(), &60.into())
    );
    let output = probe().arg("report").arg(&many.0).args(["--top", "1"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.trim_start().starts_with("TOTAL"), "{text}");
    assert!(text.lines().count() == 3 && text.ends_with("… and 4 more\n"), "{text}");
    assert!(text.contains("SELF") && text.contains("MEDIAN") && text.contains("outer"), "{text}");
}

/// The names in a tree's lines, with two blanks for each level.
fn tree(text: &str) -> Vec<String> {
    let after = |line: &str| line.split_once(" | ").map(|(_, call)| call.to_owned());
    text.lines().filter_map(after).collect()
}

#[test]
fn a_graph_is_the_tree_of_calls() {
    let file = record(&nested_probes(), &[nested(), "1"]);
    let want = "\
outer(n=0) {
  inner(n=0 retval=1) {
    leaf(n=0);
    leaf(n=1);
  } /* inner */
  mark(n=0);
  leaf(n=0);
} /* outer */
deep(n=4) {
  deep(n=3) {
    deep(n=2) {
      deep(n=1) {
        deep(n=0);
      } /* deep */
    } /* deep */
  } /* deep */
} /* deep */";
    let lines: Vec<&str> = want.lines().collect();
    let text = asked(&["graph"], &file.0);
    assert!(text.starts_with("# DURATION     TID     FUNCTION\n"), "{text}");
    assert_eq!(tree(&text), [&lines[..], &lines[..]].concat(), "of both threads");
    let short = tree(&asked(&["graph", "--depth", "2", "--event", "[!d]*"], &file.0));
    let want = ["outer(n=0) {", "  inner(n=0 retval=1);", "  mark(n=0);", "  leaf(n=0);", "} /* outer */"];
    assert_eq!(short, [want, want].concat());
    assert!(tree(&asked(&["graph", "--time", "1h", "--event", "*%return"], &file.0)).is_empty());
}

#[test]
fn ways_are_put_together_with_their_times() {
    let file = record(&nested_probes()[..3], &[nested(), "50"]);
    let of = report(&file.0, &[]);
    let own = |name: &str| number(&row(&of, name, None)["self_ns"]);
    let folded = asked(&["export"], &file.0);
    let ways: std::collections::BTreeMap<&str, u64> = folded
        .lines()
        .map(|line| line.rsplit_once(' ').map(|(way, ns)| (way, ns.parse().expect("a number"))).expect("two"))
        .collect();
    let ends =
        |end: &str| -> u64 { ways.iter().filter(|(way, _)| way.ends_with(end)).map(|(_, ns)| ns).sum() };
    assert_eq!(ways.len(), 4, "{folded}");
    assert_eq!((ends(";outer"), ends(";outer;inner")), (own("outer"), own("inner")));
    assert_eq!(ends(";outer;leaf") + ends(";outer;inner;leaf"), own("leaf"));
    let text = asked(&["graph", "--aggregate"], &file.0);
    let calls = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some((words.last()?.to_string(), words.get(words.len().checked_sub(2)?)?.parse::<u64>().ok()?))
    };
    let calls: Vec<_> = text.lines().filter_map(calls).collect();
    let mut want = vec![("outer", 100), ("inner", 100), ("leaf", 200), ("leaf", 100)];
    want.sort_unstable();
    let mut calls: Vec<(&str, u64)> = calls.iter().map(|(name, calls)| (name.as_str(), *calls)).collect();
    calls.sort_unstable();
    assert_eq!(calls, want, "{text}");
}

#[test]
fn chromes_json_has_every_event() {
    let file = record(&nested_probes(), &[nested(), "5"]);
    let all: Value = serde_json::from_str(&asked(&["export", "--format", "chrome"], &file.0)).expect("JSON");
    let events = all["traceEvents"].as_array().expect("an array");
    let of = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
    let recorded = printed(&file.0, &["--event", "*%return"]);
    let recorded = &recorded[..];
    assert_eq!((of("X").len(), of("i").len(), of("M").len()), (recorded.len(), 10, 2));
    for (theirs, ours) in of("X").iter().zip(recorded) {
        let end_ns = (theirs["ts"].as_f64().expect("a time") + theirs["dur"].as_f64().expect("one")) * 1e3;
        assert!((end_ns - number(&ours["time_ns"]) as f64).abs() < 1.0, "{theirs} {ours}");
        assert_eq!((&theirs["args"], &theirs["tid"]), (&ours["args"], &ours["tid"]));
    }
}

/// EVT_2: names from a record, too.
#[test]
fn evt_2_what_is_no_record_is_said_by_all() {
    for command in ["report", "graph", "export"] {
        let output = probe().args([command, nested()]).output().expect("the command runs");
        assert!(output.status.code() == Some(125) && output.stdout.len() < 40, "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("no file of `probe record`"), "{output:?}");
    }
}
