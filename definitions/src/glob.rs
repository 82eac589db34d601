//! Shell-style patterns over symbol names.

use alloc::string::String;

/// A pattern: `*` any letters, `?` one, `[abc]`, `[a-z]`, `[!abc]` one of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(String);

impl Glob {
    /// A pattern as typed; every text is a pattern (an unclosed `[` stands for itself).
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// The pattern as typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `text` holds a letter that means something in a pattern.
    pub fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// Whether the whole of `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        matches(self.0.as_bytes(), name.as_bytes())
    }
}

/// Whether the whole of `text` matches `pattern`. Fit for handlers.
pub fn glob_matches(pattern: &[u8], text: &[u8]) -> bool {
    matches(pattern, text)
}

/// Matches with one point of return (the last `*`): linear in practice, never exponential.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(next) = one(pattern, p, name[n]) {
            p = next;
            n += 1;
        } else if let Some((after, taken)) = star {
            p = after;
            n = taken + 1;
            star = Some((after, n));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

/// Matches one letter at `p` and returns where the pattern goes on.
fn one(pattern: &[u8], p: usize, letter: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match set(&pattern[p + 1..], letter) {
            Some((true, len)) => Some(p + 1 + len),
            Some((false, _)) => None,
            None => (letter == b'[').then_some(p + 1),
        },
        c => (c == letter).then_some(p + 1),
    }
}

/// Whether `letter` is in the set whose text follows `[`, and the length of that text with its `]`.
fn set(text: &[u8], letter: u8) -> Option<(bool, usize)> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let start = usize::from(negated);
    let end = start + 1 + text.get(start + 1..)?.iter().position(|&c| c == b']')?;
    let (mut i, mut found) = (start, false);
    while i < end {
        if i + 2 < end && text[i + 1] == b'-' {
            found |= (text[i]..=text[i + 2]).contains(&letter);
            i += 3;
        } else {
            found |= text[i] == letter;
            i += 1;
        }
    }
    Some((found != negated, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::exact("malloc", "malloc", true)]
    #[case::prefix("mem*", "memcpy", true)]
    #[case::prefix_alone("mem*", "mem", true)]
    #[case::suffix("*alloc", "realloc", true)]
    #[case::middle("re*loc", "realloc", true)]
    #[case::two_stars("*a*c*", "realloc", true)]
    #[case::no("mem*", "strlen", false)]
    #[case::question("?alloc", "malloc", true)]
    #[case::question_needs_one("?malloc", "malloc", false)]
    #[case::set("[mc]alloc", "calloc", true)]
    #[case::range("open[0-9][0-9]", "open64", true)]
    #[case::negated("[!mc]alloc", "malloc", false)]
    #[case::bracket_first("a[]]b", "a]b", true)]
    #[case::unclosed("a[b", "a[b", true)]
    #[case::star_only("*", "", true)]
    #[case::backtrack("*aab", "aaaab", true)]
    fn matching(#[case] pattern: &str, #[case] name: &str, #[case] want: bool) {
        assert_eq!(Glob::new(pattern).matches(name), want);
    }

    #[test]
    fn many_stars_do_not_explode() {
        assert!(!Glob::new("a*".repeat(30) + "b").matches(&"a".repeat(200)));
    }
}
