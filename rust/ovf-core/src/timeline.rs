//! One rank reduced to what the other ranks' analysis needs: the map step.
//!
//! In: the bytes of one rank's dump. Out: a [`Timeline`], small, owned, serialisable: the rank's communications in
//! order with what they gave and got, its roots ([`Mark`]s), where each root led, and counts. The walk over the ops
//! that makes it is [`crate::walk`].

use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use crate::chart::{Chart, Draft};
use crate::classify::OpState;
use crate::communication::{Communication, GroupKey};
use crate::error::Position;
use crate::level::Levels;
use crate::near::NearMiss;
pub use crate::op::Phase;
use crate::op::{Kinds, Rank};
use crate::progress::Watch;
use crate::rules::Rules;
use crate::scan::{Index, scan_until, worth_sharing};
use crate::strip::strip;
use crate::survey::{Wanted, survey};
use crate::walk::Walk;

/// An op by place and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRef {
    /// Index in the rank's file order, from 0.
    pub op: u32,
    /// Key in `data`.
    pub name: String,
}

/// Why a root is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Finite inputs, non-finite output.
    Computed,
    /// Intended non-finite inputs, another kind in the output.
    FromIntended,
    /// First reader of a weight (or a gradient of one) that nobody on the rank made bad.
    Parameter,
    /// First reader of data that nobody on the rank produced.
    Input,
    /// First reader of a value whose producer's dumped output was finite.
    Corruption,
    /// First reader of a value that an op left out of the dump must have made.
    Unrecorded,
    /// Delivered by a communication.
    Received,
    /// The overflow register was set.
    Register,
}

/// A root of the rank's graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The op.
    pub at: OpRef,
    /// Why.
    pub cause: Cause,
    /// Kinds it gave out (or, for a reader, took in).
    pub kinds: Kinds,
    /// Part of the step.
    pub phase: Phase,
    /// Whether it reaches loss, gradient, state or communication (rule 6).
    pub harm: bool,
    /// A module whose recorded children are all clean: it may hide a communication.
    pub container: bool,
    /// Non-finite ops it leads to on this rank, itself included.
    pub reach: u32,
    /// Ran inside activation recomputation, by the record.
    pub recompute: bool,
    /// One side of the record is not dumped (`data_mode`): what stands there is not known.
    pub one_sided: bool,
    /// Communications whose delivered `-inf` it takes for a mask: if one of them was an overflow, so is this.
    pub conditions: Vec<u32>,
    /// The communication, for [`Cause::Received`].
    pub event: Option<u32>,
    /// First op that read the value.
    pub first_reader: Option<u32>,
    /// Slot of the bad input nobody produced.
    pub slot: Option<String>,
    /// Identity (dtype, shape) of the bad outside value, and of the bad outputs: lets a reader on one stage meet
    /// the writer on another when no communication is dumped.
    pub bad_in: Option<Box<(String, Vec<i64>)>>,
    /// What it gave out.
    pub bad_out: Option<Box<(String, Vec<i64>)>>,
    /// Slot of an input and the op that made it, where the statistics tell; of the first roots only.
    pub makers: Vec<(String, String)>,
    /// Where the record stands in the file: offset and length.
    pub record: (u64, u64),
    /// Of the first roots: the ops before it in file order, and where their records stand.
    pub before: Vec<(OpRef, (u64, u64))>,
}

impl Mark {
    /// The event that brought its value here: the one that the order of ranks found (`demoted`), else its own.
    pub(crate) fn delivered_by(&self, demoted: Option<u32>) -> Option<u32> {
        demoted.or(self.event)
    }
}

/// Ops along the rank's primary links, ends kept, middle counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trail {
    /// First ops, then last ones; their names are in [`Timeline::names`].
    ops: Box<[u32]>,
    /// How many of `ops` are first ones.
    head: u32,
    /// How many are left out between head and tail.
    pub omitted: u32,
}

