//! Records that stand in the file again and again, with other numbers: moved past by comparing them.
//!
//! A layer is called many times, so most records of a dump are copies of an earlier one but for `Max`, `Min`, `Mean`
//! and `Norm`. A [`Form`] is such a record with its statistics left blank. Where a record begins, the forms that are
//! likely are laid over it: if every byte outside of the blanks is the same, and in each blank stands a plain number
//! (or `NaN`, `Infinity`, `-Infinity`), its strings and brackets are those of the form, so it ends where the form ends
//! and holds what the form holds:
//!
//! ```text
//! {"input_args": [{"type": "torch.Tensor", "shape": [2, 3], "Max": |1.5|, "Min": |-1.0|, ...|}], "output": [...
//! ```
//!
//! What is likely: the form that followed the last one the last times, then those met under the same name, its digits
//! left out. None fits: the record is followed by quotes and brackets ([`crate::structural`]), which is always right, and
//! becomes a form. So forms never decide anything: they are a guess that is compared byte by byte, about twice as
//! fast as following the structure. Dumps whose records do not repeat stop guessing.

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::blank::{self, Blank, Blanks, Lanes, MARGIN, Misfit, read_blank, same};
use crate::structural::{Skipped, skip_container};
use crate::token::Cursor;

/// Forms kept for one part of a file.
const KEPT: usize = 4096;
/// Variants of one form that are told apart.
const VARIANTS: usize = 8;
/// Variants of one part, at most.
pub(super) const ALL_VARIANTS: usize = KEPT * VARIANTS;
/// Bytes of all of them.
const KEPT_BYTES: usize = 4 << 20;
/// Longest record that becomes one.
const LONGEST: usize = 64 << 10;
/// Forms of one name that are compared.
const COMPARED: usize = 6;
/// Records without a form after which guessing ends, unless as many had one.
const MISSES: usize = 4096;
const STATISTICS: [&[u8]; 4] = [b"Max", b"Min", b"Mean", b"Norm"];

/// A record that was moved past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    /// Form, and which of its blanks are NaN: see [`super::FormId`].
    pub(super) variant: Option<u32>,
    pub(super) end: usize,
    /// Whether a token in it may be non-finite.
    pub(super) telling: bool,
    pub(super) ascii: bool,
}

/// A form that was laid over a record, and fits.
#[derive(Debug, Clone, Copy)]
struct Laid {
    form: u32,
    end: usize,
    blanks: Blanks,
}

#[derive(Debug)]
struct Form {
    /// Where it begins and ends in [`Forms::text`], its margin included.
    text: u32,
    end: u32,
    /// Its pieces: a range of [`Forms::pieces`]. A blank stands behind each but the last.
    first: u32,
    last: u32,
    /// What is outside of the blanks may be non-finite.
    telling: bool,
    ascii: bool,
    /// Forms that followed it, the last one first.
    next: [u32; 2],
    /// Which of its blanks were NaN, and the number of that variant.
    variants: SmallVec<[(u64, u32); 2]>,
}

const NONE: u32 = u32::MAX;

/// The forms of one part of a file.
#[derive(Debug, Default)]
pub(super) struct Forms {
    known: Vec<Form>,
    /// Length of each piece.
    pieces: Vec<u32>,
    text: Vec<u8>,
    lanes: Lanes,
    by_name: FxHashMap<u64, SmallVec<[u32; 2]>>,
    last: Option<u32>,
    variants: u32,
    hits: usize,
    misses: usize,
}

impl Forms {
    /// Moves past the record at `at`, if a form fits it.
    #[inline]
    pub(super) fn fit(&mut self, bytes: &[u8], at: usize, name: &[u8]) -> Option<Fit> {
        if self.misses >= MISSES && self.hits < self.misses {
            return None;
        }
        let likely = self.last.map_or([NONE; 2], |last| self.known[last as usize].next);
        for form in likely {
            if let Some(laid) = self.lay(form, bytes, at) {
                return Some(self.hit(laid));
            }
        }
        let list = self.by_name.get(&key_of(name))?;
        let (place, laid) = { list.iter().enumerate() }
            .filter(|(_, form)| !likely.contains(form))
            .find_map(|(place, &form)| Some((place, self.lay(form, bytes, at)?)))?;
        if let Some(list) = self.by_name.get_mut(&key_of(name)) {
            list[..=place].rotate_right(1);
        }
        Some(self.hit(laid))
    }

    #[inline]
    fn hit(&mut self, laid: Laid) -> Fit {
        self.hits += 1;
        self.follow(laid.form);
        let variant = self.variant(laid);
        let form = &self.known[laid.form as usize];
        Fit { variant, end: laid.end, telling: form.telling | laid.blanks.non_finite, ascii: form.ascii }
    }

