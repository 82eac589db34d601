//! Where the tests run that docs/reliability.md names: the column "runs on" is what the matrix, the paths and
//! the `cfg`s of the tests say.

use std::collections::BTreeSet;
use std::path::Path;

use super::functions::functions_of;
use super::{Source, found, read};
use crate::matrix::{BACKENDS, Mode, TARGETS, Target};

const DOCUMENT: &str = "docs/reliability.md";
/// The head of the table that is looked at; a row's last two cells are tests, and where they run.
const HEAD: &str = "| point | found | kind of test | test | runs on |";

/// Where tests run.
#[derive(Default, Debug, PartialEq, Eq)]
struct Places {
    /// The backends of the processes.
    processes: BTreeSet<&'static str>,
    /// The backends of the kernels.
    kernels: BTreeSet<&'static str>,
    /// On a toy machine, or over bytes: what is tested knows no architecture.
    is_neutral: bool,
}

/// Compares the cells with what is so.
///
/// # Errors
/// A line for each that says something else.
pub(super) fn check(root: &Path, sources: &[Source]) -> Result<(), String> {
    let text = read(&root.join(DOCUMENT))?;
    let packages = packages(root)?;
    let programs: BTreeSet<String> = crate::tree::tracked(root)?
        .iter()
        .filter_map(|path| {
            path.strip_prefix("tests/strangers/programs/")?.split('.').next().map(str::to_owned)
        })
        .collect();
    let mut wrong = Vec::new();
    let mut rows = text.lines().enumerate().skip_while(|(_, line)| *line != HEAD).skip(2).peekable();
    if rows.peek().is_none() {
        wrong.push(format!("{DOCUMENT} has no table with the head {HEAD}"));
    }
    for (number, line) in rows.take_while(|(_, line)| line.starts_with('|')) {
        let mut cells = line.trim_matches('|').rsplit('|').map(str::trim);
        let (Some(said), Some(tests)) = (cells.next(), cells.next()) else { continue };
        let mut places = Places::default();
        for name in tests.split('`').skip(1).step_by(2) {
            if programs.contains(name) {
                places.processes.insert("x86_64");
            }
            sources.iter().for_each(|source| places.add(source, name, &packages));
        }
        let expected = places.shown();
        if said != expected {
            wrong.push(format!("{DOCUMENT}:{}: its tests run on {expected:?}, not {said:?}", number + 1));
        }
    }
    found(wrong)
}

/// Folder and name of each package of the workspace.
fn packages(root: &Path) -> Result<Vec<(String, String)>, String> {
    let folder = |manifest: &Path| super::shown(root, manifest.parent().unwrap_or(manifest));
    let packages = crate::metadata::packages(root)?;
    Ok(packages.into_iter().map(|package| (folder(&package.manifest), package.name)).collect())
}

impl Places {
    /// What a reader sees.
    fn shown(&self) -> String {
        let list = |which: &BTreeSet<&str>| {
            let names = BACKENDS.iter().map(|backend| backend.name()).filter(|name| which.contains(name));
            match which.len() {
                count if count == BACKENDS.len() => "all".to_owned(),
                _ => names.collect::<Vec<_>>().join(", ").replace("x86_64", "x86-64"),
            }
        };
        let mut parts = Vec::new();
        if !self.processes.is_empty() {
            parts.push(list(&self.processes));
        }
        if !self.kernels.is_empty() {
            parts.push(format!("kernels: {}", list(&self.kernels)));
        }
        if parts.is_empty() && self.is_neutral {
            parts.push("neutral".to_owned());
        }
        parts.join("; ")
    }

    /// Adds where a test of that name in `source` runs, or all of `source` if it has that path.
    fn add(&mut self, source: &Source, name: &str, packages: &[(String, String)]) {
        let Some(conditions) = conditions(source, name) else { return };
        let is_of = |target: &&Target| conditions.iter().all(|condition| holds(condition, target));
        let (folder, package) = packages
            .iter()
            .filter(|(folder, _)| {
                source.path.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
            })
            .max_by_key(|(folder, _)| folder.len())
            .map_or(("", ""), |(folder, name)| (folder.as_str(), name.as_str()));
        match package {
            "probe-conformance" => {
                let of = |mode| TARGETS.iter().filter(move |target| target.mode == mode).filter(is_of);
                self.processes.extend(of(Mode::User).filter_map(backend));
                self.kernels.extend(of(Mode::System).filter_map(backend));
            }
            "probe-core" | "probe-tests-models" | "probe-ci" | "probe-fuzz-checks" | "probe-bpf" => {
                self.is_neutral = true;
            }
            _ => {
                let program = source.path[folder.len()..].strip_prefix("/tests/");
                let program = program.map(|path| path.split(['/', '.']).next().unwrap_or_default());
                let users = TARGETS.iter().filter(|target| target.mode == Mode::User).filter(is_of);
                self.processes
                    .extend(users.filter(|target| runs(target, package, program, name)).filter_map(backend));
            }
        }
    }
}

fn backend(target: &Target) -> Option<&'static str> {
    BACKENDS.iter().find(|backend| Some(backend.folder) == target.backend).map(|backend| backend.name())
}

/// Whether `cargo ci test` runs the test `name` of that program of a package (`None`: of its sources) on the
/// target.
fn runs(target: &Target, package: &str, program: Option<&str>, name: &str) -> bool {
    let is_selected = |words: &[&str]| {
        let (mut packages, mut programs, mut filters) = (vec![words[0]], Vec::new(), Vec::new());
        let mut words = words[1..].iter();
        while let Some(&word) = words.next() {
            match word {
                "--package" => packages.extend(words.next()),
                "--test" => programs.extend(words.next()),
                option if option.starts_with("--") => {}
                filter => filters.push(filter),
            }
        }
        packages.contains(&package)
            && (programs.is_empty() || program.is_some_and(|program| programs.contains(&program)))
            && (filters.is_empty() || filters.iter().any(|filter| name.contains(filter)))
    };
    target.is_native()
        || target.selected.iter().any(|words| is_selected(words))
        || (package == "probe-tests-user" && program == Some("walk"))
}

