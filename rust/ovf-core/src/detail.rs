//! What stands in the files about a finding: values, module chain, code, likely cause.
//!
//! Two steps. [`Detail`] is what the files say about one op: its record, the record of its forward call, its module
//! chain and its stack, as they stand there. [`fill`] makes values, frames and hint of it for the listed findings.
//!
//! In a local analysis details are read once the findings are known: each file is opened again, once a rank, and only
//! for ranks that have a finding; a file that has gone by then leaves its details empty. Where a summary leaves the
//! machine, the details of every op that may be asked for ([`asked`]) are read at once, by the same function, and
//! travel with it ([`crate::encoding`]).

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::context::{contexts, frames};
use crate::op::{Direction, Kinds, OpName, TensorStat, Value};
use crate::order::candidates_of;
use crate::parse::{Part, parse_op};
use crate::report::{Finding, FindingKind, Hint, ValueReport};
use crate::rules::{HintFacts, Rules};
use crate::timeline::Timeline;
use crate::token::Cursor;
use crate::verdict::Located;

/// Findings whose details are looked up; beyond them only names and places are given.
pub const DETAILED: usize = 64;

/// The bytes of one rank's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'b> {
    pub(crate) dump: &'b [u8],
    pub(crate) construct: Option<&'b [u8]>,
    pub(crate) stack: Option<&'b [u8]>,
}

/// An op whose details are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'t> {
    /// Index in the rank's file order.
    pub(crate) op: u32,
    /// Key in `data`.
    pub(crate) name: &'t str,
    /// Where its record stands in the dump, offset and length; `(0, 0)` where not known.
    pub(crate) record: (u64, u64),
    /// Whether the forward call's record is asked for, too.
    pub(crate) forward: bool,
}

/// What the files say about one op.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// The record as it stands in the dump; empty where there is none.
    pub(crate) record: Vec<u8>,
    /// Of a backward op: the record of the forward call it belongs to.
    pub(crate) forward: Vec<u8>,
    /// The op, its module, that one's module, ... up to the root.
    pub(crate) chain: Vec<String>,
    /// Stack lines as recorded.
    pub(crate) stack: Vec<String>,
}

/// What the files say about each of the asked ops, in one pass over each file.
pub(crate) fn of(files: Files, asked: &[Asked]) -> Vec<Detail> {
    let names: Vec<&str> = asked.iter().map(|a| a.name).collect();
    let found = contexts(files.construct, files.stack, &names);
    let details = asked.iter().zip(found).map(|(a, context)| {
        let (at, len) = a.record;
        let record = at.checked_add(len).and_then(|end| files.dump.get(at as usize..end as usize)).unwrap_or_default();
        let name = OpName::parse(a.name);
        let forward = a.forward && name.direction == Direction::Backward && !record.is_empty();
        let forward = if forward { forward_record(files.dump, &name) } else { None };
        Detail {
            record: record.to_vec(),
            forward: forward.unwrap_or_default().to_vec(),
            chain: context.chain,
            stack: context.stack,
        }
    });
    details.collect()
}

/// The ops of a rank that a report or a trace may ask for, ascending: roots, and communications that delivered
/// something bad.
pub(crate) fn asked(timeline: &Timeline) -> Vec<Asked<'_>> {
    let mut forward: Vec<u32> = candidates_of(timeline).map(|m| timeline.marks[m].at.op).collect();
    forward.sort_unstable();
    let mut all: Vec<Asked> = Vec::new();
    let marks = timeline.marks.iter().map(|m| (&m.at, m.record));
    let got = timeline.events.iter().zip(&timeline.event_refs);
    let got = got.filter(|(e, _)| e.got.as_ref().is_some_and(|s| !s.kinds.is_finite())).map(|(_, at)| (at, (0, 0)));
    for (at, record) in marks.chain(got) {
        all.push(Asked { op: at.op, name: &at.name, record, forward: forward.binary_search(&at.op).is_ok() });
    }
    // Marks stand first, so of one op the place of its record is kept.
    all.sort_by_key(|a| a.op);
    all.dedup_by_key(|a| a.op);
    all
}

/// Where the details of a rank's ops are to be had.
pub(crate) trait Source: Sync {
    /// What is known of each asked op, in that order.
    fn details(&self, asked: &[Asked]) -> Vec<Detail>;
}

/// Fills in the details of the first findings.
pub(crate) fn fill<S: Source>(findings: &mut [Finding], located: &[Located], sources: &[S], rules: &Rules) {
    let shown = findings.len().min(DETAILED);
    let mut by_rank: Vec<(u32, Vec<usize>)> = Vec::new();
    for (i, at) in located.iter().enumerate().take(shown) {
        match by_rank.iter_mut().find(|(t, _)| *t == at.timeline) {
            Some((_, list)) => list.push(i),
            None => by_rank.push((at.timeline, vec![i])),
        }
    }
    let shared: &[Finding] = findings;
    let filled: Vec<(usize, Finding)> = by_rank
        .par_iter()
        .flat_map_iter(|(t, list)| {
            let asked: Vec<Asked> = list
                .iter()
                .map(|&i| Asked {
                    op: shared[i].exec_order,
                    name: &shared[i].op_name,
                    record: located[i].record,
                    forward: true,
                })
                .collect();
            let found = sources[*t as usize].details(&asked);
            list.iter()
                .zip(found)
                .map(|(&i, detail)| {
                    let mut finding = shared[i].clone();
                    values(&mut finding, &detail);
                    finding.construct_chain = detail.chain;
                    finding.stack = frames(&detail.stack, rules);
                    finding.stack_info = detail.stack;
                    settle(&mut finding, rules);
                    (i, finding)
                })
                .collect::<Vec<_>>()
        })
        .collect();
    for (i, finding) in filled {
        findings[i] = finding;
    }
}

