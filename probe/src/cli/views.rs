//! The command line of what reads a file of `probe record`.
//!
//! Documentation of arguments is what `--help` shows: brackets in it are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The file of `probe record`, where none is named.
pub(super) const DEFAULT_RECORD: &str = "probe.record";

/// A record that is read, and which of its events count.
#[derive(Clone, Debug, Args)]
pub(super) struct Choice {
    /// The file of probe record.
    #[arg(default_value = DEFAULT_RECORD)]
    pub(super) file: PathBuf,
    /// Only events from this time on, since the recording began (such as 1.5s, 200ms, 10us).
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(super) since: Option<u64>,
    /// Only events of this thread or process: its number, or a pattern for its name (such as 'cc1*').
    #[arg(long, value_name = "TASK")]
    pub(super) task: Option<String>,
    /// Only events whose name matches this pattern (such as 'open*').
    #[arg(long, value_name = "PATTERN")]
    pub(super) event: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Print {
    #[command(flatten)]
    pub(super) choice: Choice,
    /// Write there instead of to standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(super) output: PathBuf,
    /// How events and summary are written (json: one object per line).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
}

#[derive(Debug, Args)]
pub(super) struct Report {
    #[command(flatten)]
    pub(super) choice: Choice,
    /// A row for each function and: caller, task, or an argument of this name.
    ///
    /// A caller is the recorded call that another one was made in, so callers need return probes, too.
    #[arg(long, value_name = "caller|task|ARG")]
    pub(super) by: Option<String>,
    /// What comes first: the most of this.
    #[arg(long, value_enum, default_value_t = Sort::Total, value_name = "WHAT")]
    pub(super) sort: Sort,
    /// How many rows are shown [default: all].
    #[arg(long, value_name = "N")]
    pub(super) top: Option<usize>,
    /// Show what is different from this earlier record, the greatest difference first.
    #[arg(long, value_name = "FILE")]
    pub(super) diff: Option<PathBuf>,
    /// Write a page for a browser into this file: functions, histograms, a flame graph, a time line.
    ///
    /// It needs no other file and no network, and does not grow with the record.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "diff", "top", "format"])]
    pub(super) html: Option<PathBuf>,
    /// How it is written (json: one object).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
}

#[derive(Debug, Args)]
pub(super) struct Graph {
    #[command(flatten)]
    pub(super) choice: Choice,
    /// How many calls inside of each other are shown [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) depth: Option<u16>,
    /// Only calls that took at least this long (such as 10us).
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub(super) time: Option<u64>,
    /// Only calls of functions whose name matches this pattern, and what they have called.
    ///
    /// Where --event leaves functions out, what they have called stands where they would have.
    #[arg(long, value_name = "PATTERN")]
    pub(super) only: Option<String>,
    /// Without the calls of functions whose name matches this pattern, and what they have called.
    #[arg(long, value_name = "PATTERN")]
    pub(super) without: Option<String>,
    /// Put together what went the same way, with total and own time, the longest first.
    #[arg(long)]
    pub(super) aggregate: bool,
    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(super) color: Color,
}

#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    pub(super) choice: Choice,
    /// The format.
    #[arg(long, value_enum, default_value_t = ExportFormat::Folded)]
    pub(super) format: ExportFormat,
    /// What makes a way of recorded stacks wider: each hit by one, its duration, or an argument (such as
    /// size).
    ///
    /// For folded stacks of a record with stacks (--stack); without such, calls are as wide as they took
    /// long.
    #[arg(long, value_name = "count|took|ARG", default_value = "count")]
    pub(super) weight: String,
    /// Write there instead of to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ExportFormat {
    /// A line for each way to a function: by recorded stacks, where there are any, how many hits went it
    /// (--weight); else by calls inside of calls, and its own nanoseconds. For flamegraph.pl, inferno,
    /// speedscope.
    Folded,
    /// A flame graph, to look at in a browser.
    Svg,
    /// Perfetto's own, for ui.perfetto.dev and trace_processor: protocol buffers.
    Perfetto,
    /// JSON for the Firefox Profiler (profiler.firefox.com, samply load).
    Firefox,
    /// JSON for Chrome's chrome://tracing, Perfetto and speedscope.
    Chrome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Sort {
    /// Time in the function and all that it calls.
    Total,
    /// Time in the function itself.
    #[value(name = "self")]
    Own,
    /// How often it was called.
    Calls,
    /// The shortest call.
    Min,
    /// The median of its calls.
    Median,
    /// The 99th percentile of its calls.
    P99,
    /// The longest call.
    Max,
    /// The name, the first of the alphabet first.
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// A line per event, a table at the end.
    Text,
    /// A JSON object per line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A time in nanoseconds, which may be 0: `10us`, `5ns`, and units up to hours.
fn moment(text: &str) -> Result<u64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
    let found = units.iter().find_map(|(unit, ns)| Some((text.strip_suffix(unit)?, ns)));
    let (digits, ns) = found.unwrap_or((text, &1e9));
    let number: f64 =
        digits.parse().map_err(|_| "a time is a number with ns, us, ms, s, m or h".to_owned())?;
    let is_time = number.is_finite() && number >= 0.0 && number * ns < 1e19;
    if is_time { Ok((number * ns) as u64) } else { Err("a time is not below nothing, nor an age".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0", Some(0))]
    #[case("1.5", Some(1_500_000_000))]
    #[case("10us", Some(10_000))]
    #[case("7ns", Some(7))]
    #[case("200ms", Some(200_000_000))]
    #[case("2m", Some(120_000_000_000))]
    #[case("-1s", None)]
    #[case("5y", None)]
    #[case("inf", None)]
    #[case("9999999999h", None)]
    fn moments(#[case] text: &str, #[case] ns: Option<u64>) {
        assert_eq!(moment(text).ok(), ns);
    }
}
