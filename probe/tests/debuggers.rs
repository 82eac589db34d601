//! A debugger that has the traced program before its first instruction.
//!
//! A static C library loads no agent, and no emulator debugs.
#![cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "x86")))]

mod common;

use common::{compiled, probe, work};
use rstest::rstest;
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
