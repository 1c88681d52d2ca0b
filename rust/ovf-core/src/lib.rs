//! Finds the operator that first turned finite numbers into NaN or Inf in the msProbe dumps of one training step.
//!
//! Data flows one way; each room names only types of the rooms before it:
//!
//! ```text
//! source -> structural, scan, parse -> provenance, classify, graph -> walk, timeline (per rank) -> collective -> order -> verdict -> report
//! ```
//!
//! ```no_run
//! use ovf_core::{Options, Progress, analyze, discover};
//! let steps = discover("dump".as_ref())?;
//! let report = analyze(&steps[0], &Options::default(), &Progress::default())?;
//! if let Some(first) = &report.first {
//!     println!("rank {} {}: {}", first.rank, first.op_name, first.reason);
//! }
//! # Ok::<(), ovf_core::Error>(())
//! ```
//!
//! What "first overflow" means, rule by rule, stands in `docs/semantics.md`.

mod atlas;
mod axis;
mod chart;
mod classify;
mod collective;
mod communication;
mod context;
mod detail;
mod error;
mod graph;
mod op;
mod order;
mod parse;
mod provenance;
mod report;
mod rules;
mod scan;
mod source;
mod structural;
mod timeline;
mod token;
mod trace;
mod verdict;
mod walk;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as Atomic};

use rayon::prelude::*;

pub use atlas::{Atlas, NameList, RankRow, Root, SpotView};
pub use chart::{Chart, Look, Spot, Stem};
pub use classify::OpState;
pub use collective::{Match, MatchState, Matching, Member, match_communications};
pub use communication::{Communication, GroupKey};
pub use context::{Context, Frame};
pub use error::{Error, ErrorKind, Position, Result};
pub use op::{Direction, Kinds, OpName, Rank, TensorStat};
pub use order::{Candidate, CandidateSet, Ordering, Receipt, Source, order};
pub use report::{
    Certainty, CommunicationReport, Finding, FindingKind, Hint, Hop, Note, PathStep, RankOp, RankReport, Report,
    SCHEMA_VERSION, Spread, Unreadable, ValueReport, Verdict,
};
pub use rules::Rules;
pub use scan::{Ending, Entry, Index, scan};
pub use source::{Bytes, RankSource, Step, discover};
pub use timeline::{Cause, Completeness, Counts, Mark, OpRef, Phase, Symptom, Timeline, build};
pub use trace::{Anomaly, Trace, trace};

/// How to analyse.
#[derive(Debug, Clone)]
pub struct Options {
    /// The operator table.
    pub rules: Rules,
    /// Only these ranks; all when `None`.
    pub ranks: Option<Vec<Rank>>,
    /// Threads; all processors when `None`.
    pub threads: Option<usize>,
    /// Whether large files may be mapped.
    pub map: bool,
    /// Whether to keep the name and state of every op, for drawing ([`Report::atlas`]).
    pub chart: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: Rules::built_in(), ranks: None, threads: None, map: true, chart: false }
    }
}

/// Counters that another thread may read, and a switch it may set.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: AtomicU64,
    /// Bytes in all, known from the start.
    pub total: AtomicU64,
    /// Ranks read so far.
    pub ranks: AtomicU64,
    /// Set to stop early: ranks not begun are left out and the result must be thrown away.
    pub cancel: AtomicBool,
}

/// Analyses one step.
///
/// # Errors
/// [`ErrorKind::Selection`] when none of the asked ranks is there; [`ErrorKind::Io`] when no thread can be started.
/// Files that cannot be read are part of the report.
pub fn analyze(step: &Step, options: &Options, progress: &Progress) -> Result<Report> {
    let sources = select(step, options)?;
    let pool = pool(step, options)?;
    let sizes: u64 = sources.iter().filter_map(|s| std::fs::metadata(&s.dump).ok()).map(|m| m.len()).sum();
    progress.total.fetch_add(sizes, Atomic::Relaxed);
    pool.install(|| {
        let read: Vec<(Option<Timeline>, Option<Unreadable>)> =
            sources.par_iter().map(|s| summarise(s, options, progress)).collect();
        let mut facts = verdict::StepFacts {
            number: step.number,
            label: step.label.clone(),
            notes: step.notes.clone(),
            unreadable: Vec::new(),
            chosen: step.single || options.ranks.is_some(),
        };
        let mut timelines = Vec::new();
        let mut kept = Vec::new();
        for ((timeline, problem), source) in read.into_iter().zip(&sources) {
            facts.unreadable.extend(problem);
            if let Some(timeline) = timeline {
                timelines.push(timeline);
                kept.push(source.clone());
            }
        }
        let matching = match_communications(&timelines);
        let ordering = order(&timelines, &matching);
        let (mut report, located) = verdict::assemble(&facts, &timelines, &matching, &ordering);
        detail::fill(&mut report.findings, &located, &kept, &options.rules, options.map);
        report.first = report.findings.first().cloned();
        report.atlas = options.chart.then(|| atlas::draw(&timelines, &matching));
        Ok(report)
    })
}

