//! `cargo ci vendor ARCH DIR`: what a kernel copies. The core, one backend, the crates that it needs, every
//! licence, in a small workspace that builds offline without this repository; and the list of what the kernel
//! then owes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::command::clean;
use crate::manifest::{without_others, without_tests, workspace_of};
use crate::matrix::{Mode, TARGETS, Target};
use crate::tree::rust_files;

/// What is copied beside the core, the backend and the kit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// The conformance suite.
    With,
    /// Nothing.
    Without,
}

/// The architectures that can be vendored, as the user types them.
pub(crate) fn architectures() -> BTreeSet<&'static str> {
    TARGETS.iter().filter_map(|target| target.backend?.strip_prefix("arch-")).collect()
}

/// The targets without an operating system for which a backend is built.
fn kernel_targets(architecture: &str) -> impl Iterator<Item = &'static Target> {
    let backend = format!("arch-{architecture}");
    TARGETS.iter().filter(move |target| target.mode == Mode::System && target.backend == Some(&backend))
}

/// Makes the folder, builds it for every kernel target of the architecture, and answers the report.
///
/// # Errors
/// A sentence: the folder is in use, a file cannot be copied, or what was copied does not build (with cargo's
/// words).
pub(crate) fn vendor(root: &Path, architecture: &str, folder: &Path, suite: Suite) -> Result<String, String> {
    if fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("{} is not empty", folder.display()));
    }
    let ours = our_packages(root, architecture, suite)?;
    for package in ours.values() {
        copy_package(root, package, folder, &ours)?;
    }
    let manifest = read(&root.join("Cargo.toml"))?;
    write(&folder.join("Cargo.toml"), &workspace_of(&manifest, &ours)?)?;
    for name in ["Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE", "rustfmt.toml"] {
        copy(&root.join(name), &folder.join(name))?;
    }
    // The lock file as it is pins the same versions; cargo only drops from it what is not used here.
    let config = cargo(folder, &["vendor", "--offline", "--versioned-dirs", "vendor"])
        .or_else(|_| cargo(folder, &["vendor", "--versioned-dirs", "vendor"]))?;
    let third_parties = third_parties(folder)?;
    if !third_parties.is_empty() {
        write(&folder.join(".cargo/config.toml"), &config)?;
    }
    let mut built = Vec::new();
    for target in kernel_targets(architecture) {
        // Not into the folder: what is there is to be committed.
        let output = root.join("target/ci/vendor-build").display().to_string();
        cargo(
            folder,
            &[
                "build",
                "--release",
                "--offline",
                "--locked",
                "--target",
                target.triple,
                "--target-dir",
                &output,
            ],
        )?;
        built.push(target.triple);
    }
    let listed = read(&root.join("SECURITY.md"))?;
    let rows = third_parties.iter().map(ThirdParty::row);
    let unlisted: Vec<_> = rows.filter(|row| !listed.lines().any(|line| line == row)).collect();
    if !unlisted.is_empty() {
        return Err(format!("SECURITY.md does not list, or not as it is:\n{}", unlisted.join("\n")));
    }
    report(folder, &ours, &third_parties, &built)
}

