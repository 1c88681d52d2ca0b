//! An op that computes something: what it read, what that makes of it, and what others may read of it.

use smallvec::SmallVec;

use super::call::Call;
use super::{CONDITIONS_KEPT, Gradient, Shapes, Walk, op_has_values, recorded, shape_of};
use crate::chart::Look;
use crate::classify::{Evidence, Judgement, OpState, judge};
use crate::graph::{Node, Role};
use crate::op::{Direction, Field, Kinds, Op, OpName, TensorStat, Value};
use crate::provenance;
use crate::provenance::{Link, Meaning, NodeId};
use crate::rules::{Is, OperatorRules};

/// A bad input: its place in [`Op::arguments`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    at: u32,
    /// Whether it is a weight.
    is_parameter: bool,
}

/// What an op took and gave, by itself: no other op is looked at.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    /// All but what depends on where inputs came from.
    evidence: Evidence,
    inputs: SmallVec<[Input; 8]>,
    /// Bad outputs.
    outputs: SmallVec<[u32; 8]>,
    /// What is written without being read.
    overwritten: SmallVec<[u32; 2]>,
    kinds_in: Kinds,
    /// Whether all bad outputs are single numbers (or there is none), and whether some is.
    is_scalar: bool,
    has_scalar: bool,
}

impl Taken {
    pub(super) fn of(op: &Op, name: &OpName, rules: &OperatorRules) -> Self {
        let recorded = recorded(name);
        let mut taken = Self {
            evidence: Evidence {
                uninitialised: rules.says(Is::Uninitialised),
                creates: rules.says(Is::Creates),
                carries: rules.says(Is::Carries),
                flips_sign: rules.says(Is::FlipsSign),
                ..Evidence::default()
            },
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
            overwritten: SmallVec::new(),
            kinds_in: Kinds::NONE,
            is_scalar: true,
            has_scalar: false,
        };
        let evidence = &mut taken.evidence;
        for (at, argument) in op.arguments.iter().enumerate() {
            let slot = &argument.slot;
            let at = at as u32;
            let is_output = slot.field == Field::Output || (recorded && slot.field == Field::Recorded);
            match &argument.value {
                Value::Tensor(t) if is_output => {
                    evidence.has_output |= t.has_statistics() && t.is_floating();
                    if !t.kinds().is_finite() {
                        evidence.out = evidence.out.union(t.kinds());
                        taken.outputs.push(at);
                        let is_one = t.numel() == 1;
                        taken.is_scalar &= is_one;
                        taken.has_scalar |= is_one;
                    }
                }
                Value::Tensor(t) if slot.field.is_input() && !t.kinds().is_finite() => {
                    if rules.names(Is::Overwrites, argument) {
                        taken.overwritten.push(at);
                    } else {
                        let is_parameter = slot.field == Field::Parameters || rules.names(Is::Parameters, argument);
                        taken.inputs.push(Input { at, is_parameter });
                        taken.kinds_in = taken.kinds_in.union(t.kinds());
                    }
                }
                Value::Number(n) if slot.field.is_input() => {
                    evidence.intended = evidence.intended.union(Kinds::of(*n));
                }
                _ => {}
            }
        }
        taken
    }
}

pub(super) fn tensor<'o, 'a>(op: &'o Op<'a>, at: u32) -> Option<&'o TensorStat<'a>> {
    match &op.arguments.get(at as usize)?.value {
        Value::Tensor(t) => Some(t),
        _ => None,
    }
}

/// What stands inside a module whose input was finite and whose output was not.
#[derive(Debug, Clone, Copy)]
pub(super) enum Inside {
    /// Nothing bad: the module itself is the origin.
    Clean { has_children: bool },
    /// This node's value came out.
    From(NodeId),
    /// This child read a value that the module's own code computed.
    Adopts(NodeId),
    /// An intended value came out.
    Mask,
}

impl<'a> Walk<'a> {
    /// Enters an op that computes something; `taken` is [`Taken::of`] it.
    pub(super) fn compute(&mut self, i: u32, call: &Call, op: &Op<'a>, rules: &OperatorRules, taken: &Taken) {
        for &at in &taken.overwritten {
            if let Some(t) = tensor(op, at) {
                self.values.overwrite(t);
            }
        }
        if !taken.inputs.is_empty() || !taken.outputs.is_empty() {
            self.compute_bad(i, call, op, rules, taken);
            return;
        }
        let state = if self.registers && op.register == Some(true) && !taken.evidence.has_output {
            self.register(i)
        } else if self.registers && op.register.is_none() && !op_has_values(op) {
            OpState::Unknown
        } else {
            OpState::Clean
        };
        self.note(i, state, Look::default);
    }

