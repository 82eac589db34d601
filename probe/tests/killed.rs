//! `probe trace --pid` of several programs at once, and what is left when it is killed.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

#[path = "common/attached.rs"]
mod attached;
mod common;

use attached::{CALLS, Linked, Program, Trace, command, copied, hits};
use common::{compiled, probe};
use rstest::rstest;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

impl Trace {
    /// The process that the command has started, which takes the agent away when the command is killed.
    fn keeper(&self) -> libc::pid_t {
        let parent = format!(") S {} ", self.child.id());
        let is_it = |pid: &libc::pid_t| {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(&parent))
        };
        loop {
            let entries = fs::read_dir("/proc").unwrap();
            let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
            if let Some(pid) = pids.into_iter().find(is_it) {
                return pid;
            }
        }
    }
}

/// Waits until nothing of a command is in a process, nor at it.
fn gone(pid: u32) {
    let until = Instant::now() + Duration::from_secs(30);
    let says = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    while says("maps").contains("memfd:probe-trace") || !says("status").contains("\nTracerPid:\t0\n") {
        assert!(Instant::now() < until, "the agent stays");
        std::thread::yield_now();
    }
}

/// The same of a program that the command has started.
#[test]
fn ctl_7_a_program_that_a_killed_command_has_started_goes_on_without_probes() {
    let path = Linked::Static.path();
    let mut command = probe();
    command.args(["trace", "-o", "/dev/null", "-p", "p work", "-p", "r malloc", "--", path]);
    let mut command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    let (mut input, output) = (command.stdin.take().unwrap(), command.stdout.take().unwrap());
    let mut lines = BufReader::new(output).lines().map(|line| line.expect("the program says something"));
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let parent = format!("\nPPid:\t{}\n", command.id());
    let is_it = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains(&parent))
            && fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with(path))
    };
    let pid = pids.into_iter().find(is_it).expect("the program runs");
    command.kill().unwrap();
    command.wait().unwrap();
    writeln!(input, "batch").unwrap();
    assert_eq!(lines.next().as_deref(), Some("0 wrong"));
    gone(pid);
    writeln!(input, "batch").unwrap();
    assert_eq!(lines.next().as_deref(), Some("0 wrong"));
    drop(input);
    assert_eq!(lines.next(), None);
}

/// The command is killed: the program loses no call, and soon has nothing of it left.
#[rstest]
#[case(Linked::Dynamic, &["p work", "r libc:malloc"])]
#[case(Linked::Static, &["p work", "r malloc"])]
fn ctl_7_what_a_killed_command_leaves_is_taken_away(#[case] linked: Linked, #[case] probes: &[&str]) {
    let mut program = Program::start_at(linked.path());
    assert_eq!(program.ask("batch"), "0 wrong");
    let before = program.state();
    for _ in 0..3 {
        let mut trace = Trace::attach(&program, &["--on-full", "wait", "--buffer", "4K"], probes);
        trace.signal(libc::SIGKILL);
        let _ = trace.child.wait();
        assert_eq!(program.ask("batch"), "0 wrong");
        gone(program.pid());
        program.state().assert_is(&before);
    }
    assert_eq!(program.ask("batch"), "0 wrong");
    program.end();
}

/// CTL_7: so has a child that was forked meanwhile, with -f.
#[rstest]
#[case(&["-O1"])]
#[case(&["-O1", "-static"])]
fn ctl_7_what_a_killed_command_leaves_in_forked_children_is_taken_away(#[case] options: &[&str]) {
    let mut program = Program::start_at(&compiled("forks", options));
    let mut trace = Trace::attach(&program, &["-f", "--no-events"], &["p work", "r work"]);
    let stays = program.ask("stay");
    let stays: i32 = stays.strip_prefix("child ").and_then(|child| child.parse().ok()).expect("a child");
    let has_agent =
        || fs::read_to_string(format!("/proc/{stays}/maps")).unwrap().contains("memfd:probe-trace");
    assert!(has_agent());
    trace.signal(libc::SIGKILL);
    let _ = trace.child.wait();
    gone(program.pid());
    gone(stays.cast_unsigned());
    // SAFETY: a child of the program, which waits for signals.
    assert_eq!(unsafe { libc::kill(stays, libc::SIGKILL) }, 0);
    assert_eq!(program.ask("fork"), "child 7");
    program.end();
}

/// The command is killed, and what would take the agent away as well.
#[test]
fn a_program_outlives_the_command() {
    let mut program = Program::start();
    assert_eq!(program.ask("batch"), "0 wrong");
    let before = program.state();
    let mut trace =
        Trace::attach(&program, &["--on-full", "wait", "--buffer", "4K"], &["p work", "r libc:malloc"]);
    // SAFETY: a process that the command has not waited for.
    assert_eq!(unsafe { libc::kill(trace.keeper(), libc::SIGKILL) }, 0);
    trace.signal(libc::SIGKILL);
    let _ = trace.child.wait();
    assert_eq!(program.ask("batch"), "0 wrong");
    // The next one takes away what the first has left.
    let trace = Trace::attach(&program, &[], &["p work", "r libc:malloc"]);
    assert_eq!(program.ask("batch"), "0 wrong");
    assert_eq!(hits(&trace.detach(), "work"), CALLS);
    program.state().assert_is(&before);
    program.end();
}

/// HIT_7 and CTL_7: several processes in one trace, by their numbers and by their name.
#[rstest]
fn hit_7_several_processes_are_traced_and_left(#[values(false, true)] by_name: bool) {
    let path = copied(Linked::Dynamic.path(), &[]);
    let mut programs = [Program::start_at(&path), Program::start_at(&path)];
    let mut befores = Vec::new();
    for program in &mut programs {
        assert_eq!(program.ask("batch"), "0 wrong");
        befores.push(program.state());
    }
    let name = path.rsplit('/').next().unwrap().to_owned();
    let more = if by_name { name } else { programs[1].pid().to_string() };
    let mut trace = Trace::attach(&programs[0], &["--pid", &more], &["p:work work", "r libc:malloc"]);
    while programs[1].regions().is_empty() || !programs[1].has_probes() {
        assert!(trace.child.try_wait().unwrap().is_none(), "{}", trace.said());
    }
    for program in &mut programs {
        assert_eq!(program.ask("batch"), "0 wrong");
    }
    let summary = trace.detach();
    assert_eq!(hits(&summary, "work"), 2 * CALLS, "{summary}");
    let ended = summary["ended"].as_str().unwrap();
    assert_eq!(ended.matches("goes on as it was").count(), 2, "{summary}");
    for (program, before) in programs.iter().zip(&befores) {
        program.state().assert_is(before);
    }
    // A definition that one of them cannot have is none for any.
    let other = Program::start_at(Linked::Static.path());
    let output =
        command(programs[0].pid(), &["--pid", &other.pid().to_string()], &["p libc:malloc"]).output();
    let said = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
    assert!(said.contains("no object `libc` is loaded"), "{said}");
    programs[0].state().assert_is(&befores[0]);
    other.end();
    programs.into_iter().for_each(Program::end);
}

#[test]
fn a_name_that_no_process_has_is_said_to_be_none() {
    let output = probe().args(["trace", "--pid", "no-such-name", "-p", "p malloc"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no process called `no-such-name`"));
}
