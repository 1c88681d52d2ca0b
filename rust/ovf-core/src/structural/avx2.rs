//! Masks by 32-byte compares.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
};

use super::{BLOCK, Masks, Skipped, skip_with};

/// SAFETY: the caller has checked that the processor has these instructions.
#[target_feature(enable = "avx2,bmi1,lzcnt,popcnt")]
pub(super) unsafe fn skip(bytes: &[u8], at: usize) -> Skipped {
    // SAFETY: as the caller's.
    skip_with(bytes, at, |block| unsafe { masks(block) })
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
        high: bits((low, high)),
    }
}
