//! See `ovf_fuzz::agree`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ovf_fuzz::agree(data));
