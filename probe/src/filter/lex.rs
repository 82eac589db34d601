//! The words of an expression, each with the bytes that it was read from.

use crate::def::DefError;

/// What a number was counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nothing was said.
    None,
    /// K, M, G: the number is one of bytes.
    Size,
    /// ns, us, ms, s: the number is one of nanoseconds.
    Time,
}

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// A number, in bytes or nanoseconds if it had a unit.
    Number(u64, Unit),
    /// What stood between double quotes.
    Text(Vec<u8>),
    /// The name of an argument.
    Name(&'a str),
    /// `$NAME` or `$NAME:TYPE`, as typed.
    Variable(&'a str),
    /// An operator or a parenthesis.
    Sign(&'static str),
}

/// A word and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    pub(super) word: Word<'a>,
    pub(super) span: (usize, usize),
}

/// The longer ones first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "!~", "<<", ">>", "<", ">", "~", "!", "+", "-", "*", "/", "%", "&",
    "|", "^", "(", ")", ",",
];

/// Units with what they stand for.
const UNITS: [(&str, u64, Unit); 14] = [
    ("", 1, Unit::None),
    ("ns", 1, Unit::Time),
    ("us", 1_000, Unit::Time),
    ("µs", 1_000, Unit::Time),
    ("ms", 1_000_000, Unit::Time),
    ("s", 1_000_000_000, Unit::Time),
    ("K", 1 << 10, Unit::Size),
    ("KiB", 1 << 10, Unit::Size),
    ("M", 1 << 20, Unit::Size),
    ("MiB", 1 << 20, Unit::Size),
    ("G", 1 << 30, Unit::Size),
    ("GiB", 1 << 30, Unit::Size),
    ("T", 1 << 40, Unit::Size),
    ("TiB", 1 << 40, Unit::Size),
];

/// Splits an expression into words.
///
/// # Errors
/// The first bytes that are no word.
pub(super) fn words(text: &str) -> Result<Vec<Token<'_>>, DefError> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        let (word, len) = match first {
            '0'..='9' => number(text, at)?,
            '"' => quoted(text, at)?,
            '\'' => letter(text, at)?,
            '$' => {
                let len = 1 + name_len(&text[at + 1..]);
                let typed = text[at + len..].strip_prefix(':').map_or(0, |ty| 1 + name_len(ty));
                (Word::Variable(&text[at..at + len + typed]), len + typed)
            }
            c if c == '_' || c.is_alphabetic() => {
                let len = name_len(&text[at..]);
                (Word::Name(&text[at..at + len]), len)
            }
            _ => match SIGNS.iter().find(|sign| text[at..].starts_with(**sign)) {
                Some(sign) => (Word::Sign(sign), sign.len()),
                None => return Err(DefError::new(text, (at, at + first.len_utf8()), nothing(first))),
            },
        };
        found.push(Token { word, span: (at, at + len) });
        at += len;
    }
    Ok(found)
}

/// What a letter that begins no word may have been meant for.
fn nothing(letter: char) -> String {
    match letter {
        '=' => "a comparison is written `==`".into(),
        '@' => "memory is fetched by the probe's definition, and named here".into(),
        _ => format!("`{letter}` means nothing in an expression"),
    }
}

fn name_len(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

/// `12`, `0x1f`, `017`, `1.5ms`, `4K`.
fn number(text: &str, at: usize) -> Result<(Word<'_>, usize), DefError> {
    let rest = &text[at..];
    let len = rest.find(|c: char| c != '.' && c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
    let word = &rest[..len];
    let wrong = |sentence: String| Err(DefError::new(text, (at, at + len), sentence));
    let (value, unit) = if word.starts_with("0x") || word.starts_with("0X") {
        (u64::from_str_radix(&word[2..], 16).ok(), Unit::None)
    } else {
        let digits = word.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(len);
        let Some(&(_, scale, unit)) = UNITS.iter().find(|(name, ..)| *name == &word[digits..]) else {
            let name = &word[digits..];
            return wrong(format!("`{name}` is no unit; sizes have K, M, G or T, times ns, us, ms or s"));
        };
        (scaled(&word[..digits], scale), unit)
    };
    match value {
        Some(value) => Ok((Word::Number(value, unit), len)),
        None => wrong(format!("`{word}` is no whole number of 64 bits")),
    }
}

/// A number of units that is a whole number.
fn scaled(digits: &str, scale: u64) -> Option<u64> {
    let Some((whole, part)) = digits.split_once('.') else {
        let is_octal = digits.len() > 1 && digits.starts_with('0');
        return u64::from_str_radix(digits, if is_octal { 8 } else { 10 }).ok()?.checked_mul(scale);
    };
    let one = 10_u128.checked_pow(u32::try_from(part.len()).ok().filter(|&digits| digits <= 18)?)?;
    let (whole, part): (u128, u128) = (u128::from(whole.parse::<u64>().ok()?), part.parse().ok()?);
    let all = (whole * one + part) * u128::from(scale);
    all.is_multiple_of(one).then(|| u64::try_from(all / one).ok())?
}

/// What stands between double quotes, with C's escapes.
fn quoted(text: &str, at: usize) -> Result<(Word<'_>, usize), DefError> {
    let (mut bytes, mut rest) = (Vec::new(), &text[at + 1..]);
    loop {
        let Some(next) = rest.chars().next() else {
            return Err(DefError::new(text, (at, text.len()), "a text in quotes is not closed"));
        };
        if next == '"' {
            return Ok((Word::Text(bytes), text.len() - rest.len() + 1 - at));
        }
        if next != '\\' {
            let mut letter = [0; 4];
            bytes.extend_from_slice(next.encode_utf8(&mut letter).as_bytes());
            rest = &rest[next.len_utf8()..];
            continue;
        }
        let (byte, len) = escape(&rest[1..]).ok_or_else(|| {
            let from = text.len() - rest.len();
            DefError::new(
                text,
                (from, from + 1),
                "a text has the escapes \\\\ \\\" \\n \\t \\r \\0 and \\xNN",
            )
        })?;
        bytes.push(byte);
        rest = &rest[1 + len..];
    }
}

/// The byte that an escape stands for, and its length behind the backslash.
fn escape(text: &str) -> Option<(u8, usize)> {
    let byte = match text.bytes().next()? {
        b'n' => b'\n',
        b't' => b'\t',
        b'r' => b'\r',
        b'0' => 0,
        same @ (b'\\' | b'"' | b'\'') => same,
        b'x' => return Some((u8::from_str_radix(text.get(1..3)?, 16).ok()?, 3)),
        _ => return None,
    };
    Some((byte, 1))
}

/// `'c'`: the number of a letter of one byte.
fn letter(text: &str, at: usize) -> Result<(Word<'_>, usize), DefError> {
    let rest = &text[at + 1..];
    let (byte, len) = match rest.strip_prefix('\\') {
        Some(escaped) => escape(escaped).map_or((0, 0), |(byte, len)| (byte, 1 + len)),
        None => rest.bytes().next().filter(u8::is_ascii).map_or((0, 0), |byte| (byte, 1)),
    };
    if len == 0 || !rest[len..].starts_with('\'') {
        let end = text.len().min(at + 1);
        return Err(DefError::new(text, (at, end), "a letter is one byte between `'` and `'`, such as 'a'"));
    }
    Ok((Word::Number(byte.into(), Unit::None), len + 2))
}
