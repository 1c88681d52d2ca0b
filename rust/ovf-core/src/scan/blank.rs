//! What forms are laid over a record with: equal bytes, and what stands in a blank.
//!
//! Both look at 16 bytes at a time where the processor can (every x86-64 has SSE2), else byte by byte.
#![allow(unsafe_code, clippy::cast_ptr_alignment)] // the loads are unaligned ones
// PERF: a call costs as much as the work.
#![allow(clippy::inline_always)]

use super::form::MARGIN;
use crate::structural::large_exponent;
use crate::token::word_end;

/// A bare word that may stand in a blank, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blank {
    /// A decimal number that is far from any limit by its looks.
    Number(usize),
    /// [`NAN`].
    NaN,
    /// `Infinity`, `-Infinity`.
    Infinite(usize),
    /// Anything else.
    Other,
}

pub(super) const NAN: &[u8] = b"NaN";

impl Blank {
    /// Its bytes, if it may stand there.
    pub(super) fn length(self) -> Option<usize> {
        match self {
            Self::Number(length) | Self::Infinite(length) => Some(length),
            Self::NaN => Some(NAN.len()),
            Self::Other => None,
        }
    }
}

/// Reads the word at `at`, whatever it is.
#[inline]
pub(super) fn read_blank(bytes: &[u8], at: usize) -> Blank {
    if bytes.get(at..at + NAN.len() + 1) == Some(b"NaN,") { Blank::NaN } else { read_any_blank(bytes, at) }
}

#[cold]
#[inline(never)]
fn read_any_blank(bytes: &[u8], at: usize) -> Blank {
    let Some(end) = word_end(bytes, at) else {
        return Blank::Other;
    };
    let is_plain = |part: &[u8]| plain(part, 0) == Plain { length: part.len(), is_number: true };
    match &bytes[at..end] {
        NAN => Blank::NaN,
        word @ (b"Infinity" | b"-Infinity") => Blank::Infinite(word.len()),
        word => match word.iter().position(|b| matches!(b, b'e' | b'E')) {
            Some(e) if is_small_exponent(&word[e + 1..]) && is_plain(&word[..e]) => {
                debug_assert!(!large_exponent(bytes, at + e), "a small exponent");
                Blank::Number(word.len())
            }
            None if is_plain(word) => Blank::Number(word.len()),
            _ => Blank::Other,
        },
    }
}

fn is_small_exponent(exponent: &[u8]) -> bool {
    let digits = exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent);
    matches!(digits.len(), 1 | 2) && digits.iter().all(u8::is_ascii_digit)
}

/// Sign, digits and points at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plain {
    pub(super) length: usize,
    /// Whether they are a number: a digit first, at most one point, fewer than [`MOST`] of both.
    pub(super) is_number: bool,
}

/// Reads sign, digits and points at `at`: the whole word, if a word's end follows.
#[inline(always)]
pub(super) fn plain(bytes: &[u8], at: usize) -> Plain {
    let Some(window) = bytes.get(at..).and_then(<[u8]>::first_chunk::<WINDOW>) else {
        return long_plain(bytes, at);
    };
    let minus = u32::from(window[0] == b'-');
    let (digit, point) = digits_and_points(window);
    let (digit, point) = (digit >> minus, point >> minus);
    let run = (!(digit | point)).trailing_zeros();
    // PERF: statistics have at most twenty-odd digits.
    if run + minus >= WINDOW as u32 {
        return long_plain(bytes, at);
    }
    let points = point & ((1 << run) - 1);
    Plain { length: (minus + run) as usize, is_number: (digit & 1 == 1) & (points & points.wrapping_sub(1) == 0) }
}

#[cold]
#[inline(never)]
fn long_plain(bytes: &[u8], at: usize) -> Plain {
    let start = at + usize::from(bytes.get(at) == Some(&b'-'));
    let digits = bytes.get(start..).unwrap_or_default();
    let digits = &digits[..digits.iter().take(MOST).take_while(|b| b.is_ascii_digit() || **b == b'.').count()];
    let points = memchr::memchr_iter(b'.', digits).count();
    let is_number = digits.first().is_some_and(u8::is_ascii_digit) && digits.len() < MOST && points <= 1;
    Plain { length: start - at + digits.len(), is_number }
}

/// Digits of a number that is surely finite: 10^63 is, in every dtype that a statistic is converted from.
const MOST: usize = 64;

/// Bytes of a number that are looked at together.
const WINDOW: usize = 32;

