//! `cargo ci`: set-up, tests, lints, benchmarks and the CI matrix. `cargo ci help` says what there is.
//!
//! What is supported stands in [`matrix`]; [`jobs`] makes named lists of [`step`]s of it; [`setup`] gets the machine
//! ready for them.

mod bench;
mod coverage;
mod deny;
mod docs;
mod documents;
mod drawings;
mod generate;
mod hitpath;
mod jobs;
mod lint;
mod matrix;
mod metadata;
mod mutants;
mod peers;
mod release;
mod setup;
mod step;
mod torture;
mod userland;
mod vendor;
mod walk;
#[cfg(test)]
mod workflows;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::jobs::Job;
use crate::matrix::TARGETS;
use crate::setup::Wanted;

fn main() -> ExitCode {
    let matches = command_line().get_matches();
    match run(&matches) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn command_line() -> Command {
    let target = || Arg::new("target").long("target").value_name("TRIPLE").help("Only this target");
    let mode = || {
        Arg::new("mode")
            .long("mode")
            .value_parser(["user", "system", "all"])
            .default_value("all")
            .help("In a Linux process, in kernels under QEMU, or everything")
    };
    let verbose = || {
        Arg::new("verbose")
            .short('v')
            .long("verbose")
            .action(ArgAction::SetTrue)
            .help("Show all output of each step")
    };
    let no_setup = || {
        Arg::new("no-setup")
            .long("no-setup")
            .action(ArgAction::SetTrue)
            .help("Install nothing; a step that lacks something fails")
    };
    let only =
        || Arg::new("only").long("only").value_name("TEXT").help("Only the steps with this in their names");
    Command::new("cargo ci")
        .about("Set-up, tests, lints, benchmarks and the CI matrix of this repository")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("setup")
                .about("Installs what is missing for the tests, by name, and nothing else")
                .arg(target())
                .arg(
                    Arg::new("all")
                        .long("all")
                        .action(ArgAction::SetTrue)
                        .help("Also for the lints, msrv, nightly and miri, and what the benchmark compares with"),
                ),
        )
        .subcommand(Command::new("test").about("Sets up what is missing, then runs the whole matrix").args([
            target(),
            mode(),
            Arg::new("whole")
                .long("whole")
                .action(ArgAction::SetTrue)
                .help("All of each job, as hosted engines run it: of other process targets the whole workspace"),
            verbose(),
            only(),
            no_setup(),
        ]))
        .subcommand(
            Command::new("job")
                .about("Runs one job of the matrix, as a hosted engine would")
                .arg(Arg::new("name").required(true).help("As `cargo ci jobs` lists it"))
                .args([only(), verbose(), no_setup()]),
        )
        .subcommand(Command::new("jobs").about("Lists the jobs"))
        .subcommand(
            Command::new("lint")
                .about("Checks everything a machine can check without running a test")
                .args([only(), verbose(), no_setup()]),
        )
        .subcommand(
            Command::new("quick")
                .about("What to run before every push: under two minutes")
                .args([only(), verbose(), no_setup()]),
        )
        .subcommand(
            Command::new("torture")
                .about("Runs a long test, or lists them: what `cargo ci test` has a short form of")
                .arg(Arg::new("name").value_name("NAME").help("Which; without it, they are listed"))
                .args([only(), verbose()]),
        )
        .subcommand(
            Command::new("matrix").about("Prints the jobs for a hosted engine").arg(
                Arg::new("format")
                    .long("format")
                    .value_parser(["github", "gitlab", "json"])
                    .default_value("json"),
            ),
        )
        .subcommand(
            Command::new("vendor")
                .about("Copies what a kernel needs of the core and one backend, builds it there, says what is owed")
                .arg(Arg::new("arch").value_name("ARCH").required(true).value_parser(
                    clap::builder::PossibleValuesParser::new(vendor::architectures()),
                ))
                .arg(Arg::new("dir").value_name("DIR").required(true).help("A folder that is empty or not there yet")),
        )
        .subcommand(
            Command::new("bench")
                .about("Runs the benchmark programs; prints figures, ratios against the goals, comparisons")
                .arg(mode().default_value("user"))
                .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("One flat JSON object only"))
                .arg(Arg::new("plot").long("plot").action(ArgAction::SetTrue).help("Also as bars"))
                .arg(Arg::new("compare").long("compare").value_name("REV").help("Also run this git revision")),
        )
        .subcommand(Command::new("generate").about("Rewrites the files that are derived from others"))
        .subcommand(
            Command::new("release")
                .about("Makes a release: versions, changelog, commit, tag; says how to publish it")
                .arg(Arg::new("version").value_name("VERSION").help("The new version; without it, the present one"))
                .arg(
                    Arg::new("dry-run")
                        .long("dry-run")
                        .action(ArgAction::SetTrue)
                        .help("Change nothing; pack and build every crate as the registry would get it"),
                ),
        )
}

