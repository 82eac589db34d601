//! `probe trace --pid`: a program that runs already is traced, and left as it was.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

#[path = "common/attached.rs"]
mod attached;
mod common;

use attached::{CALLS, Linked, Program, Trace, command, copied, hits};
use common::{probe, scratch};
use rstest::rstest;
use std::process::Command;
use std::sync::OnceLock;

/// HIT_7 and CTL_7.
#[rstest]
#[case::by_jump(&[])]
#[case::by_trap(&["--no-jumps"])]
fn hit_7_every_hit_in_a_running_program_is_counted_and_nothing_is_left(
    #[case] options: &[&str],
    #[values(Linked::Dynamic, Linked::Static, Linked::StaticPie)] linked: Linked,
) {
    let mut program = Program::start_at(linked.path());
    // What its libc makes at the first thread stays.
    assert_eq!(program.ask("batch"), "0 wrong");
    // Where the kernel has SIGTRAP blocked, a breakpoint ends the process.
    assert_eq!(program.ask("block"), "blocked");
    let before = program.state();
    for _ in 0..3 {
        let trace =
            Trace::attach(&program, options, &["p:work work n=$arg1:s64", "r:worked work", "r:made malloc"]);
        assert_eq!(program.ask("batch"), "0 wrong");
        let summary = trace.detach();
        assert_eq!((hits(&summary, "work"), hits(&summary, "worked")), (CALLS, CALLS), "{summary}");
        assert!(summary["ended"].as_str().unwrap().contains("goes on as it was"), "{summary}");
        program.state().assert_is(&before);
    }
    assert_eq!(program.ask("batch"), "0 wrong");
    program.end();
}

/// CTL_7: threads that work, wait, block all signals, handle signals, load libraries, come and go.
#[rstest]
#[case::by_jump(&[], &["p work", "p libc:malloc"], Linked::Dynamic)]
#[case::by_trap(&["--no-jumps"], &["p work", "p libc:malloc"], Linked::Dynamic)]
#[case::returns(&[], &["r work", "r libc:malloc", "r libc:epoll_wait"], Linked::Dynamic)]
#[case::all_of_libc(&["--no-jumps"], &["r libc:*", "p libc:*"], Linked::Dynamic)]
#[case::static_by_jump(&[], &["p work", "p malloc", "r epoll_wait"], Linked::Static)]
#[case::all_of_a_static_program(&["--no-jumps"], &["r *", "p *"], Linked::StaticPie)]
fn ctl_7_a_program_under_load_is_attached_to_and_left_again_and_again(
    #[case] options: &[&str],
    #[case] probes: &[&str],
    #[case] linked: Linked,
) {
    let mut program = Program::start_at(linked.path());
    assert_eq!(program.ask("load"), "loaded");
    for _ in 0..10 {
        let options: Vec<&str> =
            options.iter().copied().chain(["--no-events", "--duration", "30ms"]).collect();
        let output = command(program.pid(), &options, probes).output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("goes on"), "{said}");
    }
    assert_eq!(program.ask("end"), "worked");
    program.end();
}

/// HIT_12: a thread is stopped in a wait, and later begins one, with a mask that would make a breakpoint end
/// the process.
#[rstest]
#[case("sigsuspend", 130)]
#[case("ppoll", 271)]
#[case("pselect", 270)]
#[case("epoll_pwait", 281)]
fn hit_12_a_wait_with_a_mask_of_its_own_lets_breakpoints_be(
    #[case] call: &str,
    #[case] number: u32,
    #[values(Linked::Dynamic, Linked::Static)] linked: Linked,
) {
    let mut program = Program::start_at(linked.path());
    let wait = |program: &mut Program| {
        assert_eq!(program.ask(&format!("wait {call}")), "waiting");
        while !program.says("syscall").starts_with(&format!("{number} ")) {
            std::thread::yield_now();
        }
    };
    let interrupt = |program: &mut Program| {
        program.signal(libc::SIGUSR1);
        assert_eq!(program.line(), "interrupted");
    };
    wait(&mut program);
    let trace = Trace::attach(&program, &["--no-jumps"], &["p work"]);
    interrupt(&mut program);
    wait(&mut program);
    interrupt(&mut program);
    wait(&mut program);
    let summary = trace.detach();
    assert_eq!(hits(&summary, "work"), 2, "{summary}");
    assert!(summary["ended"].as_str().unwrap().contains("goes on as it was"), "{summary}");
    interrupt(&mut program);
    // One that is stopped, led elsewhere and left before it is over.
    wait(&mut program);
    Trace::attach(&program, &["--no-jumps"], &["p work"]).detach();
    interrupt(&mut program);
    program.end();
}