/// Bit i: byte i is a digit; is a point.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn digits_and_points(window: &[u8; WINDOW]) -> (u32, u32) {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_set1_epi8, _mm_sub_epi8,
    };
    let half = |at: usize| {
        // SAFETY: SSE2 is part of x86-64; the load is one of 16 of the 32 bytes and needs no alignment.
        unsafe {
            let bytes = _mm_loadu_si128(window.as_ptr().add(at).cast::<__m128i>());
            let value = _mm_sub_epi8(bytes, _mm_set1_epi8(b'0' as i8));
            let digit = _mm_cmpeq_epi8(_mm_min_epu8(value, _mm_set1_epi8(9)), value);
            let point = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'.' as i8));
            (_mm_movemask_epi8(digit) as u32, _mm_movemask_epi8(point) as u32)
        }
    };
    let ((digits, points), (more_digits, more_points)) = (half(0), half(WINDOW / 2));
    (digits | more_digits << 16, points | more_points << 16)
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn digits_and_points(window: &[u8; WINDOW]) -> (u32, u32) {
    portable_digits_and_points(window)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn portable_digits_and_points(window: &[u8; WINDOW]) -> (u32, u32) {
    let (mut digits, mut points) = (0, 0);
    for (i, byte) in window.iter().enumerate() {
        digits |= u32::from(byte.is_ascii_digit()) << i;
        points |= u32::from(*byte == b'.') << i;
    }
    (digits, points)
}

/// Whether `length` bytes at `at` are those of `text` at `start`. [`MARGIN`] bytes behind both must be there, else no.
#[inline(always)]
pub(super) fn same(bytes: &[u8], at: usize, text: &[u8], start: usize, length: usize) -> bool {
    let (Some(a), Some(b)) = (bytes.get(at..at + length + MARGIN), text.get(start..start + length + MARGIN)) else {
        return false;
    };
    same_padded(a, b, length)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn same_padded(a: &[u8], b: &[u8], length: usize) -> bool {
    use std::arch::x86_64::{__m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8};
    let equal = |at: usize| {
        debug_assert!(at + MARGIN <= a.len().min(b.len()));
        // SAFETY: SSE2 is part of x86-64; `at` is at most `length`, and both slices are 16 bytes longer than that.
        unsafe {
            let a = _mm_loadu_si128(a.as_ptr().add(at).cast::<__m128i>());
            let b = _mm_loadu_si128(b.as_ptr().add(at).cast::<__m128i>());
            _mm_movemask_epi8(_mm_cmpeq_epi8(a, b)) as u32
        }
    };
    let mut at = 0;
    while at + 2 * MARGIN <= length {
        if equal(at) & equal(at + MARGIN) != 0xffff {
            return false;
        }
        at += 2 * MARGIN;
    }
    if at + MARGIN <= length {
        if equal(at) != 0xffff {
            return false;
        }
        at += MARGIN;
    }
    // Of the last compare only the bytes that are left count.
    (equal(at) | (0xffff << (length - at))) & 0xffff == 0xffff
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn same_padded(a: &[u8], b: &[u8], length: usize) -> bool {
    a[..length] == b[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let read = |word: &str| read_blank(format!("{word},").as_bytes(), 0);
        for word in ["0", "1.5", "-0.25", "12345678901234567890123", "1.", "3e-05", "-1.5e+10", "0.1234567890123456"] {
            assert_eq!(read(word), Blank::Number(word.len()), "{word}");
        }
        assert_eq!(read("NaN"), Blank::NaN);
        for word in ["Infinity", "-Infinity"] {
            assert_eq!(read(word), Blank::Infinite(word.len()), "{word}");
        }
        let long = "1".repeat(64);
        let others =
            ["", "-", ".5", "-.5", "1.5.2", "1e999", "1e100", "1e", "null", "true", "\"1\"", "NaN1", "1x", "-NaN"];
        for word in others.into_iter().chain([&*long]) {
            assert_eq!(read(word), Blank::Other, "{word}");
        }
        assert_eq!(read_blank(b"1.5", 0), Blank::Other, "cut in its middle");
    }

    #[test]
    fn numbers_of_every_length() {
        for head in ["", "-", "1.", "-0.", ".", "1.1.", "x"] {
            for digits in 0..80 {
                let word = format!("{head}{}", "7".repeat(digits));
                let whole = format!("{word},{:64}", "");
                // The window and the definition, which is used where the file ends.
                let (a, b) = (plain(whole.as_bytes(), 0), long_plain(whole.as_bytes(), 0));
                assert_eq!(a, b, "{word}");
                assert_eq!(plain(word.as_bytes(), 0), b, "{word}");
            }
        }
    }

    #[test]
    fn lanes_agree_with_the_definition() {
        let mut seed = 1u32;
        for _ in 0..2000 {
            let chunk: [u8; WINDOW] = std::array::from_fn(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                [b'0', b'9', b'.', b'/', b':', b'-', 0xb0, (seed >> 24) as u8][(seed >> 13) as usize % 8]
            });
            assert_eq!(digits_and_points(&chunk), portable_digits_and_points(&chunk));
        }
    }

    #[test]
    fn equal_bytes() {
        let text: Vec<u8> = (0..200u8).collect();
        for length in 0..100 {
            assert!(same(&text, 3, &text, 3, length));
            for different in 0..length + MARGIN {
                let mut other = text.clone();
                other[3 + different] ^= 1;
                assert_eq!(same(&other, 3, &text, 3, length), different >= length, "{length} {different}");
            }
        }
        assert!(!same(&text[..50], 3, &text, 3, 40), "no margin");
    }
}
