//! A program that is attached to, and the command that does.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use crate::common::{compiled, probe, scratch, started};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// What each `batch` calls.
pub const CALLS: u64 = 4 * 1000;

/// How `programs/attach.c` is linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Linked {
    Dynamic,
    Static,
    StaticPie,
}

impl Linked {
    /// Where it is, with this.
    pub fn path(self) -> &'static str {
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
pub struct Program {
    pub child: Child,
    pub input: ChildStdin,
    pub output: BufReader<ChildStdout>,
}

impl Program {
    pub fn start() -> Self {
        Self::start_at(Linked::Dynamic.path())
    }

    pub fn start_at(path: &str) -> Self {
        Self::start_by(started(path))
    }

    pub fn start_by(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut this = Self { child, input, output: BufReader::new(output) };
        assert_eq!(this.line(), "ready");
        this
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program says something");
        line.trim_end().to_owned()
    }

    /// Has the program do something, and returns what it says of it.
    pub fn ask(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").expect("the program listens");
        self.line()
    }

    /// What a file of it in `/proc` says.
    pub fn says(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid())).unwrap_or_default()
    }

    /// The memory that it shares with commands.
    pub fn regions(&self) -> Vec<String> {
        let maps = self.says("maps");
        maps.lines().filter(|line| line.contains("memfd:probe-trace")).map(str::to_owned).collect()
    }

    /// Whether the probes of a command are there, and its threads run. It handles no SIGTRAP of its own.
    pub fn has_probes(&self) -> bool {
        let status = self.says("status");
        let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:\t")).unwrap_or("0");
        let is_handled =
            u64::from_str_radix(handled, 16).is_ok_and(|set| set & 1 << (libc::SIGTRAP - 1) != 0);
        is_handled && status.contains("\nTracerPid:\t0\n")
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid().cast_signed(), signal) }, 0);
    }

    /// Lets it end, as it does by itself.
    pub fn end(mut self) {
        drop(self.input);
        assert_eq!(self.child.wait().expect("the program ends").code(), Some(0));
    }

    /// All that tracing must leave as it was.
    pub fn state(&self) -> State {
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
pub struct State {
    maps: String,
    text: BTreeMap<String, Vec<u8>>,
    signals: Vec<Vec<String>>,
    files: Vec<String>,
}

impl State {
    /// As [`State::assert_is`] of a program at work, whose data, descriptors, threads and masks come and go.
    pub fn assert_goes_on_as(&self, before: &Self) {
        assert!(!self.maps.contains("memfd:probe-trace"), "{}", self.maps);
        let executable = |state: &Self| {
            let lines = state
                .maps
                .lines()
                .filter(|line| line.split(' ').nth(1).is_some_and(|modes| modes.contains('x')));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(executable(self), executable(before));
        assert!(self.text == before.text, "text has changed");
    }

    pub fn assert_is(&self, before: &Self) {
        assert_eq!(self.maps, before.maps);
        assert_eq!(self.signals, before.signals);
        assert_eq!(self.files, before.files);
        assert!(self.text == before.text, "text has changed");
    }
}

/// The command, attached to a program.
pub struct Trace {
    pub child: Child,
    file: PathBuf,
}

impl Trace {
    /// Starts it and waits until the probes are there.
    pub fn attach(program: &Program, options: &[&str], probes: &[&str]) -> Self {
        let (file, earlier) = (scratch("attached.json"), program.regions());
        let mut command = command(program.pid(), options, probes);
        let child = command.arg("-o").arg(&file).stderr(Stdio::piped()).spawn().expect("the command runs");
        let mut this = Self { child, file };
        let is_new = || program.regions().iter().any(|region| !earlier.contains(region));
        while !(is_new() && program.has_probes()) {
            assert!(this.child.try_wait().unwrap().is_none(), "{}", this.said());
            std::thread::yield_now();
        }
        this
    }

    pub fn said(&mut self) -> String {
        let mut said = String::new();
        let _ = std::io::Read::read_to_string(self.child.stderr.as_mut().unwrap(), &mut said);
        said
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id().cast_signed(), signal) }, 0);
    }

    /// Ends it as Ctrl-C does; returns the summary, the last line of what it has written.
    pub fn detach(mut self) -> Value {
        self.signal(libc::SIGINT);
        let status = self.child.wait().expect("the command ends");
        assert_eq!(status.code(), Some(0), "{}", self.said());
        let text = fs::read_to_string(&self.file).unwrap();
        let _ = fs::remove_file(&self.file);
        serde_json::from_str(text.lines().last().expect("a summary")).unwrap()
    }
}

pub fn command(pid: u32, options: &[&str], probes: &[&str]) -> Command {
    let mut command = probe();
    command.args(["trace", "--format", "json", "--pid", &pid.to_string()]).args(options);
    probes.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    command
}

pub fn hits(summary: &Value, name: &str) -> u64 {
    let rows = summary["probes"].as_array().expect("the summary has rows");
    rows.iter().find(|row| row["event"] == name).expect("a row")["hits"].as_u64().expect("a number")
}

/// A copy of a program, changed by `objcopy`.
pub fn copied(path: &str, options: &[&str]) -> String {
    let copy = scratch("copy").display().to_string();
    let status = Command::new("objcopy").args(options).args([path, &copy]).status().expect("objcopy runs");
    assert!(status.success());
    copy
}
