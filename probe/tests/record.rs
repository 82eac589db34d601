//! `probe record` and `probe print`: what was recorded is what a trace would have shown, nothing of it is
//! lost that is not counted, and a file is readable while it is written and up to where it was cut.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, probe, program, scratch};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

fn burst() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("burst", &["-O1", "-pthread"]))
}

/// A file that is gone with the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scratch {
    fn new(name: &str) -> Self {
        Self(scratch(name))
    }
}

const WORK: &str = "p work n=$arg1:s32";

fn recording(file: &Path, options: &[&str], probes: &[&str], of: &[&str]) -> Command {
    let mut command = probe();
    command.args(["record", "-o"]).arg(file).args(options);
    probes.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    command.arg("--").arg(program(of[0])).args(&of[1..]);
    command
}

fn record(options: &[&str], probes: &[&str], of: &[&str]) -> (Scratch, Output) {
    let file = Scratch::new("record");
    let output = recording(&file.0, options, probes, of).output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    (file, output)
}

fn print(file: &Path, options: &[&str]) -> Output {
    probe().arg("print").arg(file).args(options).output().expect("the command runs")
}

fn lines(output: &Output) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    String::from_utf8_lossy(&output.stdout).lines().map(line).collect()
}

fn printed(file: &Path, options: &[&str]) -> Vec<Value> {
    let output = print(file, &[&["--format", "json"], options].concat());
    assert!(output.status.success(), "{output:?}");
    lines(&output)
}

/// What is the same in two runs of a program.
fn same(lines: &[Value]) -> Vec<Value> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if ["time_ns", "duration_ns", "pid", "tid", "addr", "ran_ns", "at"].contains(&&**name) {
                        *value = value.is_number().into();
                    } else {
                        strip(value);
                    }
                }
            }
            Value::Array(all) => all.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut lines = lines.to_vec();
    lines.iter_mut().for_each(strip);
    lines
}

const ALL: [&str; 3] = [
    "p work n=$arg1:s64 low=$arg1:u8 bits=$arg1:b3@0/32 at=$stack0:symbol bad=+0(\\0):u32 worse=+0(\\0):string",
    "r libc:puts text=$arg1:string parts=+0($arg1):char[3] result=$retval:s32",
    "r:opened libc:fopen* name=$arg1:string",
];

#[test]
fn a_record_is_printed_as_a_trace_would_have_been() {
    let of = [burst(), "1", "40"];
    let (file, output) = record(&[], &ALL, &of);
    assert_eq!(output.stdout, b"done\n");
    let traced = common::trace(&[], &ALL, &of);
    let recorded = printed(&file.0, &[]);
    let (summary, events) = recorded.split_last().expect("at least a summary");
    assert_eq!(events.len(), 41);
    assert_eq!(same(events), same(&traced.events));
    assert_eq!(same(std::slice::from_ref(summary)), same(&[traced.summary]));
}

