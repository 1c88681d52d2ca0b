//! What stands in the files about a finding: values, module chain, code, likely cause.
//!
//! In: findings with the place of their records. Out: the same findings, filled in. Files are opened again, once a
//! rank, and only for ranks that have a finding; a file that has gone by then leaves its details empty.

use rayon::prelude::*;

use crate::context::contexts;
use crate::hint::{HintFacts, Side, ValueFacts};
use crate::op::{Direction, Kinds, OpName, TensorStat, Value};
use crate::parse::{Part, parse_op};
use crate::report::{Finding, FindingKind, Hint, ValueReport};
use crate::rules::Rules;
use crate::source::{Bytes, RankSource};
use crate::token::Cursor;
use crate::verdict::Located;

/// Findings whose details are looked up; beyond them only names and places are given.
const DETAILED: usize = 64;

/// Fills in the details of the first findings.
pub(crate) fn fill(findings: &mut [Finding], located: &[Located], sources: &[RankSource], rules: &Rules, map: bool) {
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
            let source = &sources[*t as usize];
            let open = |path| Bytes::open(path, map).ok();
            let (dump, construct, stack) = (open(&source.dump), open(&source.construct), open(&source.stack));
            let names: Vec<&str> = list.iter().map(|&i| shared[i].op_name.as_str()).collect();
            let found = contexts(construct.as_deref(), stack.as_deref(), &names, rules);
            list.iter()
                .zip(found)
                .map(|(&i, context)| {
                    let mut finding = shared[i].clone();
                    finding.construct_chain = context.chain;
                    finding.stack = context.frames;
                    finding.stack_info = context.stack;
                    if let Some(bytes) = &dump {
                        values(&mut finding, bytes, located[i].record);
                    }
                    for input in &mut finding.inputs {
                        let maker = located[i].makers.iter().find(|(slot, _)| *slot == input.slot);
                        input.made_by = maker.map(|(_, op)| op.clone());
                    }
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

fn values(finding: &mut Finding, bytes: &[u8], (at, len): (u64, u64)) {
    let Some(body) = bytes.get(at as usize..(at + len) as usize) else {
        return;
    };
    let name = OpName::parse(&finding.op_name);
    let recorded = matches!(name.direction, Direction::ParametersGrad | Direction::Debug);
    let Ok(op) = parse_op(body, Part::All { recorded }) else {
        return;
    };
    finding.record = String::from_utf8_lossy(body).into_owned();
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
    if name.direction == Direction::Backward {
        finding.forward_inputs = forward_inputs(bytes, &name).unwrap_or_default();
    }
}

/// What the forward call of a backward op took in: a derivative goes bad where the forward input is special.
fn forward_inputs(bytes: &[u8], name: &OpName) -> Option<Vec<ValueReport>> {
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
    let op = parse_op(&bytes[start..cursor.at], Part::Inputs).ok()?;
    let inputs = op.arguments.iter().filter_map(|a| match &a.value {
        Value::Tensor(t) if a.slot.field.is_input() => Some(value(a.slot.to_string(), t)),
        _ => None,
    });
    Some(inputs.collect())
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
        made_by: None,
    }
}

fn kinds(values: &[ValueReport]) -> Kinds {
    let of = |s: Option<f64>| s.map_or(Kinds::NONE, Kinds::of);
    values.iter().fold(Kinds::NONE, |k, v| k.union(of(v.max)).union(of(v.min)))
}

fn facts_of(side: Side, v: &ValueReport) -> ValueFacts<'_> {
    ValueFacts {
        side,
        slot: &v.slot,
        dtype: &v.dtype,
        numel: v.shape.iter().fold(1, |n, &d| n.saturating_mul(d)),
        max: v.max,
        min: v.min,
        made_by: v.made_by.as_deref(),
    }
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
    let (out, inputs) = (kinds(&finding.outputs), kinds(&finding.inputs));
    let sides =
        [(Side::Input, &finding.inputs), (Side::Output, &finding.outputs), (Side::Forward, &finding.forward_inputs)];
    let facts = HintFacts {
        name,
        kind: finding.kind.name(),
        phase: finding.phase.name(),
        kinds: if out.is_finite() { inputs } else { out },
        values: sides.iter().flat_map(|(side, values)| values.iter().map(|v| facts_of(*side, v))).collect(),
    };
    let hint = rules.hint(&facts).map(|row| Hint {
        likely: row.text.clone(),
        check: row.check.clone(),
        source: row.source.clone(),
    });
    finding.hint = hint.filter(|_| finding.kind != FindingKind::MissingRank);
}
