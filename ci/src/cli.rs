//! The command line.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::matrix::{Mode, TARGETS};

/// Set-up, tests, lints, benchmarks and the CI matrix of this repository
#[derive(Debug, Parser)]
#[command(name = "cargo ci", bin_name = "cargo ci", arg_required_else_help = true)]
pub(crate) struct CommandLine {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Installs what is missing for the tests, by name, and nothing else
    Setup {
        #[command(flatten)]
        target: OneTarget,
        /// Also for the lints, msrv, nightly and miri, and what the benchmark compares with
        #[arg(long)]
        all: bool,
    },
    /// Sets up what is missing, then runs the whole matrix
    Test {
        #[command(flatten)]
        target: OneTarget,
        /// In a Linux process, in kernels under QEMU, or everything
        #[arg(long, value_enum, default_value_t = Modes::All)]
        mode: Modes,
        /// All of each job, as hosted engines run it: of other process targets the whole workspace
        #[arg(long)]
        whole: bool,
        #[command(flatten)]
        how: How,
    },
    /// Runs one job of the matrix, as a hosted engine would
    Job {
        /// As `cargo ci jobs` lists it
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Lists the jobs
    Jobs,
    /// Checks everything a machine can check without running a test
    Lint {
        #[command(flatten)]
        how: How,
    },
    /// What to run before every push: under two minutes
    Quick {
        #[command(flatten)]
        how: How,
    },
    /// Runs a long test, or lists them: what `cargo ci test` has a short form of
    Torture {
        /// Which; without it, they are listed
        name: Option<String>,
        #[command(flatten)]
        filter: Filter,
    },
    /// Prints the jobs for a hosted engine
    Matrix {
        #[arg(long, value_enum, default_value_t = Format::Json)]
        format: Format,
    },
    /// Copies what a kernel needs of the core and one backend, builds it there, says what is owed
    Vendor {
        #[arg(value_parser = PossibleValuesParser::new(crate::vendor::architectures()))]
        arch: String,
        /// A folder that is empty or not there yet
        dir: PathBuf,
        /// Also the conformance suite, for the last step of a port
        #[arg(long)]
        with_conformance: bool,
    },
    /// Boots Debian's Linux 6.1 under QEMU with the library as a module, and runs the cases of tests/linux
    Linux {
        #[arg(value_parser = PossibleValuesParser::new(crate::linux::ALL.iter().map(|linux| linux.name)))]
        arch: String,
        #[arg(long, default_value_t = 1)]
        cpus: u32,
        /// How often the long cases do what they do
        #[arg(long, default_value_t = 1)]
        rounds: u32,
        /// Time is counted in instructions
        #[arg(long)]
        icount: bool,
        /// QEMU runs each CPU in a thread of its own
        #[arg(long)]
        parallel: bool,
        /// Which; all, if none is named
        cases: Vec<String>,
    },
    /// Runs the benchmark programs; prints figures, marks, comparisons
    Bench {
        /// In a Linux process, in kernels under QEMU, or everything
        #[arg(long, value_enum, default_value_t = Modes::User)]
        mode: Modes,
        /// One flat JSON object only
        #[arg(long)]
        json: bool,
        /// Also as bars
        #[arg(long)]
        plot: bool,
        /// Also run this git revision
        #[arg(long, value_name = "REV")]
        compare: Option<String>,
    },
    /// Rewrites the files that are derived from others
    Generate,
    /// Makes a release: versions, changelog, commit, tag; says how to publish it
    Release {
        /// The new version; without it, the present one
        version: Option<String>,
        /// Change nothing; pack and build every crate as the registry would get it
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct OneTarget {
    /// Only this target
    #[arg(long, value_name = "TRIPLE", value_parser = known_target)]
    pub(crate) target: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Filter {
    /// Only the steps with this in their names
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) only: String,
    /// Show all output of each step
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// How the steps of jobs are run.
#[derive(Args, Debug)]
pub(crate) struct How {
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// Install nothing; a step that lacks something fails
    #[arg(long)]
    pub(crate) no_setup: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Modes {
    User,
    System,
    All,
}

impl Modes {
    /// Whether a target of that mode is meant; `None` is a job that is not about one.
    pub(crate) fn has(self, mode: Option<Mode>) -> bool {
        match self {
            Self::All => true,
            Self::User => mode == Some(Mode::User),
            Self::System => mode == Some(Mode::System),
        }
    }
}

/// What `cargo ci matrix` prints.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    Github,
    Gitlab,
    Json,
}

fn known_target(triple: &str) -> Result<String, String> {
    if TARGETS.iter().any(|target| target.triple == triple) {
        return Ok(triple.to_owned());
    }
    let mut names: Vec<_> = TARGETS.iter().map(|target| target.triple).collect();
    names.dedup();
    Err(format!("the matrix has: {}", names.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn unknown_targets_are_answered_with_the_known_ones() {
        let error = CommandLine::try_parse_from(["ci", "test", "--target", "mips-unknown-none"]);
        let error = error.expect_err("it is refused").to_string();
        assert!(error.contains("powerpc64le-unknown-linux-gnu"), "{error}");
    }

    #[test]
    fn a_job_that_is_not_about_a_target_has_no_mode() {
        assert!(Modes::All.has(None) && !Modes::User.has(None) && !Modes::System.has(Some(Mode::Build)));
    }
}
