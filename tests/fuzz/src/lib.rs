//! Properties that hold for any input, as functions of bytes.
//!
//! The same functions are fed by fuzzers (the folder `fuzz`, `cargo ci job fuzz`) and by a seeded generator
//! (`tests/short.rs`, a part of the tests). Each ends by itself where everything is as it should be, and
//! panics where something is not.

pub mod backend;
pub mod bpf;
pub mod capi;
pub mod definition;
pub mod record;
pub mod region;
pub mod registry;
pub mod symbols;

/// A target: its name in `fuzz/fuzz_targets`, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of this machine.
pub fn targets() -> impl Iterator<Item = Target> {
    let backends =
        backend::TARGETS.iter().filter(|(bits, _)| *bits <= usize::BITS).map(|(_, target)| *target);
    backends.chain([
        ("bpf", bpf::run as fn(&[u8])),
        ("definition", definition::parse),
        ("record", record::read),
        ("symbols", symbols::read),
        ("region", region::hostile),
        ("registry", registry::operations),
        ("capi", capi::arguments),
    ])
}

/// Runs the target of that name, for a fuzzer.
///
/// # Panics
/// There is no such target, or it has found something.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = targets().find(|target| target.0 == name).expect("a target of this name");
    target(data);
}
