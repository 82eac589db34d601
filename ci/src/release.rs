//! `cargo ci release`: the version of all crates at once, the changelog, a commit and a tag. Publishing
//! itself is one command, which is printed: it cannot be undone, so that a person types it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::clean;
use crate::setup::Wanted;
use crate::step::Step;
use crate::{manifest, metadata};

/// What stands over the changes since the last release.
const UNRELEASED: &str = "## Unreleased\n";

/// Says what a release would do, packs every crate that is published and builds what was packed, outside of
/// the workspace, in the order in which they would be published.
///
/// # Errors
/// A sentence, or cargo's words.
pub(crate) fn dry_run(root: &Path, version: Option<&str>) -> Result<(), String> {
    let (cargo_toml, changelog) = (read(root, "Cargo.toml")?, read(root, "CHANGELOG.md")?);
    let present = manifest::version(&cargo_toml)?;
    let version = checked(version.unwrap_or(&present))?;
    manifest::with_version(&cargo_toml, version)?;
    released(&changelog, version, &today()?)?;
    println!("version {present} becomes {version}; tag v{version}; to be published, in this order:");
    for name in order(root)? {
        println!("  {name}");
    }
    let target = fresh_target(root)?;
    let mut words = publish(root, true)?;
    words.extend(["--target-dir".to_owned(), target.display().to_string()]);
    cargo(root, &words)?;
    println!("every crate is packed and builds by itself");
    Ok(())
}

/// Writes the version and the changelog, commits and tags.
///
/// # Errors
/// A sentence: the work tree has changes, there is nothing to release, or git's or cargo's words.
pub(crate) fn release(root: &Path, version: Option<&str>) -> Result<(), String> {
    let version = checked(version.ok_or("say which version: cargo ci release VERSION")?)?;
    if !git(root, &["status", "--porcelain"])?.is_empty() {
        return Err("the work tree has changes: commit them first".to_owned());
    }
    let (cargo_toml, changelog) = (read(root, "Cargo.toml")?, read(root, "CHANGELOG.md")?);
    let changelog = released(&changelog, version, &today()?)?;
    write(root, "Cargo.toml", &manifest::with_version(&cargo_toml, version)?)?;
    write(root, "CHANGELOG.md", &changelog)?;
    // The lock files name the crates' own versions.
    cargo(root, &["update".to_owned(), "--workspace".to_owned()])?;
    cargo(&root.join(crate::job::SYSTEM), &["update".to_owned(), "--workspace".to_owned()])?;
    git(root, &["commit", "--quiet", "--all", "--message", &format!("release {version}")])?;
    git(root, &["tag", "--annotate", &format!("v{version}"), "--message", &format!("version {version}")])?;
    println!("committed and tagged v{version}. To publish it:\n  git push --follow-tags");
    println!("  cargo {}", publish(root, false)?.join(" "));
    Ok(())
}

/// The tag of the last release, if there is one.
fn last_release(root: &Path) -> Result<Option<String>, String> {
    let tags = git(root, &["tag", "--list", "v*", "--sort=-version:refname", "--merged"])?;
    Ok(tags.lines().next().map(str::to_owned))
}

/// What [`compatibility_step`] needs on the machine: nothing as long as there is nothing to compare with.
pub(crate) fn compatibility_needs() -> Wanted {
    let mut wanted = Wanted::default();
    if !matches!(last_release(&crate::tree::root()), Ok(None)) {
        wanted.tool("cargo-semver-checks");
    }
    wanted
}

/// What compares the public items of all published crates with those of the last release.
pub(crate) fn compatibility_step(root: &Path) -> Step {
    let name = "public items since the last release";
    let tag = match last_release(root) {
        Ok(Some(tag)) => tag,
        Ok(None) => return Step::skip(name, "no release is tagged: nothing to compare with"),
        Err(error) => return Step::fail(name, error),
    };
    let packages = match metadata::packages(root) {
        Ok(packages) => packages,
        Err(error) => return Step::fail(name, error),
    };
    // A crate that is new since then has nothing to keep.
    let is_old = |package: &metadata::Package| {
        let path = package.manifest.strip_prefix(root).unwrap_or(&package.manifest);
        git(root, &["cat-file", "-e", &format!("{tag}:{}", path.display())]).is_ok()
    };
    let left_out = packages.iter().filter(|package| !package.is_published || !is_old(package));
    let compare = ["cargo", "semver-checks", "--workspace", "--baseline-rev", &tag];
    left_out.fold(Step::run(name, &compare), |step, package| step.args(["--exclude", &package.name]))
}

