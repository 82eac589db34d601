//! See the target `ppc32` of tests/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::run("ppc32", data));
