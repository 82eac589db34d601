//! See probe_fuzz_checks::backend::x86_64.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::backend::x86_64(data));
