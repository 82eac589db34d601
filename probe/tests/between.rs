//! `--from` and `--to`: the time between two places of one thread.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, probe, scratch};
use rstest::rstest;
use serde_json::Value;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// How long the program rests, in nanoseconds.
const REST: u64 = 3_000_000;

fn between() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("between", &["-O1", "-pthread"]))
}

/// `probe COMMAND OPTIONS --from FROM --to TO MORE -- PROGRAM`.
fn ran(command: &str, options: &[&str], ends: [&str; 2], more: &[&str]) -> Output {
    let [from, to] = ends.map(|end| end.replace("PROGRAM", between()));
    let mut asked: Command = probe();
    asked.arg(command).args(options).args(["--from", &from, "--to", &to]).args(more).args(["--", between()]);
    let output = asked.output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    output
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{text}"))).collect()
}

const ENDS: [&str; 2] = ["p PROGRAM:first", "p PROGRAM:second n=$arg1:s32"];

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[rstest]
#[case::by_jumps(&[], ENDS)]
#[case::by_traps(&["--no-jumps"], ENDS)]
#[case::from_a_return(&[], ["r PROGRAM:first", ENDS[1]])]
#[case::to_a_return(&[], [ENDS[0], "r PROGRAM:second n=$arg1:s32"])]
fn the_time_between_two_places_is_of_one_thread_and_begins_anew(
    #[case] options: &[&str],
    #[case] ends: [&str; 2],
) {
    let first = format!("p:begun {}:first n=$arg1:s32", between());
    let output = ran("trace", &[options, &["--format", "json"]].concat(), ends, &["-p", &first]);
    let all = lines(&output);
    let timed: Vec<&Value> = all.iter().filter(|line| line.get("duration_ns").is_some()).collect();
    let n: Vec<_> = timed.iter().map(|event| event["args"]["n"].as_i64().unwrap()).collect();
    assert_eq!(n, [1, 4, 6], "{all:#?}");
    let begun: Vec<u64> =
        all.iter().filter(|line| line["event"] == "begun").map(|line| number(&line["time_ns"])).collect();
    assert_eq!(begun.len(), 4);
    let [one, four, _] =
        [0, 1, 2].map(|at| (number(&timed[at]["time_ns"]), number(&timed[at]["duration_ns"])));
    assert!(one.1 >= REST, "{one:?}");
    // Between the second and the third hit of `first` the program rests.
    assert!(four.0 - four.1 >= begun[1] + REST, "{four:?}, {begun:?}");
    let summary = all.last().expect("there is a summary");
    let rows = summary["probes"].as_array().or(summary["rows"].as_array()).expect("there are rows");
    let row = rows.iter().find(|row| row["symbol"] == "second").expect("there is a row of `second`");
    assert_eq!((&row["hits"], &row["duration_ns"]["count"]), (&6.into(), &3.into()), "{row}");
}

/// What is asked before the first probe, of all, is asked where the time ends.
#[rstest]
#[case::of_all(true)]
#[case::of_the_one_before(false)]
fn such_times_are_counted_and_judged_as_those_of_calls(#[case] is_of_all: bool) {
    let asked = &["--if", "$took >= 3ms", "--hist", "$took", "--by", "n"][..];
    let (of_all, of_one) = if is_of_all { (asked, &[][..]) } else { (&[][..], asked) };
    let output = ran("trace", of_all, ENDS, of_one);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let table = text.split("second: $took by n\n").nth(1).unwrap_or_else(|| panic!("{text}"));
    let keys: Vec<&str> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .take_while(|key| *key == "1")
        .collect();
    assert_eq!(keys, ["1"], "{text}");
}

#[test]
fn they_are_recorded_as_calls_are() {
    let file = scratch("between");
    let name = file.display().to_string();
    ran("record", &["-o", &name], ENDS, &[]);
    let said = |words: &[&str]| {
        let output = probe().args(words).arg(&file).output().expect("the command runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let report: Value = serde_json::from_str(&said(&["report", "--format", "json"])).expect("it is JSON");
    assert_eq!(report["functions"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(report["functions"][0]["calls"], 3);
    assert!(number(&report["functions"][0]["duration_ns"]["max"]) >= REST);
    assert_eq!(said(&["graph"]).matches("second(n=").count(), 3);
    std::fs::remove_file(&file).expect("it is there");
}

#[rstest]
#[case::no_end(&["--from", "p f"], "--to <DEF>", None)]
#[case::no_beginning(&["--to", "p f"], "--from <DEF>", None)]
#[case::no_time_yet(&["--from", "p f", "--if", "$took > 1ms", "--to", "p g"], "and --to have a `$took`", Some("$took"))]
#[case::no_definition(&["--from", "q f", "--to", "p g"], "starts with `p` (hit) or `r` (return)", Some("q"))]
fn what_is_wrong_is_said_with_its_place(
    #[case] words: &[&str],
    #[case] sentence: &str,
    #[case] blamed: Option<&str>,
) {
    let output = probe().arg("trace").args(words).args(["--", "true"]).output().expect("the command runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(sentence), "{text}");
    if let Some(blamed) = blamed {
        let lines: Vec<&str> = text.trim_end().lines().collect();
        let (carets, line) = (lines[lines.len() - 1], lines[lines.len() - 2]);
        assert_eq!(&line[carets.find('^').unwrap()..=carets.rfind('^').unwrap()], blamed, "{text}");
    }
}
