//! One look at every op of a rank, for those who asked for it.
//!
//! The analysis parses only the ops that matter. Near misses, levels and the table of all ops need each of them; this
//! room parses every op once, in file order, and hands it to all who asked.

use crate::classify::OpState;
use crate::level::{LevelCount, Levels, level};
use crate::near::{NearMiss, Nearness};
use crate::op::{Op, OpName};
use crate::progress::Watch;
use crate::rules::OperatorRules;
use crate::timeline::OpRef;
use crate::walk::Walk;

/// What a timeline should hold beyond what the answer needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Near misses.
    pub near: bool,
    /// msProbe's levels.
    pub levels: bool,
    /// Losses and gradient norms.
    pub trend: bool,
    /// Each rank's execution drawn small.
    pub strip: bool,
    /// The name and state of every op, for drawing ([`crate::Report::atlas`]).
    pub chart: bool,
}

impl Wanted {
    /// Everything: for summaries, of which anything may be asked later.
    pub const ALL: Self = Self { near: true, levels: true, trend: true, strip: true, chart: true };
}

/// One op, as those who look at every op see it.
pub(crate) struct Seen<'o, 'a> {
    /// Place in the file.
    pub(crate) i: u32,
    /// Name, escapes resolved.
    pub(crate) raw: &'o str,
    /// The name in parts.
    pub(crate) name: OpName<'o>,
    /// Its values; `None` when the record is malformed.
    pub(crate) op: Option<&'o Op<'a>>,
    /// Its state.
    pub(crate) state: OpState,
    /// What the table says of it.
    pub(crate) operator: &'o OperatorRules<'a>,
}

/// Near misses and levels of a rank that was walked.
pub(crate) fn survey(
    walk: &mut Walk,
    first_bad: Option<u32>,
    wanted: Wanted,
    watch: &Watch,
) -> (Vec<NearMiss>, Option<Levels>) {
    if !wanted.near && !wanted.levels {
        return (Vec::new(), None);
    }
    let rules = walk.rules();
    let mut nearness = Nearness::new(rules, first_bad);
    let mut levels = LevelCount::new(rules);
    walk.each(watch, &mut |seen| {
        let Some(op) = seen.op else { return };
        if wanted.near {
            nearness.look(seen.i, seen.raw, &seen.name, op, seen.operator);
        }
        if wanted.levels {
            let leveled = level(seen.i, &seen.name, op, seen.operator, rules);
            levels.add(|| OpRef { op: seen.i, name: seen.raw.to_owned() }, leveled);
        }
    });
    (nearness.finish(), wanted.levels.then(|| levels.finish()))
}
