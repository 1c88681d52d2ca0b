//! Masks by 16-byte compares.
//!
//! NEON has no instruction that gathers one bit of each byte. The block is loaded de-interleaved, so that byte i of
//! register k is byte 4i + k of the block; then three shift-and-insert steps bring the answers for four neighbours
//! together into one nibble, and a narrowing shift joins the nibbles to 64 bits in the block's order:
//!
//! ```text
//! answers (each byte 0x00 or 0xff)   a0 a1 a2 a3      of bytes 4i, 4i+1, 4i+2, 4i+3
//! sri(a1, a0, 1), sri(a3, a2, 1)     1000_0000 of the first, the rest of the second
//! sri(_, _, 2)                       a3 a2 a1 a0 ...  in the top nibble of byte i
//! sri(_, self, 4)                    the same nibble in both halves of byte i
//! shrn(_, 4)                         low half of even bytes, high half of odd ones: 16 nibbles
//! ```
#![allow(unsafe_code)]

use std::arch::aarch64::{
    uint8x16_t, uint8x16x4_t, vceqq_u8, vcleq_u8, vcltzq_s8, vdupq_n_u8, vget_lane_u64, vld4q_u8, vorrq_u8,
    vreinterpret_u64_u8, vreinterpretq_s8_u8, vreinterpretq_u16_u8, vshrn_n_u16, vsriq_n_u8,
};

use super::{BLOCK, Masks, Skipped, skip_with};

/// SAFETY: the caller has checked that the processor has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn skip(bytes: &[u8], at: usize) -> Skipped {
    // SAFETY: as the caller's.
    skip_with(bytes, at, |block| unsafe { masks(block) }, super::prefix_xor)
}

/// SAFETY: as above.
#[inline]
#[target_feature(enable = "neon")]
pub(super) unsafe fn masks(block: &[u8; BLOCK]) -> Masks {
    // SAFETY: the load is one of exactly the 64 bytes and needs no alignment.
    let uint8x16x4_t(a, b, c, d) = unsafe { vld4q_u8(block.as_ptr()) };
    let all = [a, b, c, d];
    let bits = |answers: [uint8x16_t; 4]| {
        let [a0, a1, a2, a3] = answers;
        let low = vsriq_n_u8::<1>(a1, a0);
        let high = vsriq_n_u8::<1>(a3, a2);
        let nibble = vsriq_n_u8::<2>(high, low);
        let twice = vsriq_n_u8::<4>(nibble, nibble);
        vget_lane_u64::<0>(vreinterpret_u64_u8(vshrn_n_u16::<4>(vreinterpretq_u16_u8(twice))))
    };
    let equal = |byte: u8| {
        let wanted = vdupq_n_u8(byte);
        all.map(|v| vceqq_u8(v, wanted))
    };
    let either = |a: u8, b: u8| {
        let (a, b) = (vdupq_n_u8(a), vdupq_n_u8(b));
        bits(all.map(|v| vorrq_u8(vceqq_u8(v, a), vceqq_u8(v, b))))
    };
    // `{` and `[`, `}` and `]`, `e` and `E` differ in bit 5 alone: setting it makes one compare of two.
    let lower = all.map(|v| vorrq_u8(v, vdupq_n_u8(0x20)));
    let folded = |byte: u8| {
        let wanted = vdupq_n_u8(byte);
        bits(lower.map(|v| vceqq_u8(v, wanted)))
    };
    Masks {
        quote: bits(equal(b'"')),
        backslash: bits(equal(b'\\')),
        open: folded(b'{'),
        close: folded(b'}'),
        capital: either(b'N', b'I'),
        exponent: folded(b'e'),
        lead: bits([0, 1, 2, 3].map(|k| {
            let is = |v: uint8x16_t, byte: u8| vceqq_u8(v, vdupq_n_u8(byte));
            let letter = vorrq_u8(vorrq_u8(is(lower[k], b'n'), is(lower[k], b'i')), is(lower[k], b'|'));
            let sign = vorrq_u8(is(all[k], b'+'), is(all[k], b'-'));
            vorrq_u8(vorrq_u8(letter, sign), vcleq_u8(all[k], vdupq_n_u8(0x20)))
        })),
        high: bits(all.map(|v| vcltzq_s8(vreinterpretq_s8_u8(v)))),
    }
}
