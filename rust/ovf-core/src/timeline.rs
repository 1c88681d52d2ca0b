//! One rank reduced to what the other ranks' analysis needs: the map step.
//!
//! In: the bytes of one rank's dump. Out: a [`Timeline`], small, owned, serialisable: the rank's communications in
//! order with what they gave and got, its roots ([`Mark`]s), where each root led, and counts. Only ops that hold a
//! non-finite token or communicate are parsed; the rest is known to be clean from the scan.
//!
//! The walk, op by op in file order (rule numbers as in `docs/semantics.md`):
//! collect the non-finite inputs, leave out what is only written, look each up in [`crate::provenance`], judge by
//! [`crate::classify`], add a node to [`crate::graph`], enter the non-finite outputs. Module records stand at their
//! exit, so a module with finite inputs and a bad output is first compared with what its children gave.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::classify::{Evidence, Judgement, OpState, judge};
use crate::communication::{Communication, Exchange, GroupKey, exchanges};
use crate::error::Position;
use crate::graph::{Graph, Node, Role};
use crate::op::{Argument, Direction, Field, Kinds, Op, OpName, Rank, TensorStat, Value};
use crate::parse::{Part, parse_op};
use crate::provenance::{self, Link, Meaning, NodeId, Values};
use crate::rules::{Is, OperatorRules, Rules};
use crate::scan::{Ending, Index, scan_until};
use crate::token::{Stop, unescape};

/// Harmful roots kept for a rank (beyond them they are counted): the first ones are what anybody reads.
const MARKS_KEPT: usize = 256;
/// Healed roots kept for a rank.
const HEALED_KEPT: usize = 32;
/// Records looked at to tell what a dump leaves out.
const LOOKED_AT: usize = 64;
/// Conditions kept for a promoted origin.
const CONDITIONS_KEPT: usize = 8;

/// An op by place and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpRef {
    /// Index in the rank's file order, from 0.
    pub op: u32,
    /// Key in `data`.
    pub name: String,
}

/// Part of the step an op belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Forward calls, recomputed ones too.
    Forward,
    /// Gradients.
    Backward,
    /// After the last backward.
    Optimizer,
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
    pub bad_in: Option<(String, Vec<i64>)>,
    /// What it gave out.
    pub bad_out: Option<(String, Vec<i64>)>,
    /// Where the record stands in the file: offset and length.
    pub record: (u64, u64),
}

/// Ops along the rank's primary links, ends kept, middle counted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trail {
    /// First ops.
    pub head: Vec<OpRef>,
    /// How many are left out between head and tail.
    pub omitted: u32,
    /// Last ops; empty when `head` is everything.
    pub tail: Vec<OpRef>,
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
    /// Root they came from (given) or are (got), index into [`Timeline::marks`].
    pub mark: Option<u32>,
    /// Given: how they got here from the root.
    pub trail: Trail,
    /// Given, not real: communications that delivered them as masks.
    pub conditions: Vec<u32>,
    /// Got: whether a later op read the bad value.
    pub read: bool,
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
    fn add(&mut self, state: OpState) {
        *match state {
            OpState::Clean => &mut self.clean,
            OpState::Origin => &mut self.origin,
            OpState::Propagated => &mut self.propagated,
            OpState::Absorbed => &mut self.absorbed,
            OpState::Intended => &mut self.intended,
            OpState::Ignored => &mut self.ignored,
            OpState::Unknown => &mut self.unknown,
        } += 1;
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
    /// The op of each event.
    pub event_refs: Vec<OpRef>,
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
}

/// Version of [`Timeline`]'s shape.
pub(crate) const TIMELINE_VERSION: u32 = 1;

/// Class of an entry by the end of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Forward,
    Backward,
    Gradient,
}

/// What stands inside a module whose input was finite and whose output was not.
#[derive(Debug, Clone, Copy)]
enum Inside {
    /// Nothing bad: the module itself is the origin.
    Clean { has_children: bool },
    /// This node's value came out.
    From(NodeId),
    /// This child read a value that the module's own code computed.
    Adopts(NodeId),
    /// An intended value came out.
    Mask,
}

struct Builder<'a> {
    bytes: &'a [u8],
    index: &'a Index,
    rules: &'a Rules,
    classes: Vec<Class>,
    first_backward: Option<u32>,
    last_backward: Option<u32>,
    /// Bases (with number) of forwards whose gradient starts a run of backwards: losses.
    losses: FxHashMap<u64, bool>,
    modules_only: bool,
    /// No record has an output.
    inputs_only: bool,
    rank: Rank,
    operators: FxHashMap<u64, Rc<OperatorRules<'a>>>,
    values: Values,
    graph: Graph,
    /// Forward calls that met something bad, by base and number.
    forwards: FxHashMap<u64, NodeId>,
    /// `parameters_grad` nodes that wait for their module's backward record.
    gradients: Vec<(u64, NodeId, Option<NodeId>)>,
    /// Last bad backward record of each module, and last bad forward record.
    backwards: FxHashMap<u64, NodeId>,
    module_forwards: FxHashMap<u64, NodeId>,
    registers: bool,
    register: Option<NodeId>,
    groups: Vec<GroupKey>,
    events: Vec<Event>,
    given: Vec<(u32, NodeId)>,
    got: Vec<(u32, NodeId)>,
    counts: Counts,
    masks: u32,
    has_statistics: bool,
    notes: Vec<String>,
    slots: FxHashMap<NodeId, String>,
    shapes: FxHashMap<NodeId, Shapes>,
    recompute: Vec<NodeId>,
    one_sided: Vec<NodeId>,
    containers: Vec<NodeId>,
    intended_terminal: Vec<NodeId>,
}

#[derive(Default, Clone)]
struct Shapes {
    bad_in: Option<(String, Vec<i64>)>,
    bad_out: Option<(String, Vec<i64>)>,
}

fn key_of(name: &OpName) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    (name.base, name.call_index).hash(&mut hasher);
    hasher.finish()
}

fn class_of(name: &[u8]) -> Class {
    let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
    let head = &name[..name.len() - digits];
    let head = if digits > 0 { head.strip_suffix(b".").unwrap_or(name) } else { name };
    if head.ends_with(b".backward") {
        Class::Backward
    } else if head.ends_with(b".parameters_grad") {
        Class::Gradient
    } else {
        Class::Forward
    }
}

fn shape_of(t: &TensorStat) -> (String, Vec<i64>) {
    (t.dtype.to_owned(), t.shape.to_vec())
}

