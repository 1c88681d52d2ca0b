//! One rank's communication ops: who takes part, what is given, what is got.
//!
//! In: a parsed op and its row in the rules. Out: one [`Communication`] (several for a batched point-to-point call),
//! and which of the op's arguments are contributions and which are received values. Knows nothing of other ranks.
//!
//! An op's `output` is its arguments after the call, positional ones first, then keywords in the order of
//! `input_kwargs`; the received value is found there by the place of its argument. What a buffer held before the
//! call is in no list here: it is never evidence.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::op::{Argument, Field, GroupRef, Op, OpName, P2pRef, Rank, Segment, TensorStat, Value};
use crate::rules::{ArgumentRef, ArgumentRefs, CommunicationRow, Flow};

/// A process group's identity: its ranks and its id. Both empty: the default group of all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct GroupKey {
    /// Global ranks, ascending; empty when not recorded.
    pub ranks: Vec<Rank>,
    /// `group_id`; empty when not recorded.
    pub id: String,
}

impl GroupKey {
    fn of(group: &GroupRef) -> Self {
        let mut ranks = group.ranks.clone();
        ranks.sort_unstable();
        ranks.dedup();
        Self { ranks, id: group.id.to_owned() }
    }
}

/// A communication op (or one entry of a batch) as one rank recorded it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Communication {
    /// Index of the op in the rank's file order.
    pub op: u32,
    /// Entry of a batched call; 0 otherwise.
    pub item: u32,
    /// API name; `isend`/`irecv` for the entries of a batch.
    pub api: Arc<str>,
    /// Data flow.
    pub flow: Flow,
    /// Index into [`crate::Timeline::groups`].
    pub group: u32,
    /// Root of a rooted collective, global rank.
    pub root: Option<Rank>,
    /// Other side of a point-to-point call, global rank.
    pub peer: Option<Rank>,
    /// Message tag of a point-to-point call.
    pub tag: i64,
    /// Whether the record may have been made before the data was there.
    pub is_async: bool,
    /// Whether it is an entry of a batched call.
    pub batched: bool,
    /// An entry of a batch whose own call is recorded behind it: that record has the truth, this one is left out.
    pub superseded: bool,
    /// How many members there are at least: tensors in a gathered list, or how much larger one side is. Of a finite
    /// one only what went in counts.
    pub parts: u32,
    /// Number of elements of the first contributed (else, where one is bad, received) tensor: members of one collective
    /// must agree where the operation demands it.
    pub numel: i64,
}

/// A communication with the arguments it concerns, borrowed from the op.
pub(crate) struct Exchange<'o, 'a> {
    pub(crate) communication: Communication,
    pub(crate) group: GroupKey,
    pub(crate) contributed: Vec<(&'o Argument<'a>, &'o TensorStat<'a>)>,
    pub(crate) received: Vec<(&'o Argument<'a>, &'o TensorStat<'a>)>,
}

fn tensor<'o, 'a>(argument: &'o Argument<'a>) -> Option<(&'o Argument<'a>, &'o TensorStat<'a>)> {
    match &argument.value {
        Value::Tensor(stat) => Some((argument, stat)),
        _ => None,
    }
}

