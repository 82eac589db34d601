//! See the target `record` of tests/fuzz.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::run("record", data));