fn values(finding: &mut Finding, detail: &Detail) {
    let name = OpName::parse(&finding.op_name);
    let recorded = matches!(name.direction, Direction::ParametersGrad | Direction::Debug);
    let Ok(op) = parse_op(&detail.record, Part::All { recorded }) else {
        return;
    };
    finding.record = String::from_utf8_lossy(&detail.record).into_owned();
    for argument in &op.arguments {
        let slot = argument.slot.to_string();
        match &argument.value {
            Value::Tensor(t) if argument.slot.field.is_input() => finding.inputs.push(value(slot, t)),
            Value::Tensor(t) => finding.outputs.push(value(slot, t)),
            Value::Number(n) if argument.slot.field.is_input() => finding.scalars.push((slot, n.to_string())),
            _ => {}
        }
    }
    finding.only_in_recompute |= op.is_recompute;
    finding.forward_inputs = inputs(&detail.forward);
}

/// What a forward call took in.
fn inputs(record: &[u8]) -> Vec<ValueReport> {
    let Ok(op) = parse_op(record, Part::Inputs) else {
        return Vec::new();
    };
    let inputs = op.arguments.iter().filter_map(|a| match &a.value {
        Value::Tensor(t) if a.slot.field.is_input() => Some(value(a.slot.to_string(), t)),
        _ => None,
    });
    inputs.collect()
}

/// The forward call of a backward op: a derivative goes bad where the forward input is special.
fn forward_record<'b>(bytes: &'b [u8], name: &OpName) -> Option<&'b [u8]> {
    let number = name.call_index?;
    let forward = if name.is_module() {
        format!("\"{}.forward.{number}\"", name.base)
    } else {
        format!("\"{}.{number}.forward\"", name.base)
    };
    let at = memchr::memmem::find(bytes, forward.as_bytes())?;
    let mut cursor = Cursor::new(bytes, at + forward.len());
    cursor.expect(b':', "':'").ok()?;
    cursor.skip_space();
    let start = cursor.at;
    cursor.skip_value().ok()?;
    bytes.get(start..cursor.at)
}

fn value(slot: String, t: &TensorStat) -> ValueReport {
    let plain = |s: Option<f64>| s.map(|n| n + 0.0); // -0.0 is 0.0 however it was spelled
    ValueReport {
        slot,
        dtype: t.dtype.strip_prefix("torch.").unwrap_or(t.dtype).to_owned(),
        shape: t.shape.to_vec(),
        max: plain(t.max),
        min: plain(t.min),
        mean: plain(t.mean),
        norm: plain(t.norm),
        class: if t.has_statistics() { t.kinds().name() } else { "unknown" }.to_owned(),
    }
}

fn kinds(values: &[ValueReport]) -> Kinds {
    let of = |s: Option<f64>| s.map_or(Kinds::NONE, Kinds::of);
    values.iter().fold(Kinds::NONE, |k, v| k.union(of(v.max)).union(of(v.min)))
}

/// Module, recomputation and likely cause, from what was looked up.
fn settle(finding: &mut Finding, rules: &Rules) {
    let name = OpName::parse(&finding.op_name);
    let module = |n: &String| {
        let parent = OpName::parse(n);
        (parent.is_module() && !parent.module_path.is_empty()).then(|| parent.module_path.to_owned())
    };
    finding.module = finding.construct_chain.iter().find_map(module);
    let recomputes = |line: &String| line.contains("torch/utils/checkpoint.py") && line.contains("recompute_fn");
    let recomputed = finding.only_in_recompute || finding.stack_info.iter().any(recomputes);
    finding.only_in_recompute = recomputed && name.direction == Direction::Forward;
    let bad: Vec<&ValueReport> =
        finding.outputs.iter().filter(|v| v.class != "finite" && v.class != "unknown").collect();
    let output_dtypes: Vec<&str> = bad.iter().map(|v| v.dtype.as_str()).collect();
    let out = kinds(&finding.outputs);
    let inputs = kinds(&finding.inputs);
    let magnitude = finding
        .inputs
        .iter()
        .flat_map(|v| [v.max, v.min])
        .flatten()
        .filter(|n| n.is_finite())
        .fold(0.0_f64, |m, n| m.max(n.abs()));
    let facts = HintFacts {
        name,
        kind: finding.kind.name(),
        kinds: if out.is_finite() { inputs } else { out },
        output_dtypes,
        input_kinds: inputs,
        input_magnitude: magnitude,
    };
    let hint = rules.hint(&facts).map(|row| Hint {
        likely: row.text.clone(),
        check: row.check.clone(),
        source: row.source.clone(),
    });
    finding.hint = hint.filter(|_| finding.kind != FindingKind::MissingRank);
}