/// Builds the timeline of one rank. Never fails: what cannot be read is a remark in it.
#[must_use]
pub fn build(bytes: &[u8], rank: Rank, label: &str, rules: &Rules) -> Timeline {
    build_until(bytes, rank, label, rules, &AtomicBool::new(false))
}

/// Builds the timeline of one rank; soon after `cancel` is set it stops, and the result must be thrown away.
pub(crate) fn build_until(bytes: &[u8], rank: Rank, label: &str, rules: &Rules, cancel: &AtomicBool) -> Timeline {
    let index = scan_until(bytes, cancel);
    let mut builder = Builder::new(bytes, &index, rules, rank);
    builder.walk(cancel);
    builder.finish(rank, label)
}

impl<'a> Builder<'a> {
    fn new(bytes: &'a [u8], index: &'a Index, rules: &'a Rules, rank: Rank) -> Self {
        let classes: Vec<Class> = index.entries.iter().map(|e| class_of(e.name(bytes))).collect();
        let is_gradient = |c: &Class| *c != Class::Forward;
        let first_backward = classes.iter().position(is_gradient).map(|i| i as u32);
        let last_backward = classes.iter().rposition(is_gradient).map(|i| i as u32);
        let mut losses = FxHashMap::default();
        let mut before = Class::Forward;
        for (i, &class) in classes.iter().enumerate() {
            if class == Class::Backward && before == Class::Forward {
                let name = unescape(index.entries[i].name(bytes));
                losses.insert(key_of(&OpName::parse(&name)), losses.is_empty());
            }
            before = class;
        }
        let is_module = |e: &crate::scan::Entry| {
            let name = e.name(bytes);
            name.starts_with(b"Module.") || name.starts_with(b"Cell.")
        };
        let modules_only =
            !index.entries.is_empty() && (index.level.as_deref() == Some("L0") || index.entries.iter().all(is_module));
        // `data_mode: input`: the first records tell.
        let has_output = |e: &crate::scan::Entry| crate::parse::field_text(e.body(bytes), "output").is_some();
        let inputs_only = !index.entries.is_empty()
            && !index.entries.iter().take(LOOKED_AT).any(has_output)
            && index.entries.iter().any(|e| e.non_finite)
            && !index.entries.iter().filter(|e| e.non_finite).any(has_output);
        Self {
            bytes,
            index,
            rules,
            classes,
            first_backward,
            last_backward,
            losses,
            modules_only,
            inputs_only,
            rank,
            operators: FxHashMap::default(),
            values: Values::default(),
            graph: Graph::default(),
            forwards: FxHashMap::default(),
            gradients: Vec::new(),
            backwards: FxHashMap::default(),
            module_forwards: FxHashMap::default(),
            registers: false,
            register: None,
            groups: Vec::new(),
            events: Vec::new(),
            given: Vec::new(),
            got: Vec::new(),
            counts: Counts::default(),
            masks: 0,
            has_statistics: false,
            notes: Vec::new(),
            slots: FxHashMap::default(),
            shapes: FxHashMap::default(),
            recompute: Vec::new(),
            one_sided: Vec::new(),
            containers: Vec::new(),
            intended_terminal: Vec::new(),
        }
    }