    #[inline]
    fn variant(&mut self, laid: Laid) -> Option<u32> {
        let nan = laid.blanks.nan?;
        let known = &mut self.known[laid.form as usize].variants;
        if let Some(&(_, variant)) = known.iter().find(|(of, _)| *of == nan) {
            return Some(variant);
        }
        if known.len() >= VARIANTS {
            return None;
        }
        known.push((nan, self.variants));
        self.variants += 1;
        Some(self.variants - 1)
    }

    /// Remembers that `form` came after the last one.
    #[inline]
    fn follow(&mut self, form: u32) {
        if let Some(last) = self.last {
            let next = &mut self.known[last as usize].next;
            if next[0] != form {
                *next = [form, next[0]];
            }
        }
        self.last = Some(form);
    }

    #[inline]
    fn lay(&self, id: u32, bytes: &[u8], at: usize) -> Option<Laid> {
        let form = self.known.get(id as usize)?;
        let text = &self.text[form.text as usize..form.end as usize];
        let lengths = &self.pieces[form.first as usize..form.last as usize];
        let laid = match blank::lay(self.lanes, bytes, at, text, lengths) {
            Ok(laid) => laid,
            Err(Misfit::Other) => return None,
            Err(Misfit::Unclear) => lay_any(bytes, at, text, lengths)?,
        };
        Some(Laid { form: id, end: at + laid.length, blanks: laid.blanks })
    }

    /// Makes the record at `at..end` a form; its variant.
    pub(super) fn learn(&mut self, bytes: &[u8], at: usize, end: usize, name: &[u8]) -> Option<u32> {
        self.misses += 1;
        let id = self.known.len();
        if id >= KEPT || end - at > LONGEST || self.text.len() + (end - at) > KEPT_BYTES {
            self.last = None;
            return None;
        }
        let list = self.by_name.entry(key_of(name)).or_default();
        let learnt = if list.len() < COMPARED { pieces_of(bytes, at, end) } else { None };
        let Some((pieces, telling, ascii)) = learnt else {
            self.last = None;
            return None;
        };
        list.insert(0, id as u32);
        let first = self.pieces.len() as u32;
        let text = self.text.len() as u32;
        for piece in pieces {
            self.pieces.push(piece.len() as u32);
            self.text.extend_from_slice(piece);
        }
        self.text.extend_from_slice(&[0; MARGIN]);
        self.known.push(Form {
            text,
            end: self.text.len() as u32,
            first,
            last: self.pieces.len() as u32,
            telling,
            ascii,
            next: [NONE; 2],
            variants: SmallVec::new(),
        });
        self.follow(id as u32);
        // As the next record of the form is read.
        self.lay(id as u32, bytes, at).and_then(|laid| self.variant(laid))
    }
}

/// As [`blank::lay`], for every word that may stand in a blank, and up to the end of the file.
#[cold]
fn lay_any(bytes: &[u8], start: usize, text: &[u8], lengths: &[u32]) -> Option<blank::Laid> {
    let mut blanks = Blanks::NUMBERS;
    let (mut at, mut rest) = (start, text);
    for (piece, &length) in lengths.iter().enumerate() {
        if let Some(blank) = piece.checked_sub(1) {
            let word = read_blank(bytes, at);
            match word {
                Blank::NaN => blanks.note_nan(blank),
                Blank::Infinite(_) => blanks.note_infinite(),
                Blank::Number(_) | Blank::Other => {}
            }
            at += word.length()?;
        }
        let piece;
        (piece, rest) = rest.split_at(length as usize);
        if !same(bytes, at, piece) {
            return None;
        }
        at += piece.len();
    }
    Some(blank::Laid { length: at - start, blanks })
}

/// What calls of one function or module share: the name without its digits.
fn key_of(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    let mut word = 0u64;
    for &byte in name {
        if !byte.is_ascii_digit() {
            word = word.rotate_left(8) ^ u64::from(byte);
        }
        if byte == b'.' {
            hasher.write_u64(word);
        }
    }
    hasher.write_u64(word);
    hasher.finish()
}

