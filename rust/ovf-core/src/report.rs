//! The answer, as plain data. Nothing else leaves the core.
//!
//! Every field is part of the JSON contract (`docs/report.md` says the same for readers of the JSON). Non-finite
//! numbers are strings (`"NaN"`, `"Infinity"`, `"-Infinity"`), so the JSON is strict.

use serde::{Deserialize, Serialize};

use crate::atlas::Atlas;
use crate::collective::MatchState;
use crate::context::Frame;
use crate::near::NearKind;
use crate::op::Rank;
use crate::rules::Level;
use crate::timeline::{Completeness, Counts, OpRef, Phase};

/// Version of this shape. Fields may be added under one version; none is removed or changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// What the dump says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Something turned finite numbers into NaN or Inf.
    Overflow,
    /// Nothing did; what is not finite was intended or healed.
    Clean,
    /// The dump holds nothing that can be judged.
    NoEvidence,
}

impl Verdict {
    /// The word used in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Overflow => "overflow",
            Self::Clean => "clean",
            Self::NoEvidence => "no_evidence",
        }
    }
}

/// Kind of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// An op made it from finite (or intended) inputs.
    Compute,
    /// A communication made it from finite contributions.
    Communication,
    /// A weight, or the gradient of one, was bad already.
    Parameter,
    /// Data that entered was bad.
    Input,
    /// The value changed between the op that wrote it and the op that read it.
    Corruption,
    /// It came from a rank that is not in the dump.
    MissingRank,
}

impl FindingKind {
    /// The word used in JSON and in rules.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Parameter => "parameter",
            Self::Input => "input",
            Self::Corruption => "corruption",
            Self::MissingRank => "missing_rank",
        }
    }
}

/// How sure an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// The dump shows it.
    Certain,
    /// The dump leaves something out that could change it; `why_not_certain` says what.
    Likely,
}

/// One tensor of a finding's op.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValueReport {
    /// Where: `input_args[0]`, `parameters.weight`, `output[0]`.
    pub slot: String,
    /// `float16`, ... without `torch.`.
    pub dtype: String,
    /// Sizes by dimension.
    pub shape: Vec<i64>,
    /// Largest element.
    #[serde(serialize_with = "crate::number::serialize")]
    pub max: Option<f64>,
    /// Smallest element.
    #[serde(serialize_with = "crate::number::serialize")]
    pub min: Option<f64>,
    /// Mean, as dumped; may overflow by itself.
    #[serde(serialize_with = "crate::number::serialize")]
    pub mean: Option<f64>,
    /// L2 norm, as dumped; may overflow by itself.
    #[serde(serialize_with = "crate::number::serialize")]
    pub norm: Option<f64>,
    /// `finite`, `-inf`, `+inf`, `nan` or `unknown`.
    pub class: String,
    /// Of an input: the op before it whose output has the same dtype, shape and statistics.
    pub made_by: Option<String>,
}

/// An op on a rank.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RankOp {
    /// Global rank.
    pub rank: Rank,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
}

impl RankOp {
    pub(crate) fn new(rank: Rank, at: &OpRef) -> Self {
        Self { rank, op_name: at.name.clone(), exec_order: at.op }
    }
}

/// An op shortly before a finding: the growth before the fall.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Before {
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// Its input of the largest magnitude; `null` where none has statistics.
    pub input: Option<ValueReport>,
    /// Its output of the largest magnitude.
    pub output: Option<ValueReport>,
}

/// A likely cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// What likely happened.
    pub likely: String,
    /// What to look at next.
    pub check: String,
    /// Where the knowledge is from.
    pub source: String,
}

/// One origin.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Global rank.
    pub rank: Rank,
    /// Step number; `null` when the path names no step.
    pub step: Option<u64>,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// Kind of origin.
    pub kind: FindingKind,
    /// `certain` or `likely`.
    pub certainty: Certainty,
    /// What keeps it from being certain.
    pub why_not_certain: Vec<String>,
    /// Worst kind of number: `nan`, `+inf`, `-inf`; `unknown` for register records.
    pub severity: String,
    /// `forward`, `backward` or `optimizer`.
    pub phase: Phase,
    /// One sentence: why this op.
    pub reason: String,
    /// Slot of the bad input that nobody produced, for readers of outside values.
    pub slot: Option<String>,
    /// Inputs of the op.
    pub inputs: Vec<ValueReport>,
    /// Of a backward op: inputs of the forward call it belongs to, where recorded.
    pub forward_inputs: Vec<ValueReport>,
    /// Outputs of the op.
    pub outputs: Vec<ValueReport>,
    /// Numbers given as arguments: slot and value as text.
    pub scalars: Vec<(String, String)>,
    /// Module path of the innermost module around the op, as far as recorded.
    pub module: Option<String>,
    /// The op, its module, that one's module, ... up to the root.
    pub construct_chain: Vec<String>,
    /// Call stack, innermost first.
    pub stack: Vec<Frame>,
    /// Stack lines as recorded.
    pub stack_info: Vec<String>,
    /// Likely cause.
    pub hint: Option<Hint>,
    /// The ops before it on its rank, in file order; empty for findings beyond the first ones of a rank.
    pub before: Vec<Before>,
    /// Ran only in activation recomputation; its first forward was clean.
    pub only_in_recompute: bool,
    /// Other members of the same communication that show it, or other ranks that read the same outside value.
    pub members: Vec<RankOp>,
    /// Ranks that gave data and are not in the dump, for `missing_rank`.
    pub missing_ranks: Vec<Rank>,
    /// Whether other findings are not ordered against it.
    pub concurrent: bool,
    /// Findings on the longest happens-before chain in front of it; 0 for the first ones.
    pub layer: u32,
    /// Communications on the longest chain that leads to it.
    pub depth: u32,
    /// Non-finite ops it leads to, over all ranks.
    pub reach_ops: u64,
    /// Ranks it reaches.
    pub reach_ranks: u32,
    /// The record as it stands in the dump; not part of the JSON.
    #[serde(skip)]
    pub record: String,
}

