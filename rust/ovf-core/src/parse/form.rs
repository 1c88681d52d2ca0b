//! How objects are spelled: most of a dump is the same few objects with other numbers in them.
//!
//! A [`Form`] is one spelling of an object, learnt when the exact reader met it: the bytes between its values, white
//! space and keys included, and what stands in the gaps. An object that starts like a form is read by comparing those
//! bytes and picking up the gaps; at the first difference nothing has happened and the exact reader takes it. So the
//! layout is a guess that is checked byte by byte, and never decides anything.
//!
//! ```text
//! {"type": "torch.Tensor", "dtype": "|torch.float16|", "shape": [|2, 3|], "Max": |1.5|, "Min": |-1.0|}
//! ```

use std::ops::Range;

use super::known::{Key, Known, Raw};
use crate::op::Shape;
use crate::token::Cursor;

/// Forms kept for one file: every object of msProbe's own at some depths.
const FORMS_KEPT: usize = 48;
/// Keys of an object that may become a form.
const KEYS: usize = 16;

/// Where the values of one object stand.
#[derive(Debug, Default)]
pub(crate) struct Spelling {
    values: Vec<(Key, u8, Range<usize>)>,
    spoiled: bool,
}

impl Spelling {
    /// A known key's value: its first byte and its place.
    pub(crate) fn push(&mut self, key: Key, first: u8, at: Range<usize>) {
        if self.values.len() < KEYS && !self.spoiled {
            self.values.push((key, first, at));
        } else {
            self.spoiled = true;
        }
    }

    /// The object holds more than known keys.
    pub(crate) fn spoil(&mut self) {
        self.spoiled = true;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    Text,
    Word,
    List,
}

#[derive(Debug)]
struct Step {
    /// What stands before the gap; a text's quotes and a list's brackets belong here.
    before: Box<[u8]>,
    key: Key,
    gap: Gap,
}

#[derive(Debug)]
struct Form {
    /// `type`, where it is a fixed part of the first step: its place from the start of the object.
    kind: Option<Range<usize>>,
    steps: Vec<Step>,
    end: Box<[u8]>,
}

/// The forms of one file.
#[derive(Debug, Default)]
pub(crate) struct Forms {
    known: Vec<Form>,
}

impl Forms {
    /// Reads the object at the cursor if it has a known form, and moves past it.
    pub(crate) fn read<'a>(&mut self, cursor: &mut Cursor<'a>) -> Option<Known<'a>> {
        for i in 0..self.known.len() {
            let mut ahead = *cursor;
            if let Some(known) = self.known[i].read(&mut ahead) {
                *cursor = ahead;
                if i > 0 {
                    self.known.swap(i, i - 1); // what is met often comes first
                }
                return Some(known);
            }
        }
        None
    }

    /// Remembers how `object`, which stands at `start`, is spelled.
    pub(crate) fn learn(&mut self, object: &[u8], start: usize, spelling: &Spelling) {
        if spelling.spoiled || spelling.values.is_empty() || self.known.len() >= FORMS_KEPT {
            return;
        }
        let mut kind = None;
        let mut steps = Vec::with_capacity(spelling.values.len());
        let mut from = 0;
        for (i, (key, first, at)) in spelling.values.iter().enumerate() {
            let (at, gap) = match first {
                b'"' => (at.start + 1 - start..at.end - 1 - start, Gap::Text),
                b'[' => (at.start + 1 - start..at.end - 1 - start, Gap::List),
                _ => (at.start - start..at.end - start, Gap::Word),
            };
            if gap == Gap::Text && object[at.clone()].contains(&b'\\') {
                return;
            }
            if i == 0 && *key == Key::Type && spelling.values.len() > 1 {
                kind = Some(at); // tells the forms apart at the first comparison
                continue;
            }
            steps.push(Step { before: object[from..at.start].into(), key: *key, gap });
            from = at.end;
        }
        self.known.push(Form { kind, steps, end: object[from..].into() });
    }
}

impl Form {
    // PERF: the loop over the steps is where a dump of NaN spends its time.
    #[inline]
    fn read<'a>(&self, cursor: &mut Cursor<'a>) -> Option<Known<'a>> {
        let bytes = cursor.bytes;
        let start = cursor.at;
        let mut at = start;
        if !bytes[at..].starts_with(&self.steps.first()?.before) {
            return None;
        }
        let mut known = Known::default();
        if let Some(kind) = &self.kind {
            known.set(Key::Type, Raw::Text(&bytes[start + kind.start..start + kind.end]));
        }
        for step in &self.steps {
            if !bytes[at..].starts_with(&step.before) {
                return None;
            }
            at += step.before.len();
            let raw = match step.gap {
                Gap::Text => {
                    let len = bytes[at..].iter().position(|b| matches!(b, b'"' | b'\\'))?;
                    Raw::Text(&bytes[at..at + len])
                }
                Gap::Word => {
                    let mut cursor = Cursor::new(bytes, at);
                    let word = cursor.word().ok()?;
                    if cursor.at - word.len() != at {
                        return None; // white space that the form has not
                    }
                    Raw::Word(word)
                }
                Gap::List => {
                    let mut cursor = Cursor::new(bytes, at);
                    let list = integers(&mut cursor)?;
                    known.set(step.key, Raw::List(list));
                    at = cursor.at;
                    continue;
                }
            };
            at += match raw {
                Raw::Text(t) | Raw::Word(t) => t.len(),
                Raw::List(_) => 0,
            };
            known.set(step.key, raw);
        }
        if !bytes[at..].starts_with(&self.end) {
            return None;
        }
        cursor.at = at + self.end.len();
        Some(known)
    }
}

/// Integers up to the `]`, which is not passed; nothing when anything else stands there.
fn integers(cursor: &mut Cursor) -> Option<Shape> {
    let mut out = Shape::new();
    if cursor.peek().ok()? == b']' {
        return Some(out);
    }
    loop {
        out.push(integer(cursor.word().ok()?)?);
        match cursor.peek().ok()? {
            b',' => cursor.at += 1,
            b']' => return Some(out),
            _ => return None,
        }
    }
}

/// A short decimal integer.
fn integer(word: &[u8]) -> Option<i64> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for digit in digits {
        value = value * 10 + i64::from(digit.checked_sub(b'0').filter(|d| *d < 10)?);
    }
    Some(if digits.len() < word.len() { -value } else { value })
}
