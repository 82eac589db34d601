//! See probe_fuzz_checks::backend::ppc64le.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::backend::ppc64le(data));
