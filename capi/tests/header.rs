//! include/probe.h is what the sources say. `PROBE_BLESS=1 cargo test -p probe-c --test header` (or `cargo ci
//! generate`) makes it so. Once, on the build machine: it is the same for every target.
#![cfg(all(target_arch = "x86_64", target_env = "gnu"))]

use std::collections::BTreeSet;
use std::path::Path;

/// In the order in which the header shows them.
const SOURCES: [&str; 9] =
    ["types", "register", "regs", "listing", "jumps", "stopping", "testing", "process", "kernel"];

/// What the header calls types that C keeps in headers of its own.
const TYPES: [(&str, &str); 4] = [
    ("uint64_t", "probe_u64"),
    ("uint32_t", "probe_u32"),
    ("uint8_t", "unsigned char"),
    ("size_t", "probe_size"),
];

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
    let text = text.replace(" * # Safety\n", " * What the caller owes:\n");
    let named = "as GCC and Clang know them";
    let (before, after) = text.split_once(named).expect("the configuration says so");
    let after = TYPES.iter().fold(after.to_owned(), |text, (from, to)| text.replace(from, to));
    let types = after.find("struct kprobe;").expect("the configuration declares it");
    let (typedefs, rest) = after.split_at(types);
    format!("{before}{named}{typedefs}{}{rest}", prefixes(rest))
}

/// The names that a header declares.
fn declared(text: &str) -> BTreeSet<&str> {
    let words = |line: &'static str| text.lines().filter_map(move |text| text.strip_prefix(line));
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let tags = words("struct ").filter_map(|rest| rest.strip_suffix(" {"));
    let types =
        words("typedef ").filter_map(|rest| rest.split_once("(*")?.1.split_once(')').map(|(name, _)| name));
    let functions =
        text.lines().filter(|line| !line.starts_with([' ', '\t', '#', '}', '/'])).filter_map(|line| {
            let (declaration, _) = line.split_once('(')?;
            let name = declaration.rsplit([' ', '*']).next()?;
            (!declaration.starts_with("typedef")).then_some(name)
        });
    tags.chain(types).chain(functions).filter(is_name).filter(|name| *name != "pt_regs").collect()
}

/// With `PROBE_PREFIX`, all names of the library's have it.
fn prefixes(text: &str) -> String {
    let mut block = String::from(
        "/*\n * Define PROBE_PREFIX if your program or kernel has such names already: all of them begin with it then. Rename\n \
         * the library's symbols alike (capi/README.md).\n */\n#ifdef PROBE_PREFIX\n#define PROBE_GLUE(a, b) a##b\n\
         #define PROBE_PREFIXED(a, b) PROBE_GLUE(a, b)\n",
    );
    for name in declared(text) {
        block += &format!("#define {name} PROBE_PREFIXED(PROBE_PREFIX, {name})\n");
    }
    block + "#endif\n\n"
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
