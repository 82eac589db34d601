//! `probe graph` beside uftrace's `replay`, on the same program, which is built for uftrace (`-pg`).
//!
//! Where uftrace is installed, as `cargo ci torture looks` sees to; there it has to be. It is Debian's.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

mod common;

use common::{compiled, compiled_by, probe, scratch};
use rstest::rstest;
use std::path::Path;
use std::process::Command;

/// What tells one tree from another: for each thread, in order of its first line, each line's call.
///
/// Ours have arguments only where they are asked for; what uftrace says in comments is of other things.
fn tree(text: &str) -> Vec<Vec<String>> {
    let mut threads: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines() {
        let Some((head, call)) = line.split_once("] | ") else { continue };
        let tid = head.rsplit('[').next().unwrap_or_default().trim().to_owned();
        let call = call.split("/*").next().unwrap_or_default().trim_end().to_owned();
        if call.is_empty() {
            continue;
        }
        match threads.iter_mut().find(|(known, _)| *known == tid) {
            Some((_, lines)) => lines.push(call),
            None => threads.push((tid, vec![call])),
        }
    }
    threads.into_iter().map(|(_, lines)| lines).collect()
}

fn said(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_graph_is_the_tree_that_uftrace_replays() {
    if let Err(error) = Command::new("uftrace").arg("--version").output() {
        assert!(std::env::var_os("PROBE_UFTRACE").is_none(), "{error}");
        return;
    }
    let program = compiled("calls", &["-O2", "-pg", "-pthread"]);
    let (folder, file) = (scratch("uftrace"), scratch("record"));
    said(
        Command::new("uftrace")
            .args(["record", "--no-libcall", "--no-event", "-d"])
            .arg(&folder)
            .arg(&program),
    );
    let probes = format!("r {program}:*");
    // The program writes its gmon.out to where it runs.
    said(
        probe().current_dir(&folder).args(["record", "-p", &probes, "-o"]).arg(&file).arg("--").arg(&program),
    );
    let theirs = |options: &[&str]| {
        let mut command = Command::new("uftrace");
        tree(&said(command.args(["replay", "--no-pager", "--color=no"]).args(options).arg("-d").arg(&folder)))
    };
    let ours = |options: &[&str]| tree(&said(probe().arg("graph").args(options).arg(&file)));
    let both = [
        (&["-F", "main"][..], &["--only", "main"][..]),
        (&["-F", "main", "-D", "3"], &["--only", "main", "--depth", "3"]),
        (&["-F", "main", "-N", "deep"], &["--only", "main", "--without", "deep"]),
        (&["-F", "even"], &["--only", "even"]),
        // Both threads, one after the other.
        (&["-F", "work"], &["--only", "work"]),
    ];
    for (of_theirs, of_ours) in both {
        let (theirs, ours) = (theirs(of_theirs), ours(of_ours));
        assert!(!theirs.is_empty() && theirs[0].len() > 3, "{of_theirs:?}: {theirs:?}");
        assert_eq!(ours, theirs, "{of_ours:?}");
    }
    remove(&folder, &file);
}

/// What exceptions leave is shown as uftrace shows it; of what the ends of threads and processes leave, it
/// shows no end. What longjmp leaves cannot be compared, nor what a cancellation does: uftrace 0.13 ends this
/// program by SIGSEGV, at a cancellation now and then.
#[rstest]
#[case::an_exception("throw", "main")]
#[case::exit_at_once("_exit", "main")]
#[case::pthread_exit("thread", "ended")]
fn calls_that_are_left_are_in_the_tree_that_uftrace_replays(#[case] how: &str, #[case] root: &str) {
    if Command::new("uftrace").arg("--version").output().is_err() {
        assert!(std::env::var_os("PROBE_UFTRACE").is_none());
        return;
    }
    let options = ["-x", "c++", "-O1", "-pg", "-fno-optimize-sibling-calls", "-pthread"];
    let program = compiled_by("c++", "left", &options);
    let (folder, file) = (scratch("uftrace"), scratch("record"));
    let mut command = Command::new("uftrace");
    command.args(["record", "--no-libcall", "--no-event", "-d"]).arg(&folder);
    said(command.args([&program, how]));
    let mut command = probe();
    command.current_dir(&folder).args(["record", "-p", &format!("r {program}:*"), "-o"]).arg(&file);
    said(command.args(["--", &program, how]));
    let mut command = Command::new("uftrace");
    command.args(["replay", "--no-pager", "--color=no", "-F", root, "-d"]).arg(&folder);
    let theirs = tree(&said(&mut command));
    let ours = said(probe().args(["graph", "--only", root]).arg(&file));
    let is_end_of_left = |line: &&str| line.trim_start().starts_with("left") && line.contains('}');
    let ours = if how == "throw" {
        ours
    } else {
        ours.lines().filter(|line| !is_end_of_left(line)).collect::<Vec<_>>().join("\n")
    };
    assert!(theirs.first().is_some_and(|lines| lines.len() > 2), "{theirs:?}");
    assert_eq!(tree(&ours), theirs);
    remove(&folder, &file);
}

fn remove(folder: &Path, file: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    let _ = std::fs::remove_file(file);
}