/// One step on the way from the origin outward.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathStep {
    /// Global rank.
    pub rank: Rank,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// How it got here: `origin`, `data` (read on the same rank), `communication` (from the rank before).
    pub via: &'static str,
    /// Ops left out in front of this one.
    pub omitted: u32,
    /// What the user notices here: `loss`, `gradient_norm`, `optimizer`, `forward_output`,
    /// `gradient`, `last_op`.
    pub symptom: Option<crate::timeline::Symptom>,
}

/// How far the first overflow spread.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Non-finite ops after it, over all ranks.
    pub ops: u64,
    /// Ranks that show it, ascending.
    pub ranks: Vec<Rank>,
    /// Communications that carried it to other ranks first, in order: API, giver, getters.
    pub hops: Vec<Hop>,
    /// Where somebody would notice first.
    pub symptom: Option<RankOp>,
    /// What they would notice.
    pub symptom_kind: Option<crate::timeline::Symptom>,
}

/// A communication that brought the overflow to ranks that did not have it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Hop {
    /// API name.
    pub api: String,
    /// Rank that gave it.
    pub from: Rank,
    /// Op of the giver.
    pub op_name: String,
    /// Place of that op in the giver's file order, from 0.
    pub exec_order: u32,
    /// Ranks that got it for the first time.
    pub to: Vec<Rank>,
    /// Place of the op by which each of them got it, in the order of `to`.
    pub arrivals: Vec<u32>,
}

/// One remark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Note {
    /// `intended`, `healed`, `missing_ranks`, `unmatched`, `garbage`, `no_statistics`, `layout`, `file`, `order`.
    pub kind: String,
    /// One sentence.
    pub text: String,
    /// Ranks it concerns, ascending; empty for all.
    pub ranks: Vec<Rank>,
    /// Ops it concerns (the first ones).
    pub ops: Vec<RankOp>,
    /// How often.
    pub count: u64,
}

/// A dump that could not be read, or not to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// Global rank.
    pub rank: Rank,
    /// The file.
    pub path: String,
    /// 1-based line, where known.
    pub line: Option<u64>,
    /// 1-based column in bytes, where known.
    pub column: Option<u64>,
    /// What was expected and what was found.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
    /// Complete ops that were used all the same.
    pub ops_used: u32,
}

/// One rank in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankReport {
    /// Global rank.
    pub rank: Rank,
    /// Folder name.
    pub label: String,
    /// `complete`, `cut`, `damaged`, `empty`.
    pub completeness: Completeness,
    /// Whether its values can be judged.
    pub has_statistics: bool,
    /// `task` of its header.
    pub task: Option<String>,
    /// `level` of its header.
    pub level: Option<String>,
    /// Number of ops.
    pub ops: u32,
    /// Ops by state.
    pub counts: Counts,
    /// First op with a non-finite value that was not intended.
    pub first_bad: Option<RankOp>,
    /// When the first overflow came to this rank: `origin`, `communication`, or absent.
    pub reached_by: Option<&'static str>,
    /// Its execution drawn small, where it was asked for: the worst state in each of at most 256 equal parts of its
    /// ops, a letter each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strip: Option<String>,
}

/// A finite value close to the end of its dtype, or one that grew suddenly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NearReport {
    /// Global rank.
    pub rank: Rank,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// `limit` or `growth`.
    pub kind: NearKind,
    /// Where the value stands.
    pub slot: String,
    /// `float16`, ... without `torch.`.
    pub dtype: String,
    /// Sizes by dimension.
    pub shape: Vec<i64>,
    /// Max or Min, whichever is larger in magnitude.
    pub value: f64,
    /// Largest finite number of the dtype.
    pub limit: f64,
    /// Magnitude over `limit`.
    pub share: f64,
    /// Magnitude over the largest input's; null without one.
    pub growth: Option<f64>,
    /// Whether it stands before the first op of its rank that shows an overflow.
    pub before_first: bool,
}

