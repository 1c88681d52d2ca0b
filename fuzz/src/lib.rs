//! What must hold for any bytes. Three checks, each a function of the bytes a fuzzer gives:
//!
//! * [`agree`]: the fast path and the exact path say the same. Fast is what ovf runs: the scan by bit masks, which parses
//!   only ops that a telling token stands in, and objects read by a spelling learnt before. Exact is [`reference`], a
//!   plain reader written from the format alone that goes byte by byte. Compared are the index, the values of every op,
//!   and the timeline: of the dump, of the same dump in other layouts, and of the dump with a telling token put into every
//!   op so that none is passed over.
//! * [`any_bytes`]: a timeline comes out, in bounded time, and no panic.
//! * [`step_folder`]: a step folder with damaged files comes to a report.
//!
//! The bytes are either taken as a dump or as the choices of a generator ([`dump`]) and of [`mutation`].

pub mod dice;
pub mod dump;
pub mod mutation;
pub mod reference;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ovf_core::bench::{self, Seen};
use ovf_core::{Ending, Options, Progress, Rules, analyze, build, discover, scan};
use serde_json::Value;

use self::dice::Dice;
use self::reference::{Added, End, Node};

/// Longer than any run of a small input may take, even on a busy machine.
const LONG: Duration = Duration::from_secs(30);

/// The dump that a fuzzer's bytes stand for.
fn dump_of(data: &[u8]) -> Vec<u8> {
    let mut dice = Dice::new(data);
    match dice.roll(4) {
        0 => data[1.min(data.len())..].to_vec(),
        1 => dump::text(&mut dice),
        2 => {
            let text = dump::text(&mut dice);
            mutation::mutated(text, &mut dice)
        }
        _ => {
            let mut text = dump::text(&mut dice);
            text.truncate(dice.roll(text.len() as u64 + 1) as usize);
            text
        }
    }
}

/// Fast path = exact path.
///
/// # Panics
/// When they differ.
pub fn agree(data: &[u8]) {
    agree_on(&dump_of(data));
}

/// As [`agree`], on a dump itself.
///
/// # Panics
/// When they differ.
pub fn agree_on(bytes: &[u8]) {
    let expected = reference::index(bytes);
    let index = scan(bytes);
    let show = || String::from_utf8_lossy(bytes).into_owned();
    // The index.
    let ending = match index.ending {
        Ending::Complete => End::Complete,
        Ending::Cut(_) => End::Cut,
        Ending::Damaged(at, _) => End::Damaged(at),
    };
    assert_eq!(ending, expected.end, "ending of {}", show());
    assert_eq!(index.duplicates, expected.duplicates, "duplicates in {}", show());
    assert_eq!(index.has_data, expected.has_data, "data in {}", show());
    assert_eq!(
        [&index.task, &index.level, &index.framework],
        [&expected.task, &expected.level, &expected.framework],
        "{}",
        show()
    );
    let found: Vec<_> =
        index.entries.iter().map(|e| (e.name(bytes).to_vec(), e.body_at(), e.body(bytes).len())).collect();
    let wanted: Vec<_> = expected.ops.iter().map(|o| (o.name.clone(), o.body.start, o.body.len())).collect();
    assert_eq!(found, wanted, "ops of {}", show());
    // The values.
    let mut sound = expected.end == End::Complete;
    for entry in index.entries.iter() {
        let body = entry.body(bytes);
        let parsed = bench::parse_record(body);
        if let Ok(values) = &parsed {
            let telling = |v: &Seen| match v {
                Seen::Tensor(_, _, statistics) => statistics.iter().flatten().any(|n| !n.is_finite()),
                Seen::Number(n) => !n.is_finite(),
                Seen::Other => false,
            };
            let passed_over = !entry.non_finite && values.iter().any(|(_, v)| telling(v));
            assert!(!passed_over, "a non-finite value in an op that is passed over: {}", String::from_utf8_lossy(body));
        }
        match reference::tree(body) {
            Some(tree) => {
                let values = reference::values(&tree);
                let same = parsed.as_ref().is_ok_and(|p| equal(p, &values));
                assert!(same, "values of {}:\n{parsed:?}\n{values:?}", String::from_utf8_lossy(body));
            }
            None => sound = false,
        }
    }
    if let Err(text) = bench::learnt_equals_exact(bytes, &index) {
        panic!("{text}\nin {}", show());
    }
    // The timeline.
    let rules = Rules::built_in();
    let told = timeline(bytes, &rules);
    if !sound || index.duplicates > 0 || !expected.plain {
        return;
    }
    let ops: Vec<(Vec<u8>, Node)> = expected
        .ops
        .iter()
        .map(|o| (o.name.clone(), reference::tree(&bytes[o.body.clone()]).expect("a sound op")))
        .collect();
    for layout in [None, Some(1), Some(4)] {
        for added in [Added::Nothing, Added::Token, Added::Key] {
            let other = reference::spelled(&expected, &ops, layout, added);
            if let Some(place) = difference(&timeline(&other, &rules), &told, String::new()) {
                let other = String::from_utf8_lossy(&other).into_owned();
                panic!("{place}\nlayout {layout:?}, added to every op: {added:?}\n{}\n{other}", show());
            }
        }
    }
}

