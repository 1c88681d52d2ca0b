//! Masks by 32-byte compares.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, _mm_clmulepi64_si128, _mm_cvtsi128_si64, _mm_set_epi64x, _mm_set1_epi8, _mm256_cmpeq_epi8,
    _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8, _mm256_setr_epi8,
    _mm256_shuffle_epi8,
};

use super::{BLOCK, Masks, Skipped, skip_with};

/// SAFETY: the caller has checked that the processor has these instructions.
#[target_feature(enable = "avx2,bmi1,lzcnt,popcnt,pclmulqdq")]
pub(super) unsafe fn skip(bytes: &[u8], at: usize) -> Skipped {
    // SAFETY: as the caller's.
    skip_with(bytes, at, |block| unsafe { masks(block) }, |bits| unsafe { prefix_xor(bits) })
}

/// A carry-less product with all ones is the prefix XOR. SAFETY: as above.
#[inline]
#[target_feature(enable = "pclmulqdq,sse2")]
pub(super) unsafe fn prefix_xor(bits: u64) -> u64 {
    let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, bits as i64), _mm_set1_epi8(-1));
    _mm_cvtsi128_si64(product) as u64
}

/// SAFETY: as above.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn masks(block: &[u8; BLOCK]) -> Masks {
    // SAFETY: both halves lie within the 64 bytes; the loads are unaligned ones.
    #[allow(clippy::cast_ptr_alignment)]
    let (low, high) = unsafe {
        let start = block.as_ptr().cast::<__m256i>();
        (_mm256_loadu_si256(start), _mm256_loadu_si256(start.add(1)))
    };
    let equal = |byte: u8| {
        let wanted = _mm256_set1_epi8(byte as i8);
        (_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted))
    };
    let bits = |(low, high): (__m256i, __m256i)| {
        u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32
    };
    let either = |a: u8, b: u8| {
        let ((al, ah), (bl, bh)) = (equal(a), equal(b));
        bits((_mm256_or_si256(al, bl), _mm256_or_si256(ah, bh)))
    };
    // `{` and `[`, `}` and `]`, `e` and `E` differ in bit 5 alone: setting it makes one compare of two.
    let folded = |byte: u8| {
        let bit = _mm256_set1_epi8(0x20);
        let wanted = _mm256_set1_epi8(byte as i8);
        let (low, high) = (_mm256_or_si256(low, bit), _mm256_or_si256(high, bit));
        bits((_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted)))
    };
    Masks {
        quote: bits(equal(b'"')),
        backslash: bits(equal(b'\\')),
        open: folded(b'{'),
        close: folded(b'}'),
        capital: either(b'N', b'I'),
        exponent: folded(b'e'),
        lead: {
            // By the low half of the byte: a shuffle gives the one letter or sign that would have it.
            let letters = _mm256_setr_epi8(
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0x69, 0, 0x2b, 0x7c, 0x2d, 0x6e, 0, //
                0, 0, 0, 0, 0, 0, 0, 0, 0, 0x69, 0, 0x2b, 0x7c, 0x2d, 0x6e, 0,
            );
            let bit = _mm256_set1_epi8(0x20);
            let lead = |v| {
                let letter = _mm256_cmpeq_epi8(_mm256_or_si256(v, bit), _mm256_shuffle_epi8(letters, v));
                _mm256_or_si256(letter, _mm256_cmpeq_epi8(_mm256_min_epu8(v, bit), v))
            };
            bits((lead(low), lead(high)))
        },
        high: bits((low, high)),
    }
}
