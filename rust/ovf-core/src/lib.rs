//! Finds the operator that first turned finite numbers into NaN or Inf in the msProbe dumps of one training step.
//!
//! Data flows one way; each room names only types of the rooms before it:
//!
//! ```text
//! source, bytes -> structural, scan, parse -> provenance, classify, graph -> walk, timeline, summary (per rank) -> collective -> order -> verdict -> report
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
#[cfg(feature = "bench")]
pub mod bench;
mod bytes;
mod chart;
mod classify;
mod collective;
mod communication;
mod context;
mod detail;
mod encoding;
mod error;
mod explain;
mod graph;
mod hint;
mod level;
mod near;
mod number;
mod op;
mod op_table;
mod order;
mod overview;
mod parse;
mod pattern;
mod progress;
mod provenance;
mod reduce;
mod report;
mod report_table;
mod rules;
mod scan;
mod source;
mod steps;
mod strip;
mod structural;
mod summary;
mod survey;
mod table;
mod timeline;
mod token;
mod trace;
mod unpack;
mod verdict;
mod walk;

use rayon::prelude::*;

pub use atlas::{Atlas, NameList, RankRow, Root, SpotView};
pub use bytes::Bytes;
pub use chart::{Chart, Look, Spot, Stem};
pub use classify::OpState;
pub use collective::{Match, MatchState, Matching, Member, match_communications};
pub use communication::{Communication, GroupKey};
pub use context::{Context, Frame};
pub use encoding::FORMAT;
pub use error::{Error, ErrorKind, Position, Result};
pub use explain::DETAILED;
pub use level::{LeveledOp, Levels};
pub use near::{NearKind, NearMiss};
pub use op::{Direction, Kinds, OpName, Rank, TensorStat};
pub use op_table::{OPS, OpTable};
pub use order::{Candidate, CandidateSet, Ordering, Receipt, Source, order};
pub use overview::{FirstSummary, StepSummary, overview};
pub use progress::Progress;
pub use reduce::reduce;
pub use report::{
    Before, Certainty, CommunicationReport, Finding, FindingKind, Hint, Hop, LevelCountReport, LevelReport,
    LevelsReport, NearReport, Note, PathStep, RankOp, RankReport, ReadingReport, Report, SCHEMA_VERSION, Spread,
    TrendReport, Unreadable, ValueReport, Verdict,
};
pub use report_table::{COMMUNICATIONS, FINDINGS, communications, findings};
pub use rules::{Level, Rules};
pub use scan::{Ending, Entries, Entry, Index, scan};
pub use source::{RankSource, Step, layout};
pub use steps::{discover, discover_all};
pub use summary::{RankBytes, StepName, Summary, summarise_bytes, summarise_files, with_context};
pub use survey::Wanted;
pub use table::{Batch, Column, ColumnField, ColumnKind, TextForm, Values};
pub use timeline::{Cause, Completeness, Counts, Mark, OpRef, Phase, Reading, Symptom, Timeline, Trend, build};
pub use trace::{Anomaly, Trace, trace, trace_written};
pub use unpack::{Foreign, LARGEST, Unpacked, Unpacker, unpack};
pub use verdict::StepFacts;

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
    /// What else is wanted than the answer.
    pub wanted: Wanted,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: Rules::built_in(), ranks: None, threads: None, map: true, wanted: Wanted::default() }
    }
}

/// Bytes that are worth a thread.
const BYTES_PER_THREAD: u64 = 16 << 20;

/// Analyses one step: [`Summary::read`] of every rank, then [`reduce`].
///
/// # Errors
/// [`ErrorKind::Selection`] when none of the asked ranks is there; [`ErrorKind::Io`] when no thread can be started;
/// [`ErrorKind::Cancelled`] when `progress` said to stop. Files that cannot be read are part of the report.
pub fn analyze(step: &Step, options: &Options, progress: &Progress) -> Result<Report> {
    let sources = select(step, options)?;
    let sizes = progress.expect(&sources);
    // Threads share a large file.
    let pool = pool(sources.len().max((sizes / BYTES_PER_THREAD) as usize), options)?;
    pool.install(|| answer(step, &sources, options, progress))
}

/// Map and reduce of a step, on the threads it is called on.
fn answer(step: &Step, sources: &[RankSource], options: &Options, progress: &Progress) -> Result<Report> {
    let summaries: Vec<Summary> = sources.par_iter().filter_map(|s| summarise(s, options, progress)).collect();
    if progress.is_cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, &step.path, "the analysis was stopped"));
    }
    let facts = StepFacts {
        number: step.number,
        label: step.label.clone(),
        notes: step.notes.clone(),
        unreadable: Vec::new(),
        chosen: step.single || options.ranks.is_some(),
    };
    Ok(reduce::conclude(summaries, facts, options))
}

/// The map step for one rank; `None` when the analysis was cancelled.
fn summarise(source: &RankSource, options: &Options, progress: &Progress) -> Option<Summary> {
    if progress.is_cancelled() {
        return None;
    }
    let summary = Summary::read(source, options, progress).unwrap_or_else(|error| Summary::not_opened(source, &error));
    (!progress.is_cancelled()).then_some(summary)
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

fn pool(tasks: usize, options: &Options) -> Result<rayon::ThreadPool> {
    // A pool of its own: rayon's global one does not survive fork().
    // More threads than tasks have nothing to do.
    let wanted = options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    rayon::ThreadPoolBuilder::new()
        .num_threads(wanted.clamp(1, tasks.max(1)))
        .stack_size(16 << 20)
        .thread_name(|i| format!("ovf-{i}"))
        .build()
        .map_err(|e| Error::new(ErrorKind::Io(None), "".as_ref(), format!("cannot start threads: {e}")))
}
