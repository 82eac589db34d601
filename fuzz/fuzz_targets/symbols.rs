//! See probe_fuzz_checks::symbols::read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::symbols::read(data));