/// The workspace's packages that a kernel takes, and what they need, by name, each with its folder relative
/// to the root. Of the backends only the one.
fn our_packages(root: &Path, architecture: &str, suite: Suite) -> Result<BTreeMap<String, PathBuf>, String> {
    let metadata = crate::metadata::run(root, &["--offline"]).or_else(|_| crate::metadata::run(root, &[]))?;
    let members: BTreeSet<&str> =
        metadata["workspace_members"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let backend = format!("probe-arch-{architecture}");
    let mut queue = VecDeque::new();
    let suite = (suite == Suite::With).then_some("probe-conformance");
    for name in [backend.as_str(), "probe-kernel-kit"].into_iter().chain(suite) {
        let first = packages.iter().find(|(_, package)| package["name"] == *name).map(|(&id, _)| id);
        queue.push_back(first.ok_or_else(|| format!("the workspace has no package {name}"))?);
    }
    let mut ours = BTreeMap::new();
    while let Some(id) = queue.pop_front() {
        let Some(package) = packages.get(id).filter(|_| members.contains(id)) else { continue };
        let name = package["name"].as_str().unwrap_or_default();
        if name.starts_with("probe-arch-") && ![backend.as_str(), NATIVE_BACKEND].contains(&name) {
            continue;
        }
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
        let folder = folder.ok_or_else(|| format!("{} is not below the root", manifest.display()))?;
        if ours.insert(name.to_owned(), folder.to_owned()).is_some() {
            continue;
        }
        let dependencies = nodes.get(id).and_then(|node| node["deps"].as_array()).into_iter().flatten();
        for dependency in dependencies {
            let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            let is_for_use = kinds.into_iter().any(|kind| kind["kind"].is_null());
            if let Some(id) = dependency["pkg"].as_str().filter(|_| is_for_use) {
                queue.push_back(id);
            }
        }
    }
    Ok(ours)
}

/// What picks the backend, for the suite: it names all of them.
const NATIVE_BACKEND: &str = "probe-arch-native";

/// Copies a package's manifest, without what only its tests need and without ours that are not copied, its
/// sources and its README.
fn copy_package(
    root: &Path,
    package: &Path,
    folder: &Path,
    ours: &BTreeMap<String, PathBuf>,
) -> Result<(), String> {
    let (from, to) = (root.join(package), folder.join(package));
    let manifest = without_tests(&read(&from.join("Cargo.toml"))?)?;
    write(&to.join("Cargo.toml"), &without_others(&manifest, ours)?)?;
    for file in rust_files(&from.join("src")) {
        let name = file.strip_prefix(&from).map_err(|error| error.to_string())?;
        copy(&file, &to.join(name))?;
    }
    for name in ["README.md", "build.rs"] {
        if from.join(name).exists() {
            copy(&from.join(name), &to.join(name))?;
        }
    }
    Ok(())
}

/// A vendored package that is not ours.
struct ThirdParty {
    name: String,
    version: String,
    licence: String,
    size: Size,
}

impl ThirdParty {
    /// Its row in SECURITY.md.
    fn row(&self) -> String {
        let Size { code, uses_unsafe, .. } = self.size;
        format!("| {} | {} | {code} | {uses_unsafe} | {} |", self.name, self.version, self.licence)
    }
}

fn third_parties(folder: &Path) -> Result<Vec<ThirdParty>, String> {
    let metadata = crate::metadata::run(folder, &["--offline"])?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    Ok(packages
        .filter(|package| !package["source"].is_null())
        .map(|package| {
            let (name, version) = (text(&package["name"]), text(&package["version"]));
            let sources = folder.join("vendor").join(format!("{name}-{version}")).join("src");
            ThirdParty { licence: text(&package["license"]), size: size_of_sources(&sources), name, version }
        })
        .collect())
}

/// How much source there is, without tests.
#[derive(Clone, Copy, Default)]
struct Size {
    lines: usize,
    /// Lines that are neither empty nor comments.
    code: usize,
    /// Those of them with the word `unsafe`.
    uses_unsafe: usize,
    bytes: usize,
}

impl Size {
    fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.code += other.code;
        self.uses_unsafe += other.uses_unsafe;
        self.bytes += other.bytes;
    }

    fn kilobytes(self) -> usize {
        self.bytes.div_ceil(1000)
    }
}

/// The Rust files below `folder` without their tests.
fn size_of_sources(folder: &Path) -> Size {
    let mut sum = Size::default();
    for file in rust_files(folder) {
        let is_test = file.file_stem().is_some_and(|name| name == "tests")
            || file.components().any(|part| part.as_os_str() == "tests");
        let text = if is_test { String::new() } else { fs::read_to_string(&file).unwrap_or_default() };
        for line in text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")) {
            sum.bytes += line.len() + 1;
            sum.lines += 1;
            let line = line.trim();
            let is_code = !line.is_empty() && !line.starts_with("//");
            sum.code += usize::from(is_code);
            sum.uses_unsafe += usize::from(is_code && line.contains("unsafe"));
        }
    }
    sum
}

/// What we want to stay under, in lines of our code for one architecture: what somebody can still read.
/// Comments help him.
const GOAL_LINES: usize = 12_000;

