//! The marks of docs/benchmarks.md, and whether a run keeps them.
//!
//! Most marks are ratios of two figures of one run, because absolute figures are a machine's. A benchmark
//! program tells, beside a figure, how far its repetitions scatter: `NAME.noise`, half of the interval that
//! holds the true median with 95 % probability, as a share of the figure. A mark counts as missed when the
//! figure is above it by more than that.

use std::fmt::Write as _;

use serde_json::Value;

use super::{Figures, NOISE};
use Limit::{Least, Most};

/// What is promised about a figure.
struct Mark {
    what: &'static str,
    figure: &'static str,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    Most(f64),
    Least(f64),
}

const MARKS: &[Mark] = &[
    Mark { what: "emulated hit to one trap", figure: "ratio.emulated", limit: Most(1.15) },
    Mark { what: "boosted hit to one trap", figure: "ratio.boosted", limit: Most(1.15) },
    Mark { what: "stepped hit with post handler to two traps", figure: "ratio.post", limit: Most(1.15) },
    Mark { what: "return probe to one trap", figure: "ratio.r", limit: Most(1.35) },
    Mark { what: "kprobe and return probe to return probe", figure: "ratio.kr", limit: Most(1.05) },
    Mark { what: "optimised hit, ns", figure: "k.optimised_ns", limit: Most(15.0) },
    Mark {
        what: "optimised hit that saves the vectors, ns",
        figure: "k.optimised_simd_ns",
        limit: Most(100.0),
    },
    Mark { what: "optimised return probe, ns", figure: "r.optimised_ns", limit: Most(40.0) },
    Mark {
        what: "optimised return probe that saves the vectors, ns",
        figure: "r.optimised_simd_ns",
        limit: Most(220.0),
    },
    Mark { what: "hit among 100,000 probes to hit among one", figure: "ratio.with_100k", limit: Most(1.10) },
    Mark {
        what: "optimised hit to a kernel's uprobe, emulated",
        figure: "ratio.optimised_uprobe_nop",
        limit: Most(0.05),
    },
    Mark {
        what: "optimised hit to a kernel's uprobe, stepped",
        figure: "ratio.optimised_uprobe_stepped",
        limit: Most(0.025),
    },
    Mark {
        what: "optimised hit to a frida-gum Interceptor",
        figure: "ratio.optimised_frida",
        limit: Most(0.25),
    },
    Mark { what: "heap of one probe, bytes", figure: "probe_bytes", limit: Most(256.0) },
    Mark { what: "executable memory of one probe, bytes", figure: "slot_bytes", limit: Most(32.0) },
    Mark { what: "100,000 probes in one batch, ms", figure: "register.batch_100k_ms", limit: Most(1000.0) },
    Mark {
        what: "a program under one probe, ms of processor time",
        figure: "start.one_processor_ms",
        limit: Most(15.0),
    },
    Mark {
        what: "a program under all functions of libc, ms of processor time",
        figure: "start.libc_processor_ms",
        limit: Most(90.0),
    },
    Mark {
        what: "two threads' hits, to two threads' bare signals",
        figure: "threads2_ratio",
        limit: Least(0.95),
    },
];

impl Limit {
    /// What is said of a figure that scatters by such a share; `None` where the mark is kept.
    fn verdict(self, measured: f64, noise: f64) -> Option<&'static str> {
        let (is_kept, is_kept_within) = match self {
            Most(limit) => (measured <= limit, measured * (1.0 - noise) <= limit),
            Least(limit) => (measured >= limit, measured * (1.0 + noise) >= limit),
        };
        match (is_kept, is_kept_within) {
            (true, _) => None,
            (false, true) => Some(WITHIN_NOISE),
            (false, false) => Some(MISSED),
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Most(limit) => write!(f, "<= {limit:.3}"),
            Least(limit) => write!(f, ">= {limit:.3}"),
        }
    }
}

const WITHIN_NOISE: &str = "beyond it within the noise";
const MISSED: &str = "missed";

/// How much longer a hit may take on i386, where registers are saved by other means.
const I386: f64 = 1.5;

impl Mark {
    /// The mark on the machine that was measured.
    fn limit(&self, is_i386: bool) -> Limit {
        match self.limit {
            Most(limit) if is_i386 && self.figure.contains(".optimised_") && self.figure.ends_with("_ns") => {
                Most(limit * I386)
            }
            limit => limit,
        }
    }
}

