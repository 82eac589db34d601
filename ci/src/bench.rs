//! `cargo ci bench`: runs the benchmark programs, merges what they measured, and prints figures, ratios and
//! bars.
//!
//! The contract with a benchmark program (any `[[bench]]` of the workspace with `harness = false`): called
//! with `--json` it prints one flat JSON object on its standard output, number by name, and nothing else
//! there. Names are stable (docs/benchmarks.md lists them) and end in their unit: `_ns`, `_ms`, `_bytes`,
//! `_ratio`; `NAME.noise` is how far NAME scatters. A test kernel prints lines `insns.ARCH.CASE=NUMBER`,
//! guest instructions.

mod marks;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use crate::cli::Modes;
use crate::command::clean;
use crate::job;
use crate::matrix::TARGETS;
use crate::peers;

/// Figures by name, in the order in which they were printed.
type Figures = Map<String, Value>;

/// What the user wants to see.
pub(crate) struct Options<'a> {
    /// One JSON object and nothing else.
    pub(crate) json: bool,
    /// Which programs: processes, test kernels, or both.
    pub(crate) mode: Modes,
    /// Bars beside the figures.
    pub(crate) plot: bool,
    /// A revision to run too, for comparison.
    pub(crate) compare: Option<&'a str>,
}

/// Runs everything and prints it. Answers whether every mark that could be measured was kept.
///
/// # Errors
/// A sentence: there is no benchmark program, one does not build, fails, or does not print what it should.
pub(crate) fn bench(root: &Path, options: &Options<'_>) -> Result<bool, String> {
    let now = run_all(root, None, options.mode)?;
    if options.json {
        println!("{:#}", Value::Object(now));
        return Ok(true);
    }
    let then = options.compare.map(|revision| run_revision(root, revision, options.mode)).transpose()?;
    print!("{}", table(&now, then.as_ref()));
    if options.plot {
        print!("\n{}", bars(&now));
    }
    let (text, is_kept) = marks::table(&now);
    print!("\n{text}");
    Ok(is_kept)
}

/// What `mode` names of the repository at `root`, built in `target` if that is given.
fn run_all(root: &Path, target: Option<&Path>, mode: Modes) -> Result<Figures, String> {
    let mut figures = Figures::new();
    if mode != Modes::System {
        run_processes(root, target, &mut figures)?;
    }
    if mode != Modes::User {
        run_kernels(root, target, &mut figures)?;
    }
    if figures.is_empty() { Err("there is no benchmark program".to_owned()) } else { Ok(figures) }
}

/// Every test kernel that there is.
fn run_kernels(root: &Path, target: Option<&Path>, figures: &mut Figures) -> Result<(), String> {
    for row in TARGETS.iter().filter(|row| job::has_kernel(root, row)) {
        let mut command = clean(Command::new("cargo"));
        command.args(["run", "--quiet", "--release", "--target", row.triple, "--"]).args(job::COST);
        if let Some(target) = target {
            command.env("CARGO_TARGET_DIR", target.join("system"));
        }
        eprintln!("running the kernel for {}", row.triple);
        let output = command
            .current_dir(root.join(job::SYSTEM))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
        // A kernel whose figures are above its table fails, and has printed them all the same.
        let text = String::from_utf8_lossy(&output.stdout);
        let measured = kernel_figures(&text);
        if measured.is_empty() {
            return Err(format!(
                "the kernel for {} measured nothing ({}):\n{text}",
                row.triple, output.status
            ));
        }
        figures.extend(measured);
    }
    Ok(())
}

/// The figures in a test kernel's output.
fn kernel_figures(output: &str) -> Figures {
    let figure = |line: &str| {
        let (name, number) = line.trim().split_once('=')?;
        let number = name.starts_with("insns.").then(|| number.parse::<u64>().ok())??;
        Some((name.to_owned(), Value::from(number)))
    };
    output.lines().filter_map(figure).collect()
}

