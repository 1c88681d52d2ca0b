//! Near misses: finite values close to the end of their dtype, and sudden growth.
//!
//! In: every op of a rank in file order. Out: the [`NearMiss`]es that matter most, at most [`KEPT`]. Hints, never
//! findings: nothing is decided by them.
//!
//! An op is listed where it *made* a large value, not where it passed one on: its output must be larger in magnitude
//! than everything that went in. A large value that no op of the dump made is listed at its first reader. Left out are
//! numbers somebody asked for, which would drown everything else: numbers given as arguments (`masked_fill(x, m,
//! -1e4)`), what creators make, and a dtype's largest number or that divided by two or four (`finfo.min` masks); so
//! are memory that nobody wrote and what an asynchronous communication shows.
//!
//! * `limit`: the magnitude is at least `near.share` of the dtype's largest finite number.
//! * `growth`: the magnitude is at least `near.growth` times the largest input magnitude, and passes the dtype's
//!   largest number to the power `near.exponent` (fourth root: 4.3e9 for float32, 16 for float16); below that a jump
//!   has far to go.
//!
//! Ranking: before the rank's first overflow first, `limit` by share, then `growth` by factor, then file order.

use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::communication::exchanges;
use crate::op::{Argument, Op, OpName, TensorStat, Value};
use crate::rules::{Is, NearRow, OperatorRules, Rules};
use crate::timeline::OpRef;

/// Near misses kept for a rank.
const KEPT: usize = 16;
/// Magnitudes remembered; beyond them values may be listed twice.
const REMEMBERED: usize = 1 << 16;

/// Why it is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NearKind {
    /// Close to the largest number of its dtype.
    Limit,
    /// Much larger than everything that went in.
    Growth,
}

/// A finite value that nearly overflowed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NearMiss {
    /// The op.
    pub at: OpRef,
    /// Why it is listed.
    pub kind: NearKind,
    /// Where the value stands: `output[0]`.
    pub slot: String,
    /// dtype as dumped.
    pub dtype: String,
    /// Sizes by dimension.
    pub shape: Vec<i64>,
    /// The value: Max or Min, whichever is larger in magnitude.
    pub value: f64,
    /// Largest finite number of the dtype.
    pub limit: f64,
    /// Over the largest input magnitude; absent without a finite input that is not 0.
    pub growth: Option<f64>,
    /// Whether it stands before the first op of its rank that shows an overflow (always, on a clean rank).
    pub before_first: bool,
}

impl NearMiss {
    /// Magnitude over the dtype's largest number, up to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.value.abs() / self.limit
    }

    /// Order of listing.
    pub(crate) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let strength = |m: &Self| match m.kind {
            NearKind::Limit => m.share(),
            NearKind::Growth => m.growth.unwrap_or(0.0),
        };
        other
            .before_first
            .cmp(&self.before_first)
            .then(self.kind.cmp(&other.kind))
            .then(strength(other).total_cmp(&strength(self)))
    }
}

/// Looks for near misses op by op.
pub(crate) struct Nearness<'r> {
    rules: &'r Rules,
    row: Option<&'r NearRow>,
    first_bad: Option<u32>,
    /// Magnitudes that were asked for or listed, as bits.
    known: FxHashSet<u64>,
    kept: Vec<NearMiss>,
}

impl<'r> Nearness<'r> {
    /// `first_bad`: the rank's first op that shows an overflow.
    pub(crate) fn new(rules: &'r Rules, first_bad: Option<u32>) -> Self {
        Self { rules, row: rules.near(), first_bad, known: FxHashSet::default(), kept: Vec::new() }
    }

    pub(crate) fn look(&mut self, i: u32, raw: &str, name: &OpName, op: &Op, operator: &OperatorRules) {
        let Some(row) = self.row else { return };
        let mut given: Vec<(&Argument, &TensorStat)> = Vec::new();
        let mut made: Vec<(&Argument, &TensorStat)> = Vec::new();
        let exchanged;
        if self.rules.is_communication(name) {
            let Some(row) = self.rules.communication(name) else { return };
            exchanged = exchanges(op, i, name, row);
            for exchange in exchanged.iter().filter(|e| !e.communication.is_async) {
                given.extend(&exchange.contributed);
                made.extend(&exchange.received);
            }
        } else {
            for argument in &op.arguments {
                match &argument.value {
                    Value::Number(n) if argument.slot.field.is_input() => self.remember(n.abs()),
                    Value::Tensor(t) if !argument.slot.field.is_input() => made.push((argument, t)),
                    Value::Tensor(t) if !operator.names(Is::Overwrites, argument) => given.push((argument, t)),
                    _ => {}
                }
            }
            if operator.says(Is::Uninitialised) || operator.says(Is::Creates) {
                for (_, t) in &made {
                    self.remember(magnitude(t).abs());
                }
                return;
            }
        }
        let largest_input = given.iter().map(|(_, t)| magnitude(t).abs()).fold(0.0, f64::max);
        for (argument, t) in &given {
            let Some(limit) = self.rules.largest(t.dtype) else { continue };
            let value = magnitude(t);
            if value.abs() >= row.share * limit && !self.is_known(value.abs(), limit) {
                self.keep(i, raw, argument, t, NearKind::Limit, value, limit, None);
            }
        }
        for (argument, t) in &made {
            let Some(limit) = self.rules.largest(t.dtype) else { continue };
            let value = magnitude(t);
            let growth = (largest_input > 0.0).then(|| (value.abs() / largest_input).min(f64::MAX));
            if value.abs() <= largest_input || !t.kinds().is_finite() || self.is_known(value.abs(), limit) {
                continue;
            }
            let kind = if value.abs() >= row.share * limit {
                NearKind::Limit
            } else if growth.is_some_and(|g| g >= row.growth) && value.abs() >= limit.powf(row.exponent) {
                NearKind::Growth
            } else {
                continue;
            };
            self.keep(i, raw, argument, t, kind, value, limit, growth);
        }
    }

