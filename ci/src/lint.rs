//! The rules of the house that a machine can check: `cargo ci lint`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::matrix::{BACKENDS, Mode, TARGETS, Target, backends};
use crate::step::Step;
use crate::tree::{found, read, rust_files, shown, tracked};

mod architectures;
mod columns;
mod floors;
mod functions;
mod promises;
mod runs_on;
mod sizes;

/// The files of a backend, in reading order: who knows one backend knows all.
const BACKEND_FILES: [&str; 9] =
    ["lib.rs", "regs.rs", "insn.rs", "decode.rs", "simulate.rs", "slot.rs", "call.rs", "patch.rs", "asm.rs"];

/// Files that a backend may have beside them: not every machine has debug registers for data.
const OPTIONAL_BACKEND_FILES: [&str; 1] = ["watch.rs"];

/// What is checked in a moment: the style of the text and of the tree.
pub(crate) fn quick_steps() -> Vec<Step> {
    vec![
        Step::run("formatting", &["cargo", "fmt", "--all", "--check"]),
        Step::run("formatting (kernels)", &["cargo", "fmt", "--all", "--check"]).within(crate::job::SYSTEM),
        Step::check("formatting (files of one architecture)", files_of_architectures_are_formatted),
        Step::check("generated files", crate::generate::check),
        Step::check("no architecture in the core", core_is_neutral),
        Step::check("one list of architectures", architectures::check),
        Step::check("same files in all backends", backends_look_alike),
        Step::check("columns of comments", columns::check),
        Step::check("lengths of functions and files", |root| sizes::check(&sources(root)?)),
        Step::check("floors of the core, no circles of files", |root| floors::check(&sources(root)?)),
        Step::check("promises in SAFETY comments", |root| promises::check(&sources(root)?)),
        Step::check("places of the mutants", crate::mutants::check),
        Step::check("links of the documents", crate::documents::links_lead_somewhere),
        Step::check("tests that documents name", crate::documents::named_tests_exist),
        Step::check("where tests run", |root| runs_on::check(root, &sources(root)?)),
        Step::check("files that ARCHITECTURE.md names", crate::documents::architecture_names_every_file),
        Step::check("spelling", crate::documents::words_are_spelt),
        Step::check("licences and sources of dependencies", crate::deny::check),
        Step::check("shell scripts parse", shell_scripts_parse),
    ]
}

/// What needs no other target: a moment's checks, clippy and the documentation.
pub(crate) fn native_steps(root: &Path) -> Vec<Step> {
    let mut steps = quick_steps();
    for target in TARGETS.iter().filter(|target| target.is_native()) {
        steps.extend(clippy(root, target));
    }
    let warnings = ("RUSTDOCFLAGS", "-D warnings");
    let agent = Step::run("rustdoc (agent)", &["cargo", "doc", "--no-deps", "--document-private-items"]);
    steps.push(agent.args(AGENT).env(warnings.0, warnings.1));
    steps.push(
        Step::run(
            "rustdoc",
            &["cargo", "doc", "--keep-going", "--workspace", "--no-deps", "--document-private-items"],
        )
        .env(warnings.0, warnings.1),
    );
    steps
}

/// All lints.
pub(crate) fn steps(root: &Path) -> Vec<Step> {
    let mut steps = native_steps(root);
    for target in TARGETS.iter().filter(|target| !target.is_native()) {
        steps.extend(clippy(root, target));
    }
    steps.push(Step::check("hit path without panics", crate::hitpath::check));
    steps.push(Step::check("packages build by themselves", packages_build_alone));
    steps
}

/// The agent of the command `probe`.
const AGENT: [&str; 5] = ["--package", "probe-trace", "--no-default-features", "--features", "agent"];

