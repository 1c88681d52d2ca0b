//! One rank as a picture: the name and the state of every op, small.
//!
//! In: the names of a dump in file order, and from the walk the state of each op that was looked at. Out: a
//! [`Chart`], collected only when it is asked for. What makes it small:
//!
//! * *Names.* A name is a [`Stem`] and the call number that stands in it. A rank has tens of thousands of ops and
//!   some hundred stems. Call numbers count up (forward) or down (backward) by one a stem; only where they do not
//!   ([`Chart::jumps`]) the number is kept. `Chart::names` gives every name back, byte by byte.
//! * *States.* Runs of equal states. Ops that the walk never looked at are clean.
//! * *Sites.* Module and code line of each op, from the files beside the dump, the same way.
//! * *Looks.* What is bad in an op (slot, dtype, shape, kind) recurs: one table, an index for each op that is not
//!   clean.
//!
//! Ranks are put together, with what they share stored once and a common axis, by [`crate::atlas`].

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::classify::OpState;
use crate::context::{Site, sites};
use crate::op::{Kinds, Op, Phase, Value};
use crate::rules::Rules;

/// Slots are user text: no look keeps more of one than this many characters.
const SLOT_KEPT: usize = 200;

/// A name without its call number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stem {
    /// What stands before the call number, or the whole name.
    pub before: String,
    /// What stands behind it; `None` where the name holds no number.
    pub after: Option<String>,
}

/// A bad value of an op.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spot {
    /// Where: `input_args[0]`.
    pub slot: String,
    /// `float16`, ... without `torch.`.
    pub dtype: String,
    /// Sizes by dimension.
    pub shape: Vec<i64>,
    /// What it holds.
    pub kinds: Kinds,
}

/// What is bad in an op: its first bad input and its first bad output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Look {
    /// Taken in.
    pub taken: Option<Spot>,
    /// Given out.
    pub given: Option<Spot>,
}

/// The ops of one rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Distinct stems, in the order they are met.
    pub stems: Vec<Stem>,
    /// Stem of each op, in file order.
    pub ops: Vec<u32>,
    /// Ops whose call number is not the expected one, and that number.
    pub jumps: Vec<(u32, u32)>,
    /// Parts of the step as runs: part, number of ops.
    pub phases: Vec<(Phase, u32)>,
    /// States as runs: state, number of ops.
    pub states: Vec<(OpState, u32)>,
    /// Distinct looks.
    pub looks: Vec<Look>,
    /// Look of each op that is neither clean nor unknown, in file order.
    pub seen: Vec<u32>,
    /// Distinct sites.
    pub sites: Vec<Site>,
    /// Site of each op as runs: site, number of ops; empty where neither modules nor code are recorded.
    pub stands: Vec<(u32, u32)>,
}

/// The call numbers of one stem, as they are expected to go on: by one, in the direction of the last change.
#[derive(Debug, Clone, Copy)]
struct Counter {
    last: i64,
    step: i64,
}

impl Counter {
    const START: Self = Self { last: -1, step: 1 };

    fn expected(self) -> i64 {
        self.last + self.step
    }

    /// Takes the next number; whether it was the expected one.
    fn take(&mut self, number: u32) -> bool {
        let number = i64::from(number);
        let as_expected = number == self.expected();
        if !as_expected {
            self.step = if number < self.last { -1 } else { 1 };
        }
        self.last = number;
        as_expected
    }
}

/// Splits a name at its last part that is a plain number.
fn split(name: &str) -> (&str, Option<(u32, &str)>) {
    let mut end = name.len();
    loop {
        let start = name[..end].rfind('.').map_or(0, |dot| dot + 1);
        let part = &name[start..end];
        let plain =
            !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
        if plain && let Ok(number) = part.parse() {
            return (&name[..start], Some((number, &name[end..])));
        }
        if start == 0 {
            return (name, None);
        }
        end = start - 1;
    }
}