/// The record cut at its statistics; whether the rest may be non-finite, and is ASCII. Nothing where that is not sure.
fn pieces_of(bytes: &[u8], at: usize, end: usize) -> Option<(Vec<&[u8]>, bool, bool)> {
    let mut cursor = Cursor::new(&bytes[..end], at);
    let mut pieces = Vec::new();
    let mut from = at;
    while cursor.at < end {
        cursor.skip_space();
        match *cursor.bytes.get(cursor.at)? {
            b'"' => {
                let text = cursor.string().ok()?;
                if !STATISTICS.contains(&&cursor.bytes[text]) || cursor.peek().ok()? != b':' {
                    continue;
                }
                cursor.at += 1;
                cursor.skip_space();
                if let Some(length) = read_blank(bytes, cursor.at).length() {
                    pieces.push(&bytes[from..cursor.at]);
                    from = cursor.at + length;
                    cursor.at = from;
                }
            }
            b'{' | b'}' | b'[' | b']' | b',' | b':' => cursor.at += 1,
            _ => {
                cursor.word().ok()?;
            }
        }
    }
    pieces.push(&bytes[from..end]);
    // The structure without the numbers, read the exact way: what every record of this form shares.
    let bare = pieces.join(b"0".as_slice());
    match skip_container(&bare, 0) {
        Skipped::End(length, telling, ascii) if length == bare.len() => Some((pieces, telling, ascii)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"input_args": [{"dtype": "torch.float32", "shape": [2], "Max": 1.5, "Min": -1.0, "Mean": 0.1, "Norm": 2e-05}], "output": null}"#;

    fn laid(record: &str, other: &str) -> Option<Fit> {
        let mut forms = Forms::default();
        let text = format!("{record},{other}{:64}", "");
        forms.learn(text.as_bytes(), 0, record.len(), b"Torch.f.0.forward");
        forms.fit(text.as_bytes(), record.len() + 1, b"Torch.f.1.forward")
    }

    #[test]
    fn other_numbers_fit() {
        let other = RECORD.replace("1.5", "123.000456789012345678").replace("2e-05", "7");
        let fit = laid(RECORD, &other).expect("fits");
        assert_eq!((fit.end, fit.telling, fit.ascii), (RECORD.len() + 1 + other.len(), false, true));
    }

    #[test]
    fn what_is_not_finite_is_seen() {
        for word in ["NaN", "Infinity", "-Infinity"] {
            let fit = laid(RECORD, &RECORD.replace("-1.0", word)).expect("fits");
            assert!(fit.telling, "{word}");
            let fit = laid(&RECORD.replace("1.5", word), RECORD).expect("fits");
            assert!(!fit.telling, "the form is not what its blanks held");
        }
        // A scalar stays in the form.
        let scalar = RECORD.replace("null", "NaN");
        assert!(laid(&scalar, &scalar).expect("fits").telling);
    }

    #[test]
    fn variants_say_which_blanks_are_nan() {
        let mut forms = Forms::default();
        let nan = RECORD.replace("1.5", "NaN");
        let both = nan.replace("-1.0", "NaN");
        let infinite = RECORD.replace("1.5", "Infinity");
        let records = [RECORD, &RECORD.replace("1.5", "2.5"), &nan, &both, &nan.replace("0.1", "7"), &infinite, RECORD];
        let mut found = Vec::new();
        for record in records {
            let text = format!("{record}{:64}", "");
            let fit = forms.fit(text.as_bytes(), 0, b"f");
            found.push(match fit {
                Some(fit) => fit.variant,
                None => forms.learn(text.as_bytes(), 0, record.len(), b"f"),
            });
        }
        assert_eq!(found, [Some(0), Some(0), Some(1), Some(2), Some(1), None, Some(0)]);
    }

    #[test]
    fn what_differs_does_not_fit() {
        for (from, to) in [
            ("[2]", "[3]"),
            ("1.5", "null"),
            ("1.5", "\"1.5\""),
            ("1.5", "1.5.2"),
            ("1.5", "-"),
            ("1.5", ""),
            ("1.5", "1e999"),
            ("1.5", "1e300"),
            ("1.5", "[1]"),
            ("1.5", "1.5 "),
            ("1.5", "NaN1"),
            ("1.5", "+1.5"),
            ("float32", "float16"),
            ("null", "nul1"),
        ] {
            assert_eq!(laid(RECORD, &RECORD.replace(from, to)), None, "{from} -> {to}");
        }
    }

    #[test]
    fn the_end_of_the_file_is_not_passed() {
        let mut forms = Forms::default();
        let text = format!("{RECORD},{RECORD}");
        forms.learn(text.as_bytes(), 0, RECORD.len(), b"f").expect("a form");
        for cut in RECORD.len() + 1..text.len() {
            assert_eq!(forms.fit(&text.as_bytes()[..cut], RECORD.len() + 1, b"f"), None, "{cut}");
        }
        assert_eq!(forms.fit(text.as_bytes(), RECORD.len() + 1, b"f").map(|fit| fit.end), Some(text.len()));
    }

    #[test]
    fn a_form_of_a_form_is_the_structure() {
        let odd = r#"{"Max": 1, "x": "\"Max\": 2", "Mean": null, "y": {"Norm": [1], "Min": NaN}}"#;
        let (pieces, telling, _) = pieces_of(odd.as_bytes(), 0, odd.len()).expect("pieces");
        assert_eq!(pieces.len(), 3);
        assert!(!telling);
    }
}
