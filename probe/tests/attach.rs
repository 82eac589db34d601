//! `probe trace --pid`: a program that runs already is traced, and left as it was.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

#[path = "common/attached.rs"]
mod attached;
mod common;

use attached::{CALLS, Linked, Program, Trace, command, copied, hits};
use common::{compiled, compiled_by, probe, scratch};
use object::{Object, ObjectSymbol};
use rstest::rstest;
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
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
    refused_with(pid, "p libc:malloc", status, sentence);
}

fn refused_with(pid: u32, probe: &str, status: i32, sentence: &str) {
    let output = command(pid, &[], &[probe]).output().unwrap();
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

/// How much processor time threads have taken that a process of one thread has had besides, in nanoseconds.
fn time_of_others(pid: u32) -> i64 {
    let mut clock = 0;
    // SAFETY: a place for the answer.
    assert_eq!(unsafe { libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) }, 0);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    let own = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
    let own: i64 = own.split(' ').next().and_then(|time| time.parse().ok()).expect("nanoseconds");
    time.tv_sec * 1_000_000_000 + time.tv_nsec - own
}

/// Puts a filter of system calls into force that lets all through.
fn allow_everything() -> std::io::Result<()> {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut allow = libc::sock_filter { code, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW };
    let filter = libc::sock_fprog { len: 1, filter: &raw mut allow };
    // SAFETY: takes numbers only.
    let mut done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if done == 0 {
        // SAFETY: a filter of our own.
        done =
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) };
    }
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The agent reads in a thread of the command's, while the program runs on; not where a filter of system
/// calls might end the program for making one.
#[rstest]
#[case::alone(false)]
#[case::with_a_filter(true)]
fn symbols_are_read_in_a_thread_of_the_commands(#[case] has_filter: bool) {
    const LITTLE_NS: i64 = 300_000;
    let mut start = Command::new(Linked::Dynamic.path());
    let filter = move || if has_filter { allow_everything() } else { Ok(()) };
    // SAFETY: the closure makes system calls alone.
    unsafe { start.pre_exec(filter) };
    let mut program = Program::start_by(start);
    assert!(time_of_others(program.pid()) < LITTLE_NS);
    let trace = Trace::attach(&program, &[], &["p work", "p libc:malloc"]);
    let others = time_of_others(program.pid());
    assert_eq!(others < LITTLE_NS, has_filter, "{others}");
    assert_eq!(program.ask("batch"), "0 wrong");
    assert_eq!(hits(&trace.detach(), "work"), CALLS);
    program.end();
}

/// HIT_7: what has no name is called by its address, whether or not there are section headers.
#[rstest]
#[case::with_section_headers(Linked::Static, false)]
#[case::without_section_headers(Linked::StaticPie, true)]
fn hit_7_functions_of_a_stripped_program_are_probed_by_their_addresses(
    #[case] linked: Linked,
    #[case] is_bare: bool,
) {
    let whole = fs::read(linked.path()).unwrap();
    let file = object::File::parse(&*whole).unwrap();
    let work = file.symbols().find(|symbol| symbol.name() == Ok("work")).expect("its symbol").address();
    let path = copied(linked.path(), &["--strip-all"]);
    if is_bare {
        let mut bytes = fs::read(&path).unwrap();
        // `e_shoff`, `e_shnum`, `e_shstrndx`.
        bytes[0x28..0x30].fill(0);
        bytes[0x3c..0x40].fill(0);
        fs::write(&path, bytes).unwrap();
    }
    let mut program = Program::start_at(&path);
    assert_eq!(program.ask("batch"), "0 wrong");
    let before = program.state();
    let name = format!("sub_{work:x}");
    let trace = Trace::attach(&program, &[], &[&format!("p:work {name} n=$arg1:s64")]);
    assert_eq!(program.ask("batch"), "0 wrong");
    let summary = trace.detach();
    assert_eq!(hits(&summary, "work"), CALLS, "{summary}");
    program.state().assert_is(&before);
    refused_with(program.pid(), "p nothing", 2, "has been stripped of its names");
    if is_bare {
        refused_with(program.pid(), &format!("r {name}"), 126, "can throw exceptions");
    }
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

/// HIT_7: with -f, children of a running program are traced from their first instruction, however they are
/// made, and the dynamic programs that they execute; those that outlive the trace are left as they would be.
#[rstest]
#[case::by_jump(&["-f"])]
#[case::by_trap(&["-f", "--no-jumps"])]
fn hit_7_children_of_a_running_program_are_followed_and_left(
    #[case] options: &[&str],
    #[values(Linked::Dynamic, Linked::Static)] linked: Linked,
) {
    let mut program = Program::start_at(forks(linked));
    assert_eq!(program.ask("fork"), "child 7");
    let before = program.state();
    let trace = Trace::attach(&program, options, &["p:work work", "r:worked work"]);
    assert_eq!(program.ask("fork"), "child 7");
    assert_eq!(program.ask("grandchild"), "child 14");
    assert_eq!(program.ask("vfork"), "child 7");
    assert_eq!(program.ask("spawn"), "child 7");
    let stays = program.ask("stay");
    let stays: i32 = stays.strip_prefix("child ").and_then(|child| child.parse().ok()).expect("a child");
    let summary = trace.detach();
    // A fork, a child and its child; two that execute the program.
    let wanted = (3 + 2) * FORKS_CALLS;
    assert_eq!((hits(&summary, "work"), hits(&summary, "worked")), (wanted, wanted), "{summary}");
    program.state().assert_is(&before);
    let maps = fs::read_to_string(format!("/proc/{stays}/maps")).unwrap();
    assert!(!maps.contains("memfd:probe-trace"), "{maps}");
    // SAFETY: a child of the program, which waits for signals.
    assert_eq!(unsafe { libc::kill(stays, libc::SIGKILL) }, 0);
    assert_eq!(program.ask("fork"), "child 7");
    program.end();
}

/// EVT_1: the same for a program that the agent is put into as it starts, and for one that it executes.
#[rstest]
#[case::of_glibc(forks(Linked::Static).into())]
#[case::of_musl(compiled_by("musl-gcc", "forks", &["-O1"]))]
fn evt_1_children_of_a_program_that_no_linker_of_glibcs_starts_are_followed(#[case] path: String) {
    let mut child = probe()
        .args(["trace", "--format", "json", "--no-events", "-f", "-p", "p work", "--", &path])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"fork\ngrandchild\nspawn\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\nchild 7\nchild 14\nchild 7\n", "{said}");
    let summary = serde_json::from_str(said.lines().last().expect("a summary")).unwrap();
    assert_eq!(hits(&summary, "work"), 4 * FORKS_CALLS, "{summary}");
}

/// What each child of `programs/forks.c` calls.
const FORKS_CALLS: u64 = 100;

fn forks(linked: Linked) -> &'static str {
    static BUILT: [OnceLock<String>; 2] = [const { OnceLock::new() }; 2];
    let options: &[&str] = match linked {
        Linked::Dynamic => &["-O1"],
        _ => &["-O1", "-static"],
    };
    BUILT[usize::from(linked != Linked::Dynamic)].get_or_init(|| compiled("forks", options))
}
