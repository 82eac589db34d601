//! The repository's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root: the folder above this package's.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is in a folder of the workspace")
        .to_owned()
}

/// All Rust files below `folder`, sorted.
pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files(folder, &["rs"])
}

/// All files below `folder` whose names end so, sorted.
pub(crate) fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|has| extensions.iter().any(|wanted| has == *wanted)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// The files that git knows of and that are there, from the root.
///
/// # Errors
/// A sentence: git cannot be asked.
pub(crate) fn tracked(root: &Path) -> Result<Vec<String>, String> {
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output();
    let list = list.map_err(|error| format!("git ls-files: {error}"))?;
    let names = String::from_utf8_lossy(&list.stdout);
    let there = names.split('\0').filter(|name| !name.is_empty() && root.join(name).is_file());
    Ok(there.map(str::to_owned).collect())
}

/// The text of a file.
///
/// # Errors
/// A sentence with its path.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// How a file is named to people: from the root.
pub(crate) fn shown(root: &Path, file: &Path) -> String {
    file.strip_prefix(root).unwrap_or(file).display().to_string()
}

/// What was found wrong, a line each; nothing wrong is a success.
pub(crate) fn found(wrong: Vec<String>) -> Result<(), String> {
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}