impl Chart {
    /// Takes in the names and parts of the step, in file order.
    pub(crate) fn take_names<'n>(&mut self, ops: impl Iterator<Item = (std::borrow::Cow<'n, str>, Phase)>) {
        let mut known: FxHashMap<Stem, u32> = FxHashMap::default();
        let mut counters: Vec<Counter> = Vec::new();
        for (i, (name, phase)) in ops.enumerate() {
            let (before, rest) = split(&name);
            let stem = Stem { before: before.to_owned(), after: rest.map(|(_, after)| after.to_owned()) };
            let id = *known.entry(stem).or_insert_with_key(|stem| {
                self.stems.push(stem.clone());
                counters.push(Counter::START);
                self.stems.len() as u32 - 1
            });
            self.ops.push(id);
            if let Some((number, _)) = rest
                && !counters[id as usize].take(number)
            {
                self.jumps.push((i as u32, number));
            }
            extend(&mut self.phases, phase, 1);
        }
    }

    /// Takes in where the ops stand, from the files beside the dump; what came from a file that is not given stays.
    pub(crate) fn take_sites(&mut self, construct: Option<&[u8]>, stack: Option<&[u8]>, rules: &Rules) {
        if construct.is_none() && stack.is_none() {
            return;
        }
        let (before, runs) = (std::mem::take(&mut self.sites), std::mem::take(&mut self.stands));
        let mut before =
            runs.iter().flat_map(|&(id, count)| std::iter::repeat_n(before.get(id as usize), count as usize));
        let (mut all, mut stands) = (Vec::new(), Vec::new());
        let mut known: FxHashMap<Site, u32> = FxHashMap::default();
        sites(construct, stack, self.names(), rules, |mut site| {
            let kept = before.next().flatten().cloned().unwrap_or_default();
            if construct.is_none() {
                site.module = kept.module;
            }
            if stack.is_none() {
                (site.place, site.code) = (kept.place, kept.code);
            }
            let id = *known.entry(site).or_insert_with_key(|site| {
                all.push(site.clone());
                all.len() as u32 - 1
            });
            extend(&mut stands, id, 1);
        });
        (self.sites, self.stands) = (all, stands);
    }

    /// Every name, in file order.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let mut counters = vec![Counter::START; self.stems.len()];
        let mut jumps = self.jumps.iter().peekable();
        self.ops.iter().enumerate().map(move |(i, &id)| {
            let Some(stem) = self.stems.get(id as usize) else { return String::new() };
            let Some(after) = &stem.after else { return stem.before.clone() };
            let counter = &mut counters[id as usize];
            let number = match jumps.next_if(|jump| jump.0 as usize == i) {
                Some(&(_, number)) => number,
                None => u32::try_from(counter.expected()).unwrap_or_default(),
            };
            counter.take(number);
            format!("{}{number}{after}", stem.before)
        })
    }
}

impl Chart {
    /// Whether the chart says something of each of `ops` ops and nothing else: charts also come from files.
    pub(crate) fn is_sound(&self, ops: u32) -> bool {
        let length = |runs: &mut dyn Iterator<Item = u32>| runs.map(u64::from).sum::<u64>() == u64::from(ops);
        let notable = |s: &&(OpState, u32)| !matches!(s.0, OpState::Clean | OpState::Unknown);
        let seen: u64 = self.states.iter().filter(notable).map(|s| u64::from(s.1)).sum();
        self.ops.len() == ops as usize
            && self.ops.iter().all(|&id| (id as usize) < self.stems.len())
            && self.jumps.iter().all(|j| j.0 < ops)
            && length(&mut self.phases.iter().map(|p| p.1))
            && length(&mut self.states.iter().map(|s| s.1))
            && self.seen.len() as u64 == seen
            && self.seen.iter().all(|&id| (id as usize) < self.looks.len())
            && (self.stands.is_empty() || length(&mut self.stands.iter().map(|s| s.1)))
            && self.stands.iter().all(|s| (s.0 as usize) < self.sites.len())
    }
}

/// Lengthens the last run, or begins one.
fn extend<T: PartialEq>(runs: &mut Vec<(T, u32)>, what: T, count: u32) {
    match runs.last_mut() {
        _ if count == 0 => {}
        Some(last) if last.0 == what => last.1 += count,
        _ => runs.push((what, count)),
    }
}

/// A chart while the walk goes on.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    chart: Chart,
    known: FxHashMap<Look, u32>,
}

