//! The command `probe`.

mod args;
mod consumer;
mod disasm;
mod elf;
mod explain;
mod foreign;
mod install;
mod json;
mod launch;
mod learned;
mod list;
mod losses;
mod machine;
#[cfg(all(test, target_pointer_width = "64"))]
mod manual;
mod open;
#[cfg(all(test, target_pointer_width = "64"))]
mod pages;
mod pending;
mod program;
mod status;
mod style;
mod summary;
mod symbols;
mod text;
mod trace;
mod value;

use foreign::{Foreign, is_plain};
use status::Status;
use std::fmt;
use std::process::ExitCode;

/// An error that ends the command: one sentence, perhaps with a definition and a caret.
///
/// Names in it are somebody else's. What it holds is escaped already, so that nothing is printed raw by whoever prints it.
#[derive(Debug)]
struct Failure {
    sentence: String,
    /// The definition and the carets under it.
    lines: Option<[String; 2]>,
    status: Status,
}

impl Failure {
    /// Bad input.
    fn new(sentence: impl fmt::Display) -> Self {
        let sentence = Foreign::new(sentence.to_string()).shown().to_string();
        Self { sentence, lines: None, status: Status::Usage }
    }

    /// The same, with the exit status that it leads to.
    fn with(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.lines.iter().flatten().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl From<crate::def::DefError> for Failure {
    fn from(error: crate::def::DefError) -> Self {
        let [before, marked, after] = error.parts().map(|part| Foreign::new(part).shown().to_string());
        let blanks = " ".repeat(before.chars().count());
        let carets = "^".repeat(marked.chars().count().max(1));
        Self { lines: Some([before + &marked + &after, blanks + &carets]), ..Self::new(error.sentence) }
    }
}

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
        args::Command::Trace(trace) => trace::run(&trace),
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

/// How a command ends that starts no program: there is no program whose absence would have a status of its own.
fn told(done: Result<(), Failure>) -> Result<trace::Outcome, Failure> {
    done.map(|()| trace::Outcome::Status(Status::Success.code()))
        .map_err(|failure| failure.with(Status::Usage))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::def::DefError;

    #[test]
    fn evt_2_a_failure_is_plain_whatever_it_names() {
        let failure = Failure::new("there is no object `a\x1b[2J\nprobe: all is well\u{9b}`");
        assert_eq!(failure.to_string(), "there is no object `a\\x1b[2J\\nprobe: all is well\\xc2\\x9b`");
        let text = "p a\x1bb:c";
        let failure = Failure::from(DefError::new(text, (6, 7), "no \x1b"));
        assert_eq!(failure.to_string(), ["no \\x1b", "    p a\\x1bb:c", "             ^"].join("\n"));
    }
}