/// Every benchmark program of the workspace.
fn run_processes(root: &Path, target: Option<&Path>, figures: &mut Figures) -> Result<(), String> {
    let peers = peers::library(root, target.unwrap_or(&root.join("target")));
    for package in crate::metadata::packages(root)? {
        for bench in &package.benches {
            let mut command = clean(Command::new("cargo"));
            command.args(["bench", "--quiet", "--package", &package.name, "--bench", bench, "--", "--json"]);
            if let Some(target) = target {
                command.env("CARGO_TARGET_DIR", target);
            }
            command.envs(peers.iter().map(|library| ("PROBE_PEERS", library)));
            command.envs(peers::python(root).map(|python| ("PROBE_FRIDA_PYTHON", python)));
            eprintln!("running {bench} of {}", package.name);
            let output = command.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
            let output = output.map_err(|error| format!("cannot run cargo bench: {error}"))?;
            if !output.status.success() {
                return Err(format!("benchmark {bench} failed: {}", output.status));
            }
            merge(figures, bench, &output.stdout)?;
        }
    }
    Ok(())
}

/// Adds a program's output, which must keep the contract.
fn merge(figures: &mut Figures, bench: &str, output: &[u8]) -> Result<(), String> {
    let broken = |what: String| format!("benchmark {bench} breaks its contract: {what}");
    let value: Value = serde_json::from_slice(output).map_err(|error| broken(error.to_string()))?;
    let Value::Object(more) = value else { return Err(broken("not an object".to_owned())) };
    for (name, value) in more {
        if !value.is_number() {
            return Err(broken(format!("{name} is not a number")));
        }
        if figures.insert(name.clone(), value).is_some() {
            return Err(broken(format!("{name} was measured before")));
        }
    }
    Ok(())
}

