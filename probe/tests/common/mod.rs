//! The common part of the command's tests.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod userland;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether there are programs of this architecture: a shell with its commands, sort, git, python3
/// (`build.rs`).
pub const HAS_PROGRAMS: bool = cfg!(not(no_programs));

/// The folder with the programs of this architecture.
pub fn folder() -> PathBuf {
    foreign().unwrap_or(Path::new("/bin")).to_owned()
}

/// That folder where the machine's own programs are of another architecture.
fn foreign() -> Option<&'static Path> {
    userland::folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/ci/userland"))
}

/// Whether this runs under an emulator.
pub fn is_emulated() -> bool {
    std::env::var_os("PROBE_RUNNER").is_some()
}

/// A folder with many folders in it; of a size that an emulator gets through in seconds.
pub fn tree() -> &'static str {
    if is_emulated() { env!("CARGO_MANIFEST_DIR") } else { "/usr/share/doc" }
}

/// How the program called `name` is called here: by its path, where the machine's own one is of another
/// architecture.
pub fn program(name: &str) -> String {
    let folder = folder();
    let is_set_up = foreign().is_none() || !HAS_PROGRAMS || folder.join("python3").exists();
    assert!(is_set_up, "{} is missing; run: cargo ci setup", folder.display());
    let here = folder.join(name.strip_prefix("/bin/").unwrap_or(name));
    if foreign().is_none() && name == "python3" {
        return python().to_owned();
    }
    if foreign().is_some() && here.exists() { here.display().to_string() } else { name.to_owned() }
}

/// The machine's Python itself: under a version manager, `python3` is a script that starts forty programs
/// first.
fn python() -> &'static str {
    static ITSELF: OnceLock<String> = OnceLock::new();
    ITSELF.get_or_init(|| {
        let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
        let said = output.expect("there is a Python").stdout;
        String::from_utf8_lossy(&said).trim().to_owned()
    })
}

/// The command, and where it finds programs.
pub fn probe() -> Command {
    let mut command = started(env!("CARGO_BIN_EXE_probe"));
    command.env_remove("LD_PRELOAD");
    command
}

/// `program`, started as programs of this architecture are, with such programs in PATH.
pub fn started(program: &str) -> Command {
    let runner = std::env::var("PROBE_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace().chain([program]);
    let mut command = Command::new(words.next().expect("at least the program"));
    command.args(words).env("LC_ALL", "C");
    if foreign().is_some() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(folder()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(path).expect("no folder has a colon in its name"));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(libraries()).expect("nor has one of these"));
    }
    command
}

/// Where the libraries of the unpacked programs are: in a folder of the architecture's own below two others.
fn libraries() -> Vec<PathBuf> {
    let root = folder().with_file_name("root");
    let inside = |folder: &str| std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
    let all = ["lib", "usr/lib"].into_iter().flat_map(inside).map(|entry| entry.path());
    all.filter(|path| path.to_string_lossy().contains("-linux-gnu")).collect()
}

/// The small C program `tests/programs/work.c`, compiled for this target.
pub fn work() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| compiled("work", &["-O1", "-fno-optimize-sibling-calls", "-pthread"]))
}

/// The path of `tests/programs/NAME.c`, compiled for this target.
pub fn compiled(name: &str, options: &[&str]) -> String {
    // Debian's cross compilers are called as targets are, but for the vendor and riscv64's extensions.
    let architecture = env!("PROBE_TARGET").split('-').next().unwrap_or_default().trim_end_matches("gc");
    let cross = format!("{architecture}-linux-gnu-gcc");
    compiled_by(if foreign().is_none() { "cc" } else { &cross }, name, options)
}

/// As [`compiled`], by this compiler.
pub fn compiled_by(compiler: &str, name: &str, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c");
    let built = scratch(name);
    let output = Command::new(compiler)
        .args(["-Wall", "-Werror"])
        .args(options)
        .arg("-o")
        .arg(&built)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; run: cargo ci setup"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    built.display().to_string()
}

/// A path for a file of one test.
pub fn scratch(name: &str) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}-{name}", std::process::id()))
}

/// What a traced program and the command said.
pub struct Traced {
    /// The program's own output and exit status.
    pub output: Output,
    /// The events.
    pub events: Vec<Value>,
    /// The summary.
    pub summary: Value,
}

impl Traced {
    /// The events called `name`.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.events.iter().filter(move |event| event["event"] == name)
    }

    /// The row of the summary called `name`.
    pub fn row(&self, name: &str) -> &Value {
        let rows = self.summary["probes"].as_array().expect("the summary has rows");
        rows.iter()
            .find(|row| row["event"] == name)
            .unwrap_or_else(|| panic!("no row {name}: {}", self.summary))
    }
}

/// Traces `program` with `options` and `probes`; every line that the command writes must be JSON.
pub fn trace(options: &[&str], probes: &[&str], program: &[&str]) -> Traced {
    let file = scratch("events.json");
    let mut command = probe();
    command.args(["trace", "--format", "json", "--output"]).arg(&file).args(options);
    probes.iter().for_each(|definition| {
        command.args(["-p", definition]);
    });
    command.arg("--").arg(self::program(program[0])).args(&program[1..]);
    let output = command.output().expect("the command runs");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    let mut events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let summary =
        events.pop().unwrap_or_else(|| panic!("no summary; {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(summary["type"], "summary");
    Traced { output, events, summary }
}

/// Runs `program` untraced. Under an emulator a program cannot start another: there the machine's own shell
/// says what is to come out.
pub fn bare(program: &[&str]) -> Output {
    let starts_others = matches!(program[0], "sh" | "env");
    let mut command = if starts_others && is_emulated() {
        let mut command = Command::new(program[0]);
        command.env("LC_ALL", "C");
        command
    } else {
        started(&self::program(program[0]))
    };
    command.args(&program[1..]).output().expect("the program runs")
}

/// Asserts that tracing changes nothing that the program says.
pub fn assert_unchanged(traced: &Traced, program: &[&str]) {
    assert_eq!(traced.output.status, bare(program).status, "{program:?}");
    assert_says_the_same(traced, program);
}

/// The same but for the exit status, which may be the command's own.
pub fn assert_says_the_same(traced: &Traced, program: &[&str]) {
    let bare = bare(program);
    assert_eq!(
        String::from_utf8_lossy(&traced.output.stdout),
        String::from_utf8_lossy(&bare.stdout),
        "{program:?}"
    );
    assert_eq!(
        String::from_utf8_lossy(&traced.output.stderr),
        String::from_utf8_lossy(&bare.stderr),
        "{program:?}"
    );
}