    fn name(&self, op: u32) -> Cow<'a, str> {
        unescape(self.index.entries[op as usize].name(self.bytes))
    }

    /// The table's rows for an operator, looked up once per name.
    fn rules_of(&mut self, name: &OpName) -> Rc<OperatorRules<'a>> {
        use std::hash::{Hash, Hasher};
        let mut hasher = rustc_hash::FxHasher::default();
        (name.prefix, name.api).hash(&mut hasher);
        let rules = self.rules;
        Rc::clone(self.operators.entry(hasher.finish()).or_insert_with(|| Rc::new(rules.operator(name))))
    }

    fn op_ref(&self, op: u32) -> OpRef {
        OpRef { op, name: self.name(op).into_owned() }
    }

    fn walk(&mut self, cancel: &AtomicBool) {
        let (values, registers) = self.what_can_be_judged();
        self.has_statistics = values || registers;
        self.registers = self.index.task.as_deref() == Some("nan_check") || (registers && !values);
        for i in 0..self.index.entries.len() {
            let entry = self.index.entries[i];
            let communicates = self.rules.is_communication_name(entry.name(self.bytes));
            if !entry.non_finite && !communicates && !self.registers {
                continue;
            }
            if cancel.load(Ordering::Relaxed) {
                return;
            }
            let raw = self.name(i as u32);
            let name = OpName::parse(&raw);
            let recorded = matches!(name.direction, Direction::ParametersGrad | Direction::Debug);
            // What a finite communication gave back is not needed: its inputs say who takes part.
            let part = if communicates && !entry.non_finite { Part::Inputs } else { Part::All { recorded } };
            match parse_op(entry.body(self.bytes), part) {
                Ok(op) if communicates => self.communicate(i as u32, &name, &op),
                Ok(op) => self.compute(i as u32, &name, &op),
                Err(stop) => self.malformed(i as u32, &raw, stop),
            }
        }
    }

    fn malformed(&mut self, op: u32, name: &str, stop: Stop) {
        let body = self.index.entries[op as usize].body_at();
        let (offset, expected) = match stop {
            Stop::End => (self.index.entries[op as usize].body(self.bytes).len(), "the rest of the record"),
            Stop::Unexpected { at, expected } => (at, expected),
        };
        let at = Position::find(self.bytes, body + offset);
        self.counts.add(OpState::Unknown);
        if self.notes.len() < HEALED_KEPT {
            self.notes.push(format!("{}:{}: expected {expected} in {name}; the op is left out", at.line, at.column));
        }
    }

    /// Whether a value has statistics, and if none has, whether a register was read: xor and structure dumps hold
    /// neither. Most dumps show it in their first record.
    fn what_can_be_judged(&self) -> (bool, bool) {
        let mut registers = false;
        for (i, entry) in self.index.entries.iter().enumerate() {
            let direction = OpName::parse(&self.name(i as u32)).direction;
            let recorded = matches!(direction, Direction::ParametersGrad | Direction::Debug);
            let Ok(op) = parse_op(entry.body(self.bytes), Part::All { recorded }) else {
                continue;
            };
            if op_has_values(&op) {
                return (true, registers);
            }
            registers |= op.register.is_some();
        }
        (false, registers)
    }

    // --- one compute op -------------------------------------------------------------------------------------------

    fn compute(&mut self, i: u32, name: &OpName, op: &Op<'a>) {
        let rules = self.rules_of(name);
        let rules = &*rules;
        let mut evidence = Evidence {
            uninitialised: rules.says(Is::Uninitialised),
            creates: rules.says(Is::Creates),
            carries: rules.says(Is::Carries),
            flips_sign: rules.says(Is::FlipsSign),
            ..Evidence::default()
        };
        let recorded = recorded(name);
        let mut bad_inputs: Vec<&Argument> = Vec::new();
        let mut bad_outputs: Vec<&TensorStat> = Vec::new();
        for argument in &op.arguments {
            let slot = &argument.slot;
            let is_output = slot.field == Field::Output || (recorded && slot.field == Field::Recorded);
            match &argument.value {
                Value::Tensor(t) => {
                    if is_output {
                        evidence.has_output |= t.has_statistics() && t.is_floating();
                        if !t.kinds().is_finite() {
                            evidence.out = evidence.out.union(t.kinds());
                            bad_outputs.push(t);
                        }
                    } else if slot.field.is_input() && !t.kinds().is_finite() {
                        if rules.names(Is::Overwrites, argument) {
                            self.values.overwrite(t);
                        } else {
                            bad_inputs.push(argument);
                        }
                    }
                }
                Value::Number(n) if slot.field.is_input() => {
                    evidence.intended = evidence.intended.union(Kinds::of(*n));
                }
                _ => {}
            }
        }
        if bad_inputs.is_empty() && bad_outputs.is_empty() {
            let state = if op.register == Some(true) && !evidence.has_output {
                self.register(i)
            } else if self.registers && op.register.is_none() && !op_has_values(op) {
                OpState::Unknown
            } else {
                OpState::Clean
            };
            self.counts.add(state);
            return;
        }
        self.compute_bad(i, name, op, rules, evidence, &bad_inputs, &bad_outputs);
    }

    /// Rule 9: without values the first set register counts; what follows it is its consequence.
    fn register(&mut self, i: u32) -> OpState {
        let known = self.register;
        let id = self.graph.add(Node { harm: true, ..Node::new(i, Kinds::NONE, Role::Register, true) });
        match known {
            None => {
                self.register = Some(id);
                OpState::Origin
            }
            Some(first) => {
                self.graph.adopt(first, id);
                OpState::Propagated
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // one caller; the arguments are the op taken apart once
    fn compute_bad(
        &mut self,
        i: u32,
        name: &OpName,
        op: &Op<'a>,
        rules: &OperatorRules,
        mut evidence: Evidence,
        bad_inputs: &[&Argument],
        bad_outputs: &[&TensorStat],
    ) {
        let is_gradient = name.direction == Direction::Backward;
        let mut real: Vec<(Link, NodeId, u32)> = Vec::new();
        let mut masks: Vec<NodeId> = Vec::new();
        let mut conditions: Vec<u32> = Vec::new();
        let mut outside: Vec<(&TensorStat, String, bool, Meaning)> = Vec::new();
        let mut read: Vec<(u32, Link)> = Vec::new();
        for argument in bad_inputs {
            let Value::Tensor(t) = &argument.value else {
                continue;
            };
            let is_parameter = argument.slot.field == Field::Parameters || rules.names(Is::Parameters, argument);
            if let Some((id, link)) = self.values.find(t, is_parameter, is_gradient) {
                let seen = *self.values.get(id);
                read.push((id, link));
                match seen.meaning {
                    Meaning::Real => {
                        evidence.real = true;
                        real.push((link, seen.node, id));
                    }
                    Meaning::Intended => {
                        evidence.intended = evidence.intended.union(t.kinds());
                        masks.push(seen.node);
                        for &c in &self.graph.node(seen.node).conditions {
                            if !conditions.contains(&c) && conditions.len() < CONDITIONS_KEPT {
                                conditions.push(c);
                            }
                        }
                    }
                    Meaning::Garbage => {
                        evidence.garbage = true;
                        outside.push((t, argument.slot.to_string(), false, Meaning::Garbage));
                    }
                }
            } else if t.kinds() == Kinds::NEG_INF && !is_parameter && name.direction == Direction::Forward {
                // Rule 5, first limit: a lone -inf of unrecorded origin looks like a mask.
                evidence.intended = evidence.intended.union(t.kinds());
                outside.push((t, argument.slot.to_string(), false, Meaning::Intended));
            } else {
                evidence.unexplained = true;
                outside.push((t, argument.slot.to_string(), is_parameter, Meaning::Real));
            }
        }
        let mut judgement = judge(&evidence);
        // A gradient that a record takes in without giving one out went into the weights.
        let into_weights = judgement == Judgement::Observed
            && name.direction == Direction::Backward
            && (evidence.real || evidence.unexplained);
        // So did what is assigned to a slice: the effect is in the buffer. And where no output is dumped at all, or the
        // call never came back, what a record takes in is all there is to see.
        let is_last = i as usize + 1 == self.index.entries.len();
        let unseen = judgement == Judgement::Observed
            && (rules.says(Is::WritesUnseen) || (!op.has_output && (self.inputs_only || is_last)))
            && (evidence.real || evidence.unexplained);
        if into_weights || unseen {
            judgement = if evidence.real { Judgement::Propagated } else { Judgement::Unexplained };
        }
        let mut inside = Inside::Clean { has_children: false };
        if judgement == Judgement::Origin && !op.has_inputs && evidence.out == Kinds::NEG_INF && !recorded(name) {
            judgement = Judgement::Intended; // a lone -inf of an op whose arguments are not dumped looks like a mask
        }
        if judgement == Judgement::Origin && !op.has_inputs && name.direction == Direction::Forward {
            // A dump of outputs alone: whether the inputs were finite is told by what came before.
            if let Some((id, link)) = bad_outputs.first().and_then(|t| self.values.find(t, false, false)) {
                let seen = *self.values.get(id);
                if seen.meaning == Meaning::Real {
                    real.push((link, seen.node, id));
                    judgement = Judgement::Propagated;
                }
            }
        }
        if judgement == Judgement::Origin && name.is_module() && name.direction != Direction::ParametersGrad {
            inside = self.inside_module(i, name, bad_outputs);
            match inside {
                Inside::From(_) => judgement = Judgement::Propagated,
                Inside::Mask => judgement = Judgement::Intended,
                Inside::Clean { .. } | Inside::Adopts(_) => {}
            }
        }
        let role = match judgement {
            Judgement::Origin if name.direction == Direction::Backward => {
                self.forwards.get(&key_of(name)).map_or(Role::Origin, |&f| Role::Linked(f))
            }
            Judgement::Origin => Role::Origin,
            Judgement::Promoted => Role::Promoted,
            Judgement::Unexplained if outside.iter().any(|o| o.2) => Role::Parameter,
            Judgement::Unexplained => Role::Unexplained,
            // A bad value that ends at its first reader is healed, but it was there.
            Judgement::Absorbed if evidence.unexplained && !evidence.real => Role::Unexplained,
            _ => Role::Plain,
        };
        let is_real = into_weights
            || unseen
            || (!evidence.out.is_finite() && !matches!(judgement, Judgement::Intended | Judgement::Garbage));
        let kinds = if evidence.out.is_finite() {
            bad_inputs.iter().fold(Kinds::NONE, |k, a| match &a.value {
                Value::Tensor(t) => k.union(t.kinds()),
                _ => k,
            })
        } else {
            evidence.out
        };
        let id = self.graph.add(Node::new(i, kinds, role, is_real));
        self.graph.node_mut(id).conditions = conditions;
        self.graph.node_mut(id).harm = unseen && !rules.says(Is::WritesUnseen);
        self.graph.node_mut(id).scalar = bad_outputs.iter().all(|t| t.numel() == 1) && !bad_outputs.is_empty();
        self.connect(id, &mut real, &masks, judgement, &read);
        match inside {
            Inside::From(child) => self.graph.link(child, id),
            Inside::Adopts(child) => self.graph.adopt(id, child),
            Inside::Clean { has_children: true } => self.containers.push(id),
            Inside::Clean { .. } | Inside::Mask => {}
        }
        self.counts.add(state_of(judgement));
        if judgement == Judgement::Intended && masks.is_empty() {
            self.masks += 1;
        }
        if op.is_recompute {
            self.recompute.push(id);
        }
        if (role != Role::Plain) && !recorded(name) && (!op.has_inputs || !op.has_output) {
            self.one_sided.push(id);
        }
        self.note_shapes(id, &outside, bad_outputs);

        // Outside values are known from now on; those a view met first only explain what equals them.
        for (t, slot, _, meaning) in &outside {
            if *meaning == Meaning::Garbage {
                if judgement == Judgement::Unexplained {
                    self.slots.entry(id).or_insert_with(|| slot.clone());
                }
                continue;
            }
            if *meaning == Meaning::Real {
                self.slots.entry(id).or_insert_with(|| slot.clone());
            }
            let near = !evidence.carries;
            self.values.enter(
                t,
                provenance::Entry { node: id, meaning: *meaning, near, from_communication: false, of_weight: false },
            );
        }
        let meaning = match judgement {
            Judgement::Intended => Meaning::Intended,
            Judgement::Garbage => Meaning::Garbage,
            _ => Meaning::Real,
        };
        let near = meaning == Meaning::Real && !(judgement == Judgement::Unexplained && evidence.carries);
        for t in bad_outputs {
            let of_weight = name.direction == Direction::ParametersGrad;
            self.values.enter(t, provenance::Entry { node: id, meaning, near, from_communication: false, of_weight });
        }
        if name.direction == Direction::Forward && (is_real || evidence.real || evidence.unexplained) {
            self.forwards.insert(key_of(name), id);
        }
        if rules.says(Is::WritesUnseen) && (evidence.real || evidence.unexplained) {
            self.write_unseen(op, rules, id);
        }
        if judgement == Judgement::Intended && masks.is_empty() {
            return; // made, not computed
        }
        self.seed(i, name, rules, id, judgement, evidence.out, bad_outputs);
    }

    /// Links a node to what it read, and marks as absorbed what it healed.
    fn connect(
        &mut self,
        id: NodeId,
        real: &mut [(Link, NodeId, u32)],
        masks: &[NodeId],
        judgement: Judgement,
        read: &[(u32, Link)],
    ) {
        // Closest link first, then the most recent value: the first one linked is the primary parent.
        real.sort_by_key(|&(link, _, value)| (link, std::cmp::Reverse(value)));
        for &(link, parent, value) in real.iter() {
            if judgement == Judgement::Observed {
                continue;
            }
            self.graph.link(parent, id);
            if judgement == Judgement::Absorbed && link != Link::Near {
                self.values.absorb(value);
                self.graph.node_mut(parent).absorbed = true;
            }
        }
        if judgement == Judgement::Absorbed {
            for &(value, link) in read {
                if link != Link::Near {
                    self.values.absorb(value);
                }
            }
        }
        let op = self.graph.node(id).op;
        for &mask in masks {
            self.graph.node_mut(mask).first_reader.get_or_insert(op);
        }
    }

    fn note_shapes(&mut self, id: NodeId, outside: &[(&TensorStat, String, bool, Meaning)], outputs: &[&TensorStat]) {
        let bad_in = outside.iter().find(|o| o.3 == Meaning::Real).map(|o| shape_of(o.0));
        // Only roots and module outputs are ever asked for; keeping the rest would cost a string an op.
        if bad_in.is_some() || self.graph.node(id).role != Role::Plain || self.modules_only {
            let bad_out = outputs.first().map(|t| shape_of(t));
            self.shapes.insert(id, Shapes { bad_in, bad_out });
        }
    }

    /// `x[...] = value`: the dump shows no output, so the next reader of a bad value of that shape reads this one's.
    fn write_unseen(&mut self, op: &Op<'a>, rules: &OperatorRules, id: NodeId) {
        for argument in &op.arguments {
            let Value::Tensor(t) = &argument.value else {
                continue;
            };
            if argument.slot.field.is_input() && rules.names(Is::WritesUnseen, argument) {
                // Its statistics after the call are not in the dump; NaN in all of them is what a NaN leaves.
                let nan = Some(f64::NAN);
                let written = TensorStat { max: nan, min: nan, mean: nan, norm: nan, ..t.clone() };
                self.graph.node_mut(id).real = true;
                self.values.enter(
                    &written,
                    provenance::Entry {
                        node: id,
                        meaning: Meaning::Real,
                        near: true,
                        from_communication: false,
                        of_weight: false,
                    },
                );
            }
        }
    }

    /// Seeds of harm (rule 6).
    #[allow(clippy::too_many_arguments)]
    fn seed(
        &mut self,
        i: u32,
        name: &OpName,
        rules: &OperatorRules,
        id: NodeId,
        judgement: Judgement,
        out: Kinds,
        outputs: &[&TensorStat],
    ) {
        let module = module_key(name);
        if name.direction == Direction::ParametersGrad {
            let before = self.backwards.get(&module).or_else(|| self.module_forwards.get(&module)).copied();
            self.gradients.push((module, id, before));
            self.graph.node_mut(id).harm = true;
            return;
        }
        if name.is_module() && (self.graph.node(id).real || self.graph.node(id).role == Role::Unexplained) {
            if name.direction == Direction::Backward {
                self.backwards.insert(module, id);
                let waiting: Vec<NodeId> = self.gradients.iter().filter(|g| g.0 == module).map(|g| g.1).collect();
                self.gradients.retain(|g| g.0 != module);
                for gradient in waiting {
                    self.graph.adopt(id, gradient);
                }
            } else {
                self.module_forwards.insert(module, id);
            }
        }
        if name.direction == Direction::Debug {
            self.graph.node_mut(id).harm = !out.is_finite();
        }
        if out.is_finite() {
            return;
        }
        let is_loss = name.direction == Direction::Forward
            && self.losses.get(&key_of(name)).is_some_and(|&first| first || outputs.iter().all(|t| t.numel() == 1));
        let ends_a_segment = self.is_last_of_forward(i);
        if judgement == Judgement::Intended {
            if (is_loss || ends_a_segment) && outputs.iter().any(|t| t.numel() == 1) {
                self.intended_terminal.push(id);
            }
            return;
        }
        if !self.graph.node(id).real {
            return;
        }
        let after = self.last_backward.is_some_and(|last| i > last);
        if is_loss || ends_a_segment || (after && (name.is_in_place() || rules.says(Is::Norm))) {
            self.graph.node_mut(id).harm = true;
        }
    }

    /// Whether nothing of the forward part stands behind `i`: the next op is a gradient, or the file ends.
    fn is_last_of_forward(&self, i: u32) -> bool {
        if self.classes[i as usize] != Class::Forward {
            return false;
        }
        match self.classes.get(i as usize + 1) {
            Some(next) => *next != Class::Forward,
            None => self.first_backward.is_none(),
        }
    }

    // --- modules --------------------------------------------------------------------------------------------------

    /// What inside module record `i` made its output bad. In dumps of modules alone, a bad value first read by a
    /// child was computed by the innermost module whose own input was finite (rule 5): the child is then a
    /// consequence of this record.
    fn inside_module(&mut self, i: u32, name: &OpName, bad_outputs: &[&TensorStat]) -> Inside {
        let (start, has_children) = self.module_span(i, name);
        let in_span = |graph: &Graph, id: NodeId| graph.node(id).op >= start && graph.node(id).op < i;
        let mut found = None;
        for t in bad_outputs {
            let is_gradient = name.direction == Direction::Backward;
            let Some((id, Link::Exact)) = self.values.find(t, false, is_gradient) else {
                continue;
            };
            let seen = *self.values.get(id);
            if !in_span(&self.graph, seen.node) {
                continue;
            }
            match seen.meaning {
                Meaning::Real => {
                    found = Some(seen.node);
                    break;
                }
                Meaning::Intended if bad_outputs.len() == 1 => return Inside::Mask,
                _ => {}
            }
        }
        if found.is_none() {
            let nodes = &self.graph.nodes;
            found = (0..nodes.len()).rev().take_while(|&id| nodes[id].op >= start).find_map(|id| {
                let bad = nodes[id].real || nodes[id].role == Role::Unexplained;
                (bad && nodes[id].op < i).then_some(id as NodeId)
            });
        }
        let Some(inner) = found else {
            return Inside::Clean { has_children };
        };
        let root = self.graph.root(inner);
        if self.modules_only && self.graph.node(root).role == Role::Unexplained && in_span(&self.graph, root) {
            let child = self.name(self.graph.node(root).op);
            let child = OpName::parse(&child);
            if is_inside(&child, name) && child.direction == name.direction {
                return Inside::Adopts(root);
            }
        }
        Inside::From(inner)
    }

    /// First entry that may belong to module record `i`, and whether any recorded module is inside it.
    fn module_span(&self, i: u32, name: &OpName) -> (u32, bool) {
        let mut has_children = false;
        for before in (0..i).rev() {
            let raw = self.name(before);
            let other = OpName::parse(&raw);
            if !other.is_module() || other.direction == Direction::ParametersGrad {
                continue;
            }
            if !is_inside(&other, name) {
                return (before + 1, has_children);
            }
            has_children = true;
        }
        (0, has_children)
    }

    // --- one communication op -------------------------------------------------------------------------------------

    fn communicate(&mut self, i: u32, name: &OpName, op: &Op<'a>) {
        let Some(row) = self.rules.communication(name) else {
            return;
        };
        let mut state = match op.register {
            Some(true) if self.registers => self.register(i),
            None if self.registers && !op_has_values(op) => OpState::Unknown,
            _ => OpState::Clean,
        };
        for exchange in exchanges(op, i, name, row) {
            let got = self.exchange(i, exchange);
            if got != OpState::Clean {
                state = got;
            }
        }
        self.counts.add(state);
    }

    fn exchange(&mut self, i: u32, exchange: Exchange) -> OpState {
        let Exchange { mut communication, group, mut contributed, mut received } = exchange;
        // Of a rooted collective only the root gives (or gets); what others pass is a buffer, or nothing.
        let is_root = communication.root == Some(self.rank);
        match communication.flow {
            crate::rules::Flow::FromRoot if is_root => received.clear(),
            crate::rules::Flow::FromRoot => contributed.clear(),
            crate::rules::Flow::ToRoot if !is_root => received.clear(),
            _ => {}
        }
        let known = self.groups.iter().position(|g| *g == group);
        communication.group = known.unwrap_or(self.groups.len()) as u32;
        if known.is_none() {
            self.groups.push(group);
        }
        let event = self.events.len() as u32;
        self.supersede(&communication);
        let point_to_point = matches!(communication.flow, crate::rules::Flow::Send | crate::rules::Flow::Recv);
        let unreliable = communication.is_async && point_to_point;
        let given = self.give(i, event, &contributed);
        let got = self.get(i, event, &received, unreliable);
        let state = match (&given, &got) {
            (Some(g), _) if g.real => OpState::Propagated,
            (_, Some(g)) if g.real => OpState::Propagated,
            (Some(g), _) if !g.kinds.is_finite() => OpState::Intended,
            (_, Some(g)) if !g.kinds.is_finite() => OpState::Intended,
            _ => OpState::Clean,
        };
        self.events.push(Event { communication, given, got, visible_at: None });
        state
    }

    /// A batched call may be followed by records of the calls made inside it.
    fn supersede(&mut self, inner: &Communication) {
        if inner.batched || !matches!(inner.api.as_str(), "isend" | "irecv") {
            return;
        }
        let mut next = inner.op;
        for event in self.events.iter_mut().rev() {
            let outer = &mut event.communication;
            if outer.op + 1 < next || !matches!(outer.api.as_str(), "isend" | "irecv") {
                return;
            }
            if outer.batched && !outer.superseded && (&outer.api, outer.peer) == (&inner.api, inner.peer) {
                outer.superseded = true;
                return;
            }
            next = outer.op;
        }
    }

    fn give(&mut self, i: u32, event: u32, contributed: &[(&Argument, &TensorStat)]) -> Option<Side> {
        if contributed.is_empty() {
            return None;
        }
        let mut side = Side::of(contributed);
        if side.kinds.is_finite() {
            return Some(side);
        }
        let mut sources: Vec<(Link, NodeId, u32)> = Vec::new();
        let mut outside: Vec<(&TensorStat, String)> = Vec::new();
        for (argument, t) in contributed.iter().filter(|(_, t)| !t.kinds().is_finite()) {
            match self.values.find(t, false, false) {
                Some((id, link)) if self.values.get(id).meaning == Meaning::Real => {
                    sources.push((link, self.values.get(id).node, id));
                }
                Some((id, _)) if self.values.get(id).meaning == Meaning::Intended => {
                    let node = self.values.get(id).node;
                    self.graph.node_mut(node).first_reader.get_or_insert(i);
                    side.conditions.extend(self.graph.node(node).conditions.iter().take(CONDITIONS_KEPT));
                }
                None if t.kinds() == Kinds::NEG_INF => {} // looks like a mask
                _ => outside.push((t, argument.slot.to_string())),
            }
        }
        sources.sort_by_key(|&(link, _, value)| (link, std::cmp::Reverse(value)));
        if let Some(&(_, node, _)) = sources.first() {
            side.real = true;
            for &(_, node, _) in &sources {
                let parent = self.graph.node_mut(node);
                parent.harm = true;
                parent.first_reader.get_or_insert(i);
                parent.carried = true;
            }
            self.given.push((event, node));
        } else if let Some((t, slot)) = outside.first() {
            side.real = true;
            let node = Node { harm: true, ..Node::new(i, t.kinds(), Role::Unexplained, true) };
            let id = self.graph.add(node);
            self.slots.insert(id, slot.clone());
            self.shapes.insert(id, Shapes { bad_in: Some(shape_of(t)), bad_out: None });
            self.values.enter(
                t,
                provenance::Entry {
                    node: id,
                    meaning: Meaning::Real,
                    near: true,
                    from_communication: false,
                    of_weight: false,
                },
            );
            self.given.push((event, id));
        }
        Some(side)
    }

    fn get(&mut self, i: u32, event: u32, received: &[(&Argument, &TensorStat)], unreliable: bool) -> Option<Side> {
        if received.is_empty() {
            return None;
        }
        let mut side = Side::of(received);
        if side.kinds.is_finite() {
            return Some(side);
        }
        // A delivered lone -inf is taken for a mask until the sender's side says otherwise (rule 1).
        side.real = side.kinds != Kinds::NEG_INF;
        let mut node = Node::new(i, side.kinds, Role::Received(event), side.real);
        if !side.real {
            node.conditions.push(event);
        }
        let id = self.graph.add(node);
        let meaning = if side.real { Meaning::Real } else { Meaning::Intended };
        for (_, t) in received.iter().filter(|(_, t)| !t.kinds().is_finite()) {
            self.values.enter(
                t,
                provenance::Entry { node: id, meaning, near: !unreliable, from_communication: true, of_weight: false },
            );
        }
        self.got.push((event, id));
        Some(side)
    }

    // --- the end --------------------------------------------------------------------------------------------------

    fn finish(mut self, rank: Rank, label: &str) -> Timeline {
        self.settle_gradients();
        for id in std::mem::take(&mut self.intended_terminal) {
            let node = self.graph.node_mut(id);
            node.role = Role::Promoted;
            node.real = true;
            node.harm = true;
        }
        self.seed_unread_gradients();
        self.graph.resolve();
        let roots = self.graph.roots();
        let (marks, mark_of, omitted) = self.marks(&roots);
        let mark_at = |node: NodeId| mark_of.get(&roots[node as usize]).copied();
        for &(event, node) in &self.given {
            let trail = self.trail(node);
            if let Some(side) = &mut self.events[event as usize].given {
                side.mark = mark_at(node);
                side.trail = trail;
            }
        }
        for &(event, node) in &self.got {
            let read = self.graph.node(node).first_reader;
            let entry = &mut self.events[event as usize];
            entry.visible_at = entry.communication.is_async.then_some(read).flatten();
            if let Some(side) = &mut entry.got {
                side.mark = mark_at(node);
                side.read = read.is_some();
            }
        }
        let terminals = self.terminals(&mark_at);
        let shown = |n: &&Node| n.real || matches!(n.role, Role::Unexplained | Role::Parameter);
        let first_bad = self.graph.nodes.iter().filter(shown).map(|n| n.op).min();
        let last_bad = self.graph.nodes.iter().filter(shown).map(|n| n.op).max();
        let mut bad_shapes: Vec<(String, Vec<i64>)> = Vec::new();
        if self.modules_only {
            for id in 0..self.graph.nodes.len() as NodeId {
                let Some(shape) = self.shapes.get(&id).and_then(|s| s.bad_out.clone()) else {
                    continue;
                };
                if bad_shapes.len() < HEALED_KEPT && !bad_shapes.contains(&shape) {
                    bad_shapes.push(shape);
                }
            }
        }
        self.find_readers(&marks);
        let (completeness, problem) = self.ending();
        let parsed: u32 = {
            let c = &self.counts;
            c.clean + c.origin + c.propagated + c.absorbed + c.intended + c.ignored + c.unknown
        };
        let total = self.index.entries.len() as u32;
        if self.has_statistics {
            self.counts.clean += total.saturating_sub(parsed);
        } else {
            self.counts = Counts { unknown: total, ..Counts::default() };
        }
        if self.index.duplicates > 0 {
            self.notes.push(format!("{} op names stand twice; the last record of each counts", self.index.duplicates));
        }
        Timeline {
            version: TIMELINE_VERSION,
            rank,
            label: label.to_owned(),
            task: self.index.task.clone(),
            level: self.index.level.clone(),
            framework: self.index.framework.clone(),
            ops: total,
            bytes: self.bytes.len() as u64,
            completeness,
            has_statistics: self.has_statistics,
            modules_only: self.modules_only,
            problem,
            notes: self.notes.clone(),
            counts: self.counts,
            first_bad: first_bad.map(|op| self.op_ref(op)),
            last_bad: last_bad.map(|op| self.op_ref(op)),
            groups: self.groups.clone(),
            event_refs: self.events.iter().map(|e| self.op_ref(e.communication.op)).collect(),
            events: std::mem::take(&mut self.events),
            marks,
            marks_omitted: omitted,
            masks: self.masks,
            terminals,
            bad_shapes,
        }
    }

    /// Weight gradients whose module's backward did not follow: the consequence of an earlier record of the module,
    /// or, when that backward is in the dump and clean, the first bad thing themselves.
    fn settle_gradients(&mut self) {
        let open = std::mem::take(&mut self.gradients);
        if open.is_empty() {
            return;
        }
        let mut recorded: FxHashSet<u64> = FxHashSet::default();
        for (i, class) in self.classes.iter().enumerate() {
            if *class == Class::Backward {
                recorded.insert(module_key(&OpName::parse(&self.name(i as u32))));
            }
        }
        for (module, id, before) in open {
            let op = self.graph.node(id).op;
            let earlier = || {
                self.graph.nodes[..id as usize]
                    .iter()
                    .rposition(|n| n.real && n.op < op && self.classes[n.op as usize] == Class::Backward)
            };
            let parent =
                before.or_else(|| if recorded.contains(&module) { None } else { earlier().map(|n| n as NodeId) });
            match parent {
                Some(parent) => self.graph.adopt(parent, id),
                None => self.graph.node_mut(id).role = Role::Parameter,
            }
        }
    }

    fn ending(&self) -> (Completeness, Option<Problem>) {
        let problem = |offset: Option<usize>, message: String| {
            Some(Problem { position: offset.map(|at| Position::find(self.bytes, at)), message })
        };
        let ops = self.index.entries.len();
        match self.index.ending {
            _ if self.bytes.is_empty() => (Completeness::Empty, problem(None, "the file is empty".to_owned())),
            Ending::Cut(at) => (
                Completeness::Cut,
                problem(Some(at), format!("the file ends early; {ops} complete ops before it were used")),
            ),
            Ending::Damaged(0, _) if self.bytes.starts_with(b"[\"") => (
                Completeness::Damaged,
                problem(
                    Some(0),
                    "expected an msProbe dump.json, found a list: ptdbg's old .pkl dumps are not supported".to_owned(),
                ),
            ),
            Ending::Damaged(at, expected) => {
                let found = self.bytes.get(at).map_or_else(|| "the end".to_owned(), |b| byte_name(*b));
                (
                    Completeness::Damaged,
                    problem(
                        Some(at),
                        format!("expected {expected}, found {found}; {ops} complete ops before it were used"),
                    ),
                )
            }
            Ending::Complete if !self.index.has_data => (
                Completeness::Damaged,
                problem(Some(0), "expected an msProbe dump, found JSON without a \"data\" object".to_owned()),
            ),
            Ending::Complete if ops == 0 => (Completeness::Empty, problem(None, "the dump holds no op".to_owned())),
            Ending::Complete if self.index.ascii => (Completeness::Complete, None),
            Ending::Complete => match std::str::from_utf8(self.bytes) {
                Ok(_) => (Completeness::Complete, None),
                Err(error) => {
                    let at = error.valid_up_to();
                    (
                        Completeness::Damaged,
                        problem(
                            Some(at),
                            format!("expected UTF-8, found {}; all {ops} ops were used", byte_name(self.bytes[at])),
                        ),
                    )
                }
            },
        }
    }

    /// A gradient that nobody absorbed and nobody carried on went into a weight.
    fn seed_unread_gradients(&mut self) {
        for id in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[id];
            let backward = self.classes[node.op as usize] == Class::Backward;
            if backward && node.real && !node.carried && !node.absorbed {
                self.graph.nodes[id].harm = true;
            }
        }
    }

    fn phase(&self, op: u32) -> Phase {
        if self.classes[op as usize] != Class::Forward {
            Phase::Backward
        } else if self.last_backward.is_some_and(|last| op > last) {
            Phase::Optimizer
        } else {
            Phase::Forward
        }
    }

    fn trail(&self, node: NodeId) -> Trail {
        let (head, omitted, tail) = self.graph.trail(node);
        let refs = |ops: Vec<u32>| ops.into_iter().map(|op| self.op_ref(op)).collect();
        Trail { head: refs(head), omitted, tail: refs(tail) }
    }

    /// The roots worth keeping, and where each stands in the list.
    fn marks(&self, roots: &[NodeId]) -> (Vec<Mark>, FxHashMap<NodeId, u32>, u32) {
        let mut reach: FxHashMap<NodeId, u32> = FxHashMap::default();
        for (id, &root) in roots.iter().enumerate() {
            if self.graph.nodes[id].real || id as NodeId == root {
                *reach.entry(root).or_default() += 1;
            }
        }
        let (mut harmful, mut healed, mut omitted) = (0, 0, 0);
        let mut marks = Vec::new();
        let mut mark_of = FxHashMap::default();
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let id = id as NodeId;
            if node.role == Role::Plain || node.primary.is_some() {
                continue;
            }
            let received = matches!(node.role, Role::Received(_));
            let kept = received
                || (node.harm && {
                    harmful += 1;
                    harmful <= MARKS_KEPT
                })
                || (!node.harm && {
                    healed += 1;
                    healed <= HEALED_KEPT
                });
            if !kept {
                omitted += 1;
                continue;
            }
            mark_of.insert(id, marks.len() as u32);
            let entry = &self.index.entries[node.op as usize];
            let shapes = self.shapes.get(&id).cloned().unwrap_or_default();
            marks.push(Mark {
                at: self.op_ref(node.op),
                cause: self.cause(id, node),
                kinds: node.kinds,
                phase: self.phase(node.op),
                harm: node.harm,
                container: self.containers.contains(&id),
                reach: reach.get(&id).copied().unwrap_or(1),
                recompute: self.recompute.contains(&id),
                one_sided: self.one_sided.contains(&id),
                conditions: if node.role == Role::Promoted { node.conditions.clone() } else { Vec::new() },
                event: match node.role {
                    Role::Received(event) => Some(event),
                    _ => None,
                },
                first_reader: node.first_reader,
                slot: self.slots.get(&id).cloned(),
                bad_in: shapes.bad_in,
                bad_out: shapes.bad_out,
                record: (entry.body_at() as u64, entry.body(self.bytes).len() as u64),
            });
        }
        (marks, mark_of, omitted)
    }

    fn cause(&self, id: NodeId, node: &Node) -> Cause {
        match node.role {
            Role::Plain | Role::Origin | Role::Linked(_) => Cause::Computed,
            Role::Promoted => Cause::FromIntended,
            Role::Parameter => Cause::Parameter,
            Role::Received(_) => Cause::Received,
            Role::Register => Cause::Register,
            Role::Unexplained => {
                let shape = self.shapes.get(&id).and_then(|s| s.bad_in.clone());
                match shape {
                    Some(shape) if node.harm && self.was_produced(node.op, &shape) => Cause::Corruption,
                    None if node.harm => Cause::Corruption, // unwritten memory that was computed with
                    _ if self.first_backward.is_none_or(|first| node.op < first) => Cause::Input,
                    _ => Cause::Unrecorded,
                }
            }
        }
    }

    /// Whether an earlier op's dumped output has this dtype and shape: then the value was finite when it was made.
    /// Gradients are compared with gradients. Dumps of modules alone show too little to tell.
    fn was_produced(&self, before: u32, shape: &(String, Vec<i64>)) -> bool {
        if self.modules_only {
            return false;
        }
        let gradient = self.classes[before as usize] == Class::Backward;
        (0..before as usize).rev().any(|i| {
            if gradient && self.classes[i] != Class::Backward {
                return false;
            }
            let Ok(op) = parse_op(self.index.entries[i].body(self.bytes), Part::ALL) else { return false };
            op.arguments.iter().any(|a| {
                a.slot.field == Field::Output
                    && matches!(&a.value, Value::Tensor(t) if t.dtype == shape.0 && t.shape.as_slice() == shape.1 && t.has_statistics())
            })
        })
    }

    fn terminals(&self, mark_at: &dyn Fn(NodeId) -> Option<u32>) -> Vec<Terminal> {
        let mut found: Vec<Terminal> = Vec::new();
        let mut push = |symptom: Symptom, id: NodeId| {
            if let Some(mark) = mark_at(id) {
                found.push(Terminal { symptom, at: self.op_ref(self.graph.node(id).op), mark, trail: self.trail(id) });
            }
        };
        let mut first: [Option<NodeId>; 5] = [None; 5];
        let mut last = None;
        for (id, node) in self.graph.nodes.iter().enumerate() {
            if !node.real || !node.harm {
                continue;
            }
            let id = id as NodeId;
            last = Some(id);
            let raw = self.name(node.op);
            let name = OpName::parse(&raw);
            if self.rules.is_communication(&name) {
                continue;
            }
            let phase = self.phase(node.op);
            let place = match phase {
                Phase::Forward if node.scalar && self.losses.contains_key(&key_of(&name)) => 0,
                Phase::Optimizer if self.rules.operator(&name).says(Is::Norm) => 1,
                Phase::Optimizer if name.is_in_place() => 2,
                Phase::Forward if self.is_last_of_forward(node.op) => 3,
                Phase::Backward => 4,
                _ => continue,
            };
            first[place].get_or_insert(id);
        }
        let symptoms =
            [Symptom::Loss, Symptom::GradientNorm, Symptom::Optimizer, Symptom::ForwardOutput, Symptom::Gradient];
        for (symptom, id) in symptoms.into_iter().zip(first) {
            if let Some(id) = id {
                push(symptom, id);
            }
        }
        if let Some(id) = last {
            push(Symptom::LastOp, id);
        }
        found
    }

    /// Rule 8: an asynchronous receive is visible where its value is first read. Only matters, and is only looked
    /// for, on ranks with roots of their own behind the call.
    fn find_readers(&mut self, marks: &[Mark]) {
        let Some(until) = marks.iter().filter(|m| m.cause != Cause::Received).map(|m| m.at.op).max() else {
            return;
        };
        let mut waiting: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        let mut at = 0;
        for i in 0..=until {
            let entry = self.index.entries[i as usize];
            let starts_here = self.events.get(at).is_some_and(|e| e.communication.op == i);
            if waiting.is_empty() && !starts_here {
                continue;
            }
            let Ok(op) = parse_op(entry.body(self.bytes), Part::ALL) else {
                continue;
            };
            if !waiting.is_empty() {
                for argument in op.arguments.iter().filter(|a| a.slot.field.is_input()) {
                    let Value::Tensor(t) = &argument.value else {
                        continue;
                    };
                    for event in waiting.remove(&provenance::identity(t)).unwrap_or_default() {
                        self.events[event].visible_at.get_or_insert(i);
                    }
                }
            }
            while let Some(event) = self.events.get(at).filter(|e| e.communication.op == i) {
                let communication = &event.communication;
                if communication.is_async && event.visible_at.is_none() {
                    let raw = self.name(i);
                    let name = OpName::parse(&raw);
                    if let Some(row) = self.rules.communication(&name) {
                        let item = communication.item;
                        let all = exchanges(&op, i, &name, row);
                        let received = all.iter().find(|e| e.communication.item == item).map(|e| &e.received);
                        for (_, t) in received.into_iter().flatten() {
                            waiting.entry(provenance::identity(t)).or_default().push(at);
                        }
                    }
                }
                at += 1;
            }
        }
        // Not read before the last root: it cannot have come before any of them.
        for event in waiting.into_values().flatten() {
            self.events[event].visible_at.get_or_insert(until + 1);
        }
    }
}

