//! What people meet: names as they type them, names that would harm their terminal, pipes, exit statuses.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{compiled, probe, scratch};
use rstest::rstest;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Output, Stdio};

/// The name that one function of the program has: an escape sequence, a new line, U+009B and DEL.
const EVIL: &[u8] = b"evil\x1b[2J\n\xc2\x9b\x7f_.name";
/// The same as it is to be shown.
const EVIL_SHOWN: &str = "evil\\x1b[2J\\n\\xc2\\x9b\\x7f_.name";

/// The program `names.c`, with two functions of one name, and one whose name is hostile, in a file whose name
/// is.
fn program() -> PathBuf {
    let built = PathBuf::from(compiled("names", &["-O1"]));
    let mut data = fs::read(&built).unwrap();
    for (from, to) in [(&b"helperB"[..], &b"helperA"[..]), (b"evilXXXXXXXXXXname", EVIL)] {
        assert_eq!(from.len(), to.len());
        let all: Vec<usize> =
            (0..data.len() - from.len()).filter(|&at| data[at..].starts_with(from)).collect();
        assert!(!all.is_empty(), "the compiler has kept the function");
        all.into_iter().for_each(|at| data[at..at + to.len()].copy_from_slice(to));
    }
    let mut name = scratch("names").into_os_string();
    name.push(OsStr::from_bytes(b"\x1b]0;x\x07\nx"));
    let path = PathBuf::from(name);
    fs::write(&path, data).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn traced(options: &[&str], definition: &str, argument: &str) -> Output {
    let mut command = probe();
    command.arg("trace").args(options).args(["-p", definition, "--"]).arg(program()).arg(argument);
    command.output().unwrap()
}

/// What a terminal shows as it is: text in lines, without anything that it obeys.
fn plain(bytes: Vec<u8>) -> String {
    let text = String::from_utf8(bytes).expect("UTF-8");
    let is_obeyed = |c: char| {
        c.is_control() && c != '\n'
            || ('\u{200b}'..='\u{200f}').contains(&c)
            || ('\u{2028}'..='\u{202e}').contains(&c)
    };
    assert!(!text.contains(is_obeyed), "{text:?}");
    text
}

#[test]
fn evt_2_names_and_strings_of_a_traced_program_reach_no_terminal_raw() {
    let said = plain(traced(&[], "p evil* $arg1:string", "").stderr);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[1].contains(" t\\x1b[2J\\n\\xc2\\x9b\\xff-"), "the task: {said}");
    assert!(lines[1].contains(EVIL_SHOWN), "the event: {said}");
    let text = "arg1=\"a\\x1b[31m\\nb\\xc2\\x9bc\\xe2\\x80\\xaed\\xffe\"";
    assert!(lines[1].ends_with(text), "the string: {said}");
    assert!(lines[3].contains("\\x1b]0;x\\x07\\nx exited with 0"), "the program: {said}");
    assert!(lines[5].starts_with(EVIL_SHOWN), "the table: {said}");
}

#[test]
fn evt_2_json_is_valid_and_harmless_and_keeps_the_bytes() {
    let output = traced(&["--format", "json"], "p evil* text=$arg1:string", "");
    let said = plain(output.stderr);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert_eq!(lines[0]["event"].as_str().unwrap().as_bytes(), EVIL);
    assert_eq!(lines[0]["args"]["text"], "a\u{1b}[31m\nb\u{9b}c\u{202e}d\u{fffd}e");
    assert_eq!(lines[0]["bytes"]["args"]["text"], "611b5b33316d0a62c29b63e280ae64ff65");
    assert_eq!(lines[0]["bytes"]["comm"], "741b5b324a0ac29bff");
}

/// Every member of every object is in the manual.
#[test]
fn the_manual_lists_the_members_of_json() {
    let manual = include_str!("../doc/probe-trace.1").replace("\\-", "-");
    let output = traced(&["--format", "json"], "r evil* text=$arg1:string", "");
    let said = plain(output.stderr);
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let members = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for member in lines.iter().flat_map(members) {
        assert!(manual.contains(&format!("\\fB{member}\\fR\n")), "{member}");
    }
    let row = &lines[1]["probes"][0];
    let rows = manual.split_once("A row for each place:").expect("it is there").1;
    let rows = rows.lines().next().unwrap();
    for member in members(row).into_iter().chain(members(&row["duration_ns"])) {
        assert!(rows.contains(&member), "{member}: {rows}");
    }
}

