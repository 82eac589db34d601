//! Programs of other architectures, for the tests of `probe trace`: Debian's busybox, unpacked into the target folder.
//!
//! They are not installed: the machine's own package list stays as it is. apt gets lists and a cache of its own, below
//! `target/ci`, and its usual sources and keys.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The names under which busybox is called.
const APPLETS: &[&str] =
    &["cat", "echo", "env", "gzip", "head", "ls", "seq", "sh", "sleep", "sort", "touch", "true", "wc"];

/// Where the programs of Debian's `architecture` are, from the workspace's root on.
pub(crate) fn folder(architecture: &str) -> PathBuf {
    Path::new("target/ci/userland").join(architecture).join("bin")
}

/// The architecture that `package` (`busybox:arm64`) names, if it is one of those that are unpacked.
pub(crate) fn architecture(package: &'static str) -> Option<&'static str> {
    package.split_once(':').map(|(_, architecture)| architecture)
}

/// Fetches `package` (`busybox:arm64`) and unpacks it below `root`.
///
/// # Errors
/// A sentence: apt or dpkg is not here, or has failed.
pub(crate) fn unpack(root: &Path, package: &str) -> Result<(), String> {
    let Some((name, architecture)) = package.split_once(':') else {
        return Err(format!("{package} names no architecture"));
    };
    let work = root.join("target/ci/apt").join(architecture);
    for folder in ["state/lists/partial", "cache/archives/partial", "unpacked"] {
        std::fs::create_dir_all(work.join(folder)).map_err(|error| format!("{}: {error}", work.display()))?;
    }
    let status = work.join("state/status");
    std::fs::write(&status, "").map_err(|error| format!("{}: {error}", status.display()))?;
    apt(&work, architecture, &["update"])?;
    apt(&work, architecture, &["download", name])?;
    let package = the_package(&work, name)?;
    run(Command::new("dpkg").arg("-x").arg(&package).arg(work.join("unpacked")))?;
    let _ = std::fs::remove_file(&package);
    install(&work.join("unpacked/bin").join(name), &root.join(folder(architecture)))
}

/// Puts the program and its other names into `bin`; the program itself last, as it says that all is there.
fn install(program: &Path, bin: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", bin.display());
    std::fs::create_dir_all(bin).map_err(failed)?;
    let name = program.file_name().unwrap_or_default();
    for applet in APPLETS {
        let link = bin.join(applet);
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(name, &link).map_err(failed)?;
        }
    }
    std::fs::copy(program, bin.join("unfinished")).map_err(failed)?;
    std::fs::rename(bin.join("unfinished"), bin.join(name)).map_err(failed)
}

/// The file that apt has downloaded.
fn the_package(work: &Path, name: &str) -> Result<PathBuf, String> {
    let files = std::fs::read_dir(work).map_err(|error| format!("{}: {error}", work.display()))?;
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
    };
    let mut found = files.flatten().map(|entry| entry.path());
    found.find(is_it).ok_or_else(|| format!("apt has not left a package {name} in {}", work.display()))
}

/// apt-get for one architecture, with its own state.
fn apt(work: &Path, architecture: &str, words: &[&str]) -> Result<(), String> {
    let state = work.join("state");
    let options = [
        format!("Dir::State={}", state.display()),
        format!("Dir::State::status={}", state.join("status").display()),
        format!("Dir::Cache={}", work.join("cache").display()),
        format!("APT::Architecture={architecture}"),
        format!("APT::Architectures={architecture}"),
        "Acquire::Languages=none".to_owned(),
    ];
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(options.iter().flat_map(|option| ["-o", option])).args(words).current_dir(work);
    println!("  apt-get {} ({architecture}, below target/ci/apt)", words.join(" "));
    match run(&mut command) {
        // One source of many may not have this architecture; what counts is whether the download finds the package.
        Err(_) if words == ["update"] => Ok(()),
        result => result,
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_tells_what_is_unpacked_from_what_is_installed() {
        assert_eq!(architecture("busybox:arm64"), Some("arm64"));
        assert_eq!(architecture("qemu-user"), None);
        assert!(unpack(Path::new("/nonexistent"), "busybox").is_err());
    }
}
