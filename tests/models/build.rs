//! Sets the cfg that puts loom's atomics under the core's sources.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(probe_loom)");
    println!("cargo::rustc-cfg=probe_loom");
}
