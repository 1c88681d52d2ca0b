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
//!
//! Records of one form with the same words for what is not finite in the same blanks are one *variant*: what can be
//! said of them is the same but for the finite numbers that stand beside such a word in one object (the `Max` of a
//! tensor whose `Min` is `-Infinity`). These are converted here, where their bytes are at hand ([`Forms::fit`]); which
//! they are, [`kept_numbers`] tells of any record of the variant.

use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::blank::{self, Blank, Blanks, Lanes, MARGIN, Misfit, read_blank, same};
use crate::structural::{Skipped, skip_container};
use crate::token::{Cursor, number, word_end};

/// Forms kept for one part of a file.
const KEPT: usize = 4096;
/// Variants of one form that are told apart.
const VARIANTS: usize = 8;
/// Bytes of all of them.
const KEPT_BYTES: usize = 4 << 20;
/// Longest record that becomes one.
const LONGEST: usize = 64 << 10;
/// Forms of one name that are compared.
const COMPARED: usize = 6;
/// Records without a form after which guessing ends, unless as many had one.
const MISSES: usize = 4096;
const STATISTICS: [&[u8]; 4] = [b"Max", b"Min", b"Mean", b"Norm"];
/// So many of them, the first, say what the elements are.
const EXTREMES: usize = 2;

/// A record that was moved past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    /// Form, and what is not finite in its blanks: see [`super::FormId`].
    pub(super) variant: Option<u32>,
    pub(super) end: usize,
    /// Whether a token in it may be non-finite.
    pub(super) telling: bool,
    pub(super) ascii: bool,
}

/// The same words for what is not finite in the same blanks of a form.
#[derive(Debug)]
struct Variant {
    blanks: Blanks,
    number: u32,
    /// The blanks whose numbers are kept.
    kept: u64,
}

/// What a blank belongs to.
#[derive(Debug, Clone, Copy)]
struct Owner {
    /// The object it stands in, counted in its record.
    object: u32,
    /// Whether it is `Max` or `Min`.
    extreme: bool,
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
    /// The owner of its first blank: an index of [`Forms::owners`].
    owners: u32,
    /// What is outside of the blanks may be non-finite.
    telling: bool,
    ascii: bool,
    /// Forms that followed it, the last one first.
    next: [u32; 2],
    variants: SmallVec<[Variant; 2]>,
}

const NONE: u32 = u32::MAX;

/// The forms of one part of a file.
#[derive(Debug, Default)]
pub(super) struct Forms {
    known: Vec<Form>,
    /// Length of each piece.
    pieces: Vec<u32>,
    /// Of each blank.
    owners: Vec<Owner>,
    text: Vec<u8>,
    lanes: Lanes,
    by_name: FxHashMap<u64, SmallVec<[u32; 2]>>,
    last: Option<u32>,
    variants: u32,
    hits: usize,
    misses: usize,
}

impl Forms {
    /// How many variants there are; their numbers are below.
    pub(super) fn variants(&self) -> u32 {
        self.variants
    }

    /// Moves past the record at `at`, if a form fits it. What the variant keeps is appended to `numbers`.
    #[inline]
    pub(super) fn fit(&mut self, bytes: &[u8], at: usize, name: &[u8], numbers: &mut Vec<f64>) -> Option<Fit> {
        if self.misses >= MISSES && self.hits < self.misses {
            return None;
        }
        let likely = self.last.map_or([NONE; 2], |last| self.known[last as usize].next);
        for form in likely {
            if let Some(laid) = self.lay(form, bytes, at) {
                return Some(self.hit(laid, bytes, at, numbers));
            }
        }
        let list = self.by_name.get(&key_of(name))?;
        let (place, laid) = { list.iter().enumerate() }
            .filter(|(_, form)| !likely.contains(form))
            .find_map(|(place, &form)| Some((place, self.lay(form, bytes, at)?)))?;
        if let Some(list) = self.by_name.get_mut(&key_of(name)) {
            list[..=place].rotate_right(1);
        }
        Some(self.hit(laid, bytes, at, numbers))
    }

    #[inline]
    fn hit(&mut self, laid: Laid, bytes: &[u8], at: usize, numbers: &mut Vec<f64>) -> Fit {
        self.hits += 1;
        self.follow(laid.form);
        let variant = self.variant(laid, bytes, at, numbers);
        let form = &self.known[laid.form as usize];
        Fit { variant, end: laid.end, telling: form.telling | laid.blanks.non_finite(), ascii: form.ascii }
    }

    /// The variant of the record at `at`, if it has one, and the numbers that are kept of it.
    #[inline]
    fn variant(&mut self, laid: Laid, bytes: &[u8], at: usize, numbers: &mut Vec<f64>) -> Option<u32> {
        let form = &self.known[laid.form as usize];
        let found = form.variants.iter().find(|variant| variant.blanks == laid.blanks);
        let (number, kept) = match found {
            Some(variant) => (variant.number, variant.kept),
            None => self.learn_variant(laid)?,
        };
        if kept != 0 {
            self.keep(laid.form, kept, bytes, at, numbers);
        }
        Some(number)
    }

