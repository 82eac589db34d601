//! What is counted in hits: `--hist`, `--sum`, `--by`, `--count-by`, `--top`, `--every`.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, assert_unchanged, trace, work};
use rstest::rstest;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;

fn traced(what: &str, options: &[&str]) -> Traced {
    let program = [work(), what];
    let traced = trace(options, &[], &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.output.status.code(), Some(0), "{}", String::from_utf8_lossy(&traced.output.stderr));
    traced
}

fn answers(traced: &Traced) -> &[Value] {
    traced.summary["answers"].as_array().expect("there are answers")
}

/// The rows of a table: each key's first word with the count.
fn counts(answer: &Value) -> BTreeMap<i64, u64> {
    let rows = answer["rows"].as_array().expect("a table");
    rows.iter().map(|row| (row["key"][0].as_i64().unwrap(), row["count"].as_u64().unwrap())).collect()
}

/// How often fib(12) calls fib(n).
fn calls_of_fib() -> BTreeMap<i64, u64> {
    fn call(n: i64, seen: &mut BTreeMap<i64, u64>) {
        *seen.entry(n).or_default() += 1;
        if n >= 2 {
            call(n - 1, seen);
            call(n - 2, seen);
        }
    }
    let mut seen = BTreeMap::new();
    call(12, &mut seen);
    seen
}

#[test]
fn hits_are_counted_by_a_number_and_sums_made_for_each() {
    let options = ["-p", "r:fib fib n=$arg1:s32", "--by", "n", "--sum", "$retval:s32", "--sum", "n - 1"];
    let traced = traced("calls", &options);
    assert!(traced.events.is_empty(), "what is counted is not told one by one");
    let [table] = answers(&traced) else { panic!("{}", traced.summary) };
    assert_eq!((&table["probe"], &table["by"], &table["lost"]), (&json!("fib"), &json!(["n"]), &json!(0)));
    let want = calls_of_fib();
    assert_eq!(counts(table), want);
    let value = |n: i64| (0..n).fold((0_i64, 1), |(a, b), _| (b, a + b)).0;
    let rows = table["rows"].as_array().unwrap();
    for row in rows {
        let n = row["key"][0].as_i64().unwrap();
        let hits = want[&n].cast_signed();
        assert_eq!(row["sums"]["$retval:s32"], value(n) * hits, "{row}");
        assert_eq!(row["sums"]["n - 1"], (n - 1) * hits, "{row}");
    }
    // The greatest sum first.
    let sums: Vec<i64> = rows.iter().map(|row| row["sums"]["$retval:s32"].as_i64().unwrap()).collect();
    assert!(sums.is_sorted_by(|a, b| a >= b), "{sums:?}");
}

