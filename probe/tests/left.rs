//! Calls that exceptions, longjmp and the ends of threads and processes leave: they have their events, and
//! stand in trees where they were made.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, compiled_by, probe, scratch};
use rstest::rstest;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The program: `left HOW`.
fn left() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    let options = ["-O1", "-fno-optimize-sibling-calls", "-fomit-frame-pointer", "-pthread"];
    BUILT.get_or_init(|| {
        // Cross compilers are for C.
        if cfg!(target_arch = "x86_64") {
            compiled_by("c++", "left", &[&["-x", "c++"], &options[..]].concat())
        } else {
            compiled("left", &options)
        }
    })
}

/// All functions of the program that are told apart here.
const FUNCTIONS: [&str; 15] = [
    "main",
    "leaf",
    "thrower",
    "passed",
    "catcher",
    "jumper",
    "third",
    "second",
    "jumped",
    "ender",
    "ended",
    "waiter",
    "cancelled",
    "quitter",
    "quits",
];

/// A file that is gone with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn ran(command: &mut Command) -> Output {
    let output = command.output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    output
}

fn record(how: &str, options: &[&str]) -> Scratch {
    let file = Scratch(scratch("left"));
    let mut command = probe();
    command.args(["record", "-o"]).arg(&file.0).args(options);
    for function in FUNCTIONS {
        let fetch = if matches!(function, "main" | "ended" | "cancelled") { "" } else { " n=$arg1:s32" };
        command.args(["-p", &format!("r {}:{function}{fetch} $retval:s32", left())]);
    }
    ran(command.arg("--").args([left(), how]));
    file
}

fn asked(file: &Scratch, words: &[&str]) -> String {
    String::from_utf8_lossy(&ran(probe().args(words).arg(&file.0)).stdout).into_owned()
}

/// The tree of a record: for each line `left` or nothing, and the call with its argument.
fn tree(file: &Scratch) -> String {
    let mut out = String::new();
    for line in asked(file, &["graph"]).lines() {
        let Some((head, call)) = line.split_once("] | ") else { continue };
        let mark = if head.contains("left") { "left" } else { "" };
        let (name, rest) = call.split_once('(').unwrap_or((call, ""));
        let argument: String =
            rest.trim_start_matches("n=").chars().take_while(char::is_ascii_digit).collect();
        out += format!("{mark:>4} {name} {argument}").trim_end();
        out.push('\n');
    }
    out
}

#[cfg(target_arch = "x86_64")]
const THROWN: &str = "
     main
       catcher 1
         passed 1
           thrower 1
             leaf 1
left       } /* thrower */
           leaf 11
left     } /* passed */
         leaf 21
         leaf 31
       } /* catcher */
       catcher 2
         passed 2
           thrower 2
             leaf 2
left       } /* thrower */
           leaf 12
left     } /* passed */
         leaf 22
         leaf 32
       } /* catcher */
       leaf 50
     } /* main */
";

const JUMPED: &str = "
     main
       jumped 1
         second 1
           third 1
             jumper 1
               leaf 1
left         } /* jumper */
left       } /* third */
left     } /* second */
         leaf 21
       } /* jumped */
       jumped 2
         second 2
           third 2
             jumper 2
               leaf 2
left         } /* jumper */
left       } /* third */
left     } /* second */
         leaf 22
       } /* jumped */
       leaf 50
     } /* main */
";

const ENDED: &str = "
     main
       leaf 40
       leaf 50
     } /* main */
     ended
       ender 1
         leaf 1
left   } /* ender */
left } /* ended */
";

const CANCELLED: &str = "
     main
       leaf 40
       leaf 50
     } /* main */
     cancelled
       waiter 1
         leaf 1
left   } /* waiter */
left } /* cancelled */
";

const QUIT: &str = "
     main
       quits 1
         quitter 1
           leaf 1
left     } /* quitter */
left   } /* quits */
left } /* main */
";

const QUIT_AT_ONCE: &str = "
     main
       quits 2
         leaf 2
left   } /* quits */
left } /* main */
";

#[rstest]
#[cfg_attr(target_arch = "x86_64", case::an_exception("throw", THROWN))]
#[case::longjmp("jump", JUMPED)]
#[case::pthread_exit("thread", ENDED)]
#[case::cancellation("cancel", CANCELLED)]
#[case::exit("exit", QUIT)]
#[case::exit_at_once("_exit", QUIT_AT_ONCE)]
fn calls_that_are_left_stand_where_they_were_made(
    #[case] how: &str,
    #[case] want: &str,
    #[values(&[], &["--no-jumps"])] options: &[&str],
) {
    assert_eq!(tree(&record(how, options)), &want[1..]);
}