fn run(matches: &ArgMatches) -> Result<bool, String> {
    let root = root();
    match matches.subcommand() {
        Some(("setup", options)) => set_up(options),
        Some(("test", options)) => {
            let jobs = selected(options)?;
            let steps = if options.get_flag("whole") { Job::steps } else { Job::short_steps };
            run_jobs(&root, &jobs, steps, options)
        }
        Some(("job", options)) => {
            let job = jobs::by_name(options.get_one::<String>("name").expect("clap requires it"))?;
            run_jobs(&root, &[job], Job::steps, options)
        }
        Some((name @ ("lint" | "quick"), options)) => {
            run_jobs(&root, &[jobs::by_name(name)?], Job::steps, options)
        }
        Some(("torture", options)) => {
            let Some(name) = options.get_one::<String>("name") else {
                torture::ALL.iter().for_each(|long| println!("{:16} {}", long.name, long.about));
                return Ok(true);
            };
            let only = options.get_one::<String>("only").map_or("", String::as_str);
            torture::run(&root, name, only, options.get_flag("verbose"))
        }
        Some(("matrix", options)) => {
            print!(
                "{}",
                generate::matrix(options.get_one::<String>("format").map_or("json", String::as_str))
            );
            Ok(true)
        }
        Some(("vendor", options)) => {
            let text = |name| options.get_one::<String>(name).expect("clap requires it").as_str();
            jobs::by_name("vendor")?.wanted().install()?;
            let folder = std::path::absolute(text("dir")).map_err(|error| error.to_string())?;
            vendor::vendor(&root, text("arch"), &folder).map(|report| {
                print!("{report}");
                true
            })
        }
        Some(("bench", options)) => {
            let options = bench::Options {
                json: options.get_flag("json"),
                plot: options.get_flag("plot"),
                mode: options.get_one::<String>("mode").map_or("all", String::as_str),
                compare: options.get_one::<String>("compare").map(String::as_str),
            };
            bench::bench(&root, &options)
        }
        Some(("release", options)) => {
            let version = options.get_one::<String>("version").map(String::as_str);
            let run = if options.get_flag("dry-run") { release::dry_run } else { release::release };
            run(&root, version).map(|()| true)
        }
        Some(("generate", _)) => generate::write_all(&root).map(|()| true),
        Some(("jobs", _)) => {
            let line = |job: Job| {
                let left_out = if job.is_in_test { "" } else { " (not in cargo ci test)" };
                format!("{:16} {}{left_out}\n", job.name, job.about)
            };
            let list: String = jobs::all().into_iter().map(line).collect();
            // A reader that has seen enough closes the pipe.
            let _ = std::io::stdout().write_all(list.as_bytes());
            Ok(true)
        }
        _ => unreachable!("clap requires a known subcommand"),
    }
}

/// The workspace's root: the folder above this package's.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is in a folder of the workspace")
        .to_owned()
}

