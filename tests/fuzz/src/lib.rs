//! What must hold for any input, as functions of bytes.
//!
//! The same functions are fed by fuzzers (the folder `fuzz`, `cargo ci job fuzz`) and by a seeded generator (`tests/short.rs`,
//! a part of the tests). Each ends by itself where everything is as it should be, and panics where something is not.

pub mod backend;
pub mod capi;
pub mod definition;
pub mod registry;
pub mod symbols;

/// A target: its name in `fuzz/fuzz_targets`, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 10] = [
    ("x86_64", backend::x86_64),
    ("i386", backend::i386),
    ("aarch64", backend::aarch64),
    ("ppc64_v1", backend::ppc64_v1),
    ("ppc64_v2", backend::ppc64_v2),
    ("ppc64le", backend::ppc64le),
    ("definition", definition::parse),
    ("symbols", symbols::read),
    ("registry", registry::operations),
    ("capi", capi::arguments),
];
