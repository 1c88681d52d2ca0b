//! The entries of `data`, by one thread or by several.
//!
//! JSON can only be read from its start: in the middle of a file nobody knows whether a byte is inside a string. So a
//! large file is cut where the text *looks* like the seam between two ops (the bytes between the first two ops, then a
//! name, then an object with a key that records have), and each part is read as if it began there. A part that ends,
//! between two ops, exactly where the next one began proves that guess: the states are the same. At the first guess
//! that is not proven the parts behind it are thrown away, and the rest is read by one thread. The answer is that of
//! one thread on all bytes, whatever the layout.

use std::hash::Hasher;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use rustc_hash::FxHasher;

use super::entry::{Class, Entry, FormId, Note, Part, UNNAMED};
use super::form::Forms;
use super::place::Places;
use super::{Asked, Index, WATCH_EVERY};
use crate::progress::Watch;
use crate::structural::{Skipped, large_exponent, skip_container, starts_like_non_finite};
use crate::token::{Cursor, Read, Stop};

/// Bytes of a part; small ones in tests, so that there are many.
const PART: usize = if cfg!(test) { 64 << 10 } else { 4 << 20 };
/// Bytes of a file that is worth it.
const SHARED: usize = if cfg!(test) { 128 << 10 } else { 32 << 20 };
/// Bytes behind the wanted place in which a seam is looked for.
const SEARCHED: usize = PART / 4;
/// First keys of a record.
const FIRST_KEYS: [&[u8]; 5] = [b"input_args", b"input_kwargs", b"input", b"output", b"parameters"];

/// Whether the threads of the pool that this runs in should share a file of so many bytes.
pub(crate) fn worth_sharing(bytes: usize) -> bool {
    bytes >= SHARED && rayon::current_thread_index().is_some() && rayon::current_num_threads() > 1
}

/// Hashes of names, in buckets by their last bits: small enough that all that may be equal are near in memory.
#[derive(Debug)]
pub(super) struct Hashes([Vec<u64>; Self::BUCKETS]);

impl Default for Hashes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Vec::new()))
    }
}

impl Hashes {
    /// Bits of a hash that tell its bucket.
    pub(super) const BITS: u32 = 6;
    pub(super) const BUCKETS: usize = 1 << Self::BITS;

    pub(super) fn take(&mut self, bucket: usize) -> Vec<u64> {
        std::mem::take(&mut self.0[bucket])
    }

    fn push(&mut self, name: &[u8]) {
        let mut hasher = FxHasher::default();
        hasher.write(name);
        let hash = hasher.finish();
        self.0[hash as usize % Self::BUCKETS].push(hash);
    }
}

/// What one thread read from one place on.
struct Found {
    part: Part,
    /// Names of notable ops and of losses' gradients.
    names: Vec<u8>,
    classes: Vec<Class>,
    /// The one whose forms its records were compared with.
    lane: usize,
    ascii: bool,
    at: usize,
    end: Read<Reached>,
}

/// What one thread keeps from part to part: what repeats in one repeats in the others, and few large pieces of memory
/// are had sooner than many small ones.
#[derive(Default)]
struct Lane {
    number: usize,
    forms: Forms,
    hashes: Hashes,
    /// Ops of its largest part so far.
    ops: usize,
}

#[derive(Default)]
struct Lanes {
    idle: Mutex<Vec<Lane>>,
    begun: AtomicUsize,
}

impl Lanes {
    fn take(&self) -> Lane {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        idle.unwrap_or_else(|| Lane { number: self.begun.fetch_add(1, Ordering::Relaxed), ..Lane::default() })
    }

    fn give(&self, lane: Lane) {
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(lane);
        }
    }

    /// All of them, by their numbers.
    fn end(self) -> Vec<Lane> {
        let mut lanes = self.idle.into_inner().unwrap_or_default();
        lanes.sort_unstable_by_key(|lane| lane.number);
        lanes
    }
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

