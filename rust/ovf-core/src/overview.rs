//! Many steps at a glance: for each step what the answer is, and the numbers people follow.
//!
//! In: the steps of a dump root. Out: one [`StepSummary`] a step, in order. As many steps are held in memory as there
//! are threads; of each only its summary is kept. The result does not depend on the number of threads.

use rayon::prelude::*;
use serde::Serialize;

use crate::error::Result;
use crate::report::{Certainty, FindingKind, ReadingReport, Report, Verdict};
use crate::source::{RankSource, Step};
use crate::survey::Wanted;
use crate::{Options, Progress, Rank, answer, pool, select};

/// The first overflow of a step in short.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FirstSummary {
    /// Global rank.
    pub rank: Rank,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// Kind of origin.
    pub kind: FindingKind,
    /// `certain` or `likely`.
    pub certainty: Certainty,
    /// `nan`, `+inf`, `-inf` or `unknown`.
    pub severity: String,
    /// Path of the innermost module around it.
    pub module: Option<String>,
}

/// One step in short.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepSummary {
    /// Step number; `null` when the path names no step.
    pub step: Option<u64>,
    /// Folder of the step below the path that was given.
    pub step_label: String,
    /// What the dump says.
    pub verdict: Verdict,
    /// Whether evidence is missing.
    pub incomplete: bool,
    /// The first overflow.
    pub first: Option<FirstSummary>,
    /// Origins.
    pub findings: u64,
    /// Ranks with a readable dump.
    pub ranks: u64,
    /// Ranks the first overflow reaches.
    pub ranks_reached: u64,
    /// Ops over all ranks.
    pub ops: u64,
    /// The loss.
    pub loss: Option<ReadingReport>,
    /// The gradient norm.
    pub gradient_norm: Option<ReadingReport>,
}

impl StepSummary {
    fn of(report: &Report) -> Self {
        let trend = report.trend.clone().unwrap_or_default();
        Self {
            step: report.step,
            step_label: report.step_label.clone(),
            verdict: report.verdict,
            incomplete: report.incomplete,
            first: report.first.as_ref().map(|f| FirstSummary {
                rank: f.rank,
                op_name: f.op_name.clone(),
                exec_order: f.exec_order,
                kind: f.kind,
                certainty: f.certainty,
                severity: f.severity.clone(),
                module: f.module.clone(),
            }),
            findings: report.findings.len() as u64 + u64::from(report.findings_omitted),
            ranks: report.ranks.len() as u64,
            ranks_reached: report.spread.as_ref().map_or(0, |s| s.ranks.len() as u64),
            ops: report.total_ops,
            loss: trend.loss,
            gradient_norm: trend.gradient_norm,
        }
    }
}

/// Summarises steps.
///
/// # Errors
/// As [`crate::analyze`], for any of the steps.
pub fn overview(steps: &[Step], options: &Options, progress: &Progress) -> Result<Vec<StepSummary>> {
    let options = Options { wanted: Wanted { trend: true, ..Wanted::default() }, ..options.clone() };
    let chosen: Vec<(&Step, Vec<RankSource>)> =
        steps.iter().map(|s| Ok((s, select(s, &options)?))).collect::<Result<_>>()?;
    let ranks = chosen.iter().map(|(_, sources)| sources.len()).sum();
    for (_, sources) in &chosen {
        progress.expect(sources);
    }
    let pool = pool(ranks, &options)?;
    let together = pool.current_num_threads();
    let mut summaries = Vec::new();
    for window in chosen.chunks(together) {
        let summarise = |(step, sources): &(&Step, Vec<RankSource>)| {
            answer(step, sources, &options, progress).map(|report| StepSummary::of(&report))
        };
        summaries.extend(pool.install(|| window.par_iter().map(summarise).collect::<Result<Vec<_>>>())?);
    }
    Ok(summaries)
}
