//! Builds the plugin that counts instructions under QEMU (`plugin/counts.rs`), for the machine that builds:
//! that is where QEMU runs. Only for targets whose tests may run under QEMU's user mode.

use std::env::var;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=plugin/counts.rs");
    let [host, target] = ["HOST", "TARGET"].map(|name| var(name).expect("cargo says so"));
    if host == target || var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os != "linux") {
        return;
    }
    let library = PathBuf::from(var("OUT_DIR").expect("cargo says so")).join("libcounts.so");
    let status = Command::new(var("RUSTC").expect("cargo says so"))
        .args(["--edition=2024", "--crate-type=cdylib", "--crate-name=counts", "-Copt-level=2"])
        .args(["--target", &host, "plugin/counts.rs", "-o"])
        .arg(&library)
        .status()
        .expect("the compiler can be executed");
    assert!(status.success(), "the plugin does not build: {status}");
    println!("cargo::rustc-env=PROBE_WALK_PLUGIN={}", library.display());
}
