//! `probe report`, `graph` and `export`: what a record's events add up to, who called whom, and other
//! formats.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;
#[path = "common/perfetto.rs"]
mod perfetto;

use common::{compiled, probe, program, scratch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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
    let ways: BTreeMap<&str, u64> = folded
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

/// The time of each way, of which folded lines have what was spent in its last function.
fn ways(folded: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for line in folded.lines() {
        let (way, ns) = line.rsplit_once(' ').expect("two words");
        let ends = way.match_indices(';').map(|(at, _)| at).chain([way.len()]);
        ends.for_each(|end| {
            *all.entry(way[..end].to_owned()).or_default() += ns.parse::<u64>().expect("a number")
        });
    }
    all
}

/// Python's own reader of XML.
#[test]
fn a_flame_graph_has_every_way_with_its_time() {
    let file = record(&nested_probes(), &[nested(), "50"]);
    let svg = scratch("svg");
    let said = asked(&["export", "--format", "svg", "-o", svg.to_str().expect("a path")], &file.0);
    assert_eq!(said, "");
    let script = "import sys, xml.etree.ElementTree as t\n\
                  for e in t.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}title'): print(e.text)";
    let output = Command::new("python3").args(["-c", script]).arg(&svg).output().expect("there is a Python");
    let _ = std::fs::remove_file(&svg);
    assert!(output.status.success(), "{output:?}");
    let titles = String::from_utf8_lossy(&output.stdout).into_owned();
    // `outer (12,345 ns, 67.89%)`
    let mut drawn: Vec<(String, u64)> = titles
        .lines()
        .filter_map(|title| title.split_once(" ("))
        .map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap_or_default().replace(',', "")))
        .map(|(name, ns)| (name, ns.parse().unwrap_or_else(|_| panic!("{titles}"))))
        .collect();
    let ways = ways(&asked(&["export"], &file.0));
    let all = ways.iter().filter(|(way, _)| !way.contains(';')).map(|(_, ns)| ns).sum();
    let last = |way: &String| way.rsplit(';').next().unwrap_or_default().to_owned();
    let mut want: Vec<(String, u64)> = ways.iter().map(|(way, ns)| (last(way), *ns)).collect();
    want.push(("all".to_owned(), all));
    // What is too narrow to be seen is not drawn.
    want.retain(|(_, ns)| ns * 1000 > all);
    drawn.retain(|(_, ns)| ns * 1000 > all);
    want.sort();
    drawn.sort();
    assert_eq!(drawn, want);
    let hits = record(&["p mark n=$arg1:s32"], &[nested(), "1"]);
    let output = probe().args(["export", "--format", "svg"]).arg(&hits.0).output().expect("it runs");
    assert!(output.status.code() == Some(2) && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn perfettos_messages_are_the_tree_of_calls() {
    use prost::Message;
    let file = record(&nested_probes(), &[nested(), "5"]);
    let output = probe().args(["export", "--format", "perfetto"]).arg(&file.0).output().expect("it runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let trace = perfetto::Trace::decode(&output.stdout[..]).expect("a trace of Perfetto");
    assert!(
        trace.packet[0].sequence_flags == 1 && trace.packet.iter().all(|p| p.trusted_packet_sequence_id == 1)
    );
    let (mut names, mut threads) = (BTreeMap::new(), BTreeMap::new());
    let mut open: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut calls = Vec::new();
    for packet in &trace.packet {
        for name in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            names.insert(name.iid, name.name.clone());
        }
        if let Some((track, thread)) =
            packet.track_descriptor.as_ref().and_then(|t| Some((t, t.thread.as_ref()?)))
        {
            threads.insert(track.uuid, (thread.pid as u64, thread.tid as u64));
            let name = Path::new(nested()).file_name().and_then(|name| name.to_str()).expect("a name");
            assert!(!thread.thread_name.is_empty() && name.starts_with(&thread.thread_name), "{thread:?}");
        }
        let Some(event) = &packet.track_event else { continue };
        let (pid, tid) = threads[&event.track_uuid];
        let open = open.entry(event.track_uuid).or_default();
        if event.kind == 2 {
            let (name, start_ns) = open.pop().expect("what ends has begun");
            calls.push((pid, tid, names[&name].clone(), start_ns, packet.timestamp));
            continue;
        }
        assert!(event.kind == 1 || names[&event.name_iid] == "mark" && event.kind == 3);
        let n = &event.debug_annotations[0];
        assert!(n.name == "n" && (n.uint_value.is_some() || n.int_value.is_some()), "{n:?}");
        if event.kind == 1 {
            open.push((event.name_iid, packet.timestamp));
        }
    }
    assert!(open.values().all(Vec::is_empty));
    let mut want: Vec<_> = printed(&file.0, &["--event", "*%return"])
        .iter()
        .map(|event| {
            let (end_ns, took_ns) = (number(&event["time_ns"]), number(&event["duration_ns"]));
            let name = event["symbol"].as_str().expect("a name").to_owned();
            (number(&event["pid"]), number(&event["tid"]), name, end_ns - took_ns, end_ns)
        })
        .collect();
    want.sort();
    calls.sort();
    assert_eq!(calls, want);
}

#[test]
fn firefoxs_profile_adds_up_to_the_time_of_each_way() {
    let file = record(&nested_probes(), &[nested(), "50"]);
    let profile: Value =
        serde_json::from_str(&asked(&["export", "--format", "firefox"], &file.0)).expect("JSON");
    let at = |table: &Value, column: &str, row: &Value| table[column][number(row) as usize].clone();
    let (mut found, mut markers): (BTreeMap<String, u64>, usize) = Default::default();
    let threads = profile["threads"].as_array().expect("an array");
    assert_eq!(threads.len(), 2);
    for thread in threads {
        let strings = thread["stringArray"].as_array().or(profile["shared"]["stringArray"].as_array());
        let strings = strings.expect("names");
        let (samples, stacks) = (&thread["samples"], &thread["stackTable"]);
        let weights = samples["weight"].as_array().expect("weights");
        for (stack, weight) in samples["stack"].as_array().expect("stacks").iter().zip(weights) {
            let mut way = Vec::new();
            let mut stack = stack.clone();
            while !stack.is_null() {
                let function = at(&thread["frameTable"], "func", &at(stacks, "frame", &stack));
                let name = number(&at(&thread["funcTable"], "name", &function)) as usize;
                way.insert(0, strings[name].as_str().expect("a name").to_owned());
                stack = at(stacks, "prefix", &stack);
            }
            *found.entry(way.join(";")).or_default() += number(weight);
        }
        markers += thread["markers"]["data"].as_array().expect("markers").len();
    }
    assert_eq!(markers, printed(&file.0, &[]).len() - 1);
    for line in asked(&["export"], &file.0).lines() {
        let (way, ns) = line.split_once(';').and_then(|(_, way)| way.rsplit_once(' ')).expect("two words");
        let (ns, micros) = (ns.parse::<u64>().expect("a number"), found[way]);
        // Each change of a stack is a microsecond off at the most, and its rest is the next one's.
        assert!((micros * 1000).abs_diff(ns) <= 600_000, "{way}: {micros} µs, {ns} ns");
    }
    let all = |ns: u64| ns.abs_diff(found.values().sum::<u64>() * 1000);
    let own: u64 =
        asked(&["export"], &file.0).lines().filter_map(|l| l.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
    assert!(all(own) < 200_000 + own / 100, "{found:?} {own}");
}

/// The data of a page, as a browser would read it.
fn data(page: &str) -> Value {
    let data = page.split_once("id=\"data\">").and_then(|(_, rest)| rest.split_once("</script>"));
    serde_json::from_str(data.expect("it has data").0).expect("JSON")
}

#[test]
fn a_page_has_what_the_other_reports_have_and_needs_nothing_else() {
    let file = record(&nested_probes(), &[nested(), "50"]);
    let path = scratch("html");
    assert_eq!(asked(&["report", "--html", path.to_str().expect("a path")], &file.0), "");
    let page = std::fs::read_to_string(&path).expect("it was written");
    let _ = std::fs::remove_file(&path);
    assert!(
        page.contains("default-src 'none'") && !page.contains("http:") && !page.contains("https:"),
        "a network"
    );
    assert!(!page.contains("src=") && !page.contains("<link"), "another file");
    let data = data(&page);
    let all = report(&file.0, &[]);
    for theirs in data["functions"].as_array().expect("functions") {
        let ours = row(&all, theirs["name"].as_str().expect("a name"), None);
        assert_eq!((&theirs["calls"], &theirs["self_ns"]), (&ours["calls"], &ours["self_ns"]));
        assert_eq!(theirs["p99_ns"], ours["duration_ns"]["p99"]);
        let buckets =
            theirs["buckets"].as_array().map(|all| all.iter().map(|one| number(&one[1])).sum::<u64>());
        assert!(buckets.is_none_or(|calls| calls == number(&ours["calls"])), "{theirs}");
    }
    let nodes = data["flame"].as_array().expect("nodes");
    let folded = ways(&asked(&["export"], &file.0));
    for index in 1..nodes.len() {
        let mut way = Vec::new();
        let mut at = index;
        while at > 0 {
            way.insert(0, nodes[at][1].as_str().expect("a name"));
            at = number(&nodes[at][0]) as usize;
        }
        assert_eq!(number(&nodes[index][2]), folded[&way.join(";")], "{way:?}");
    }
    assert_eq!(
        (&data["thread_count"], &data["is_whole"], &data["lost"]),
        (&2.into(), &true.into(), &0.into())
    );
    let events = printed(&file.0, &[]).len() as u64 - 1;
    let sum =
        |of: &dyn Fn(&Value) -> u64| data["threads"].as_array().expect("threads").iter().map(of).sum::<u64>();
    assert_eq!(sum(&|thread| number(&thread["events"])), events);
    assert_eq!(sum(&|thread| thread["bins"].as_array().expect("bins").iter().map(number).sum()), events);
    assert_eq!(data["slices"].as_array().map(Vec::len), Some(events as usize - 100), "all but hits");
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