/// What each column of the summary means, each status of the command's own, and each variable.
#[test]
fn the_manual_says_what_columns_and_statuses_and_variables_mean() {
    let manual = include_str!("../doc/probe-trace.1");
    let section = |name: &str| {
        let (_, rest) = manual.split_once(&format!(".SH \"{name}\"\n")).unwrap_or_else(|| panic!("{name}"));
        rest.split("\n.SH ").next().unwrap()
    };
    let said = plain(traced(&["--if", "1 == 1"], "r thrower", "").stderr);
    let head = said.lines().find(|line| line.starts_with("EVENT  ") && line.contains("HITS")).expect(&said);
    let columns = head.split("  ").map(str::trim).filter(|column| !["", "EVENT"].contains(column));
    for column in columns {
        let is_named = |line: &str| line.starts_with("\\fB") && line.contains(column);
        assert!(section("SUMMARY").lines().any(is_named), "{column}: {head}");
    }
    for status in [0, 2, 123, 125, 126, 127] {
        assert!(section("EXIT STATUS").contains(&format!("\\fB{status}\\fR\n")), "{status}");
    }
    for variable in ["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PROBE_RUNNER", "NO_COLOR", "ASAN_OPTIONS"] {
        assert!(section("ENVIRONMENT").contains(&format!("\\fB{variable}\\fR\n")), "{variable}");
    }
}

