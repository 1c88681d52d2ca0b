//! Numbers that people follow from step to step: losses and gradient norms of one rank.
//!
//! A *loss* is a single number that a forward call gave out and whose gradient starts a run of backward records
//! (as for [`Symptom::Loss`]); where no gradient is dumped, what an operator of the rule `loss` gave out. A
//! *gradient norm* is a single number that an operator of the rule `norm` gave out behind the last gradient; without
//! one it is computed from the recorded norms of the weights' gradients (`parameters_grad`). Only the records in
//! question are parsed.
//!
//! [`Symptom::Loss`]: crate::timeline::Symptom::Loss

use rustc_hash::FxHashSet;

use super::Walk;
use crate::op::{Field, OpName, TensorStat, Value};
use crate::parse::{Part, parse_op};
use crate::rules::Is;
use crate::scan::Class;
use crate::timeline::{Reading, Trend};

/// Losses kept (micro batches).
const LOSSES_KEPT: usize = 64;

impl Walk<'_> {
    pub(crate) fn trend(&self) -> Trend {
        Trend { losses: self.loss_values(), gradient_norm: self.norm_value().or_else(|| self.norm_of_weights()) }
    }

    fn loss_values(&self) -> Vec<Reading> {
        let mut found = Vec::new();
        if self.first_backward.is_some() {
            let wanted = self.losses_by_name();
            for (i, entry) in self.index.entries.iter().enumerate() {
                if self.classes[i] == Class::Forward && wanted.contains(entry.name(self.bytes)) {
                    found.extend(self.single_output(i as u32));
                }
            }
        } else {
            for i in 0..self.index.entries.len() as u32 {
                let raw = self.name(i);
                let name = OpName::parse(&raw);
                if self.rules.operator(&name).says(Is::Loss) {
                    found.extend(self.single_output(i));
                }
            }
            // A module and the function inside it give the same number.
            found.dedup_by(|later, earlier| later.value.map(f64::to_bits) == earlier.value.map(f64::to_bits));
        }
        let omitted = found.len().saturating_sub(LOSSES_KEPT);
        found.drain(..omitted);
        found
    }

    /// Raw names of the forward calls whose gradients start a run of backwards.
    fn losses_by_name(&self) -> FxHashSet<Vec<u8>> {
        let mut names = FxHashSet::default();
        for op in self.gradients_of_losses() {
            let raw = self.index.entries.at(op as usize).name(self.bytes);
            if let Some(at) = memchr::memmem::rfind(raw, b".backward") {
                names.insert([&raw[..at], b".forward", &raw[at + b".backward".len()..]].concat());
            }
        }
        names
    }

    /// The first output of an op, if it is a single number of a floating dtype.
    fn single_output(&self, i: u32) -> Option<Reading> {
        let op = parse_op(self.index.entries.at(i as usize).body(self.bytes), Part::ALL).ok()?;
        let value = op.arguments.iter().find_map(|a| match &a.value {
            Value::Tensor(t) if a.slot.field == Field::Output => Some(t),
            _ => None,
        })?;
        let number = |t: &TensorStat| t.max.or(t.mean).or(t.norm);
        let single = value.numel() == 1 && value.is_floating();
        single.then(|| number(value)).flatten().map(|n| Reading { at: Some(self.op_ref(i)), value: Some(n + 0.0) })
    }

    /// The largest norm behind the last gradient: a total is not smaller than its parts.
    fn norm_value(&self) -> Option<Reading> {
        let last = self.last_backward?;
        let mut best: Option<Reading> = None;
        for i in last + 1..self.index.entries.len() as u32 {
            let raw = self.name(i);
            if !self.rules.operator(&OpName::parse(&raw)).says(Is::Norm) {
                continue;
            }
            let Some(reading) = self.single_output(i) else { continue };
            let beats = |new: f64, old: f64| !old.is_nan() && (new.is_nan() || new > old);
            if best.as_ref().and_then(|b| b.value).is_none_or(|old| reading.value.is_some_and(|new| beats(new, old))) {
                best = Some(reading);
            }
        }
        best
    }

    fn norm_of_weights(&self) -> Option<Reading> {
        let mut squares: Option<f64> = None;
        for (i, entry) in self.index.entries.iter().enumerate() {
            if self.classes[i] != Class::Gradient {
                continue;
            }
            let Ok(op) = parse_op(entry.body(self.bytes), Part::All { recorded: true }) else { continue };
            for argument in &op.arguments {
                if let Value::Tensor(t) = &argument.value {
                    // The norm of a low-precision tensor may overflow by itself; its elements tell then.
                    let norm = t.norm.filter(|n| n.is_finite() || !t.kinds().is_finite());
                    squares = norm.map(|n| squares.unwrap_or(0.0) + n * n).or(squares);
                }
            }
        }
        squares.map(|s| Reading { at: None, value: Some(s.sqrt()) })
    }
}
