//! Debian's packages: the kernel, the headers and programs for building its modules, and a busybox. Unpacked,
//! not installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::userland::{apt, prepare, run};

/// Where everything of a kernel is, from the workspace's root on, below its architecture's name.
pub(crate) const FOLDER: &str = "target/ci/linux";

/// The beginnings of the packages' names that are unpacked, of those that apt would install. The first two
/// come with a version that only apt knows.
const UNPACKED: [&str; 3] = ["linux-image-6", "linux-headers-6", "busybox-static"];
/// Programs for building modules: this machine's, whatever the modules are for.
const PROGRAMS: &str = "linux-kbuild-6";
/// Where those run.
const HERE: &str = "amd64";

/// Whether these packages are a kernel's.
pub(crate) fn is_kernel(packages: &str) -> bool {
    packages.starts_with("linux-image-")
}

/// Fetches and unpacks `packages` (`linux-image-amd64,…:amd64`).
///
/// # Errors
/// A sentence: apt, dpkg or tar has failed, or a package brings something else than it did.
pub(crate) fn unpack(root: &Path, packages: &str) -> Result<(), String> {
    let Some((names, architecture)) = packages.split_once(':') else {
        return Err(format!("{packages} names no architecture"));
    };
    let names: Vec<&str> = names.split(',').collect();
    let folder = root.join(FOLDER).join(architecture);
    let unpacked = folder.join("root");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&unpacked).map_err(failed)?;
    let fetch = |architecture: &str, names: &[&str], wanted: &[&str]| {
        let work = prepare(root, &format!("linux-{architecture}"))?;
        // One source of many may not have this architecture; the download says whether the packages are
        // there.
        let _ = apt(&work, architecture, &["update"]);
        let simulated = apt(&work, architecture, &[&["--simulate", "install"], names].concat())?;
        let installed = simulated.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
        let found: Vec<&str> =
            installed.filter(|name| wanted.iter().any(|beginning| name.starts_with(beginning))).collect();
        apt(&work, architecture, &[&["download"], &found[..]].concat())?;
        for entry in fs::read_dir(&work).map_err(failed)?.flatten() {
            let file = entry.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                unpack_file(&file, &unpacked)?;
                fs::remove_file(&file).map_err(failed)?;
            }
        }
        Ok::<_, String>(())
    };
    fetch(architecture, &names, &UNPACKED)?;
    let headers = format!("linux-headers-{HERE}");
    fetch(HERE, &[&headers], &[PROGRAMS])?;
    finish(&unpacked, &folder)
}

/// All of a package; of a kernel only what is booted, the one module, and its table of names.
fn unpack_file(file: &Path, to: &Path) -> Result<(), String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    if !name.starts_with("linux-image") {
        return run(Command::new("dpkg").arg("-x").arg(file).arg(to)).map(drop);
    }
    let archive = file.with_extension("tar");
    let failed = |error: std::io::Error| format!("{}: {error}", archive.display());
    let output = fs::File::create(&archive).map_err(failed)?;
    let contents =
        Command::new("dpkg").arg("--fsys-tarfile").arg(file).stdout(output).status().map_err(failed)?;
    if !contents.success() {
        return Err(format!("dpkg --fsys-tarfile {}: {contents}", file.display()));
    }
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(to);
    tar.args(["--wildcards", "./boot/vmlinu*", "./lib/modules/*/kernel/drivers/net/veth.ko"]);
    run(&mut tar)?;
    fs::remove_file(&archive).map_err(failed)
}

/// Makes the headers' files name each other where they are, and writes down the kernel's version: last, as it
/// says that all is there.
fn finish(unpacked: &Path, folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", unpacked.display());
    let boot = fs::read_dir(unpacked.join("boot")).map_err(failed)?.flatten();
    let names = boot.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let release = names.filter_map(|name| {
        let release = name.strip_prefix("vmlinuz-").or_else(|| name.strip_prefix("vmlinux-"));
        release.map(str::to_owned)
    });
    let release = release.max();
    let release = release.ok_or_else(|| "the packages have brought no kernel".to_owned())?;
    let makefile = unpacked.join("usr/src").join(format!("linux-headers-{release}/Makefile"));
    let text = crate::tree::read(&makefile)?;
    let here = "include $(dir $(lastword $(MAKEFILE_LIST)))../";
    fs::write(&makefile, text.replace("include /usr/src/", here)).map_err(failed)?;
    fs::write(folder.join("release"), release).map_err(failed)
}
