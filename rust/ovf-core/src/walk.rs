//! One rank, op by op in file order: the rank's graph of non-finite ops and its communications.
//!
//! In: the index of a dump and the rules. Out: what [`crate::timeline`] is made of. Only ops that hold a non-finite
//! token or communicate are parsed; the rest is known to be clean from the scan. Rule numbers are those of
//! `docs/semantics.md`.
//!
//! For each op: collect the non-finite inputs, leave out what is only written, look each up in [`crate::provenance`],
//! judge by [`crate::classify`], add a node to [`crate::graph`], enter the non-finite outputs. Module records stand at
//! their exit, so a module with finite inputs and a bad output is first compared with what its children gave
//! ([`module`]); communications have two sides ([`exchange`]); what is left at the end is [`summary`].

mod exchange;
mod module;
mod records;
mod repeat;
mod summary;
mod trend;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::rc::Rc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::records::Records;
use self::repeat::Repeats;
use crate::chart::{Draft, Look};
use crate::classify::{Evidence, Judgement, OpState, judge};
use crate::communication::GroupKey;
use crate::error::Position;
use crate::graph::{Graph, Node, Role};
use crate::op::{Argument, Direction, Field, Kinds, Op, OpName, Rank, TensorStat, Value};
use crate::parse::{Numbers, Parser, Part};
use crate::progress::Watch;
use crate::provenance;
use crate::provenance::{Link, Meaning, NodeId, Values};
use crate::rules::{CommunicationRow, Is, OperatorRules, Rules};
use crate::scan::{Class, Entry, Index};
use crate::survey::Seen;
use crate::timeline::{Counts, Event, OpRef};
use crate::token::{Read, Stop, unescape};

/// Harmful roots kept for a rank (beyond them they are counted): the first ones are what anybody reads.
const MARKS_KEPT: usize = 256;
/// Healed roots kept for a rank.
const HEALED_KEPT: usize = 32;
/// Records looked at to tell what a dump leaves out.
const LOOKED_AT: usize = 64;
/// Conditions kept for a promoted origin.
const CONDITIONS_KEPT: usize = 8;

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

pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    index: &'a Index,
    rules: &'a Rules,
    /// See [`Index::plain_names`].
    names: Option<&'a str>,
    classes: Vec<Class>,
    first_backward: Option<u32>,
    last_backward: Option<u32>,
    /// See [`Walk::losses`]; the names of a rank without anything bad are never looked up.
    losses: OnceCell<FxHashMap<u64, bool>>,
    modules_only: bool,
    /// No record has an output.
    inputs_only: bool,
    rank: Rank,
    repeats: Repeats,
    operators: FxHashMap<u64, Rc<OperatorRules<'a>>>,
    communications: FxHashMap<u64, Option<&'a CommunicationRow>>,
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
    /// State of every op.
    states: Vec<OpState>,
    masks: u32,
    has_statistics: bool,
    notes: Vec<String>,
    slots: FxHashMap<NodeId, String>,
    shapes: FxHashMap<NodeId, Shapes>,
    recompute: Vec<NodeId>,
    one_sided: Vec<NodeId>,
    containers: Vec<NodeId>,
    intended_terminal: Vec<NodeId>,
    /// Where it was asked for.
    chart: Option<Draft>,
}

#[derive(Default, Clone)]
struct Shapes {
    bad_in: Option<(String, Vec<i64>)>,
    bad_out: Option<(String, Vec<i64>)>,
}

/// What a forward and its backward share.
fn key_of(name: &OpName) -> u64 {
    let seed = name.call_index.map_or(u64::MAX, |n| n);
    xxhash_rust::xxh3::xxh3_64_with_seed(name.base.as_bytes(), seed)
}

fn shape_of(t: &TensorStat) -> (String, Vec<i64>) {
    (t.dtype.to_owned(), t.shape.to_vec())
}