/// A folder for what cargo builds of packed crates, without anything of the last time: cargo knows them by
/// name and version alone, and would build on what it unpacked and compiled then. Its name is what a
/// package's build script looks for.
///
/// # Errors
/// A folder cannot be removed, or what cargo said.
pub(crate) fn fresh_target(root: &Path) -> Result<PathBuf, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.ok_or("there is no home folder")?;
    let version = manifest::version(&read(root, "Cargo.toml")?)?;
    let packages = metadata::packages(root)?;
    // A registry that is a folder has no name before the hyphen.
    let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    for registry in registries.filter(|entry| entry.file_name().to_string_lossy().starts_with('-')) {
        for package in &packages {
            remove(&registry.path().join(format!("{}-{version}", package.name)))?;
        }
    }
    let target = root.join("target/ci/target");
    remove(&target)?;
    Ok(target)
}

fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The arguments with which cargo publishes everything, each crate after those that it needs.
fn publish(root: &Path, is_dry: bool) -> Result<Vec<String>, String> {
    let mut words = vec!["publish".to_owned(), "--workspace".to_owned()];
    if is_dry {
        // What is not committed is packed, too: this may be run while working.
        words.extend(["--dry-run".to_owned(), "--allow-dirty".to_owned()]);
    }
    for package in metadata::packages(root)?.into_iter().filter(|package| !package.is_published) {
        words.extend(["--exclude".to_owned(), package.name]);
    }
    Ok(words)
}

/// The published packages, each after those of them that it needs.
fn order(root: &Path) -> Result<Vec<String>, String> {
    let published: Vec<_> =
        metadata::packages(root)?.into_iter().filter(|package| package.is_published).collect();
    let mut order: Vec<String> = Vec::new();
    while order.len() < published.len() {
        let is_ready = |package: &&metadata::Package| {
            !order.contains(&package.name)
                && package
                    .needs
                    .iter()
                    .all(|need| order.contains(need) || published.iter().all(|other| other.name != *need))
        };
        let next = published.iter().find(is_ready).ok_or("the crates need each other in a circle")?;
        order.push(next.name.clone());
    }
    Ok(order)
}

/// # Errors
/// It is not three numbers with dots, and perhaps a hyphen and more.
fn checked(version: &str) -> Result<&str, String> {
    let numbers: Vec<_> = version.split('-').next().unwrap_or(version).split('.').collect();
    if numbers.len() != 3 || numbers.iter().any(|number| number.parse::<u64>().is_err()) {
        return Err(format!("{version} is no version: three numbers with dots"));
    }
    Ok(version)
}

/// The changelog with the unreleased changes under a version.
fn released(changelog: &str, version: &str, date: &str) -> Result<String, String> {
    let (before, after) = changelog.split_once(UNRELEASED).ok_or("CHANGELOG.md has no part `Unreleased`")?;
    let changes = after.split("\n## ").next().unwrap_or_default();
    if changes.trim().is_empty() {
        return Err("CHANGELOG.md says that nothing has changed".to_owned());
    }
    Ok(format!("{before}{UNRELEASED}\n## {version} - {date}\n{after}"))
}

fn today() -> Result<String, String> {
    let output = Command::new("date").args(["-u", "+%F"]).output();
    let output = output.map_err(|error| format!("cannot run date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn cargo(folder: &Path, words: &[String]) -> Result<(), String> {
    let status = clean(Command::new("cargo")).args(words).current_dir(folder).status();
    let status = status.map_err(|error| format!("cannot run cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo {}: {status}", words.join(" "))) }
}

fn git(root: &Path, words: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(words).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot run git: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("git {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }
}

fn read(root: &Path, name: &str) -> Result<String, String> {
    fs::read_to_string(root.join(name)).map_err(|error| format!("cannot read {name}: {error}"))
}

fn write(root: &Path, name: &str, text: &str) -> Result<(), String> {
    fs::write(root.join(name), text).map_err(|error| format!("cannot write {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_three_numbers() {
        assert_eq!((checked("0.2.0"), checked("1.0.0-rc.1").is_ok()), (Ok("0.2.0"), true));
        assert!(["two", "1.2", "1.2.x", ""].iter().all(|wrong| checked(wrong).is_err()));
    }

    #[test]
    fn the_changelog_gets_a_heading_and_must_say_something() {
        let text = "# Changelog\n\n## Unreleased\n\n- a change\n\n## 0.1.0 - 2026-01-01\n";
        let found = released(text, "0.2.0", "2026-02-03").expect("there is a change");
        assert!(
            found.contains("## Unreleased\n\n## 0.2.0 - 2026-02-03\n\n- a change\n\n## 0.1.0"),
            "{found}"
        );
        assert!(released("## Unreleased\n\n## 0.1.0\n- old\n", "0.2.0", "").is_err());
        assert!(released("# Changelog\n", "0.2.0", "").is_err());
    }

    #[test]
    fn crates_come_after_what_they_need() {
        let order = order(&crate::tree::root()).expect("there is an order");
        let place = |name: &str| order.iter().position(|other| other == name).expect("it is published");
        assert!(place("probe-core") < place("probe-x86-decode"));
        assert!(place("probe-x86-decode") < place("probe-arch-x86_64"));
        assert!(place("probe-host-linux") < place("probe-c"));
        assert!(!order.contains(&"probe-ci".to_owned()));
    }
}
