//! `cargo ci`: set-up, tests, lints, benchmarks and the CI matrix. `cargo ci help` says what there is.
//!
//! What is supported stands in [`matrix`]; [`job`] makes named jobs of it, [`steps`] says what each does, by
//! [`step`]s; [`setup`] gets the machine ready for them. [`generate`] writes the files that are derived from
//! others.

mod bench;
mod cli;
mod command;
mod coverage;
mod deny;
mod docs;
mod documents;
mod drawings;
mod generate;
mod hitpath;
mod job;
mod kernel_packages;
mod lint;
mod linux;
mod manifest;
mod matrix;
mod metadata;
mod mutants;
mod peers;
mod release;
mod setup;
mod step;
mod steps;
mod torture;
mod tree;
mod userland;
mod vendor;
mod walk;
#[cfg(test)]
mod workflows;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{CommandLine, How, Modes, OneTarget, Task};
use crate::job::Job;
use crate::matrix::TARGETS;
use crate::setup::Wanted;
use crate::step::Step;
use crate::tree::root;

fn main() -> ExitCode {
    match run(CommandLine::parse().task) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether it went well.
fn run(task: Task) -> Result<bool, String> {
    let root = root();
    match task {
        Task::Setup { target, all } => set_up(&root, &target, all),
        Task::Test { target, mode, whole, how } => {
            run_jobs(&root, &selected(&target, mode)?, if whole { steps::all } else { steps::short }, &how)
        }
        Task::Job { name, how } => run_jobs(&root, &[job::by_name(&name)?], steps::all, &how),
        Task::Lint { how } => run_jobs(&root, &[job::by_name("lint")?], steps::all, &how),
        Task::Quick { how } => run_jobs(&root, &[job::by_name("quick")?], steps::all, &how),
        Task::Jobs => {
            list_jobs();
            Ok(true)
        }
        Task::Torture { name: None, .. } => {
            torture::ALL.iter().for_each(|long| println!("{:16} {}", long.name, long.about));
            Ok(true)
        }
        Task::Torture { name: Some(name), filter } => {
            torture::run(&root, &name, &filter.only, filter.verbose)
        }
        Task::Matrix { format } => {
            print!("{}", generate::matrix(format));
            Ok(true)
        }
        Task::Vendor { arch, dir, with_conformance } => {
            steps::wanted(&job::by_name("vendor")?).install()?;
            let folder = std::path::absolute(dir).map_err(|error| error.to_string())?;
            let suite = if with_conformance { vendor::Suite::With } else { vendor::Suite::Without };
            print!("{}", vendor::vendor(&root, &arch, &folder, suite)?);
            Ok(true)
        }
        Task::Linux { arch, cpus, rounds, icount, parallel, cases } => {
            linux::wanted().install()?;
            let options = linux::Options {
                name: &arch,
                cpus,
                rounds,
                counts_instructions: icount,
                is_parallel: parallel,
                cases: &cases,
            };
            linux::run(&root, &options).map(|()| true)
        }
        Task::Bench { mode, json, plot, compare } => {
            bench::bench(&root, &bench::Options { json, mode, plot, compare: compare.as_deref() })
        }
        Task::Generate => generate::write_all(&root).map(|()| true),
        Task::Release { version, dry_run } => {
            let run = if dry_run { release::dry_run } else { release::release };
            run(&root, version.as_deref()).map(|()| true)
        }
    }
}

fn list_jobs() {
    let line = |job: Job| {
        let left_out = if job.is_in_test() { "" } else { " (not in cargo ci test)" };
        format!("{:16} {}{left_out}\n", job.name, job.about)
    };
    let list: String = job::all().into_iter().map(line).collect();
    // A reader that has seen enough closes the pipe.
    let _ = std::io::stdout().write_all(list.as_bytes());
}

/// The jobs of `cargo ci test` that the options leave.
fn selected(only: &OneTarget, mode: Modes) -> Result<Vec<Job>, String> {
    let is_wanted = |job: &Job| {
        let target = job.target();
        job.is_in_test()
            && only.target.as_ref().is_none_or(|triple| target.is_some_and(|target| target.triple == triple))
            && mode.has(target.map(|target| target.mode))
    };
    let jobs: Vec<_> = job::all().into_iter().filter(is_wanted).collect();
    if jobs.is_empty() {
        Err("the matrix has nothing for this target in this mode".to_owned())
    } else {
        Ok(jobs)
    }
}

fn set_up(root: &Path, only: &OneTarget, all: bool) -> Result<bool, String> {
    let is_wanted = |triple: &str| only.target.as_ref().is_none_or(|wanted| wanted == triple);
    let mut wanted = Wanted::of(TARGETS.iter().filter(|target| is_wanted(target.triple)));
    if all {
        wanted = job::all().iter().map(steps::wanted).fold(wanted, Wanted::merge);
    }
    let is_something = wanted.install()?;
    let is_frida = all && peers::install_frida(root);
    if !is_something && !is_frida {
        println!("nothing to do: everything is there");
    }
    Ok(true)
}

fn run_jobs(
    root: &Path,
    jobs: &[Job],
    steps: fn(&Job, &Path) -> Vec<Step>,
    how: &How,
) -> Result<bool, String> {
    if !how.no_setup {
        jobs.iter().map(steps::wanted).fold(Wanted::default(), Wanted::merge).install()?;
    }
    let only = &how.filter.only;
    let mut chosen: Vec<_> = jobs.iter().map(|job| steps(job, root)).collect();
    chosen.iter_mut().for_each(|steps| steps.retain(|step| step.name.contains(only)));
    chosen.retain(|steps| !steps.is_empty());
    if chosen.is_empty() {
        return Err(format!("no step has {only} in its name"));
    }
    Ok(step::run_all(root, &chosen, how.filter.verbose))
}
