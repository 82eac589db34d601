//! PRG_1: the optimised run path holds no call of the panic machinery and none of the allocator. A program
//! that has only the hit path, and whose panic handler and allocator call functions that are nowhere, links.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]

use std::process::{Command, Output};

fn link(features: &[&str]) -> Output {
    let here = env!("CARGO_MANIFEST_DIR");
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

#[test]
fn prg_1_the_run_path_links_without_panics_and_allocations() {
    let output = link(&[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // And the check would find one.
    let output = link(&["--features", "panics"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("the_run_path_may_panic"), "{errors}");
}
