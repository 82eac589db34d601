//! `probe trace --pid`: a program that runs already is traced, and left as it was.
#![cfg(all(target_env = "gnu", target_arch = "x86_64", target_pointer_width = "64"))]

mod common;

use common::{compiled, probe, scratch, started};
use rstest::rstest;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// What each `batch` calls.
const CALLS: u64 = 4 * 1000;

/// How `programs/attach.c` is linked.
#[derive(Clone, Copy)]
enum Linked {
    Dynamic,
    Static,
    StaticPie,
}

impl Linked {
    /// Where it is, with this.
    fn path(self) -> &'static str {
        static BUILT: [OnceLock<String>; 3] = [const { OnceLock::new() }; 3];
        let options: &[&str] = match self {
            Self::Dynamic => &["-O1", "-pthread"],
            Self::Static => &["-O1", "-pthread", "-DSTATIC", "-static", "-no-pie"],
            Self::StaticPie => &["-O1", "-pthread", "-DSTATIC", "-static-pie"],
        };
        BUILT[self as usize].get_or_init(|| compiled("attach", options))
    }
}

/// A program that does what it is asked to, running.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start() -> Self {
        Self::start_at(Linked::Dynamic.path())
    }

    fn start_at(path: &str) -> Self {
        let mut child =
            started(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut this = Self { child, input, output: BufReader::new(output) };
        assert_eq!(this.line(), "ready");
        this
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program says something");
        line.trim_end().to_owned()
    }

    /// Has the program do something, and returns what it says of it.
    fn ask(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("the program listens");
        self.line()
    }

    /// What a file of it in `/proc` says.
    fn says(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap_or_default()
    }

    /// The memory that it shares with commands.
    fn regions(&self) -> Vec<String> {
        let maps = self.says("maps");
        maps.lines().filter(|line| line.contains("memfd:probe-trace")).map(str::to_owned).collect()
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid().cast_signed(), signal) }, 0);
    }

    /// Lets it end, as it does by itself.
    fn end(mut self) {
        drop(self.input);
        assert_eq!(self.child.wait().expect("the program ends").code(), Some(0));
    }

    /// All that tracing must leave as it was.
    fn state(&self) -> State {
        let task = format!("/proc/{}/task", self.pid());
        let threads = fs::read_dir(task).unwrap().map(|entry| entry.unwrap().path().join("status"));
        let signals = |text: &str| {
            let is_signals =
                |line: &&str| line.starts_with("Sig") && !line.starts_with("SigQ") || line.starts_with("Shd");
            text.lines().filter(is_signals).map(str::to_owned).collect::<Vec<_>>()
        };
        let files = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let memory = fs::File::open(format!("/proc/{}/mem", self.pid())).unwrap();
        let maps = self.says("maps");
        let text = maps.lines().filter(|line| line.contains(" r-xp ") && line.contains('/')).map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split(' ').next().unwrap();
            let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).unwrap();
            (line.to_owned(), bytes)
        });
        State {
            text: text.collect(),
            signals: threads.filter_map(|path| Some(signals(&fs::read_to_string(path).ok()?))).collect(),
            files: files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect(),
            maps,
        }
    }
}

/// See [`Program::state`].
#[derive(PartialEq, Eq)]
struct State {
    maps: String,
    text: BTreeMap<String, Vec<u8>>,
    signals: Vec<Vec<String>>,
    files: Vec<String>,
}

impl State {
    fn assert_is(&self, before: &Self) {
        assert_eq!(self.maps, before.maps);
        assert_eq!(self.signals, before.signals);
        assert_eq!(self.files, before.files);
        assert!(self.text == before.text, "text has changed");
    }
}

/// The command, attached to a program.
struct Trace {
    child: Child,
    file: PathBuf,
}

impl Trace {
    /// Starts it and waits until the probes are there.
    fn attach(program: &Program, options: &[&str], probes: &[&str]) -> Self {
        let (file, earlier) = (scratch("attached.json"), program.regions());
        let mut command = command(program.pid(), options, probes);
        let child = command.arg("-o").arg(&file).stderr(Stdio::piped()).spawn().expect("the command runs");
        let mut this = Self { child, file };
        // The memory is shared while all threads are stopped; they go on when the probes are there.
        let is_there = || {
            let is_stopped = !program.says("status").contains("\nTracerPid:\t0\n");
            program.regions().iter().any(|region| !earlier.contains(region)) && !is_stopped
        };
        while !is_there() {
            assert!(this.child.try_wait().unwrap().is_none(), "{}", this.said());
            std::thread::yield_now();
        }
        this
    }

    fn said(&mut self) -> String {
        let mut said = String::new();
        let _ = std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut said);
        said
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }

    /// Ends it as Ctrl-C does; returns the summary, the last line of what it has written.
    fn detach(mut self) -> Value {
        self.signal(libc::SIGINT);
        let status = self.child.wait().expect("the command ends");
        assert_eq!(status.code(), Some(0), "{}", self.said());
        let text = fs::read_to_string(&self.file).unwrap();
        let _ = fs::remove_file(&self.file);
        serde_json::from_str(text.lines().last().expect("a summary")).unwrap()
    }
}

fn command(pid: u32, options: &[&str], probes: &[&str]) -> Command {
    let mut command = probe();
    command.args(["trace", "--format", "json", "--pid", &pid.to_string()]).args(options);
    probes.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    command
}

fn hits(summary: &Value, name: &str) -> u64 {
    let rows = summary["probes"].as_array().expect("the summary has rows");
    rows.iter().find(|row| row["event"] == name).expect("a row")["hits"].as_u64().expect("a number")
}

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
fn a_program_outlives_the_command() {
    let mut program = Program::start();
    assert_eq!(program.ask("batch"), "0 wrong");
    let before = program.state();
    let mut trace =
        Trace::attach(&program, &["--on-full", "wait", "--buffer", "4K"], &["p work", "r libc:malloc"]);
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

/// A copy of a program, changed by `objcopy`.
fn copied(path: &str, options: &[&str]) -> String {
    let copy = scratch("copy").display().to_string();
    let status = Command::new("objcopy").args(options).args([path, &copy]).status().expect("objcopy runs");
    assert!(status.success());
    copy
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