#[test]
fn pages_and_completions_are_installed_where_they_are_looked_for() {
    let prefix = scratch("prefix");
    let output = probe().arg("install-docs").arg(&prefix).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = plain(output.stdout);
    for name in ["man/man1/probe-trace.1", "bash-completion/completions/probe", "zsh/site-functions/_probe"] {
        let path = prefix.join("share").join(name);
        assert!(said.contains(&path.display().to_string()), "{said}");
        assert!(fs::metadata(&path).unwrap().len() > 1000, "{name}");
    }
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/doc");
    let pages = fs::read_dir(own).unwrap().count();
    assert_eq!(fs::read_dir(prefix.join("share/man/man1")).unwrap().count(), pages, "all pages");
    let wrong = probe().args(["install-docs", "/proc/1/no-such"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(125));
}

#[test]
fn evt_2_list_and_explain_and_errors_are_plain() {
    let path = program();
    let run = |args: &[&OsStr]| probe().args(args).output().unwrap();
    let place = |symbol: &str| {
        let mut place = std::ffi::OsString::from("\"");
        place.push(path.as_os_str());
        place.push(format!("\":{symbol}"));
        place
    };
    let list = run(&["list".as_ref(), path.as_os_str()]);
    assert!(plain(list.stdout).contains(EVIL_SHOWN));
    let explained = run(&["explain".as_ref(), &place("evil*")]);
    assert!(plain(explained.stdout).contains(EVIL_SHOWN));
    let error = run(&["explain".as_ref(), &place("evlinothing")]);
    assert_eq!(error.status.code(), Some(2));
    let error = plain(error.stderr);
    assert!(error.contains("there is no function `evlinothing` in "), "{error}");
    let all = run(&["explain".as_ref(), "--all".as_ref(), path.as_os_str()]);
    assert!(plain(all.stdout).contains("\\x1b]0;x\\x07\\nx"));
    for wrong in
        [&["list", "no\x1b[2Jsuch\nprogram"][..], &["no\x1b[2Jsuch\ncommand"], &["trace", "-p", "p \x1b"]]
    {
        let error = run(&wrong.iter().map(OsStr::new).collect::<Vec<_>>());
        assert_eq!(error.status.code(), Some(2));
        plain(error.stderr);
    }
    let error = plain(traced(&[], "p evlX", "").stderr);
    assert!(error.contains("there is no function `evlX`"), "{error}");
}

/// What people type, and the event that it gives.
#[rstest]
#[case("p thrower", "thrower(int)")]
#[case("p _Z7throweri", "_Z7throweri")]
#[case("p thrower(int)", "thrower(int)")]
#[case("p thr*(int)", "thrower(int)")]
#[case("p over(int)", "over(int)")]
#[case("p \"over(char const*)\"", "over(char const*)")]
#[case("p S::f", "ns::S::f(int)")]
#[case("r ns::*", "ns::S::f(int)%return")]
fn functions_are_found_by_demangled_names(#[case] definition: &str, #[case] event: &str) {
    let output = traced(&["--format", "json"], definition, "");
    let said = plain(output.stderr);
    let first: Value = serde_json::from_str(said.lines().next().unwrap_or_default()).expect(&said);
    assert_eq!(first["event"], event, "{said}");
}

#[test]
fn an_ambiguous_name_says_how_to_name_each() {
    let error = plain(traced(&[], "p over", "").stderr);
    assert!(error.contains("`over` is the name of 2 functions; name one: "), "{error}");
    assert!(error.contains(":\"over(char const*)\", ") && error.contains(":over(int); or"), "{error}");
    // What two files call the same has no name of its own, but a place in the file; it can be typed back.
    let error = plain(traced(&[], "p helperA", "").stderr);
    let offsets: Vec<&str> =
        error.split(":0x").skip(1).map(|text| text.split([',', ';']).next().unwrap()).collect();
    assert_eq!(offsets.len(), 2, "{error}");
    let path = program();
    for offset in offsets {
        let definition = format!("p \"{}\":0x{offset}", path.display());
        let output = probe().args(["trace", "-p", &definition, "--"]).arg(&path).output().unwrap();
        let said = plain(output.stderr);
        assert!(said.contains("1 hit at 1 place") && said.contains("helperA"), "{said}");
    }
}

/// A pattern names several objects, in every command; those that lack the function are not meant.
#[test]
fn a_pattern_names_several_objects() {
    let program = compiled("names", &["-O1"]);
    let said = |args: &[&str]| {
        let output = probe().args(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(output.stderr));
        text([output.stdout, output.stderr].concat())
    };
    let traced = said(&["trace", "-p", "p l*.so*:_d[li]*", "--no-events", "--", &program]);
    assert!(traced.contains("_dl_"), "{traced}");
    let listed = said(&["list", &program, "lib*.so*:opend?r"]);
    assert!(listed.contains("libc.so.6:opendir"), "{listed}");
    for place in ["libc.so*:opendir", "libc.s[o]*:opend?r", "/*/libc.so*:opendir"] {
        let explained = said(&["explain", place]);
        assert!(explained.contains("libc.so.6\n") && explained.contains("opendir"), "{place}: {explained}");
    }
    for (place, sentence) in [
        ("lib*.so*:no_such", "has such a function"),
        ("nolib*:opendir", "no object `nolib*` is loaded before the program starts"),
    ] {
        let output = probe().args(["trace", "-p", &format!("p {place}"), "--", &program]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(sentence), "{error}");
        assert!(error.ends_with(&format!("    p {place}\n      {}\n", "^".repeat(place.len()))), "{error}");
    }
    let output = probe().args(["explain", "nolib*:f"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("no shared object matches `nolib*`"), "{error}");
}

#[test]
fn one_rule_names_objects_in_trace_and_list_and_explain() {
    let runs: [&[&str]; 4] = [
        &["trace", "-p", "p libc:malloc", "--", &compiled("names", &["-O1"])],
        &["list", &compiled("names", &["-O1"]), "libc:malloc"],
        &["list", "libc:malloc"],
        &["explain", "libc:malloc"],
    ];
    for args in runs {
        let output = probe().args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        if args[0] != "trace" {
            let said = String::from_utf8(output.stdout).unwrap();
            assert!(said.contains("libc.so.6:malloc"), "{args:?}: {said}");
        }
    }
}

#[test]
fn values_of_the_kernels_grammar() {
    let definition = "p thrower \\\"a b:c\" x=\\\"\":string $arg1:b1@0/32 $arg1:b31@1/32 $arg1:symstr";
    let said = plain(traced(&[], definition, "").stderr);
    assert!(said.contains("value1=\"a b:c\" x=\"\" arg1=1 arg1_2=0 arg1_3=\"0x1\""), "{said}");
    let said = plain(traced(&[], "p evil* +u0($arg1):ustring +u0($arg1):u8", "").stderr);
    assert!(said.contains("value1=\"a\\x1b[31m") && said.contains("value2=97"), "{said}");
    let said = plain(traced(&[], "r thrower $retval $arg1:s32", "").stderr);
    assert!(said.contains("retval=0x2 arg1=1"), "{said}");
}

#[test]
fn a_dash_is_standard_output_and_no_file() {
    let folder = scratch("dash");
    fs::create_dir(&folder).unwrap();
    let mut command = probe();
    command.current_dir(&folder).args(["trace", "-o", "-", "-p", "p thrower", "--"]).arg(program());
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{output:?}");
    let said = plain(output.stdout);
    assert!(said.contains("SECONDS") && said.contains("1 hit at 1 place"), "{said}");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

/// As `probe trace … | head -1` does it: the reader goes, and with it the program that would never end.
#[test]
fn a_closed_pipe_ends_program_and_command() {
    let started = |options: &[&str], out: Stdio, error: Stdio| {
        let mut command = probe();
        command.arg("trace").args(options).args(["-p", "p thrower", "--"]).arg(program()).arg("for-ever");
        command.stdout(out).stderr(error).spawn().unwrap()
    };
    let mut to_error = started(&[], Stdio::null(), Stdio::piped());
    let pipe = to_error.stderr.take().unwrap();
    ended_by_pipe(to_error, pipe);
    let mut to_output = started(&["-o", "-"], Stdio::piped(), Stdio::null());
    let pipe = to_output.stdout.take().unwrap();
    ended_by_pipe(to_output, pipe);
}

fn ended_by_pipe(mut child: Child, pipe: impl Read) {
    let mut reader = BufReader::new(pipe);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("SECONDS"), "{line}");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let program: u32 = children.split_whitespace().next().expect("the program").parse().unwrap();
    drop(reader);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGPIPE));
    assert!(!PathBuf::from(format!("/proc/{program}")).exists(), "the program has been waited for");
}

