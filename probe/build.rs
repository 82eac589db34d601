//! Builds the agent: this same package as a shared object, with the feature `agent` instead of `cli`.
//!
//! The command carries the agent in itself (`include_bytes!`), so that it finds it wherever it is installed.
//! A nested cargo builds it for the same target, from the same sources and the same lock file, into a folder
//! of this build's own profile.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for the nested build.
const NESTED: &str = "PROBE_TRACE_NESTED_BUILD";
/// Set by lints, which compile everything and run nothing: an empty file stands for the agent.
const CHECK_ONLY: &str = "PROBE_CHECK_ONLY";

fn main() {
    println!("cargo:rerun-if-env-changed={NESTED}");
    println!("cargo:rerun-if-env-changed={CHECK_ONLY}");
    println!("cargo:rustc-check-cfg=cfg(has_agent)");
    println!("cargo:rustc-check-cfg=cfg(has_mapped)");
    // Tests compile C programs for it.
    println!("cargo:rustc-env=PROBE_TARGET={}", variable("TARGET"));
    println!("cargo:rustc-check-cfg=cfg(no_programs)");
    if !has_programs() {
        println!("cargo:rustc-cfg=no_programs");
    }
    if env::var_os(NESTED).is_some() || env::var_os("CARGO_FEATURE_CLI").is_none() {
        return;
    }
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    watch(&package);
    // A statically linked libc cannot load anything; programs that use one cannot be traced, either.
    if variable("CARGO_CFG_TARGET_ENV") != "gnu" || has_feature("crt-static") {
        return;
    }
    let to = Path::new(&variable("OUT_DIR")).join("probe-agent.so");
    let made = if env::var_os(CHECK_ONLY).is_some() {
        std::fs::write(&to, [])
    } else {
        std::fs::copy(build(&package, Agent::Preloaded), &to).map(drop)
    };
    made.unwrap_or_else(|error| panic!("{} cannot be made: {error}", to.display()));
    println!("cargo:rustc-cfg=has_agent");
    if variable("CARGO_CFG_TARGET_ARCH") == "x86_64" && variable("CARGO_CFG_TARGET_POINTER_WIDTH") == "64" {
        make_mapped(&package);
    }
}

/// For a target with an agent for running programs: builds that, too.
fn make_mapped(package: &Path) {
    let to = Path::new(&variable("OUT_DIR")).join("probe-mapped.so");
    let made = if env::var_os(CHECK_ONLY).is_some() {
        std::fs::write(&to, [])
    } else {
        std::fs::copy(build(package, Agent::Mapped), &to).map(drop)
    };
    made.unwrap_or_else(|error| panic!("{} cannot be made: {error}", to.display()));
    println!("cargo:rustc-cfg=has_mapped");
}

/// What is built.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agent {
    /// Loaded by the program's own loader.
    Preloaded,
    /// Mapped by the command, into a program that runs already.
    Mapped,
}

impl Agent {
    fn feature(self) -> &'static str {
        match self {
            Self::Preloaded => "agent",
            Self::Mapped => "mapped",
        }
    }

    /// What the linker is told.
    fn link_arguments(self) -> &'static [&'static str] {
        match self {
            // Its constructor comes before those of all other objects.
            Self::Preloaded => &["-Wl,-z,initfirst"],
            // It defines all that it needs, and is entered as the command says.
            Self::Mapped => &["-nostartfiles", "-Wl,-Bsymbolic", "-Wl,-z,now", "-Wl,-e,probe_mapped_entry"],
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo does not set {name}"))
}

/// Whether tests can have programs of the target's architecture: Debian 12 has none for these.
fn has_programs() -> bool {
    let is_big = variable("CARGO_CFG_TARGET_ENDIAN") == "big";
    !matches!((&*variable("CARGO_CFG_TARGET_ARCH"), is_big), ("powerpc64", true) | ("riscv64", _))
}

fn has_feature(name: &str) -> bool {
    env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|feature| feature == name))
}

/// Names the sources of the agent: this package, and the packages beside it if this is the repository.
fn watch(package: &Path) {
    let beside = package.parent().unwrap_or(package);
    for path in ["Cargo.toml", "build.rs", "src/lib.rs", "src/agent", "src/began.rs", "src/def", "src/wire"] {
        println!("cargo:rerun-if-changed={}", package.join(path).display());
    }
    let krates = [
        "probe-core",
        "probe-bpf",
        "definitions",
        "unwind",
        "elf-symbols",
        "host-linux",
        "ppc-decode",
        "x86-decode",
    ]
    .map(|name| beside.join(name));
    for krate in krates.into_iter().chain(folders(beside).filter(|path| name_of(path).starts_with("arch-"))) {
        for path in [krate.join("src"), krate.join("Cargo.toml")].iter().filter(|path| path.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}

fn folders(inside: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(inside).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}

fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

/// The crates that this one needs, as `cargo package` unpacks them beside it: it builds a package before the
/// registry has the packages that it needs. Empty elsewhere.
fn packed_beside(package: &Path) -> Vec<(String, PathBuf)> {
    let Some(beside) = package.parent().filter(|beside| beside.ends_with("target/package")) else {
        return Vec::new();
    };
    let version = format!("-{}", variable("CARGO_PKG_VERSION"));
    let krate = |folder: PathBuf| {
        let name = name_of(&folder).strip_suffix(&version)?.to_owned();
        (name.starts_with("probe-") && folder != package).then_some((name, folder))
    };
    folders(beside).filter_map(krate).collect()
}

/// The folder for the nested builds of this profile: beside cargo's `build`, which has `OUT_DIR` in it.
fn folder_of_agents() -> PathBuf {
    let out = PathBuf::from(variable("OUT_DIR"));
    out.ancestors().nth(3).unwrap_or(&out).join("agents")
}

/// Runs the nested cargo and returns the shared object.
fn build(package: &Path, agent: Agent) -> PathBuf {
    let (target, folder) = (variable("TARGET"), folder_of_agents());
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["rustc", "--release", "--lib", "--crate-type", "cdylib"])
        .args(["--no-default-features", "--features", agent.feature(), "--target", &target])
        .arg("--manifest-path")
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env(NESTED, "1")
        // A panic in the agent is a bug that must not unwind into the program.
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        // What the outer build is instrumented with is not for the agent.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER");
    let beside = packed_beside(package);
    let lock = package.join("Cargo.lock");
    // What is packed must stay as it is, and other sources of these crates would be written down there.
    let locked = if beside.is_empty() { None } else { std::fs::read(&lock).ok() };
    for (name, folder) in beside {
        cargo.arg("--config").arg(format!("patch.crates-io.{name}.path={:?}", folder.display().to_string()));
    }
    cargo.arg("--");
    for argument in agent.link_arguments() {
        cargo.args(["-C", &format!("link-arg={argument}")]);
    }
    let status = cargo.status().unwrap_or_else(|error| panic!("cargo cannot be run: {error}"));
    if let Some(locked) = locked {
        std::fs::write(&lock, locked)
            .unwrap_or_else(|error| panic!("{} is changed: {error}", lock.display()));
    }
    assert!(status.success(), "the agent could not be built for {target}");
    folder.join(target).join("release").join("libprobe_trace.so")
}
