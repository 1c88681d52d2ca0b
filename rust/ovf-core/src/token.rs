//! JSON tokens of a dump, read in place: strings, numbers, the bare words `NaN`, `Infinity`, `-Infinity`.
//!
//! A [`Cursor`] is a byte slice and an index; every method is one rule of the grammar and either moves the index
//! past what it read or returns a [`Stop`]. Nothing here allocates but [`unescape`], nothing recurses.
//!
//! Python's `json` writes what strict JSON forbids (bare non-finite words, lone surrogate escapes, integers of any
//! length); all of it is accepted.

use std::borrow::Cow;
use std::ops::Range;

/// Why reading stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The bytes ended inside a value: the file was cut short.
    End,
    /// A byte that cannot stand here.
    Unexpected {
        /// Where.
        at: usize,
        /// What could have stood there.
        expected: &'static str,
    },
}

pub(crate) type Read<T> = Result<T, Stop>;

/// Strings up to this length are read byte by byte.
const SHORT: usize = 24;

/// Strings of [`Cursor::long_string`] up to this length are read eight bytes at a time.
const LONG: usize = 96;

/// The place of the first byte of `word`, from its low end, that is one of two.
fn first_of(word: u64, a: u8, b: u8) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    // The lowest bit that this sets is that of the first zero byte; those above it may be wrong.
    let zeros = |x: u64| x.wrapping_sub(ONES) & !x & (ONES << 7);
    let found = zeros(word ^ (ONES * u64::from(a))) | zeros(word ^ (ONES * u64::from(b)));
    (found != 0).then(|| found.trailing_zeros() as usize / 8)
}

/// Bytes that end a bare word.
const ENDS_WORD: [bool; 256] = {
    let mut table = [false; 256];
    let ends = b",}]:\"{[ \n\r\t";
    let mut i = 0;
    while i < ends.len() {
        table[ends[i] as usize] = true;
        i += 1;
    }
    table
};

/// A place in a byte slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    pub(crate) fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not white space, without moving past it.
    pub(crate) fn peek(&mut self) -> Read<u8> {
        self.skip_space();
        self.bytes.get(self.at).copied().ok_or(Stop::End)
    }

    /// Moves past `byte`.
    pub(crate) fn expect(&mut self, byte: u8, expected: &'static str) -> Read<()> {
        if self.peek()? == byte {
            self.at += 1;
            Ok(())
        } else {
            Err(Stop::Unexpected { at: self.at, expected })
        }
    }

    /// Moves past `byte` if it is next.
    pub(crate) fn eat(&mut self, byte: u8) -> Read<bool> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Ok(found)
    }

    /// The raw content of a string, between its quotes.
    pub(crate) fn string(&mut self) -> Read<Range<usize>> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        // PERF: keys and most texts are shorter than a call of memchr is worth.
        for at in start..self.bytes.len().min(start + SHORT) {
            match self.bytes[at] {
                b'"' => {
                    self.at = at + 1;
                    return Ok(start..at);
                }
                b'\\' => break,
                _ => {}
            }
        }
        self.rest_of_string(start)
    }

    /// [`Cursor::string`] for texts that are mostly long, like names.
    pub(crate) fn long_string(&mut self) -> Read<Range<usize>> {
        self.expect(b'"', "a string")?;
        let start = self.at;
        // PERF: eight bytes at a time; a call of memchr costs more than most names.
        while self.at < start + LONG
            && let Some(word) = self.bytes.get(self.at..).and_then(<[u8]>::first_chunk)
        {
            let word = u64::from_le_bytes(*word);
            if let Some(byte) = first_of(word, b'"', b'\\') {
                self.at += byte;
                if self.bytes[self.at] == b'"' {
                    self.at += 1;
                    return Ok(start..self.at - 1);
                }
                break;
            }
            self.at += 8;
        }
        self.rest_of_string(start)
    }

    fn rest_of_string(&mut self, start: usize) -> Read<Range<usize>> {
        loop {
            let Some(found) = memchr::memchr2(b'"', b'\\', &self.bytes[self.at..]) else {
                self.at = self.bytes.len();
                return Err(Stop::End);
            };
            let at = self.at + found;
            if self.bytes[at] == b'"' {
                self.at = at + 1;
                return Ok(start..at);
            }
            self.at = at + 2;
            if self.at > self.bytes.len() {
                self.at = self.bytes.len();
                return Err(Stop::End);
            }
        }
    }

    /// A bare word or number: everything up to the next structural byte or white space.
    pub(crate) fn word(&mut self) -> Read<&'a [u8]> {
        self.skip_space();
        let start = self.at;
        // A number cut in its middle cannot be told from a whole one.
        let Some(end) = word_end(self.bytes, start) else {
            self.at = self.bytes.len();
            return Err(Stop::End);
        };
        if end == start {
            return Err(Stop::Unexpected { at: start, expected: "a value" });
        }
        self.at = end;
        Ok(&self.bytes[start..end])
    }

    /// Moves past one value of any kind and depth, looking only at strings and brackets.
    pub(crate) fn skip_value(&mut self) -> Read<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    if depth == 0 {
                        return Err(Stop::Unexpected { at: self.at, expected: "a value" });
                    }
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.word()?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }
}

/// The end of the word that starts at `start`, or nothing where the bytes end first.
pub(crate) fn word_end(bytes: &[u8], start: usize) -> Option<usize> {
    bytes[start..].iter().position(|&b| ENDS_WORD[usize::from(b)]).map(|n| start + n)
}

