//! The programs that are run, and their inputs.

#[path = "../../../probe/tests/common/userland.rs"]
mod userland;

use crate::run::Mode;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Output and exit status: it has threads, or its path depends on time and addresses.
    Output,
    /// And the executions of every instruction.
    Every,
}

/// One program with its work.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// A path; a name to be looked up in PATH, or, where programs are another architecture's, an applet of
    /// busybox; or one of [`RUST`], [`CPP`] and [`TESTED_PYTHON`].
    program: &'static str,
    /// Words parted by spaces; `ROUNDS` stands for a number.
    arguments: &'static str,
    /// The file on its standard input.
    input: Option<&'static str>,
    pub(crate) count: Count,
    /// Whether only the long form runs it.
    pub(crate) is_long: bool,
}

/// A program of this package.
const RUST: &str = env!("CARGO_BIN_EXE_panics");
/// `tests/throws.cpp`, compiled when it is needed.
const CPP: &str = "throws";
/// The Python in PATH, if it has its own tests (Debian: `libpython3-testsuite`).
const TESTED_PYTHON: &str = "a Python with its own tests";

const fn counted(name: &'static str, program: &'static str, arguments: &'static str) -> Program {
    Program { name, program, arguments, input: None, count: Count::Every, is_long: true }
}

const fn compared(name: &'static str, program: &'static str, arguments: &'static str) -> Program {
    Program { count: Count::Output, ..counted(name, program, arguments) }
}

/// What the short form runs as well.
const fn short(program: Program) -> Program {
    Program { is_long: false, ..program }
}

const fn reading(input: &'static str, program: Program) -> Program {
    Program { input: Some(input), ..program }
}

pub(crate) const PROGRAMS: &[Program] = &[
    short(counted("gunzip", "gzip", "-d -c small.gz")),
    short(compared("panics", RUST, "ROUNDS")),
    counted("unwinding", RUST, "ROUNDS alone"),
    short(compared("throws", CPP, "ROUNDS")),
    counted("gzip", "gzip", "-c -n text"),
    counted("sha256sum", "sha256sum", "text small.gz"),
    counted("sort", "sort", "text"),
    reading(
        "text",
        counted("awk", "awk", "{n[$2]+=$1}END{print(n[\"the\"],n[\"probe\"],sqrt(NR),length(n))}"),
    ),
    counted("sed", "sed", "-e s/\\([a-z]*\\)[[:space:]]\\([a-z]*\\)/\\2-\\1/g text"),
    counted("grep", "grep", "-n -i -E (pro|har).*e[a-z]$ text"),
    compared("xz", "/usr/bin/xz", "-c -T1 text"),
    reading("work.sql", compared("sqlite", "/usr/bin/sqlite3", ":memory:")),
    compared("python", "/usr/bin/python3", "-S -E work.py"),
    compared("regression", TESTED_PYTHON, "-E regression.py"),
    compared("openssl", "/usr/bin/openssl", "dgst -sha3-256 text"),
];

/// Whether the work is the long form's.
pub(crate) fn is_long() -> bool {
    std::env::var("PROBE_EVERYTHING").is_ok_and(|form| form == "long")
}

/// Where files lie: in a folder of this run alone, as the folder above is all targets'.
pub(crate) fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("everything-{}", std::process::id()))
}

/// Its programs are in busybox, where the machine's own are of another architecture.
fn userland() -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ci/userland");
    userland::folder(&unpacked).map(|folder| folder.join("busybox"))
}

impl Program {
    /// Whether it is run on this architecture at all.
    pub(crate) fn is_here(&self) -> bool {
        cfg!(target_arch = "x86_64")
            || self.program == RUST
            || !self.program.starts_with('/') && ![CPP, TESTED_PYTHON].contains(&self.program)
    }

    /// What of it is not there.
    pub(crate) fn missing(&self) -> Option<String> {
        let needed = if self.program == CPP { "c++" } else { self.program };
        self.path(needed).is_none().then(|| match userland() {
            Some(busybox) if !needed.starts_with('/') => busybox.display().to_string(),
            _ => needed.to_owned(),
        })
    }