impl Trail {
    pub(crate) fn new(mut head: Vec<u32>, omitted: u32, tail: &[u32]) -> Self {
        let first = head.len() as u32;
        head.extend(tail);
        Self { ops: head.into(), head: first, omitted }
    }

    /// First ops.
    #[must_use]
    pub fn head(&self) -> &[u32] {
        &self.ops[..(self.head as usize).min(self.ops.len())]
    }

    /// Last ops; empty when the head is everything.
    #[must_use]
    pub fn tail(&self) -> &[u32] {
        &self.ops[(self.head as usize).min(self.ops.len())..]
    }
}

/// Names of a rank's ops, in one piece: a rank has thousands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Ops, ascending.
    ops: Vec<u32>,
    /// Where each one's name ends in `text`.
    ends: Vec<u32>,
    text: String,
}

impl Names {
    /// The names of `ops`, in any order; `name` is asked in file order.
    pub(crate) fn of<'n>(mut ops: Vec<u32>, mut name: impl FnMut(u32) -> std::borrow::Cow<'n, str>) -> Self {
        ops.sort_unstable();
        ops.dedup();
        let mut text = String::new();
        let mut end = |op: &u32| {
            text.push_str(&name(*op));
            text.len() as u32
        };
        let ends = ops.iter().map(&mut end).collect();
        Self { ops, ends, text }
    }

    /// An op by place and name; the name is empty where it is not known.
    #[must_use]
    pub fn at(&self, op: u32) -> OpRef {
        OpRef { op, name: self.name(op).to_owned() }
    }

    pub(crate) fn name(&self, op: u32) -> &str {
        let Ok(i) = self.ops.binary_search(&op) else { return "" };
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(i).copied().unwrap_or(start);
        self.text.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// One side of a communication on this rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Whether the values have statistics.
    pub judged: bool,
    /// Kinds they hold.
    pub kinds: Kinds,
    /// Whether the non-finite ones came from an overflow, as far as this rank knows.
    pub real: bool,
    /// Got: whether a later op read the bad value.
    pub read: bool,
    /// Of non-finite ones only: nearly all are finite, and there are as many as communications.
    pub way: Option<Box<Way>>,
}

/// Where a side's non-finite values come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Way {
    /// Root they came from (given) or are (got), index into [`Timeline::marks`].
    pub mark: Option<u32>,
    /// Given: how they got here from the root.
    pub trail: Trail,
    /// Given, not real: communications that delivered them as masks.
    pub conditions: Vec<u32>,
}

impl Side {
    /// [`Way::mark`].
    #[must_use]
    pub fn mark(&self) -> Option<u32> {
        self.way.as_ref().and_then(|way| way.mark)
    }

    /// [`Way::conditions`].
    #[must_use]
    pub fn conditions(&self) -> &[u32] {
        self.way.as_ref().map_or(&[], |way| &way.conditions)
    }
}

/// A communication with its two sides; `None` where the rank has no tensor on that side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Who, what, with whom.
    pub communication: Communication,
    /// What the rank put in.
    pub given: Option<Side>,
    /// What it got out.
    pub got: Option<Side>,
    /// For an asynchronous receive: the first op that read the data (rule 8).
    pub visible_at: Option<u32>,
}

/// What the user notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Symptom {
    /// The loss.
    Loss,
    /// A gradient norm.
    GradientNorm,
    /// A state the optimizer wrote.
    Optimizer,
    /// The last value of the forward part.
    ForwardOutput,
    /// A gradient.
    Gradient,
    /// The last non-finite op of the file.
    LastOp,
}

/// A place where the user notices, and how the value got there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Terminal {
    /// What it is.
    pub symptom: Symptom,
    /// The op.
    pub at: OpRef,
    /// Root it leads back to, index into [`Timeline::marks`].
    pub mark: u32,
    /// How.
    pub trail: Trail,
}

