//! `cargo ci job coverage`: which lines the native tests run, by crate, with a mark for each that must not be missed.
//!
//! Needs the component `llvm-tools` and nothing else. `target/coverage/lcov.info` has it line by line.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::step::{Step, clean};

/// Where everything about coverage is built and written.
const FOLDER: &str = "target/coverage";

/// The crates that are measured, and how many lines in a hundred their tests must run. What is missing is mostly what only the
/// other processors run: their trampolines' Rust side, and detours on aarch64 and ppc64.
const MARKS: [(&str, f64); 7] = [
    ("probe-core", 90.0),
    ("x86-decode", 90.0),
    ("arch-x86_64", 80.0),
    ("arch-aarch64", 75.0),
    ("arch-ppc64", 80.0),
    ("unwind", 95.0),
    ("host-linux", 85.0),
];

/// What runs: the tests of the measured crates, and the conformance suite in a process.
const TESTS: [&[&str]; 3] = [
    &[
        "-p",
        "probe-core",
        "-p",
        "probe-x86-decode",
        "-p",
        "probe-arch-aarch64",
        "-p",
        "probe-arch-ppc64",
        "-p",
        "probe-unwind",
        "-p",
        "probe-host-linux",
        "--lib",
        "--tests",
    ],
    &["-p", "probe-fuzz-checks", "--tests"],
    &["-p", "probe-tests-user", "--test", "conformance"],
];

/// The steps of the job: instrumented tests, then the count.
pub(crate) fn steps(root: &Path) -> Vec<Step> {
    let _ = fs::remove_dir_all(root.join(FOLDER).join("profiles"));
    let mut steps: Vec<_> = TESTS
        .iter()
        .map(|tests| {
            let step =
                Step::run(format!("instrumented tests: {}", tests[1]), &["cargo", "test", "--no-fail-fast"]);
            environment(root)
                .into_iter()
                .fold(step, |step, (name, value)| step.env(name, value))
                .args(tests.iter().copied())
        })
        .collect();
    steps.push(Step::check("line coverage", measure));
    steps
}

fn environment(root: &Path) -> [(&'static str, String); 3] {
    let profiles = root.join(FOLDER).join("profiles/%p-%m.profraw");
    [
        ("RUSTFLAGS", "-C instrument-coverage".to_owned()),
        ("LLVM_PROFILE_FILE", profiles.display().to_string()),
        ("CARGO_TARGET_DIR", FOLDER.to_owned()),
    ]
}

/// Lines of one crate or file: all, and those that ran.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Lines {
    all: u64,
    ran: u64,
}

impl Lines {
    fn percent(self) -> f64 {
        if self.all == 0 { 0.0 } else { self.ran as f64 * 100.0 / self.all as f64 }
    }
}

/// Merges the profiles, prints the table and answers which crate misses its mark.
fn measure(root: &Path) -> Result<(), String> {
    let folder = root.join(FOLDER);
    let merged = folder.join("all.profdata");
    let profiles: Vec<_> = fs::read_dir(folder.join("profiles"))
        .map_err(|error| format!("the tests left no profiles: {error}"))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    let list = folder.join("profiles.txt");
    let names: String = profiles.iter().map(|profile| format!("{}\n", profile.display())).collect();
    fs::write(&list, names).map_err(|error| format!("cannot write {}: {error}", list.display()))?;
    let mut merge = tool("llvm-profdata")?;
    run(merge.args(["merge", "--sparse", "--input-files"]).arg(&list).arg("--output").arg(&merged))?;

    let programs = programs(root)?;
    let export = |format: &[&str]| -> Result<String, String> {
        let mut command = tool("llvm-cov")?;
        command.arg("export").args(format).arg("--instr-profile").arg(&merged);
        for (index, program) in programs.iter().enumerate() {
            if index > 0 {
                command.arg("--object");
            }
            command.arg(program);
        }
        run(&mut command)
    };
    let lcov = folder.join("lcov.info");
    fs::write(&lcov, export(&["--format=lcov"])?)
        .map_err(|error| format!("cannot write {}: {error}", lcov.display()))?;
    let summary = export(&["--format=text", "--summary-only"])?;
    let summary: Value =
        serde_json::from_str(&summary).map_err(|error| format!("llvm-cov's answer is not JSON: {error}"))?;
    let files = lines_of_files(root, &summary);
    verdict(&files)
}