/// Clippy for one target: for a process the whole workspace; for a kernel's target, the test kernel and the C
/// library.
fn clippy(root: &Path, target: &Target) -> Vec<Step> {
    let name = |what: &str| format!("clippy {}{what}", target.triple);
    let deny = ["--", "-D", "warnings"];
    let clippy = ["cargo", "clippy", "--keep-going", "--target", target.triple];
    match target.mode {
        Mode::User => {
            // loom has no 64-bit atomics on i686; the models run natively alone.
            let models: &[&str] = if target.is_native() { &[] } else { &["--exclude", "probe-tests-models"] };
            let step = Step::run(name(""), &clippy).args(["--all-targets"]);
            let step = match target.packages {
                [] => step.args(["--workspace"]),
                packages => step.args(packages.iter().flat_map(|package| ["--package", package])),
            };
            let models = if target.packages.is_empty() { models } else { &[] };
            let mut steps = vec![step.args(models.iter().copied()).args(deny).env("PROBE_CHECK_ONLY", "1")];
            // A feature that the workspace's build leaves out. A static C library loads no agent; natively is
            // enough.
            if target.is_native() && target.triple.contains("gnu") {
                let step = Step::run(name(" (agent)"), &clippy).args(AGENT).args(["--lib"]).args(deny);
                steps.push(step.env("PROBE_CHECK_ONLY", "1"));
            }
            steps
        }
        Mode::System if crate::job::has_kernel(root, target) => vec![
            Step::run(name(" (kernel)"), &clippy).args(deny).within(crate::job::SYSTEM),
            Step::run(name(" (C library)"), &clippy)
                .args(["--package", "probe-c", "--lib", "--no-default-features", "--profile", "kernel"])
                .args(deny),
        ],
        Mode::System | Mode::Build => Vec::new(),
    }
}

/// A Rust file that git knows of.
struct Source {
    /// From the root.
    path: String,
    text: String,
}

fn sources(root: &Path) -> Result<Vec<Source>, String> {
    let files = tracked(root)?.into_iter().filter(|path| path.ends_with(".rs"));
    files.map(|path| Ok(Source { text: read(&root.join(&path))?, path })).collect()
}

/// A file's text up to its unit tests, which stand last.
fn without_unit_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |tests| &text[..tests])
}

/// STYLE: the neutral core never names an architecture.
fn core_is_neutral(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    for file in rust_files(&root.join("probe-core/src")) {
        for (number, line) in read(&file)?.lines().enumerate() {
            if line.contains("target_arch") {
                wrong.push(format!(
                    "{}:{}: names an architecture: {}",
                    shown(root, &file),
                    number + 1,
                    line.trim()
                ));
            }
        }
    }
    found(wrong)
}

/// Every backend has the same files; what only one has stands in a folder beside the file that it belongs to.
/// Only `asm` is gated by the architecture, and only where it is declared.
fn backends_look_alike(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    let mut extra: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    let backends = backends();
    for &backend in &backends {
        let sources = root.join(backend).join("src");
        let library = fs::read_to_string(sources.join("lib.rs")).unwrap_or_default();
        for name in BACKEND_FILES {
            let folder = sources.join(name.trim_end_matches(".rs"));
            if !sources.join(name).exists() && !folder.join("mod.rs").exists() {
                wrong.push(format!("{backend}/src has no {name}"));
            }
        }
        for file in rust_files(&sources) {
            let name = file.strip_prefix(&sources).expect("it was found there").display().to_string();
            let top = name.split('/').next().unwrap_or_default();
            let module = top.trim_end_matches(".rs");
            let mut known = BACKEND_FILES.iter().chain(&OPTIONAL_BACKEND_FILES);
            let is_for_tests = library.contains(&format!("#[cfg(test)]\nmod {module};"));
            if !is_for_tests && !known.any(|known| known.trim_end_matches(".rs") == module) {
                extra.entry(module.to_owned()).or_default().insert(backend);
            }
            if top != "lib.rs" && !top.starts_with("asm") && read(&file)?.contains("target_arch") {
                wrong.push(format!(
                    "{}: only lib.rs and asm may ask for the architecture",
                    shown(root, &file)
                ));
            }
        }
    }
    for (name, owners) in extra.iter().filter(|(_, owners)| owners.len() < backends.len()) {
        let owners: Vec<_> = owners.iter().copied().collect();
        wrong.push(format!(
            "{name} is only in {}: same files in all backends, or a folder of one of the nine",
            owners.join(", ")
        ));
    }
    found(wrong)
}