/// How many ops msProbe's graph view would mark for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LevelCountReport {
    /// `made`, `carried`, `ended`, `norm_jump`.
    pub scene: String,
    /// `critical`, `high`, `medium`.
    pub level: Level,
    /// Ops.
    pub count: u64,
}

/// An op that msProbe's graph view would mark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelReport {
    /// Global rank.
    pub rank: Rank,
    /// Key in `data`.
    pub op_name: String,
    /// Place in the rank's file order, from 0.
    pub exec_order: u32,
    /// `critical`, `high`, `medium`.
    pub level: Level,
    /// Why: `made`, `carried`, `ended`, `norm_jump`.
    pub scene: String,
    /// Largest output norm over largest input norm; null where not recorded.
    #[serde(serialize_with = "crate::number::serialize")]
    pub norm_ratio: Option<f64>,
}

/// The step in the words of msProbe's graph view.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LevelsReport {
    /// Ops by reason.
    pub counts: Vec<LevelCountReport>,
    /// The worst ones: by level, then place, then rank.
    pub ops: Vec<LevelReport>,
    /// Ops with a level beyond those listed.
    pub ops_omitted: u64,
}

/// A number that people follow from step to step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReadingReport {
    /// Loss: mean over micro batches and ranks. Gradient norm: the largest over ranks.
    #[serde(serialize_with = "crate::number::serialize")]
    pub value: Option<f64>,
    /// Numbers it was made of.
    pub count: u64,
    /// Rank of the op below.
    pub rank: Rank,
    /// The first op whose number is not finite, else the first; null where it is computed from weight gradients.
    pub op_name: Option<String>,
    /// Its place in the rank's file order, from 0.
    pub exec_order: Option<u32>,
}

/// What the step shows of the training's progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TrendReport {
    /// The loss.
    pub loss: Option<ReadingReport>,
    /// The gradient norm.
    pub gradient_norm: Option<ReadingReport>,
}

/// One communication with a non-finite value, or with members that did not match.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommunicationReport {
    /// API name.
    pub api: String,
    /// Key in `data` on the first member.
    pub op_name: String,
    /// Ranks of the group as recorded; empty for the default group.
    pub group_ranks: Vec<Rank>,
    /// Id of the group; empty for the default group.
    pub group_id: String,
    /// Order of issue within the group (for pairs within the channel).
    pub seq: u32,
    /// Every member's op.
    pub members: Vec<RankOp>,
    /// Ranks whose contribution was bad.
    pub source_ranks: Vec<Rank>,
    /// Ranks whose contribution was clean (or that gave nothing) and whose result was bad.
    pub propagated_ranks: Vec<Rank>,
    /// Ranks with nothing bad.
    pub normal_ranks: Vec<Rank>,
    /// Members whose rank is not dumped.
    pub missing_ranks: Vec<Rank>,
    /// Members whose rank is dumped without this call.
    pub unmatched_ranks: Vec<Rank>,
    /// How well it matched.
    pub state: MatchState,
    /// `overflow`, `intended`, `origin`, `entered`, `garbage`, `absorbed`, `clean`.
    pub verdict: &'static str,
}

/// The answer for one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What the dump says.
    pub verdict: Verdict,
    /// Whether evidence is missing (unreadable or cut files, ranks that are not dumped).
    pub incomplete: bool,
    /// Step number; `null` when the path names no step.
    pub step: Option<u64>,
    /// Folder of the step below the path that was given.
    pub step_label: String,
    /// The first overflow.
    pub first: Option<Finding>,
    /// All origins, ranked; the first one is `first` again.
    pub findings: Vec<Finding>,
    /// Origins beyond those listed.
    pub findings_omitted: u32,
    /// From the first overflow to where somebody would notice.
    pub path: Vec<PathStep>,
    /// How far it spread.
    pub spread: Option<Spread>,
    /// Remarks.
    pub notes: Vec<Note>,
    /// Every rank, ascending.
    pub ranks: Vec<RankReport>,
    /// Communications with anomalies, or that a dumped member lacks.
    pub communications: Vec<CommunicationReport>,
    /// Communications beyond those listed.
    pub communications_omitted: u32,
    /// Files that could not be read, or not to their end.
    pub unreadable: Vec<Unreadable>,
    /// Communication records over all ranks.
    pub total_communications: u64,
    /// Ops over all ranks.
    pub total_ops: u64,
    /// Bytes of all dumps.
    pub total_bytes: u64,
    /// Near misses, the nearest first, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<Vec<NearReport>>,
    /// msProbe's levels, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<LevelsReport>,
    /// Loss and gradient norm, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trend: Option<TrendReport>,
    /// Every op of every rank, where it was asked for; not part of this JSON.
    #[serde(skip)]
    pub atlas: Option<Atlas>,
}
