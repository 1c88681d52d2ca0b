//! The ops of one file: where each stands, and what the scan saw in it.
//!
//! A large file is read in parts by several threads ([`super::parts`]). What each found stays as it is - a copy of millions
//! of entries would take longer than the threads saved - so [`Entries`] is a list of parts that is read as one. Beside
//! the entries each part lists its [`Notable`] ops, with all that is needed to judge most of them without a look at
//! the file again.

use std::cell::Cell;

use super::place::Places;

/// Instead of a place in [`Part::names`].
pub(super) const UNNAMED: u32 = u32::MAX;

/// One op's place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub(super) name_at: usize,
    pub(super) body_len: usize,
    pub(super) name_len: u32,
    /// From the end of the name to the body.
    pub(super) body_gap: u32,
    /// Whether a non-finite token (bare or as text) stands anywhere in the body.
    pub non_finite: bool,
    /// Whether the caller asked for ops of this name.
    pub(crate) asked: bool,
}

impl Entry {
    /// The raw name, escapes kept.
    #[must_use]
    pub fn name<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.name_at..self.name_at + self.name_len as usize]
    }

    /// The record: an object, or whatever stands in its place.
    #[must_use]
    pub fn body<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.body_at();
        &bytes[start..start + self.body_len]
    }

    /// Offset of the record.
    #[must_use]
    pub fn body_at(&self) -> usize {
        self.name_at + self.name_len as usize + self.body_gap as usize
    }
}

/// Class of an op by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Forward,
    Backward,
    Gradient,
}

impl Class {
    pub(super) fn of(name: &[u8]) -> Self {
        let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        let head = &name[..name.len() - digits];
        let head = if digits > 0 { head.strip_suffix(b".").unwrap_or(name) } else { name };
        if head.ends_with(b".backward") {
            Self::Backward
        } else if head.ends_with(b".parameters_grad") {
            Self::Gradient
        } else {
            Self::Forward
        }
    }
}

/// Records with one number have one [`super::form`] and the same words for what is not finite in the same statistics;
/// the others are plain decimal numbers, and only these differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FormId(u32);

impl FormId {
    pub(super) const NONE: Self = Self(u32::MAX);

    pub(super) fn of(variant: Option<u32>) -> Self {
        variant.map_or(Self::NONE, Self)
    }

    fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

/// An op that holds something non-finite, was asked for, or may name a loss.
#[derive(Debug, Clone)]
pub(super) struct Note {
    /// In its part.
    pub(super) op: u32,
    /// In its part's lane.
    pub(super) form: FormId,
    pub(super) numbers_at: u32,
    /// In [`Part::names`], or [`UNNAMED`].
    pub(super) named_at: u32,
    pub(super) name_len: u32,
    pub(super) non_finite: bool,
    pub(super) asked: bool,
}

/// What was read from one place of the file on.
#[derive(Debug, Clone, Default)]
pub(super) struct Part {
    pub(super) places: Places,
    /// By op.
    pub(super) notes: Vec<Note>,
    /// Names of the ops that will be looked at again, side by side: in the file each would be far from the next. Nothing
    /// where escapes or bytes that are not UTF-8 are in them.
    pub(super) names: Option<String>,
    /// The numbers that are kept of notable ops ([`super::form::kept_numbers`]).
    pub(super) numbers: Vec<f64>,
    /// What the numbers of its forms count from.
    pub(super) first_form: u32,
}

impl Part {
    /// The note of an op, looked for from `near` on in steps that grow.
    fn find(&self, op: u32, near: usize) -> Option<usize> {
        let not_behind = |at: usize| self.notes.get(at).is_some_and(|note| note.op <= op);
        let (mut from, mut step) = (if not_behind(near) { near } else { 0 }, 1);
        while not_behind(from + step) {
            from += step;
            step *= 2;
        }
        let until = self.notes.len().min(from + step);
        let found = self.notes.get(from..until)?.binary_search_by_key(&op, |note| note.op);
        found.ok().map(|further| from + further)
    }