/// HIT_12: a thread is stopped in a handler, behind which it has all signals blocked.
#[test]
fn hit_12_a_handler_that_was_running_gives_no_mask_back_that_ends_the_process() {
    let mut program = Program::start();
    assert_eq!(program.ask("handle"), "handling");
    let trace = Trace::attach(&program, &["--no-jumps"], &["p work"]);
    assert_eq!(program.ask("on"), "handled");
    assert_eq!(program.ask("batch"), "0 wrong");
    assert_eq!(hits(&trace.detach(), "work"), CALLS);
    program.end();
}

#[test]
fn a_fork_of_a_traced_program_runs_on() {
    let mut program = Program::start();
    let trace = Trace::attach(&program, &["--no-jumps"], &["p:work work", "r libc:malloc"]);
    assert_eq!(program.ask("fork"), "child 7");
    let summary = trace.detach();
    assert_eq!(hits(&summary, "work"), 0, "{summary}");
    program.end();
}

#[test]
fn two_commands_do_not_trace_one_process() {
    let program = Program::start();
    let trace = Trace::attach(&program, &[], &["p work"]);
    refused(program.pid(), 126, "is traced by `probe` already");
    trace.detach();
    program.end();
}

#[test]
fn what_is_wrong_with_a_definition_is_said_and_nothing_is_left() {
    let mut program = Program::start();
    let before = program.state();
    let output = command(program.pid(), &[], &["p libc.so.6:malocc"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("did you mean `malloc`"), "{said}");
    program.state().assert_is(&before);
    assert_eq!(program.ask("batch"), "0 wrong");
    program.end();
}

/// Each is refused with a status and a sentence.
fn refused(pid: u32, status: i32, sentence: &str) {
    let output = command(pid, &[], &["p libc:malloc"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.starts_with("probe: ") && said.contains(sentence), "{said}");
}

#[test]
fn a_process_that_is_not_there_is_said_to_be_none() {
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    refused(ended.id(), 127, "there is no process");
}

#[rstest]
#[case::stripped(Linked::Static, &["--strip-all"], 2, "no object `libc` is loaded")]
#[case::of_go(Linked::Static, &["--add-section", ".go.buildinfo=/dev/null"], 126, "is a Go program")]
fn a_program_that_cannot_be_attached_to_runs_on(
    #[case] linked: Linked,
    #[case] options: &[&str],
    #[case] status: i32,
    #[case] sentence: &str,
) {
    let program = Program::start_at(&copied(linked.path(), options));
    refused(program.pid(), status, sentence);
    program.end();
}

/// Exceptions find no way through a followed call here.
#[test]
fn returns_are_not_followed_where_a_static_program_throws() {
    let path = musl_program();
    let program = Program::start_at(path);
    let output = command(program.pid(), &[], &["r work"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(126) && said.contains("can throw exceptions"), "{said}");
    program.end();
}

/// `programs/attach_musl.rs`.
fn musl_program() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = scratch("attach_musl").display().to_string();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/attach_musl.rs");
        let options = ["--edition=2024", "-O", "--target=x86_64-unknown-linux-musl", "-o", &built, source];
        let output = Command::new(rustc).args(options).output().expect("rustc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        built
    })
}

/// HIT_7 and CTL_7: static, of musl's, whose threads keep their numbers elsewhere.
#[rstest]
#[case::by_jump(&[])]
#[case::by_trap(&["--no-jumps"])]
fn hit_7_every_hit_in_a_static_program_of_musl_is_counted_and_nothing_is_left(#[case] options: &[&str]) {
    let mut program = Program::start_at(musl_program());
    assert_eq!(program.ask("1"), "0 wrong");
    let before = program.state();
    for _ in 0..3 {
        let trace = Trace::attach(&program, options, &["p:work work n=$arg1:u64", "p mmap"]);
        assert_eq!(program.ask("1000"), "0 wrong");
        let summary = trace.detach();
        assert_eq!(hits(&summary, "work"), CALLS, "{summary}");
        assert!(summary["ended"].as_str().unwrap().contains("goes on as it was"), "{summary}");
        program.state().assert_is(&before);
    }
    assert_eq!(program.ask("1"), "0 wrong");
    program.end();
}

#[test]
fn a_program_that_is_debugged_is_refused() {
    let program = Program::start();
    let pid = program.pid().cast_signed();
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: our own child; nothing is written.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) }, 0);
    refused(program.pid(), 126, "is debugged already");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid, nothing, nothing) }, 0);
    let mut status = 0;
    // SAFETY: a place for the status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }, pid);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, nothing, nothing) }, 0);
    program.end();
}

#[test]
fn children_of_a_running_program_are_not_followed_yet() {
    let output = probe().args(["trace", "--pid", "1", "-f", "-p", "p malloc"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
