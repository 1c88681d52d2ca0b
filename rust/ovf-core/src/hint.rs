//! Likely causes: conditions on a finding, and what to say when they hold.
//!
//! In: the rows of the rules table and the facts of one finding. Out: the first row that fits. Rows are data with a
//! source; nothing here knows an operator.

use serde::{Deserialize, Serialize};

use crate::op::{Direction, Kinds, OpName};
use crate::pattern::fits;

/// Which tensors of an op a condition looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// What went in.
    Input,
    /// What came out.
    Output,
    /// Of a backward op: what the forward call took in.
    Forward,
}

/// A condition on one tensor; it holds when some tensor of that side fulfils everything given.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueCondition {
    /// Which tensors.
    pub of: Side,
    /// Only the tensor in this slot, like `input_args[1]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<String>,
    /// Whether 0 lies between Min and Max.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spans_zero: Option<bool>,
    /// Whether every element is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_zero: Option<bool>,
    /// Min is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_below: Option<f64>,
    /// The largest magnitude is above this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above: Option<f64>,
    /// Whether it is a single number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scalar: Option<bool>,
    /// dtype, without `torch.`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dtype: Vec<String>,
    /// The op that made it (patterns).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made_by: Vec<String>,
}

/// When a hint applies; every given condition must hold.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HintCondition {
    /// API names (patterns).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api: Vec<String>,
    /// Kind of finding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// Kinds of number in the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// `forward`, `backward`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub direction: Vec<String>,
    /// `forward`, `backward`, `optimizer`: part of the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phase: Vec<String>,
    /// Whether it is a module's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<bool>,
    /// dtype of a bad output, without `torch.`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_dtype: Vec<String>,
    /// An input holds one of these kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_has: Vec<String>,
    /// Every finite input magnitude is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_below: Option<f64>,
    /// Conditions on single tensors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<ValueCondition>,
}

/// One likely cause.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HintRow {
    /// When it applies.
    pub when: HintCondition,
    /// What likely happened.
    pub text: String,
    /// What to look at next.
    pub check: String,
    /// Where the knowledge is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// One tensor as a hint sees it.
#[derive(Debug, Clone)]
pub struct ValueFacts<'a> {
    /// Which side it stands on.
    pub side: Side,
    /// Where.
    pub slot: &'a str,
    /// dtype, without `torch.`.
    pub dtype: &'a str,
    /// Number of elements.
    pub numel: i64,
    /// Largest element.
    pub max: Option<f64>,
    /// Smallest element.
    pub min: Option<f64>,
    /// The op that made it, where known.
    pub made_by: Option<&'a str>,
}

/// What a hint is judged by.
#[derive(Debug, Clone)]
pub struct HintFacts<'a> {
    /// The op.
    pub name: OpName<'a>,
    /// Kind of finding.
    pub kind: &'a str,
    /// Part of the step.
    pub phase: &'a str,
    /// Kinds in the outputs (or, without outputs, the inputs).
    pub kinds: Kinds,
    /// Its tensors.
    pub values: Vec<ValueFacts<'a>>,
}

impl ValueFacts<'_> {
    fn kinds(&self) -> Kinds {
        let of = |s: Option<f64>| s.map_or(Kinds::NONE, Kinds::of);
        of(self.max).union(of(self.min))
    }

    fn magnitude(&self) -> f64 {
        [self.max, self.min].into_iter().flatten().filter(|n| n.is_finite()).fold(0.0, |m, n| m.max(n.abs()))
    }
}

impl ValueCondition {
    fn holds(&self, value: &ValueFacts) -> bool {
        let zero = |n: Option<f64>| n == Some(0.0);
        let spans = value.min.is_some_and(|n| n <= 0.0) && value.max.is_some_and(|n| n >= 0.0);
        let made_by = |patterns: &[String]| {
            value.made_by.map(OpName::parse).is_some_and(|maker| patterns.iter().any(|p| fits(p, &maker)))
        };
        self.of == value.side
            && self.slot.as_ref().is_none_or(|s| s == value.slot)
            && self.spans_zero.is_none_or(|wanted| wanted == spans)
            && self.all_zero.is_none_or(|wanted| wanted == (zero(value.max) && zero(value.min)))
            && self.min_below.is_none_or(|limit| value.min.is_some_and(|n| n < limit))
            && self.above.is_none_or(|limit| value.magnitude() > limit)
            && self.scalar.is_none_or(|wanted| wanted == (value.numel == 1))
            && (self.dtype.is_empty() || self.dtype.iter().any(|d| d == value.dtype))
            && (self.made_by.is_empty() || made_by(&self.made_by))
    }
}