    fn compute_bad(&mut self, i: u32, call: &Call, op: &Op<'a>, rules: &OperatorRules, taken: &Taken) {
        let name = &call.name;
        let mut evidence = taken.evidence;
        let bad_outputs: SmallVec<[&TensorStat; 8]> = taken.outputs.iter().filter_map(|&at| tensor(op, at)).collect();
        let bad_outputs = &*bad_outputs;
        let is_gradient = name.direction == Direction::Backward;
        let mut real: SmallVec<[(Link, NodeId, u32); 8]> = SmallVec::new();
        let mut masks: SmallVec<[NodeId; 8]> = SmallVec::new();
        let mut conditions: Vec<u32> = Vec::new();
        let mut outside: Vec<(&TensorStat, String, bool, Meaning)> = Vec::new();
        let mut read: SmallVec<[(u32, Link); 8]> = SmallVec::new();
        for &Input { at, is_parameter } in &taken.inputs {
            let Some(t) = tensor(op, at) else {
                continue;
            };
            let slot = || op.arguments[at as usize].slot.to_string();
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
                        for &c in &*self.graph.node(seen.node).conditions {
                            if !conditions.contains(&c) && conditions.len() < CONDITIONS_KEPT {
                                conditions.push(c);
                            }
                        }
                    }
                    Meaning::Garbage => {
                        evidence.garbage = true;
                        outside.push((t, slot(), false, Meaning::Garbage));
                    }
                }
            } else if t.kinds() == Kinds::NEG_INF && !is_parameter && name.direction == Direction::Forward {
                // Rule 5, first limit: a lone -inf of unrecorded origin looks like a mask.
                evidence.intended = evidence.intended.union(t.kinds());
                outside.push((t, slot(), false, Meaning::Intended));
            } else {
                evidence.unexplained = true;
                outside.push((t, slot(), is_parameter, Meaning::Real));
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
                self.forwards.find(call).map_or(Role::Origin, Role::Linked)
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
        let leads_on = is_real || role != Role::Plain || !bad_outputs.is_empty();
        if !leads_on && real.is_empty() && outside.is_empty() {
            // PERF: it read a mask and gave out finite numbers (a softmax). Nobody asks for it again: no node.
            self.note_read(i, &masks, judgement, &read);
            self.note(i, state_of(judgement), || Look::of(op, recorded(name)));
            return;
        }
        let kinds = if evidence.out.is_finite() { taken.kinds_in } else { evidence.out };
        let id = self.graph.add(Node::new(i, kinds, role, is_real));
        self.graph.node_mut(id).conditions = conditions.into();
        self.graph.node_mut(id).harm = unseen && !rules.says(Is::WritesUnseen);
        self.graph.node_mut(id).scalar = taken.is_scalar && !bad_outputs.is_empty();
        self.connect(id, &mut real, judgement);
        self.note_read(i, &masks, judgement, &read);
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
            self.values.enter(t, provenance::Entry { meaning: *meaning, near, ..provenance::Entry::real(id) });
        }
        let meaning = match judgement {
            Judgement::Intended => Meaning::Intended,
            Judgement::Garbage => Meaning::Garbage,
            _ => Meaning::Real,
        };
        let near = meaning == Meaning::Real && !(judgement == Judgement::Unexplained && evidence.carries);
        for t in bad_outputs {
            let of_weight = name.direction == Direction::ParametersGrad;
            self.values.enter(t, provenance::Entry { meaning, near, of_weight, ..provenance::Entry::real(id) });
        }
        if name.direction == Direction::Forward && (is_real || evidence.real || evidence.unexplained) {
            self.forwards.enter(call, id);
        }
        if rules.says(Is::WritesUnseen) && (evidence.real || evidence.unexplained) {
            self.write_unseen(op, rules, id);
        }
        if judgement == Judgement::Intended && masks.is_empty() {
            return; // made, not computed
        }
        self.seed(i, call, rules, id, judgement, taken);
    }

    /// Links a node to what it read from overflows, and marks as absorbed what it healed.
    fn connect(&mut self, id: NodeId, real: &mut [(Link, NodeId, u32)], judgement: Judgement) {
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
    }

    /// Notes that op `op` read masks, and which values it healed.
    fn note_read(&mut self, op: u32, masks: &[NodeId], judgement: Judgement, read: &[(u32, Link)]) {
        if judgement == Judgement::Absorbed {
            for &(value, link) in read {
                if link != Link::Near {
                    self.values.absorb(value);
                }
            }
        }
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
                self.values.enter(&written, provenance::Entry::real(id));
            }
        }
    }

    /// Seeds of harm (rule 6).
    fn seed(&mut self, i: u32, call: &Call, rules: &OperatorRules, id: NodeId, judgement: Judgement, taken: &Taken) {
        let (name, module, out) = (&call.name, call.base_key, taken.evidence.out);
        if name.direction == Direction::ParametersGrad {
            let before = self.backwards.get(&module).or_else(|| self.module_forwards.get(&module)).copied();
            self.waiting.entry(module).or_default().push(self.gradients.len() as u32);
            self.gradients.push(Gradient { module, node: id, before, explained: false });
            self.graph.node_mut(id).harm = true;
            return;
        }
        if name.is_module() && (self.graph.node(id).real || self.graph.node(id).role == Role::Unexplained) {
            if name.direction == Direction::Backward {
                self.backwards.insert(module, id);
                let (graph, gradients) = (&mut self.graph, &mut self.gradients);
                if let Some(waiting) = self.waiting.get_mut(&module) {
                    waiting.retain(|at| {
                        let gradient = &mut gradients[*at as usize];
                        gradient.explained = graph.adopt(id, gradient.node);
                        !gradient.explained
                    });
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
            && self.losses().get(&call.key()).is_some_and(|&first| first || taken.is_scalar);
        let ends_a_segment = self.is_last_of_forward(i);
        if judgement == Judgement::Intended {
            if (is_loss || ends_a_segment) && taken.has_scalar {
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