/// The program's own status comes first; where it says that all is well, a definition that was planted
/// nowhere has one.
#[test]
fn what_is_planted_nowhere_has_a_status_of_its_own() {
    let said = |argument, definition| {
        let output = traced(&["-f"], definition, argument);
        (output.status.code(), plain(output.stderr))
    };
    let (status, text) = said("", "p libresolv.so.2:res_*");
    assert_eq!(status, Some(123), "{text}");
    assert!(text.contains("was planted nowhere"), "{text}");
    assert_eq!(said("7", "p libresolv.so.2:res_*").0, Some(7));
    assert_eq!(said("7", "p thrower").0, Some(7));
    assert_eq!(said("", "p thrower").0, Some(0));
}

#[test]
fn events_that_cannot_be_written_have_a_status_of_their_own() {
    let output = traced(&["-o", "/dev/full"], "p thrower", "");
    assert_eq!(output.status.code(), Some(125));
    assert!(plain(output.stderr).contains("events could not be written"));
    assert_eq!(traced(&["-o", "/dev/full"], "p thrower", "7").status.code(), Some(7));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_with_address_sanitizer_is_refused_with_the_remedy() {
    let program = compiled("names", &["-O1", "-fsanitize=address"]);
    let run = |options: Option<&str>| {
        let mut command = probe();
        command.env_remove("ASAN_OPTIONS").envs(options.map(|options| ("ASAN_OPTIONS", options)));
        command.args(["trace", "-p", "p thrower", "--", &program]).output().unwrap()
    };
    let refused = run(None);
    assert_eq!(refused.status.code(), Some(126));
    assert!(plain(refused.stderr).contains("set ASAN_OPTIONS=verify_asan_link_order=0"));
    let traced = run(Some("verify_asan_link_order=0"));
    assert_eq!(traced.status.code(), Some(0));
    assert!(plain(traced.stderr).contains("1 hit at 1 place"));
}
