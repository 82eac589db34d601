//! include/probe.h is what the sources say. `PROBE_BLESS=1 cargo test -p probe-c --test header` (or `cargo ci
//! generate`) makes it so. Once, on the build machine: it is the same for every target.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use std::path::Path;

/// In the order in which the header shows them.
const SOURCES: [&str; 7] = ["types", "register", "regs", "listing", "stopping", "process", "kernel"];

fn header(folder: &Path) -> String {
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("the configuration is valid");
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, name| {
        builder.with_src(folder.join("src").join(format!("{name}.rs")))
    });
    let mut text = Vec::new();
    builder.generate().expect("the sources can be read").write(&mut text);
    let text = String::from_utf8(text).expect("it is text");
    // `# Safety` is a heading of rustdoc.
    text.replace(" * # Safety\n", " * What the caller owes:\n")
}

#[test]
fn the_committed_header_is_what_the_sources_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = folder.join("include/probe.h");
    let wanted = header(folder);
    if std::env::var_os("PROBE_BLESS").is_some() {
        std::fs::write(&file, &wanted).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == wanted, "include/probe.h is not what the sources say; run: cargo ci generate");
}

#[test]
fn every_exported_function_is_in_the_header() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = header(folder);
    for name in SOURCES {
        let source =
            std::fs::read_to_string(folder.join("src").join(format!("{name}.rs"))).expect("it is there");
        let exported = source.split("#[unsafe(no_mangle)]\n").skip(1);
        let names = exported.filter_map(|rest| rest.split_once(" fn ")?.1.split_once('('));
        for (function, _) in
            names.filter(|(function, _)| !function.starts_with("rust_") && !function.starts_with('_'))
        {
            assert!(text.contains(&format!("{function}(")), "{function} is not in the header");
        }
    }
}
