//! Every engine of this processor against the byte-by-byte definition.

use std::fmt::Write;

use super::*;

/// The byte-by-byte definition of the masks.
fn masks_defined(block: &[u8; BLOCK]) -> Masks {
    let of = |set: &[u8]| (0..BLOCK).fold(0u64, |m, i| m | u64::from(set.contains(&block[i])) << i);
    Masks {
        quote: of(b"\""),
        backslash: of(b"\\"),
        open: of(b"{["),
        close: of(b"}]"),
        capital: of(b"NI"),
        exponent: of(b"eE"),
        lead: (0..BLOCK).fold(of(b"nNiI+-\\|"), |m, i| m | u64::from(block[i] <= b' ') << i),
        high: (0..BLOCK).fold(0, |m, i| m | u64::from(!block[i].is_ascii()) << i),
    }
}

/// The byte-by-byte definition of the skip.
fn skip_defined(bytes: &[u8], start: usize) -> Skipped {
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

impl Engine {
    fn masks(self, block: &[u8; BLOCK]) -> Masks {
        // SAFETY: the tests take only engines that the processor has.
        #[allow(unsafe_code)]
        match self {
            Self::Portable => portable::masks(block),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { avx2::masks(block) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { avx512::masks(block) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon => unsafe { neon::masks(block) },
        }
    }
}

/// A small generator: numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn pick<'a>(&mut self, pieces: &[&'a str]) -> &'a str {
        pieces[self.roll(pieces.len() as u64) as usize]
    }
}

const PIECES: [&str; 26] = [
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
    "2E308",
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
    "\"\\u00e9\"",
    "\u{1f600}",
    "\"a rather long text that fills most of a block of bytes\"",
];

/// A record as msProbe writes it, in one of its layouts.
fn record(dice: &mut Dice) -> String {
    let space = ["", " ", "\n   ", "\n            "][dice.roll(4) as usize];
    let mut text = format!("{{{space}\"input_args\":{space}[");
    for i in 0..dice.roll(5) {
        let comma = if i == 0 { "" } else { "," };
        let max = dice.pick(&["1.5", "NaN", "-Infinity", "3e+38", "1e400", "\"nan\"", "null", "-0.03"]);
        let dtype = dice.pick(&["torch.bfloat16", "torch.fl\\u006fat32", "torch.int64"]);
        let _ = write!(
            text,
            "{comma}{space}{{{space}\"type\":{space}\"torch.Tensor\",{space}\"dtype\":{space}\"{dtype}\",{space}\"Max\":{space}{max}{space}}}"
        );
    }
    let _ = write!(text, "{space}]{space}}}");
    text
}

fn check(bytes: &[u8], start: usize) {
    let expected = skip_defined(bytes, start);
    for engine in Engine::available() {
        assert_eq!(engine.skip(bytes, start), expected, "{engine:?} {:?}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(skip_container(bytes, start), expected);
}

#[test]
fn masks_equal_the_definition() {
    let mut dice = Dice(7);
    for _ in 0..2000 {
        let block: [u8; BLOCK] = std::array::from_fn(|_| match dice.roll(3) {
            0 => b"\"\\{}[]NIeE{;[M"[dice.roll(14) as usize],
            _ => dice.roll(256) as u8,
        });
        for engine in Engine::available() {
            assert_eq!(engine.masks(&block), masks_defined(&block), "{engine:?}");
        }
    }
}

/// Every byte value at every place: no engine may take one byte for another.
#[test]
fn each_byte_alone_has_its_own_bits() {
    for byte in 0..=255u8 {
        for place in 0..BLOCK {
            let mut block = [b'.'; BLOCK];
            block[place] = byte;
            for engine in Engine::available() {
                assert_eq!(engine.masks(&block), masks_defined(&block), "{engine:?} {byte} {place}");
            }
        }
    }
}

#[test]
fn skipping_equals_the_definition() {
    let mut dice = Dice(3);
    for round in 0..4000 {
        let mut text = String::from(if round % 2 == 0 { "{" } else { "[" });
        for _ in 0..dice.roll(60) {
            text.push_str(dice.pick(&PIECES));
        }
        for _ in 0..dice.roll(6) {
            text.push_str("}]");
        }
        let prefix = " ".repeat(dice.roll(70) as usize);
        check(format!("{prefix}{text}").as_bytes(), prefix.len());
    }
}

#[test]
fn skipping_equals_the_definition_on_mutated_and_cut_records() {
    let mut dice = Dice(11);
    for _ in 0..1500 {
        let mut bytes = record(&mut dice).into_bytes();
        check(&bytes, 0);
        for _ in 0..dice.roll(4) {
            let at = dice.roll(bytes.len() as u64) as usize;
            match dice.roll(3) {
                0 => bytes[at] = b"\"\\{}[]NIe0\xff,"[dice.roll(12) as usize],
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b"\"\\{}[]NIe0\xff,"[dice.roll(12) as usize]),
            }
        }
        if !bytes.is_empty() {
            check(&bytes, 0);
            bytes.truncate(1 + dice.roll(bytes.len() as u64) as usize);
            check(&bytes, 0);
        }
    }
}

#[test]
fn runs_of_backslashes_cross_blocks() {
    for length in 0..140 {
        for pad in [0, 1, 62, 63, 64] {
            let text = format!("[\"{}{}\"]]]]\"]", "x".repeat(pad), "\\".repeat(length));
            check(text.as_bytes(), 0);
        }
    }
}

/// A run on a certain processor (or an emulator of one) can name the engine that it is for.
#[test]
fn the_engine_asked_for_is_there() {
    let names: Vec<String> = Engine::available().iter().map(|e| format!("{e:?}")).collect();
    if let Ok(wanted) = std::env::var("OVF_TEST_ENGINE") {
        assert!(names.contains(&wanted), "{wanted} is not among {names:?}");
    }
    #[cfg(target_arch = "aarch64")]
    assert!(names.contains(&"Neon".to_owned()));
}