impl Side {
    fn of(tensors: &[(&Argument, &TensorStat)]) -> Self {
        Self {
            judged: tensors.iter().any(|(_, t)| t.has_statistics() || !t.is_floating()),
            kinds: tensors.iter().fold(Kinds::NONE, |k, (_, t)| k.union(t.kinds())),
            real: false,
            mark: None,
            trail: Trail::default(),
            conditions: Vec::new(),
            read: false,
        }
    }
}

/// A byte as a message shows it.
fn byte_name(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("'{}'", byte as char) } else { format!("byte 0x{byte:02x}") }
}

/// Whether a record's own keys are values.
fn recorded(name: &OpName) -> bool {
    matches!(name.direction, Direction::ParametersGrad | Direction::Debug)
}

fn op_has_values(op: &Op) -> bool {
    op.arguments.iter().any(|a| matches!(&a.value, Value::Tensor(t) if t.has_statistics()))
}

fn state_of(judgement: Judgement) -> OpState {
    match judgement {
        Judgement::Clean => OpState::Clean,
        Judgement::Origin | Judgement::Promoted | Judgement::Unexplained => OpState::Origin,
        Judgement::Propagated => OpState::Propagated,
        Judgement::Absorbed | Judgement::Observed => OpState::Absorbed,
        Judgement::Intended => OpState::Intended,
        Judgement::Garbage => OpState::Ignored,
    }
}

fn module_key(name: &OpName) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = rustc_hash::FxHasher::default();
    name.base.hash(&mut hasher);
    hasher.finish()
}

/// Whether module `inner` lies below module `outer` by its path.
fn is_inside(inner: &OpName, outer: &OpName) -> bool {
    outer.module_path.is_empty()
        || inner.module_path.strip_prefix(outer.module_path).is_some_and(|rest| rest.starts_with('.'))
}
