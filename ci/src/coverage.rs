//! `cargo ci job coverage`: which lines the native tests run, by crate, with a mark for each that must not be
//! missed.
//!
//! Needs the component `llvm-tools` and nothing else. `target/coverage/lcov.info` has it line by line.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::clean;
use crate::matrix::backends;
use crate::step::Step;

/// Where everything about coverage is built and written.
const FOLDER: &str = "target/coverage";

/// The measured crates beside the backends, and how many lines in a hundred their tests must run.
const MARKS: [(&str, f64); 6] = [
    ("probe-core", 95.0),
    ("x86-decode", 95.0),
    ("ppc-decode", 95.0),
    ("unwind", 95.0),
    ("elf-symbols", 85.0),
    ("host-linux", 85.0),
];
/// The same of a backend.
const BACKEND_MARK: f64 = 95.0;

/// Each measured crate's folder and mark.
fn marks() -> impl Iterator<Item = (&'static str, f64)> {
    MARKS.into_iter().chain(backends().into_iter().map(|backend| (backend, BACKEND_MARK)))
}

/// Sources that are only there for tests.
const TEST_SOURCES: [&str; 3] = ["tests", "testing", "vectors"];

/// What runs: the tests of the measured crates, and the conformance suite in a process.
fn tests() -> [Vec<String>; 3] {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut measured = words(&["--lib", "--tests"]);
    for (folder, _) in marks() {
        let is_named = folder.starts_with("probe-");
        measured
            .extend(["-p".to_owned(), if is_named { folder.to_owned() } else { format!("probe-{folder}") }]);
    }
    let suite = words(&["-p", "probe-tests-user", "--test", "conformance"]);
    [measured, words(&["-p", "probe-fuzz-checks", "--tests"]), suite]
}

/// The steps of the job: instrumented tests, then the count.
pub(crate) fn steps(root: &Path) -> Vec<Step> {
    let _ = fs::remove_dir_all(root.join(FOLDER).join("profiles"));
    let mut steps: Vec<_> = tests()
        .iter()
        .map(|tests| {
            let step =
                Step::run(format!("instrumented tests: {}", tests[1]), &["cargo", "test", "--no-fail-fast"]);
            environment(root)
                .into_iter()
                .fold(step, |step, (name, value)| step.env(name, value))
                .args(tests.iter().map(String::as_str))
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

/// The lines of a file that hold code, each with whether it ran.
type Lines = BTreeMap<usize, bool>;

/// How many lines there are, and how many of them ran.
fn count<'a>(files: impl IntoIterator<Item = &'a Lines>) -> (usize, usize) {
    files
        .into_iter()
        .flat_map(BTreeMap::values)
        .fold((0, 0), |(all, ran), line| (all + 1, ran + usize::from(*line)))
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
    let mut command = tool("llvm-cov")?;
    command.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged);
    for (index, program) in programs.iter().enumerate() {
        if index > 0 {
            command.arg("--object");
        }
        command.arg(program);
    }
    let lcov = run(&mut command)?;
    let path = folder.join("lcov.info");
    fs::write(&path, &lcov).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let mut files = lines_of_files(root, &lcov);
    for (file, lines) in &mut files {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        lines.retain(|number, _| *number <= len_without_tests(&text));
        for function in constant_functions(&text) {
            // Some are called at run time, too.
            if lines.range(function.clone()).all(|(_, ran)| !ran) {
                lines.retain(|number, _| !function.contains(number));
            }
        }
    }
    verdict(&files)
}

/// The lines of each source file of this repository, by its path from the root. Source of the format:
/// geninfo(1).
fn lines_of_files(root: &Path, lcov: &str) -> BTreeMap<PathBuf, Lines> {
    let mut files: BTreeMap<PathBuf, Lines> = BTreeMap::new();
    let mut current = None;
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            current =
                Path::new(path).strip_prefix(root).ok().filter(|path| is_measured(path)).map(Path::to_owned);
        } else if let (Some(path), Some(data)) = (&current, line.strip_prefix("DA:"))
            && let Some((number, count)) = data.split_once(',')
            && let Ok(number) = number.parse()
        {
            *files.entry(path.clone()).or_default().entry(number).or_default() |= count != "0";
        }
    }
    files
}

