//! The end of a JSON container, found 64 bytes at a time.
//!
//! In: bytes and the offset of a `{` or `[`. Out: the offset behind its partner, and whether a token that may be
//! non-finite stands in between. This is where a dump's bytes are looked at, about once each.
//!
//! For each block of 64 bytes a few bit masks say where quotes, backslashes, brackets and telling letters stand (bit i
//! for byte i). What is inside a string follows from the quotes by a prefix XOR; then a container ends where the
//! brackets outside of strings balance:
//!
//! ```text
//! quotes   = '"' that no odd run of backslashes precedes
//! inside   = prefix_xor(quotes) ^ inside_before          1 from an opening quote up to its closing quote
//! depth   += popcount(opens & !inside) - popcount(closes & !inside)
//! ```
//!
//! Only a block that could bring the depth to zero is looked at bracket by bracket. A token may be non-finite when a
//! bare `N` or `I` stands outside of strings (`NaN`, `Infinity`), a number has an exponent of three digits, or a string
//! starts like one of them (`"-inf"`, `" nan"`): one-sided, a false alarm only costs a parse.
//!
//! The masks are made by one of several engines, chosen once by what the processor can do; tests prove that all agree
//! with the byte-by-byte definition.

// PERF: the loop must be compiled into each engine with that engine's instructions.
#![allow(clippy::inline_always)]

/// Where a container ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// Behind the closing bracket; whether a token may be non-finite; whether all bytes are ASCII.
    End(usize, bool, bool),
    /// The bytes ended first.
    Open,
}

/// Bit i of each mask speaks of byte i of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Masks {
    quote: u64,
    backslash: u64,
    open: u64,
    close: u64,
    /// `N` and `I`.
    capital: u64,
    /// `e` and `E`.
    exponent: u64,
    /// Bytes from 0x80.
    high: u64,
}

const BLOCK: usize = 64;

/// Moves past the container that opens at `at`.
pub(crate) fn skip_container(bytes: &[u8], at: usize) -> Skipped {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            #[allow(unsafe_code)]
            return unsafe { avx2::skip(bytes, at) };
        }
    }
    skip_with(bytes, at, portable)
}

/// The loop over blocks, shared by all engines; inlined into each so that its masks stay in registers.
#[inline(always)]
fn skip_with(bytes: &[u8], start: usize, masks_of: impl Fn(&[u8; BLOCK]) -> Masks) -> Skipped {
    let mut at = start;
    let mut depth: i64 = 0;
    let mut inside_before = 0u64; // all ones when the block starts inside a string
    let mut escaped_before = 0u64; // one when the first byte is escaped
    let mut telling = false;
    let mut high = 0;
    while at < bytes.len() {
        let mut padded = [b' '; BLOCK];
        let block: &[u8; BLOCK] = if let Some(whole) = bytes.get(at..at + BLOCK) {
            whole.try_into().unwrap_or(&padded)
        } else {
            padded[..bytes.len() - at].copy_from_slice(&bytes[at..]);
            &padded
        };
        let m = masks_of(block);
        let quote = if m.backslash == 0 && escaped_before == 0 {
            m.quote
        } else {
            m.quote & !escaped(m.backslash, &mut escaped_before)
        };
        let inside = prefix_xor(quote) ^ inside_before;
        let open = m.open & !inside;
        let mut close = m.close & !inside;
        let closes = i64::from(close.count_ones());
        let mut end = None;
        if depth <= closes {
            // The depth may reach zero here: bracket by bracket.
            while close != 0 {
                let bit = close.trailing_zeros();
                let below = (1u64 << bit) - 1;
                let level = depth + i64::from((open & below).count_ones())
                    - i64::from((m.close & !inside & below).count_ones())
                    - 1;
                if level <= 0 {
                    end = Some(bit);
                    break;
                }
                close &= close - 1;
            }
        }
        let within = end.map_or(u64::MAX, |bit| u64::MAX >> (63 - bit));
        if m.capital & !inside & within != 0 {
            telling = true;
        }
        if !telling {
            let exponents = m.exponent & !inside & within;
            let starts = quote & inside & within;
            telling = (exponents != 0 && any(exponents, |i| large_exponent(bytes, at + i)))
                || (starts != 0 && any(starts, |i| starts_like_non_finite(bytes, at + i + 1)));
        }
        high |= m.high & within;
        if let Some(bit) = end {
            return Skipped::End(at + bit as usize + 1, telling, high == 0);
        }
        depth += i64::from(open.count_ones()) - closes;
        inside_before = ((inside as i64) >> 63) as u64;
        at += BLOCK;
    }
    Skipped::Open
}

