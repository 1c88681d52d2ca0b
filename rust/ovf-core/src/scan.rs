//! Bytes -> an index of ops: where each entry of `data` stands, and whether a non-finite token is in it.
//!
//! In: the bytes of `dump.json`. Out: an [`Index`]: the header, one [`Entry`] an op in file order, and how the file
//! ended. Every byte is looked at once; no value is converted. Layout (white space, order of header keys) does not
//! matter. A file that ends early keeps its complete ops: msProbe rewrites the whole file at each flush, and a job
//! that dies while it does leaves the file cut anywhere.
//!
//! Inside an op only strings and brackets are followed ([`crate::structural`]), or not even these where an earlier op has
//! the same bytes ([`form`]); its grammar is checked when (and if) it is parsed. What later rooms need of the ops that
//! matter - name, form, the few numbers that tell values apart - is set aside while their bytes are at hand
//! ([`entry`]): a second visit would wait for memory, and one thread alone would make all of them.

mod blank;
mod entry;
mod form;
mod parts;
mod place;

use std::sync::atomic::AtomicBool;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

pub(crate) use self::entry::{Class, Notable};
pub use self::entry::{Entries, Entry};
use self::entry::{FormId, Note, Part, UNNAMED};
pub(crate) use self::form::kept_numbers;
use self::parts::Hashes;
pub(crate) use self::parts::worth_sharing;
use self::place::Places;
use crate::progress::Watch;
use crate::token::{Cursor, Read, Stop};

/// Ops between two words with the watch: well under a millisecond.
const WATCH_EVERY: usize = 512;

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
    pub entries: Entries,
    /// Their classes.
    pub(crate) classes: Vec<Class>,
    /// Whether `data` holds only ASCII, so that it need not be checked for UTF-8.
    pub ascii: bool,
    /// How many names stood twice.
    pub duplicates: usize,
    /// How the file ended.
    pub ending: Ending,
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
        entries: Entries::default(),
        classes: Vec::new(),
        ascii: true,
        duplicates: 0,
        ending: Ending::Complete,
    };
    let mut cursor = Cursor::new(bytes, 0);
    let mut hashes = Vec::new();
    let read = read_header(&mut cursor, &mut index, &mut hashes, asked, watch).and_then(|()| read_end(&mut cursor));
    if let Err(stop) = read {
        if watch.stopped() {
            // Nobody will look at it, so nothing of it may cost anything: the place of a cut is found by counting lines.
            index.entries = Entries::default();
            return Index { classes: Vec::new(), ascii: true, ..index };
        }
        index.ending = match stop {
            Stop::End => Ending::Cut(bytes.len()),
            Stop::Unexpected { at, expected } => Ending::Damaged(at, expected),
        };
    }
    if some_name_twice(hashes, bytes.len()) {
        last_of_each_name(bytes, &mut index, watch);
    }
    index
}

