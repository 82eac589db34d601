//! STYLE: a `SAFETY` comment discharges what is owed. In a function that is safe to call, "the caller has the
//! lock" discharges nothing: no signature makes a caller promise it. A token, a guard or an `unsafe fn` does.

use super::functions::functions_of;
use super::{Source, found};

/// Words by which such a comment argues with whoever calls.
const WORDS: [&str; 13] = [
    "the caller",
    "callers",
    "caller is",
    "caller of",
    "is inside",
    "are inside",
    "the lock is held",
    "holds the lock",
    "holds the registry",
    "upheld by",
    "whoever calls",
    "whoever has the",
    "whoever has this",
];

/// How many such comments each crate still has. The numbers only fall: a crate that is not here has none.
const LEFT: &[(&str, usize)] = &[];

/// Finds `SAFETY` comments in safe functions that rest on the caller's word.
///
/// # Errors
/// More of them than a crate may have, a line each; or fewer, so that the number has to be lowered.
pub(super) fn check(sources: &[Source]) -> Result<(), String> {
    check_with(sources, LEFT)
}

fn check_with(sources: &[Source], left: &[(&str, usize)]) -> Result<(), String> {
    let mut places: Vec<(&str, String)> = Vec::new();
    for source in sources {
        let Some((krate, _)) = source.path.split_once("/src/") else { continue };
        if krate.starts_with("tests/") {
            continue;
        }
        places.extend(places_in(source).into_iter().map(|place| (krate, place)));
    }
    let mut wrong = Vec::new();
    let mut crates: Vec<&str> = places.iter().map(|(krate, _)| *krate).collect();
    crates.extend(left.iter().map(|(krate, _)| *krate));
    crates.sort_unstable();
    crates.dedup();
    for krate in crates {
        let allowed = left.iter().find(|(name, _)| *name == krate).map_or(0, |(_, count)| *count);
        let of_it: Vec<&str> =
            places.iter().filter(|(name, _)| *name == krate).map(|(_, place)| place.as_str()).collect();
        if of_it.len() > allowed {
            wrong.push(format!(
                "{krate}: {} SAFETY comments in safe functions rest on the caller's word, of {allowed}:",
                of_it.len()
            ));
            wrong.extend(of_it.iter().map(|place| format!("  {place}")));
        } else if of_it.len() < allowed {
            wrong.push(format!("{krate}: lower its number in ci/src/lint/promises.rs to {}", of_it.len()));
        }
    }
    found(wrong)
}

/// Where such comments stand in one file of a crate's library or program: tests and examples have callers
/// that are seen.
fn places_in(source: &Source) -> Vec<String> {
    let functions = functions_of(&source.text);
    let mut places = Vec::new();
    let mut lines = source.text.lines().enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        let Some(start) = line.trim_start().strip_prefix("// SAFETY") else { continue };
        let mut comment = start.to_lowercase();
        while let Some((_, more)) = lines.next_if(|(_, line)| line.trim_start().starts_with("//")) {
            comment.push(' ');
            comment.push_str(more.trim_start().trim_start_matches('/').trim());
        }
        let comment = comment.to_lowercase();
        // The innermost function is the one that begins last.
        let function = functions.iter().rfind(|function| function.contains(at + 1));
        if let Some(function) = function.filter(|function| !function.is_unsafe)
            && WORDS.iter().any(|words| comment.contains(words))
        {
            places.push(format!("{}:{}: in {}", source.path, at + 1, function.name));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> [Source; 1] {
        [Source { path: "probe-core/src/a.rs".to_owned(), text: text.to_owned() }]
    }

    #[test]
    fn a_promise_of_the_caller_in_a_safe_function_is_found() {
        let wrong = source(
            "fn a() {\n    // SAFETY: both are words; the\n    // caller has seen it.\n    unsafe { b() }\n}\n",
        );
        let said = check_with(&wrong, &[]).expect_err("it is found");
        assert!(said.contains("probe-core/src/a.rs:2: in a"), "{said}");
        assert_eq!(check_with(&wrong, &[("probe-core", 1)]), Ok(()));
        let said = check_with(&wrong, &[("probe-core", 2)]).expect_err("the number is too high");
        assert!(said.contains("to 1"), "{said}");
    }

    #[test]
    fn an_unsafe_function_has_a_caller_who_promises() {
        let text = "unsafe fn a() {\n    // SAFETY: the caller has the lock.\n    unsafe { b() }\n}\n";
        assert_eq!(check_with(&source(text), &[]), Ok(()));
        let text =
            "fn a() {\n    // SAFETY: `Site::new` obliges its caller to keep it.\n    unsafe { b() }\n}\n";
        assert_eq!(check_with(&source(text), &[]), Ok(()));
    }
}
