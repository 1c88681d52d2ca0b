//! The listed findings, explained: values, module, code frames and likely cause.
//!
//! In: findings with the place of their records, and where each rank's details are to be had. Out: the same findings,
//! filled in.

use rayon::prelude::*;

use crate::context::frames;
use crate::detail::{Asked, Detail, Source};
use crate::hint::{HintFacts, Side, ValueFacts};
use crate::op::{Direction, Kinds, OpName, TensorStat, Value};
use crate::parse::{Part, parse_op};
use crate::report::{Before, Finding, FindingKind, Hint, ValueReport};
use crate::rules::Rules;
use crate::timeline::OpRef;
use crate::verdict::Located;

/// Findings whose details are looked up; beyond them only names and places are given.
pub const DETAILED: usize = 64;

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
            let mut asked: Vec<Asked> = list
                .iter()
                .map(|&i| Asked {
                    op: shared[i].exec_order,
                    name: &shared[i].op_name,
                    record: located[i].record,
                    forward: true,
                })
                .collect();
            let plain = |(at, record): &'_ (OpRef, (u64, u64))| (at.op, *record);
            for (at, (op, record)) in list.iter().flat_map(|&i| located[i].before.iter().map(|b| (&b.0, plain(b)))) {
                asked.push(Asked { op, name: &at.name, record, forward: false });
            }
            let mut found = sources[*t as usize].details(&asked);
            let mut behind = found.split_off(list.len()).into_iter();
            list.iter()
                .zip(found)
                .map(|(&i, detail)| {
                    let mut finding = shared[i].clone();
                    let ops = located[i].before.iter().zip(&mut behind);
                    finding.before = ops.map(|((at, _), detail)| before(at, &detail)).collect();
                    values(&mut finding, &detail);
                    finding.construct_chain = detail.chain;
                    finding.stack = frames(&detail.stack, rules);
                    finding.stack_info = detail.stack;
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

/// The largest values of an op before a finding.
fn before(at: &OpRef, detail: &Detail) -> Before {
    let name = OpName::parse(&at.name);
    let recorded = matches!(name.direction, Direction::ParametersGrad | Direction::Debug);
    let (mut input, mut output): (Option<ValueReport>, Option<ValueReport>) = (None, None);
    if let Ok(op) = parse_op(&detail.record, Part::All { recorded }) {
        for argument in &op.arguments {
            let Value::Tensor(t) = &argument.value else { continue };
            let place = if argument.slot.field.is_input() && !recorded { &mut input } else { &mut output };
            if t.has_statistics()
                && place.as_ref().is_none_or(|kept| magnitude(kept.max, kept.min) < magnitude(t.max, t.min))
            {
                *place = Some(value(argument.slot.to_string(), t));
            }
        }
    }
    Before { op_name: at.name.clone(), exec_order: at.op, input, output }
}

/// Largest absolute value; infinite for anything non-finite.
fn magnitude(max: Option<f64>, min: Option<f64>) -> f64 {
    let of = |n: Option<f64>| n.map_or(0.0, |n| if n.is_finite() { n.abs() } else { f64::INFINITY });
    of(max).max(of(min))
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
