//! See probe_fuzz_checks::backend::ppc64_v2.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| probe_fuzz_checks::backend::ppc64_v2(data));
