//! Whether the optimised code of a path holds no call of the panic machinery and none of the allocator: a
//! program that has only that path, and whose panic handler and allocator call functions that are nowhere,
//! links.
//!
//! Included by the tests of the crates that have such a path; each has the program in `tests/no_panic`.

use std::process::{Command, Output};

/// Builds the program of the package in the folder `here`.
fn link(here: &str, features: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["rustc", "--release", "--quiet", "--offline", "--target", "x86_64-unknown-linux-gnu"])
        .arg("--manifest-path")
        .arg(format!("{here}/tests/no_panic/Cargo.toml"))
        .arg("--target-dir")
        .arg(format!("{}/no_panic", env!("CARGO_TARGET_TMPDIR")))
        .args(features)
        .args(["--", "-Clink-arg=-nostartfiles", "-Clink-arg=-static", "-Clink-arg=-lc"])
        .arg("-Crelocation-model=static")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.output().expect("cargo runs")
}

/// Builds it, and once more with a panic in it, which the linker reports as a call of `nowhere`.
pub(crate) fn check(here: &str, nowhere: &str) {
    let output = link(here, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // And the check would find one.
    let output = link(here, &["--features", "panics"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains(nowhere), "{errors}");
}
