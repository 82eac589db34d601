//! Builds the agent: this same package as a shared object, with the feature `agent`, optimised, for the same
//! target. And, for targets that run under QEMU, the plugin of `tests/user` that counts instructions, for the
//! machine that builds.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for the nested build.
const NESTED: &str = "PROBE_EVERYTHING_NESTED_BUILD";
/// Set by lints, which compile everything and run nothing: the agent is named, but not built.
const CHECK_ONLY: &str = "PROBE_CHECK_ONLY";

fn main() {
    println!("cargo::rerun-if-env-changed={NESTED}");
    println!("cargo::rerun-if-env-changed={CHECK_ONLY}");
    println!("cargo::rerun-if-changed=build.rs");
    // A statically linked libc loads no agent.
    if env::var_os(NESTED).is_some() || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        return;
    }
    let backends = std::fs::read_dir("../..").into_iter().flatten().flatten();
    let backends = backends.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let others =
        ["probe-core", "unwind", "elf-symbols", "host-linux", "ppc-decode", "x86-decode"].map(str::to_owned);
    for krate in backends.filter(|name| name.starts_with("arch-")).chain(others) {
        println!("cargo::rerun-if-changed=../../{krate}/src");
    }
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rustc-env=PROBE_EVERYTHING_AGENT={}", agent().display());
    if variable("HOST") != variable("TARGET") {
        println!("cargo::rerun-if-changed=../user/plugin/counts.rs");
        println!("cargo::rustc-env=PROBE_EVERYTHING_PLUGIN={}", plugin().display());
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo does not set {name}"))
}

fn output() -> PathBuf {
    PathBuf::from(variable("OUT_DIR"))
}

/// Where the agent of `probe` is built, too, with the same settings: most of it is the same crates.
fn folder_of_agents() -> PathBuf {
    let out = output();
    out.ancestors().nth(3).unwrap_or(&out).join("agents")
}

/// Runs a nested cargo and returns the shared object.
fn agent() -> PathBuf {
    let (target, folder) = (variable("TARGET"), folder_of_agents());
    let library = folder.join(&target).join("release/libprobe_tests_everything.so");
    if env::var_os(CHECK_ONLY).is_some() {
        return library;
    }
    let status = Command::new(variable("CARGO"))
        .args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--features", "agent"])
        .args(["--target", &target, "--manifest-path"])
        .arg(Path::new(&variable("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder)
        .env(NESTED, "1")
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        // What the outer build is instrumented with is not for the agent.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTC_WRAPPER")
        .status()
        .expect("cargo can be executed");
    assert!(status.success(), "the agent does not build for {target}: {status}");
    library
}

/// Builds the plugin and returns it.
fn plugin() -> PathBuf {
    let library = output().join("libcounts.so");
    let status = Command::new(variable("RUSTC"))
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=counts", "-Copt-level=2"])
        .args(["--target", &variable("HOST"), "../user/plugin/counts.rs", "-o"])
        .arg(&library)
        .status()
        .expect("the compiler can be executed");
    assert!(status.success(), "the plugin does not build: {status}");
    library
}
