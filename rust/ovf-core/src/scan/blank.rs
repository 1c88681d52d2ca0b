//! What forms are laid over a record with: equal bytes, and what stands in a blank.
//!
//! [`lay`] looks at a number's 32 bytes at once: bit masks of digits and points give its length, and the piece that must
//! follow tells whether that was all of the word. [`read_blank`] reads any word, and is the definition that is tested
//! against.
#![allow(unsafe_code, clippy::cast_ptr_alignment)] // the loads are unaligned ones
// PERF: a call costs as much as the work.
#![allow(clippy::inline_always)]

use crate::structural::large_exponent;
use crate::token::word_end;

/// A bare word that may stand in a blank, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blank {
    /// A decimal number that is far from any limit by its looks.
    Number(usize),
    /// [`NAN`].
    NaN,
    /// `Infinity`, `-Infinity`: its length, whether it is the negative one.
    Infinite(usize, bool),
    /// Anything else.
    Other,
}

const NAN: &[u8] = b"NaN";
const INFINITY: &[u8] = b"Infinity";
/// Bytes behind the end of a form's text: one compare more.
pub(super) const MARGIN: usize = 32;

impl Blank {
    /// Its bytes, if it may stand there.
    pub(super) fn length(self) -> Option<usize> {
        match self {
            Self::Number(length) | Self::Infinite(length, _) => Some(length),
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
        word @ (b"Infinity" | b"-Infinity") => Blank::Infinite(word.len(), word[0] == b'-'),
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

/// Reads sign, digits and points at `at`.
pub(super) fn plain(bytes: &[u8], at: usize) -> Plain {
    let start = at + usize::from(bytes.get(at) == Some(&b'-'));
    let digits = bytes.get(start..).unwrap_or_default();
    let digits = &digits[..digits.iter().take(MOST).take_while(|b| b.is_ascii_digit() || **b == b'.').count()];
    let points = memchr::memchr_iter(b'.', digits).count();
    let is_number = digits.first().is_some_and(u8::is_ascii_digit) && digits.len() < MOST && points <= 1;
    Plain { length: start - at + digits.len(), is_number }
}

/// A form's text that was laid over a record, and fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Laid {
    /// Bytes of the record.
    pub(super) length: usize,
    pub(super) blanks: Blanks,
}

/// What stood in the blanks: one bit a blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blanks {
    pub(super) nan: u64,
    pub(super) pos_inf: u64,
    pub(super) neg_inf: u64,
    /// Whether a blank that has no bit is not finite.
    pub(super) beyond: bool,
}

impl Blanks {
    pub(super) const NUMBERS: Self = Self { nan: 0, pos_inf: 0, neg_inf: 0, beyond: false };

    /// Which are not finite, of those that have a bit.
    pub(super) fn bits(self) -> u64 {
        self.nan | self.pos_inf | self.neg_inf
    }

    /// Whether one is not finite.
    pub(super) fn non_finite(self) -> bool {
        self.beyond || self.bits() != 0
    }

    pub(super) fn note_nan(&mut self, blank: usize) {
        self.nan |= self.bit(blank);
    }

    pub(super) fn note_infinite(&mut self, blank: usize, negative: bool) {
        let bit = self.bit(blank);
        *(if negative { &mut self.neg_inf } else { &mut self.pos_inf }) |= bit;
    }

    fn bit(&mut self, blank: usize) -> u64 {
        self.beyond |= blank >= 64;
        u64::from(blank < 64) << (blank & 63)
    }
}

/// Why a form's text was not laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The first piece is another one.
    Other,
    /// Some blank or piece is not what it should be, or the file ends too near.
    Unclear,
}

/// Lays a form's text, in pieces of these `lengths`, over the record at `at`, with a decimal number (or one of the words for
/// what is none) between each two.
#[inline]
pub(super) fn lay(lanes: Lanes, bytes: &[u8], at: usize, text: &[u8], lengths: &[u32]) -> Result<Laid, Misfit> {
    let pieces: usize = text.len().saturating_sub(MARGIN);
    // Numbers that are longer than the window are left to others.
    let most = pieces + WINDOW * lengths.len() + WINDOW + MARGIN;
    debug_assert_eq!(lengths.iter().map(|&l| l as usize).sum::<usize>(), pieces);
    if bytes.len() - at < most {
        return Err(Misfit::Unclear);
    }
    // SAFETY: `text` holds all pieces and a margin, as [`super::form`] makes it. A number that is gone past is shorter than the window, so the place in
    // `bytes` is never more than all pieces and that many windows behind `at`, and a window or margin is there behind it.
    unsafe {
        let (record, text) = (bytes.as_ptr().add(at), text.as_ptr());
        match lanes {
            #[cfg(target_arch = "x86_64")]
            Lanes::Avx2 => avx2::lay(record, text, lengths),
            #[cfg(target_arch = "x86_64")]
            Lanes::Sse2 => lay_with(record, text, lengths, |at| sse2::window(at), |a, b, n| sse2::same(a, b, n)),
            Lanes::Portable => {
                lay_with(record, text, lengths, |at| portable::window(at), |a, b, n| portable::same(a, b, n))
            }
        }
    }
}

