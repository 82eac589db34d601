//! A debugger that has the traced program before its first instruction.
//!
//! A static C library loads no agent, and no emulator debugs.
#![cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86")))]

mod common;

use common::{compiled, probe, scratch, trace, work};
use rstest::rstest;
use std::fs;
use std::process::Command;

/// The programs that are said to be debugged in `text`.
fn warned_of(text: &str) -> Vec<&str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("probe: "));
    let programs = lines.filter_map(|line| line.split_once(") debugs `"));
    programs.filter_map(|(_, rest)| Some(rest.split_once("`, and sees a SIGTRAP")?.0)).collect()
}

#[rstest]
#[case::by_trap(&["--no-jumps"])]
#[case::by_jump(&[])]
fn a_program_that_is_debugged_before_it_starts_is_warned_of(#[case] options: &[&str]) {
    let mut words = vec![probe().get_program().to_owned()];
    words.extend(["trace"].iter().chain(options).chain(&["-p", "p fib", "--", work()]).map(Into::into));
    let bare = Command::new(&words[0]).args(&words[1..]).output().unwrap();
    let debugged = Command::new(compiled("follows", &["-O1"])).args(&words).output().unwrap();
    let [bare_said, said] = [&bare, &debugged].map(|output| String::from_utf8_lossy(&output.stderr));
    assert!(warned_of(&bare_said).is_empty(), "{bare_said}");
    assert_eq!(warned_of(&said), [work()], "{said}");
    // A debugger that passes signals on changes nothing.
    assert_eq!((debugged.status.code(), &debugged.stdout), (bare.status.code(), &bare.stdout), "{said}");
}

/// The path of a library that is called as the one that Valgrind loads into what it runs.
fn valgrinds_library() -> String {
    let folder = scratch("valgrind");
    fs::create_dir(&folder).unwrap();
    let library = folder.join("vgpreload_core-amd64-linux.so");
    fs::rename(compiled("labels", &["-shared", "-fPIC"]), &library).unwrap();
    library.display().to_string()
}

/// What Valgrind runs is not probed: hits would be missed, and a system call of ours would end it.
#[test]
fn a_program_that_valgrind_runs_is_refused() {
    let mut command = probe();
    command.args(["trace", "-p", "p fib", "--", work()]).env("LD_PRELOAD", valgrinds_library());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("probe: Valgrind runs this program"), "{said}");
    assert_eq!(
        (said.lines().count(), output.status.code(), output.stdout.len()),
        (1, Some(126), 0),
        "{said}"
    );
}

#[test]
fn a_followed_program_that_valgrind_runs_is_left_alone() {
    let run = format!("{} calls", work());
    let both = format!("LD_PRELOAD=$LD_PRELOAD:{} {run}; {run}", valgrinds_library());
    let names = ["fib", "sum"];
    let definitions = names.map(|name| format!("p {}:{name}", work()));
    let definitions = definitions.each_ref().map(String::as_str);
    // Of two programs that do the same one is probed.
    let traced = trace(&["-f"], &definitions, &["sh", "-c", &both]);
    let alone = trace(&[], &definitions, &[work(), "calls"]);
    for (name, definition) in names.into_iter().zip(definitions) {
        let [two, one] = [&traced, &alone].map(|traced| traced.row(name)["hits"].as_u64().unwrap());
        assert!(one > 0 && two == one, "{name}: {two}");
        let refused = &traced.summary["refused"][definition];
        let (reason, programs) = refused.as_object().and_then(|all| all.iter().next()).expect("it is said");
        assert!(reason.starts_with("Valgrind runs this program"), "{refused}");
        assert_eq!(programs[0], work(), "{refused}");
    }
    let said = [&traced, &alone].map(|traced| String::from_utf8_lossy(&traced.output.stdout).into_owned());
    assert_eq!(said[0], said[1].repeat(2));
}