/// Reads the communications of one op.
pub(crate) fn exchanges<'o, 'a>(
    op: &'o Op<'a>,
    index: u32,
    name: &OpName,
    row: &CommunicationRow,
) -> Vec<Exchange<'o, 'a>> {
    if row.flow == Flow::Batch {
        return batch(op, index);
    }
    let group = op.arguments.iter().find_map(|a| match &a.value {
        Value::Group(g) if a.slot.field.is_input() => Some(GroupKey::of(g)),
        _ => None,
    });
    let integer = |at: &Option<ArgumentRef>| {
        let at = at.as_ref()?;
        op.arguments.iter().find_map(|a| match a.value {
            Value::Number(n) if at.matches(a) => Some(n as i64),
            _ => None,
        })
    };
    // Since torch 2.6 root and peer may be given as a rank within the group (`group_src`, `group_dst`).
    let listed = op.arguments.iter().find_map(|a| match &a.value {
        Value::Group(g) if a.slot.field.is_input() => Some(g.ranks.as_slice()),
        _ => None,
    });
    let within = ["group_src", "group_dst"].iter().find_map(|name| {
        op.arguments.iter().find_map(|a| match a.value {
            Value::Number(n) if a.slot.field == Field::InputKwargs && a.slot.keyword() == Some(name) => Some(n),
            _ => None,
        })
    });
    let within = within.and_then(|n| match listed {
        Some(ranks) if !ranks.is_empty() => ranks.get(n as usize).copied(),
        _ => Some(n as Rank),
    });
    let rank = |at: &Option<ArgumentRef>| {
        at.as_ref()?;
        integer(at).and_then(|n| Rank::try_from(n).ok()).or(within)
    };
    let first_of_group = listed.and_then(|ranks| ranks.first().copied()).unwrap_or(0);
    let is_async = row.always_async
        || row
            .async_flag
            .as_ref()
            .is_some_and(|at| op.arguments.iter().any(|a| a.value == Value::Flag(true) && at.matches(a)));
    let contributed = contributed(op, &row.contributes, &row.receives);
    let received = received(op, &row.receives, &row.contributes);
    // What a finite one gave back may not have been read: nothing is said that would depend on it.
    let is_bad = contributed.iter().chain(&received).any(|(_, t)| !t.kinds().is_finite());
    let gave_back = if is_bad { &*received } else { &[] };
    let numel = contributed.first().or(gave_back.first()).map_or(0, |(_, t)| t.numel());
    let parts = parts(row.flow, &contributed, gave_back);
    let communication = Communication {
        op: index,
        item: 0,
        api: name.api.into(),
        flow: row.flow,
        group: 0,
        root: rank(&row.root).or(matches!(row.flow, Flow::FromRoot | Flow::ToRoot).then_some(first_of_group)),
        peer: rank(&row.peer),
        tag: integer(&row.tag).unwrap_or(0),
        is_async,
        batched: false,
        superseded: false,
        parts,
        numel,
    };
    vec![Exchange { communication, group: group.unwrap_or_default(), contributed, received }]
}

/// A lower bound of the number of members, from what an unrooted collective takes and gives.
fn parts(flow: Flow, contributed: &[(&Argument, &TensorStat)], received: &[(&Argument, &TensorStat)]) -> u32 {
    if flow != Flow::All {
        return 1;
    }
    let count = |side: &[(&Argument, &TensorStat)]| side.iter().map(|(_, t)| t.numel()).sum::<i64>();
    let (given, got) = (count(contributed), count(received));
    let ratio = if given > 0 && got > 0 { given.max(got) / given.min(got) } else { 1 };
    ratio.max(contributed.len().max(received.len()) as i64).clamp(1, i64::from(u32::MAX)) as u32
}

fn contributed<'o, 'a>(
    op: &'o Op<'a>,
    refs: &ArgumentRefs,
    buffers: &ArgumentRefs,
) -> Vec<(&'o Argument<'a>, &'o TensorStat<'a>)> {
    let inputs = op.arguments.iter().filter(|a| a.slot.field.is_input());
    match refs {
        ArgumentRefs::All(_) => inputs.filter_map(tensor).collect(),
        ArgumentRefs::Some(list) => {
            let named: Vec<_> = inputs.clone().filter(|a| list.iter().any(|r| r.matches(a))).collect();
            if named.is_empty() && !list.is_empty() {
                // A framework that returns its result instead of filling a buffer has the input first.
                let only_first = |a: &&Argument| a.slot.position() == Some(0) || a.slot.keyword().is_some();
                let is_buffer = |a: &&Argument| match buffers {
                    ArgumentRefs::Some(b) => a.slot.field == Field::InputKwargs && b.iter().any(|r| r.matches(a)),
                    ArgumentRefs::All(_) => false,
                };
                return inputs.filter(only_first).filter(|a| !is_buffer(a)).filter_map(tensor).collect();
            }
            named.into_iter().filter_map(tensor).collect()
        }
    }
}