/// How many ops are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// [`OpState::Clean`].
    pub clean: u32,
    /// [`OpState::Origin`].
    pub origin: u32,
    /// [`OpState::Propagated`].
    pub propagated: u32,
    /// [`OpState::Absorbed`].
    pub absorbed: u32,
    /// [`OpState::Intended`].
    pub intended: u32,
    /// [`OpState::Ignored`].
    pub ignored: u32,
    /// [`OpState::Unknown`].
    pub unknown: u32,
}

impl Counts {
    pub(crate) fn add(&mut self, state: OpState) {
        *self.of(state) += 1;
    }

    pub(crate) fn take(&mut self, state: OpState) {
        *self.of(state) -= 1;
    }

    fn of(&mut self, state: OpState) -> &mut u32 {
        match state {
            OpState::Clean => &mut self.clean,
            OpState::Origin => &mut self.origin,
            OpState::Propagated => &mut self.propagated,
            OpState::Absorbed => &mut self.absorbed,
            OpState::Intended => &mut self.intended,
            OpState::Ignored => &mut self.ignored,
            OpState::Unknown => &mut self.unknown,
        }
    }
}

/// How a rank's dump ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completeness {
    /// Read to its end.
    Complete,
    /// Ends early; its complete ops were used.
    Cut,
    /// Holds a byte that cannot stand there; the ops before it were used.
    Damaged,
    /// Holds no op.
    Empty,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Where.
    pub position: Option<Position>,
    /// What was expected and what was found.
    pub message: String,
}

/// One rank's dump, reduced.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Version of this shape.
    pub version: u32,
    /// Global rank.
    pub rank: Rank,
    /// Folder name.
    pub label: String,
    /// `task` of the header.
    pub task: Option<String>,
    /// `level` of the header.
    pub level: Option<String>,
    /// `framework` of the header.
    pub framework: Option<String>,
    /// Number of ops read.
    pub ops: u32,
    /// Bytes of the dump.
    pub bytes: u64,
    /// How the file ended.
    pub completeness: Completeness,
    /// Whether any value of the rank can be judged.
    pub has_statistics: bool,
    /// Whether only modules are dumped (level L0).
    pub modules_only: bool,
    /// What is wrong with the file, with its place.
    pub problem: Option<Problem>,
    /// Other remarks about the file.
    pub notes: Vec<String>,
    /// Ops by state.
    pub counts: Counts,
    /// First op that shows anything non-finite that is not intended.
    pub first_bad: Option<OpRef>,
    /// Last such op.
    pub last_bad: Option<OpRef>,
    /// Process groups the rank's communications name.
    pub groups: Vec<GroupKey>,
    /// Communications in file order.
    pub events: Vec<Event>,
    /// Names of the ops of events and trails.
    pub names: Names,
    /// Roots in file order.
    pub marks: Vec<Mark>,
    /// Harmful and healed roots that are only counted.
    pub marks_omitted: u32,
    /// Ops that make an intended non-finite value (masks).
    pub masks: u32,
    /// Where the user would notice.
    pub terminals: Vec<Terminal>,
    /// dtype and shape of the bad values that modules gave out, where no communication is dumped: what another
    /// stage's outside values are compared with.
    pub bad_shapes: Vec<(String, Vec<i64>)>,
    /// Near misses, the nearest first; empty unless asked for.
    pub near: Vec<NearMiss>,
    /// msProbe's levels; absent unless asked for.
    pub levels: Option<Levels>,
    /// Losses and gradient norm; absent unless asked for.
    pub trend: Option<Trend>,
    /// The rank's execution drawn small; absent unless asked for.
    pub strip: Option<String>,
    /// Name and state of every op, where it was asked for.
    pub chart: Option<Chart>,
}

/// A number people follow from step to step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The op that gave it out; absent when it is computed from several.
    pub at: Option<OpRef>,
    /// The number.
    pub value: Option<f64>,
}

/// What a rank shows of the training's progress.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// Losses in file order, one a micro batch; the last ones.
    pub losses: Vec<Reading>,
    /// Norm of the gradients.
    pub gradient_norm: Option<Reading>,
}