/// Each mark beside its figure, and whether all that were measured are kept.
pub(super) fn table(figures: &Figures) -> (String, bool) {
    let is_i386 = std::env::var("CARGO_BUILD_TARGET").is_ok_and(|target| target.starts_with("i686"));
    let width = MARKS.iter().map(|mark| mark.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    let mut line = |what: &str, measured: &str, noise: &str, limit: &str, verdict: &str| {
        let line = format!("{what:width$}  {measured:>9}  {noise:>7}  {limit:>11}  {verdict}");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    line("mark, within this run", "measured", "noise", "mark", "");
    let mut is_kept = true;
    for mark in MARKS {
        let here = mark.limit(is_i386);
        let limit = here.to_string();
        let Some(measured) = number(figures, mark.figure) else {
            line(mark.what, "-", "-", &limit, "not measured");
            continue;
        };
        let noise = number(figures, &format!("{}{NOISE}", mark.figure)).unwrap_or(0.0);
        let verdict = here.verdict(measured, noise);
        is_kept &= verdict != Some(MISSED);
        let (measured, noise) = (format!("{measured:.3}"), format!("{:.1} %", noise * 100.0));
        line(mark.what, &measured, &noise, &limit, verdict.unwrap_or(""));
    }
    (text, is_kept)
}

fn number(figures: &Figures, name: &str) -> Option<f64> {
    figures.get(name).and_then(Value::as_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(json: &str, what: &str) -> (String, bool) {
        let Ok(Value::Object(figures)) = serde_json::from_str(json) else { panic!("{json}") };
        let (text, is_kept) = table(&figures);
        let line = text.lines().find(|line| line.starts_with(what)).expect("every mark has a line");
        (line.to_owned(), is_kept)
    }

    #[test]
    fn a_missed_mark_is_said_and_fails() {
        let (line, is_kept) = verdict(r#"{"probe_bytes": 260.8}"#, "heap of one probe");
        assert!(line.ends_with("  missed") && !is_kept, "{line}");
    }

    /// Each number in the columns of marks of docs/benchmarks.md is one that fails the job.
    #[test]
    fn the_marks_of_the_document_are_checked() {
        let text = crate::tree::read(&crate::tree::root().join("docs/benchmarks.md")).expect("it is there");
        let rows = text.lines().skip_while(|line| !line.starts_with("| figure | x86-64 |"));
        let mut count = 0;
        for row in rows.skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            for (column, is_i386) in [(3, false), (5, true)] {
                let Ok(limit) = cells[column].parse::<f64>() else { continue };
                let figure = cells[0].trim_matches('`');
                let mark = MARKS.iter().find(|mark| mark.figure == figure);
                let checked = mark.map(|mark| mark.limit(is_i386).to_string());
                assert_eq!(checked, Some(Most(limit).to_string()), "{row}");
                count += 1;
            }
        }
        assert!(count >= 14, "{count}");
    }

    #[test]
    fn a_mark_that_is_kept_exactly_is_kept() {
        let (line, is_kept) = verdict(r#"{"probe_bytes": 256}"#, "heap of one probe");
        assert!(line.ends_with("<= 256.000") && is_kept, "{line}");
    }

    #[test]
    fn what_scatters_over_its_mark_is_said_and_does_not_fail() {
        let figures = r#"{"register.batch_100k_ms": 1063, "register.batch_100k_ms.noise": 0.1}"#;
        let (line, is_kept) = verdict(figures, "100,000 probes");
        assert!(line.ends_with("within the noise") && line.contains("10.0 %") && is_kept, "{line}");
        let quiet = r#"{"register.batch_100k_ms": 1063, "register.batch_100k_ms.noise": 0.01}"#;
        assert!(!verdict(quiet, "100,000 probes").1);
    }

    #[test]
    fn what_shall_be_much_is_missed_below() {
        assert!(!verdict(r#"{"threads2_ratio": 0.9}"#, "two threads").1);
        assert!(verdict(r#"{"threads2_ratio": 0.9, "threads2_ratio.noise": 0.1}"#, "two threads").1);
        assert!(verdict(r#"{"threads2_ratio": 1.0}"#, "two threads").1);
    }

    #[test]
    fn a_mark_without_a_figure_is_said_to_be_unmeasured() {
        let (line, is_kept) = verdict("{}", "return probe to one trap");
        assert!(line.ends_with("not measured") && is_kept, "{line}");
    }
}
