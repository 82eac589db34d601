//! See the target `ppc64_v1` of tests/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::run("ppc64_v1", data));