    /// Its file.
    fn path(&self, name: &str) -> Option<PathBuf> {
        if name.starts_with('/') {
            // A link such as Python's: the object's name is the file's.
            return Path::new(name).canonicalize().ok();
        }
        if name == TESTED_PYTHON {
            return tested_python();
        }
        if let Some(busybox) = userland() {
            return Some(busybox).filter(|path| path.is_file());
        }
        let folders = std::env::var_os("PATH")?;
        let found =
            std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())?;
        found.canonicalize().ok()
    }

    /// The ways to run it with probes.
    pub(crate) fn modes(&self) -> &'static [Mode] {
        if self.count == Count::Every { &[Mode::Pre, Mode::Post] } else { &[Mode::Pre] }
    }

    /// Makes its work; the program, its arguments with its name, its input.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn prepare(&self) -> Result<(PathBuf, Vec<String>, Option<PathBuf>), String> {
        work()?;
        let path = if self.program == CPP {
            compile()?
        } else {
            self.path(self.program).ok_or("it is not there")?
        };
        // A hit costs far more under an emulator.
        let is_emulated = userland().is_some() && !cfg!(target_arch = "x86");
        let rounds = match (is_long(), is_emulated) {
            (true, false) => "100",
            (true, true) => "10",
            (false, _) => "4",
        };
        // By its name a Python would look for its library.
        let itself = path.display().to_string();
        let own =
            if self.program == TESTED_PYTHON { Some(&*itself) } else { self.program.rsplit('/').next() };
        let own = own.unwrap_or_default();
        let arguments = self.arguments.replace("ROUNDS", rounds);
        let arguments = [own.to_owned()].into_iter().chain(arguments.split(' ').map(String::from)).collect();
        Ok((path, arguments, self.input.map(|name| scratch().join(name))))
    }
}

/// The interpreter itself, which a version manager's `python3` only starts.
fn tested_python() -> Option<PathBuf> {
    let asked = "import sys, test.test_json; print(sys.executable)";
    let output = Command::new("python3").args(["-E", "-c", asked]).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| Path::new(path.trim()).canonicalize().ok())?
}

/// Compiles the C++ program.
fn compile() -> Result<PathBuf, String> {
    let program = scratch().join(CPP);
    let mut compiler = Command::new("c++");
    compiler.args(["-O2", "-pthread", "-o"]).arg(&program);
    let status = compiler.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/throws.cpp")).status();
    let status = status.map_err(|error| format!("c++: {error}"))?;
    if status.success() { Ok(program) } else { Err(format!("the C++ program does not compile: {status}")) }
}

/// Writes the files that the programs work on, the same each time.
fn work() -> Result<(), String> {
    const WORDS: [&str; 12] = [
        "the",
        "probe",
        "kernel",
        "of",
        "hardware",
        "stands",
        "where",
        "an",
        "instruction",
        "was",
        "single-step",
        "Presented",
    ];
    let failed = |error: std::io::Error| error.to_string();
    let scratch = scratch();
    fs::create_dir_all(&scratch).map_err(failed)?;
    let mut state = 1_u64;
    let mut next = |below: u64| {
        // Knuth's MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut text = String::new();
    for _ in 0..if is_long() { 60 } else { 30 } {
        let _ = write!(text, "{}", next(10_000));
        for _ in 0..next(9) {
            let _ = write!(text, " {}", WORDS[next(WORDS.len() as u64) as usize]);
        }
        text.push('\n');
    }
    fs::write(scratch.join("text"), text).map_err(failed)?;
    fs::write(scratch.join("small.gz"), include_bytes!("small.gz")).map_err(failed)?;
    fs::write(scratch.join("work.sql"), include_str!("work.sql")).map_err(failed)?;
    fs::write(scratch.join("regression.py"), include_str!("regression.py")).map_err(failed)?;
    fs::write(scratch.join("work.py"), include_str!("work.py")).map_err(failed)
}