#[test]
fn histograms_and_sums_are_of_the_hits_that_pass() {
    let options = [
        "-p",
        "p:fib fib n=$arg1:s32",
        "--if",
        "n >= 2",
        "--hist",
        "n",
        "--sum",
        "n",
        "--hist",
        "n - 100",
        "-p",
        "r:timed fib",
        "--hist",
        "$took",
    ];
    let traced = traced("calls", &options);
    let [sizes, below, sum, took] = answers(&traced) else { panic!("{}", traced.summary) };
    let passing = calls_of_fib().split_off(&2);
    let buckets: BTreeMap<i64, u64> = sizes["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| (bucket["from"].as_i64().unwrap(), bucket["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(buckets, passing);
    let total: u64 = passing.values().sum();
    assert_eq!((&sizes["count"], &sizes["p50"]), (&json!(total), &json!(3)));
    assert_eq!((&below["count"], &below["buckets"][0]["from"]), (&json!(total), &Value::Null));
    let want: i64 = passing.iter().map(|(n, count)| n * count.cast_signed()).sum();
    assert_eq!((&sum["type"], &sum["sum"]), (&json!("sum"), &json!(want)));
    assert_eq!((&took["of"], &took["count"]), (&json!("$took"), &json!(465)));
    assert_eq!(traced.row("fib")["passed"], total);
}

#[test]
fn two_keys_and_names_tell_hits_apart() {
    let options =
        ["-p", "p:sum sum", "--by", "$arg1:s32, $arg2:s32", "-p", "p:fib fib", "--count-by", "comm"];
    let traced = traced("calls", &options);
    let [pairs, names] = answers(&traced) else { panic!("{}", traced.summary) };
    assert_eq!(pairs["rows"], json!([{ "key": [1, 2], "count": 1, "sums": {} }]));
    let [row] = names["rows"].as_array().unwrap().as_slice() else { panic!("{names}") };
    assert!(row["key"][0].as_str().is_some_and(|name| name.contains("work")), "{row}");
    assert_eq!((&row["count"], &names["by"]), (&json!(465), &json!(["$comm"])));
}

#[test]
fn counts_of_threads_and_children_are_exact() {
    let threads = traced(
        "threads",
        &["-p", "r:made malloc size=$arg1:u64", "--if", "size >= 16 && size < 116", "--by", "size"],
    );
    let [table] = answers(&threads) else { panic!("{}", threads.summary) };
    let row = threads.row("made");
    assert_eq!(counts(table).values().sum::<u64>(), row["passed"].as_u64().unwrap());
    // Eight threads ask for each size once.
    for size in 16..116 {
        assert!(counts(table).get(&size).is_some_and(|count| *count >= 8), "{size}: {table}");
    }
    let child =
        traced("child", &["-f", "-p", "p:fib fib n=$arg1:s32", "--by", "n", "-p", "p:sum fib", "--sum", "1"]);
    let [table, sum] = answers(&child) else { panic!("{}", child.summary) };
    assert_eq!((counts(table).values().sum::<u64>(), &sum["sum"]), (15 + 177, &json!(15 + 177)));
}

#[test]
fn texts_tell_hits_apart_alone_and_beside_others() {
    let options = [
        "-p",
        "p:named take_text text=$arg1:string len=$arg2:u64",
        "--by",
        "text, len",
        "--sum",
        "len",
        "-p",
        "p:again take_text text=$arg1:string",
        "--by",
        "$comm, text",
        "-p",
        "p:gone take_text text=+0(\\0):string",
        "--by",
        "text",
    ];
    let traced = traced("texts", &options);
    let [named, again, gone] = answers(&traced) else { panic!("{}", traced.summary) };
    let whole = "x".repeat(232);
    let long = format!("{whole}…");
    let want = json!([
        { "key": [long, 300], "count": 2, "sums": { "len": 600 } },
        { "key": [whole, 232], "count": 1, "sums": { "len": 232 } },
        { "key": ["two", 3], "count": 10, "sums": { "len": 30 } },
        { "key": ["one", 3], "count": 5, "sums": { "len": 15 } },
        { "key": ["", 0], "count": 1, "sums": { "len": 0 } },
    ]);
    assert_eq!((&named["rows"], &named["by"]), (&want, &json!(["text", "len"])));
    assert_eq!((&gone["rows"], &traced.row("gone")["unjudged"]), (&json!([]), &json!(19)));
    let rows = again["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["key"][0].as_str().unwrap().contains("work")), "{again}");
    let texts: Vec<_> = rows.iter().map(|row| (&row["key"][1], &row["count"])).collect();
    // What is kept of two long texts is the same.
    let want = [(json!("two"), 10), (json!("one"), 5), (json!(long), 2), (json!(""), 1), (json!(whole), 1)];
    let want: Vec<_> = want.into_iter().map(|(text, count)| (text, json!(count))).collect();
    assert_eq!(texts, want.iter().map(|(text, count)| (text, count)).collect::<Vec<_>>());
}

/// Callers have their functions' names, whatever program they are in.
#[test]
fn callers_tell_hits_apart_at_entry_and_at_return() {
    let options = [
        "-p",
        "r:left fib",
        "--by",
        "$caller",
        "-p",
        "p:entered fib",
        "--by",
        "$caller",
        "-p",
        "r:both fib n=$arg1:s32",
        "--if",
        "n == 1",
        "--by",
        "$retval:s32, $caller",
    ];
    let once = traced("calls", &options);
    let [left, entered, both] = answers(&once) else { panic!("{}", once.summary) };
    for table in [left, entered] {
        let [own, other] = table["rows"].as_array().unwrap().as_slice() else { panic!("{table}") };
        assert_eq!((&own["key"], &own["count"], &other["count"]), (&json!(["fib"]), &json!(464), &json!(1)));
        assert!(["calls", "main"].iter().any(|name| other["key"] == json!([name])), "{other}");
    }
    assert_eq!(both["rows"], json!([{ "key": [1, "fib"], "count": 144, "sums": {} }]));
    if common::is_emulated() {
        return;
    }
    let twice = format!("{0} calls; {0} calls", work());
    let definition = format!("p:entered {}:fib", work().rsplit('/').next().unwrap());
    let twice = trace(&["-f", "-p", &definition, "--by", "$caller"], &[], &["sh", "-c", &twice]);
    let rows = answers(&twice)[0]["rows"].as_array().unwrap();
    let own = rows.iter().find(|row| row["key"][0] == "fib").unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!((&own["count"], rows.len()), (&json!(928), 2));
}

#[test]
fn histograms_are_made_for_each_key() {
    let options = [
        "-p",
        "r:fib fib n=$arg1:s32",
        "--hist",
        "$retval:s32",
        "--by",
        "n",
        "-p",
        "p:named take_text text=$arg1:string len=$arg2:u64",
        "--hist",
        "len",
        "--by",
        "text",
        "--sum",
        "len",
    ];
    let traced_calls = traced("calls", &options[..6]);
    let [table] = answers(&traced_calls) else { panic!("{}", traced_calls.summary) };
    let want = calls_of_fib();
    let rows = table["rows"].as_array().unwrap();
    assert_eq!((rows.len(), &table["of"], &table["by"]), (13, &json!("$retval:s32"), &json!(["n"])));
    for row in rows {
        let n = row["key"][0].as_i64().unwrap();
        let value = (0..n).fold((0_i64, 1), |(a, b), _| (b, a + b)).0;
        assert_eq!(row["count"], want[&n], "{row}");
        let [bucket] = row["buckets"].as_array().unwrap().as_slice() else { panic!("{row}") };
        let (from, below) = (bucket["from"].as_i64().unwrap(), bucket["below"].as_i64().unwrap());
        assert!((from..below).contains(&value) && bucket["count"] == want[&n], "{row}");
    }
    let texts = traced("texts", &options[6..]);
    let [sizes, table] = answers(&texts) else { panic!("{}", texts.summary) };
    let row = sizes["rows"].as_array().unwrap().iter().find(|row| row["key"][0] == "two").unwrap();
    assert_eq!((&row["count"], &row["buckets"][0]["from"], &row["p99"]), (&json!(10), &json!(3), &json!(3)));
    assert_eq!(table["rows"][0]["sums"]["len"], 600, "{table}");
}

/// The maps are the command's memory, too: a program that is killed takes nothing with it.
#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn a_killed_programs_counts_are_there() {
    let script = "import os\nfor i in range(1000): os.getppid()\nos.kill(os.getpid(), 9)";
    let python = common::program("python3");
    let mut command = common::probe();
    let file = common::scratch("killed.json");
    command.args(["trace", "--format", "json", "-o"]).arg(&file);
    command.args(["-p", "p:asked libc.so.6:getppid", "--sum", "2", "--", &python, "-c", script]);
    let output = command.output().expect("the command runs");
    let text = std::fs::read_to_string(&file).expect("it was written");
    let summary: Value = serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON");
    assert_eq!(output.status.signal(), Some(9), "{output:?}");
    assert_eq!(summary["answers"][0]["sum"], 2000, "{summary}");
}

#[test]
fn text_shows_the_most_first_in_columns_that_line_up() {
    let mut command = common::probe();
    command.args([
        "trace",
        "--top",
        "3",
        "-p",
        "r:fib fib n=$arg1:s32",
        "--by",
        "n",
        "-p",
        "p:sizes fib n=$arg1:s32",
        "--hist",
        "n",
    ]);
    let output = command.args(["--", work(), "calls"]).output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let from = said.find("\nfib by n\n").unwrap_or_else(|| panic!("{said}"));
    let mut lines = said[from + 1..].lines().skip(1);
    let head: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(head, ["n", "HITS"]);
    let rows: Vec<&str> = lines.by_ref().take(3).collect();
    let numbers: Vec<Vec<&str>> = rows.iter().map(|row| row.split_whitespace().take(2).collect()).collect();
    assert_eq!(numbers, [["1", "144"], ["0", "89"], ["2", "89"]], "{said}");
    let ends: Vec<usize> = rows.iter().map(|row| row.find('█').unwrap()).collect();
    assert!(ends.iter().all(|end| *end == ends[0]), "{said}");
    assert!(lines.next().unwrap().contains("and 10 more"), "{said}");
    assert!(said.contains("\nsizes: n\n") && said.contains("465 in all; median 1, p90 5, p99 9"), "{said}");
    assert!(!said.contains('\x1b'), "no colours but on a terminal");
}

#[test]
fn every_interval_tells_what_has_come_since() {
    let traced_events = {
        let file = common::scratch("every.json");
        let mut command = common::probe();
        command.args(["trace", "--format", "json", "--every", "1ms", "-o"]).arg(&file);
        command.args(["-p", "p:locked pthread_mutex_lock", "--sum", "1", "--", work(), "threads"]);
        assert!(command.status().expect("the command runs").success());
        std::fs::read_to_string(&file).expect("it was written")
    };
    let mut lines: Vec<Value> =
        traced_events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap();
    let told: Vec<&Value> = lines.iter().filter(|line| line["type"] == "answers").collect();
    assert!(!told.is_empty(), "{summary}");
    assert!(told.iter().all(|line| line["interval_ns"].as_u64().unwrap() > 0), "{told:?}");
    let part: u64 = told.iter().map(|line| line["answers"][0]["sum"].as_u64().unwrap()).sum();
    let all = summary["answers"][0]["sum"].as_u64().unwrap();
    assert!(part <= all && all >= 800, "{part} of {all}");
    assert_eq!(summary["probes"][0]["hits"], all);
}

#[rstest]
#[case(&["--by", "n, n, n"], "at most two keys")]
#[case(&["--by", "\"path\""], "tells no hits apart")]
#[case(&["--by", "n < 3"], "a comparison is no key")]
#[case(&["--by", "n", "--by", "n"], "has one --by")]
#[case(&["--by", "n, path", "--hist", "n"], "has one key")]
#[case(&["--sum", "$caller"], "tells hits apart, and nothing else")]
#[case(&["-p", "p fib+4", "--by", "$caller"], "where a function begins")]
#[case(&["--hist", "n < 3"], "no number")]
#[case(&["--sum", "n, n"], "no list")]
fn what_cannot_be_counted_is_refused(#[case] options: &[&str], #[case] part: &str) {
    let mut command = common::probe();
    command.args(["trace", "-p", "p fib n=$arg1:s32 path=$arg2:string"]).args(options);
    let output = command.args(["--", work(), "calls"]).output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains(part), "{said}");
    assert!(output.stdout.is_empty());
}