/// The lines of each source file of the measured crates, by its path from the root.
fn lines_of_files(root: &Path, summary: &Value) -> BTreeMap<PathBuf, Lines> {
    let mut files = BTreeMap::new();
    for file in summary["data"][0]["files"].as_array().into_iter().flatten() {
        let path = Path::new(file["filename"].as_str().unwrap_or_default());
        let Ok(path) = path.strip_prefix(root) else { continue };
        let is_source = path.components().nth(1).is_some_and(|part| part.as_os_str() == "src");
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if is_source && !is_test {
            let number = |key: &str| file["summary"]["lines"][key].as_u64().unwrap_or_default();
            files.insert(path.to_owned(), Lines { all: number("count"), ran: number("covered") });
        }
    }
    files
}

/// Prints each crate and its files with the most lines that did not run.
fn verdict(files: &BTreeMap<PathBuf, Lines>) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, mark) in MARKS {
        let mut own: Vec<_> = files.iter().filter(|(path, _)| path.starts_with(name)).collect();
        let sum = own.iter().fold(Lines::default(), |sum, (_, lines)| Lines {
            all: sum.all + lines.all,
            ran: sum.ran + lines.ran,
        });
        println!("      {name:14} {:5.1} % of {:>5} lines (mark: {mark} %)", sum.percent(), sum.all);
        own.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.all - lines.ran));
        for (path, lines) in own.iter().filter(|(_, lines)| lines.ran < lines.all).take(5) {
            println!("        {:>4} lines of {} did not run", lines.all - lines.ran, path.display());
        }
        if sum.percent() < mark {
            wrong.push(format!("{name}: {:.1} % of its lines ran, the mark is {mark} %", sum.percent()));
        }
    }
    crate::lint::found(wrong)
}

/// The test programs, which cargo knows when it has nothing to build.
fn programs(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut programs = Vec::new();
    for tests in TESTS {
        let mut command = clean(Command::new("cargo"));
        command.args(["test", "--no-run", "--message-format=json"]).args(tests).current_dir(root);
        command.envs(environment(root));
        for line in run(&mut command)?.lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_default();
            programs.extend(message["executable"].as_str().map(PathBuf::from));
        }
    }
    if programs.is_empty() { Err("cargo names no test programs".to_owned()) } else { Ok(programs) }
}

/// One of the programs of the component `llvm-tools`, which are those of the compiler in use.
fn tool(name: &str) -> Result<Command, String> {
    let sysroot = crate::setup::sysroot("").ok_or("rustc does not say where it is installed")?;
    let program = sysroot.join("lib/rustlib").join(crate::matrix::NATIVE).join("bin").join(name);
    if program.exists() {
        Ok(Command::new(program))
    } else {
        Err(format!("{} is not there", program.display()))
    }
}

/// What a command prints, or what it says when it fails.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_counted_and_nothing_else() {
        let file = |name: &str| serde_json::json!({"filename": name, "summary": {"lines": {"count": 10, "covered": 9}}});
        let names = [
            "/w/probe-core/src/hit.rs",
            "/w/probe-core/tests/a.rs",
            "/w/arch-i386/src/tests.rs",
            "/rust/x.rs",
        ];
        let files: Vec<_> = names.into_iter().map(file).collect();
        let found = lines_of_files(Path::new("/w"), &serde_json::json!({"data": [{"files": files}]}));
        let wanted = BTreeMap::from([(PathBuf::from("probe-core/src/hit.rs"), Lines { all: 10, ran: 9 })]);
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_crate_below_its_mark_is_named() {
        let mut files: BTreeMap<_, _> = MARKS
            .iter()
            .map(|(name, _)| (Path::new(name).join("src/a.rs"), Lines { all: 10, ran: 10 }))
            .collect();
        assert_eq!(verdict(&files), Ok(()));
        files.insert(PathBuf::from("probe-core/src/b.rs"), Lines { all: 10, ran: 1 });
        let wrong = verdict(&files).expect_err("it is below the mark");
        assert!(wrong.starts_with("probe-core: 55.0 %"), "{wrong}");
    }
}
