//! The reduce step: the summaries of a step's ranks -> its report.
//!
//! The same for summaries made a moment ago and for written ones. Of written ones two things are checked, because
//! files are copied by hand: two steps are never mixed, and no rank is counted twice. What does not fit is reported as
//! unreadable, and the other ranks are analysed.

use rayon::prelude::*;

use crate::atlas::draw;
use crate::collective::match_communications;
use crate::error::{Error, ErrorKind, Result};
use crate::explain::fill;
use crate::op::Rank;
use crate::order::order;
use crate::report::Report;
use crate::summary::Summary;
use crate::verdict::{StepFacts, assemble, ranks_text};
use crate::{Options, pool};

/// Reduces the summaries of a step, in any order, to its report. Where `step` has no label, number and label are
/// those that the written summaries tell.
///
/// # Errors
/// [`ErrorKind::Selection`] when an asked rank has no summary; [`ErrorKind::Io`] when no thread can be started.
pub fn reduce(mut summaries: Vec<Summary>, step: StepFacts, options: &Options) -> Result<Report> {
    if let Some(asked) = &options.ranks {
        let mut there: Vec<Rank> = summaries.iter().map(|s| s.rank).collect();
        there.sort_unstable();
        if let Some(absent) = asked.iter().find(|r| there.binary_search(r).is_err()) {
            let text = format!("no rank {absent} in this step; it has {}", ranks_text(&there));
            return Err(Error::new(ErrorKind::Selection, step.label.as_ref(), text));
        }
        summaries.retain(|s| asked.contains(&s.rank));
    }
    let step = StepFacts { chosen: step.chosen || options.ranks.is_some(), ..step };
    pool(summaries.len(), options).map(|pool| pool.install(|| conclude(summaries, step, options)))
}

/// Matching, order, verdict and details. Runs in the caller's pool.
pub(crate) fn conclude(mut summaries: Vec<Summary>, mut step: StepFacts, options: &Options) -> Report {
    summaries.sort_by_key(|s| s.rank);
    one_step(&mut summaries, &mut step);
    let mut timelines = Vec::new();
    let mut records = Vec::new();
    for summary in once_each(summaries) {
        step.unreadable.extend(summary.unreadable);
        if let Some(timeline) = summary.timeline {
            timelines.push(timeline);
            records.push(summary.records);
        }
    }
    let matching = match_communications(&timelines);
    let ordering = order(&timelines, &matching);
    let fill = |findings: &mut [_], located: &[_]| fill(findings, located, &records, &options.rules);
    let mut report = assemble(&step, &timelines, &matching, &ordering, options.wanted, fill);
    report.atlas = options.wanted.chart.then(|| draw(&timelines, &matching));
    // PERF: thousands of ranks are many small pieces of memory. Not left to a thread that outlives the call: the caller
    // may fork.
    rayon::join(|| timelines.into_par_iter().for_each(drop), || drop((matching, ordering)));
    report
}

/// Names the step, and refuses summaries that say they are of another one.
fn one_step(summaries: &mut [Summary], step: &mut StepFacts) {
    if step.label.is_empty()
        && let Some(told) = summaries.iter().filter_map(|s| s.step.as_ref()).find(|told| !told.label.is_empty())
    {
        step.number = step.number.or(told.number);
        step.label.clone_from(&told.label);
    }
    let told = summaries.iter().find_map(|s| s.step.as_ref()?.number);
    let number = step.number.or(told);
    for summary in summaries {
        let Some(told) = summary.step.take() else { continue };
        match told.number {
            Some(other) if Some(other) != number => {
                let here = number.map_or_else(String::new, |n| format!(" among those of step {n}"));
                let text = format!("a summary of step {other}{here}");
                summary.refuse(&text, "keep one folder a step, as `ovf summarize` writes them");
            }
            _ => {
                for note in told.notes {
                    if !step.notes.contains(&note) {
                        step.notes.push(note);
                    }
                }
            }
        }
    }
}

/// Every rank once (ranks ascending): of equal summaries the first, of different ones none.
fn once_each(summaries: Vec<Summary>) -> Vec<Summary> {
    let mut kept: Vec<Summary> = Vec::with_capacity(summaries.len());
    for summary in summaries {
        match kept.last_mut() {
            Some(last) if last.rank == summary.rank => {
                if !last.says_the_same(&summary) {
                    let text = format!("rank {} has two dumps or summaries, which differ: ", last.rank);
                    let text = format!("{text}{} and {}", last.found_at, summary.found_at);
                    last.refuse(&text, "remove one of them, or give one of the two paths");
                }
            }
            _ => kept.push(summary),
        }
    }
    kept
}
