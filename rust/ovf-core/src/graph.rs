//! One rank's graph of non-finite ops: who fed whom, which roots do harm, how far each reaches.
//!
//! Nodes are ops that take in or give out something non-finite, in file order; an edge says that a value of the
//! parent is read by the child (by [`crate::provenance`]). A *root* has no parent on this rank: an origin, the first
//! reader of an outside value, or a communication that delivered the value.
//!
//! A root does *harm* (rule 6) when some descendant is a seed of harm: it is communicated, is a gradient nobody
//! absorbs, the loss, the gradient norm, a state written after the last backward, or the last value of the file.
//! Everything else ends on the rank and is *healed*.

use std::cell::RefCell;

use smallvec::{SmallVec, smallvec};

use crate::op::Kinds;
use crate::provenance::NodeId;

/// Longest trail that is kept whole: beyond it the middle is counted, not listed.
const TRAIL_END: usize = 6;

/// Why a node is a root, or that it is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Has parents, or means nothing.
    Plain,
    /// Finite in, bad out.
    Origin,
    /// Only intended in, another kind out.
    Promoted,
    /// First reader of a weight that was bad before.
    Parameter,
    /// First reader of a value nobody produced.
    Unexplained,
    /// Finite gradients in, bad gradients out, and the forward call of that node met something bad: whose fault it
    /// is depends on whether the forward value was healed. Resolved by [`Graph::resolve`].
    Linked(NodeId),
    /// Delivered by the communication of that index.
    Received(u32),
    /// The overflow register was set.
    Register,
}

/// One op of the graph.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) op: u32,
    /// Kinds in the outputs; for absorbing ops in the inputs.
    pub(crate) kinds: Kinds,
    pub(crate) role: Role,
    /// Whether the outputs are bad and mean something.
    pub(crate) real: bool,
    /// The first is the one a reader would follow: closest link, then most recent.
    pub(crate) parents: SmallVec<[NodeId; 4]>,
    /// Communications whose delivered `-inf` this node takes for a mask.
    pub(crate) conditions: Box<[u32]>,
    /// Seed of harm, later: does harm.
    pub(crate) harm: bool,
    /// A child carries the value on.
    pub(crate) carried: bool,
    /// A child absorbed the value.
    pub(crate) absorbed: bool,
    /// All bad outputs are single numbers.
    pub(crate) scalar: bool,
    /// First op that read the value.
    pub(crate) first_reader: Option<u32>,
}

impl Node {
    pub(crate) fn new(op: u32, kinds: Kinds, role: Role, real: bool) -> Self {
        Self {
            op,
            kinds,
            role,
            real,
            parents: SmallVec::new(),
            conditions: Box::default(),
            harm: false,
            carried: false,
            absorbed: false,
            scalar: false,
            first_reader: None,
        }
    }

    pub(crate) fn primary(&self) -> Option<NodeId> {
        self.parents.first().copied()
    }
}

/// The graph of one rank.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// For each node one that stands on its way to the root, else itself: ways that were gone once are not gone again.
    above: RefCell<Vec<NodeId>>,
}

