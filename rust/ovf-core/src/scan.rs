//! Bytes -> an index of ops: where each entry of `data` stands, and whether a non-finite token is in it.
//!
//! In: the bytes of `dump.json`. Out: an [`Index`]: the header, one [`Entry`] an op in file order, and how the file
//! ended. Every byte is looked at once; no value is converted. Layout (white space, order of header keys) does not
//! matter. A file that ends early keeps its complete ops: msProbe rewrites the whole file at each flush, and a job
//! that dies while it does leaves the file cut anywhere.
//!
//! Inside an op only strings and brackets are followed ([`crate::structural`]), or not even these where an earlier op has
//! the same bytes ([`form`]); its grammar is checked when (and if) it is parsed.

mod blank;
mod form;
mod parts;

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::progress::Watch;
use crate::token::{Cursor, Read, Stop};

/// Ops between two words with the watch: well under a millisecond.
const WATCH_EVERY: usize = 512;

/// One op's place in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    name_at: usize,
    name_len: u32,
    body_gap: u32,
    body_len: usize,
    /// Whether a non-finite token (bare or as text) stands anywhere in the body.
    pub non_finite: bool,
    /// Whether the caller asked for ops of this name.
    pub(crate) asked: bool,
    pub(crate) class: Class,
    pub(crate) form: FormId,
    /// Where its name stands in [`Index::names`], if it does.
    named_at: u32,
}

/// Records with one number have one [`form`], and NaN in the same statistics: the others are plain decimal numbers, and
/// only these differ.
///
/// A finding of the way a file was read, not of what it holds: equal to any other.
#[derive(Debug, Clone, Copy, Eq)]
pub(crate) struct FormId(u32);

impl FormId {
    const NONE: Self = Self(u32::MAX);

    /// The number, if the record has one.
    pub(crate) fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }
}

impl PartialEq for FormId {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Class of an entry by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Forward,
    Backward,
    Gradient,
}

impl Class {
    fn of(name: &[u8]) -> Self {
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

    /// The form of a finite communication that has one.
    pub(crate) fn repeats(&self) -> Option<u32> {
        self.form.get().filter(|_| self.asked && !self.non_finite)
    }

    /// Offset of the record.
    #[must_use]
    pub fn body_at(&self) -> usize {
        self.name_at + self.name_len as usize + self.body_gap as usize
    }
}

/// How a dump file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The outermost object was closed.
    Complete,
    /// The bytes ended early, at this offset.
    Cut(usize),
    /// A byte that cannot stand there: offset and what was expected.
    Damaged(usize, &'static str),
}

/// What stands above `data`, as text (quotes removed), and the ops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// `task`, if given.
    pub task: Option<String>,
    /// `level`, if given.
    pub level: Option<String>,
    /// `framework`, if given.
    pub framework: Option<String>,
    /// Whether a `data` object was seen.
    pub has_data: bool,
    /// The ops in file order; of two with one name the later stands, in the earlier's place (as Python reads it).
    pub entries: Vec<Entry>,
    /// Names of those that will be looked at again, side by side: in the file each would be far from the next.
    names: Vec<u8>,
    /// Hashes of all names, until it is known whether some stand twice.
    hashes: Vec<u64>,
    /// Whether `data` holds only ASCII, so that it need not be checked for UTF-8.
    pub ascii: bool,
    /// How many names stood twice.
    pub duplicates: usize,
    /// How the file ended.
    pub ending: Ending,
}

impl Index {
    /// Names that will be looked at again, as text; nothing where escapes or bytes that are not UTF-8 are in them.
    pub(crate) fn plain_names(&self) -> Option<&str> {
        std::str::from_utf8(&self.names).ok().filter(|names| memchr::memchr(b'\\', names.as_bytes()).is_none())
    }

    /// Where the name of an op stands in [`Index::plain_names`], if it does.
    pub(crate) fn named(&self, op: usize) -> std::ops::Range<usize> {
        let entry = &self.entries[op];
        let at = entry.named_at as usize;
        at..at + entry.name_len as usize
    }

    /// The raw name of an op of a file's bytes, escapes kept.
    pub(crate) fn name<'a>(&'a self, bytes: &'a [u8], op: usize) -> &'a [u8] {
        self.names.get(self.named(op)).unwrap_or_else(|| self.entries[op].name(bytes))
    }
}

/// Indexes a dump.
#[must_use]
pub fn scan(bytes: &[u8]) -> Index {
    scan_until(bytes, &|_| false, &Watch::switch(&AtomicBool::new(false)))
}

/// Whether ops of a (raw) name are wanted.
pub(crate) type Asked<'f> = dyn Fn(&[u8]) -> bool + Sync + 'f;

/// Indexes a dump, telling `watch` how far it is; soon after that is stopped it stops with what it has. Inside a pool
/// of several threads a large file is indexed by all of them ([`parts`]).
pub(crate) fn scan_until(bytes: &[u8], asked: &Asked, watch: &Watch) -> Index {
    let mut index = Index {
        task: None,
        level: None,
        framework: None,
        has_data: false,
        entries: Vec::new(),
        names: Vec::new(),
        hashes: Vec::new(),
        ascii: true,
        duplicates: 0,
        ending: Ending::Complete,
    };
    let mut cursor = Cursor::new(bytes, 0);
    if let Err(stop) = read_header(&mut cursor, &mut index, asked, watch) {
        index.ending = match stop {
            Stop::End => Ending::Cut(bytes.len()),
            Stop::Unexpected { at, expected } => Ending::Damaged(at, expected),
        };
    }
    last_of_each_name(bytes, &mut index, watch);
    index
}

