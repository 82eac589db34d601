//! Conditions: `--if`, run in the hit.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, assert_unchanged, trace, work};
use rstest::rstest;

/// Traces the program doing `what` with options in any order.
fn traced(what: &str, options: &[&str]) -> Traced {
    let program = [work(), what];
    let traced = trace(options, &[], &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.output.status.code(), Some(0), "{}", String::from_utf8_lossy(&traced.output.stderr));
    traced
}

/// fib(12) makes 465 calls; `count` of them pass, and each has an event.
#[rstest]
#[case::all("n < 13", 465)]
#[case::none("n > 12", 0)]
#[case::some("n == 12 || n == 11", 2)]
#[case::signed("n >= 0 && n - 12 == 0", 1)]
#[case::arithmetic("n * 2 + 1 == 25", 1)]
#[case::bits("n & 1 == 0 && n >> 1 == 6", 1)]
#[case::unfetched("$arg1:s32 == 12", 1)]
#[case::width("$arg1:u8 == 12 && $arg1:s64 != -1", 1)]
#[case::name("$comm ~ \"*work*\" && n == 12", 1)]
#[case::another_name("$comm == \"nobody\"", 0)]
#[case::task("$pid == $tid && n == 12", 1)]
#[case::processor("$cpu < 100000 && n == 12", 1)]
fn hits_that_pass_have_events_and_the_others_are_counted(#[case] condition: &str, #[case] count: usize) {
    let traced = traced("calls", &["--buffer", "1M", "-p", "p:fib fib n=$arg1:s32", "--if", condition]);
    assert_eq!(traced.named("fib").count(), count);
    let row = traced.row("fib");
    assert_eq!((&row["hits"], &row["passed"], &row["unjudged"]), (&465.into(), &count.into(), &0.into()));
    assert_eq!(traced.summary["lost_events"], 0);
}

#[test]
fn a_return_is_judged_by_its_value_its_duration_and_its_arguments() {
    let probes = [
        "-p",
        "r:big fib n=$arg1:s32 value=$retval:s32",
        "--if",
        "value > 50 && n != 12",
        "-p",
        "r:same fib",
        "--if",
        "$retval == 144",
        "--if",
        "$took > 0",
        "-p",
        "r:long fib",
        "--if",
        "$took > 10s",
        "-p",
        "r:all fib",
    ];
    let traced = traced("calls", &[&["--buffer", "1M"][..], &probes].concat());
    // fib(11) = 89 once, fib(10) = 55 twice.
    let values: Vec<i64> =
        traced.named("big").map(|event| event["args"]["value"].as_i64().unwrap()).collect();
    assert_eq!(values.len(), 3, "{values:?}");
    assert!(values.iter().all(|value| [89, 55].contains(value)));
    assert_eq!((traced.named("same").count(), traced.named("long").count()), (1, 0));
    let of = |name: &str| {
        let row = traced.row(name);
        let times = row["duration_ns"]["count"].as_u64().unwrap_or(0);
        (row["hits"].as_u64().unwrap(), row["passed"].as_u64(), times)
    };
    // Times are of what passes.
    assert_eq!(
        (of("big"), of("same"), of("long")),
        ((465, Some(3), 3), (465, Some(1), 1), (465, Some(0), 0))
    );
    assert_eq!(of("all"), (465, None, 465));
    let times: Vec<u64> = traced.events.iter().map(|event| event["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "judged and other events are merged by time");
}

#[test]
fn an_option_before_all_probes_belongs_to_all() {
    let options =
        ["--if", "$arg1:s32 == 12", "-p", "p:fib fib", "-p", "r:fibbed fib", "--if", "$retval == 143"];
    let traced = traced("calls", &options);
    let passed = |name: &str| traced.row(name)["passed"].as_u64();
    assert_eq!((passed("fib"), passed("fibbed")), (Some(1), Some(0)));
}

#[test]
fn texts_are_compared_and_matched() {
    let probes = [
        "-p",
        "p:all puts text=$arg1:string",
        "-p",
        "p:one puts text=$arg1:string",
        "--if",
        "text ~ \"0x1*No such*\"",
        "-p",
        "p:other puts text=$arg1:string",
        "--if",
        "text == \"0.1\"",
        "-p",
        "p:unneeded puts text=+0(\\8):string",
        "--if",
        "$arg1 != 0 || text == \"x\"",
    ];
    let traced = traced("calls", &probes);
    assert_eq!(traced.row("all")["hits"], 1);
    let passed = |name: &str| traced.row(name)["passed"].as_u64();
    assert_eq!((passed("one"), passed("other"), passed("unneeded")), (Some(1), Some(0), Some(1)));
}

#[test]
fn what_cannot_be_read_does_not_pass_and_is_told() {
    let probes = ["-p", "p:fib fib word=+0(\\8):u64", "--if", "!(word == 3)"];
    let traced = traced("calls", &probes);
    let row = traced.row("fib");
    assert_eq!((&row["hits"], &row["passed"], &row["unjudged"]), (&465.into(), &0.into(), &465.into()));
    let mut command = common::probe();
    command.arg("trace").args(probes).args(["--", work(), "calls"]);
    let said = command.output().expect("the command runs").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(
        said.contains("465 hits of fib did not pass: something that its condition needs could not be read"),
        "{said}"
    );
    let head = said.lines().find(|line| line.starts_with("EVENT")).expect("a table");
    assert!(
        head.split_whitespace().eq([
            "EVENT",
            "HITS",
            "PASSED",
            "NESTED",
            "NO",
            "ROOM",
            "ABANDONED",
            "DROPPED"
        ]),
        "{head}"
    );
}

#[test]
fn threads_and_children_are_judged_as_themselves() {
    let probes = [
        "--buffer",
        "1M",
        "-p",
        "p:main add",
        "--if",
        "$pid == $tid",
        "-p",
        "p:others add",
        "--if",
        "$pid != $tid",
    ];
    let threads = traced("threads", &probes);
    assert_eq!(
        (threads.row("main")["passed"].as_u64(), threads.row("others")["passed"].as_u64()),
        (Some(0), Some(8))
    );
    // The child's fib(10) has 177 calls, the parent's fib(5) 15; each is its own process' first thread.
    let child = traced("child", &["-f", "-p", "p:fib fib n=$arg1:s32", "--if", "$pid == $tid && n <= 5"]);
    let events: Vec<_> = child.named("fib").collect();
    assert!(events.iter().all(|event| event["args"]["n"].as_i64().unwrap() <= 5));
    assert_eq!(child.row("fib")["hits"], 15 + 177);
    assert_eq!(child.row("fib")["passed"].as_u64(), Some(events.len() as u64));
    let mut pids: Vec<_> = events.iter().map(|event| event["pid"].as_u64().unwrap()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 2);
}

/// Each mistake ends the command before the program, with a caret under it.
#[rstest]
#[case("siez > 1", "did you mean `size`", "    ^^^^")]
#[case("size > 1 and 2", "did you mean `&&`", "             ^^^")]
#[case("size > ", "a value is missing here", "           ^")]
fn a_mistake_is_shown_where_it_is(#[case] condition: &str, #[case] sentence: &str, #[case] caret: &str) {
    let mut command = common::probe();
    command.args(["trace", "-p", "p malloc size=$arg1:u64", "--if", condition, "--", work(), "calls"]);
    let output = command.output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(lines[0].starts_with("probe: ") && lines[0].contains(sentence), "{said}");
    assert_eq!((lines[1], lines[2]), (format!("    {condition}").as_str(), caret), "{said}");
    assert!(output.stdout.is_empty());
}
