//! The entries of `data`, by one thread or by several.
//!
//! JSON can only be read from its start: in the middle of a file nobody knows whether a byte is inside a string. So a
//! large file is cut where the text *looks* like the seam between two ops (the bytes between the first two ops, then a
//! name, then an object with a key that records have), and each part is read as if it began there. A part that ends,
//! between two ops, exactly where the next one began proves that guess: the states are the same. At the first guess
//! that is not proven the parts behind it are thrown away, and the rest is read by one thread. The answer is that of
//! one thread on all bytes, whatever the layout.

use std::hash::Hasher;

use rayon::prelude::*;
use rustc_hash::FxHasher;

use super::form::{ALL_VARIANTS, Forms};
use super::{Asked, Class, Entry, FormId, Index, WATCH_EVERY};
use crate::progress::Watch;
use crate::structural::{Skipped, large_exponent, skip_container, starts_like_non_finite};
use crate::token::{Cursor, Read, Stop};

/// Bytes of a part; small ones in tests, so that there are many.
const PART: usize = if cfg!(test) { 64 << 10 } else { 16 << 20 };
/// Bytes behind the wanted place in which a seam is looked for.
const SEARCHED: usize = PART / 4;
/// Instead of a place in [`Index::names`].
const UNNAMED: u32 = u32::MAX;
/// First keys of a record.
const FIRST_KEYS: [&[u8]; 5] = [b"input_args", b"input_kwargs", b"input", b"output", b"parameters"];

/// Whether the threads of the pool that this runs in should share a file of so many bytes.
pub(super) fn worth_sharing(bytes: usize) -> bool {
    bytes >= 2 * PART && rayon::current_thread_index().is_some() && rayon::current_num_threads() > 1
}

/// What one thread read.
struct Part {
    entries: Vec<Entry>,
    names: Vec<u8>,
    hashes: Vec<u64>,
    ascii: bool,
    at: usize,
    end: Read<Reached>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// The end of `data`.
    Closed,
    /// Where the next part began.
    Seam,
    /// A place behind it: the next part began inside something.
    Beyond,
}

/// Reads the object `data` at the cursor into the index.
pub(super) fn read_data(cursor: &mut Cursor, index: &mut Index, asked: &Asked, watch: &Watch) -> Read<()> {
    cursor.expect(b'{', "an object")?;
    if cursor.eat(b'}')? {
        return Ok(());
    }
    let mut starts = vec![cursor.at];
    if worth_sharing(cursor.bytes.len() - cursor.at) {
        starts.extend(seams(*cursor));
    }
    let bytes = cursor.bytes;
    let read = |i: usize| read_part(bytes, starts[i], starts.get(i + 1).copied(), i, asked, watch);
    let parts: Vec<Part> =
        if starts.len() == 1 { vec![read(0)] } else { (0..starts.len()).into_par_iter().map(read).collect() };
    if parts.len() > 1 {
        index.entries.reserve_exact(parts.iter().map(|p| p.entries.len()).sum());
        index.names.reserve_exact(parts.iter().map(|p| p.names.len()).sum());
        index.hashes.reserve_exact(parts.iter().map(|p| p.hashes.len()).sum());
    }
    for part in parts {
        cursor.at = part.at;
        let reached = enter(index, part)?;
        match reached {
            Reached::Closed => return Ok(()),
            Reached::Seam => {}
            Reached::Beyond => break,
        }
    }
    let rest = read_part(bytes, cursor.at, None, starts.len(), asked, watch);
    cursor.at = rest.at;
    enter(index, rest).map(|_| ())
}

fn enter(index: &mut Index, part: Part) -> Read<Reached> {
    index.ascii &= part.ascii;
    index.hashes.extend_from_slice(&part.hashes);
    if index.entries.capacity() == 0 {
        (index.entries, index.names) = (part.entries, part.names);
    } else {
        let before = u32::try_from(index.names.len()).ok();
        let moved = |at: u32| before.and_then(|before| before.checked_add(at)).unwrap_or(UNNAMED);
        index.entries.extend(part.entries.into_iter().map(|e| Entry { named_at: moved(e.named_at), ..e }));
        index.names.extend_from_slice(&part.names);
    }
    part.end
}

