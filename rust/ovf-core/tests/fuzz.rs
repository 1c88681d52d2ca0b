//! The checks of `fuzz/`, driven without cargo-fuzz: some seconds in a test run, longer when asked.
//!
//! `OVF_FUZZ_SECONDS=600 cargo test --release -p ovf-core --features bench --test fuzz -- --nocapture` is the long run; it
//! tells the number of executions. `OVF_FUZZ_SEED=7` starts elsewhere. A failure names the seed of its bytes.

#![allow(clippy::print_stdout)] // what was run is the driver's result
#![allow(clippy::pedantic)]

#[path = "../../../fuzz/src/lib.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod fuzz;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for each check.
fn seconds() -> Duration {
    let asked = std::env::var("OVF_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs_f64(asked.unwrap_or(2.0))
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Runs a check on bytes drawn from seeds until the time is over.
fn drive(name: &str, check: impl Fn(u64, &mut Random)) {
    let first: u64 = std::env::var("OVF_FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    let started = Instant::now();
    let mut runs = 0;
    while started.elapsed() < seconds() {
        let seed = first + runs;
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(seed, &mut Random(seed)))) {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            panic!("{name}, OVF_FUZZ_SEED={seed}: {text}");
        }
        runs += 1;
    }
    println!("{name}: {runs} executions from seed {first} in {:.0?}", started.elapsed());
}

fn drawn(random: &mut Random) -> Vec<u8> {
    let length = random.next() % 1500;
    (0..length).map(|_| random.next() as u8).collect()
}

#[test]
fn fast_and_exact_agree() {
    drive("agree", |_, random| fuzz::agree(&drawn(random)));
}

#[test]
fn fast_and_exact_agree_on_damaged_real_dumps() {
    let mut seeds = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data"), &mut seeds);
    assert!(!seeds.is_empty(), "tests/data holds dumps");
    for seed in &seeds {
        fuzz::agree_on(seed);
    }
    drive("agree on real dumps", |_, random| {
        let seed = &seeds[random.next() as usize % seeds.len()];
        let bytes = drawn(random);
        let mut dice = fuzz::dice::Dice::new(&bytes);
        // A short dump is damaged more often in a telling place: some of the ops are left out first.
        let text = shortened(seed, random);
        fuzz::agree_on(&fuzz::mutation::mutated(text, &mut dice));
    });
}

#[test]
fn any_bytes_come_to_a_timeline() {
    drive("any bytes", |_, random| fuzz::any_bytes(&drawn(random)));
}

#[test]
fn damaged_step_folders_come_to_a_report() {
    drive("step folder", |_, random| fuzz::step_folder(&drawn(random)));
}

fn collect(folder: &Path, into: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, into);
        } else if path.ends_with("dump.json") {
            into.push(fs::read(&path).expect("a dump of tests/data"));
        }
    }
}

/// A dump with most of its ops left out; as it is where no op can be told by its looks.
fn shortened(text: &[u8], random: &mut Random) -> Vec<u8> {
    let expected = fuzz::reference::index(text);
    if expected.ops.len() < 4 || random.next().is_multiple_of(4) {
        return text.to_vec();
    }
    let from = random.next() as usize % (expected.ops.len() - 3);
    let to = (from + 1 + random.next() as usize % 12).min(expected.ops.len() - 1);
    let mut out = text[..expected.ops[0].body.end].to_vec();
    out.extend(&text[expected.ops[from].body.end..expected.ops[to].body.end]);
    out.extend(&text[expected.ops[expected.ops.len() - 1].body.end..]);
    out
}
