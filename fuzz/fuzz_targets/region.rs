//! See probe_fuzz_checks::region::hostile.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::region::hostile(data));