/// Reads the object `data` at the cursor into the index, and the hashes of its names.
pub(super) fn read_data(
    cursor: &mut Cursor,
    index: &mut Index,
    hashes: &mut Vec<Hashes>,
    asked: &Asked,
    watch: &Watch,
) -> Read<()> {
    cursor.expect(b'{', "an object")?;
    if cursor.eat(b'}')? {
        return Ok(());
    }
    let mut starts = vec![cursor.at];
    if worth_sharing(cursor.bytes.len() - cursor.at) {
        starts.extend(seams(*cursor));
    }
    let bytes = cursor.bytes;
    let lanes = Lanes::default();
    let read = |i: usize| read_part(bytes, starts[i], starts.get(i + 1).copied(), &lanes, asked, watch);
    let mut found: Vec<Found> = if starts.len() == 1 {
        vec![read(0)]
    } else {
        // PERF: one by one; a thread that had taken several would keep the others waiting at the end.
        (0..starts.len()).into_par_iter().with_max_len(1).map(read).collect()
    };
    let proven = found.iter().position(|f| f.end != Ok(Reached::Seam)).unwrap_or(found.len());
    found.truncate(proven + 1);
    if let Some(last) = found.last()
        && matches!(last.end, Ok(Reached::Seam | Reached::Beyond))
    {
        found.push(read_part(bytes, last.at, None, &lanes, asked, watch));
    }
    // Those of parts that are thrown away are among them: such names may seem to stand twice, which costs a closer look.
    let lanes = lanes.end();
    let first_forms: Vec<u32> = lanes.iter().map(|lane| index.entries.take_forms(lane.forms.variants())).collect();
    hashes.extend(lanes.into_iter().map(|lane| lane.hashes));
    index.classes.reserve(found.iter().map(|found| found.classes.len()).sum());
    let mut end = Ok(Reached::Closed);
    for found in found {
        index.ascii &= found.ascii;
        index.classes.extend_from_slice(&found.classes);
        index.entries.push(Part { first_form: first_forms.get(found.lane).copied().unwrap_or(0), ..found.part });
        (cursor.at, end) = (found.at, found.end);
    }
    end.map(|_| ())
}

/// Reads from the name at `start` on.
fn read_part(bytes: &[u8], start: usize, limit: Option<usize>, lanes: &Lanes, asked: &Asked, watch: &Watch) -> Found {
    let mut lane = lanes.take();
    // PERF: most parts have about as many ops as the one before, and what grows is copied.
    let room = lane.ops + lane.ops / 16;
    let mut found = Found {
        part: Part { places: Places::new(start, room), ..Part::default() },
        names: Vec::new(),
        classes: Vec::with_capacity(room),
        lane: lane.number,
        ascii: true,
        at: start,
        end: Ok(Reached::Closed),
    };
    let mut cursor = Cursor::new(bytes, start);
    found.end = read_entries(&mut cursor, &mut found, limit, &mut lane, asked, watch);
    found.at = cursor.at;
    lane.ops = lane.ops.max(found.part.places.len());
    let names = std::mem::take(&mut found.names);
    found.part.names = String::from_utf8(names).ok().filter(|names| memchr::memchr(b'\\', names.as_bytes()).is_none());
    lanes.give(lane);
    found
}

/// Reads entries from a name on.
fn read_entries(
    cursor: &mut Cursor,
    found: &mut Found,
    limit: Option<usize>,
    lane: &mut Lane,
    asked: &Asked,
    watch: &Watch,
) -> Read<Reached> {
    if watch.stopped() {
        return Err(Stop::End);
    }
    let mut told = cursor.at;
    let mut before = Class::Forward;
    let part = &mut found.part;
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
        let numbers_at = part.numbers.len();
        let (non_finite, variant) = if let Some(fit) = lane.forms.fit(cursor.bytes, body_at, name, &mut part.numbers) {
            cursor.at = fit.end;
            found.ascii &= fit.ascii;
            (fit.telling, fit.variant)
        } else {
            let non_finite = skip_record(cursor, &mut found.ascii)?;
            (non_finite, lane.forms.learn(cursor.bytes, body_at, cursor.at, name, &mut part.numbers))
        };
        found.ascii &= name.is_ascii();
        // PERF: now its bytes are at hand; a second look at each name would fetch them again.
        lane.hashes.push(name);
        let (asked, class) = (asked(name), Class::of(name));
        found.classes.push(class);
        let name_len = name.len() as u32;
        // The first backward op behind forward ones names a loss.
        let turns = class == Class::Backward && before == Class::Forward;
        before = class;
        if non_finite || asked || turns {
            let named_at = u32::try_from(found.names.len()).unwrap_or(UNNAMED);
            found.names.extend_from_slice(name);
            part.notes.push(Note {
                op: part.places.len() as u32,
                form: FormId::of(variant),
                numbers_at: u32::try_from(numbers_at).unwrap_or(u32::MAX),
                named_at,
                name_len,
                non_finite,
                asked,
            });
        }
        part.places.push(Entry {
            name_at: range.start,
            body_len: cursor.at - body_at,
            name_len,
            body_gap: (body_at - range.end) as u32,
            non_finite,
            asked,
        });
        if !cursor.eat(b',')? {
            cursor.expect(b'}', "',' or '}' after an op")?;
            return Ok(Reached::Closed);
        }
        if part.places.len().is_multiple_of(WATCH_EVERY) {
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
    let wanted = (cursor.at + PART..bytes.len().saturating_sub(PART)).into_par_iter().step_by(PART);
    let found = wanted.filter_map(|from| {
        // The seam ends with the quote that opens the name.
        let quotes = finder.find_iter(&bytes[from..from + SEARCHED]).map(|at| from + at + seam.len() - 1);
        { quotes }.find(|&at| looks_like_an_entry(Cursor::new(bytes, at)))
    });
    found.collect()
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
