//! The end of the walk: roots, terminals and trails of the graph, and how the file ended, as a [`Timeline`].

use rustc_hash::{FxHashMap, FxHashSet};

use super::call::{Call, api_key};
use super::{Gradient, HEALED_KEPT, MARKS_KEPT, Walk};
use crate::classify::OpState;
use crate::communication::exchanges;
use crate::error::Position;
use crate::graph::{Node, Role, Trails};
use crate::op::{Field, OpName, Rank, TensorStat, Value};
use crate::parse::{Numbers, Parser, Part, parse_op};
use crate::provenance;
use crate::provenance::NodeId;
use crate::rules::Is;
use crate::scan::{Class, Ending};
use crate::timeline::{
    Cause, Completeness, Counts, Event, Mark, Names, OpRef, Phase, Problem, Symptom, TIMELINE_VERSION, Terminal,
    Timeline, Trail,
};

/// Roots of a rank whose inputs' makers are looked up, and how many ops before them.
const MAKERS_FOR: usize = 8;
const MAKERS_WITHIN: u32 = 64;
/// Roots of each sort (own, received) whose ops before are kept: enough for the first finding and those beside it.
const ROOTS_WITH_BEFORE: u32 = 3;
/// Ops kept before such a root: what fits beside an answer.
const OPS_BEFORE: u32 = 12;