/// Reads from the name at `start` on; `number` is that of the part, whose forms are its own.
fn read_part(bytes: &[u8], start: usize, limit: Option<usize>, number: usize, asked: &Asked, watch: &Watch) -> Part {
    let mut part = Part {
        entries: Vec::new(),
        names: Vec::new(),
        hashes: Vec::new(),
        ascii: true,
        at: start,
        end: Ok(Reached::Closed),
    };
    let mut cursor = Cursor::new(bytes, start);
    part.end = read_entries(&mut cursor, &mut part, limit, number, asked, watch);
    part.at = cursor.at;
    part
}

/// Reads entries from a name on.
fn read_entries(
    cursor: &mut Cursor,
    part: &mut Part,
    limit: Option<usize>,
    number: usize,
    asked: &Asked,
    watch: &Watch,
) -> Read<Reached> {
    let mut told = cursor.at;
    let mut forms = Forms::default();
    let mut before = Class::Forward;
    loop {
        cursor.skip_space();
        if let Some(limit) = limit.filter(|&limit| cursor.at >= limit) {
            return Ok(if cursor.at == limit { Reached::Seam } else { Reached::Beyond });
        }
        let range = cursor.long_string()?;
        cursor.expect(b':', "':' after an op's name")?;
        cursor.skip_space();
        let body_at = cursor.at;
        let name = &cursor.bytes[range.clone()];
        let (non_finite, variant) = if let Some(fit) = forms.fit(cursor.bytes, body_at, name) {
            cursor.at = fit.end;
            part.ascii &= fit.ascii;
            (fit.telling, fit.variant)
        } else {
            let non_finite = skip_record(cursor, &mut part.ascii)?;
            (non_finite, forms.learn(cursor.bytes, body_at, cursor.at, name))
        };
        part.ascii &= name.is_ascii();
        // PERF: now its bytes are at hand; a second look at each name would fetch them again.
        let mut hasher = FxHasher::default();
        hasher.write(name);
        part.hashes.push(hasher.finish());
        let (asked, class) = (asked(name), Class::of(name));
        let mut named_at = UNNAMED;
        // The first backward op behind forward ones names a loss.
        let turns = class == Class::Backward && before == Class::Forward;
        before = class;
        if non_finite || asked || turns {
            named_at = u32::try_from(part.names.len()).unwrap_or(UNNAMED);
            part.names.extend_from_slice(name);
        }
        part.entries.push(Entry {
            name_at: range.start,
            name_len: name.len() as u32,
            body_gap: (body_at - range.end) as u32,
            body_len: cursor.at - body_at,
            non_finite,
            asked,
            named_at,
            class,
            form: variant.map_or(FormId::NONE, |variant| FormId((number * ALL_VARIANTS) as u32 + variant)),
        });
        if !cursor.eat(b',')? {
            cursor.expect(b'}', "',' or '}' after an op")?;
            return Ok(Reached::Closed);
        }
        if part.entries.len().is_multiple_of(WATCH_EVERY) {
            watch.advance((cursor.at - told) as u64);
            told = cursor.at;
            if watch.stopped() {
                return Err(Stop::End);
            }
        }
    }
}

/// Places that look like the name of an op, about a part's size from each other.
fn seams(cursor: Cursor) -> Vec<usize> {
    let Some(seam) = seam_text(cursor) else {
        return Vec::new();
    };
    let bytes = cursor.bytes;
    let finder = memchr::memmem::Finder::new(&seam);
    let mut found = Vec::new();
    let mut from = cursor.at + PART;
    while from + PART < bytes.len() {
        let searched = &bytes[from..bytes.len().min(from + SEARCHED)];
        // The seam ends with the quote that opens the name.
        let quotes = finder.find_iter(searched).map(|at| from + at + seam.len() - 1);
        if let Some(start) = { quotes }.find(|&at| looks_like_an_entry(Cursor::new(bytes, at))) {
            found.push(start);
            from = start;
        }
        from += PART;
    }
    found
}

