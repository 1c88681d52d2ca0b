//! The two sides of a communication record: what the rank gave, what it got.

use smallvec::SmallVec;

use super::call::Call;
use super::compute::tensor;
use super::{CONDITIONS_KEPT, Shapes, Walk, op_has_values, shape_of};
use crate::chart::Look;
use crate::classify::OpState;
use crate::communication::{Communication, Exchange, exchanges};
use crate::graph::{Node, Role};
use crate::op::{Argument, Kinds, Op, OpName, TensorStat};
use crate::provenance;
use crate::provenance::{Link, Meaning, NodeId};
use crate::rules::Flow;
use crate::timeline::{Event, Side};

/// A communication by itself: what it says without a look at other ops.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    /// Its `op` is still to be set.
    communication: Communication,
    given: Option<Side>,
    got: Option<Side>,
    /// What is bad of the sides: places in [`Op::arguments`].
    contributed: SmallVec<[u32; 4]>,
    received: SmallVec<[u32; 4]>,
}

impl<'a> Walk<'a> {
    /// Enters a communication.
    pub(super) fn communicate(&mut self, i: u32, call: &Call, op: &Op<'a>) {
        if let Some(exchanges) = self.prepare(&call.name, op) {
            self.exchange_all(i, op, &exchanges);
        }
    }

    /// What an op exchanges; nothing where it is no communication after all.
    pub(super) fn prepare(&mut self, name: &OpName, op: &Op<'a>) -> Option<Vec<Prepared>> {
        let row = self.communication_row(name)?;
        Some(exchanges(op, 0, name, row).into_iter().map(|exchange| self.prepared(op, exchange)).collect())
    }

    fn prepared(&mut self, op: &Op<'a>, exchange: Exchange) -> Prepared {
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
        let place = |argument: &Argument| op.arguments.iter().position(|a| std::ptr::addr_eq(a, argument));
        let bad = |side: &[(&Argument, &TensorStat)]| {
            let bad = side.iter().filter(|(_, t)| !t.kinds().is_finite());
            bad.filter_map(|(argument, _)| place(argument)).map(|at| at as u32).collect()
        };
        let side = |side: &[(&Argument, &TensorStat)]| (!side.is_empty()).then(|| Side::of(side));
        Prepared {
            given: side(&contributed),
            got: side(&received),
            contributed: bad(&contributed),
            received: bad(&received),
            communication,
        }
    }

    /// Enters what op `i` exchanges.
    pub(super) fn exchange_all(&mut self, i: u32, op: &Op<'a>, exchanges: &[Prepared]) {
        let mut state = match op.register {
            Some(true) if self.registers => self.register(i),
            None if self.registers && !op_has_values(op) => OpState::Unknown,
            _ => OpState::Clean,
        };
        for prepared in exchanges {
            let got = self.exchange(i, op, prepared);
            if got != OpState::Clean {
                state = got;
            }
        }
        self.note(i, state, || Look::of(op, false));
    }

    fn exchange(&mut self, i: u32, op: &Op<'a>, prepared: &Prepared) -> OpState {
        let communication = Communication { op: i, ..prepared.communication.clone() };
        let event = self.events.len() as u32;
        let point_to_point = matches!(communication.flow, Flow::Send | Flow::Recv);
        let unreliable = communication.is_async && point_to_point;
        let given = prepared.given.clone().map(|side| self.give(i, event, op, &prepared.contributed, side));
        let got = prepared.got.clone().map(|side| self.get(i, event, op, &prepared.received, side, unreliable));
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

    fn give(&mut self, i: u32, event: u32, op: &Op<'a>, contributed: &[u32], mut side: Side) -> Side {
        if side.kinds.is_finite() {
            return side;
        }
        let mut sources: Vec<(Link, NodeId, u32)> = Vec::new();
        let mut outside: Vec<(&TensorStat, String)> = Vec::new();
        for &at in contributed {
            let Some(t) = tensor(op, at) else { continue };
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
                _ => outside.push((t, op.arguments[at as usize].slot.to_string())),
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
            self.values.enter(t, provenance::Entry::real(id));
            self.given.push((event, id));
        }
        side
    }

    fn get(&mut self, i: u32, event: u32, op: &Op<'a>, received: &[u32], mut side: Side, unreliable: bool) -> Side {
        if side.kinds.is_finite() {
            return side;
        }
        // A delivered lone -inf is taken for a mask until the sender's side says otherwise (rule 1).
        side.real = side.kinds != Kinds::NEG_INF;
        let mut node = Node::new(i, side.kinds, Role::Received(event), side.real);
        if !side.real {
            node.conditions = [event].into();
        }
        let id = self.graph.add(node);
        let meaning = if side.real { Meaning::Real } else { Meaning::Intended };
        for t in received.iter().filter_map(|&at| tensor(op, at)) {
            let entry = provenance::Entry { meaning, near: !unreliable, ..provenance::Entry::real(id) };
            self.values.enter(t, provenance::Entry { from_communication: true, ..entry });
        }
        self.got.push((event, id));
        side
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