/// The jobs of `cargo ci test` that the options leave.
fn selected(options: &ArgMatches) -> Result<Vec<Job>, String> {
    let triple = options.get_one::<String>("target");
    let mode = options.get_one::<String>("mode").map_or("all", String::as_str);
    known_target(triple)?;
    let wanted = |job: &Job| {
        job.is_in_test
            && triple.is_none_or(|triple| job.triple == Some(triple))
            && (mode == "all" || job.mode.is_some_and(|its| its.name() == mode))
    };
    let jobs: Vec<_> = jobs::all().into_iter().filter(wanted).collect();
    if jobs.is_empty() {
        Err(format!("the matrix has nothing for this target in mode {mode}"))
    } else {
        Ok(jobs)
    }
}

fn known_target(triple: Option<&String>) -> Result<(), String> {
    match triple {
        Some(triple) if TARGETS.iter().all(|target| target.triple != *triple) => {
            let mut names: Vec<_> = TARGETS.iter().map(|target| target.triple).collect();
            names.dedup();
            Err(format!("the matrix has no target {triple}; it has: {}", names.join(" ")))
        }
        _ => Ok(()),
    }
}

fn set_up(options: &ArgMatches) -> Result<bool, String> {
    let triple = options.get_one::<String>("target");
    known_target(triple)?;
    let rows = TARGETS.iter().filter(|target| triple.is_none_or(|triple| target.triple == triple));
    let mut wanted = Wanted::of(rows);
    if options.get_flag("all") {
        wanted = jobs::all().iter().map(Job::wanted).fold(wanted, Wanted::merge);
    }
    let is_something = wanted.install()?;
    let is_frida = options.get_flag("all") && peers::install_frida(&root());
    if !is_something && !is_frida {
        println!("nothing to do: everything is there");
    }
    Ok(true)
}

fn run_jobs(
    root: &Path,
    jobs: &[Job],
    steps: fn(&Job, &Path) -> Vec<step::Step>,
    options: &ArgMatches,
) -> Result<bool, String> {
    if !options.get_flag("no-setup") {
        jobs.iter().map(Job::wanted).fold(Wanted::default(), Wanted::merge).install()?;
    }
    let only = options.get_one::<String>("only").map_or("", String::as_str);
    let mut chosen: Vec<_> = jobs.iter().map(|job| steps(job, root)).collect();
    chosen.iter_mut().for_each(|steps| steps.retain(|step| step.name.contains(only)));
    chosen.retain(|steps| !steps.is_empty());
    if chosen.is_empty() {
        return Err(format!("no step has {only} in its name"));
    }
    Ok(step::run_all(root, &chosen, options.get_flag("verbose")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Mode;

    #[test]
    fn command_line_is_consistent() {
        command_line().debug_assert();
    }

    /// What `run_jobs` asks the options for is an option of every command that calls it.
    #[test]
    fn every_command_that_runs_jobs_has_its_options() {
        for words in [&["test"][..], &["job", "x86_64"], &["lint"], &["quick"]] {
            let matches = command_line().get_matches_from([&["ci"], words].concat());
            let (_, options) = matches.subcommand().expect("it has one");
            assert!(!options.get_flag("no-setup") && !options.get_flag("verbose"), "{words:?}");
            assert_eq!(options.get_one::<String>("only"), None, "{words:?}");
        }
    }

    #[test]
    fn modes_of_the_command_line_are_those_of_the_table() {
        for target in TARGETS.iter().filter(|target| target.mode != Mode::Build) {
            assert!(["user", "system"].contains(&target.mode.name()));
        }
    }

    #[test]
    fn unknown_targets_are_answered_with_the_known_ones() {
        let error = known_target(Some(&"mips-unknown-none".to_owned())).expect_err("it is refused");
        assert!(error.contains("powerpc64le-unknown-linux-gnu"), "{error}");
    }
}
