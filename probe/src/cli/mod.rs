//! The command `probe`.

mod args;
mod consumer;
mod disasm;
mod elf;
mod explain;
mod json;
mod launch;
mod learned;
mod list;
mod losses;
#[cfg(all(test, target_pointer_width = "64"))]
mod manual;
mod open;
mod pending;
mod program;
mod style;
mod summary;
mod symbols;
mod text;
mod trace;
mod value;

use std::fmt;
use std::process::ExitCode;

/// The exit status for bad input: nothing was started.
const BAD_INPUT: u8 = 2;

/// An error that ends the command before the program is started: one sentence, perhaps with a definition and a caret.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(sentence: impl fmt::Display) -> Self {
        Self(sentence.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<crate::def::DefError> for Failure {
    fn from(error: crate::def::DefError) -> Self {
        Self::new(error)
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
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(BAD_INPUT));
        }
    };
    let done = match args.command {
        args::Command::Trace(trace) => trace::run(&trace),
        args::Command::List(list) => list::run(&list).map(|()| trace::Outcome::Status(0)),
        args::Command::Explain(explain) => explain::run(&explain).map(|()| trace::Outcome::Status(0)),
    };
    match done {
        Ok(trace::Outcome::Status(status)) => ExitCode::from(status),
        Ok(trace::Outcome::Signal(signal)) => launch::die_by(signal),
        Err(failure) => {
            eprintln!("probe: {failure}");
            ExitCode::from(BAD_INPUT)
        }
    }
}
