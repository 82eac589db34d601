//! `probe list` and `probe explain`: what can be told from files alone.
//!
//! With a static C library there is no shared one to look into, unless it is the machine's own.
#![cfg(any(target_env = "gnu", target_arch = "x86_64"))]

mod common;

use common::{probe, program};

fn said(args: &[&str]) -> (Option<i32>, String, String) {
    let output = probe().args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn list_shows_functions_of_the_program_and_its_libraries() {
    let (status, out, _) = said(&["list", &program("ls"), "*dir"]);
    assert_eq!(status, Some(0));
    assert!(out.lines().any(|line| line.starts_with("libc.so.6:opendir ")), "{out}");
    let (_, out, _) = said(&["list", &program("ls")]);
    assert!(out.contains("libc.so.6:opendir") && out.contains("FUNCTIONS"), "what it imports: {out}");
    let (_, out, _) = said(&["list", &program("ls"), "libc*:mem*"]);
    assert!(out.contains("libc.so.6:memcpy") && !out.contains("opendir"), "{out}");
    let (_, out, _) = said(&["list", env!("CARGO_BIN_EXE_probe"), "probe_trace::def::*"]);
    assert!(out.contains("probe:probe_trace::def::"), "Rust names are shown demangled: {out}");
}

#[test]
#[cfg_attr(no_programs, ignore = "Debian 12 has no programs of this architecture")]
fn list_says_what_is_wrong() {
    let (status, out, error) = said(&["list", "no-such-program-anywhere"]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(error.contains("there is no program"), "{error}");
    let (status, _, error) = said(&["list", &program("ls"), "libc.so.6:opendri"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("did you mean `opendir`"), "{error}");
}

#[test]
fn explain_judges_every_instruction() {
    let (status, out, _) = said(&["explain", "libc.so.6:opendir"]);
    assert_eq!(status, Some(0));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("libc.so.6:opendir  0x"), "{out}");
    assert!(lines[1].trim_start().starts_with("+0x0 "), "{out}");
    const VERDICTS: [&str; 5] = ["no trap", "boosted", "emulated", "stepped", "refused"];
    let judged = |line: &&&str| VERDICTS.iter().any(|verdict| line.contains(verdict));
    assert_eq!(lines[1..].iter().filter(judged).count(), lines.len() - 1);
    let (_, one, _) = said(&["explain", "libc.so.6:opendir+0"]);
    assert_eq!(one, out);
}

#[test]
fn explain_takes_patterns_and_offsets() {
    let (_, out, _) = said(&["explain", "libc.so.6:*dir"]);
    assert!(out.lines().any(|line| line.starts_with("opendir ")), "{out}");
    let (status, _, error) = said(&["explain", "libc.so.6:opendir+0x99999"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("lies outside"), "{error}");
    let (status, _, error) = said(&["explain", "opendir"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("does not name its object"), "{error}");
}

#[test]
fn explain_all_counts_by_method_and_reason() {
    let (status, out, _) = said(&["explain", "--all", "libc.so.6"]);
    assert_eq!(status, Some(0));
    let count = |what: &str| -> u64 {
        let line = out.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let all = count("all");
    assert!(all > 100_000);
    assert_eq!(count("boosted") + count("emulated") + count("stepped") + count("refused"), all);
    // On ppc64, traceback tables belong to functions' symbols, and atomics are not calls of helpers.
    let (_, reasons) = out.split_once("REFUSED, BY REASON").unwrap();
    let rows = reasons.lines().skip(1).take_while(|line| !line.is_empty());
    let by_reason = rows.filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?.parse::<u64>().ok()?, words.next()?))
    });
    let (expected, others): (Vec<_>, Vec<_>) =
        by_reason.partition(|(_, code)| code.ends_with(".attn") || code.contains(".reservation"));
    let sum = |rows: &[(u64, &str)]| rows.iter().map(|(places, _)| places).sum::<u64>();
    assert_eq!(sum(&expected) + sum(&others), count("refused"), "{out}");
    assert!(sum(&others) * 1000 < all, "less than 0.1 % of libc's instructions is refused: {out}");
}