    #[cold]
    fn learn_variant(&mut self, laid: Laid) -> Option<(u32, u64)> {
        let form = &mut self.known[laid.form as usize];
        if form.variants.len() >= VARIANTS || laid.blanks.beyond {
            return None;
        }
        let blanks = (form.last - form.first) as usize - 1;
        let owners = &self.owners[form.owners as usize..form.owners as usize + blanks];
        let kept = kept(laid.blanks, owners)?;
        form.variants.push(Variant { blanks: laid.blanks, number: self.variants, kept });
        self.variants += 1;
        Some((self.variants - 1, kept))
    }

    /// Converts the numbers that are kept of the record at `at`.
    fn keep(&self, id: u32, mut kept: u64, bytes: &[u8], mut at: usize, numbers: &mut Vec<f64>) {
        let form = &self.known[id as usize];
        for &length in &self.pieces[form.first as usize..form.last as usize] {
            if kept == 0 {
                return;
            }
            at += length as usize;
            let end = word_end(bytes, at).unwrap_or(at);
            if kept & 1 == 1 {
                numbers.push(number(&bytes[at..end]).unwrap_or(0.0));
            }
            (at, kept) = (end, kept >> 1);
        }
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

    /// Makes the record at `at..end` a form; its variant. What that keeps is appended to `numbers`.
    pub(super) fn learn(
        &mut self,
        bytes: &[u8],
        at: usize,
        end: usize,
        name: &[u8],
        numbers: &mut Vec<f64>,
    ) -> Option<u32> {
        self.misses += 1;
        let id = self.known.len();
        if id >= KEPT || end - at > LONGEST || self.text.len() + (end - at) > KEPT_BYTES {
            self.last = None;
            return None;
        }
        let list = self.by_name.entry(key_of(name)).or_default();
        let learnt = if list.len() < COMPARED { Cut::of(bytes, at, end) } else { None };
        let Some(Cut { pieces, owners, telling, ascii }) = learnt else {
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
        let first_owner = self.owners.len() as u32;
        self.owners.extend(owners);
        self.known.push(Form {
            text,
            end: self.text.len() as u32,
            first,
            last: self.pieces.len() as u32,
            owners: first_owner,
            telling,
            ascii,
            next: [NONE; 2],
            variants: SmallVec::new(),
        });
        self.follow(id as u32);
        // As the next record of the form is read.
        self.lay(id as u32, bytes, at).and_then(|laid| self.variant(laid, bytes, at, numbers))
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
                Blank::Infinite(_, negative) => blanks.note_infinite(blank, negative),
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

/// Which numbers are kept: the finite ones of objects whose `Max` or `Min` is not. Nothing where one of them has no bit.
fn kept(blanks: Blanks, owners: &[Owner]) -> Option<u64> {
    let non_finite = blanks.bits();
    let is_bad = |blank: usize| blank < 64 && non_finite >> blank & 1 == 1;
    let mut kept = 0;
    for (blank, owner) in owners.iter().enumerate() {
        let beside = |other: &Owner| other.extreme && other.object == owner.object;
        if !is_bad(blank) && owners.iter().take(64).enumerate().any(|(other, o)| is_bad(other) && beside(o)) {
            kept |= 1u64.checked_shl(blank as u32)?;
        }
    }
    Some(kept)
}

/// Where the numbers stand, in a record that has a variant, that were kept of it. Nothing where it cannot have one.
pub(crate) fn kept_numbers(record: &[u8]) -> Option<Vec<usize>> {
    let cut = Cut::of(record, 0, record.len())?;
    let mut blanks = Blanks::NUMBERS;
    let mut places = Vec::new();
    let mut at = 0;
    for (blank, piece) in cut.pieces.iter().enumerate().take(cut.owners.len()) {
        at += piece.len();
        places.push(at);
        let word = read_blank(record, at);
        match word {
            Blank::NaN => blanks.note_nan(blank),
            Blank::Infinite(_, negative) => blanks.note_infinite(blank, negative),
            Blank::Number(_) | Blank::Other => {}
        }
        at += word.length()?;
    }
    let kept = kept(blanks, &cut.owners)?;
    Some(
        places
            .into_iter()
            .enumerate()
            .filter(|&(blank, _)| blank < 64 && kept >> blank & 1 == 1)
            .map(|p| p.1)
            .collect(),
    )
}

/// A record cut at its statistics.
#[derive(Debug)]
struct Cut<'b> {
    pieces: Vec<&'b [u8]>,
    /// Of the blank behind each piece but the last.
    owners: Vec<Owner>,
    /// Whether a token in the pieces may be non-finite.
    telling: bool,
    ascii: bool,
}

impl<'b> Cut<'b> {
    /// Cuts the record at `at..end`. Nothing where it is not sure.
    fn of(bytes: &'b [u8], at: usize, end: usize) -> Option<Self> {
        let mut cursor = Cursor::new(&bytes[..end], at);
        let (mut pieces, mut owners) = (Vec::new(), Vec::new());
        let (mut objects, mut open) = (0, Vec::new());
        let mut from = at;
        while cursor.at < end {
            cursor.skip_space();
            match *cursor.bytes.get(cursor.at)? {
                b'"' => {
                    let text = cursor.string().ok()?;
                    let Some(which) = STATISTICS.iter().position(|&key| key == &cursor.bytes[text.clone()]) else {
                        continue;
                    };
                    if cursor.peek().ok()? != b':' {
                        continue;
                    }
                    cursor.at += 1;
                    cursor.skip_space();
                    if let Some(length) = read_blank(bytes, cursor.at).length() {
                        pieces.push(&bytes[from..cursor.at]);
                        owners.push(Owner { object: *open.last()?, extreme: which < EXTREMES });
                        from = cursor.at + length;
                        cursor.at = from;
                    }
                }
                b'{' => {
                    open.push(objects);
                    objects += 1;
                    cursor.at += 1;
                }
                b'}' => {
                    open.pop()?;
                    cursor.at += 1;
                }
                b'[' | b']' | b',' | b':' => cursor.at += 1,
                _ => {
                    cursor.word().ok()?;
                }
            }
        }
        pieces.push(&bytes[from..end]);
        // The structure without the numbers, read the exact way: what every record of this form shares.
        let bare = pieces.join(b"0".as_slice());
        match skip_container(&bare, 0) {
            Skipped::End(length, telling, ascii) if length == bare.len() => {
                Some(Self { pieces, owners, telling, ascii })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"input_args": [{"dtype": "torch.float32", "shape": [2], "Max": 1.5, "Min": -1.0, "Mean": 0.1, "Norm": 2e-05}], "output": null}"#;

    fn laid(record: &str, other: &str) -> Option<Fit> {
        let mut forms = Forms::default();
        let text = format!("{record},{other}{:64}", "");
        forms.learn(text.as_bytes(), 0, record.len(), b"Torch.f.0.forward", &mut Vec::new());
        forms.fit(text.as_bytes(), record.len() + 1, b"Torch.f.1.forward", &mut Vec::new())
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
    fn variants_say_what_is_not_finite() {
        let mut forms = Forms::default();
        let nan = RECORD.replace("1.5", "NaN");
        let both = nan.replace("-1.0", "NaN");
        let infinite = RECORD.replace("-1.0", "-Infinity");
        let other = infinite.replace("1.5", "3e-05");
        let mean = RECORD.replace("0.1", "NaN");
        let records =
            [RECORD, &RECORD.replace("1.5", "2.5"), &nan, &both, &nan.replace("0.1", "7"), &infinite, &other, &mean];
        let mut found = Vec::new();
        for record in records {
            let text = format!("{record}{:64}", "");
            let mut numbers = Vec::new();
            let variant = match forms.fit(text.as_bytes(), 0, b"f", &mut numbers) {
                Some(fit) => fit.variant,
                None => forms.learn(text.as_bytes(), 0, record.len(), b"f", &mut numbers),
            };
            let at = kept_numbers(record.as_bytes()).expect("a form");
            let there =
                at.iter().map(|&at| number(&record.as_bytes()[at..at + read_blank(text.as_bytes(), at).length()?]));
            assert_eq!(numbers, there.map(|n| n.expect("a number")).collect::<Vec<f64>>(), "{record}");
            found.push((variant, numbers));
        }
        let expected: [(u32, &[f64]); 8] = [
            (0, &[]),
            (0, &[]),
            (1, &[-1.0, 0.1, 2e-05]),
            (2, &[0.1, 2e-05]),
            (1, &[-1.0, 7.0, 2e-05]),
            (3, &[1.5, 0.1, 2e-05]),
            (3, &[3e-05, 0.1, 2e-05]),
            (4, &[]),
        ];
        assert_eq!(found, expected.map(|(variant, numbers)| (Some(variant), numbers.to_vec())));
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
        let kept = &mut Vec::new();
        forms.learn(text.as_bytes(), 0, RECORD.len(), b"f", kept).expect("a form");
        for cut in RECORD.len() + 1..text.len() {
            assert_eq!(forms.fit(&text.as_bytes()[..cut], RECORD.len() + 1, b"f", kept), None, "{cut}");
        }
        let end = forms.fit(text.as_bytes(), RECORD.len() + 1, b"f", kept).map(|fit| fit.end);
        assert_eq!(end, Some(text.len()));
    }

    #[test]
    fn a_form_of_a_form_is_the_structure() {
        let odd = r#"{"Max": 1, "x": "\"Max\": 2", "Mean": null, "y": {"Norm": [1], "Min": NaN}}"#;
        let cut = Cut::of(odd.as_bytes(), 0, odd.len()).expect("pieces");
        assert_eq!(cut.pieces.len(), 3);
        assert!(!cut.telling);
    }
}
