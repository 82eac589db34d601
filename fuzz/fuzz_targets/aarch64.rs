//! See the target `aarch64` of tests/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::run("aarch64", data));