impl Draft {
    /// Notes the look of the next op in file order, if ops of its state have one.
    pub(crate) fn note(&mut self, state: OpState, look: impl FnOnce() -> Look) {
        if matches!(state, OpState::Clean | OpState::Unknown) {
            return;
        }
        let chart = &mut self.chart;
        let id = *self.known.entry(look()).or_insert_with_key(|look| {
            chart.looks.push(look.clone());
            chart.looks.len() as u32 - 1
        });
        chart.seen.push(id);
    }

    /// The chart of a rank whose ops ended up in these states; no look is kept where it has no statistics.
    pub(crate) fn finish(mut self, states: &[OpState], has_statistics: bool) -> Chart {
        if !has_statistics {
            self.chart.looks.clear();
            self.chart.seen.clear();
        }
        for run in states.chunk_by(PartialEq::eq) {
            self.chart.states.push((run[0], run.len() as u32));
        }
        self.chart
    }
}

impl Look {
    /// What is bad in a record. `recorded`: the record's own keys are its values.
    pub(crate) fn of(op: &Op, recorded: bool) -> Self {
        let mut look = Self::default();
        for argument in &op.arguments {
            let Value::Tensor(t) = &argument.value else { continue };
            let kinds = t.kinds();
            if kinds.is_finite() {
                continue;
            }
            let input = argument.slot.field.is_input() && !recorded;
            let side = if input { &mut look.taken } else { &mut look.given };
            if side.is_none() {
                let mut slot = argument.slot.to_string();
                if let Some((cut, _)) = slot.char_indices().nth(SLOT_KEPT) {
                    slot.truncate(cut);
                    slot.push_str("...");
                }
                let dtype = t.dtype.strip_prefix("torch.").unwrap_or(t.dtype).to_owned();
                *side = Some(Spot { slot, dtype, shape: t.shape.to_vec(), kinds });
            }
        }
        look
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn charted(names: &[&str]) -> Chart {
        let mut chart = Chart::default();
        chart.take_names(names.iter().map(|n| (Cow::Borrowed(*n), Phase::Forward)));
        chart
    }

    #[test]
    fn every_name_comes_back() {
        let names = [
            "Functional.linear.0.forward",
            "Functional.linear.1.forward",
            "Module.layers.0.mlp.Linear.forward.0",
            "Module.layers.1.mlp.Linear.parameters_grad",
            "Functional.linear.1.backward",
            "Functional.linear.0.backward",
            "Functional.linear.7.forward",
            "Functional.linear.5.forward",
            "Functional.linear.4.forward",
            "all_reduce_0_0",
            "",
            ".",
            "0",
            "00.1.007",
            "x.99999999999999999999.forward",
            "日本.3.é",
        ];
        assert_eq!(charted(&names).names().collect::<Vec<_>>(), names);
    }

    #[test]
    fn numbers_that_go_on_are_not_kept() {
        let up: Vec<String> = (0..50).map(|n| format!("a.{n}.forward")).collect();
        let down: Vec<String> = (0..50).rev().map(|n| format!("a.{n}.backward")).collect();
        let names: Vec<&str> = up.iter().chain(&down).map(String::as_str).collect();
        let chart = charted(&names);
        assert_eq!(chart.jumps, [(50, 49), (51, 48)]);
        assert_eq!(
            (chart.stems.len(), chart.names().collect::<Vec<_>>()),
            (2, names.iter().map(|n| (*n).to_owned()).collect())
        );
    }

    #[test]
    fn states_are_runs_and_looks_are_of_those_that_are_not_clean() {
        use OpState::{Clean, Origin, Propagated, Unknown};
        let mut draft = Draft::default();
        for state in [Clean, Origin, Propagated, Propagated] {
            draft.note(state, Look::default);
        }
        let chart = draft.finish(&[Clean, Clean, Propagated, Propagated, Propagated, Clean], true);
        assert_eq!(
            (chart.states.as_slice(), chart.seen),
            ([(Clean, 2), (Propagated, 3), (Clean, 1)].as_slice(), vec![0, 0, 0])
        );
        let mut draft = Draft::default();
        draft.note(Origin, Look::default);
        let chart = draft.finish(&[Unknown; 4], false);
        assert_eq!((chart.states.as_slice(), chart.seen.len()), ([(Unknown, 4)].as_slice(), 0));
    }
}
