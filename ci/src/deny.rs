//! What the workspace depends on: licences that the crates may be passed on under, from the registry, each pinned.

use std::path::Path;

use serde_json::Value;

use crate::tree::found;

/// Licences without obligations beyond keeping their text.
const ALLOWED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Of weaker kinds, for programs that are not part of what is vendored or linked: cbindgen makes a header, in a test.
const TOOLS: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

/// Every dependency has an allowed licence and comes from the registry.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let metadata = crate::metadata::run(root, &["--locked"])?;
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        if !is_allowed(licence) && !TOOLS.contains(&(name, licence)) {
            wrong.push(format!("{name} {}: licence {licence:?} is not in ci/src/deny.rs", text("version")));
        }
        let is_ours = package["source"].is_null();
        if !is_ours && !text("source").starts_with("registry+") {
            wrong.push(format!("{name}: comes from {}, not from the registry", text("source")));
        }
        if is_ours && package["dependencies"].as_array().into_iter().flatten().any(is_unpinned) {
            wrong.push(format!("{name}: depends on any version (`*`) of something"));
        }
    }
    found(wrong)
}

fn is_unpinned(dependency: &Value) -> bool {
    dependency["req"] == "*" && dependency["source"].is_string()
}

/// Whether an SPDX expression leaves a choice of allowed licences. Without parentheses inside of parentheses, which nobody
/// writes.
fn is_allowed(expression: &str) -> bool {
    // The old way of writing OR.
    let expression = expression.replace('/', " OR ");
    let groups = expression.split(['(', ')']).map(str::trim).filter(|group| !group.is_empty());
    let groups: Vec<_> = groups.collect();
    // "(A OR B) AND C": what stands between parentheses begins or ends with AND.
    let is_group_allowed = |group: &str| {
        group.split(" OR ").any(|choice| {
            choice
                .split(" AND ")
                .map(|word| word.trim().trim_start_matches("AND ").trim_end_matches(" AND"))
                .all(|licence| licence.is_empty() || licence == "AND" || ALLOWED.contains(&licence.trim()))
        })
    };
    !groups.is_empty() && groups.into_iter().all(is_group_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_understood() {
        for allowed in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        for refused in ["", "GPL-2.0", "MIT AND GPL-3.0", "MPL-2.0", "(MIT OR Apache-2.0) AND GPL-2.0"] {
            assert!(!is_allowed(refused), "{refused}");
        }
    }

    #[test]
    fn everything_that_is_used_is_allowed() {
        check(&crate::tree::root()).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}
