//! msProbe's levels of one op: critical, high, medium, and the jump of the norm.
//!
//! In: one op and the level rows of the rules table. Out: the level it has in msProbe's graph view
//! (`overflow_check`), for people who know its words. A view only: nothing is decided by it. The levels look at one
//! op alone, so a causal mask is critical to them and what merely passes a NaN on is high.
//!
//! As msProbe does it: Max, Min and Mean are looked at; inputs are positional and keyword arguments (of a backward
//! record the gradients that come in), not weights; tensors in lists count, those in dicts and P2P entries do not;
//! norms are those of tensors that are arguments themselves, NaN norms left out; an input norm of 0 counts as 1. Ops
//! that show memory nobody wrote have no level, as its list of exceptions has it: what an allocator returns, and
//! communications that receive into a buffer, unless something bad was given to them.

use serde::{Deserialize, Serialize};

use crate::communication::exchanges;
use crate::op::{Field, Kinds, Op, OpName, Segment, TensorStat, Value};
use crate::rules::{ArgumentRefs, Is, Level, OperatorRules, Rules};
use crate::timeline::OpRef;

/// Ops kept for a rank, the worst level first.
const KEPT: usize = 64;

/// What the levels are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Leveled {
    /// The level, if any row fits.
    pub(crate) level: Option<Level>,
    /// Largest output norm over largest input norm, where both are recorded.
    pub(crate) norm_ratio: Option<f64>,
    /// Index of the row.
    pub(crate) row: usize,
}

/// An op with its level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LeveledOp {
    /// The op.
    pub at: OpRef,
    /// Its level.
    pub level: Level,
    /// Name of the situation: `made`, `carried`, `ended`, `norm_jump`.
    pub scene: String,
    /// Largest output norm over largest input norm, where both are recorded.
    pub norm_ratio: Option<f64>,
}

/// The levels of a rank's ops.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Levels {
    /// Ops by situation, in the order of the table: name, level, count.
    pub counts: Vec<(String, Level, u32)>,
    /// The worst ones: by level, then file order.
    pub ops: Vec<LeveledOp>,
}

fn bad(t: &TensorStat) -> bool {
    let of = |s: Option<f64>| s.map_or(Kinds::NONE, Kinds::of);
    !t.kinds().union(of(t.mean)).is_finite()
}

/// The level of one op.
pub(crate) fn level(i: u32, name: &OpName, op: &Op, operator: &OperatorRules, rules: &Rules) -> Leveled {
    let (mut bad_input, mut bad_output) = (false, false);
    let (mut norm_in, mut norm_out): (Option<f64>, Option<f64>) = (None, None);
    for argument in &op.arguments {
        let Value::Tensor(t) = &argument.value else { continue };
        let path = &argument.slot.path;
        if path.iter().skip(1).any(|s| matches!(s, Segment::Key(_))) {
            continue;
        }
        let norm = t.norm.filter(|n| !n.is_nan() && path.len() <= 1);
        match argument.slot.field {
            Field::InputArgs | Field::InputKwargs | Field::Input => {
                bad_input |= bad(t);
                norm_in = larger(norm_in, norm);
            }
            Field::Output => {
                bad_output |= bad(t);
                norm_out = larger(norm_out, norm);
            }
            _ => {}
        }
    }
    let norm_ratio = match (norm_in, norm_out) {
        (Some(0.0), Some(out)) => Some(out),
        (Some(put), Some(out)) => Some(out / put).filter(|r| !r.is_nan()),
        _ => None,
    };
    let fits = |wanted: Option<bool>, is: bool| wanted.is_none_or(|w| w == is);
    let row = rules.levels().iter().position(|row| {
        fits(row.bad_input, bad_input)
            && fits(row.bad_output, bad_output)
            && row.norm_over.is_none_or(|limit| norm_ratio.is_some_and(|r| r > limit))
    });
    // What its list of exceptions says: nothing bad went in but into a buffer, so what came out is not looked at.
    let unwritten = operator.says(Is::Uninitialised) || nothing_bad_given(i, name, op, rules);
    let row = row.filter(|_| !unwritten);
    Leveled { level: row.map(|r| rules.levels()[r].level), norm_ratio, row: row.unwrap_or_default() }
}

