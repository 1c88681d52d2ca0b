//! See `ovf_fuzz::step_folder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ovf_fuzz::step_folder(data));
