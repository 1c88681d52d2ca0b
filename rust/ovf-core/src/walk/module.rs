//! Module records: what inside a module made its output bad.

use super::Walk;
use super::compute::Inside;
use crate::graph::{Graph, Role};
use crate::op::{Direction, OpName, TensorStat};
use crate::provenance::{Link, Meaning, NodeId};

impl Walk<'_> {
    /// What inside module record `i` made its output bad. In dumps of modules alone, a bad value first read by a
    /// child was computed by the innermost module whose own input was finite (rule 5): the child is then a
    /// consequence of this record.
    pub(super) fn inside_module(&mut self, i: u32, name: &OpName, bad_outputs: &[&TensorStat]) -> Inside {
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
}

/// Whether module `inner` lies below module `outer` by its path.
fn is_inside(inner: &OpName, outer: &OpName) -> bool {
    outer.module_path.is_empty()
        || inner.module_path.strip_prefix(outer.module_path).is_some_and(|rest| rest.starts_with('.'))
}