/// What the processor can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lanes {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))] // tests compare with it
    Portable,
}

impl Default for Lanes {
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2") {
            Self::Avx2
        } else {
            Self::Sse2
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Portable
    }
}

/// `window` makes masks of digits and points of the
/// 32 bytes at a place, `same` compares bytes there.
///
/// SAFETY: as [`lay`] says.
#[inline(always)]
unsafe fn lay_with(
    record: *const u8,
    mut text: *const u8,
    lengths: &[u32],
    window: impl Fn(*const u8) -> (u32, u32),
    same: impl Fn(*const u8, *const u8, usize) -> bool,
) -> Result<Laid, Misfit> {
    let mut at = record;
    let mut wrong = 0u32;
    let Some((&first, lengths)) = lengths.split_first() else {
        return Err(Misfit::Unclear);
    };
    let length = first as usize;
    if !same(at, text, length) {
        return Err(Misfit::Other);
    }
    let mut blanks = Blanks::NUMBERS;
    // SAFETY: as the caller's, here and below.
    unsafe {
        (at, text) = (at.add(length), text.add(length));
        for (blank, &length) in lengths.iter().enumerate() {
            let length = length as usize;
            let minus = u32::from(*at == b'-');
            let (digits, points) = window(at);
            let (digits, points) = (digits >> minus, points >> minus);
            let word = if digits & 1 == 1 {
                let run = (!(digits | points)).trailing_zeros();
                let mut word = run + minus;
                if word >= WINDOW as u32 {
                    return Err(Misfit::Unclear);
                }
                // Below the run's end: all points but the first.
                let points = points & ((1u32 << run) - 1);
                wrong |= points & points.wrapping_sub(1);
                if *at.add(word as usize) == b'e' {
                    let sign = *at.add(word as usize + 1);
                    // Two digits: Python writes no fewer.
                    let is_small =
                        word + 5 <= WINDOW as u32 && matches!(sign, b'-' | b'+') && digits >> (run + 2) & 3 == 3;
                    if !is_small {
                        return Err(Misfit::Unclear);
                    }
                    word += 4;
                }
                word as usize
            } else if std::slice::from_raw_parts(at, NAN.len()) == NAN {
                blanks.note_nan(blank);
                NAN.len()
            } else if std::slice::from_raw_parts(at.add(minus as usize), INFINITY.len()) == INFINITY {
                blanks.note_infinite(blank, minus == 1);
                minus as usize + INFINITY.len()
            } else {
                return Err(Misfit::Unclear);
            };
            at = at.add(word);
            // A piece begins with what ends a word, so where it follows, the number was all there is.
            if !same(at, text, length) {
                return Err(Misfit::Unclear);
            }
            (at, text) = (at.add(length), text.add(length));
        }
        if wrong == 0 { Ok(Laid { length: at.offset_from_unsigned(record), blanks }) } else { Err(Misfit::Unclear) }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_set1_epi8,
        _mm256_sub_epi8,
    };

    /// SAFETY: as [`super::lay_with`], and the processor has these instructions.
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    pub(super) unsafe fn lay(
        record: *const u8,
        text: *const u8,
        lengths: &[u32],
    ) -> Result<super::Laid, super::Misfit> {
        // SAFETY: as the caller's.
        unsafe { super::lay_with(record, text, lengths, |at| window(at), |a, b, n| same(a, b, n)) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn window(at: *const u8) -> (u32, u32) {
        // SAFETY: 32 bytes are there.
        let bytes = unsafe { _mm256_loadu_si256(at.cast::<__m256i>()) };
        let value = _mm256_sub_epi8(bytes, _mm256_set1_epi8(b'0' as i8));
        let digit = _mm256_cmpeq_epi8(_mm256_min_epu8(value, _mm256_set1_epi8(9)), value);
        let point = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'.' as i8));
        (_mm256_movemask_epi8(digit) as u32, _mm256_movemask_epi8(point) as u32)
    }

    /// SAFETY: 32 bytes more than `length` are there at both places.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn same(a: *const u8, b: *const u8, length: usize) -> bool {
        let equal = |at: usize| {
            // SAFETY: `at` is at most `length`.
            let (a, b) = unsafe {
                (_mm256_loadu_si256(a.add(at).cast::<__m256i>()), _mm256_loadu_si256(b.add(at).cast::<__m256i>()))
            };
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) as u32
        };
        let mut at = 0;
        while at + 32 <= length {
            if equal(at) != u32::MAX {
                return false;
            }
            at += 32;
        }
        // Of the last compare only the bytes that are left count.
        equal(at) | (u32::MAX << (length - at)) == u32::MAX
    }
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_set1_epi8, _mm_sub_epi8,
    };

    /// SAFETY: 32 bytes are there.
    #[inline(always)]
    pub(super) unsafe fn window(at: *const u8) -> (u32, u32) {
        // SAFETY: as the caller's; SSE2 is part of x86-64.
        let half = |at: *const u8| unsafe {
            let bytes = _mm_loadu_si128(at.cast::<__m128i>());
            let value = _mm_sub_epi8(bytes, _mm_set1_epi8(b'0' as i8));
            let digit = _mm_cmpeq_epi8(_mm_min_epu8(value, _mm_set1_epi8(9)), value);
            let point = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(b'.' as i8));
            (_mm_movemask_epi8(digit) as u32, _mm_movemask_epi8(point) as u32)
        };
        // SAFETY: as above.
        let ((digits, points), (more_digits, more_points)) = (half(at), half(unsafe { at.add(16) }));
        (digits | more_digits << 16, points | more_points << 16)
    }

    /// SAFETY: 32 bytes more than `length` are there at both places.
    #[inline(always)]
    pub(super) unsafe fn same(a: *const u8, b: *const u8, length: usize) -> bool {
        // SAFETY: as the caller's; SSE2 is part of x86-64.
        let equal = |at: usize| unsafe {
            let a = _mm_loadu_si128(a.add(at).cast::<__m128i>());
            let b = _mm_loadu_si128(b.add(at).cast::<__m128i>());
            _mm_movemask_epi8(_mm_cmpeq_epi8(a, b)) as u32
        };
        let mut at = 0;
        while at + 16 <= length {
            if equal(at) != 0xffff {
                return false;
            }
            at += 16;
        }
        // Of the last compare only the bytes that are left count.
        (equal(at) | (0xffff << (length - at))) & 0xffff == 0xffff
    }
}

