//! See `ovf_fuzz::any_bytes`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ovf_fuzz::any_bytes(data));
