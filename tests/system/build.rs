//! Hands the linker the script of the kernel's architecture.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let script = match arch.as_str() {
        "x86_64" | "x86" => "x86.ld",
        "aarch64" => "aarch64.ld",
        "powerpc64" => "ppc64.ld",
        other => panic!("no kernel for {other}"),
    };
    println!("cargo:rustc-link-arg-bins=-T{folder}/link/{script}");
    println!("cargo:rerun-if-changed=link/{script}");
}
