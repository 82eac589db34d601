//! The mutation check: deliberate defects, applied one at a time to a copy of the repository, each of which
//! the test that is named with it has to notice.
//!
//! The defects are data: `ci/mutants.txt`, whose head says how they are written. A defect that its test does
//! not notice is a hole in the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::step;

/// The table, from the workspace's root.
pub(crate) const TABLE: &str = "ci/mutants.txt";

/// A test that gives no result within this time has noticed. The longest takes a minute, on a machine that
/// does nothing else.
const LIMIT: Duration = Duration::from_secs(5 * 60);
/// How long building may take.
const BUILD_LIMIT: Duration = Duration::from_secs(25 * 60);

/// One deliberate defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// What is wrong, as a sentence.
    name: String,
    /// Where, from the workspace's root.
    file: String,
    /// What follows `cargo test -p`: the package, the test program, the filter.
    test: String,
    search: String,
    replacement: String,
}

/// How a mutant, or the unchanged code, has done.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The test failed, with this as its last lines.
    Noticed(String),
    /// It gave no result in time.
    Hung,
    /// So many tests passed.
    Passed(u64),
}

/// The mutants of the table's text.
///
/// # Errors
/// The line that is not understood.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim().is_empty() || line.starts_with("//") {
            continue;
        }
        let wrong = |what: &str| format!("{TABLE}:{}: {what}", number + 1);
        let name = line.strip_prefix("# ").ok_or_else(|| wrong("a mutant begins with `# what is wrong`"))?;
        let mut field = |key: &str| {
            let line = lines.next().map_or("", |(_, line)| line);
            line.strip_prefix(key).map(str::to_owned).ok_or_else(|| wrong(&format!("`{key}` is missing")))
        };
        let (file, test) = (field("file ")?, field("test ")?);
        field("<<<<")?;
        let mut block = |end: &str| {
            let mut block = String::new();
            for (_, line) in lines.by_ref() {
                if line == end {
                    // The last line may be the beginning of one.
                    block.pop();
                    return Ok(block);
                }
                // Another mutant begins: the end was forgotten.
                if line == "<<<<" || line.starts_with("# ") {
                    break;
                }
                block.push_str(line);
                block.push('\n');
            }
            Err(wrong(&format!("`{end}` is missing")))
        };
        let (search, replacement) = (block("====")?, block(">>>>")?);
        mutants.push(Mutant { name: name.to_owned(), file, test, search, replacement });
    }
    Ok(mutants)
}

impl Mutant {
    /// The file's text with the defect.
    fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.search).count() {
            1 => Ok(text.replacen(&self.search, &self.replacement, 1)),
            found => Err(format!(
                "{}: {found} places in {} look like this:\n{}",
                self.name, self.file, self.search
            )),
        }
    }
}

/// Whether every mutant's text is in its file, once.
///
/// # Errors
/// The table cannot be used; or those that have lost their places.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let table = crate::tree::read(&root.join(TABLE))?;
    let lost = parse(&table)?.into_iter().filter_map(|mutant| {
        let text = crate::tree::read(&root.join(&mutant.file));
        text.and_then(|text| mutant.apply(&text).map(drop)).err()
    });
    crate::tree::found(lost.collect())
}

/// Runs the mutants whose name, file or test contains `only`, prints each, and tells what has survived.
///
/// # Errors
/// The table cannot be used, a test fails without any defect, or mutants have survived.
pub(crate) fn run(root: &Path, only: &str) -> Result<(), String> {
    let table = fs::read_to_string(root.join(TABLE)).map_err(|error| format!("{TABLE}: {error}"))?;
    let mut mutants = parse(&table)?;
    mutants.retain(|mutant| {
        [&mutant.name, &mutant.file, &mutant.test].into_iter().any(|text| text.contains(only))
    });
    let copy = Copy::make(root)?;
    // Rows of one test one after the other: it is built, and shown to pass, once.
    let mut tests: Vec<&str> = Vec::new();
    for mutant in &mutants {
        if !tests.contains(&&*mutant.test) {
            tests.push(&mutant.test);
        }
    }
    println!("{} mutants, {} tests, each of which has to pass first", mutants.len(), tests.len());
    let (mut survived, mut number) = (Vec::new(), 0);
    for test in tests {
        let of_it = mutants.iter().filter(|mutant| mutant.test == test);
        if let Err(wrong) = copy.passes(test) {
            println!("{wrong}");
            number += of_it.clone().count();
            survived.extend(of_it);
            continue;
        }
        for mutant in of_it {
            number += 1;
            let started = Instant::now();
            let (word, is_noticed) = match copy.verdict(mutant)? {
                Ok(Verdict::Noticed(_)) => ("noticed ", true),
                Ok(Verdict::Hung) => ("hung    ", true),
                Ok(Verdict::Passed(_)) => ("SURVIVED", false),
                // Nobody has noticed it; the rest is worth a run all the same.
                Err(error) => {
                    println!("{error}");
                    ("NO BUILD", false)
                }
            };
            if !is_noticed {
                survived.push(mutant);
            }
            let seconds = started.elapsed().as_secs_f64();
            println!("[{number}/{}] {word} {} ({seconds:.0} s)", mutants.len(), mutant.name);
        }
    }
    println!("{} of {} mutants noticed", mutants.len() - survived.len(), mutants.len());
    if survived.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = survived.iter().map(|mutant| format!("  {} ({})", mutant.name, mutant.test)).collect();
    Err(format!("survived:\n{}", list.join("\n")))
}

