//! The two sides of a communication record: what the rank gave, what it got.

use super::{CONDITIONS_KEPT, Shapes, Walk, op_has_values, shape_of};
use crate::chart::Look;
use crate::classify::OpState;
use crate::communication::{Exchange, exchanges};
use crate::graph::{Node, Role};
use crate::op::{Argument, Kinds, Op, OpName, TensorStat};
use crate::provenance;
use crate::provenance::{Link, Meaning, NodeId};
use crate::rules::Flow;
use crate::timeline::{Event, Side};

impl<'a> Walk<'a> {
    /// Enters a communication; with the `form` of a finite one, others like it will [`Walk::repeat`] it.
    pub(super) fn communicate(&mut self, i: u32, name: &OpName, op: &Op<'a>, form: Option<u32>) {
        let Some(row) = self.communication_row(name) else {
            return;
        };
        let mut state = match op.register {
            Some(true) if self.registers => self.register(i),
            None if self.registers && !op_has_values(op) => OpState::Unknown,
            _ => OpState::Clean,
        };
        let before = self.events.len();
        for exchange in exchanges(op, i, name, row) {
            let got = self.exchange(i, exchange);
            if got != OpState::Clean {
                state = got;
            }
        }
        self.note(i, state, || Look::of(op, false));
        if let Some(form) = form {
            let name = self.raw_name(i);
            self.repeats.learn(form, name, &self.events[before..]);
        }
    }

    /// Whether the finite communication `i` is like one that was met before; its events are entered then.
    pub(super) fn repeat(&mut self, i: u32, form: u32) -> bool {
        let name = self.raw_name(i);
        let Some(events) = self.repeats.find(form, name) else {
            return false;
        };
        let first = self.events.len();
        self.events.extend(events.iter().cloned().map(|mut event| {
            event.communication.op = i;
            event
        }));
        for event in first..self.events.len() {
            self.supersede(event);
        }
        self.note(i, OpState::Clean, Look::default);
        true
    }

    fn exchange(&mut self, i: u32, exchange: Exchange) -> OpState {
        let Exchange { mut communication, group, mut contributed, mut received } = exchange;
        // Of a rooted collective only the root gives (or gets); what others pass is a buffer, or nothing.
        let is_root = communication.root == Some(self.rank);
        match communication.flow {
            Flow::FromRoot if is_root => received.clear(),
            Flow::FromRoot => contributed.clear(),
            Flow::ToRoot if !is_root => received.clear(),
            _ => {}
        }
        let known = self.groups.iter().position(|g| *g == group);
        communication.group = known.unwrap_or(self.groups.len()) as u32;
        if known.is_none() {
            self.groups.push(group);
        }
        let event = self.events.len() as u32;
        let point_to_point = matches!(communication.flow, Flow::Send | Flow::Recv);
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
        self.supersede(event as usize);
        state
    }

    /// A batched call may be followed by records of the calls made inside it.
    fn supersede(&mut self, event: usize) {
        let (before, after) = self.events.split_at_mut(event);
        let Some(inner) = after.first().map(|e| &e.communication) else {
            return;
        };
        if inner.batched || !matches!(&*inner.api, "isend" | "irecv") {
            return;
        }
        let mut next = inner.op;
        for event in before.iter_mut().rev() {
            let outer = &mut event.communication;
            if outer.op + 1 < next || !matches!(&*outer.api, "isend" | "irecv") {
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
                    let conditions = self.graph.node(node).conditions.iter().take(CONDITIONS_KEPT);
                    side.way.get_or_insert_default().conditions.extend(conditions);
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
}

impl Side {
    fn of(tensors: &[(&Argument, &TensorStat)]) -> Self {
        Self {
            judged: tensors.iter().any(|(_, t)| t.has_statistics() || !t.is_floating()),
            kinds: tensors.iter().fold(Kinds::NONE, |k, (_, t)| k.union(t.kinds())),
            real: false,
            read: false,
            way: None,
        }
    }
}
