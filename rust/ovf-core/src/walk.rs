//! One rank, op by op in file order: the rank's graph of non-finite ops and its communications.
//!
//! In: the index of a dump and the rules. Out: what [`crate::timeline`] is made of. Only ops that hold a non-finite
//! token or communicate are looked at; the rest is known to be clean from the scan. Those that are alike are read once
//! ([`plan`]), the others one by one ([`records`]). Rule numbers are those of `docs/semantics.md`.
//!
//! For each op: collect the non-finite inputs, leave out what is only written, look each up in [`crate::provenance`],
//! judge by [`crate::classify`], add a node to [`crate::graph`], enter the non-finite outputs. Module records stand at
//! their exit, so a module with finite inputs and a bad output is first compared with what its children gave
//! ([`module`]); communications have two sides ([`exchange`]); what is left at the end is [`summary`].

mod call;
mod compute;
mod exchange;
mod module;
mod plan;
mod records;
mod summary;
mod trend;

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::call::{Call, api_key};
use self::compute::Taken;
use self::plan::Plans;
use self::records::Records;
use crate::chart::{Draft, Look};
use crate::classify::OpState;
use crate::communication::GroupKey;
use crate::error::Position;
use crate::graph::{Graph, Node, Role};
use crate::op::{Direction, Kinds, Op, OpName, Rank, TensorStat, Value};
use crate::parse::{Numbers, Parser, Part};
use crate::progress::Watch;
use crate::provenance::{NodeId, Values};
use crate::rules::{CommunicationRow, OperatorRules, Rules};
use crate::scan::{Class, Index};
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

pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    index: &'a Index,
    rules: &'a Rules,
    classes: &'a [Class],
    first_backward: Option<u32>,
    last_backward: Option<u32>,
    /// See [`crate::scan::Entries::plain_name`].
    near: Cell<usize>,
    /// See [`Walk::losses`]; the names of a rank without anything bad are never looked up.
    losses: OnceCell<FxHashMap<u64, bool>>,
    modules_only: bool,
    /// No record has an output.
    inputs_only: bool,
    rank: Rank,
    operators: FxHashMap<u64, Rc<OperatorRules<'a>>>,
    communications: FxHashMap<u64, Option<&'a CommunicationRow>>,
    values: Values,
    graph: Graph,
    /// Forward calls that met something bad, by base and number.
    forwards: Forwards,
    gradients: Vec<Gradient>,
    /// By module, those that wait for its backward record: places in `gradients`.
    waiting: FxHashMap<u64, SmallVec<[u32; 2]>>,
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

/// A bad `parameters_grad` record.
struct Gradient {
    module: u64,
    node: NodeId,
    /// The bad record of the module before it.
    before: Option<NodeId>,
    /// The module's backward record behind it explains it.
    explained: bool,
}

/// Nodes of forward calls by [`Call::key`], the last of each. They are entered at each op and seldom asked for.
#[derive(Default)]
struct Forwards {
    known: FxHashMap<u64, NodeId>,
    entered: Vec<(u64, NodeId)>,
}

impl Forwards {
    fn enter(&mut self, call: &Call, node: NodeId) {
        self.entered.push((call.key(), node));
    }

    fn find(&mut self, call: &Call) -> Option<NodeId> {
        self.known.extend(self.entered.drain(..));
        self.known.get(&call.key()).copied()
    }
}

#[derive(Default, Clone)]
struct Shapes {
    bad_in: Option<(String, Vec<i64>)>,
    bad_out: Option<(String, Vec<i64>)>,
}

fn shape_of(t: &TensorStat) -> (String, Vec<i64>) {
    (t.dtype.to_owned(), t.shape.to_vec())
}

