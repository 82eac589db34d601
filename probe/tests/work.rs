//! Small C programs (`programs/work.c` and others, compiled by the target's C compiler), traced on every
//! target that can be traced.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, assert_unchanged, compiled, trace, work};
use rstest::rstest;

/// Traces the program doing `what`; tracing must not change what it says.
fn traced(what: &str, options: &[&str], probes: &[&str]) -> Traced {
    let program = [work(), what];
    let traced = trace(options, probes, &program);
    assert_unchanged(&traced, &program);
    assert_eq!(traced.output.status.code(), Some(0), "{}", String::from_utf8_lossy(&traced.output.stderr));
    traced
}

fn hits(traced: &Traced, name: &str) -> u64 {
    traced.row(name)["hits"].as_u64().expect("hits are counted")
}

#[test]
fn calls_and_returns_are_seen_with_what_they_carry() {
    let probes = ["p:fib fib n=$arg1:s32", "r:fibbed fib n=$arg1:s32 value=$retval:s32", "p:swap by_value"];
    let traced = traced("calls", &["--buffer", "1M"], &probes);
    // fib(12) makes 465 calls.
    assert_eq!((hits(&traced, "fib"), hits(&traced, "fibbed")), (465, 465));
    assert!(hits(&traced, "swap") > 200);
    let first = traced.named("fib").next().expect("the first call");
    assert_eq!(first["args"]["n"], 12);
    let last = traced.named("fibbed").last().expect("the outermost return");
    assert_eq!((&last["args"]["n"], &last["args"]["value"]), (&12.into(), &144.into()));
}

#[test]
fn results_of_every_kind_come_back_unchanged() {
    let probes = ["r:mean mean", "r:turn turn", "r:mix mix", "r:sum sum", "p:leave leave", "r4:left leave"];
    let traced = traced("calls", &[], &probes);
    let once = ["mean", "mix", "sum"].map(|name| hits(&traced, name));
    assert_eq!((once, hits(&traced, "turn")), ([1; 3], 4));
    // 20 jumps out of four calls each, with room for four: what is left behind is given back.
    let left = traced.row("left");
    assert_eq!(
        (hits(&traced, "leave"), &left["hits"], &left["missed_pool"]),
        (80, &0.into(), &0.into()),
        "{left}"
    );
}

#[test]
fn every_instruction_of_a_function_at_once() {
    let (status, text) = explained("fib");
    assert!(status, "{text}");
    let offsets =
        text.lines().filter_map(|line| line.trim_start().strip_prefix('+')?.split_whitespace().next());
    let is_probed = |offset: &&str| {
        !text.lines().any(|line| line.contains(&format!("+{offset} ")) && line.contains("refused"))
    };
    let probes: Vec<String> =
        offsets.filter(is_probed).map(|offset| format!("p:at_{offset} fib+{offset}")).collect();
    assert!(probes.len() > 10, "{text}");
    let probes: Vec<&str> = probes.iter().map(String::as_str).collect();
    let traced = traced("calls", &["--no-events"], &probes);
    assert_eq!(hits(&traced, "at_0x0"), 465);
}