/// The same on another revision, in a work tree of its own that is gone afterwards.
fn run_revision(root: &Path, revision: &str, mode: Modes) -> Result<Figures, String> {
    let tree: PathBuf = root.join("target/ci/compare/tree");
    let git = |words: &[&str]| -> Result<(), String> {
        let output = Command::new("git").args(words).current_dir(root).output();
        let output = output.map_err(|error| format!("cannot run git: {error}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    };
    let path = tree.display().to_string();
    // What an interrupted run left behind.
    let _ = git(&["worktree", "remove", "--force", &path]);
    git(&["worktree", "add", "--detach", &path, revision])?;
    let figures = run_all(&tree, Some(&root.join("target/ci/compare/target")), mode);
    git(&["worktree", "remove", "--force", &path])?;
    figures
}

fn table(now: &Figures, then: Option<&Figures>) -> String {
    let width = now.keys().map(String::len).max().unwrap_or(0);
    let mut text = match then {
        Some(_) => format!("{:width$}  {:>14}  {:>14}  {:>8}\n", "", "then", "now", "now/then"),
        None => format!("{:width$}  {:>14}\n", "", "now"),
    };
    for (name, value) in now.iter().filter(|(name, _)| !is_noise(name)) {
        let value = value.as_f64().unwrap_or(f64::NAN);
        let before = then.map(|then| then.get(name).and_then(Value::as_f64));
        let noise = now.get(&format!("{name}{NOISE}")).and_then(Value::as_f64);
        let noise = noise.map_or(String::new(), |noise| format!("  ± {:.1} %", noise * 100.0));
        let _ = match before {
            Some(Some(before)) => {
                writeln!(text, "{name:width$}  {before:>14.2}  {value:>14.2}  {:>8.3}{noise}", value / before)
            }
            Some(None) => writeln!(text, "{name:width$}  {:>14}  {value:>14.2}{noise}", "-"),
            None => writeln!(text, "{name:width$}  {value:>14.2}{noise}"),
        };
    }
    text
}

/// What stands behind the name of a figure that tells how far it scatters.
const NOISE: &str = ".noise";

fn is_noise(name: &str) -> bool {
    name.ends_with(NOISE)
}

/// The unit that a figure's name ends in. What so many threads do together is in units of what one does
/// alone.
fn unit(name: &str) -> &str {
    let threads = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    if threads.len() < name.len() && threads.ends_with("threads") {
        return "threads together, over one alone";
    }
    name.rsplit_once('_').map_or("", |(_, unit)| unit)
}

/// Figures with the same unit as bars on one scale.
fn bars(figures: &Figures) -> String {
    const CELLS: f64 = 60.0;
    let mut by_unit: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
    for (name, value) in figures.iter().filter(|(name, _)| !is_noise(name)) {
        by_unit.entry(unit(name)).or_default().push((name, value.as_f64().unwrap_or(0.0)));
    }
    let width = figures.keys().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (unit, values) in by_unit {
        let longest = values.iter().map(|&(_, value)| value).fold(f64::MIN_POSITIVE, f64::max);
        let _ = writeln!(text, "{unit}");
        for (name, value) in values {
            let cells = (value / longest * CELLS).round().clamp(0.0, CELLS);
            // The clamp above keeps it within usize.
            let _ = writeln!(text, "{name:width$}  {} {value:.2}", "#".repeat(cells as usize));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(json: &str) -> Figures {
        let mut figures = Figures::new();
        merge(&mut figures, "test", json.as_bytes()).expect("it keeps the contract");
        figures
    }

    #[test]
    fn what_is_not_flat_numbers_is_refused() {
        for broken in ["[1]", r#"{"a": "1"}"#, r#"{"a": {"b": 1}}"#, "noise\n{}"] {
            assert!(merge(&mut Figures::new(), "test", broken.as_bytes()).is_err(), "{broken}");
        }
        let mut twice = figures(r#"{"a_ns": 1}"#);
        assert!(merge(&mut twice, "test", br#"{"a_ns": 2}"#).is_err());
    }

    /// What a benchmark owes is seen when all are run, which takes minutes; that it has such a line, at once.
    #[test]
    fn every_benchmark_prints_an_object() {
        let root = crate::tree::root();
        let packages = crate::metadata::packages(&root).expect("cargo knows the workspace");
        let mut count = 0;
        for package in packages.iter().filter(|package| !package.benches.is_empty()) {
            let folder = package.manifest.parent().expect("a manifest lies in a folder").join("benches");
            let sources = crate::tree::rust_files(&folder);
            let prints = |file: &&PathBuf| {
                crate::tree::read(file).is_ok_and(|text| text.contains(r#"println!("{{{}}}","#))
            };
            assert_eq!(sources.iter().filter(prints).count(), package.benches.len(), "{}", package.name);
            count += package.benches.len();
        }
        assert!(count >= 3, "{count}");
    }

    #[test]
    fn a_kernels_lines_become_figures() {
        let found = kernel_figures("booting\r\ninsns.ppc64le.k_post=123\r\nTEST-RESULT: PASS\n");
        assert_eq!(Value::Object(found).to_string(), r#"{"insns.ppc64le.k_post":123}"#);
    }

    #[test]
    fn a_comparison_shows_both_and_what_is_new() {
        let text = table(&figures(r#"{"a_ns": 2, "b_ns": 3}"#), Some(&figures(r#"{"a_ns": 4}"#)));
        assert!(text.contains("0.500"), "{text}");
        assert!(
            text.lines().last().is_some_and(|line| line.starts_with("b_ns") && line.contains(" -  ")),
            "{text}"
        );
    }

    #[test]
    fn how_far_a_figure_scatters_stands_beside_it() {
        let measured = figures(r#"{"a_ms": 2, "a_ms.noise": 0.034}"#);
        let text = table(&measured, None);
        assert!(text.lines().nth(1).is_some_and(|line| line.ends_with("2.00  ± 3.4 %")), "{text}");
        assert_eq!(
            (text.lines().count(), bars(&measured).lines().count()),
            (2, 2),
            "it is no figure by itself"
        );
    }

    #[test]
    fn threads_are_on_one_scale() {
        let text = bars(&figures(r#"{"floor.threads2": 2, "k.optimised_threads8": 4, "k_ns": 9}"#));
        assert!(text.contains(&format!("floor.threads2        {} 2.00", "#".repeat(30))), "{text}");
        assert!(text.contains(&format!("k.optimised_threads8  {} 4.00", "#".repeat(60))), "{text}");
    }

    #[test]
    fn the_longest_bar_is_full() {
        let text = bars(&figures(r#"{"a_ns": 30, "b_ns": 60, "c_ms": 1}"#));
        assert!(text.contains(&format!("b_ns  {} 60.00", "#".repeat(60))), "{text}");
        assert!(text.contains(&format!("a_ns  {} 30.00", "#".repeat(30))), "{text}");
    }
}
