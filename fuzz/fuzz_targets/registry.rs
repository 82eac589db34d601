//! See probe_fuzz_checks::registry::operations.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::registry::operations(data));