/// One record, looked at in every way.
#[test]
fn a_call_that_was_left_has_no_duration_and_no_value() {
    let file = record("jump", &[]);
    let lines: Vec<Value> = asked(&file, &["print", "--format", "json"])
        .lines()
        .map(|line| serde_json::from_str(line).expect("it is JSON"))
        .collect();
    let of = |name: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["event"] == format!("{name}%return")).collect()
    };
    for left in ["second", "third", "jumper"] {
        let all = of(left);
        assert_eq!(all.len(), 2, "{all:?}");
        for (n, event) in (1..).zip(all) {
            assert!(event["left_ns"].as_u64().is_some_and(|ns| ns > 0), "{event}");
            assert!(event.get("duration_ns").is_none(), "{event}");
            assert_eq!(event["args"], json!({ "n": n, "retval": null }));
        }
    }
    assert!(of("leaf").iter().all(|event| event["duration_ns"].is_u64() && event.get("left_ns").is_none()));
    let text = asked(&file, &["print"]);
    let line = text.lines().find(|line| line.contains("third%return")).expect("it has an event");
    let words: Vec<&str> = line.split_whitespace().skip(2).collect();
    assert_eq!(words, ["left", "third%return", "n=1"]);

    let report: Value = serde_json::from_str(&asked(&file, &["report", "--format", "json"])).unwrap();
    let row = |name: &str| {
        let rows = report["functions"].as_array().expect("there are rows");
        rows.iter().find(|row| row["function"] == name).unwrap_or_else(|| panic!("no {name}: {report}"))
    };
    let third = row("third");
    assert_eq!((&third["calls"], &third["left"], third.get("total_ns")), (&json!(0), &json!(2), None));
    assert_eq!((&row("leaf")["calls"], row("leaf").get("left")), (&json!(5), None));
    // What was called in it is in nobody's own time.
    let [total, own] = ["total_ns", "self_ns"].map(|key| row("jumped")[key].as_u64().expect("a time"));
    assert!(own < total, "{report}");
    let table = asked(&file, &["report"]);
    assert!(table.lines().next().is_some_and(|head| head.contains("CALLS  LEFT")), "{table}");

    let chrome: Value = serde_json::from_str(&asked(&file, &["export", "--format", "chrome"])).unwrap();
    let all = chrome["traceEvents"].as_array().expect("there are events");
    // In nanoseconds.
    let end = |event: &Value| {
        let ns = |key: &str| (event[key].as_f64().expect("a time") * 1e3).round() as u64;
        ns("ts") + ns("dur")
    };
    let named = |name: &str| all.iter().find(|event| event["name"] == name && event["ph"] == "X").unwrap();
    assert_eq!(named("third")["args"]["$left"], true);
    assert!(end(named("third")) <= end(named("second")), "{all:?}");
    assert!(named("leaf")["args"].get("$left").is_none());
}

/// Nobody knows what it would have returned, or when.
#[rstest]
#[case::its_value("$retval < 100 || $retval >= 100")]
#[case::its_time("$took < 1000s")]
#[case::an_argument("n > 0")]
fn no_condition_holds_for_a_call_that_was_left(#[case] condition: &str) {
    let file = Scratch(scratch("left"));
    let mut command = probe();
    command.args(["record", "--if", condition, "-o"]).arg(&file.0);
    for function in ["leaf", "third", "jumped"] {
        command.args(["-p", &format!("r {}:{function} n=$arg1:s32 $retval:s32", left())]);
    }
    ran(command.arg("--").args([left(), "jump"]));
    assert_eq!(tree(&file).matches("third").count(), 0);
    assert_eq!(tree(&file).matches("leaf").count(), 5);
}

/// They are traced as they are recorded.
#[test]
fn a_trace_says_that_a_call_was_left() {
    let probe_text = format!("r {}:third n=$arg1:s32 $retval", left());
    let output = ran(probe().args(["trace", "-p", &probe_text, "--", left(), "jump"]));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let events: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.contains("third%return") && line.contains("left-"))
        .map(|line| line.split_whitespace().skip(2).collect())
        .collect();
    assert_eq!(events, [["left", "third%return", "n=1"], ["left", "third%return", "n=2"]], "{text}");
    let row = text.lines().rfind(|line| line.starts_with("third%return")).expect("there is a row");
    // HITS, NESTED, NO ROOM, ABANDONED.
    assert_eq!(row.split_whitespace().skip(1).take(4).collect::<Vec<_>>(), ["0", "0", "0", "2"], "{text}");
}