#[inline(always)]
fn any(mut mask: u64, test: impl Fn(usize) -> bool) -> bool {
    while mask != 0 {
        if test(mask.trailing_zeros() as usize) {
            return true;
        }
        mask &= mask - 1;
    }
    false
}

/// Bit i: the number of set bits at or below i is odd.
#[inline(always)]
fn prefix_xor(mut bits: u64) -> u64 {
    bits ^= bits << 1;
    bits ^= bits << 2;
    bits ^= bits << 4;
    bits ^= bits << 8;
    bits ^= bits << 16;
    bits ^ (bits << 32)
}

/// Bytes that a backslash escapes. Rare in dumps, so it goes from backslash to backslash.
#[inline(never)]
fn escaped(backslash: u64, before: &mut u64) -> u64 {
    let mut escaped = *before;
    let mut left = backslash & !escaped;
    let mut after = 0;
    while left != 0 {
        let bit = left.trailing_zeros();
        if bit == 63 {
            after = 1;
            break;
        }
        escaped |= 1 << (bit + 1);
        // The next byte is used up, a backslash too.
        left &= !(0b11 << bit);
    }
    *before = after;
    escaped
}

/// Whether the string that starts at `at` (behind its quote) may be a non-finite number written as text.
#[inline(always)]
pub(crate) fn starts_like_non_finite(bytes: &[u8], at: usize) -> bool {
    match bytes.get(at) {
        Some(b'n' | b'N' | b'i' | b'I' | b'+' | b'-' | b' ' | b'\t' | b'\\') => named_non_finite(bytes, at),
        _ => false,
    }
}

#[inline(never)]
fn named_non_finite(bytes: &[u8], mut at: usize) -> bool {
    let limit = at + 64;
    while at < limit {
        match bytes.get(at) {
            Some(b' ' | b'\t' | b'+' | b'-') => at += 1,
            Some(b'\\') if matches!(bytes.get(at + 1), Some(b't' | b'n' | b'r')) => at += 2,
            _ => break,
        }
    }
    if at >= limit {
        return true; // a long run of white space: let the parser look
    }
    bytes.get(at..at + 3).is_some_and(|w| w.eq_ignore_ascii_case(b"nan") || w.eq_ignore_ascii_case(b"inf"))
}

/// Whether an `e` at `at` (outside of strings) starts an exponent of three digits that is not negative.
#[inline(always)]
pub(crate) fn large_exponent(bytes: &[u8], at: usize) -> bool {
    let sign = usize::from(bytes.get(at + 1) == Some(&b'+'));
    bytes.get(at + 1 + sign..at + 4 + sign).is_some_and(|d| d.iter().all(u8::is_ascii_digit))
}