impl<'a> Walk<'a> {
    pub(crate) fn new(bytes: &'a [u8], index: &'a Index, rules: &'a Rules, rank: Rank, chart: Option<Draft>) -> Self {
        let classes = &*index.classes;
        let is_gradient = |c: &Class| *c != Class::Forward;
        let first_backward = classes.iter().position(is_gradient).map(|i| i as u32);
        let last_backward = classes.iter().rposition(is_gradient).map(|i| i as u32);
        let is_module = |e: crate::scan::Entry| {
            let name = e.name(bytes);
            name.starts_with(b"Module.") || name.starts_with(b"Cell.")
        };
        let modules_only =
            !index.entries.is_empty() && (index.level.as_deref() == Some("L0") || index.entries.iter().all(is_module));
        // `data_mode: input`: the first records tell.
        let has_output = |e: crate::scan::Entry| crate::parse::field_text(e.body(bytes), "output").is_some();
        let mut bad = index.entries.notable().filter(|n| n.non_finite).peekable();
        let inputs_only = !index.entries.is_empty()
            && !index.entries.iter().take(LOOKED_AT).any(has_output)
            && bad.peek().is_some()
            && !bad.any(|n| has_output(index.entries.at(n.op as usize)));
        Self {
            bytes,
            index,
            rules,
            classes,
            first_backward,
            last_backward,
            near: Cell::new(0),
            losses: OnceCell::new(),
            modules_only,
            inputs_only,
            rank,
            operators: FxHashMap::default(),
            communications: FxHashMap::default(),
            values: Values::default(),
            graph: Graph::default(),
            forwards: Forwards::default(),
            gradients: Vec::new(),
            waiting: FxHashMap::default(),
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
            for op in self.gradients_of_losses() {
                losses.insert(Call::of(&self.name(op)).key(), losses.is_empty());
            }
            losses
        })
    }

    /// Backward ops that start a run of backwards.
    fn gradients_of_losses(&self) -> impl Iterator<Item = u32> {
        let classes = self.classes;
        self.index.entries.noted().map(|noted| noted.op).filter(move |&op| {
            let before = op.checked_sub(1).map_or(Class::Forward, |before| classes[before as usize]);
            before == Class::Forward && classes[op as usize] == Class::Backward
        })
    }

    fn name(&self, op: u32) -> Cow<'a, str> {
        let index: &'a Index = self.index;
        match index.entries.plain_name(op as usize, &self.near) {
            Some(name) => Cow::Borrowed(name),
            None => unescape(index.entries.at(op as usize).name(self.bytes)),
        }
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
            let op = parser.op(self.index.entries.at(i as usize).body(self.bytes), part).ok();
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
        let index: &'a Index = self.index;
        let mut records = Records::new(self.bytes, index, self.registers);
        if self.registers {
            for i in 0..index.entries.len() as u32 {
                if watch.stopped() {
                    return;
                }
                self.take(i, records.op(i));
            }
            return;
        }
        let (bad, asked) = (index.entries.bad(), index.entries.asked());
        self.graph.nodes.reserve(bad);
        self.values.reserve(bad);
        self.events.reserve(asked);
        let mut plans = Plans::default();
        for op in index.entries.notable() {
            if watch.stopped() {
                return;
            }
            let planned = self.follow(&mut plans, &op) || (self.learn(&mut plans, &op) && self.follow(&mut plans, &op));
            if !planned {
                self.take(op.op, records.op(op.op));
            }
        }
    }

    /// Takes an op that was read by itself.
    fn take(&mut self, i: u32, read: Read<&Op<'a>>) {
        let raw = self.name(i);
        match read {
            Ok(op) if self.index.entries.at(i as usize).asked => self.communicate(i, &Call::of(&raw), op),
            Ok(op) => {
                let call = Call::of(&raw);
                let rules = self.rules_of(&call.name);
                let taken = Taken::of(op, &call.name, &rules);
                self.compute(i, &call, op, &rules, &taken);
            }
            Err(stop) => self.malformed(i, &raw, stop),
        }
    }

    /// Counts the state of an op.
    fn note(&mut self, op: u32, state: OpState, look: impl FnOnce() -> Look) {
        self.counts.add(state);
        self.states[op as usize] = state;
        if let Some(chart) = &mut self.chart {
            chart.note(state, look);
        }
    }

    fn malformed(&mut self, op: u32, name: &str, stop: Stop) {
        self.note(op, OpState::Unknown, Look::default);
        // PERF: the line is found by counting from the start of the file.
        if self.notes.len() >= HEALED_KEPT {
            return;
        }
        let body = self.index.entries.at(op as usize).body_at();
        let (offset, expected) = match stop {
            Stop::End => (self.index.entries.at(op as usize).body(self.bytes).len(), "the rest of the record"),
            Stop::Unexpected { at, expected } => (at, expected),
        };
        let at = Position::find(self.bytes, body + offset);
        self.notes.push(format!("{}:{}: expected {expected} in {name}; the op is left out", at.line, at.column));
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