/// A copy of the repository, with a build folder of its own.
struct Copy {
    root: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Copies what git knows of; what is already there and the same is left alone, so that little is built
    /// anew.
    fn make(root: &Path) -> Result<Self, String> {
        let home = root.join("target/mutants");
        let copy = Self { root: home.join("tree"), target: home.join("target") };
        for name in crate::tree::tracked(root)? {
            let (from, to) = (root.join(&name), copy.root.join(&name));
            let copied = fs::read(&from).and_then(|bytes| {
                if fs::read(&to).is_ok_and(|there| there == bytes) {
                    return Ok(());
                }
                fs::create_dir_all(to.parent().unwrap_or(&copy.root))?;
                fs::copy(&from, &to).map(drop)?;
                // Younger than what was built of an earlier version: `copy` keeps no times.
                fs::write(&to, bytes)
            });
            copied.map_err(|error| format!("copy {name}: {error}"))?;
        }
        Ok(copy)
    }

    /// Runs one line's test on the code as it is.
    fn passes(&self, test: &str) -> Result<(), String> {
        match self.test(test)? {
            Verdict::Passed(1..) => Ok(()),
            Verdict::Passed(0) => Err(format!("no test is meant by: {test}")),
            Verdict::Noticed(end) => Err(format!("fails without any defect: {test}\n{end}")),
            Verdict::Hung => Err(format!("gives no result in time without any defect: {test}")),
        }
    }

    /// Applies one defect, runs its test, and takes the defect out again; inside, what does not build.
    fn verdict(&self, mutant: &Mutant) -> Result<Result<Verdict, String>, String> {
        let path = self.root.join(&mutant.file);
        let failed = |error| format!("{}: {error}", mutant.file);
        let original = fs::read_to_string(&path).map_err(failed)?;
        fs::write(&path, mutant.apply(&original)?).map_err(failed)?;
        let verdict = self.test(&mutant.test);
        fs::write(&path, &original).map_err(failed)?;
        Ok(verdict)
    }

    /// Builds, which has to work, then runs one line's test.
    fn test(&self, test: &str) -> Result<Verdict, String> {
        let (build, run) = command_lines(test);
        let (status, lines) = self.cargo(&build, BUILD_LIMIT)?;
        if status != Some(true) {
            return Err(format!("cargo {} does not build:\n{}", build.join(" "), last_of(&lines)));
        }
        let (status, lines) = self.cargo(&run, LIMIT)?;
        Ok(match status {
            Some(true) => Verdict::Passed(step::cases_of(&lines)[0]),
            Some(false) => Verdict::Noticed(last_of(&lines)),
            None => Verdict::Hung,
        })
    }

    fn cargo(&self, words: &[&str], limit: Duration) -> Result<(Option<bool>, Vec<String>), String> {
        let mut command = crate::command::clean(Command::new("cargo"));
        // Built a hundred times, run a few: not optimised, in contrast to the repository's own settings.
        command.args(["--config", "profile.dev.package.probe-core.opt-level=0"]);
        command.args(words).current_dir(&self.root);
        command.env("CARGO_TARGET_DIR", &self.target).env("CARGO_PROFILE_DEV_DEBUG", "0");
        let (status, lines) =
            step::run_within(command, limit).map_err(|error| format!("cannot run cargo: {error}"))?;
        Ok((status.map(|status| status.success()), lines))
    }
}

fn last_of(lines: &[String]) -> String {
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// How cargo builds, and runs, what follows `cargo test -p` in the table.
fn command_lines(test: &str) -> (Vec<&str>, Vec<&str>) {
    let run: Vec<_> = ["test", "-p"].into_iter().chain(test.split_whitespace()).collect();
    // The filter is the last word: what builds has none.
    let filter_at = run.iter().rposition(|word| word.starts_with("--")).map_or(3, |at| match run[at] {
        "--test" | "--features" => at + 2,
        _ => at + 1,
    });
    let mut build = run[..filter_at.min(run.len())].to_vec();
    build.push("--no-run");
    (build, run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_mutant_applies_to_the_code_as_it_is() {
        let root = crate::tree::root();
        let mutants =
            parse(&fs::read_to_string(root.join(TABLE)).expect("it is there")).expect("well-formed");
        assert!(mutants.len() >= 30, "{}", mutants.len());
        for mutant in &mutants {
            let text = fs::read_to_string(root.join(&mutant.file)).expect("the file is there");
            let mutated = mutant.apply(&text).unwrap_or_else(|error| panic!("{error}"));
            assert_ne!(mutated, text, "{} changes nothing", mutant.name);
        }
        let names: BTreeSet<_> = mutants.iter().map(|mutant| &mutant.name).collect();
        assert_eq!(names.len(), mutants.len(), "a name is there twice");
    }

    #[test]
    fn what_builds_has_no_filter() {
        let (build, run) = command_lines("probe-core --test contract hit_9");
        assert_eq!(build.join(" "), "test -p probe-core --test contract --no-run");
        assert_eq!(run.join(" "), "test -p probe-core --test contract hit_9");
        assert_eq!(command_lines("probe-core --lib slots").0.join(" "), "test -p probe-core --lib --no-run");
    }

    #[test]
    fn a_table_that_is_not_one_is_refused_with_its_line() {
        let error = parse("// head\n\n# name\nfile a.rs\n").expect_err("`test` is missing");
        assert!(error.contains(":3:") && error.contains("test"), "{error}");
        let row = "# name\nfile a.rs\ntest a\n<<<<\none\n====\ntwo\n";
        assert_eq!(parse(&format!("{row}>>>>\n")).map(|rows| rows.len()), Ok(1));
        let error = parse(&format!("{row}\n{row}>>>>\n")).expect_err("`>>>>` is missing");
        assert!(error.contains(">>>>"), "{error}");
    }
}