fn equal(a: &[(String, Seen)], b: &[(String, Seen)]) -> bool {
    // NaN is equal to itself here.
    format!("{a:?}") == format!("{b:?}")
}

/// Where two values differ first.
fn difference(a: &Value, b: &Value, path: String) -> Option<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) if x.len() == y.len() => {
            x.iter().find_map(|(k, v)| difference(v, y.get(k).unwrap_or(&Value::Null), format!("{path}.{k}")))
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => {
            x.iter().zip(y).enumerate().find_map(|(i, (v, w))| difference(v, w, format!("{path}[{i}]")))
        }
        _ => (a != b).then(|| format!("{path}: {a} and {b}")),
    }
}

/// The timeline without what depends on places in the file.
fn timeline(bytes: &[u8], rules: &Rules) -> Value {
    let mut value = serde_json::to_value(build(bytes, 0, "rank0", rules)).expect("a timeline is plain data");
    value["bytes"] = 0.into();
    for mark in value["marks"].as_array_mut().into_iter().flatten() {
        mark["record"] = 0.into();
        mark["before"] = Value::Null; // records again
    }
    // What a finite communication gave back is not read where it can be passed over.
    for event in value["events"].as_array_mut().into_iter().flatten() {
        if event["got"]["kinds"] == 0 {
            event["got"] = Value::Null;
        }
        if event["got"].is_null() && event["given"].is_null() {
            event["communication"]["numel"] = 0.into();
        }
    }
    if value["problem"].is_object() {
        value["problem"]["position"] = Value::Null;
    }
    value
}

/// A timeline of anything, soon, without a panic.
///
/// # Panics
/// When it takes long.
pub fn any_bytes(data: &[u8]) {
    let bytes = dump_of(data);
    let started = Instant::now();
    let timeline = build(&bytes, 0, "rank0", &Rules::built_in());
    assert!(timeline.ops as usize <= bytes.len(), "more ops than bytes");
    assert!(started.elapsed() < LONG, "{:?} for {} bytes", started.elapsed(), bytes.len());
}

/// A report of a step folder with damaged files.
///
/// # Panics
/// When there is none, or not soon.
pub fn step_folder(data: &[u8]) {
    let mut dice = Dice::new(data);
    let root = Scratch::new();
    let ranks = 1 + dice.roll(4);
    for rank in 0..ranks {
        let name = match dice.roll(12) {
            0 => "rank".to_owned(),
            1 => format!("proc{rank}"),
            2 => format!("rank_{rank}"),
            3 => "rank99999999999999999999".to_owned(),
            _ => format!("rank{rank}"),
        };
        let folder = root.0.join("step0").join(name);
        if fs::create_dir_all(&folder).is_err() {
            continue;
        }
        let dump = dump::text(&mut dice);
        let side = [dump::construct(&mut dice), dump::stack(&mut dice)];
        for (name, text) in
            ["dump.json", "construct.json", "stack.json"].into_iter().zip([dump, side[0].clone(), side[1].clone()])
        {
            let text = match dice.roll(6) {
                0 => mutation::mutated(text, &mut dice),
                1 => text[..dice.roll(text.len() as u64 + 1) as usize].to_vec(),
                2 if name != "dump.json" => continue,
                _ => text,
            };
            let _ = fs::write(folder.join(name), text);
        }
    }
    let started = Instant::now();
    for step in discover(&root.0).unwrap_or_default() {
        let options =
            Options { threads: Some(1 + dice.roll(2) as usize), map: dice.roll(2) == 0, ..Options::default() };
        let report = analyze(&step, &options, &Progress::default()).expect("damaged ranks are part of the report");
        let text = serde_json::to_string(&report).expect("a report is plain data");
        assert!(text.starts_with('{'));
    }
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from("/dev/shm");
        let base = if base.is_dir() { base } else { std::env::temp_dir() };
        Self(base.join(format!("ovf-fuzz-{}-{number}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