/// A number, a boolean (1 and 0), one of the non-finite words, or `None` for `null` and anything else.
pub(crate) fn number(word: &[u8]) -> Option<f64> {
    match word {
        b"NaN" | b"-NaN" => Some(f64::NAN),
        b"Infinity" => Some(f64::INFINITY),
        b"-Infinity" => Some(f64::NEG_INFINITY),
        b"true" => Some(1.0),
        b"false" => Some(0.0),
        b"null" => None,
        _ => match word.first() {
            // Rust also reads `inf` and `nan`, which are no words of a dump: only digits start a number.
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => {
                let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
                // An integer of hundreds of digits is a large number, not an infinite one.
                let integer = word.iter().all(|b| b.is_ascii_digit() || *b == b'-');
                Some(if integer { value.clamp(f64::MIN, f64::MAX) } else { value })
            }
            _ => None,
        },
    }
}

/// A statistic written as a string (`"nan"`, `"-inf"`, `" Infinity\t"`, `"0.001"`): old dumps do that.
pub(crate) fn quoted_number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let text = text.replace("\\t", " ").replace("\\n", " ").replace("\\r", " ");
    let text = text.trim();
    let (negative, bare) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if bare.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    if bare.eq_ignore_ascii_case("inf") || bare.eq_ignore_ascii_case("infinity") {
        return Some(if negative { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    bare.as_bytes().first().filter(|b| b.is_ascii_digit() || **b == b'.')?;
    // Who writes text has words for what is not finite; digits are a large number at most.
    text.parse().ok().map(|value: f64| value.clamp(f64::MIN, f64::MAX))
}

/// The text of a string's raw content. Lone surrogate escapes stay as they are written (`\ud800`), invalid UTF-8
/// becomes U+FFFD: both stand in names that people only read.
pub(crate) fn unescape(raw: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', raw).is_none() {
        return std::str::from_utf8(raw).map_or_else(|_| String::from_utf8_lossy(raw), Cow::Borrowed);
    }
    let mut out: Vec<u8> = Vec::with_capacity(raw.len());
    let mut at = 0;
    while at < raw.len() {
        if raw[at] != b'\\' {
            out.push(raw[at]);
            at += 1;
            continue;
        }
        let escape = raw.get(at + 1).copied().unwrap_or(b'\\');
        at += 2;
        match escape {
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'r' => out.push(b'\r'),
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'u' => {
                let Some(unit) = hex4(raw, at) else {
                    out.extend_from_slice(b"\\u");
                    continue;
                };
                at += 4;
                let mut code = u32::from(unit);
                if (0xd800..0xdc00).contains(&unit)
                    && raw.get(at..at + 2) == Some(b"\\u")
                    && let Some(low) = hex4(raw, at + 2).filter(|l| (0xdc00..0xe000).contains(l))
                {
                    code = 0x1_0000 + ((u32::from(unit) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
                    at += 6;
                }
                if let Some(c) = char::from_u32(code) {
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                } else {
                    out.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                }
            }
            other => out.push(other),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

fn hex4(raw: &[u8], at: usize) -> Option<u16> {
    let text = std::str::from_utf8(raw.get(at..at + 4)?).ok()?;
    u16::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_where_strings_end() {
        for length in 0..120 {
            for odd in ["", "\\\"", "\\\\", "\u{e9}", "!", "#", "]", "["] {
                let text = format!("\"{}{odd}{}\" : 1", "a".repeat(length), "b".repeat(length % 7));
                for cut in [text.len(), text.len() - 5, text.len() / 2] {
                    let bytes = &text.as_bytes()[..cut];
                    let (mut long, mut short) = (Cursor::new(bytes, 0), Cursor::new(bytes, 0));
                    assert_eq!(long.long_string(), short.string(), "{text} {cut}");
                    assert_eq!(long.at, short.at, "{text} {cut}");
                }
            }
        }
    }

    #[test]
    fn numbers_of_a_dump() {
        assert!(number(b"NaN").is_some_and(f64::is_nan));
        assert_eq!(number(b"-Infinity"), Some(f64::NEG_INFINITY));
        assert_eq!(number(b"-1.5e-3"), Some(-0.0015));
        assert_eq!(number(b"123456789012345678901234567890"), Some(1.234_567_890_123_456_8e29));
        assert_eq!(number(b"1e999"), Some(f64::INFINITY));
        assert_eq!(number(b"null"), None);
        assert_eq!(number(b"inf"), None);
        assert_eq!(number(b"true"), Some(1.0));
    }

    #[test]
    fn statistics_as_text() {
        for text in ["nan", "NaN", " -nan", "NAN\\t"] {
            assert!(quoted_number(text.as_bytes()).is_some_and(f64::is_nan), "{text}");
        }
        for text in ["inf", "Infinity", "+INF", "inf\t"] {
            assert_eq!(quoted_number(text.as_bytes()), Some(f64::INFINITY), "{text}");
        }
        assert_eq!(quoted_number(b"-inf"), Some(f64::NEG_INFINITY));
        assert_eq!(quoted_number(b"0.001"), Some(0.001));
        assert_eq!(quoted_number(b"-1e999"), Some(f64::MIN));
        for text in ["banana", "info", "", "input_args", "bfloat16"] {
            assert_eq!(quoted_number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(br"a\n\u00e9\ud83d\ude00\"), "a\né😀\\");
        assert_eq!(unescape(br"\ud800x"), "\\ud800x");
        assert_eq!(unescape(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn skipping_needs_no_recursion() {
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000], vec![b',']].concat();
        let mut cursor = Cursor::new(&deep, 0);
        assert_eq!(cursor.skip_value(), Ok(()));
        assert_eq!(cursor.at, 200_000);
        assert_eq!(Cursor::new(b"[1, {\"a\": \"]\"", 0).skip_value(), Err(Stop::End));
        assert!(matches!(Cursor::new(b" ]", 0).skip_value(), Err(Stop::Unexpected { at: 1, .. })));
    }
}