fn larger(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        _ => a.or(b),
    }
}

/// Of a communication with a buffer that is only received into: whether nothing bad was given to it.
fn nothing_bad_given(i: u32, name: &OpName, op: &Op, rules: &Rules) -> bool {
    let Some(row) = rules.is_communication(name).then(|| rules.communication(name)).flatten() else { return false };
    let only_received = match (&row.receives, &row.contributes) {
        (ArgumentRefs::Some(received), ArgumentRefs::Some(given)) => received.iter().any(|r| !given.contains(r)),
        _ => false,
    };
    only_received && !exchanges(op, i, name, row).iter().any(|e| e.contributed.iter().any(|(_, t)| bad(t)))
}

/// Counts a rank's ops by level and keeps the worst ones.
pub(crate) struct LevelCount<'r> {
    rules: &'r Rules,
    counts: Vec<u32>,
    kept: Vec<Vec<LeveledOp>>,
}

impl<'r> LevelCount<'r> {
    pub(crate) fn new(rules: &'r Rules) -> Self {
        let rows = rules.levels().len();
        Self { rules, counts: vec![0; rows], kept: vec![Vec::new(); rows] }
    }

    pub(crate) fn add(&mut self, at: impl FnOnce() -> OpRef, leveled: Leveled) {
        let Some(level) = leveled.level else { return };
        self.counts[leveled.row] += 1;
        let kept = &mut self.kept[leveled.row];
        if kept.len() < KEPT {
            let scene = self.rules.levels()[leveled.row].scene.clone();
            kept.push(LeveledOp { at: at(), level, scene, norm_ratio: leveled.norm_ratio });
        }
    }

    pub(crate) fn finish(self) -> Levels {
        let rows = self.rules.levels();
        let counts = rows.iter().zip(&self.counts).map(|(row, n)| (row.scene.clone(), row.level, *n)).collect();
        let mut ops: Vec<LeveledOp> = self.kept.into_iter().flatten().collect();
        ops.sort_by_key(|o| (o.level, o.at.op));
        ops.truncate(KEPT);
        Levels { counts, ops }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Part, parse_op};

    fn of(name: &str, inputs: &str, output: &str) -> (Option<Level>, Option<f64>) {
        let rules = Rules::built_in();
        let body = format!(r#"{{"input_args": [{inputs}], "input_kwargs": {{}}, "output": [{output}]}}"#);
        let op = parse_op(body.as_bytes(), Part::ALL).expect("a record");
        let name = OpName::parse(name);
        let found = level(0, &name, &op, &rules.operator(&name), &rules);
        (found.level, found.norm_ratio)
    }

    fn t(max: &str, norm: &str) -> String {
        format!(
            r#"{{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": {max}, "Min": 0.0, "Mean": 0.0, "Norm": {norm}}}"#
        )
    }

    #[test]
    fn the_four_situations() {
        let (good, nan) = (t("1.0", "1.0"), t("NaN", "NaN"));
        assert_eq!(of("Torch.exp.0.forward", &good, &nan).0, Some(Level::Critical));
        assert_eq!(of("Torch.exp.0.forward", &nan, &nan).0, Some(Level::High));
        assert_eq!(of("Torch.nan_to_num.0.forward", &nan, &good).0, Some(Level::Medium));
        assert_eq!(of("Torch.exp.0.forward", &good, &good).0, None);
        assert_eq!(of("Torch.mul.0.forward", &good, &t("101.0", "100.5")), (Some(Level::High), Some(100.5)));
        assert_eq!(of("Torch.mul.0.forward", &good, &t("101.0", "100.0")).0, None);
        assert_eq!(of("Torch.add.0.forward", &t("0.0", "0.0"), &t("200.0", "200.0")).0, Some(Level::High));
    }

    #[test]
    fn memory_nobody_wrote_is_left_out() {
        let (good, nan) = (t("1.0", "1.0"), t("NaN", "NaN"));
        assert_eq!(of("Torch.empty.0.forward", "", &nan).0, None);
        assert_eq!(of("Distributed.all_gather_into_tensor.0.forward", &format!("{nan}, {good}"), &good).0, None);
        assert_eq!(of("Distributed.all_reduce.0.forward", &nan, &nan).0, Some(Level::High));
    }
}
