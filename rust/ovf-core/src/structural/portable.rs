//! Masks without SIMD: eight bytes at a time in a plain register.

use super::{BLOCK, Masks};

/// The masks of one block.
pub(super) fn masks(block: &[u8; BLOCK]) -> Masks {
    let mut m = Masks::default();
    for (i, chunk) in block.chunks_exact(8).enumerate() {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or([0; 8]));
        let shift = 8 * i as u32;
        m.quote |= gather(equal(word, b'"')) << shift;
        m.backslash |= gather(equal(word, b'\\')) << shift;
        m.open |= gather(equal(word, b'{') | equal(word, b'[')) << shift;
        m.close |= gather(equal(word, b'}') | equal(word, b']')) << shift;
        m.capital |= gather(equal(word, b'N') | equal(word, b'I')) << shift;
        m.exponent |= gather(equal(word, b'e') | equal(word, b'E')) << shift;
        let lower = word | 0x2020_2020_2020_2020;
        let letter = equal(lower, b'n') | equal(lower, b'i') | equal(lower, b'|');
        let sign = equal(word, b'+') | equal(word, b'-');
        m.lead |= gather(letter | sign | up_to_space(word)) << shift;
        m.high |= gather(word & 0x8080_8080_8080_8080) << shift;
    }
    m
}

/// High bit of each byte that equals `byte`.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let x = word ^ (u64::from(byte) * 0x0101_0101_0101_0101);
    !(((x & LOW) + LOW) | x | LOW)
}

/// One bit for each high bit: a multiplication moves them side by side into the top byte.
#[inline(always)]
fn gather(high: u64) -> u64 {
    (high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// High bit of each byte that is at most a space.
#[inline(always)]
fn up_to_space(word: u64) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // 0x5f + 0x21 sets the high bit: bytes from 0x21 on, of those below 0x80, are above.
    let above = (word & LOW) + 0x5f5f_5f5f_5f5f_5f5f;
    !(above | word) & !LOW
}
