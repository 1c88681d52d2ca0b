//! All ranks as one picture: every rank's chart, with what ranks share stored once, on a common axis.
//!
//! In: timelines with charts, and their matching. Out: an [`Atlas`], plain data for a renderer. Ranks of one place
//! in the layout (tensor and data parallel neighbours) have the same list of names, the same states, the same gaps:
//! whole lists are kept once and numbered. Lists of numbers are flat, so that 512 ranks of 20,000 ops stay small as
//! JSON and quick to read. `docs/report.md` describes every field.

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::axis::{Gaps, align};
use crate::chart::{Chart, Look, Spot, Stem};
use crate::classify::OpState;
use crate::collective::Matching;
use crate::communication::GroupKey;
use crate::context::Site;
use crate::op::{Phase, Rank};
use crate::timeline::{Cause, Timeline};

/// States, as numbered in [`Atlas::states`].
const STATES: [OpState; 7] = [
    OpState::Clean,
    OpState::Origin,
    OpState::Propagated,
    OpState::Absorbed,
    OpState::Intended,
    OpState::Ignored,
    OpState::Unknown,
];
/// Parts of the step, as numbered in [`NameList::phases`].
const PHASES: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Optimizer];

/// The names of a rank's ops.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize)]
pub struct NameList {
    /// Stem of each op.
    pub ops: Vec<u32>,
    /// Call numbers that do not go on by one: op, number, op, number, ...
    pub jumps: Vec<u32>,
    /// Parts of the step: part, number of ops, ...
    pub phases: Vec<u32>,
}

/// A bad value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpotView {
    /// `input_args[0]`.
    pub slot: String,
    /// `float16`, ...
    pub dtype: String,
    /// Sizes by dimension.
    pub shape: Vec<i64>,
    /// `nan`, `+inf`, `-inf`: the worst it holds.
    pub class: &'static str,
}

/// A root of a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Root {
    /// Its op.
    pub op: u32,
    /// Why it is one.
    pub cause: Cause,
    /// Whether it does harm; otherwise it is healed.
    pub harm: bool,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankRow {
    /// Global rank.
    pub rank: Rank,
    /// Number of ops.
    pub ops: u32,
    /// Index into [`Atlas::names`].
    pub names: u32,
    /// Index into [`Atlas::states`].
    pub states: u32,
    /// Index into [`Atlas::seen`].
    pub seen: u32,
    /// Index into [`Atlas::gaps`].
    pub gaps: u32,
    /// Index into [`Atlas::stands`].
    pub stands: u32,
    /// Groups the rank's communications name: indexes into [`Atlas::groups`].
    pub groups: Vec<u32>,
    /// Where bad values begin on the rank.
    pub roots: Vec<Root>,
    /// Whether only the first roots are listed.
    pub roots_omitted: bool,
}

/// Every op of every rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Atlas {
    /// Words for the numbers in `states`.
    pub state_names: [OpState; 7],
    /// Words for the numbers in `phases`.
    pub phase_names: [Phase; 3],
    /// Names without their call numbers: before it, behind it (null: no number).
    pub stems: Vec<(String, Option<String>)>,
    /// Lists of names.
    pub names: Vec<NameList>,
    /// Lists of states: state, number of ops, state, ...
    pub states: Vec<Vec<u32>>,
    /// What is bad in ops: taken in, given out.
    pub looks: Vec<(Option<SpotView>, Option<SpotView>)>,
    /// For each op that is neither clean nor unknown, its look.
    pub seen: Vec<Vec<u32>>,
    /// Where ops move right on the common axis: op, by how many units more, op, ...
    pub gaps: Vec<Vec<u32>>,
    /// Modules and code lines: module record, `file:line in function`, source line.
    pub sites: Vec<(Option<String>, Option<String>, Option<String>)>,
    /// Lists of sites: site, number of ops, site, ...; empty where nothing is recorded.
    pub stands: Vec<Vec<u32>>,
    /// Process groups.
    pub groups: Vec<GroupKey>,
    /// Ranks, ascending; ranks without a chart are left out.
    pub ranks: Vec<RankRow>,
}