/// What the others are to say; and what stands in for them where there is none.
mod portable {
    use super::WINDOW;

    /// SAFETY: 32 bytes are there.
    pub(super) unsafe fn window(at: *const u8) -> (u32, u32) {
        // SAFETY: as the caller's.
        let window = unsafe { std::slice::from_raw_parts(at, WINDOW) };
        let (mut digits, mut points) = (0, 0);
        for (i, byte) in window.iter().enumerate() {
            // PERF: what stands behind the number does not matter, but for an exponent.
            if !byte.is_ascii_digit() && !matches!(byte, b'.' | b'-' | b'+' | b'e') {
                break;
            }
            digits |= u32::from(byte.is_ascii_digit()) << i;
            points |= u32::from(*byte == b'.') << i;
        }
        (digits, points)
    }

    /// SAFETY: `length` bytes are there at both places.
    pub(super) unsafe fn same(a: *const u8, b: *const u8, length: usize) -> bool {
        // SAFETY: as the caller's.
        unsafe { std::slice::from_raw_parts(a, length) == std::slice::from_raw_parts(b, length) }
    }
}

/// Digits of a number that is surely finite: 10^63 is, in every dtype that a statistic is converted from.
const MOST: usize = 64;

/// Bytes of a number that are looked at together.
const WINDOW: usize = 32;

