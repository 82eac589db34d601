//! What the tests of the command share.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The command.
pub fn probe() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.env_remove("LD_PRELOAD").env("LC_ALL", "C");
    command
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
    let output = command.arg("--").args(program).output().expect("the command runs");
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

/// Runs `program` untraced.
pub fn bare(program: &[&str]) -> Output {
    Command::new(program[0]).args(&program[1..]).env("LC_ALL", "C").output().expect("the program runs")
}

/// Asserts that tracing changes nothing that the program says.
pub fn assert_unchanged(traced: &Traced, program: &[&str]) {
    let bare = bare(program);
    assert_eq!(traced.output.status, bare.status, "{program:?}");
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
