//! Events that come faster than they are read, and a command that ends before the program: every hit is an
//! event or is counted as lost, in the name of its thread, and a thread waits for nobody who is not there.
//!
//! A static C library loads no agent, so there is nothing of this on musl.
#![cfg(target_env = "gnu")]

mod common;

use common::{Traced, compiled, probe, trace};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::OnceLock;

fn burst() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("burst", &["-O1", "-pthread"]))
}

fn traced(options: &[&str], threads: &str, calls: &str) -> Traced {
    let traced = trace(options, &["p work n=$arg1:s64"], &[burst(), threads, calls]);
    assert_eq!(traced.output.stdout, b"done\n", "{:?}", traced.output);
    traced
}

/// As many as an emulator gets through in seconds.
fn calls() -> u64 {
    if common::is_emulated() { 5_000 } else { 20_000 }
}

#[test]
fn evt_1_every_hit_is_an_event_or_counted_as_lost_by_its_thread() {
    let traced = traced(&["--buffer", "16K"], "4", &calls().to_string());
    let lost = traced.summary["lost_events"].as_u64().unwrap();
    assert_eq!(traced.row("work")["hits"], 4 * calls());
    assert_eq!(traced.events.len() as u64 + lost, 4 * calls(), "{}", traced.summary);
    assert!(lost > 0, "16 KiB are full after two hundred events");
    let by_thread = traced.summary["lost_by_thread"].as_array().unwrap();
    let sum: u64 = by_thread.iter().map(|thread| thread["lost_events"].as_u64().unwrap()).sum();
    assert_eq!((sum, &traced.row("work")["dropped_events"]), (lost, &lost.into()));
    let threads: BTreeSet<u64> = by_thread.iter().map(|thread| thread["tid"].as_u64().unwrap()).collect();
    let seen: BTreeSet<u64> = traced.events.iter().map(|event| event["tid"].as_u64().unwrap()).collect();
    assert!(threads.len() == by_thread.len() && threads.is_subset(&seen), "{threads:?}, {seen:?}");
}

#[test]
fn evt_1_threads_that_wait_lose_nothing() {
    let traced = traced(&["--buffer", "64K", "--on-full", "wait"], "4", &calls().to_string());
    assert_eq!(traced.events.len() as u64, 4 * calls(), "{}", traced.summary);
    assert_eq!(
        (&traced.summary["lost_events"], &traced.row("work")["hits"]),
        (&0.into(), &(4 * calls()).into())
    );
    let times: Vec<u64> = traced.events.iter().map(|event| event["time_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "a thread that waits holds back what is younger");
}

#[test]
fn evt_1_the_text_says_which_threads_have_lost_events() {
    let calls = (4 * calls()).to_string();
    let mut command = probe();
    command.args(["trace", "--buffer", "16K", "-p", "p work", "--", &common::program(burst()), "1", &calls]);
    let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.contains("events dropped: "));
    assert!(lines.next().is_some_and(|line| line.contains("--on-full wait")), "{text}");
    assert!(lines.next().is_some_and(|line| line.contains(" burst-") || line.contains("-burst-")), "{text}");
}

/// A command that is stopped while the program waits for it, then killed; the program's last words.
fn orphaned(options: &[&str], threads: &str, calls: &str, signals: &[libc::c_int]) -> Vec<String> {
    let mut command = probe();
    command.args(["trace", "-o", "/dev/null"]).args(options).args(["-p", "p work", "--"]);
    command.args([&common::program(burst()), threads, calls, "asked"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let mut input = child.stdin.take().unwrap();
    for &signal in signals {
        send(&child, signal);
        if signal == libc::SIGSTOP {
            writeln!(input).unwrap();
            wait_until_it_sleeps(&child);
        }
    }
    child.wait().unwrap();
    if !signals.contains(&libc::SIGSTOP) {
        writeln!(input).unwrap();
    }
    lines.collect()
}

fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: our own child, not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id().cast_signed(), signal) }, 0);
}

/// Until the one thread of the traced program that works does not run any more: its buffer is full.
fn wait_until_it_sleeps(child: &Child) {
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let program = std::fs::read_to_string(children).unwrap().trim().to_owned();
    let is_waiting = |thread: std::fs::DirEntry| {
        let call = std::fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
        // The number, the word, and the operation.
        let mut fields = call.split(' ');
        fields.next() == Some(&libc::SYS_futex.to_string()) && fields.nth(1) == Some("0x0")
    };
    loop {
        let threads = std::fs::read_dir(format!("/proc/{program}/task")).unwrap();
        if threads.flatten().any(is_waiting) {
            return;
        }
        std::thread::yield_now();
    }
}

/// EVT_1, EVT_2: who waits for a command that is killed goes on.
#[test]
fn evt_2_a_thread_does_not_wait_for_a_command_that_is_dead() {
    if common::is_emulated() {
        return;
    }
    let options = ["--on-full", "wait", "--buffer", "16K"];
    let said = orphaned(&options, "1", "1000000", &[libc::SIGSTOP, libc::SIGKILL]);
    assert_eq!(said.last().map(String::as_str), Some("done"));
}

/// Nothing is written that nobody will read: buffers that no thread had before stay empty.
#[test]
fn evt_2_a_program_without_its_command_uses_no_more_memory() {
    for options in [&["--on-full", "wait"], &["--on-full", "drop"]] {
        let said = orphaned(options, "32", "20000", &[libc::SIGKILL]);
        let shared: u64 = said[0].strip_prefix("shared ").unwrap().parse().unwrap();
        assert_eq!(said.last().map(String::as_str), Some("done"));
        assert!(shared < 16 << 10 || common::is_emulated(), "{shared} KiB");
    }
}