/// Whether `piece` stands at `at`.
pub(super) fn same(bytes: &[u8], at: usize, piece: &[u8]) -> bool {
    bytes.get(at..at + piece.len()) == Some(piece)
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
        for (word, negative) in [("Infinity", false), ("-Infinity", true)] {
            assert_eq!(read(word), Blank::Infinite(word.len(), negative), "{word}");
        }
        let long = "1".repeat(64);
        let others =
            ["", "-", ".5", "-.5", "1.5.2", "1e999", "1e100", "1e", "null", "true", "\"1\"", "NaN1", "1x", "-NaN"];
        for word in others.into_iter().chain([&*long]) {
            assert_eq!(read(word), Blank::Other, "{word}");
        }
        assert_eq!(read_blank(b"1.5", 0), Blank::Other, "cut in its middle");
    }

    const PIECES: [&str; 4] = [
        "{\"Max\": ",
        ", \"Min\": ",
        ",\n  \"a key of more than thirty-two bytes, so that two compares are needed\": ",
        "}",
    ];

    fn all_lanes() -> Vec<Lanes> {
        #[cfg(target_arch = "x86_64")]
        let mut lanes = vec![Lanes::Portable, Lanes::Sse2];
        #[cfg(not(target_arch = "x86_64"))]
        let mut lanes = vec![Lanes::Portable];
        if !lanes.contains(&Lanes::default()) {
            lanes.push(Lanes::default());
        }
        lanes
    }

    /// What [`lay`] says of the record, with every engine.
    fn laid(record: &str) -> Result<Laid, Misfit> {
        let text = format!("{}{:MARGIN$}", PIECES.concat(), "");
        let lengths = PIECES.map(|p| p.len() as u32);
        let bytes = format!("##{record}{:400}", "");
        let mut said: Vec<_> =
            all_lanes().into_iter().map(|l| lay(l, bytes.as_bytes(), 2, text.as_bytes(), &lengths)).collect();
        said.dedup();
        assert_eq!(said.len(), 1, "{record}: {said:?}");
        said[0]
    }

    fn with(words: [&str; 3]) -> String {
        let pieces = PIECES.iter().zip(words.iter().chain([&""]));
        pieces.flat_map(|(piece, word)| [*piece, *word]).collect()
    }

    fn numbers(record: &str) -> Laid {
        Laid { length: record.len(), blanks: Blanks::NUMBERS }
    }

    #[test]
    fn what_is_no_number_is_noted() {
        let of = |nan, pos_inf, neg_inf| Blanks { nan, pos_inf, neg_inf, beyond: false };
        for (words, blanks) in [
            (["NaN", "1", "NaN"], of(0b101, 0, 0)),
            (["1", "NaN", "2"], of(0b10, 0, 0)),
            (["Infinity", "NaN", "2"], of(0b10, 0b1, 0)),
            (["1", "2", "-Infinity"], of(0, 0, 0b100)),
        ] {
            let record = with(words);
            assert_eq!(laid(&record), Ok(Laid { length: record.len(), blanks }), "{record}");
        }
        for word in ["-NaN", "NaN1", "Na", "Infinit", "--Infinity", "-Infinity1", "null", "\"1\""] {
            assert_eq!(laid(&with(["1", word, "2"])), Err(Misfit::Unclear), "{word}");
        }
    }

    #[test]
    fn numbers_of_every_length() {
        for head in ["", "-", "1.", "-0.", ".", "1.1.", "x", "+", "--"] {
            for tail in ["", "e-05", "e+10", "e-100", "e5", "e", "e-5", "E-05", "1e-051", "x"] {
                for digits in 0..70 {
                    let word = format!("{head}{}{tail}", "7".repeat(digits));
                    let record = with(["1", &word, "-0.5"]);
                    let said = laid(&record);
                    // It may leave a number to others, but what it takes is one.
                    let number = matches!(read_blank(format!("{word},").as_bytes(), 0), Blank::Number(_));
                    let usual = word.len() <= WINDOW - 2 && (tail.is_empty() || matches!(tail, "e-05" | "e+10"));
                    if said == Err(Misfit::Unclear) {
                        assert!(!number || !usual, "{word}");
                    } else {
                        assert!(number, "{word}");
                        assert_eq!(said, Ok(numbers(&record)), "{word}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_byte_of_the_pieces_counts() {
        let record = with(["1.5", "0", "2e-05"]);
        assert_eq!(laid(&record), Ok(numbers(&record)));
        for at in 0..record.len() {
            let mut other = record.clone().into_bytes();
            other[at] ^= 1;
            let other = String::from_utf8(other).expect("text");
            let changed_digit = record.as_bytes()[at].is_ascii_digit();
            let expected = if at < PIECES[0].len() {
                Err(Misfit::Other)
            } else if changed_digit && other.as_bytes()[at].is_ascii_digit() {
                Ok(numbers(&record))
            } else {
                Err(Misfit::Unclear)
            };
            assert_eq!(laid(&other), expected, "{at}");
        }
    }
}