/// What `explain` says of a function of the program, and whether it could.
fn explained(function: &str) -> (bool, String) {
    let place = format!("{}:{function}", work());
    let output = common::probe().args(["explain", &place]).output().expect("the command runs");
    let said = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn threads_are_told_apart_and_every_call_is_counted() {
    let probes = [
        "p:locked pthread_mutex_lock",
        "r:made libc.so.6:malloc size=$arg1:u64",
        "p:added add number=$arg1:u64",
    ];
    let traced = traced("threads", &["--buffer", "1M"], &probes);
    assert_eq!(hits(&traced, "added"), 8);
    assert!(hits(&traced, "locked") >= 800 && hits(&traced, "made") >= 800);
    let threads: std::collections::BTreeSet<_> =
        traced.named("added").map(|event| event["tid"].as_u64().expect("a number")).collect();
    assert_eq!(threads.len(), 8);
    let times: Vec<u64> =
        traced.events.iter().map(|event| event["time_ns"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted(), "events of several threads are merged by time");
}

#[test]
fn a_program_that_blocks_signals_and_handles_its_own_is_unchanged() {
    let traced = traced("signals", &[], &["p:fib fib", "p:trapped trapped", "p libc.so.6:write"]);
    assert_eq!((hits(&traced, "fib"), hits(&traced, "trapped")), (15, 1));
}

#[test]
fn forked_children_are_followed_with_f_only() {
    assert_eq!(hits(&traced("child", &[], &["p:fib fib"]), "fib"), 15);
    assert_eq!(hits(&traced("child", &["-f"], &["p:fib fib"]), "fib"), 15 + 177);
}

#[test]
fn every_function_of_libc_is_hit_and_nothing_changes() {
    for every in ["p libc.so.6:*", "r libc.so.6:*"] {
        // While it makes a thread, libc blocks signals behind everybody's back; the agent sees to that.
        for what in ["calls", "threads", "signals"] {
            let traced = traced(what, &["--no-events"], &[every]);
            let rows = traced.summary["probes"].as_array().expect("rows");
            assert!(rows.len() > 1000);
            // The program never asks for its objects; the agent does for each text that it writes, which is
            // not to be counted.
            let asked = rows
                .iter()
                .filter(|row| row["event"].as_str().is_some_and(|name| name.starts_with("dl_iterate_phdr")));
            assert_eq!(asked.map(|row| row["hits"].as_u64().expect("a number")).sum::<u64>(), 0);
        }
    }
}

/// `r PROGRAM:*`: what no call comes to is left out and named, and the program does what it did.
#[test]
fn reg_19_every_function_of_a_program_with_parts_that_are_jumped_to() {
    let program = common::compiled("parts", &["-O2"]);
    let name = std::path::Path::new(&program).file_name().and_then(|name| name.to_str()).expect("a name");
    let all = format!("r {name}:*");
    let words = [program.as_str(), "a"];
    let traced = trace(&["--no-events"], &[&all], &words);
    assert_unchanged(&traced, &words);
    assert_eq!((hits(&traced, "work%return"), hits(&traced, "main%return")), (100, 1));
    let refused = traced.summary["refused"][&all].as_object().expect("there are some");
    let of = |code: &str| {
        let reasons = refused.iter().filter(|(reason, _)| reason.ends_with(&format!("({code})")));
        reasons.flat_map(|(_, names)| names.as_array().unwrap().iter()).cloned().collect::<Vec<_>>()
    };
    assert!(of("entry.start").contains(&"_start".into()), "{refused:?}");
    // Where the compiler has made such a part, it is one of them.
    let output = common::probe().args(["explain", &format!("{program}:work.cold")]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let has_part = said.contains("no return probe or jprobe: a jump comes there");
    assert_eq!(of("entry.part").contains(&"work.cold".into()), has_part, "{said} {refused:?}");
    assert!(has_part || !cfg!(target_arch = "x86_64"), "{said}");
    // Named by itself it is an error.
    let mut command = common::probe();
    let output = command.args(["trace", "-p", "r _start", "--", &program]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("_start can have no return probe: a program or a context starts there"), "{said}");
    assert!(!output.status.success());
}

/// What the kernel says of the signals that probes live on, too, save those that a hit raises: they are never
/// blocked.
#[test]
fn hit_13_what_a_program_asks_about_signals_is_answered_as_bare() {
    let program = [&*compiled("signals", &["-O1"])];
    for options in [&[][..], &["--no-jumps"]] {
        let traced = trace(options, &["p work"], &program);
        assert_unchanged(&traced, &program);
        assert_eq!(hits(&traced, "work"), 8);
    }
}

#[test]
fn hit_13_errno_is_the_programs() {
    let program = [&*compiled("errno", &["-O1", "-pthread"])];
    for probes in [&["p libc.so.6:malloc"][..], &["r libc.so.6:m*", "p libm.so.6:nan"]] {
        assert_unchanged(&trace(&["--no-events"], probes, &program), &program);
    }
}

/// Two calls return before; the last one's fate is in the name.
#[rstest]
#[case("exit", &[], (2, 1))]
#[case("_exit", &[], (2, 1))]
#[case("bare exit", &[], (2, 1))]
#[case("signal", &[], (2, 1))]
#[case("kill", &[], (2, 1))]
#[case("abort", &[], (2, 1))]
#[case("pthread_exit", &[], (2, 1))]
#[case("other thread", &[], (2, 1))]
#[case("execl", &[], (2, 1))]
#[case("bare exec", &[], (2, 1))]
#[case("failed exec", &[], (3, 0))]
// A child without -f is nobody's; with it, it returns from the call that it was made in.
#[case("fork", &[], (3, 0))]
#[case("fork", &["-f"], (4, 0))]
#[case("child", &["-f"], (4, 0))]
fn ret_13_a_call_that_is_cut_off_is_abandoned(
    #[case] how: &str,
    #[case] options: &[&str],
    #[case] counted: (u64, u64),
) {
    let program = compiled("ends", &["-O1", "-pthread"]);
    for kind in ["--no-jumps", "--no-events"] {
        let options: Vec<&str> = options.iter().copied().chain([kind]).collect();
        let traced = trace(&options, &["r:work work"], &[&program, how]);
        let row = traced.row("work");
        let found = ["hits", "abandoned"].map(|name| row[name].as_u64().expect("a count"));
        assert_eq!((found[0], found[1]), counted, "{how} {options:?}: {row}");
    }
}

#[test]
fn a_place_with_two_names_is_called_by_the_functions() {
    let no_landing_pad: &[&str] =
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { &["-fcf-protection=none"] } else { &[] };
    let program = compiled("labels", &[&["-O1"], no_landing_pad].concat());
    let name = std::path::Path::new(&program).file_name().and_then(|name| name.to_str()).expect("a name");
    let traced = trace(&[], &[&format!("p {name}:*")], &[&program]);
    assert_eq!(hits(&traced, "measure"), 1, "{}", traced.summary);
}