/// The conditions of a test in a file, or of the file if `name` is its path; `None`: it is not there.
fn conditions(source: &Source, name: &str) -> Option<Vec<String>> {
    let is_file = source.path == name;
    if !is_file && !source.text.contains(&format!("fn {name}")) {
        return None;
    }
    let lines: Vec<&str> = source.text.lines().collect();
    let of_file = lines.iter().filter_map(|line| line.strip_prefix("#![cfg(")?.strip_suffix(")]"));
    let mut conditions: Vec<String> = of_file.map(str::to_owned).collect();
    if is_file {
        return Some(conditions);
    }
    let functions = functions_of(&source.text);
    let mut at = functions.iter().find(|function| function.name == name)?.first_line - 1;
    let indent = |line: &str| line.len() - line.trim_start().len();
    loop {
        let above = lines[..at].iter().rev().map(|line| line.trim());
        for line in above.take_while(|line| line.starts_with("#[") || line.starts_with("//")) {
            let condition = line.strip_prefix("#[cfg(").and_then(|line| line.strip_suffix(")]"));
            conditions.extend(condition.map(str::to_owned));
            let ignored = line.strip_prefix("#[cfg_attr(").and_then(|line| line.split_once(", ignore"));
            conditions.extend(ignored.map(|(condition, _)| format!("not({condition})")));
        }
        let depth = indent(lines[at]);
        let is_around = |line: &&str| indent(line) < depth && line.trim_start().starts_with("mod ");
        let Some(outer) = lines[..at].iter().rposition(is_around) else { return Some(conditions) };
        at = outer;
    }
}

/// Whether a condition holds on a target.
fn holds(condition: &str, target: &Target) -> bool {
    let condition = condition.trim();
    if let Some((operator, inner)) = condition.split_once('(')
        && let Some(inner) = inner.strip_suffix(')')
    {
        let mut parts = parts(inner);
        return match operator {
            "all" => parts.all(|part| holds(part, target)),
            "any" => parts.any(|part| holds(part, target)),
            _ => !parts.all(|part| holds(part, target)),
        };
    }
    let (key, value) = condition.split_once('=').unwrap_or((condition, ""));
    let (key, value) = (key.trim(), value.trim().trim_matches('"'));
    let architecture = target.triple.split('-').next().unwrap_or_default();
    let is_32_bit = architecture.ends_with("86");
    match key {
        "target_arch" => match value {
            "x86" => is_32_bit,
            "powerpc64" | "riscv64" => architecture.starts_with(value),
            _ => architecture == value,
        },
        // `gnueabihf` is `gnu`.
        "target_env" => target.triple.rsplit('-').next().is_some_and(|env| env.starts_with(value)),
        "target_endian" => (architecture == "powerpc64") == (value == "big"),
        "target_pointer_width" => is_32_bit == (value == "32"),
        "target_feature" => value == "crt-static" && target.triple.ends_with("musl"),
        // `probe/build.rs`: programs are the machine's, or are unpacked.
        "no_programs" => {
            let is_unpacked = |need: &crate::matrix::Need| need.package.starts_with("busybox,");
            !target.is_native() && !target.needs.iter().any(is_unpacked)
        }
        _ => true,
    }
}

/// What stands between commas that are in no parentheses.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && c == ','
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(path: &str, text: &str, name: &str) -> String {
        let packages = [("host-linux", "probe-host-linux"), ("tests/conformance", "probe-conformance")];
        let packages = packages.map(|(folder, package)| (folder.to_owned(), package.to_owned()));
        let mut places = Places::default();
        places.add(&Source { path: path.to_owned(), text: text.to_owned() }, name, &packages);
        places.shown()
    }

    #[test]
    fn a_case_of_the_suite_runs_everywhere() {
        let text = "fn reg_1_a<S: Suite>() {\n}\n";
        assert_eq!(places("tests/conformance/src/reg.rs", text, "reg_1_a"), "all; kernels: all");
        assert_eq!(places("tests/conformance/src/reg.rs", text, "reg_1"), "");
    }

    #[test]
    fn a_test_runs_where_the_matrix_selects_it_and_its_conditions_hold() {
        let text = "fn hit_13_a() {\n}\n";
        assert_eq!(places("host-linux/tests/guard.rs", text, "hit_13_a"), "all");
        assert_eq!(places("host-linux/tests/no_such.rs", text, "hit_13_a"), "x86-64, i386");
        let gated = "#![cfg(target_env = \"gnu\")]\n#[cfg(any(target_arch = \"x86\", all()))]\nmod a {\n    \
                     #[test]\n    #[cfg_attr(target_arch = \"aarch64\", ignore = \"b\")]\n    fn hit_13_a() {\n    }\n}\n";
        assert_eq!(
            places("host-linux/tests/guard.rs", gated, "hit_13_a"),
            "x86-64, i386, ppc64, ppc32, riscv64, arm"
        );
        let gated = "#[cfg(not(any(target_arch = \"x86\", target_arch = \"x86_64\")))]\nfn hit_13_a() {\n}\n";
        assert_eq!(
            places("host-linux/tests/guard.rs", gated, "hit_13_a"),
            "aarch64, ppc64, ppc32, riscv64, arm"
        );
    }
}