/// `cargo fmt` does not see what `native_module!` names.
fn files_of_architectures_are_formatted(root: &Path) -> Result<(), String> {
    let is_one = |path: &&String| {
        let stem = path.strip_suffix(".rs").and_then(|path| path.rsplit('/').next());
        stem.is_some_and(|stem| stem == "x86" || BACKENDS.iter().any(|backend| backend.name() == stem))
    };
    let files = tracked(root)?;
    let output = crate::command::clean(Command::new("rustfmt"))
        .args(["--check", "--edition", "2024"])
        .args(files.iter().filter(is_one))
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run rustfmt: {error}"))?;
    let said = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&said).into_owned()) }
}

fn shell_scripts_parse(root: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    for script in [".ci/run", "ci/qemu", "ci/ld/driver", "tests/system/run"] {
        let file = root.join(script);
        if !file.exists() {
            continue;
        }
        let shell = if read(&file)?.starts_with("#!/usr/bin/env bash") { "bash" } else { "sh" };
        let output = Command::new(shell)
            .arg("-n")
            .arg(&file)
            .output()
            .map_err(|error| format!("cannot run {shell}: {error}"))?;
        if !output.status.success() {
            wrong.push(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
    }
    found(wrong)
}

/// Packs every library as the registry would get it and builds that, outside of the workspace.
fn packages_build_alone(root: &Path) -> Result<(), String> {
    let target = crate::release::fresh_target(root)?;
    let mut command = crate::command::clean(Command::new("cargo"));
    command.args(["package", "--quiet", "--allow-dirty", "--workspace"]).current_dir(root);
    command.arg("--target-dir").arg(target);
    for package in crate::metadata::packages(root)?.iter().filter(|package| !package.is_published) {
        command.args(["--exclude", &package.name]);
    }
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A tree with these files, removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("probe-ci-lint-{}-{name}", std::process::id()));
            for (path, text) in files {
                let file = root.join(path);
                fs::create_dir_all(file.parent().expect("it has a folder")).expect("the folder can be made");
                fs::write(file, text).expect("the file can be written");
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_architecture_in_the_core_is_found() {
        let tree =
            Tree::new("core", &[("probe-core/src/hit/step.rs", "//\n#[cfg(target_arch = \"x86_64\")]\n")]);
        let wrong = core_is_neutral(&tree.0).expect_err("it is found");
        assert!(wrong.starts_with("probe-core/src/hit/step.rs:2:"), "{wrong}");
    }

    #[test]
    fn a_missing_and_an_extra_file_are_found() {
        let mut files = Vec::new();
        for backend in backends() {
            files.extend(BACKEND_FILES.iter().map(|name| format!("{backend}/src/{name}")));
        }
        files.push("arch-ppc64/src/decode/prefixed.rs".to_owned());
        files.push("arch-ppc64/src/vectors.rs".to_owned());
        let text =
            |file: &str| if file == "arch-ppc64/src/lib.rs" { "#[cfg(test)]\nmod vectors;\n" } else { "" };
        let all: Vec<_> = files.iter().map(|file| (file.as_str(), text(file))).collect();
        assert_eq!(backends_look_alike(&Tree::new("alike", &all).0), Ok(()));

        let mut wrong: Vec<_> =
            all.iter().copied().filter(|(file, _)| *file != "arch-i386/src/slot.rs").collect();
        wrong.push(("arch-ppc64/src/toc.rs", ""));
        wrong.push(("arch-aarch64/src/call.rs", "#[cfg(target_arch = \"aarch64\")]"));
        let said = backends_look_alike(&Tree::new("unlike", &wrong).0).expect_err("it is found");
        assert!(said.contains("arch-i386/src has no slot.rs"), "{said}");
        assert!(said.contains("toc is only in arch-ppc64"), "{said}");
        assert!(said.contains("arch-aarch64/src/call.rs: only lib.rs and asm"), "{said}");
    }
}
