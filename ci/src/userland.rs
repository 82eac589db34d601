//! Programs of another architecture, for the tests of `probe trace`: Debian's own, unpacked into the target
//! folder.
//!
//! They are not installed: the machine's own package list stays as it is. apt gets lists and a cache of its
//! own, below `target/ci`, and its usual sources and keys.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The names under which busybox is called.
const APPLETS: &[&str] =
    &["cat", "echo", "env", "gzip", "head", "ls", "seq", "sh", "sleep", "touch", "true", "wc"];

/// The programs that are called by their own names.
const PROGRAMS: &[&str] = &["busybox", "git", "sort", "python3"];

/// What the programs' dependencies need to have to be unpacked too: beginnings of their names. The rest, such
/// as perl for git, is for commands that no test runs; the C library is that of the cross compiler.
const NEEDED: &[&str] = &["libexpat", "libffi", "libpcre2-8", "libpython3", "libssl", "python3", "zlib1g"];

/// Where the programs of Debian's `architecture` are, from the workspace's root on.
pub(crate) fn folder(architecture: &str) -> PathBuf {
    Path::new("target/ci/userland").join(architecture).join("bin")
}

/// The architecture that `packages` (`busybox,git:arm64`) names, if they are some that are unpacked.
pub(crate) fn architecture(packages: &'static str) -> Option<&'static str> {
    packages.split_once(':').map(|(_, architecture)| architecture)
}

/// Fetches `packages` (`busybox,git:arm64`) with what their programs need, and unpacks them below `root`.
///
/// # Errors
/// A sentence: apt or dpkg is not here, or has failed.
pub(crate) fn unpack(root: &Path, packages: &str) -> Result<(), String> {
    let Some((names, architecture)) = packages.split_once(':') else {
        return Err(format!("{packages} names no architecture"));
    };
    let names: Vec<&str> = names.split(',').collect();
    let work = prepare(root, architecture)?;
    let failed = |error: std::io::Error| format!("{}: {error}", work.display());
    // One source of many may not have this architecture; what counts is whether the download finds the
    // packages.
    let _ = apt(&work, architecture, &["update"]);
    let simulated = apt(&work, architecture, &[&["--simulate", "install"], &names[..]].concat())?;
    apt(&work, architecture, &[&["download"], &needed(&simulated, &names)[..]].concat())?;
    let bin = root.join(folder(architecture));
    let unpacked = bin.with_file_name("root");
    std::fs::create_dir_all(&unpacked).map_err(failed)?;
    for entry in std::fs::read_dir(&work).map_err(failed)?.flatten() {
        let file = entry.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            run(Command::new("dpkg").arg("-x").arg(&file).arg(&unpacked))?;
            std::fs::remove_file(&file).map_err(failed)?;
        }
    }
    install(&unpacked, &bin)
}

/// A folder of that name for apt's own state, as of a machine that has nothing installed.
///
/// # Errors
/// A sentence: it cannot be made.
pub(crate) fn prepare(root: &Path, name: &str) -> Result<PathBuf, String> {
    let work = root.join("target/ci/apt").join(name);
    let failed = |error: std::io::Error| format!("{}: {error}", work.display());
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        std::fs::create_dir_all(work.join(folder)).map_err(failed)?;
    }
    std::fs::write(work.join("state/status"), "").map_err(failed)?;
    Ok(work)
}

/// Those of the packages that apt would install which are asked for, or which their programs need.
fn needed<'a>(simulated: &'a str, names: &[&str]) -> Vec<&'a str> {
    let packages = simulated.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    let is_needed = |package: &&str| {
        names.contains(package) || NEEDED.iter().any(|beginning| package.starts_with(beginning))
    };
    packages.filter(is_needed).collect()
}

/// Puts the programs and busybox's other names into `bin`; the last program last, as it says that all is
/// there.
fn install(unpacked: &Path, bin: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", bin.display());
    std::fs::create_dir_all(bin).map_err(failed)?;
    let applets = APPLETS.iter().map(|&applet| (applet, PathBuf::from("busybox")));
    // Which of the two folders it is depends on the release.
    let is_there = |folder: &&str| unpacked.join(folder).exists();
    let programs = PROGRAMS.iter().map(|&name| {
        let places = [format!("usr/bin/{name}"), format!("bin/{name}")];
        let place = places.iter().map(String::as_str).find(is_there).unwrap_or(name);
        (name, Path::new("../root").join(place))
    });
    for (name, target) in applets.chain(programs) {
        if !bin.join(&target).exists() && target != Path::new("busybox") {
            return Err(format!(
                "{} is missing: the packages have brought no {name}",
                bin.join(&target).display()
            ));
        }
        let link = bin.join(name);
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).map_err(failed)?;
        }
        std::os::unix::fs::symlink(target, &link).map_err(failed)?;
    }
    Ok(())
}

/// apt-get for one architecture, with its own state: what it prints.
///
/// # Errors
/// A sentence: it failed, or cannot be run.
pub(crate) fn apt(work: &Path, architecture: &str, words: &[&str]) -> Result<String, String> {
    let state = work.join("state");
    let options = [
        format!("Dir::State={}", state.display()),
        format!("Dir::State::status={}", state.join("status").display()),
        format!("Dir::Cache={}", work.join("cache").display()),
        format!("APT::Architecture={architecture}"),
        format!("APT::Architectures={architecture}"),
        "APT::Install-Recommends=false".to_owned(),
        "Acquire::Languages=none".to_owned(),
    ];
    let mut command = Command::new("apt-get");
    command.arg("-qq").args(options.iter().flat_map(|option| ["-o", option])).args(words).current_dir(work);
    println!("  apt-get {} ({architecture}, below target/ci/apt)", words.join(" "));
    run(&mut command)
}

/// What the command prints.
///
/// # Errors
/// A sentence with what it said: it failed, or cannot be run.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("{name} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{name} failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_tells_what_is_unpacked_from_what_is_installed() {
        assert_eq!(architecture("busybox,git:arm64"), Some("arm64"));
        assert_eq!(architecture("qemu-user"), None);
        assert!(unpack(Path::new("/nonexistent"), "busybox").is_err());
    }

    #[test]
    fn of_the_dependencies_only_what_the_programs_need_is_unpacked() {
        let simulated = "Inst libc6 (2.36 Debian:12 [arm64])\nInst zlib1g (1:1.2)\nConf zlib1g (1:1.2)\n\
            Inst perl (5.36)\nInst libpython3.11-stdlib (3.11.2)\nInst git-man (1:2.39)\nInst git (1:2.39)\n";
        assert_eq!(needed(simulated, &["git"]), ["zlib1g", "libpython3.11-stdlib", "git"]);
    }
}