impl Walk<'_> {
    pub(crate) fn finish(&mut self, rank: Rank, label: &str) -> Timeline {
        self.settle_gradients();
        for id in std::mem::take(&mut self.intended_terminal) {
            let op = self.graph.node(id).op;
            self.restate(op, OpState::Origin);
            let node = self.graph.node_mut(id);
            node.role = Role::Promoted;
            node.real = true;
            node.harm = true;
        }
        self.seed_unread_gradients();
        self.graph.resolve();
        self.restate_explained();
        let roots = self.graph.roots();
        let (marks, mark_of, omitted) = self.marks(&roots);
        let mark_at = |node: NodeId| mark_of.get(&roots[node as usize]).copied();
        let mut trails = self.graph.trails();
        for &(event, node) in &self.given {
            let trail = trail_of(&mut trails, node);
            if let Some(side) = &mut self.events[event as usize].given {
                let way = side.way.get_or_insert_default();
                (way.mark, way.trail) = (mark_at(node), trail);
            }
        }
        for &(event, node) in &self.got {
            let read = self.graph.node(node).first_reader;
            let entry = &mut self.events[event as usize];
            entry.visible_at = entry.communication.is_async.then_some(read).flatten();
            if let Some(side) = &mut entry.got {
                side.way.get_or_insert_default().mark = mark_at(node);
                side.read = read.is_some();
            }
        }
        let terminals = self.terminals(&mut trails, &mark_at);
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
            self.states.fill(OpState::Unknown);
        }
        if self.index.duplicates > 0 {
            self.notes.push(format!("{} op names stand twice; the last record of each counts", self.index.duplicates));
        }
        let chart = self.chart.take().map(|draft| {
            let mut chart = draft.finish(&self.states, self.has_statistics);
            chart.take_names((0..total).map(|op| (self.name(op), self.phase(op))));
            chart
        });
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
            names: self.names(&terminals),
            events: std::mem::take(&mut self.events),
            marks,
            marks_omitted: omitted,
            masks: self.masks,
            terminals,
            bad_shapes,
            near: Vec::new(),
            levels: None,
            trend: None,
            strip: None,
            chart,
        }
    }

    /// Whatever looked like an origin when it was met, and what came behind it explains.
    fn restate_explained(&mut self) {
        for id in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[id];
            if node.role == Role::Plain && node.primary().is_some() && self.states[node.op as usize] == OpState::Origin
            {
                self.restate(node.op, OpState::Propagated);
            }
        }
    }

    /// Changes the state of an op.
    fn restate(&mut self, op: u32, state: OpState) {
        self.counts.take(self.states[op as usize]);
        self.counts.add(state);
        self.states[op as usize] = state;
    }

    /// Weight gradients whose module's backward did not follow: the consequence of an earlier record of the module,
    /// or, when that backward is in the dump and clean, the first bad thing themselves.
    fn settle_gradients(&mut self) {
        let mut open = std::mem::take(&mut self.gradients);
        open.retain(|gradient| !gradient.explained);
        // PERF: a look at all names, so only where one of these has no record before it.
        let recorded = if open.iter().any(|gradient| gradient.before.is_none()) {
            self.recorded_backwards()
        } else {
            FxHashSet::default()
        };
        let is_earlier = |n: &Node| n.real && self.classes[n.op as usize] == Class::Backward;
        let earlier: Vec<NodeId> =
            (0..).zip(&self.graph.nodes).filter(|(_, n)| is_earlier(n)).map(|(id, _)| id).collect();
        for Gradient { module, node: id, before, .. } in open {
            let op = self.graph.node(id).op;
            // Nodes stand in file order.
            let until = earlier.partition_point(|&earlier| earlier < id);
            let earlier = || earlier[..until].iter().rfind(|&&n| self.graph.node(n).op < op).copied();
            let parent = before.or_else(|| if recorded.contains(&module) { None } else { earlier() });
            if !parent.is_some_and(|parent| self.graph.adopt(parent, id)) {
                self.graph.node_mut(id).role = Role::Parameter;
            }
        }
    }

    /// Bases of the calls whose backward is in the dump.
    fn recorded_backwards(&self) -> FxHashSet<u64> {
        let backwards = self.classes.iter().zip(0..).filter(|(class, _)| **class == Class::Backward);
        backwards.map(|(_, op)| Call::of(&self.name(op)).base_key).collect()
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

    pub(crate) fn phase(&self, op: u32) -> Phase {
        if self.classes[op as usize] != Class::Forward {
            Phase::Backward
        } else if self.last_backward.is_some_and(|last| op > last) {
            Phase::Optimizer
        } else {
            Phase::Forward
        }
    }

    /// The names of the ops that events and trails name by number.
    fn names(&self, terminals: &[Terminal]) -> Names {
        let given = self.events.iter().filter_map(|e| e.given.as_ref());
        let trails =
            given.filter_map(|side| side.way.as_ref()).map(|way| &way.trail).chain(terminals.iter().map(|t| &t.trail));
        let mut ops: Vec<u32> = trails.flat_map(|t| t.head().iter().chain(t.tail())).copied().collect();
        ops.extend(self.events.iter().map(|e| e.communication.op));
        Names::of(ops, |op| self.name(op))
    }

    /// The roots worth keeping, and where each stands in the list.
    fn marks(&self, roots: &[NodeId]) -> (Vec<Mark>, FxHashMap<NodeId, u32>, u32) {
        let mut reach = vec![0u32; roots.len()];
        for (id, &root) in roots.iter().enumerate() {
            reach[root as usize] += u32::from(self.graph.nodes[id].real || id as NodeId == root);
        }
        let (mut harmful, mut healed, mut omitted) = (0, 0, 0);
        let (mut own, mut got) = (0, 0);
        let mut marks = Vec::new();
        let mut mark_of = FxHashMap::default();
        for (id, node) in self.graph.nodes.iter().enumerate() {
            let id = id as NodeId;
            if node.role == Role::Plain || node.primary().is_some() {
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
            let counted = if received { &mut got } else { &mut own };
            *counted += u32::from(received || node.harm);
            let before = if (received || node.harm) && *counted <= ROOTS_WITH_BEFORE {
                self.before(node.op)
            } else {
                Vec::new()
            };
            let shapes = self.shapes.get(&id).cloned().unwrap_or_default();
            marks.push(Mark {
                at: self.op_ref(node.op),
                cause: self.cause(id, node),
                kinds: node.kinds,
                phase: self.phase(node.op),
                harm: node.harm,
                container: self.containers.contains(&id),
                reach: reach[id as usize].max(1),
                recompute: self.recompute.contains(&id),
                one_sided: self.one_sided.contains(&id),
                conditions: if node.role == Role::Promoted { node.conditions.to_vec() } else { Vec::new() },
                event: match node.role {
                    Role::Received(event) => Some(event),
                    _ => None,
                },
                first_reader: node.first_reader,
                slot: self.slots.get(&id).cloned(),
                bad_in: shapes.bad_in.map(Box::new),
                bad_out: shapes.bad_out.map(Box::new),
                makers: if node.harm && !received && harmful <= MAKERS_FOR { self.makers(node.op) } else { Vec::new() },
                record: self.record(node.op),
                before,
            });
        }
        (marks, mark_of, omitted)
    }

    /// Slot and maker of an op's inputs: the last op before it that gave out a value of the same dtype, shape and
    /// statistics.
    fn makers(&self, op: u32) -> Vec<(String, String)> {
        let read = |i: u32| parse_op(self.index.entries.at(i as usize).body(self.bytes), Part::ALL);
        let Ok(reader) = read(op) else { return Vec::new() };
        let mut open: Vec<(String, &TensorStat)> = Vec::new();
        for argument in reader.arguments.iter().filter(|a| a.slot.field.is_input()) {
            if let Value::Tensor(t) = &argument.value
                && t.has_statistics()
                && t.is_floating()
            {
                open.push((argument.slot.to_string(), t));
            }
        }
        let mut found = Vec::new();
        for i in (op.saturating_sub(MAKERS_WITHIN)..op).rev() {
            if open.is_empty() {
                break;
            }
            let Ok(earlier) = read(i) else { continue };
            for argument in earlier.arguments.iter().filter(|a| a.slot.field == Field::Output) {
                let Value::Tensor(made) = &argument.value else { continue };
                open.retain(|(slot, t)| {
                    let same = provenance::same(made, t);
                    if same {
                        found.push((slot.clone(), self.name(i).into_owned()));
                    }
                    !same
                });
            }
        }
        found.sort();
        found
    }

    fn record(&self, op: u32) -> (u64, u64) {
        let entry = self.index.entries.at(op as usize);
        (entry.body_at() as u64, entry.body(self.bytes).len() as u64)
    }

    /// The ops before one, in file order.
    fn before(&self, op: u32) -> Vec<(OpRef, (u64, u64))> {
        (op.saturating_sub(OPS_BEFORE)..op).map(|at| (self.op_ref(at), self.record(at))).collect()
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
        let mut parser = Parser::new(Numbers::All);
        (0..before as usize).rev().any(|i| {
            if gradient && self.classes[i] != Class::Backward {
                return false;
            }
            let Ok(op) = parser.op(self.index.entries.at(i).body(self.bytes), Part::ALL) else { return false };
            op.arguments.iter().any(|a| {
                a.slot.field == Field::Output
                    && matches!(&a.value, Value::Tensor(t) if t.dtype == shape.0 && t.shape.as_slice() == shape.1 && t.has_statistics())
            })
        })
    }

    fn terminals(&self, trails: &mut Trails, mark_at: &dyn Fn(NodeId) -> Option<u32>) -> Vec<Terminal> {
        let mut found: Vec<Terminal> = Vec::new();
        let mut push = |symptom: Symptom, id: NodeId| {
            if let Some(mark) = mark_at(id) {
                found.push(Terminal {
                    symptom,
                    at: self.op_ref(self.graph.node(id).op),
                    mark,
                    trail: trail_of(trails, id),
                });
            }
        };
        let mut norms: FxHashMap<u64, bool> = FxHashMap::default();
        let mut is_norm =
            |name: &OpName| *norms.entry(api_key(name)).or_insert_with(|| self.rules.operator(name).says(Is::Norm));
        let mut first: [Option<NodeId>; 5] = [None; 5];
        let mut last = None;
        for (id, node) in self.graph.nodes.iter().enumerate() {
            if !node.real || !node.harm {
                continue;
            }
            let id = id as NodeId;
            last = Some(id);
            let phase = self.phase(node.op);
            let done = match phase {
                Phase::Forward => first[0].is_some() && first[3].is_some(),
                Phase::Optimizer => first[1].is_some() && first[2].is_some(),
                Phase::Backward => first[4].is_some(),
            };
            // PERF: the name last, nodes may be all ops of a file.
            let is_last = phase == Phase::Forward && self.is_last_of_forward(node.op);
            if done || (phase == Phase::Forward && !is_last && !node.scalar) {
                continue;
            }
            let raw = self.name(node.op);
            let call = Call::of(&raw);
            let name = call.name;
            if self.rules.is_communication(&name) {
                continue;
            }
            let place = match phase {
                Phase::Forward if node.scalar && self.losses().contains_key(&call.key()) => 0,
                Phase::Optimizer if is_norm(&name) => 1,
                Phase::Optimizer if name.is_in_place() => 2,
                Phase::Forward if is_last => 3,
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
        let mut parser = Parser::new(Numbers::All);
        let mut waiting: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
        let (mut at, mut next) = (0, 0);
        while next <= until {
            if waiting.is_empty() {
                let starts = |e: &Event| e.communication.is_async && e.visible_at.is_none();
                let Some(event) = self.events[at..].iter().position(starts) else { break };
                at += event;
                next = self.events[at].communication.op;
                if next > until {
                    break;
                }
            }
            let i = next;
            next += 1;
            at += self.events[at..].iter().take_while(|e| e.communication.op < i).count();
            let Ok(op) = parser.op(self.index.entries.at(i as usize).body(self.bytes), Part::ALL) else {
                at += self.events[at..].iter().take_while(|e| e.communication.op == i).count();
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
                        let all = exchanges(op, i, &name, row);
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

fn trail_of(trails: &mut Trails, node: NodeId) -> Trail {
    let (head, omitted, tail) = trails.of(node);
    Trail::new(head, omitted, &tail)
}

/// A byte as a message shows it.
fn byte_name(byte: u8) -> String {
    if byte.is_ascii_graphic() { format!("'{}'", byte as char) } else { format!("byte 0x{byte:02x}") }
}
