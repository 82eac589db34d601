//! The module: the library's object, the glue and the cases of tests/linux, built by Debian's own headers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Linux, SOURCES, run_command};

/// The module's file.
pub(super) fn build(root: &Path, linux: &Linux, library: &Path) -> Result<PathBuf, String> {
    let folder = linux.folder(root).join("module");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    let sources = root.join(SOURCES).join("module");
    for entry in fs::read_dir(&sources).map_err(failed)?.flatten() {
        copy_if_changed(&entry.path(), &folder.join(entry.file_name())).map_err(failed)?;
    }
    for header in ["probe.h", "own.h"] {
        copy_if_changed(&library.join(header), &folder.join(header)).map_err(failed)?;
    }
    // The name by which the kernel's makefiles know objects that nobody builds.
    copy_if_changed(&library.join("library.o"), &folder.join("library.o_shipped")).map_err(failed)?;
    fs::write(folder.join(".library.o.cmd"), "savedcmd_library.o := cp\n").map_err(failed)?;
    let release = linux.release(root)?;
    let headers = linux.folder(root).join(format!("root/usr/src/linux-headers-{release}"));
    let mut make = Command::new("make");
    make.args(["-s", "-j2", "-C"]).arg(&headers).arg(format!("M={}", folder.display()));
    make.args(["DEB_BUILD_ARCH=amd64", &format!("DEB_HOST_ARCH={}", linux.name)]);
    make.arg(format!("DEB_HOST_GNU_TYPE={}", linux.tools.trim_end_matches('-'))).arg("modules");
    // What cargo has set for itself is not for other builds.
    for name in ["MAKEFLAGS", "MFLAGS", "CARGO_MAKEFLAGS"] {
        make.env_remove(name);
    }
    run_command(make)?;
    Ok(folder.join("probes.ko"))
}

/// Copies, if that changes the file: else nothing is built anew.
fn copy_if_changed(from: &Path, to: &Path) -> std::io::Result<()> {
    let new = fs::read(from)?;
    if fs::read(to).is_ok_and(|old| old == new) { Ok(()) } else { fs::write(to, new) }
}