fn received<'o, 'a>(
    op: &'o Op<'a>,
    refs: &ArgumentRefs,
    gives: &ArgumentRefs,
) -> Vec<(&'o Argument<'a>, &'o TensorStat<'a>)> {
    let outputs = || op.arguments.iter().filter(|a| a.slot.field == Field::Output);
    let ArgumentRefs::Some(list) = refs else {
        return outputs().filter_map(tensor).collect();
    };
    if list.is_empty() {
        return Vec::new();
    }
    // Positional arguments come first in `output`, then the keywords in their order.
    let positional = op
        .arguments
        .iter()
        .filter(|a| a.slot.field == Field::InputArgs)
        .filter_map(|a| a.slot.position())
        .max()
        .map_or(0, |last| last + 1);
    let mut keywords: Vec<&str> = Vec::new();
    for argument in op.arguments.iter().filter(|a| a.slot.field == Field::InputKwargs) {
        if let Some(k) = argument.slot.keyword()
            && !keywords.contains(&k)
        {
            keywords.push(k);
        }
    }
    let mut found = Vec::new();
    for at in list {
        let by_keyword = keywords.iter().position(|k| *k == at.kwarg).map(|i| positional + i as u32);
        let place = by_keyword.unwrap_or(at.arg);
        found.extend(outputs().filter(|a| a.slot.position() == Some(place)).filter_map(tensor));
    }
    // An output that is no argument list (a dict, a lone tensor) of an op that works in place.
    if found.is_empty() && refs == gives {
        found.extend(outputs().filter_map(tensor));
    }
    found
}

/// The entries of a `batch_isend_irecv`, in the order of the list.
fn batch<'o, 'a>(op: &'o Op<'a>, index: u32) -> Vec<Exchange<'o, 'a>> {
    let mut found = Vec::new();
    let items = op.arguments.iter().filter(|a| a.slot.field.is_input());
    for (item, argument) in items.filter(|a| matches!(a.value, Value::P2p(_))).enumerate() {
        let Value::P2p(p2p) = &argument.value else {
            continue;
        };
        let sends = p2p.op.contains("send");
        let below = |field: Field| {
            op.arguments.iter().find_map(|a| {
                let same = a.slot.field == field
                    && a.slot.path.len() > argument.slot.path.len()
                    && same_item(&a.slot.path, &argument.slot.path);
                if same { tensor(a) } else { None }
            })
        };
        let contributed = if sends { below(argument.slot.field).into_iter().collect() } else { Vec::new() };
        let received = if sends { Vec::new() } else { below(Field::Output).into_iter().collect::<Vec<_>>() };
        let numel = below(argument.slot.field).map_or(0, |(_, t)| t.numel());
        found.push(Exchange {
            communication: Communication {
                op: index,
                item: item as u32,
                api: if sends { "isend" } else { "irecv" }.into(),
                flow: if sends { Flow::Send } else { Flow::Recv },
                group: 0,
                root: None,
                peer: p2p.peer,
                tag: p2p.tag,
                is_async: true,
                batched: true,
                superseded: false,
                parts: 2,
                numel,
            },
            group: group_of(p2p),
            contributed,
            received,
        });
    }
    found
}

fn group_of(p2p: &P2pRef) -> GroupKey {
    GroupKey { ranks: Vec::new(), id: p2p.group_id.to_owned() }
}