    /// The name of one of its notes, if it holds neither escapes nor what is not UTF-8.
    fn name(&self, note: &Note) -> Option<&str> {
        let at = note.named_at as usize;
        self.names.as_ref()?.get(at..at + note.name_len as usize)
    }
}

/// An op that holds something non-finite, or was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notable<'i> {
    pub(crate) op: u32,
    pub(crate) non_finite: bool,
    pub(crate) asked: bool,
    /// See [`FormId`].
    pub(crate) form: Option<u32>,
    /// Its name, if it holds neither escapes nor what is not UTF-8.
    pub(crate) name: Option<&'i str>,
    /// From the first on: the numbers that are kept of it.
    pub(crate) numbers: &'i [f64],
}

/// The ops of a file in file order.
#[derive(Debug, Clone, Default)]
pub struct Entries {
    parts: Vec<Part>,
    /// The first op of each part.
    starts: Vec<usize>,
    length: usize,
    /// How many forms its parts have.
    forms: u32,
}

impl Entries {
    /// What the numbers of the next parts' forms count from.
    pub(super) fn take_forms(&mut self, more: u32) -> u32 {
        self.forms += more;
        self.forms - more
    }

    pub(super) fn push(&mut self, part: Part) {
        self.starts.push(self.length);
        self.length += part.places.len();
        self.parts.push(part);
    }

    /// How many ops there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The ops in file order.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.parts.iter().flat_map(|part| part.places.iter())
    }

    /// One op, by its place in file order.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn at(&self, op: usize) -> Entry {
        let (part, at) = self.place(op);
        part.places.at(at)
    }

    /// How many ops hold something non-finite.
    pub(crate) fn bad(&self) -> usize {
        self.parts.iter().flat_map(|part| &part.notes).filter(|note| note.non_finite).count()
    }

    /// How many ops were asked for.
    pub(crate) fn asked(&self) -> usize {
        self.parts.iter().flat_map(|part| &part.notes).filter(|note| note.asked).count()
    }

    /// The ops that hold something non-finite or were asked for, in file order.
    pub(crate) fn notable(&self) -> impl Iterator<Item = Notable<'_>> {
        self.noted().filter(|note| note.non_finite || note.asked)
    }

    /// Those and, among others, every backward op that stands behind one that is none.
    pub(crate) fn noted(&self) -> impl Iterator<Item = Notable<'_>> {
        self.parts.iter().zip(&self.starts).flat_map(|(part, &start)| {
            part.notes.iter().map(move |note| Notable {
                op: (start + note.op as usize) as u32,
                non_finite: note.non_finite,
                asked: note.asked,
                form: note.form.get().map(|form| form + part.first_form),
                name: part.name(note),
                numbers: part.numbers.get(note.numbers_at as usize..).unwrap_or_default(),
            })
        })
    }

    /// Whether a name of the ops that were looked at may hold escapes, or bytes that are not UTF-8.
    pub(crate) fn has_odd_names(&self) -> bool {
        self.parts.iter().any(|part| part.names.is_none())
    }

    /// The name of an op, if it is at hand and holds neither escapes nor what is not UTF-8.
    ///
    /// PERF: `near` is where the last one stood among the notes of its part. Most are asked for in file order.
    pub(crate) fn plain_name(&self, op: usize, near: &Cell<usize>) -> Option<&str> {
        let (part, at) = self.place(op);
        let note = part.find(at as u32, near.get())?;
        near.set(note);
        part.name(&part.notes[note])
    }

    fn place(&self, op: usize) -> (&Part, usize) {
        if let [part] = &*self.parts {
            return (part, op);
        }
        let part = self.starts.partition_point(|&start| start <= op).saturating_sub(1);
        (&self.parts[part], op - self.starts[part])
    }
}

impl PartialEq for Entries {
    /// Whether the same ops stand at the same places: how they were read does not count.
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}