fn read_header(
    cursor: &mut Cursor,
    index: &mut Index,
    hashes: &mut Vec<Hashes>,
    asked: &Asked,
    watch: &Watch,
) -> Read<()> {
    cursor.expect(b'{', "a JSON object")?;
    if cursor.eat(b'}')? {
        return Ok(());
    }
    loop {
        let key = cursor.string()?;
        cursor.expect(b':', "':' after a key")?;
        match &cursor.bytes[key] {
            b"data" if cursor.peek()? == b'{' => {
                // Of two the last counts, as Python's json has it.
                index.has_data = true;
                index.entries = Entries::default();
                index.classes.clear();
                hashes.clear();
                parts::read_data(cursor, index, hashes, asked, watch)?;
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

/// Only white space stands behind the outermost object.
fn read_end(cursor: &mut Cursor) -> Read<()> {
    cursor.skip_space();
    if cursor.at == cursor.bytes.len() {
        return Ok(());
    }
    Err(Stop::Unexpected { at: cursor.at, expected: "the end of the file" })
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
    let mut seen: FxHashMap<&[u8], usize> = FxHashMap::default();
    seen.reserve(index.entries.len());
    let mut kept: Vec<Entry> = Vec::with_capacity(index.entries.len());
    for (position, entry) in index.entries.iter().enumerate() {
        if position.is_multiple_of(WATCH_EVERY) && watch.stopped() {
            return;
        }
        if let Some(&first) = seen.get(entry.name(bytes)) {
            kept[first] = entry;
            index.duplicates += 1;
        } else {
            seen.insert(entry.name(bytes), kept.len());
            kept.push(entry);
        }
    }
    if index.duplicates == 0 {
        return;
    }
    index.classes = kept.iter().map(|e| Class::of(e.name(bytes))).collect();
    let classes = &index.classes;
    let note = |(op, e): (usize, &Entry)| {
        (e.non_finite || e.asked || classes[op] == Class::Backward).then_some(Note {
            op: op as u32,
            form: FormId::NONE,
            numbers_at: 0,
            named_at: UNNAMED,
            name_len: e.name_len,
            non_finite: e.non_finite,
            asked: e.asked,
        })
    };
    let notes = kept.iter().enumerate().filter_map(note).collect();
    index.entries = Entries::default();
    let mut places = Places::new(0, kept.len());
    for entry in kept {
        places.push(entry);
    }
    index.entries.push(Part { places, notes, ..Part::default() });
}

/// Whether two names may be equal, by their hashes. A chance hit costs a closer look.
fn some_name_twice(mut hashes: Vec<Hashes>, bytes: usize) -> bool {
    let buckets = (0..Hashes::BUCKETS).map(|bucket| hashes.iter_mut().map(|part| part.take(bucket)).collect());
    if worth_sharing(bytes) {
        let buckets: Vec<Vec<Vec<u64>>> = buckets.collect();
        buckets.into_par_iter().map_init(Vec::new, |table, bucket| some_twice(&bucket, table)).any(|twice| twice)
    } else {
        let mut table = Vec::new();
        { buckets }.any(|bucket: Vec<Vec<u64>>| some_twice(&bucket, &mut table))
    }
}

/// As [`some_name_twice`], for one bucket. The table is an open one of the hashes' upper halves, placed by the lower ones; 0
/// is a free place.
fn some_twice(bucket: &[Vec<u64>], table: &mut Vec<u32>) -> bool {
    let count: usize = bucket.iter().map(Vec::len).sum();
    table.clear();
    table.resize((count + count / 2 + 1).next_power_of_two(), 0);
    let last = table.len() - 1;
    bucket.iter().flatten().any(|hash| {
        let mark = (hash >> 32) as u32 | 1;
        let mut at = (*hash >> Hashes::BITS) as usize & last;
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
        assert_eq!(index.entries.at(1).body(text), br#"{"m": "-inf "}"#);
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
    fn of_two_data_objects_the_last_counts() {
        let text = br#"{"data": {"a": {"v": NaN}, "b": {}}, "data": {"c": {}, "a": {}}}"#;
        let (names, index) = names(text);
        assert_eq!((names, index.duplicates, index.classes.len()), (vec!["c".to_owned(), "a".to_owned()], 0, 2));
        assert_eq!(index.entries.notable().count(), 0);
    }

    #[test]
    fn text_behind_the_end_is_told() {
        for (text, ending) in [
            (&b"{\"data\": {\"a\": {}}} \n"[..], Ending::Complete),
            (b"{\"data\": {\"a\": {}}} }", Ending::Damaged(20, "the end of the file")),
            (b"{}\0", Ending::Damaged(2, "the end of the file")),
        ] {
            assert_eq!(scan(text).ending, ending);
        }
    }

    #[test]
    fn large_exponents_are_looked_at() {
        let text = br#"{"data": {"a": {"v": 1e999}, "b": {"v": 1e-999}, "c": {"v": 3.1e38}, "d": {"v": false}}}"#;
        let flags: Vec<bool> = scan(text).entries.iter().map(|e| e.non_finite).collect();
        assert_eq!(flags, [true, false, false, false]);
    }
}
