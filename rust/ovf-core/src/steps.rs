//! The steps that the user's paths hold: one path, or several (the disks of several hosts) as one dump.
//!
//! In: paths. Out: [`Step`]s in order. Steps of the same label are one step, so that ranks may be spread over paths; a
//! folder of summaries that is not called `step<N>` is called what its summaries say.

use std::path::{Path, PathBuf};

use crate::bytes::Bytes;
use crate::encoding::decode_head;
use crate::error::Result;
use crate::op::Rank;
use crate::source::{RankSource, Step, discover_one, step_number};

/// All steps that `path` holds, in order of (phase, number). `path` is a dump root, a step, a rank folder, one dump
/// file, or one of these with written summaries in place of rank folders.
///
/// # Errors
/// [`crate::ErrorKind::NotFound`] and [`crate::ErrorKind::Io`] from the file system, [`crate::ErrorKind::NotADump`] when
/// no layout fits.
pub fn discover(path: &Path) -> Result<Vec<Step>> {
    let mut steps = discover_one(path)?;
    steps.iter_mut().for_each(name_by_summaries);
    Ok(steps)
}

/// All steps that the paths hold together.
///
/// # Errors
/// As [`discover`], of the first path that has one.
pub fn discover_all(paths: &[PathBuf]) -> Result<Vec<Step>> {
    let [first, rest @ ..] = paths else {
        return Ok(Vec::new());
    };
    let mut steps = discover(first)?;
    if rest.is_empty() {
        return Ok(steps);
    }
    for path in rest {
        for step in discover(path)? {
            match steps.iter_mut().find(|s| (s.number, &s.label) == (step.number, &step.label)) {
                Some(known) => join(known, step),
                None => steps.push(step),
            }
        }
    }
    for step in &mut steps {
        step.single = false;
    }
    steps.sort_by_cached_key(|s| s.label.split('/').map(order_of).collect::<Vec<_>>());
    Ok(steps)
}

/// As the folders of one root are ordered: phases by name, then steps by number.
fn order_of(part: &str) -> (bool, Option<u64>, String) {
    let number = step_number(part);
    (number.is_some(), number, part.to_owned())
}

/// The ranks of another path's folder of the same step. A dump stands before a summary; two dumps of a rank, or two
/// summaries, are both kept: the reduce step refuses them where they differ.
fn join(known: &mut Step, other: Step) {
    for note in other.notes {
        if !known.notes.contains(&note) {
            known.notes.push(note);
        }
    }
    for source in other.ranks {
        let there = known.ranks.iter().position(|r| r.rank == source.rank && r.is_summary() != source.is_summary());
        let Some(at) = there else {
            known.ranks.push(source);
            continue;
        };
        let (summary, dump) = if source.is_summary() {
            (source, None)
        } else {
            (std::mem::replace(&mut known.ranks[at], source.clone()), Some(source))
        };
        let dump: &RankSource = dump.as_ref().unwrap_or(&known.ranks[at]);
        let text =
            format!("{}: a summary beside the rank's dump in {}, passed over", summary.dump.display(), dump.label);
        known.notes.push(text);
    }
    known.ranks.sort_by_key(|r| -> Rank { r.rank });
}

/// A folder of summaries alone that names no step is called what its first readable summary says.
fn name_by_summaries(step: &mut Step) {
    if step.number.is_some() || !step.ranks.iter().all(RankSource::is_summary) {
        return;
    }
    let head = step.ranks.iter().find_map(|source| {
        let bytes = Bytes::open(&source.dump, false).ok()?;
        decode_head(&bytes, &source.dump).ok()
    });
    if let Some(head) = head {
        step.number = head.step;
        step.label = head.step_label;
    }
}