/// Things kept once, numbered as they come.
struct Shared<T> {
    all: Vec<T>,
    known: FxHashMap<T, u32>,
}

impl<T: Hash + Eq + Clone> Shared<T> {
    fn new() -> Self {
        Self { all: Vec::new(), known: FxHashMap::default() }
    }

    fn number(&mut self, thing: T) -> u32 {
        *self.known.entry(thing).or_insert_with_key(|thing| {
            self.all.push(thing.clone());
            self.all.len() as u32 - 1
        })
    }
}

/// Draws all ranks that have a chart.
pub(crate) fn draw(timelines: &[Timeline], matching: &Matching) -> Atlas {
    let mut stems: Shared<Stem> = Shared::new();
    let mut looks: Shared<Look> = Shared::new();
    let mut names: Shared<NameList> = Shared::new();
    let mut sites: Shared<Site> = Shared::new();
    let mut numbers: [Shared<Vec<u32>>; 4] = std::array::from_fn(|_| Shared::new());
    let mut groups: Vec<GroupKey> = timelines.iter().flat_map(|t| t.groups.iter().cloned()).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut ranks = Vec::new();
    for (timeline, gaps) in timelines.iter().zip(align(timelines, matching)) {
        let Some(chart) = timeline.chart.as_ref().filter(|chart| chart.is_sound(timeline.ops)) else { continue };
        let stem_of: Vec<u32> = chart.stems.iter().map(|s| stems.number(s.clone())).collect();
        let look_of: Vec<u32> = chart.looks.iter().map(|l| looks.number(l.clone())).collect();
        let site_of: Vec<u32> = chart.sites.iter().map(|s| sites.number(s.clone())).collect();
        let [states, seen, shifts, stands] = &mut numbers;
        ranks.push(RankRow {
            rank: timeline.rank,
            ops: timeline.ops,
            names: names.number(name_list(chart, &stem_of)),
            states: states.number(flat(chart.states.iter().map(|&(state, count)| (place(&STATES, &state), count)))),
            seen: seen.number(chart.seen.iter().map(|&id| look_of[id as usize]).collect()),
            gaps: shifts.number(flat::<Gaps>(gaps)),
            stands: stands.number(flat(chart.stands.iter().map(|&(id, count)| (site_of[id as usize], count)))),
            groups: timeline.groups.iter().filter_map(|g| groups.binary_search(g).ok().map(|at| at as u32)).collect(),
            roots: timeline
                .marks
                .iter()
                .filter(|m| m.cause != Cause::Received)
                .map(|m| Root { op: m.at.op, cause: m.cause, harm: m.harm })
                .collect(),
            roots_omitted: timeline.marks_omitted > 0,
        });
    }
    let [states, seen, shifts, stands] = numbers;
    let view = |spot: Option<Spot>| {
        spot.map(|s| SpotView { slot: s.slot, dtype: s.dtype, shape: s.shape, class: s.kinds.name() })
    };
    Atlas {
        state_names: STATES,
        phase_names: PHASES,
        stems: stems.all.into_iter().map(|s| (s.before, s.after)).collect(),
        names: names.all,
        states: states.all,
        looks: looks.all.into_iter().map(|l| (view(l.taken), view(l.given))).collect(),
        seen: seen.all,
        gaps: shifts.all,
        sites: sites.all.into_iter().map(|s| (s.module, s.place, s.code)).collect(),
        stands: stands.all,
        groups,
        ranks,
    }
}

fn name_list(chart: &Chart, stem_of: &[u32]) -> NameList {
    NameList {
        ops: chart.ops.iter().map(|&id| stem_of[id as usize]).collect(),
        jumps: flat(chart.jumps.iter().copied()),
        phases: flat(chart.phases.iter().map(|&(phase, count)| (place(&PHASES, &phase), count))),
    }
}

fn flat<I: IntoIterator<Item = (u32, u32)>>(pairs: I) -> Vec<u32> {
    pairs.into_iter().flat_map(|(a, b)| [a, b]).collect()
}

fn place<T: PartialEq>(all: &[T], one: &T) -> u32 {
    all.iter().position(|t| t == one).unwrap_or(0) as u32
}