    fn remember(&mut self, magnitude: f64) {
        if self.known.len() < REMEMBERED && magnitude.is_finite() {
            self.known.insert(magnitude.to_bits());
        }
    }

    /// Whether somebody asked for this magnitude, or it is listed already.
    fn is_known(&self, magnitude: f64, limit: f64) -> bool {
        [1.0, 2.0, 4.0].iter().any(|d| (magnitude * d).to_bits() == limit.to_bits())
            || self.known.contains(&magnitude.to_bits())
    }

    #[allow(clippy::too_many_arguments)] // the near miss, taken apart
    fn keep(
        &mut self,
        i: u32,
        raw: &str,
        argument: &Argument,
        t: &TensorStat,
        kind: NearKind,
        value: f64,
        limit: f64,
        growth: Option<f64>,
    ) {
        self.remember(value.abs());
        self.kept.push(NearMiss {
            at: OpRef { op: i, name: raw.to_owned() },
            kind,
            slot: argument.slot.to_string(),
            dtype: t.dtype.to_owned(),
            shape: t.shape.to_vec(),
            value,
            limit,
            growth,
            // What went into the first bad op was there before it.
            before_first: self
                .first_bad
                .is_none_or(|first| i < first || (i == first && argument.slot.field.is_input())),
        });
        if self.kept.len() >= 4 * KEPT {
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.kept.sort_by(NearMiss::compare); // stable: equals stay in file order
        self.kept.truncate(KEPT);
    }

    pub(crate) fn finish(mut self) -> Vec<NearMiss> {
        self.settle();
        self.kept
    }
}

/// Max or Min, whichever is larger in magnitude, of what is finite; 0 without statistics.
fn magnitude(t: &TensorStat) -> f64 {
    let finite = |s: Option<f64>| s.filter(|n| n.is_finite()).unwrap_or(0.0);
    let (max, min) = (finite(t.max), finite(t.min));
    if t.is_floating() && min.abs() > max.abs() { min } else { max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Part, parse_op};

    fn t(max: &str, min: &str, dtype: &str) -> String {
        format!(r#"{{"type": "torch.Tensor", "dtype": "torch.{dtype}", "shape": [2], "Max": {max}, "Min": {min}}}"#)
    }

    fn look(ops: &[(&str, String, String)]) -> Vec<(u32, NearKind, f64)> {
        let rules = Rules::built_in();
        let mut nearness = Nearness::new(&rules, None);
        for (i, (raw, inputs, outputs)) in ops.iter().enumerate() {
            let body = format!(r#"{{"input_args": [{inputs}], "input_kwargs": {{}}, "output": [{outputs}]}}"#);
            let op = parse_op(body.as_bytes(), Part::ALL).expect("a record");
            let name = OpName::parse(raw);
            nearness.look(i as u32, raw, &name, &op, &rules.operator(&name));
        }
        nearness.finish().into_iter().map(|m| (m.at.op, m.kind, m.value)).collect()
    }

    #[test]
    fn where_a_value_was_made_and_not_where_it_went() {
        let (small, large) = (t("3.0", "-2.0", "float16"), t("9.0", "-60000.0", "float16"));
        let found = look(&[
            ("Torch.matmul.0.forward", small.clone(), large.clone()),
            ("Tensor.view.0.forward", large.clone(), large),
            ("Torch.exp.0.forward", small, t("2000.0", "1.0", "float16")),
        ]);
        assert_eq!(found, [(0, NearKind::Limit, -60000.0), (2, NearKind::Growth, 2000.0)]);
    }

    #[test]
    fn what_was_asked_for_is_not_near() {
        let small = t("3.0", "-2.0", "float16");
        let number = r#", {"type": "float", "value": -60000.0}"#;
        let found = look(&[
            ("Tensor.masked_fill.0.forward", format!("{small}{number}"), t("3.0", "-60000.0", "float16")),
            ("Torch.full.0.forward", String::new(), t("50000.0", "50000.0", "float16")),
            ("Tensor.__add__.0.forward", t("50000.0", "50000.0", "float16"), t("50000.0", "50000.0", "float16")),
            ("Tensor.where.0.forward", small.clone(), t("3.0", "-65504.0", "float16")),
            ("Torch.empty.0.forward", String::new(), t("64000.0", "0.0", "float16")),
            ("Distributed.irecv.0.forward", t("61000.0", "0.0", "float16"), t("61000.0", "0.0", "float16")),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn growth_far_from_the_end_is_no_news() {
        let found = look(&[
            ("Torch.sum.0.forward", t("3.0", "-2.0", "float32"), t("3000000.0", "0.0", "float32")),
            ("Torch.exp.0.forward", t("30.0", "-2.0", "float32"), t("1e13", "0.0", "float32")),
            ("Torch.exp.1.forward", t("40.0", "-2.0", "float32"), t("2e17", "0.0", "float32")),
        ]);
        assert_eq!(found, [(2, NearKind::Growth, 2e17), (1, NearKind::Growth, 1e13)]);
    }

    #[test]
    fn a_large_value_from_outside_is_listed_once() {
        let large = t("40000.0", "0.0", "float16");
        let found = look(&[
            ("Functional.relu.0.forward", large.clone(), large.clone()),
            ("Functional.relu.1.forward", large.clone(), large),
        ]);
        assert_eq!(found, [(0, NearKind::Limit, 40000.0)]);
    }
}
