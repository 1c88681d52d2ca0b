//! Masks by compares of the whole block: AVX-512 BW answers a compare with a mask register.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i, _mm512_cmpeq_epi8_mask, _mm512_cmple_epu8_mask, _mm512_loadu_si512, _mm512_movepi8_mask, _mm512_or_si512,
    _mm512_set1_epi8,
};

use super::{BLOCK, Masks, Skipped, skip_with};

/// SAFETY: the caller has checked that the processor has these instructions.
#[target_feature(enable = "avx512f,avx512bw,bmi1,lzcnt,popcnt,pclmulqdq")]
pub(super) unsafe fn skip(bytes: &[u8], at: usize) -> Skipped {
    // SAFETY: as the caller's.
    skip_with(bytes, at, |block| unsafe { masks(block) }, |bits| unsafe { super::avx2::prefix_xor(bits) })
}

/// SAFETY: as above.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn masks(block: &[u8; BLOCK]) -> Masks {
    // SAFETY: the load is an unaligned one of exactly the 64 bytes.
    #[allow(clippy::cast_ptr_alignment)]
    let all = unsafe { _mm512_loadu_si512(block.as_ptr().cast::<__m512i>()) };
    let equal = |byte: u8| _mm512_cmpeq_epi8_mask(all, _mm512_set1_epi8(byte as i8));
    // `{` and `[`, `}` and `]`, `e` and `E` differ in bit 5 alone: setting it makes one compare of two.
    let lower = _mm512_or_si512(all, _mm512_set1_epi8(0x20));
    let folded = |byte: u8| _mm512_cmpeq_epi8_mask(lower, _mm512_set1_epi8(byte as i8));
    Masks {
        quote: equal(b'"'),
        backslash: equal(b'\\'),
        open: folded(b'{'),
        close: folded(b'}'),
        capital: equal(b'N') | equal(b'I'),
        exponent: folded(b'e'),
        lead: folded(b'n')
            | folded(b'i')
            | folded(b'|')
            | equal(b'+')
            | equal(b'-')
            | _mm512_cmple_epu8_mask(all, _mm512_set1_epi8(0x20)),
        high: _mm512_movepi8_mask(all),
    }
}
