//! Commands of other programs, cargo most of all.

use std::process::Command;
use std::sync::OnceLock;

/// Set once the toolchain in use turns out to lack a target: the one that every command uses instead.
static INSTEAD: OnceLock<&str> = OnceLock::new();

/// The toolchain that commands must use, if it is not the one in use.
pub(crate) fn toolchain() -> Option<&'static str> {
    INSTEAD.get().copied()
}

/// From now on every command uses this toolchain.
pub(crate) fn use_toolchain(name: &'static str) {
    // Whoever was first has found the same.
    let _ = INSTEAD.set(name);
}

/// `command` without what `cargo run` and rustup left in the environment for this program: a nested cargo
/// must choose its toolchain and see its variables anew.
pub(crate) fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let inherited = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
        if inherited
            || matches!(
                &*name,
                "CARGO" | "CARGO_BIN_NAME" | "CARGO_CRATE_NAME" | "CARGO_PRIMARY_PACKAGE" | "LD_LIBRARY_PATH"
            )
        {
            command.env_remove(&*name);
        }
    }
    if let Some(toolchain) = toolchain() {
        command.env("RUSTUP_TOOLCHAIN", toolchain);
    }
    command
}
