//! The words of a definition: where each starts, so that an error can point at it; identifiers and numbers.

use super::DefError;
use alloc::string::String;
use alloc::vec::Vec;

/// A blank-separated word of the definition and where it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    pub(super) text: &'a str,
    pub(super) start: usize,
}

impl<'a> Word<'a> {
    /// The part from byte `from` to byte `to` of this word.
    pub(super) fn part(self, from: usize, to: usize) -> Word<'a> {
        Word { text: &self.text[from..to], start: self.start + from }
    }

    /// The part from byte `from` on.
    pub(super) fn from(self, from: usize) -> Word<'a> {
        self.part(from, self.text.len())
    }

    pub(super) fn span(self) -> (usize, usize) {
        (self.start, self.start + self.text.len())
    }

    /// An error about this word.
    pub(super) fn error(self, line: &str, sentence: impl Into<String>) -> DefError {
        DefError::new(line, self.span(), sentence)
    }
}

/// Splits at blanks outside double quotes.
pub(super) fn words(line: &str) -> Result<Vec<Word<'_>>, DefError> {
    let (mut words, mut start, mut quote) = (Vec::new(), None, None);
    for (at, c) in line.char_indices() {
        match (c, quote) {
            ('"', None) => {
                quote = Some(at);
                start.get_or_insert(at);
            }
            ('"', Some(_)) => quote = None,
            (c, None) if c.is_whitespace() => {
                if let Some(from) = start.take() {
                    words.push(Word { text: &line[from..at], start: from });
                }
            }
            _ => {
                start.get_or_insert(at);
            }
        }
    }
    if let Some(at) = quote {
        return Err(DefError::new(line, (at, line.len()), "a quoted name is not closed"));
    }
    if let Some(from) = start {
        words.push(Word { text: &line[from..], start: from });
    }
    Ok(words)
}

/// Whether `text` is a C identifier.
pub(super) fn is_identifier(text: &str) -> bool {
    text.bytes()
        .enumerate()
        .all(|(i, c)| c == b'_' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit()))
        && !text.is_empty()
}

/// A number in decimal, `0x` hexadecimal or `0` octal, as C writes it.
pub(super) fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}