/// Whether a file is a crate's source, and not one for tests.
fn is_measured(path: &Path) -> bool {
    let is_source = path.components().nth(1).is_some_and(|part| part.as_os_str() == "src");
    let is_test = path.file_stem().is_some_and(|name| TEST_SOURCES.iter().any(|test| name == *test));
    is_source && !is_test
}

/// The number of the last line before a file's own tests, which come last.
fn len_without_tests(text: &str) -> usize {
    text.lines().position(|line| line == "mod tests {").unwrap_or(usize::MAX)
}

/// The lines of each `const fn`: what only constants call runs in the compiler, whose runs nobody counts.
/// That each is called is the compiler's warning.
fn constant_functions(text: &str) -> Vec<Range<usize>> {
    let lines: Vec<_> = text.lines().collect();
    let is_constant = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        line.starts_with("const fn ")
    };
    let starts = lines.iter().enumerate().filter(|(_, line)| is_constant(line));
    let function = |(start, line): (usize, &&str)| {
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let len = lines[start..].iter().position(|line| **line == end).unwrap_or(0);
        start + 1..start + len + 2
    };
    starts.map(function).collect()
}

/// Prints each crate, and of those with a backend's or the core's mark every line that did not run.
fn verdict(files: &BTreeMap<PathBuf, Lines>) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, mark) in marks() {
        let own: Vec<_> = files.iter().filter(|(path, _)| path.starts_with(name)).collect();
        let (all, ran) = count(own.iter().map(|(_, lines)| *lines));
        let percent = if all == 0 { 0.0 } else { ran as f64 * 100.0 / all as f64 };
        println!("      {name:14} {percent:5.1} % of {all:>5} lines (mark: {mark} %)");
        for (path, lines) in own.iter().filter(|(_, lines)| lines.values().any(|ran| !ran)) {
            println!("        {}: {}", path.display(), missing(lines));
        }
        if percent < mark {
            wrong.push(format!("{name}: {percent:.1} % of its lines ran, the mark is {mark} %"));
        }
    }
    crate::tree::found(wrong)
}

/// The lines that did not run, as ranges over what holds no code.
fn missing(lines: &Lines) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let mut was_missing = false;
    for (number, ran) in lines {
        match ranges.last_mut() {
            _ if *ran => {}
            Some((_, last)) if was_missing => *last = *number,
            _ => ranges.push((*number, *number)),
        }
        was_missing = !ran;
    }
    let range = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(" ")
}

/// The test programs, which cargo knows when it has nothing to build.
fn programs(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut programs = Vec::new();
    for tests in tests() {
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
        let names = ["probe-core/src/hit.rs", "probe-core/tests/a.rs", "arch-aarch64/src/testing.rs"];
        let file = |name| format!("SF:/w/{name}\nDA:3,0\nDA:4,1\nDA:9,7\nend_of_record\n");
        let lcov: String =
            names.into_iter().map(file).chain(["SF:/rust/src/x.rs\nDA:1,0\n".to_owned()]).collect();
        let wanted = Lines::from([(3, false), (4, true), (9, true)]);
        assert_eq!(
            lines_of_files(Path::new("/w"), &lcov),
            BTreeMap::from([("probe-core/src/hit.rs".into(), wanted)])
        );
        assert_eq!(len_without_tests("fn a() {}\n#[cfg(test)]\nmod tests {\n}\n"), 2);
    }

    #[test]
    fn what_the_compiler_runs_is_found() {
        let text = "impl A {\n    pub(crate) const fn one(\n        x: u8,\n    ) -> u8 {\n        x\n    }\n\n    fn two() {}\n}\n\nconst fn three() -> u8 {\n    3\n}\n";
        assert_eq!(constant_functions(text), [2..7, 11..14]);
    }

    #[test]
    fn what_did_not_run_is_named() {
        let ran = [(1, true), (3, false), (5, false), (6, true), (8, false)];
        assert_eq!(missing(&Lines::from(ran)), "3-5 8");
    }

    #[test]
    fn a_crate_below_its_mark_is_named() {
        let mut files: BTreeMap<_, _> =
            marks().map(|(name, _)| (Path::new(name).join("src/a.rs"), Lines::from([(1, true)]))).collect();
        assert_eq!(verdict(&files), Ok(()));
        files.insert(PathBuf::from("probe-core/src/b.rs"), Lines::from([(1, false)]));
        let wrong = verdict(&files).expect_err("it is below the mark");
        assert!(wrong.starts_with("probe-core: 50.0 %"), "{wrong}");
    }
}
