//! "Did you mean": names that are close to one that does not exist.

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Up to `most` of `candidates` that are close to `wanted`, the closest first, without duplicates.
///
/// Close means: few letters inserted, left out, replaced or swapped (at most a third of the name), differing
/// only in case or in leading underscores, or one starts with the other.
pub fn near_matches<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    // Of names as far apart, first the one that begins alike: people get beginnings right.
    let rank =
        |name: &'a str| Some((score(wanted, name)?, Reverse(same_beginning(wanted, name)), name.len(), name));
    let mut found: Vec<_> = candidates.into_iter().filter_map(rank).collect();
    found.sort_unstable();
    found.dedup();
    found.truncate(most);
    found.into_iter().map(|(.., name)| name).collect()
}

/// How many bytes two names have in common at their beginning.
fn same_beginning(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

/// How far apart two names are, lower is closer; `None` where they are not close.
fn score(wanted: &str, name: &str) -> Option<usize> {
    if name == wanted {
        return Some(0);
    }
    let (a, b) = (wanted.trim_start_matches('_'), name.trim_start_matches('_'));
    if a.eq_ignore_ascii_case(b) {
        return Some(1);
    }
    let limit = (wanted.chars().count() / 3).max(1);
    if a.len().abs_diff(b.len()) <= limit
        && let Some(distance) = edit_distance(a.as_bytes(), b.as_bytes(), limit)
    {
        return Some(10 * distance);
    }
    let starts = a.len() >= 3 && b.len() >= 3 && (a.starts_with(b) || b.starts_with(a));
    starts.then(|| 10 * limit + 5 + a.len().abs_diff(b.len()))
}

/// The number of edits (insert, delete, replace, swap neighbours) between two names, or `None` if above
/// `limit`.
fn edit_distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    let width = b.len() + 1;
    let mut before_last = vec![0; width];
    let mut last: Vec<usize> = (0..width).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1; width];
        for (j, &y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(!x.eq_ignore_ascii_case(&y));
            row[j + 1] = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && x == b[j - 1] && a[i - 1] == y {
                row[j + 1] = row[j + 1].min(before_last[j - 1] + 1);
            }
        }
        if row.iter().min().is_some_and(|&least| least > limit) {
            return None;
        }
        before_last = core::mem::replace(&mut last, row);
    }
    Some(last[b.len()]).filter(|&distance| distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const NAMES: &[&str] =
        &["mlock", "malloc", "calloc", "realloc", "free", "opendir", "closedir", "readdir", "fdopendir"];

    #[rstest]
    #[case::letter_left_out("maloc", "malloc")]
    #[case::letters_swapped("mallco", "malloc")]
    #[case::case("Malloc", "malloc")]
    #[case::underscores("__malloc", "malloc")]
    #[case::replaced("opendur", "opendir")]
    #[case::beginning("opendi", "opendir")]
    #[case::same_beginning("malocc", "malloc")]
    fn the_closest_comes_first(#[case] wanted: &str, #[case] first: &str) {
        assert_eq!(near_matches(wanted, NAMES.iter().copied(), 3).first(), Some(&first));
    }

    #[test]
    fn nothing_close_gives_nothing() {
        assert!(near_matches("xyzzy_quux", NAMES.iter().copied(), 3).is_empty());
    }

    #[test]
    fn duplicates_are_named_once() {
        assert_eq!(near_matches("fre", ["free", "free"], 3), ["free"]);
    }
}
