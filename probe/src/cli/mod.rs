//! The command `probe`.

mod answers;
mod args;
#[cfg(has_mapped)]
mod attach;
mod calls;
mod consumer;
mod disasm;
mod elf;
#[cfg(has_mapped)]
mod errno;
mod explain;
mod export;
mod failure;
mod firefox;
mod fold;
mod foreign;
mod functions;
mod graph;
mod html;
mod install;
mod json;
mod judge;
mod launch;
mod learned;
mod list;
mod losses;
mod machine;
#[cfg(all(test, target_pointer_width = "64"))]
mod manual;
mod nests;
mod open;
mod output;
#[cfg(all(test, target_pointer_width = "64"))]
mod pages;
mod pending;
mod perfetto;
mod pid;
mod print;
#[cfg_attr(not(has_mapped), expect(dead_code, reason = "no process is attached to here"))]
mod processes;
mod program;
mod query;
mod record;
mod report;
mod saved;
mod stacks;
mod status;
mod style;
mod summary;
mod symbols;
mod tables;
mod text;
mod threads;
mod times;
mod trace;
mod value;
mod views;
mod walk;

use failure::Failure;
use foreign::{Foreign, is_plain};
use status::Status;
use std::process::ExitCode;

/// Says what is wrong with the command line, in which the names of files may be anything.
fn refuse(error: &clap::Error) {
    let is_plain = |arg: std::ffi::OsString| arg.to_str().is_some_and(|arg| arg.chars().all(is_plain));
    if std::env::args_os().all(is_plain) {
        let _ = error.print();
        return;
    }
    for line in error.render().to_string().lines() {
        eprintln!("{}", Foreign::new(line).shown());
    }
}

/// Runs the command with this process' arguments.
///
/// When a traced program was killed by a signal, this does not return: the command ends by the same signal.
pub fn main() -> ExitCode {
    let args = match args::parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version go to stdout with status 0, mistakes to stderr with status 2.
            if !error.use_stderr() {
                let _ = error.print();
                return ExitCode::from(Status::Success.code());
            }
            refuse(&error);
            return ExitCode::from(Status::Usage.code());
        }
    };
    let done = match args.command {
        args::Command::Trace(trace) => traced(&trace),
        args::Command::Record(record) => traced(&record.into_trace()),
        args::Command::Print(print) => print::run(&print),
        args::Command::Report(args) => match &args.html {
            Some(path) => html::run(&args, path),
            None => report::run(&args),
        },
        args::Command::Graph(graph) => graph::run(&graph),
        args::Command::Export(export) => export::run(&export),
        args::Command::List(list) => told(list::run(&list)),
        args::Command::Explain(explain) => told(explain::run(&explain)),
        args::Command::InstallDocs(install) => {
            install::run(&install).map(|()| trace::Outcome::Status(Status::Success.code()))
        }
    };
    match done {
        Ok(trace::Outcome::Status(status)) => ExitCode::from(status),
        Ok(trace::Outcome::Signal(signal)) => launch::die_by(signal),
        Err(failure) => {
            eprintln!("probe: {failure}");
            ExitCode::from(failure.status.code())
        }
    }
}

/// Traces what is there already, or a program that is started.
fn traced(trace: &args::Trace) -> Result<trace::Outcome, Failure> {
    if trace.pids.is_empty() { trace::run(trace) } else { pid::run(trace) }
}

/// The outcome of a command that starts no program: there is no program whose absence would have a status of
/// its own.
fn told(done: Result<(), Failure>) -> Result<trace::Outcome, Failure> {
    done.map(|()| trace::Outcome::Status(Status::Success.code()))
        .map_err(|failure| failure.with(Status::Usage))
}
