//! The report about steps: while they run, and how they have ended.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

/// How a step ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It did what it should.
    Passed,
    /// It did not; why in one line.
    Failed(String),
    /// It was not run; why.
    Skipped(String),
}

/// What is known about a step when it is over.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// Test cases that its test programs counted: passed, failed, ignored.
    pub(super) cases: [u64; 3],
}

/// Standard output, which lanes share: whole lines, and on a terminal one line of progress that is
/// overwritten in place.
pub(super) struct Screen {
    on_terminal: bool,
    pub(super) verbose: bool,
    one_at_a_time: Mutex<()>,
}

impl Screen {
    pub(super) fn new(verbose: bool) -> Self {
        Self { on_terminal: std::io::stdout().is_terminal(), verbose, one_at_a_time: Mutex::new(()) }
    }

    /// These lines, not mixed with another lane's.
    pub(super) fn print(&self, lines: &[String]) {
        let _mine = self.one_at_a_time.lock();
        if self.on_terminal && !self.verbose {
            print!("\r\x1b[K");
        }
        lines.iter().filter(|line| !line.trim().is_empty()).for_each(|line| println!("{line}"));
    }

    /// The last line of what a step prints, which began to run `since` ago.
    pub(super) fn progress(&self, name: &str, since: Duration, line: &str) {
        if self.verbose {
            println!("{line}");
        } else if self.on_terminal && !line.is_empty() {
            let _mine = self.one_at_a_time.lock();
            let text = format!("{:>4} s  {name}: {line}", since.as_secs());
            let short: String = text.chars().filter(|c| !c.is_control()).take(100).collect();
            print!("\r\x1b[K      {short}");
            let _ = std::io::stdout().flush();
        }
    }
}

/// The table of all steps, what took longest first, then what was skipped, the test cases, and the sum as the
/// last line.
pub(super) fn report(finished: &[Finished], took: Duration) -> String {
    let mut rows: Vec<_> = finished.iter().collect();
    rows.sort_by_key(|step| std::cmp::Reverse(step.took));
    let width = rows.iter().map(|step| step.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("\n{:width$}  {:7}  {:>8}  {:>6}\n", "step", "result", "seconds", "tests");
    let mut cases = [0; 3];
    for step in &rows {
        let word = match step.outcome {
            Outcome::Passed => "passed",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        };
        let tests = step.cases[0] + step.cases[1];
        let tests = if tests == 0 { String::new() } else { tests.to_string() };
        let line = format!("{:width$}  {word:7}  {:>8.1}  {tests:>6}", step.name, step.took.as_secs_f64());
        text.push_str(line.trim_end());
        text.push('\n');
        for (sum, more) in cases.iter_mut().zip(step.cases) {
            *sum += more;
        }
    }
    for step in finished {
        match &step.outcome {
            Outcome::Skipped(why) => text.push_str(&format!("skipped: {}: {why}\n", step.name)),
            Outcome::Failed(why) => text.push_str(&format!("FAILED: {}: {why}\n", step.name)),
            Outcome::Passed => {}
        }
    }
    text.push_str(&format!(
        "test cases: {} passed, {} failed, {} ignored; {:.0} s in all\n",
        cases[0],
        cases[1],
        cases[2],
        took.as_secs_f64()
    ));
    let count = |wanted: fn(&Outcome) -> bool| finished.iter().filter(|step| wanted(&step.outcome)).count();
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    text.push_str(&format!("{passed} passed, {failed} failed"));
    if skipped > 0 {
        text.push_str(&format!(", {skipped} skipped"));
    }
    text + "\n"
}

/// The test cases that these lines of output count: passed, failed, ignored.
pub(crate) fn cases_of(lines: &[String]) -> [u64; 3] {
    let mut cases = [0; 3];
    lines.iter().for_each(|line| count_cases(line, &mut cases));
    cases
}

/// Adds what a test program's closing line says: "test result: ok. 12 passed; 0 failed; 1 ignored; …", and
/// the single lines of the test kernels: "ok NAME", "not ok NAME".
pub(super) fn count_cases(line: &str, cases: &mut [u64; 3]) {
    cases[0] += u64::from(line.starts_with("ok "));
    cases[1] += u64::from(line.starts_with("not ok "));
    let Some(at) = line.find("test result: ") else { return };
    for part in line[at..].split(['.', ';']) {
        let mut words = part.split_whitespace();
        let (Some(Ok(number)), Some(word)) = (words.next().map(str::parse::<u64>), words.next()) else {
            continue;
        };
        if let Some(place) = ["passed", "failed", "ignored"].iter().position(|&kind| kind == word) {
            cases[place] += number;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(name: &str, outcome: Outcome, seconds: u64) -> Finished {
        Finished { name: name.to_owned(), outcome, took: Duration::from_secs(seconds), cases: [2, 0, 1] }
    }

    #[test]
    fn report_ends_with_the_sum_and_begins_with_the_longest() {
        let steps = [
            finished("short", Outcome::Passed, 1),
            finished("long", Outcome::Failed("because".to_owned()), 9),
            finished("absent", Outcome::Skipped("no such folder".to_owned()), 0),
        ];
        let text = report(&steps, Duration::from_secs(7));
        let lines: Vec<_> = text.trim_start().lines().collect();
        assert!(lines[1].starts_with("long") && lines[1].contains("FAILED"), "{text}");
        assert!(text.contains("FAILED: long: because\n"), "{text}");
        assert!(text.contains("skipped: absent: no such folder\n"), "{text}");
        assert!(text.contains("test cases: 6 passed, 0 failed, 3 ignored; 7 s in all\n"), "{text}");
        assert_eq!(lines.last(), Some(&"1 passed, 1 failed, 1 skipped"));
    }

    #[test]
    fn test_programs_lines_are_added_up() {
        let mut cases = [0; 3];
        count_cases(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            &mut cases,
        );
        count_cases("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured", &mut cases);
        count_cases("12 passed", &mut cases);
        count_cases("ok tasks share the cpus", &mut cases);
        count_cases("not ok nothing leaks", &mut cases);
        assert_eq!(cases, [16, 3, 1]);
    }
}
