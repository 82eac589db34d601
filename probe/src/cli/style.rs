//! How numbers are shown; colours, on a terminal only.

use super::args::Color;
use std::fmt;
use std::io::IsTerminal;

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A probe's or function's name.
    Name,
    /// Times, addresses: context that one does not read first.
    Dim,
    /// A heading.
    Head,
    /// A value that could not be read, a refusal, a loss.
    Bad,
    /// Something that is fine.
    Good,
}

/// Whether to use colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    on: bool,
}

impl Style {
    /// For text that goes to `to`.
    pub(super) fn new(color: Color, to: &impl IsTerminal) -> Self {
        let on = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                to.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        Self { on }
    }

    /// No colours.
    pub(super) const fn plain() -> Self {
        Self { on: false }
    }

    /// `text` as its role looks.
    pub(super) fn paint<T: fmt::Display>(self, role: Role, text: T) -> Painted<T> {
        Painted { role: self.on.then_some(role), text }
    }
}

/// Text with its colour around it.
pub(super) struct Painted<T> {
    role: Option<Role>,
    text: T,
}

impl<T: fmt::Display> fmt::Display for Painted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = match self.role {
            None => return self.text.fmt(f),
            Some(Role::Name) => "36",
            Some(Role::Dim) => "2",
            Some(Role::Head) => "1",
            Some(Role::Bad) => "31",
            Some(Role::Good) => "32",
        };
        write!(f, "\x1b[{code}m")?;
        self.text.fmt(f)?;
        f.write_str("\x1b[0m")
    }
}

/// A bar for `n` of `most`.
pub(super) fn bar(n: u64, most: u64) -> String {
    const EIGHTHS: u128 = 40 * 8;
    let eighths = (u128::from(n.min(most)) * EIGHTHS).div_ceil(u128::from(most.max(1))) as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(
        [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'].get(eighths % 8).filter(|_| !eighths.is_multiple_of(8)),
    );
    bar
}

/// A column for `n` of `most`, one character wide; blank for none.
pub(super) fn column(n: u64, most: u64) -> char {
    let eighths = (u128::from(n.min(most)) * 8).div_ceil(u128::from(most.max(1))) as usize;
    [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'].get(eighths).copied().unwrap_or('█')
}

/// A duration with three digits and its unit: `412 ns`, `1.23 µs`, `45.6 ms`.
pub(super) fn time(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(0, "0 ns")]
    #[case(999, "999 ns")]
    #[case(1_234, "1.23 µs")]
    #[case(12_345, "12.3 µs")]
    #[case(123_456, "123 µs")]
    #[case(45_600_000, "45.6 ms")]
    #[case(2_000_000_000, "2.00 s")]
    fn times(#[case] ns: u64, #[case] want: &str) {
        assert_eq!(time(ns), want);
    }

    #[test]
    fn plain_text_has_no_escapes() {
        assert_eq!(Style::plain().paint(Role::Bad, "x").to_string(), "x");
        assert_eq!(format!("{:>3}", Style { on: true }.paint(Role::Bad, "x")), "\x1b[31m  x\x1b[0m");
    }
}
