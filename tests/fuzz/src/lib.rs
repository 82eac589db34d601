//! What must hold for any input, as functions of bytes.
//!
//! The same functions are fed by fuzzers (the folder `fuzz`, `cargo ci job fuzz`) and by a seeded generator (`tests/short.rs`,
//! a part of the tests). Each ends by itself where everything is as it should be, and panics where something is not.

pub mod backend;
pub mod capi;
pub mod definition;
pub mod region;
pub mod registry;
pub mod symbols;

/// A target: its name in `fuzz/fuzz_targets`, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Slots end in a word of the machine that they are built on: those of 64-bit architectures need one.
pub const TARGETS: &[Target] = &[
    #[cfg(target_pointer_width = "64")]
    ("x86_64", backend::x86_64),
    ("i386", backend::i386),
    #[cfg(target_pointer_width = "64")]
    ("aarch64", backend::aarch64),
    #[cfg(target_pointer_width = "64")]
    ("ppc64_v1", backend::ppc64_v1),
    #[cfg(target_pointer_width = "64")]
    ("ppc64_v2", backend::ppc64_v2),
    #[cfg(target_pointer_width = "64")]
    ("ppc64le", backend::ppc64le),
    ("definition", definition::parse),
    ("symbols", symbols::read),
    ("region", region::hostile),
    ("registry", registry::operations),
    ("capi", capi::arguments),
];
