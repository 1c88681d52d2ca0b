//! An op's evidence and what the table says of it -> its state.
//!
//! In: which kinds of non-finite number stand in its outputs, and what its non-finite inputs mean (see
//! [`crate::provenance`]). Out: a [`Judgement`]. A pure function; knows nothing of other ops, of communication or
//! of files. Rule numbers are those of `docs/semantics.md`.

use serde::{Deserialize, Serialize};

use crate::op::Kinds;

/// State of an op, as counted in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpState {
    /// Finite in, finite out.
    Clean,
    /// Finite (or intended) in, non-finite out; or the first reader of a bad value that nobody produced.
    Origin,
    /// Non-finite in, non-finite out.
    Propagated,
    /// Non-finite in, finite out.
    Absorbed,
    /// Carries non-finite values that were asked for.
    Intended,
    /// Shows memory nobody wrote.
    Ignored,
    /// Cannot be judged: no statistics.
    Unknown,
}

impl OpState {
    /// The word used in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["clean", "origin", "propagated", "absorbed", "intended", "ignored", "unknown"][self as usize]
    }
}

/// What is known of one op.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evidence {
    /// Kinds in the outputs.
    pub(crate) out: Kinds,
    /// Whether there is an output that could hold a non-finite number and has statistics.
    pub(crate) has_output: bool,
    /// An input came from an overflow.
    pub(crate) real: bool,
    /// An input is bad and nobody produced it.
    pub(crate) unexplained: bool,
    /// An input is memory nobody wrote.
    pub(crate) garbage: bool,
    /// Kinds of the intended inputs, scalars included.
    pub(crate) intended: Kinds,
    /// The table: returns memory as it was.
    pub(crate) uninitialised: bool,
    /// The table: makes values from nothing.
    pub(crate) creates: bool,
    /// The table: passes values on.
    pub(crate) carries: bool,
    /// The table: may exchange the signs of infinities.
    pub(crate) flips_sign: bool,
}

/// What an op did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    Clean,
    /// Finite in, bad out.
    Origin,
    /// Only intended values in, but another kind out (rule 3): softmax over a fully masked row.
    Promoted,
    Propagated,
    /// First reader of a bad value that nobody produced (rule 5).
    Unexplained,
    /// Bad in, finite out.
    Absorbed,
    /// Bad in, nothing out that could hold it (predicates, indices): neither heals nor carries.
    Observed,
    Intended,
    Garbage,
}

pub(crate) fn judge(e: &Evidence) -> Judgement {
    let bad_input = e.real || e.unexplained || e.garbage || !e.intended.is_finite();
    if e.out.is_finite() {
        return match (bad_input, e.has_output) {
            (false, _) => Judgement::Clean,
            (true, true) => Judgement::Absorbed,
            (true, false) => Judgement::Observed,
        };
    }
    if e.real {
        return Judgement::Propagated; // rule 4
    }
    if e.unexplained {
        return Judgement::Unexplained; // rule 5
    }
    let allowed = if e.flips_sign { e.intended.with_either_sign() } else { e.intended };
    if !e.intended.is_finite() && allowed.contains(e.out) {
        return Judgement::Intended; // rule 1
    }
    if e.garbage {
        // Rule 2: views of unwritten memory prove nothing; computing with it is a fault once it does harm.
        return if e.carries { Judgement::Garbage } else { Judgement::Unexplained };
    }
    if e.uninitialised {
        return Judgement::Garbage; // rule 2
    }
    if !e.intended.is_finite() {
        return Judgement::Promoted; // rule 3
    }
    if e.creates { Judgement::Intended } else { Judgement::Origin }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(f: impl FnOnce(&mut Evidence)) -> Judgement {
        let mut e = Evidence { has_output: true, ..Evidence::default() };
        f(&mut e);
        judge(&e)
    }

    #[test]
    fn the_four_plain_states() {
        assert_eq!(with(|_| ()), Judgement::Clean);
        assert_eq!(with(|e| e.out = Kinds::NAN), Judgement::Origin);
        assert_eq!(with(|e| (e.out, e.real) = (Kinds::NAN, true)), Judgement::Propagated);
        assert_eq!(with(|e| e.real = true), Judgement::Absorbed);
        assert_eq!(with(|e| (e.real, e.has_output) = (true, false)), Judgement::Observed);
    }

    #[test]
    fn masks_are_excused_narrowly() {
        let mask = |out, flips| with(|e| (e.intended, e.out, e.flips_sign) = (Kinds::NEG_INF, out, flips));
        assert_eq!(mask(Kinds::NEG_INF, false), Judgement::Intended);
        assert_eq!(mask(Kinds::POS_INF, false), Judgement::Promoted);
        assert_eq!(mask(Kinds::POS_INF, true), Judgement::Intended);
        assert_eq!(mask(Kinds::NAN, true), Judgement::Promoted);
    }

    #[test]
    fn unwritten_memory() {
        assert_eq!(with(|e| (e.out, e.uninitialised) = (Kinds::NAN, true)), Judgement::Garbage);
        assert_eq!(with(|e| (e.out, e.garbage, e.carries) = (Kinds::NAN, true, true)), Judgement::Garbage);
        assert_eq!(with(|e| (e.out, e.garbage) = (Kinds::NAN, true)), Judgement::Unexplained);
    }

    #[test]
    fn creators_mean_what_they_make() {
        assert_eq!(with(|e| (e.out, e.creates) = (Kinds::NEG_INF, true)), Judgement::Intended);
    }
}
