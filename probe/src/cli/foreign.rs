//! Text that is not ours: names of symbols, objects, files and tasks, and strings that the traced program
//! sends.
//!
//! Such text may hold anything, such as characters that move a terminal's cursor, start a new line or turn
//! the direction of writing. It lives in a [`Foreign`], which cannot be printed; [`Foreign::shown`] is the
//! one way to a terminal, and [`json`] the one into JSON.

use serde_json::Value as Json;
use std::ffi::OsStr;
use std::fmt::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Text of somebody else's: deliberately without `Display`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Foreign<S>(S);

impl<S> Foreign<S> {
    /// Takes in what somebody else has named or said.
    pub(super) const fn new(text: S) -> Self {
        Self(text)
    }

    /// The text itself: to compare and to look up, never to print.
    pub(super) const fn raw(&self) -> &S {
        &self.0
    }
}

impl<S: AsRef<[u8]>> Foreign<S> {
    /// The text as it can be printed.
    pub(super) fn shown(&self) -> Escaped<'_> {
        Escaped { bytes: self.0.as_ref(), quote: None }
    }

    /// The text as a string of JSON; bytes that are not UTF-8 become U+FFFD there, and stand in the line's
    /// member `bytes`.
    pub(super) fn json(&self) -> Json {
        String::from_utf8_lossy(self.0.as_ref()).into()
    }
}

/// A path as it can be printed.
pub(super) fn path(path: &Path) -> Escaped<'_> {
    os(path.as_os_str())
}

/// An argument or a file's name as it can be printed.
pub(super) fn os(text: &OsStr) -> Escaped<'_> {
    Escaped { bytes: text.as_bytes(), quote: None }
}

/// Bytes as they stand between two `quote`s in C: the quote and the backslash are escaped, too.
pub(super) fn quoted(bytes: &[u8], quote: char) -> Escaped<'_> {
    Escaped { bytes, quote: Some(quote) }
}

/// Prints as one line that a terminal shows as it is, in the escapes of C; text in UTF-8 stays readable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Escaped<'a> {
    bytes: &'a [u8],
    quote: Option<char>,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Most names are such, and millions of events have them.
        if self.quote.is_none()
            && let Some(text) = as_plain_ascii(self.bytes)
        {
            return f.pad(text);
        }
        let mut out = String::with_capacity(self.bytes.len() + 8);
        for chunk in self.bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    '\\' if self.quote.is_some() => out.push_str("\\\\"),
                    c if self.quote == Some(c) => out.extend(['\\', c]),
                    c if is_plain(c) => out.push(c),
                    c => c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| hex(&mut out, byte))?,
                }
            }
            chunk.invalid().iter().try_for_each(|&byte| hex(&mut out, byte))?;
        }
        f.pad(&out)
    }
}

/// The text, if it is printable ASCII.
fn as_plain_ascii(bytes: &[u8]) -> Option<&str> {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~')).then(|| std::str::from_utf8(bytes).ok())?
}

fn hex(out: &mut String, byte: u8) -> fmt::Result {
    write!(out, "\\x{byte:02x}")
}

/// Whether a terminal shows `c` where it stands and does nothing else: no control character (Cc), no format
/// character (Cf: the bidirectional controls, characters without width), no separator of lines or paragraphs
/// (Zl, Zp).
pub(super) fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(
            c,
            '\u{ad}'
                | '\u{600}'..='\u{605}'
                | '\u{61c}'
                | '\u{6dd}'
                | '\u{70f}'
                | '\u{890}'..='\u{891}'
                | '\u{8e2}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{110bd}'
                | '\u{110cd}'
                | '\u{13430}'..='\u{1343f}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0001}'
                | '\u{e0020}'..='\u{e007f}'
        )
}

/// An object as a line of JSON, which may be looked at on a terminal: what is not plain is written as
/// `\uXXXX`.
pub(super) fn json(object: &Json) -> String {
    let text = object.to_string();
    if as_plain_ascii(text.as_bytes()).is_some() || text.chars().all(is_plain) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_plain(c) {
            out.push(c);
        } else {
            // Outside of strings everything is plain, so this is inside of one.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| {
                let _ = write!(out, "\\u{unit:04x}");
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::plain(b"malloc", "malloc")]
    #[case::utf8("grün €".as_bytes(), "grün €")]
    #[case::escape(b"a\x1b[31mb", "a\\x1b[31mb")]
    #[case::line(b"a\nprobe: all is well", "a\\nprobe: all is well")]
    #[case::c1("\u{9b}31m".as_bytes(), "\\xc2\\x9b31m")]
    #[case::delete(b"\x7f", "\\x7f")]
    #[case::bidi("\u{202e}x\u{2066}".as_bytes(), "\\xe2\\x80\\xaex\\xe2\\x81\\xa6")]
    #[case::no_utf8(b"\xff\x9b", "\\xff\\x9b")]
    #[case::backslash(b"dev\\x2d", "dev\\x2d")]
    fn evt_2_what_a_terminal_would_obey_is_escaped(#[case] bytes: &[u8], #[case] shown: &str) {
        assert_eq!(Foreign::new(bytes).shown().to_string(), shown);
        assert!(shown.chars().all(is_plain));
    }

    #[test]
    fn columns_are_as_wide_as_what_is_shown() {
        assert_eq!(format!("{:<8}|", Foreign::new("a\x1b").shown()), "a\\x1b   |");
        assert_eq!(quoted(b"a\"\\", '"').to_string(), "a\\\"\\\\");
    }

    #[test]
    fn evt_2_json_is_valid_and_harmless_and_says_the_same() {
        let wild: String = (0..0x2100).chain(0xe0000..0xe0080).filter_map(char::from_u32).collect();
        let object = serde_json::json!({ "name": wild, wild.clone(): [wild.clone()] });
        let line = json(&object);
        assert!(line.chars().all(is_plain));
        assert_eq!(serde_json::from_str::<Json>(&line).unwrap(), object);
    }
}
