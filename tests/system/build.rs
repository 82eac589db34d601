//! Hands the linker the script of the kernel's architecture.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    // Link scripts are named after what Rust calls the architecture.
    let script = format!("{arch}.ld");
    println!("cargo:rustc-link-arg-bins=-T{folder}/link/{script}");
    println!("cargo:rerun-if-changed=link/{script}");
}