fn report(
    folder: &Path,
    ours: &BTreeMap<String, PathBuf>,
    third_parties: &[ThirdParty],
    built: &[&str],
) -> Result<String, String> {
    let mut text = format!(
        "{} builds offline for {}\n\nours (MIT OR Apache-2.0), without tests:\n",
        folder.display(),
        built.join(", ")
    );
    let line = |text: &mut String, name: &str, size: Size, note: &str| {
        let Size { lines, code, uses_unsafe, .. } = size;
        let _ = writeln!(
            text,
            "  {name:24} {lines:>7} lines, {code:>6} of code, {uses_unsafe:>4} with unsafe, {:>5} kB{note}",
            size.kilobytes()
        );
    };
    let (mut sum, mut all) = (Size::default(), Size::default());
    for (name, package) in ours {
        let size = size_of_sources(&folder.join(package).join("src"));
        line(&mut text, name, size, "");
        sum.add(size);
    }
    let verdict = if sum.code <= GOAL_LINES { "within" } else { "OVER" };
    line(&mut text, "together", sum, &format!(" ({verdict} the goal of {GOAL_LINES} lines of code)"));
    all.add(sum);
    text.push_str("\nof others, in vendor/, each with its licence's text:\n");
    for party in third_parties {
        let name = format!("{} {}", party.name, party.version);
        line(&mut text, &name, party.size, &format!(", {}", party.licence));
        all.add(party.size);
    }
    if third_parties.is_empty() {
        text.push_str("  nothing\n");
    }
    let _ = writeln!(text, "\nall together: {} lines, {} kB", all.lines, all.kilobytes());
    text.push_str(
        "\nwhat the licences ask: keep LICENSE-MIT or LICENSE-APACHE with our sources, and the licence files in vendor/ with theirs\n",
    );
    text.push_str("\nwhat the kernel owes: an implementation of `Host` (probe-core/src/state/host.rs says for each what goes wrong without it)\n");
    for duty in duties(&read(&folder.join("probe-core/src/state/host.rs"))?) {
        let _ = writeln!(text, "  {duty}");
    }
    Ok(text)
}

/// The required items of the trait `Host`, each with the first sentence of its documentation.
fn duties(host: &str) -> Vec<String> {
    let mut duties = Vec::new();
    let mut doc = String::new();
    let lines = host.lines().skip_while(|line| !line.starts_with("pub unsafe trait Host")).skip(1);
    let mut lines = lines.take_while(|line| *line != "}");
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if let Some(words) = trimmed.strip_prefix("///") {
            doc.push_str(words);
            continue;
        }
        let is_item = line.starts_with("    ") && !line.starts_with("     ");
        let words = trimmed.strip_prefix("unsafe ").unwrap_or(trimmed);
        let name = ["fn ", "type ", "const "].iter().find_map(|kind| words.strip_prefix(kind));
        if let Some(name) = name.filter(|_| is_item) {
            let mut signature = trimmed.to_owned();
            while !signature.ends_with([';', '{', '}']) {
                let Some(more) = lines.next() else { break };
                signature.push_str(more.trim());
            }
            let name = name.split(['(', ':', '<']).next().unwrap_or(name);
            let first = doc.split(". ").next().unwrap_or_default().trim().trim_end_matches('.');
            if signature.ends_with(';') {
                duties.push(format!("{name:22} {first}"));
            }
        }
        if !trimmed.starts_with("#[") {
            doc.clear();
        }
    }
    duties
}

/// Runs cargo in `folder` and answers what it printed.
fn cargo(folder: &Path, words: &[&str]) -> Result<String, String> {
    let mut command = clean(Command::new("cargo"));
    let output = command.args(words).current_dir(folder).env_remove("CARGO_TARGET_DIR").output();
    let output = output.map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!(
        "in {}: cargo {}\n{}",
        folder.display(),
        words.join(" "),
        String::from_utf8_lossy(&output.stderr)
    ))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    let made = fs::create_dir_all(file.parent().unwrap_or(file)).and_then(|()| fs::write(file, text));
    made.map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// Copies a file with its time, by which cargo sees that nothing has changed since it built the same folder
/// before.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let copied = || {
        fs::create_dir_all(to.parent().unwrap_or(to))?;
        fs::copy(from, to)?;
        fs::File::options().append(true).open(to)?.set_modified(fs::metadata(from)?.modified()?)
    };
    copied().map_err(|error: std::io::Error| {
        format!("cannot copy {} to {}: {error}", from.display(), to.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duties_are_the_items_without_a_default() {
        let host = "/// The embedding program.\npub unsafe trait Host: Sync {\n    /// The architecture. More.\n    type Arch: NativeArch;\n\n    /// Reads\n    /// text.\n    ///\n    /// # Errors\n    fn read(\n        &self,\n        at: CodeAddr,\n    ) -> usize;\n\n    /// Optional.\n    fn relax(&self) {\n        spin();\n    }\n\n    /// Optional too.\n    fn pin(&self) {}\n\n    /// Writes.\n    #[must_use]\n    unsafe fn write(&self);\n}\nfn other();\n";
        let duties = duties(host);
        let names: Vec<_> = duties.iter().map(|duty| duty.split_whitespace().next().unwrap()).collect();
        assert_eq!(names, ["Arch", "read", "write"]);
        assert!(duties[0].ends_with("The architecture"), "{duties:?}");
    }

    #[test]
    fn every_architecture_has_a_kernel_target() {
        for architecture in architectures() {
            assert!(kernel_targets(architecture).next().is_some(), "{architecture}");
        }
    }
}