impl<'a> Walk<'a> {
    pub(crate) fn new(bytes: &'a [u8], index: &'a Index, rules: &'a Rules, rank: Rank, chart: Option<Draft>) -> Self {
        let classes: Vec<Class> = index.entries.iter().map(|e| e.class).collect();
        let is_gradient = |c: &Class| *c != Class::Forward;
        let first_backward = classes.iter().position(is_gradient).map(|i| i as u32);
        let last_backward = classes.iter().rposition(is_gradient).map(|i| i as u32);
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
            names: index.plain_names(),
            classes,
            first_backward,
            last_backward,
            losses: OnceCell::new(),
            modules_only,
            inputs_only,
            rank,
            repeats: Repeats::default(),
            operators: FxHashMap::default(),
            communications: FxHashMap::default(),
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
            states: vec![OpState::Clean; index.entries.len()],
            masks: 0,
            has_statistics: false,
            notes: Vec::new(),
            slots: FxHashMap::default(),
            shapes: FxHashMap::default(),
            recompute: Vec::new(),
            one_sided: Vec::new(),
            containers: Vec::new(),
            intended_terminal: Vec::new(),
            chart,
        }
    }

    /// Bases (with number) of forwards whose gradient starts a run of backwards: losses. The first of all is true.
    fn losses(&self) -> &FxHashMap<u64, bool> {
        self.losses.get_or_init(|| {
            let mut losses = FxHashMap::default();
            let mut before = Class::Forward;
            for (i, &class) in self.classes.iter().enumerate() {
                if class == Class::Backward && before == Class::Forward {
                    losses.insert(key_of(&OpName::parse(&self.name(i as u32))), losses.is_empty());
                }
                before = class;
            }
            losses
        })
    }

    fn raw_name(&self, op: u32) -> &'a [u8] {
        self.index.name(self.bytes, op as usize)
    }

    fn name(&self, op: u32) -> Cow<'a, str> {
        // PERF: that the text is text is looked at once for all of them.
        if let Some(name) = self.names.and_then(|names| names.get(self.index.named(op as usize))) {
            return Cow::Borrowed(name);
        }
        unescape(self.raw_name(op))
    }

    /// The table's row for a communication, looked up once per name.
    fn communication_row(&mut self, name: &OpName) -> Option<&'a CommunicationRow> {
        let rules = self.rules;
        *self.communications.entry(api_key(name)).or_insert_with(|| rules.communication(name))
    }

    /// The table's rows for an operator, looked up once per name.
    fn rules_of(&mut self, name: &OpName) -> Rc<OperatorRules<'a>> {
        let rules = self.rules;
        Rc::clone(self.operators.entry(api_key(name)).or_insert_with(|| Rc::new(rules.operator(name))))
    }

    pub(crate) fn rules(&self) -> &'a Rules {
        self.rules
    }

    /// State of every op, after [`Walk::finish`].
    pub(crate) fn states(&self) -> &[OpState] {
        &self.states
    }

    /// Parses every op in file order and hands it to `look`, until `watch` is stopped.
    pub(crate) fn each(&mut self, watch: &Watch, look: &mut dyn FnMut(&Seen<'_, 'a>)) {
        let mut parser = Parser::new(Numbers::All);
        for i in 0..self.index.entries.len() as u32 {
            if watch.stopped() {
                return;
            }
            let raw = self.name(i);
            let name = OpName::parse(&raw);
            let part = Part::All { recorded: recorded(&name) };
            let op = parser.op(self.index.entries[i as usize].body(self.bytes), part).ok();
            let operator = self.rules_of(&name);
            let state = self.states[i as usize];
            look(&Seen { i, raw: &raw, name, op, state, operator: &operator });
        }
    }

    fn op_ref(&self, op: u32) -> OpRef {
        OpRef { op, name: self.name(op).into_owned() }
    }

    pub(crate) fn over_ops(&mut self, watch: &Watch) {
        let (values, registers) = self.what_can_be_judged(watch);
        self.has_statistics = values || registers;
        self.registers = self.index.task.as_deref() == Some("nan_check") || (registers && !values);
        let all = self.registers;
        let wanted = |e: &Entry| e.non_finite || e.asked || all;
        let ops: Vec<u32> = (0u32..).zip(&self.index.entries).filter(|(_, e)| wanted(e)).map(|(i, _)| i).collect();
        let count = |what: fn(&Entry) -> bool| ops.iter().filter(|&&i| what(&self.index.entries[i as usize])).count();
        let (bad, asked) = (count(|e| e.non_finite), count(|e| e.asked));
        self.graph.nodes.reserve(bad);
        self.values.reserve(bad);
        self.events.reserve(asked);
        self.forwards.reserve(bad / 2);
        let mut records = Records::new(self.bytes, self.index, all, self.names.is_none());
        for &i in &ops {
            if watch.stopped() {
                return;
            }
            if self.may_repeat(i).is_some_and(|form| self.repeat(i, form)) {
                continue;
            }
            self.take(i, records.op(i));
        }
    }

    /// The form of a finite communication that may be a repeat.
    fn may_repeat(&self, i: u32) -> Option<u32> {
        self.index.entries[i as usize].repeats().filter(|_| !self.registers)
    }

    fn take(&mut self, i: u32, read: Read<&Op<'a>>) {
        let raw = self.name(i);
        let name = OpName::parse(&raw);
        match read {
            Ok(op) if self.index.entries[i as usize].asked => self.communicate(i, &name, op, self.may_repeat(i)),
            Ok(op) => self.compute(i, &name, op),
            Err(stop) => self.malformed(i, &raw, stop),
        }
    }

    /// Counts the state of an op.
    fn note(&mut self, op: u32, state: OpState, look: impl FnOnce() -> Look) {
        self.counts.add(state);
        self.states[op as usize] = state;
        if let Some(chart) = &mut self.chart {
            chart.note(op, state, look);
        }
    }

    fn malformed(&mut self, op: u32, name: &str, stop: Stop) {
        let body = self.index.entries[op as usize].body_at();
        let (offset, expected) = match stop {
            Stop::End => (self.index.entries[op as usize].body(self.bytes).len(), "the rest of the record"),
            Stop::Unexpected { at, expected } => (at, expected),
        };
        let at = Position::find(self.bytes, body + offset);
        self.note(op, OpState::Unknown, Look::default);
        if self.notes.len() < HEALED_KEPT {
            self.notes.push(format!("{}:{}: expected {expected} in {name}; the op is left out", at.line, at.column));
        }
    }

    /// Whether a value has statistics, and if none has, whether a register was read: xor and structure dumps hold
    /// neither. Most dumps show it in their first record.
    fn what_can_be_judged(&self, watch: &Watch) -> (bool, bool) {
        let mut parser = Parser::new(Numbers::OfNonFinite);
        let mut registers = false;
        for (i, entry) in self.index.entries.iter().enumerate() {
            if watch.stopped() {
                break;
            }
            let direction = OpName::parse(&self.name(i as u32)).direction;
            let recorded = matches!(direction, Direction::ParametersGrad | Direction::Debug);
            let Ok(op) = parser.op(entry.body(self.bytes), Part::All { recorded }) else {
                continue;
            };
            if op_has_values(op) {
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
        let mut bad_inputs: SmallVec<[&Argument; 8]> = SmallVec::new();
        let mut bad_outputs: SmallVec<[&TensorStat; 8]> = SmallVec::new();
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
            let state = if self.registers && op.register == Some(true) && !evidence.has_output {
                self.register(i)
            } else if self.registers && op.register.is_none() && !op_has_values(op) {
                OpState::Unknown
            } else {
                OpState::Clean
            };
            self.note(i, state, Look::default);
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
        let mut real: SmallVec<[(Link, NodeId, u32); 8]> = SmallVec::new();
        let mut masks: SmallVec<[NodeId; 8]> = SmallVec::new();
        let mut conditions: Vec<u32> = Vec::new();
        let mut outside: Vec<(&TensorStat, String, bool, Meaning)> = Vec::new();
        let mut read: SmallVec<[(u32, Link); 8]> = SmallVec::new();
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
            Inside::Adopts(child) => {
                self.graph.adopt(id, child);
            }
            Inside::Clean { has_children: true } => self.containers.push(id),
            Inside::Clean { .. } | Inside::Mask => {}
        }
        self.note(i, state_of(judgement), || Look::of(op, recorded(name)));
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
                let written = TensorStat { max: nan, min: nan, mean: nan, norm: nan, keys: None, ..t.clone() };
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
                let graph = &mut self.graph;
                self.gradients.retain(|g| g.0 != module || !graph.adopt(id, g.1));
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
            && self.losses().get(&key_of(name)).is_some_and(|&first| first || outputs.iter().all(|t| t.numel() == 1));
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
    xxhash_rust::xxh3::xxh3_64(name.base.as_bytes())
}

/// What the table's rows are looked up by.
fn api_key(name: &OpName) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(name.api.as_bytes(), xxhash_rust::xxh3::xxh3_64(name.prefix.as_bytes()))
}
