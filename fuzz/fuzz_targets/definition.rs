//! See probe_fuzz_checks::definition::parse.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::definition::parse(data));
