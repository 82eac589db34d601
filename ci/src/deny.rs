//! What the workspace depends on: licences that the crates may be passed on under, from the registry, each
//! pinned.

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

/// Of weaker kinds, for programs that are not part of what is vendored or linked: cbindgen makes a header, in
/// a test.
const TOOLS: [(&str, &str); 1] = [("cbindgen", "MPL-2.0")];

/// Linked into the command `probe`, unchanged: whoever passes on that program says where their sources are.
const COMMAND: [(&str, &str); 1] = [("inferno", "CDDL-1.0")];

/// Every dependency has an allowed licence and comes from the registry.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    let metadata = crate::metadata::run(root, &["--locked"])?;
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let (name, licence) = (text("name"), text("license"));
        if !is_allowed(licence) && !TOOLS.contains(&(name, licence)) && !COMMAND.contains(&(name, licence)) {
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

/// Whether an SPDX expression leaves a choice of allowed licences.
fn is_allowed(expression: &str) -> bool {
    // `MIT/Apache-2.0` is the old way of writing OR.
    let parsed = spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX);
    parsed.is_ok_and(|parsed| parsed.evaluate(|licence| ALLOWED.contains(&&*licence.to_string())))
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