#[test]
fn the_text_of_a_record_is_that_of_a_trace() {
    let of = [burst(), "1", "3"];
    let (file, _) = record(&[], &ALL, &of);
    let mut command = probe();
    command.args(["trace", "-o", "-"]).args(ALL.iter().flat_map(|definition| ["-p", definition]));
    let traced = command.arg("--").args([program(of[0])]).args(&of[1..]).output().expect("the command runs");
    let traced = String::from_utf8_lossy(&traced.stdout).replace("done\n", "");
    let recorded = print(&file.0, &[]);
    assert!(recorded.status.success() && recorded.stderr.is_empty(), "{recorded:?}");
    // Words without digits are the same, and in the same lines.
    let words = |text: &str| {
        let word = |word: &&str| !word.contains(|c: char| c.is_ascii_digit() || "█▏▎▍▌▋▊▉".contains(c));
        let line = |line: &str| {
            let words: Vec<String> = line.split_whitespace().filter(word).map(str::to_owned).collect();
            words.into_iter().filter(|word| !["ns", "µs", "ms", "s"].contains(&&**word)).collect::<Vec<_>>()
        };
        text.lines().map(line).filter(|line| !line.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(words(&String::from_utf8_lossy(&recorded.stdout)), words(&traced));
}

/// As many as an emulator gets through in seconds.
fn calls() -> usize {
    if common::is_emulated() { 5_000 } else { 20_000 }
}

#[test]
fn evt_1_a_record_loses_nothing_and_is_in_order_of_time() {
    let (file, output) = record(&["--buffer", "16K"], &[WORK], &[burst(), "4", &calls().to_string()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("none lost"), "{output:?}");
    let lines = printed(&file.0, &[]);
    assert_eq!((lines.len(), &lines[4 * calls()]["lost_events"]), (4 * calls() + 1, &0.into()));
    let times: Vec<u64> = lines.iter().filter_map(|line| line["time_ns"].as_u64()).collect();
    assert!(times.is_sorted() && times.len() == 4 * calls());
}

#[test]
fn evt_1_what_a_record_drops_is_counted_in_it() {
    let options = ["--buffer", "16K", "--full=drop"];
    let (file, output) = record(&options, &[WORK], &[burst(), "4", &calls().to_string()]);
    let lines = printed(&file.0, &[]);
    let (summary, events) = lines.split_last().expect("at least a summary");
    let lost = summary["lost_events"].as_u64().expect("a number") as usize;
    assert_eq!(events.len() + lost, 4 * calls());
    assert!(lost > 0 && String::from_utf8_lossy(&output.stderr).contains(&format!("{lost} LOST")));
}

/// EVT_1: of children that live a millisecond, too.
#[test]
fn evt_1_a_record_has_the_events_of_short_children() {
    if common::is_emulated() || !common::HAS_PROGRAMS {
        return;
    }
    let script = format!("for i in 1 2 3 4 5 6 7 8; do {}; done", program("/bin/true"));
    let (file, _) = record(&["-f"], &["p:exit libc:_exit"], &["sh", "-c", &script]);
    assert_eq!(printed(&file.0, &["--task", "true"]).len(), 8);
}

#[test]
fn a_record_is_read_while_it_is_written_and_after_its_command_was_killed() {
    let file = Scratch::new("record");
    let mut command = recording(&file.0, &[], &[WORK], &[burst(), "1", "1000", "asked"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    let mut input = child.stdin.take().expect("its input");
    let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert_eq!(said.next().as_deref(), Some("ready"));
    let events = || loop {
        let output = print(&file.0, &["--format", "json"]);
        let told = String::from_utf8_lossy(&output.stderr).contains("has no end: it is still being written");
        assert!(output.status.success() && told, "{output:?}");
        let lines = lines(&output);
        if !lines.is_empty() {
            return lines;
        }
        std::thread::yield_now();
    };
    assert_eq!(events()[0]["args"]["n"], -1);
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    // The program goes on without it.
    writeln!(input).expect("the program reads");
    assert_eq!(said.last().as_deref(), Some("done"));
    assert_eq!(events().len(), 1);
}

#[test]
fn events_are_chosen_by_time_task_and_name() {
    let (file, _) = record(&[], &ALL, &[burst(), "2", "20"]);
    let all = printed(&file.0, &[]);
    let count = |options: &[&str]| printed(&file.0, options).len();
    assert_eq!(count(&["--event", "work"]), 40);
    assert_eq!(count(&["--event", "w*k", "--task", "?*[0-9]-[0-9]*"]), 40);
    assert_eq!(count(&["--event", "nothing"]) + count(&["--task", "nobody"]), 0);
    let tid = all.iter().find(|line| line["event"] == "work").expect("there are 40")["tid"].to_string();
    assert_eq!(count(&["--event", "work", "--task", &tid]), 20);
    let events = &all[..all.len() - 1];
    let middle = events[events.len() / 2]["time_ns"].as_u64().expect("a time");
    let since = events.iter().filter(|event| event["time_ns"].as_u64() >= Some(middle)).count();
    assert_eq!(count(&["--since", &format!("{middle}ns")]), since);
}

#[test]
fn evt_2_what_is_no_record_or_was_damaged_is_said_in_a_sentence() {
    let (file, _) = record(&[], &[WORK], &[burst(), "1", "100"]);
    let mut bytes = std::fs::read(&file.0).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = Scratch::new("damaged");
    std::fs::write(&damaged.0, &bytes).expect("it can be written");
    let cases = [
        (damaged.0.as_path(), "a checksum is wrong"),
        (Path::new(burst()), "it is no file of `probe record`"),
        (Path::new("/dev/null"), "it is no file of `probe record`"),
        (Path::new("/nonexistent"), "No such file"),
        (Path::new("/"), "directory"),
    ];
    for (path, sentence) in cases {
        let output = print(path, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(sentence), "{}: {output:?}", path.display());
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_record_that_cannot_be_written_is_said_before_the_program_runs() {
    let output = recording(Path::new("/nonexistent/x"), &[], &[WORK], &[burst(), "1", "1"]).output();
    let output = output.expect("the command runs");
    assert!(output.stdout.is_empty() && output.status.code() == Some(125), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be written"), "{output:?}");
    if Path::new("/dev/full").exists() {
        let output = recording(Path::new("/dev/full"), &[], &[WORK], &[burst(), "1", "1"]).output();
        assert_eq!(output.expect("the command runs").status.code(), Some(125), "no space");
    }
}

/// The document is all that another reader needs.
#[test]
fn a_reader_made_from_the_document_reads_the_same() {
    let probes =
        ["p work n=$arg1:s64 low=$arg1:u8 bad=+0(\\0):u32", "r libc:puts text=$arg1:string $retval:s32"];
    let (file, _) = record(&["--stack"], &probes, &[burst(), "2", "50"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/record.py");
    let output = Command::new("python3").arg(script).arg(&file.0).output().expect("there is a Python");
    assert!(output.status.success(), "{output:?}");
    let theirs = lines(&output);
    let ours = printed(&file.0, &[]);
    assert_eq!(theirs.len() + 1, ours.len());
    for (theirs, ours) in theirs.iter().zip(&ours) {
        for (name, value) in theirs.as_object().expect("an object") {
            // Functions alone: the script leaves out where in them.
            let ours = match (name.as_str(), ours[name].as_array()) {
                ("stack", Some(all)) => all.iter().map(|frame| frame["function"].clone()).collect(),
                _ => ours[name].clone(),
            };
            assert_eq!(value, &ours, "{name}");
        }
    }
}
