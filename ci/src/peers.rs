//! What the benchmark compares with and nothing else needs: the libraries of tests/peers, and frida-gum's
//! Python package in an environment of its own below the target folder. Where one cannot be had, the
//! benchmark goes without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::clean;

/// The package that was last compared with.
const FRIDA: &str = "frida==17.26.0";

/// The Python environment that has it, from the workspace's root on.
const PYTHON: &str = "target/peers/venv/bin/python";

/// Builds tests/peers of the repository at `root`, in a folder of its own in `target`, for what cargo builds
/// for (`CARGO_BUILD_TARGET`); the library.
pub(crate) fn library(root: &Path, target: &Path) -> Option<PathBuf> {
    let manifest = root.join("tests/peers/Cargo.toml");
    // An older revision has none.
    if !manifest.exists() {
        return None;
    }
    let folder = target.join("peers");
    let mut build = clean(Command::new("cargo"));
    build.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]).arg(&manifest);
    let status = build.arg("--target-dir").arg(&folder).current_dir(root).stdin(Stdio::null()).status();
    if status.is_ok_and(|status| status.success()) {
        let of_target =
            std::env::var_os("CARGO_BUILD_TARGET").map_or(folder.clone(), |triple| folder.join(triple));
        Some(of_target.join("release/libprobe_peers.so"))
    } else {
        eprintln!("tests/peers cannot be built here: its libraries are left out");
        None
    }
}

/// The Python that has frida, if `cargo ci setup --all` has made one.
pub(crate) fn python(root: &Path) -> Option<PathBuf> {
    Some(root.join(PYTHON)).filter(|python| python.exists())
}

/// Makes that Python; whether there was anything to do. That it cannot be made is said, and no error.
pub(crate) fn install_frida(root: &Path) -> bool {
    if has_frida(root) {
        return false;
    }
    let python = root.join(PYTHON);
    let environment = python.ancestors().nth(2).unwrap_or(root);
    println!("  {FRIDA} (PyPI) into {}", environment.display());
    let run =
        |command: &mut Command| command.stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    let is_made = run(Command::new("python3").args(["-m", "venv"]).arg(environment))
        && run(Command::new(&python).args(["-m", "pip", "install", "--quiet", FRIDA]));
    if !is_made {
        println!("  that did not work: the benchmark goes without frida");
    }
    is_made
}

fn has_frida(root: &Path) -> bool {
    let import = |python| Command::new(python).args(["-c", "import frida"]).stderr(Stdio::null()).status();
    python(root).is_some_and(|python| import(python).is_ok_and(|status| status.success()))
}
