//! How the command fails: in one sentence, with what may have been meant.

use super::foreign::Foreign;
use super::status::Status;
use crate::def::DefError;
use std::fmt;

/// An error that ends the command: one sentence, perhaps with a definition and a caret.
///
/// Names in it are somebody else's, so its text is escaped when it is made: nobody can print it raw.
#[derive(Debug)]
pub(super) struct Failure {
    sentence: String,
    /// The definition and the carets under it.
    lines: Option<[String; 2]>,
    /// What the command ends with.
    pub(super) status: Status,
}

impl Failure {
    /// Bad input.
    pub(super) fn new(sentence: impl fmt::Display) -> Self {
        let sentence = Foreign::new(sentence.to_string()).shown().to_string();
        Self { sentence, lines: None, status: Status::Usage }
    }

    /// This failure with another exit status.
    pub(super) fn with(self, status: Status) -> Self {
        Self { status, ..self }
    }
}

/// The command itself has failed.
pub(super) fn failed(sentence: impl std::fmt::Display) -> Failure {
    Failure::new(sentence).with(Status::Failed)
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.lines.iter().flatten().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl From<DefError> for Failure {
    fn from(error: DefError) -> Self {
        let [before, marked, after] = error.parts().map(|part| Foreign::new(part).shown().to_string());
        let blanks = " ".repeat(before.chars().count());
        let carets = "^".repeat(marked.chars().count().max(1));
        Self { lines: Some([before + &marked + &after, blanks + &carets]), ..Self::new(error.sentence) }
    }
}

/// `; did you mean `a`, `b` or `c`?`, or nothing.
pub(super) fn did_you_mean(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("; did you mean `{one}`?"),
        [most @ .., last] => format!("; did you mean `{}` or `{last}`?", most.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evt_2_a_failure_is_plain_whatever_it_names() {
        let failure = Failure::new("there is no object `a\x1b[2J\nprobe: all is well\u{9b}`");
        assert_eq!(failure.to_string(), "there is no object `a\\x1b[2J\\nprobe: all is well\\xc2\\x9b`");
        let text = "p a\x1bb:c";
        let failure = Failure::from(DefError::new(text, (6, 7), "no \x1b"));
        assert_eq!(failure.to_string(), ["no \\x1b", "    p a\\x1bb:c", "             ^"].join("\n"));
    }
}