fn read_header(cursor: &mut Cursor, index: &mut Index, asked: &Asked, watch: &Watch) -> Read<()> {
    cursor.expect(b'{', "a JSON object")?;
    if cursor.eat(b'}')? {
        return Ok(());
    }
    loop {
        let key = cursor.string()?;
        cursor.expect(b':', "':' after a key")?;
        match &cursor.bytes[key] {
            b"data" if cursor.peek()? == b'{' => {
                index.has_data = true;
                parts::read_data(cursor, index, asked, watch)?;
            }
            b"task" => index.task = read_text(cursor)?,
            b"level" => index.level = read_text(cursor)?,
            b"framework" => index.framework = read_text(cursor)?,
            _ => cursor.skip_value()?,
        }
        if !cursor.eat(b',')? {
            return cursor.expect(b'}', "',' or '}'");
        }
    }
}

fn read_text(cursor: &mut Cursor) -> Read<Option<String>> {
    if cursor.peek()? != b'"' {
        cursor.skip_value()?;
        return Ok(None);
    }
    let range = cursor.string()?;
    Ok(Some(String::from_utf8_lossy(&cursor.bytes[range]).into_owned()))
}

/// Python's `json` keeps, of two entries with one name, the first's place and the last's value.
fn last_of_each_name(bytes: &[u8], index: &mut Index, watch: &Watch) {
    if !some_name_twice(std::mem::take(&mut index.hashes), bytes.len()) {
        return;
    }
    let mut seen: FxHashMap<&[u8], usize> = FxHashMap::default();
    seen.reserve(index.entries.len());
    let mut kept: Vec<Entry> = Vec::new();
    let mut rewriting = false;
    for (position, entry) in index.entries.iter().enumerate() {
        if position.is_multiple_of(WATCH_EVERY) && watch.stopped() {
            return;
        }
        let place = if rewriting { kept.len() } else { position };
        if let Some(&first) = seen.get(entry.name(bytes)) {
            if !rewriting {
                kept = index.entries[..position].to_vec();
                rewriting = true;
            }
            kept[first] = *entry;
            index.duplicates += 1;
        } else {
            seen.insert(entry.name(bytes), place);
            if rewriting {
                kept.push(*entry);
            }
        }
    }
    if rewriting {
        index.entries = kept;
    }
}

/// Whether two names may be equal, by their hashes. A chance hit costs a closer look.
fn some_name_twice(mut hashes: Vec<u64>, bytes: usize) -> bool {
    if parts::worth_sharing(bytes) {
        hashes.par_sort_unstable();
        return hashes.windows(2).any(|pair| pair[0] == pair[1]);
    }
    // An open table of the upper halves, placed by the lower ones; 0 is a free place.
    let mut table = vec![0u32; (2 * hashes.len()).next_power_of_two()];
    let last = table.len() - 1;
    hashes.iter().any(|hash| {
        let mark = (hash >> 32) as u32 | 1;
        let mut at = *hash as usize & last;
        while table[at] != 0 && table[at] != mark {
            at = (at + 1) & last;
        }
        std::mem::replace(&mut table[at], mark) == mark
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bytes: &[u8]) -> (Vec<String>, Index) {
        let index = scan(bytes);
        let names = index.entries.iter().map(|e| String::from_utf8_lossy(e.name(bytes)).into_owned()).collect();
        (names, index)
    }

    #[test]
    fn finds_ops_and_their_tokens() {
        let text = br#"{"task": "statistics", "level": null, "data": {"a.0.forward": {"x": [NaN, "]"]}, "b": {"m": "-inf "}, "c": {"NaN": 1, "i": "info"}}}"#;
        let (names, index) = names(text);
        assert_eq!(names, ["a.0.forward", "b", "c"]);
        assert_eq!(index.ending, Ending::Complete);
        assert_eq!(index.task.as_deref(), Some("statistics"));
        let flags: Vec<bool> = index.entries.iter().map(|e| e.non_finite).collect();
        // A key that starts like NaN only costs a parse.
        assert_eq!(flags, [true, true, true]);
        assert_eq!(index.entries[1].body(text), br#"{"m": "-inf "}"#);
    }

    #[test]
    fn a_cut_file_keeps_its_complete_ops() {
        let text = br#"{"data": {"a": {"v": 1}, "b": {"v": 12.5"#;
        let (found, index) = names(text);
        assert_eq!(found, ["a"]);
        assert_eq!(index.ending, Ending::Cut(text.len()));
        for cut in 0..text.len() {
            let _ = scan(&text[..cut]);
        }
    }

    #[test]
    fn damage_says_where() {
        assert_eq!(scan(b"\x00\x01").ending, Ending::Damaged(0, "a JSON object"));
        assert!(matches!(scan(br#"{"data": {"a": {} ; "b": 2}}"#).ending, Ending::Damaged(18, _)));
    }

    #[test]
    fn the_last_of_two_equal_names_counts() {
        let text = br#"{"data": {"a": {"v": NaN}, "b": 1 , "a": {"v": 2}, "c": {"v": NaN}, "b": NaN }}"#;
        let (names, index) = names(text);
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(index.duplicates, 2);
        let flags: Vec<bool> = index.entries.iter().map(|e| e.non_finite).collect();
        assert_eq!(flags, [false, true, true]);
    }

    #[test]
    fn large_exponents_are_looked_at() {
        let text = br#"{"data": {"a": {"v": 1e999}, "b": {"v": 1e-999}, "c": {"v": 3.1e38}, "d": {"v": false}}}"#;
        let flags: Vec<bool> = scan(text).entries.iter().map(|e| e.non_finite).collect();
        assert_eq!(flags, [true, false, false, false]);
    }
}