impl Graph {
    pub(crate) fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() as NodeId - 1
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id as usize]
    }

    /// Notes that `child`'s op reads a value of `parent`.
    pub(crate) fn link(&mut self, parent: NodeId, child: NodeId) {
        if parent == child {
            return;
        }
        let op = self.node(child).op;
        let carries = self.node(child).real;
        let entry = self.node_mut(parent);
        entry.first_reader.get_or_insert(op);
        entry.carried |= carries;
        let node = self.node_mut(child);
        if !node.parents.contains(&parent) {
            node.parents.push(parent);
        }
    }

    /// Makes `parent` the cause of the former root `child`; false where `parent` itself comes from `child`.
    pub(crate) fn adopt(&mut self, parent: NodeId, child: NodeId) -> bool {
        if self.root(parent) == self.root(child) {
            return false;
        }
        if self.node(child).primary().is_some() {
            self.above.borrow_mut().clear();
        }
        let node = self.node_mut(child);
        node.role = Role::Plain;
        node.parents = smallvec![parent];
        self.node_mut(parent).carried = true;
        true
    }

    /// The root a node's primary parents lead to (itself, when it has none).
    pub(crate) fn root(&self, id: NodeId) -> NodeId {
        let mut above = self.above.borrow_mut();
        let known = above.len() as NodeId;
        above.extend(known..self.nodes.len() as NodeId);
        let mut root = id;
        // Adoption can point forward, never in a circle; the bound only guards against a mistake here.
        for _ in 0..=self.nodes.len() {
            let next = above[root as usize];
            let next = if next == root { self.node(root).primary().unwrap_or(root) } else { next };
            if next == root {
                break;
            }
            above[root as usize] = next;
            root = next;
        }
        let mut at = id;
        while at != root {
            at = std::mem::replace(&mut above[at as usize], root);
        }
        root
    }

    /// Spreads harm from the seeds to their ancestors.
    fn spread_harm(&mut self) {
        loop {
            let mut changed = false;
            for id in (0..self.nodes.len()).rev() {
                if !self.nodes[id].harm || matches!(self.nodes[id].role, Role::Linked(_)) {
                    continue;
                }
                for k in 0..self.nodes[id].parents.len() {
                    let parent = self.nodes[id].parents[k] as usize;
                    // Those before it are still to come in this pass; only an adopted child stands before its parent.
                    changed |= parent > id && !self.nodes[parent].harm;
                    self.nodes[parent].harm = true;
                }
            }
            if !changed {
                return;
            }
        }
    }

    /// Decides linked nodes and spreads harm. A gradient that turned bad although the incoming one was finite is the
    /// forward's doing when the forward's own bad value does harm (rule 4), and an origin of its own when the
    /// forward value was healed (the "where trick").
    pub(crate) fn resolve(&mut self) {
        self.spread_harm();
        for id in 0..self.nodes.len() {
            let Role::Linked(forward) = self.nodes[id].role else {
                continue;
            };
            let root = self.root(forward);
            if root as usize != id && (self.node(forward).harm || self.node(root).harm) {
                self.nodes[id].role = Role::Plain;
                self.link(forward, id as NodeId);
            } else {
                self.nodes[id].role = Role::Origin;
            }
        }
        self.spread_harm();
    }

    /// Roots of all nodes, by node.
    pub(crate) fn roots(&self) -> Vec<NodeId> {
        (0..self.nodes.len() as NodeId).map(|id| self.root(id)).collect()
    }

    /// The trails of nodes: how far each is from its root is worked out once, so that not all of a way is walked again.
    pub(crate) fn trails(&self) -> Trails<'_> {
        Trails { graph: self, depths: vec![None; self.nodes.len()], chain: Vec::new() }
    }
}

/// Where a node stands on the way from its root.
#[derive(Debug, Clone, Copy)]
struct Depth {
    /// Ops from the root down to the node, both included.
    ops: u32,
    /// The last node of the first [`TRAIL_END`] ops of that way.
    sixth: NodeId,
}

/// The trails of all nodes.
#[derive(Debug)]
pub(crate) struct Trails<'g> {
    graph: &'g Graph,
    /// Of the nodes that were asked for, and those above them.
    depths: Vec<Option<Depth>>,
    chain: Vec<NodeId>,
}

