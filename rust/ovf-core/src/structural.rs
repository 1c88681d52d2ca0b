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
//! The masks are made by one of several engines, chosen once by what the processor can do: 64 bytes a compare with
//! AVX-512, 32 with AVX2, 16 with NEON, 8 in a plain register anywhere else. A test proves that all agree with the
//! byte-by-byte definition; an engine is one function from 64 bytes to [`Masks`] and nothing else.

// PERF: the loop must be compiled into each engine with that engine's instructions.
#![allow(clippy::inline_always)]

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod agreement;

use std::sync::OnceLock;

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
    /// What a non-finite number written as text may start with, and what is cheap to take for it:
    /// `n N i I + - \\ |` and everything up to the space.
    lead: u64,
    /// Bytes from 0x80.
    high: u64,
}

const BLOCK: usize = 64;

/// What makes the masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Eight bytes at a time, on every processor.
    Portable,
    /// x86-64 with AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// x86-64 with AVX-512 BW.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Any aarch64.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Engine {
    /// The engines that this processor can run, the fastest last.
    pub(crate) fn available() -> Vec<Self> {
        let mut engines = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let bits = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt")
                && is_x86_feature_detected!("pclmulqdq");
            if bits && is_x86_feature_detected!("avx2") {
                engines.push(Self::Avx2);
            }
            if bits && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                engines.push(Self::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            engines.push(Self::Neon);
        }
        engines
    }

    /// The fastest, found once.
    #[inline]
    pub(crate) fn best() -> Self {
        static BEST: OnceLock<Engine> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().pop().unwrap_or(Self::Portable))
    }

    /// Moves past the container that opens at `at`. `self` must be one of [`Engine::available`].
    #[inline]
    pub(crate) fn skip(self, bytes: &[u8], at: usize) -> Skipped {
        // SAFETY: the processor has been asked for these instructions.
        #[allow(unsafe_code)]
        match self {
            Self::Portable => skip_with(bytes, at, portable::masks, prefix_xor),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::skip(bytes, at) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::skip(bytes, at) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon => unsafe { neon::skip(bytes, at) },
        }
    }
}

/// Moves past the container that opens at `at`, with the fastest engine.
pub(crate) fn skip_container(bytes: &[u8], at: usize) -> Skipped {
    Engine::best().skip(bytes, at)
}

/// The loop over blocks, shared by all engines; inlined into each so that its masks stay in registers.
#[inline(always)]
fn skip_with(
    bytes: &[u8],
    start: usize,
    masks_of: impl Fn(&[u8; BLOCK]) -> Masks,
    prefix_xor: impl Fn(u64) -> u64,
) -> Skipped {
    let mut state = State::default();
    let mut at = start;
    while let Some(block) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        if let Some(bit) = state.take(bytes, at, masks_of(block), &prefix_xor) {
            return Skipped::End(at + bit as usize + 1, state.telling, state.high == 0);
        }
        at += BLOCK;
    }
    if let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let mut padded = [b' '; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        if let Some(bit) = state.take(bytes, at, masks_of(&padded), &prefix_xor) {
            return Skipped::End(at + bit as usize + 1, state.telling, state.high == 0);
        }
    }
    Skipped::Open
}

/// What crosses from one block to the next.
#[derive(Default)]
struct State {
    depth: i64,
    /// All ones when the block starts inside a string.
    inside: u64,
    /// One when the first byte is escaped.
    escaped: u64,
    /// One when the first byte is the first of a string.
    first: u64,
    telling: bool,
    high: u64,
}

impl State {
    /// Takes in one block; the place of the bracket that closes the container, if it is in it.
    #[inline(always)]
    fn take(&mut self, bytes: &[u8], at: usize, m: Masks, prefix_xor: impl Fn(u64) -> u64) -> Option<u32> {
        let mut quote = m.quote;
        if m.backslash | self.escaped != 0 {
            let (escaped, next) = escaped(m.backslash, self.escaped);
            (quote, self.escaped) = (quote & !escaped, next);
        }
        let inside = prefix_xor(quote) ^ self.inside;
        let open = m.open & !inside;
        let close = m.close & !inside;
        let closes = i64::from(close.count_ones());
        let end = if self.depth <= closes { self.end(open, close) } else { None };
        let within = end.map_or(u64::MAX, |bit| u64::MAX >> (63 - bit));
        let starts = quote & inside;
        let first = starts << 1 | self.first;
        let suspects = ((m.capital | m.exponent) & !inside) | (m.lead & first);
        if suspects & within != 0 && !self.telling {
            let bare = m.capital & !inside & within;
            let exponents = m.exponent & !inside & within;
            let firsts = m.lead & first & within;
            self.telling = bare != 0
                || any(exponents, |i| large_exponent(bytes, at + i))
                || any(firsts, |i| starts_like_non_finite(bytes, at + i));
        }
        self.high |= m.high & within;
        self.depth += i64::from(open.count_ones()) - closes;
        self.inside = ((inside as i64) >> 63) as u64;
        self.first = starts >> 63;
        end
    }

    /// The depth may reach zero in this block: bracket by bracket.
    #[inline(never)]
    fn end(&self, open: u64, close: u64) -> Option<u32> {
        let mut left = close;
        while left != 0 {
            let bit = left.trailing_zeros();
            let below = (1u64 << bit) - 1;
            let opened = self.depth + i64::from((open & below).count_ones());
            if opened - i64::from((close & below).count_ones()) <= 1 {
                return Some(bit);
            }
            left &= left - 1;
        }
        None
    }
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

/// Bytes that a backslash escapes, and whether the next block's first is one. Rare in dumps, so it goes from backslash to backslash.
#[inline(never)]
fn escaped(backslash: u64, before: u64) -> (u64, u64) {
    let mut escaped = before;
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
    (escaped, after)
}

/// Whether the string that starts at `at` (behind its quote) may be a non-finite number written as text.
#[inline(always)]
pub(crate) fn starts_like_non_finite(bytes: &[u8], at: usize) -> bool {
    match bytes.get(at) {
        // `input_args` stands in every record: two bytes more tell it from `inf`.
        Some(b'n' | b'N' | b'i' | b'I') => is_named(bytes, at),
        Some(b'+' | b'-' | b' ' | b'\t' | b'\\') => named_non_finite(bytes, at),
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
    is_named(bytes, at)
}

#[inline(always)]
fn is_named(bytes: &[u8], at: usize) -> bool {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk).map(|w: &[u8; 3]| w.map(|b| b | 0x20));
    word.is_some_and(|w| w == *b"nan" || w == *b"inf")
}

/// Whether an `e` at `at` (outside of strings) starts an exponent of three digits that is not negative.
#[inline(always)]
pub(crate) fn large_exponent(bytes: &[u8], at: usize) -> bool {
    let sign = usize::from(bytes.get(at + 1) == Some(&b'+'));
    bytes.get(at + 1 + sign..at + 4 + sign).is_some_and(|d| d.iter().all(u8::is_ascii_digit))
}