/// Masks without SIMD: eight bytes at a time.
fn portable(block: &[u8; BLOCK]) -> Masks {
    /// High bit of each byte that equals `byte`.
    #[inline(always)]
    fn equal(word: u64, byte: u8) -> u64 {
        const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        let x = word ^ (u64::from(byte) * 0x0101_0101_0101_0101);
        !(((x & LOW) + LOW) | x | LOW)
    }
    /// One bit for each high bit.
    #[inline(always)]
    fn gather(high: u64) -> u64 {
        (high >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    }
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
        m.high |= gather(word & 0x8080_8080_8080_8080) << shift;
    }
    m
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2 {
    //! Masks by 32-byte compares.

    use std::arch::x86_64::{
        __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
    };

    use super::{BLOCK, Masks, Skipped, skip_with};

    /// SAFETY: the caller has checked that the processor has AVX2.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The byte-by-byte definition.
    fn naive(bytes: &[u8], start: usize) -> Skipped {
        let (mut depth, mut inside, mut telling) = (0i64, false, false);
        let ascii = |end: usize| bytes[start..end].is_ascii();
        let mut at = start;
        while at < bytes.len() {
            let byte = bytes[at];
            if inside {
                match byte {
                    b'\\' => at += 1,
                    b'"' => inside = false,
                    _ => {}
                }
            } else {
                match byte {
                    b'"' => {
                        inside = true;
                        telling |= starts_like_non_finite(bytes, at + 1);
                    }
                    // No JSON, but all engines must agree on it: outside of strings only quotes are escaped.
                    b'\\' if matches!(bytes.get(at + 1), Some(b'"' | b'\\')) => at += 1,
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth <= 0 {
                            return Skipped::End(at + 1, telling, ascii(at + 1));
                        }
                    }
                    b'N' | b'I' => telling = true,
                    b'e' | b'E' => telling |= large_exponent(bytes, at),
                    _ => {}
                }
            }
            at += 1;
        }
        Skipped::Open
    }

    /// A small generator: numbers that look random and are the same every time.
    struct Dice(u64);

    impl Dice {
        fn roll(&mut self, sides: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % sides
        }
    }

    #[test]
    fn all_engines_agree_on_masks() {
        let mut dice = Dice(7);
        for _ in 0..2000 {
            let block: [u8; BLOCK] = std::array::from_fn(|_| match dice.roll(3) {
                0 => b"\"\\{}[]NIeE{;[M"[dice.roll(14) as usize],
                _ => dice.roll(256) as u8,
            });
            let expected = {
                let of = |set: &[u8]| (0..BLOCK).fold(0u64, |m, i| m | u64::from(set.contains(&block[i])) << i);
                Masks {
                    quote: of(b"\""),
                    backslash: of(b"\\"),
                    open: of(b"{["),
                    close: of(b"}]"),
                    capital: of(b"NI"),
                    exponent: of(b"eE"),
                    high: (0..BLOCK).fold(0, |m, i| m | u64::from(!block[i].is_ascii()) << i),
                }
            };
            assert_eq!(portable(&block), expected);
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: just checked.
                #[allow(unsafe_code)]
                let masks = unsafe { avx2::masks(&block) };
                assert_eq!(masks, expected);
            }
        }
    }

    #[test]
    fn skipping_equals_the_definition() {
        let pieces: [&str; 22] = [
            "{",
            "}",
            "[",
            "]",
            "\"",
            "\\",
            "\\\"",
            "\"Max\": ",
            "NaN",
            "Infinity",
            "1e+38",
            "1e999",
            "-0.5",
            "\"-inf\"",
            "\" nan\"",
            "\"input_args\"",
            ",",
            "\n   ",
            "\"\\\\\"",
            "true",
            "é",
            "\"x\"",
        ];
        let mut dice = Dice(3);
        for round in 0..4000 {
            let mut text = String::from(if round % 2 == 0 { "{" } else { "[" });
            for _ in 0..dice.roll(60) {
                text.push_str(pieces[dice.roll(22) as usize]);
            }
            for _ in 0..dice.roll(6) {
                text.push_str("}]");
            }
            let prefix = " ".repeat(dice.roll(5) as usize);
            let whole = format!("{prefix}{text}");
            let bytes = whole.as_bytes();
            let expected = naive(bytes, prefix.len());
            assert_eq!(skip_with(bytes, prefix.len(), portable), expected, "{whole:?}");
            assert_eq!(skip_container(bytes, prefix.len()), expected, "{whole:?}");
        }
    }

    #[test]
    fn runs_of_backslashes_cross_blocks() {
        for length in 0..140 {
            for pad in [0, 1, 62, 63, 64] {
                let text = format!("[\"{}{}\"]]]]\"]", "x".repeat(pad), "\\".repeat(length));
                assert_eq!(skip_container(text.as_bytes(), 0), naive(text.as_bytes(), 0), "{length} {pad}");
            }
        }
    }
}