/// The text between the first two ops, with the brace before and the quote behind it.
fn seam_text(mut cursor: Cursor) -> Option<Vec<u8>> {
    cursor.long_string().ok()?;
    cursor.expect(b':', "").ok()?;
    skip_record(&mut cursor, &mut true).ok()?;
    let start = cursor.at - 1;
    cursor.expect(b',', "").ok()?;
    (cursor.peek().ok()? == b'"').then(|| cursor.bytes[start..=cursor.at].to_vec())
}

fn looks_like_an_entry(mut cursor: Cursor) -> bool {
    let mut first_key = || -> Read<bool> {
        cursor.long_string()?;
        cursor.expect(b':', "")?;
        cursor.expect(b'{', "")?;
        let key = cursor.string()?;
        Ok(FIRST_KEYS.contains(&&cursor.bytes[key]))
    };
    first_key().unwrap_or(false)
}

/// Moves past one value; true when a token in it may be non-finite.
fn skip_record(cursor: &mut Cursor, ascii: &mut bool) -> Read<bool> {
    match cursor.peek()? {
        b'{' | b'[' => match skip_container(cursor.bytes, cursor.at) {
            Skipped::End(end, telling, all_ascii) => {
                cursor.at = end;
                *ascii &= all_ascii;
                Ok(telling)
            }
            Skipped::Open => {
                cursor.at = cursor.bytes.len();
                Err(Stop::End)
            }
        },
        b'"' => {
            let range = cursor.string()?;
            *ascii &= cursor.bytes[range.clone()].is_ascii();
            Ok(starts_like_non_finite(cursor.bytes, range.start))
        }
        _ => {
            let start = cursor.at;
            let word = cursor.word()?;
            let exponent = word.iter().position(|b| matches!(b, b'e' | b'E'));
            let large = exponent.is_some_and(|e| large_exponent(cursor.bytes, start + e));
            Ok(word.contains(&b'N') || word.contains(&b'I') || large)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::scan::{scan, scan_until};

    /// Text of more than two parts whose ops, in the middle, hold what looks like a seam.
    fn large(indent: &str, decoy: bool) -> String {
        let mut text = String::from("{\"data\": {");
        let filler = "x".repeat(200);
        let mut i = 0;
        while text.len() < 3 * PART + PART / 2 {
            // Inside a string a bare quote cannot stand, but a nested object can look like an op.
            let nested = if decoy && i % 3 == 0 {
                format!(", \"k\": {{\"j\": {{}},{indent}\"a.0.forward\": {{\"input_args\": []}}}}")
            } else {
                String::new()
            };
            let comma = if i == 0 { "" } else { "," };
            let number = if i % 100 == 7 { "NaN" } else { "1.5" };
            let _ = write!(
                text,
                "{comma}{indent}\"Torch.f.{i}.forward\": {{\"input_args\": [{number}, \"{filler}\"]{nested}}}"
            );
            i += 1;
        }
        text.push_str("}, \"level\": \"L1\"}");
        text
    }

    fn shared(bytes: &[u8]) -> Index {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
        pool.install(|| scan_until(bytes, &|_| false, &Watch::switch(&AtomicBool::new(false))))
    }

    #[test]
    fn several_threads_say_what_one_says() {
        for (indent, decoy) in [("\n  ", false), ("", false), ("\n  ", true), ("", true)] {
            let text = large(indent, decoy);
            let alone = scan(text.as_bytes());
            assert_eq!(alone.level.as_deref(), Some("L1"));
            assert_eq!(shared(text.as_bytes()), alone, "{indent:?} {decoy}");
            for cut in [text.len() - 3, text.len() / 2, PART * 2 + 17] {
                assert_eq!(shared(&text.as_bytes()[..cut]), scan(&text.as_bytes()[..cut]));
            }
            let damaged = text.replacen("Torch.f.90.", "Torch.f\".90.", 1);
            assert_eq!(shared(damaged.as_bytes()), scan(damaged.as_bytes()));
        }
    }

    #[test]
    fn seams_are_found_in_every_layout() {
        for indent in ["\n  ", "", " ", "\n    "] {
            let text = large(indent, false);
            let mut cursor = Cursor::new(text.as_bytes(), 9);
            cursor.expect(b'{', "").expect("data");
            assert_eq!(seams(cursor).len(), 2, "{indent:?}");
        }
    }
}