impl HintCondition {
    fn holds(&self, facts: &HintFacts) -> bool {
        let any = |list: &[String], test: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|s| test(s));
        let has = |kinds: Kinds, name: &str| {
            kinds.contains(match name {
                "nan" => Kinds::NAN,
                "+inf" => Kinds::POS_INF,
                "-inf" => Kinds::NEG_INF,
                _ => return false,
            })
        };
        let direction = match facts.name.direction {
            Direction::Forward | Direction::Debug => "forward",
            Direction::Backward | Direction::ParametersGrad => "backward",
        };
        let inputs = || facts.values.iter().filter(|v| v.side == Side::Input);
        let bad_output =
            |d: &str| facts.values.iter().any(|v| v.side == Side::Output && !v.kinds().is_finite() && v.dtype == d);
        any(&self.api, &|p| fits(p, &facts.name))
            && any(&self.kind, &|k| k == facts.kind)
            && any(&self.kinds, &|k| has(facts.kinds, k))
            && any(&self.direction, &|d| d == direction)
            && any(&self.phase, &|p| p == facts.phase)
            && self.module.is_none_or(|wanted| wanted == facts.name.is_module())
            && any(&self.output_dtype, &bad_output)
            && any(&self.input_has, &|k| inputs().any(|v| has(v.kinds(), k)))
            && self.input_below.is_none_or(|limit| inputs().all(|v| v.magnitude() < limit))
            && self.values.iter().all(|c| facts.values.iter().any(|v| c.holds(v)))
    }
}

/// The first row that fits.
pub(crate) fn likely<'r>(rows: &'r [HintRow], facts: &HintFacts) -> Option<&'r HintRow> {
    rows.iter().find(|row| row.when.holds(facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(side: Side, slot: &'static str, max: f64, min: f64) -> ValueFacts<'static> {
        ValueFacts { side, slot, dtype: "float32", numel: 4, max: Some(max), min: Some(min), made_by: None }
    }

    fn row(when: &str, text: &str) -> HintRow {
        let when: HintCondition = serde_json::from_str(when).expect("a condition");
        HintRow { when, text: text.to_owned(), check: String::new(), source: String::new() }
    }

    #[test]
    fn the_first_row_that_holds_in_everything_counts() {
        let rows = [
            row(r#"{"api": ["div"], "values": [{"of": "input", "slot": "input_args[1]", "all_zero": true}]}"#, "all"),
            row(
                r#"{"api": ["div"], "values": [{"of": "input", "slot": "input_args[1]", "spans_zero": true}]}"#,
                "some",
            ),
            row(r#"{"kinds": ["+inf"], "input_below": 2.0}"#, "range"),
        ];
        let facts = |divisor: (f64, f64)| HintFacts {
            name: OpName::parse("Torch.div.0.forward"),
            kind: "compute",
            phase: "forward",
            kinds: Kinds::POS_INF,
            values: vec![
                value(Side::Input, "input_args[0]", 1.0, 0.5),
                value(Side::Input, "input_args[1]", divisor.0, divisor.1),
                value(Side::Output, "output[0]", f64::INFINITY, 1.0),
            ],
        };
        let said = |divisor| likely(&rows, &facts(divisor)).map(|r| r.text.as_str());
        assert_eq!(said((0.0, 0.0)), Some("all"));
        assert_eq!(said((3.0, 0.0)), Some("some"));
        assert_eq!(said((1.5, 1.0)), Some("range"));
        assert_eq!(said((2.5, 1.0)), None);
    }

    #[test]
    fn makers_are_patterns() {
        let rows = [row(r#"{"values": [{"of": "input", "made_by": ["*norm*"]}]}"#, "norm")];
        let mut facts = HintFacts {
            name: OpName::parse("Torch.div.0.forward"),
            kind: "compute",
            phase: "forward",
            kinds: Kinds::NAN,
            values: vec![value(Side::Input, "input_args[1]", 1.0, 0.0)],
        };
        assert!(likely(&rows, &facts).is_none());
        facts.values[0].made_by = Some("Torch.linalg_norm.3.forward");
        assert!(likely(&rows, &facts).is_some());
    }
}