impl Trails<'_> {
    fn depth(&mut self, id: NodeId) -> Depth {
        let (graph, mut at) = (self.graph, id);
        self.chain.clear();
        let mut depth = loop {
            if let Some(depth) = self.depths[at as usize] {
                break depth;
            }
            match graph.node(at).primary() {
                Some(parent) if self.chain.len() < graph.nodes.len() => {
                    self.chain.push(at);
                    at = parent;
                }
                _ => {
                    let depth = Depth { ops: 1, sixth: at };
                    self.depths[at as usize] = Some(depth);
                    break depth;
                }
            }
        };
        for &node in self.chain.iter().rev() {
            if graph.node(node).op != graph.node(at).op {
                depth.ops += 1;
                if depth.ops as usize <= TRAIL_END {
                    depth.sixth = node;
                }
            }
            self.depths[node as usize] = Some(depth);
            at = node;
        }
        depth
    }

    /// Ops from a node's root down to it, both included: the ends, and how many stand between them.
    pub(crate) fn of(&mut self, id: NodeId) -> (Vec<u32>, u32, Vec<u32>) {
        let Depth { ops, sixth } = self.depth(id);
        let whole = ops as usize <= 2 * TRAIL_END;
        if whole {
            return (self.last(id, ops as usize), 0, Vec::new());
        }
        (self.last(sixth, TRAIL_END), ops - 2 * TRAIL_END as u32, self.last(id, TRAIL_END))
    }

    /// The last ops of a node's trail, in its order.
    fn last(&self, id: NodeId, count: usize) -> Vec<u32> {
        let mut back = vec![self.graph.node(id).op];
        let mut at = id;
        while back.len() < count
            && let Some(parent) = self.graph.node(at).primary()
        {
            at = parent;
            if back.last() != Some(&self.graph.node(at).op) {
                back.push(self.graph.node(at).op);
            }
        }
        back.reverse();
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(roles: &[Role]) -> Graph {
        let mut graph = Graph::default();
        for (op, &role) in roles.iter().enumerate() {
            let id = graph.add(Node::new(op as u32, Kinds::NAN, role, true));
            if role == Role::Plain {
                graph.link(id - 1, id);
            }
        }
        graph
    }

    #[test]
    fn harm_reaches_the_root_and_only_it() {
        let mut graph = chain(&[Role::Origin, Role::Plain, Role::Origin, Role::Plain]);
        graph.node_mut(3).harm = true;
        graph.resolve();
        assert_eq!(graph.nodes.iter().map(|n| n.harm).collect::<Vec<_>>(), [false, false, true, true]);
        assert_eq!(graph.roots(), [0, 0, 2, 2]);
    }

    #[test]
    fn a_linked_gradient_is_the_forwards_unless_that_was_healed() {
        let mut graph = chain(&[Role::Origin, Role::Plain]);
        graph.nodes.push(Node { harm: true, ..Node::new(2, Kinds::NAN, Role::Linked(0), true) });
        graph.resolve();
        assert_eq!((graph.node(2).role, graph.node(0).harm), (Role::Origin, false));

        let mut graph = chain(&[Role::Origin, Role::Plain]);
        graph.node_mut(1).harm = true;
        graph.nodes.push(Node { harm: true, ..Node::new(2, Kinds::NAN, Role::Linked(0), true) });
        graph.resolve();
        assert_eq!((graph.node(2).role, graph.root(2)), (Role::Plain, 0));
    }

    #[test]
    fn long_trails_keep_their_ends() {
        let mut roles = vec![Role::Plain; 30];
        roles[0] = Role::Origin;
        let graph = chain(&roles);
        let mut trails = graph.trails();
        let (head, omitted, tail) = trails.of(29);
        assert_eq!((head.len(), omitted, tail.len()), (6, 18, 6));
        assert_eq!((head[0], head[5], tail[0], tail[5]), (0, 5, 24, 29));
        assert_eq!(trails.of(11), ((0..12).collect(), 0, vec![]));
        assert_eq!(trails.of(12), ((0..6).collect(), 1, (7..13).collect()));
    }

    #[test]
    fn adoption_never_closes_a_circle() {
        let mut graph = chain(&[Role::Parameter, Role::Plain]);
        assert!(!graph.adopt(1, 0));
        assert_eq!((graph.root(1), graph.root(0)), (0, 0));
    }

    #[test]
    fn adoption_may_point_forward() {
        let mut graph = chain(&[Role::Unexplained, Role::Origin]);
        graph.adopt(1, 0);
        graph.node_mut(0).harm = true;
        graph.resolve();
        assert!(graph.node(1).harm);
        assert_eq!(graph.roots(), [1, 1]);
    }
}