/// Harmful roots of a rank that take part in the order. A rank's first root precedes its others, so the first
/// overflow is among the first ones; the rest is counted.
pub(crate) const CANDIDATES_PER_RANK: usize = 16;

impl Timeline {
    /// The timeline without what is only there when it was asked for: a written summary holds all of it.
    pub(crate) fn bare(&self) -> Self {
        Self { near: Vec::new(), levels: None, trend: None, strip: None, chart: None, ..self.clone() }
    }

    /// The op of an event.
    #[must_use]
    pub fn event_ref(&self, event: u32) -> OpRef {
        self.names.at(self.events[event as usize].communication.op)
    }

    /// Whether every index points at something: what comes from elsewhere is checked before it is used.
    pub(crate) fn is_sound(&self) -> bool {
        let mark = |m: u32| (m as usize) < self.marks.len();
        let event = |e: u32| (e as usize) < self.events.len();
        let op = |o: u32| o < self.ops;
        let side = |s: &Side| s.mark().is_none_or(mark) && s.conditions().iter().all(|&c| event(c));
        self.events.iter().all(|e| {
            let c = &e.communication;
            let sides = [&e.given, &e.got];
            op(c.op) && (c.group as usize) < self.groups.len() && sides.into_iter().flatten().all(side)
        }) && self
            .marks
            .iter()
            .all(|m| op(m.at.op) && m.event.is_none_or(event) && m.conditions.iter().all(|&c| event(c)))
            && self.terminals.iter().all(|t| op(t.at.op) && mark(t.mark))
    }

    /// The marks that take part in the order of ranks.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = usize> {
        let roots = self.marks.iter().enumerate().filter(|(_, m)| m.harm && m.cause != Cause::Received);
        roots.take(CANDIDATES_PER_RANK).map(|(i, _)| i)
    }
}

/// Version of [`Timeline`]'s shape.
pub(crate) const TIMELINE_VERSION: u32 = 2;

/// Builds the timeline of one rank. Never fails: what cannot be read is a remark in it.
#[must_use]
pub fn build(bytes: &[u8], rank: Rank, label: &str, rules: &Rules) -> Timeline {
    build_until(bytes, rank, label, rules, Wanted::default(), &|| (), &Watch::switch(&AtomicBool::new(false)))
}

/// Builds the timeline of one rank with what is `wanted` beyond the answer, telling `watch` how far it is; soon after
/// that is stopped it stops, and the result must be thrown away. Threads share the scan of a large file, but not the walk:
/// another one does what is `left_over` meanwhile, when most of the bytes are not looked at again.
pub(crate) fn build_until(
    bytes: &[u8],
    rank: Rank,
    label: &str,
    rules: &Rules,
    wanted: Wanted,
    left_over: &(dyn Fn() + Sync),
    watch: &Watch,
) -> Timeline {
    let index = scan_until(bytes, &|name| rules.is_communication_name(name), watch);
    let walked = || walk_over(bytes, &index, rank, label, rules, wanted, watch);
    if worth_sharing(bytes.len()) && !watch.stopped() { rayon::join(walked, left_over).0 } else { walked() }
}

fn walk_over(
    bytes: &[u8],
    index: &Index,
    rank: Rank,
    label: &str,
    rules: &Rules,
    wanted: Wanted,
    watch: &Watch,
) -> Timeline {
    let mut walk = Walk::new(bytes, index, rules, rank, wanted.chart.then(Draft::default));
    walk.over_ops(watch);
    let trend = wanted.trend.then(|| walk.trend());
    let mut timeline = walk.finish(rank, label);
    let first_bad = timeline.first_bad.as_ref().map(|at| at.op);
    (timeline.near, timeline.levels) = survey(&mut walk, first_bad, wanted, watch);
    timeline.trend = trend;
    timeline.strip = wanted.strip.then(|| strip(walk.states()));
    timeline
}