/// Whether `path` lies in the list element that `item` names; a keyword `p2p_op_list` stands first in `output`.
fn same_item(path: &[Segment], item: &[Segment]) -> bool {
    fn tail<'p, 'a>(p: &'p [Segment<'a>]) -> Option<&'p Segment<'a>> {
        p.iter().rev().find(|s| matches!(s, Segment::Index(_)))
    }
    match (item.first(), path.first()) {
        (Some(Segment::Key(_)), Some(Segment::Index(_))) => tail(&path[..item.len().min(path.len())]) == tail(item),
        _ => path.starts_with(item),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Kinds;
    use crate::parse::{Part, parse_op};
    use crate::rules::Rules;

    fn tensor_text(max: &str) -> String {
        format!(r#"{{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": {max}, "Min": 0.0}}"#)
    }

    fn sides(name: &str, body: &str) -> Vec<(Communication, Vec<Kinds>, Vec<Kinds>)> {
        let rules = Rules::built_in();
        let op = parse_op(body.as_bytes(), Part::ALL).expect("a record");
        let name = OpName::parse(name);
        let kinds = |list: &[(&Argument, &TensorStat)]| list.iter().map(|(_, t)| t.kinds()).collect();
        exchanges(&op, 4, &name, rules.communication(&name).expect("a row"))
            .into_iter()
            .map(|e| (e.communication, kinds(&e.contributed), kinds(&e.received)))
            .collect()
    }

    #[test]
    fn what_a_buffer_held_is_in_no_list() {
        let (bad, good) = (tensor_text("NaN"), tensor_text("1.0"));
        let body = format!(
            r#"{{"input_args": [{bad}, {good}], "input_kwargs": {{"group": {{"type": "torch.ProcessGroup", "group_ranks": [1, 0], "group_id": "g"}}}},
                "output": [{good}, {good}, {{"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "g"}}]}}"#
        );
        let found = sides("Distributed.all_gather_into_tensor.3.forward", &body);
        assert_eq!((&found[0].1, &found[0].2), (&vec![Kinds::NONE], &vec![Kinds::NONE]));
    }

    #[test]
    fn keywords_are_found_behind_positions_in_the_output() {
        let (bad, good) = (tensor_text("NaN"), tensor_text("1.0"));
        let body = format!(
            r#"{{"input_args": [], "input_kwargs": {{"output": {bad}, "input": {good}, "async_op": {{"type": "bool", "value": true}}}},
                "output": [{good}, {bad}, {{"type": "bool", "value": true}}]}}"#
        );
        let found = sides("Distributed.reduce_scatter_tensor.0.forward", &body);
        assert_eq!((&found[0].1, &found[0].2), (&vec![Kinds::NONE], &vec![Kinds::NONE]));
        assert!(found[0].0.is_async);
    }

    #[test]
    fn batches_are_taken_apart() {
        let (bad, good) = (tensor_text("NaN"), tensor_text("1.0"));
        let entry = |op: &str, peer: u32, t: &str| {
            format!(
                r#"{{"class_type": "torch.distributed.P2POp", "tensor": {t}, "op": "{op}", "peer": {peer}, "tag": 7, "group_id": "g"}}"#
            )
        };
        let body = format!(
            r#"{{"input_args": [[{}, {}]], "input_kwargs": {{}}, "output": [[{}, {}]]}}"#,
            entry("isend", 2, &bad),
            entry("irecv", 0, &bad),
            entry("isend", 2, &bad),
            entry("irecv", 0, &good)
        );
        let found = sides("Distributed.batch_isend_irecv.0.forward", &body);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].0.peer, found[0].0.flow, &found[0].1), (Some(2), Flow::Send, &vec![Kinds::NAN]));
        assert_eq!((found[1].0.tag, found[1].0.flow, &found[1].2), (7, Flow::Recv, &vec![Kinds::NONE]));
        let keyword = body
            .replace(r#""input_args": [["#, r#""input_args": [], "input_kwargs": {"p2p_op_list": ["#)
            .replacen(r#"]], "input_kwargs": {},"#, "]},", 1);
        assert_eq!(sides("Distributed.batch_isend_irecv.0.forward", &keyword).len(), 2);
    }

    #[test]
    fn point_to_point_and_roots() {
        let good = tensor_text("1.0");
        let body = format!(
            r#"{{"input_args": [null, {{"type": "int", "value": 3}}], "input_kwargs": {{}}, "output": [{good}, {{"type": "int", "value": 3}}]}}"#
        );
        let found = sides("Distributed.recv.0.forward", &body);
        assert_eq!((found[0].0.peer, found[0].2.len(), found[0].0.is_async), (Some(3), 1, false));
        let body = format!(
            r#"{{"input_args": [{good}], "input_kwargs": {{"src": {{"type": "int", "value": 2}}}}, "output": [{good}]}}"#
        );
        assert_eq!(sides("Distributed.broadcast.0.forward", &body)[0].0.root, Some(2));
    }

    #[test]
    fn the_seed_form_has_a_dict_as_output() {
        let body =
            r#"{"input": [], "input_args": [], "input_kwargs": {}, "output": {"0": {"Max": "inf", "Min": "inf"}}}"#;
        let found = sides("Distributed.all_reduce_0_0", body);
        assert_eq!(found[0].2, vec![Kinds::POS_INF]);
    }
}