fn select(step: &Step, options: &Options) -> Result<Vec<RankSource>> {
    let Some(asked) = &options.ranks else {
        return Ok(step.ranks.clone());
    };
    let chosen: Vec<RankSource> = step.ranks.iter().filter(|s| asked.contains(&s.rank)).cloned().collect();
    if let Some(absent) = asked.iter().find(|r| step.ranks.iter().all(|s| s.rank != **r)) {
        let there: Vec<Rank> = step.ranks.iter().map(|s| s.rank).collect();
        let text = format!("no rank {absent} in this step; it has {}", verdict::ranks_text(&there));
        return Err(Error::new(ErrorKind::Selection, &step.path, text));
    }
    Ok(chosen)
}

fn pool(step: &Step, options: &Options) -> Result<rayon::ThreadPool> {
    // A pool of its own: rayon's global one does not survive fork().
    // More threads than ranks have nothing to do.
    let ranks = step.ranks.len().max(1);
    let wanted = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    rayon::ThreadPoolBuilder::new()
        .num_threads(wanted.clamp(1, ranks))
        .stack_size(16 << 20)
        .thread_name(|i| format!("ovf-{i}"))
        .build()
        .map_err(|e| Error::new(ErrorKind::Io(None), &step.path, format!("cannot start threads: {e}")))
}

/// The map step for one rank.
fn summarise(source: &RankSource, options: &Options, progress: &Progress) -> (Option<Timeline>, Option<Unreadable>) {
    if progress.cancel.load(Atomic::Relaxed) {
        return (None, None);
    }
    let bytes = match Bytes::open(&source.dump, options.map) {
        Ok(bytes) => bytes,
        Err(error) => {
            let help = if error.kind == ErrorKind::NotFound {
                "the rank's dump was not written: was PrecisionDebugger.stop() reached?"
            } else {
                "check the permissions, or leave the rank out with --ranks"
            };
            return (None, Some(unreadable(source, None, error.message, help, 0)));
        }
    };
    let mut timeline =
        timeline::build_until(&bytes, source.rank, &source.label, &options.rules, options.chart, &progress.cancel);
    progress.bytes.fetch_add(bytes.len() as u64, Atomic::Relaxed);
    progress.ranks.fetch_add(1, Atomic::Relaxed);
    if bytes.changed() {
        timeline.notes.push(
            "the file changed while it was read: the job is still writing; analyse again when it is done".to_owned(),
        );
    }
    let problem = timeline.problem.take().map(|problem| {
        let help = match timeline.completeness {
            Completeness::Cut => "the job was stopped while msProbe wrote the file; the ops after the cut are lost",
            Completeness::Empty => "nothing was recorded: was the step reached, and PrecisionDebugger.stop() called?",
            _ => "dump the rank again, or leave it out with --ranks",
        };
        unreadable(source, problem.position, problem.message, help, timeline.ops)
    });
    // A file without a single op says nothing, not even what its rank took part in.
    let says_something = timeline.ops > 0;
    (says_something.then_some(timeline), problem)
}

fn unreadable(
    source: &RankSource,
    position: Option<Position>,
    message: String,
    help: &str,
    ops_used: u32,
) -> Unreadable {
    Unreadable {
        rank: source.rank,
        path: source.dump.display().to_string(),
        line: position.map(|p| p.line),
        column: position.map(|p| p.column),
        message,
        help: Some(help.to_owned()),
        ops_used,
    }
}
