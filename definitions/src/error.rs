//! Errors about a definition: one sentence, and the line with a caret under the place.

use alloc::borrow::ToOwned;
use alloc::string::String;
use core::fmt;

/// Why a definition cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefError {
    /// The definition as typed.
    pub text: String,
    /// The bytes of `text` that are meant, first to one past the last.
    pub span: (usize, usize),
    /// One sentence, lower case, without full stop.
    pub sentence: String,
}

impl DefError {
    /// An error about the bytes `span` of `text`.
    pub fn new(text: &str, span: (usize, usize), sentence: impl Into<String>) -> Self {
        let end = span.1.min(text.len());
        Self { text: text.to_owned(), span: (span.0.min(end), end), sentence: sentence.into() }
    }

    /// The definition before, in and behind the place that is meant.
    pub fn parts(&self) -> [&str; 3] {
        let floor = |at| (0..=at).rev().find(|&at| self.text.is_char_boundary(at)).unwrap_or(0);
        let from = floor(self.span.0);
        let to = floor(self.span.1).max(from);
        [&self.text[..from], &self.text[from..to], &self.text[to..]]
    }

    /// The line under the definition that marks the place: blanks (and the definition's own tabs), then
    /// carets.
    pub fn marker(&self) -> String {
        let (before, marked) = (
            self.text.get(..self.span.0).unwrap_or(""),
            self.text.get(self.span.0..self.span.1).unwrap_or(""),
        );
        let blanks: String = before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        blanks + &"^".repeat(marked.chars().count().max(1))
    }
}

impl fmt::Display for DefError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}\n    {}", self.sentence, self.text, self.marker())
    }
}

impl core::error::Error for DefError {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec::Vec;

    #[test]
    fn the_caret_stands_under_the_place() {
        let text = "p libc.so.6:malloc size=$arg1:u7";
        let at = text.find("u7").unwrap();
        let error = DefError::new(text, (at, at + 2), "unknown type `u7`");
        let shown = error.to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "unknown type `u7`");
        assert_eq!(lines[1].find("u7"), lines[2].find("^^"));
    }

    #[test]
    fn a_place_at_the_end_still_gets_a_caret() {
        let error = DefError::new("p ", (2, 2), "a place is missing");
        assert_eq!(error.marker(), "  ^");
    }

    #[test]
    fn tabs_and_wide_characters_before_the_place_keep_the_columns() {
        let text = "p\tä:b x";
        let at = text.find('x').unwrap();
        assert_eq!(DefError::new(text, (at, at + 1), "").marker(), " \t    ^");
    }
}
