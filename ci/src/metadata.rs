//! Cargo's knowledge of the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::clean;

/// One package of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    /// Its name in the registry.
    pub(crate) name: String,
    /// Its manifest.
    pub(crate) manifest: PathBuf,
    /// The oldest Rust it promises to build with.
    pub(crate) rust_version: String,
    /// Whether it may be published: a library for others.
    pub(crate) is_published: bool,
    /// What it needs to be built, by name; not what its tests need.
    pub(crate) needs: Vec<String>,
    /// Its benchmark programs.
    pub(crate) benches: Vec<String>,
}

/// The packages of the workspace at `root`.
///
/// # Errors
/// What cargo said.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, String> {
    let metadata = run(root, &["--no-deps"])?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    Ok(packages.iter().map(package).collect())
}

/// `cargo metadata` with `more` arguments, as JSON.
///
/// # Errors
/// What cargo said.
pub(crate) fn run(root: &Path, more: &[&str]) -> Result<Value, String> {
    let output = clean(Command::new("cargo"))
        .args(["metadata", "--format-version", "1"])
        .args(more)
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata is not JSON: {error}"))
}

fn package(value: &Value) -> Package {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let targets = value["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_bench = |target: &&Value| {
        target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bench"))
    };
    let dependencies = value["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name_of = |target: &Value| target["name"].as_str().unwrap_or_default().to_owned();
    Package {
        name: text("name"),
        manifest: PathBuf::from(text("manifest_path")),
        rust_version: text("rust_version"),
        is_published: value["publish"].is_null(),
        needs: dependencies.iter().filter(|need| need["kind"] != "dev").map(name_of).collect(),
        benches: targets.iter().filter(is_bench).map(name_of).collect(),
    }
}
