//! Communications of all ranks -> matched collectives and point-to-point pairs.
//!
//! In: timelines, of which only the communications are read. Out: a [`Matching`]. Knows nothing of NaN.
//!
//! Rules (after the field's practice in flight-recorder analysis):
//! 1. Members of a collective are matched per process group by their order of issue in that group. The counter in an
//!    op's name is never used: it counts all calls of that API on that rank.
//! 2. A group is its ranks and its id; no group is the default group, whose members are all ranks that any record
//!    names.
//! 3. Point-to-point calls are matched per (source, destination, group, tag) in order of issue; what is left over is
//!    matched without the group, because a batched record names the group only by id.
//! 4. Where the ranks' lists of a group differ (cut file, scope), they are aligned by (API, element count): longest
//!    common subsequence with the longest list. What does not align is left unmatched and said so.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;
use smallvec::SmallVec;

use crate::communication::GroupKey;
use crate::op::Rank;
use crate::rules::Flow;
use crate::timeline::Timeline;

/// Cells of the alignment table beyond which lists are compared index by index.
const ALIGN_CELLS: usize = 4_000_000;
/// Communications that are worth a thread.
const MATCHES_PER_THREAD: usize = 256;

/// How well a communication was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchState {
    /// Every member is here and says the same.
    FullyMatched,
    /// A member's rank is not dumped.
    MissingRanks,
    /// A member's rank is dumped, but this call is not in its record (cut list, scope, another operation in its place).
    Unmatched,
}

/// One member's record of a communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Index into the timelines.
    pub timeline: u32,
    /// Index into its events.
    pub event: u32,
}

/// A collective, or a send with its receive.
#[derive(Debug, Clone)]
pub struct Match {
    /// The group; for pairs as the sender names it.
    pub group: Arc<GroupKey>,
    /// Order of issue within the group (or the pair's channel).
    pub seq: u32,
    /// API of the first member.
    pub api: Arc<str>,
    /// Data flow of the first member; [`Flow::Send`] for pairs.
    pub flow: Flow,
    /// Root of a rooted collective.
    pub root: Option<Rank>,
    /// Source and destination of a pair.
    pub pair: Option<(Rank, Rank)>,
    /// Records, ranks ascending; of a pair the sender's stands first.
    pub members: SmallVec<[Member; 2]>,
    /// Members whose rank is not dumped.
    pub missing: Vec<Rank>,
    /// Members whose rank is dumped without this call.
    pub absent: Vec<Rank>,
    /// How well it matched.
    pub state: MatchState,
}

/// All communications of a step, matched.
#[derive(Debug, Default)]
pub struct Matching {
    /// Collectives by (group, order), then pairs by (channel, order).
    pub matches: Vec<Match>,
    /// For each timeline, for each event, the match it belongs to; `None` for superseded records.
    pub of_event: Vec<Vec<Option<u32>>>,
    /// All ranks that any record names.
    pub world: Vec<Rank>,
}

/// Matches the communications of all ranks (timelines ascending by rank).
#[must_use]
pub fn match_communications(timelines: &[Timeline]) -> Matching {
    let calls: Vec<Calls> = timelines.par_iter().map(Calls::of).collect();
    let ranks = Ranks { timelines, dumped: timelines.iter().map(|t| t.rank).collect(), calls: &calls };
    let world = ranks.world();
    let mut plans = ranks.groups(&world);
    plans.extend(ranks.channels());
    let mut starts = Vec::with_capacity(plans.len());
    let mut total = 0;
    for plan in &plans {
        starts.push(total);
        total += plan.len();
    }
    let matched = |i: usize| {
        let at = starts.partition_point(|&start| start <= i) - 1;
        plans[at].matched(&ranks, i - starts[at])
    };
    let matches: Vec<Match> = (0..total).into_par_iter().with_min_len(MATCHES_PER_THREAD).map(matched).collect();
    let mut of_event: Vec<Vec<Option<u32>>> = timelines.iter().map(|t| vec![None; t.events.len()]).collect();
    for (id, entry) in matches.iter().enumerate() {
        for member in &entry.members {
            of_event[member.timeline as usize][member.event as usize] = Some(id as u32);
        }
    }
    Matching { matches, of_event, world }
}

/// What is matched together: all calls of a group, or of a channel.
enum Plan<'t> {
    Group(Group<'t>),
    Channel(Channel<'t>),
}

impl Plan<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Group(group) => group.rows + group.alone.len(),
            Self::Channel(channel) => channel.len,
        }
    }

    fn matched(&self, ranks: &Ranks, seq: usize) -> Match {
        match self {
            Self::Group(group) => group.matched(ranks, seq),
            Self::Channel(channel) => channel.matched(ranks, seq),
        }
    }
}

// --- calls ------------------------------------------------------------------------------------------------------------

/// A call, with what its match says of it.
#[derive(Clone, Copy)]
struct Call<'t> {
    event: u32,
    group: u32,
    root: Option<Rank>,
    flow: Flow,
    /// The first of equal ones on the rank.
    api: &'t Arc<str>,
}

/// A call and its rank's timeline.
type Placed<'t> = (u32, Call<'t>);

/// The communications of one rank, sorted out in one pass over its events.
struct Calls<'t> {
    /// For each of the rank's groups the collectives.
    collectives: Vec<Vec<Call<'t>>>,
    /// Point-to-point calls.
    pairs: Vec<(End, Vec<Call<'t>>)>,
    /// For each of the rank's groups that a point-to-point call names.
    named: Vec<Option<Named>>,
    peers: FxHashSet<Rank>,
}

/// A group that point-to-point calls name.
#[derive(Clone)]
struct Named {
    key: Arc<GroupKey>,
    /// Its id, else its ranks.
    name: String,
    /// First of the rank's groups of that name.
    first: u32,
}

/// One side of a channel: peer, tag, whether it receives, first of the rank's groups of that name.
type End = (Rank, i64, bool, u32);

impl<'t> Calls<'t> {
    fn of(t: &'t Timeline) -> Self {
        let mut calls = Self {
            collectives: vec![Vec::new(); t.groups.len()],
            pairs: Vec::new(),
            named: vec![None; t.groups.len()],
            peers: FxHashSet::default(),
        };
        let mut known: FxHashMap<End, usize> = FxHashMap::default();
        let mut apis: FxHashMap<&str, &Arc<str>> = FxHashMap::default();
        for (event, c) in t.events.iter().map(|e| &e.communication).enumerate() {
            calls.peers.extend(c.peer);
            let api = *apis.entry(&*c.api).or_insert(&c.api);
            let call = Call { event: event as u32, group: c.group, root: c.root, flow: c.flow, api };
            let receives = match (c.superseded, c.flow) {
                (true, _) | (_, Flow::Batch) => continue,
                (_, Flow::Send) => false,
                (_, Flow::Recv) => true,
                _ => {
                    calls.collectives[c.group as usize].push(call);
                    continue;
                }
            };
            if let Some(peer) = c.peer {
                let name = calls.first_named(t, c.group);
                let end = (peer, c.tag, receives, name);
                let at = *known.entry(end).or_insert(calls.pairs.len());
                if at == calls.pairs.len() {
                    calls.pairs.push((end, Vec::new()));
                }
                calls.pairs[at].1.push(call);
            }
        }
        calls
    }

    /// The first of the rank's groups that has the same name.
    fn first_named(&mut self, t: &Timeline, group: u32) -> u32 {
        if let Some(named) = &self.named[group as usize] {
            return named.first;
        }
        let key = &t.groups[group as usize];
        let name = if key.id.is_empty() { format!("{:?}", key.ranks) } else { key.id.clone() };
        let first = self.named.iter().flatten().find(|n| n.name == name).map_or(group, |n| n.first);
        self.named[group as usize] = Some(Named { key: Arc::new(key.clone()), name, first });
        first
    }
}

struct Ranks<'t> {
    timelines: &'t [Timeline],
    /// The timelines' ranks.
    dumped: Vec<Rank>,
    calls: &'t [Calls<'t>],
}

impl<'t> Ranks<'t> {
    fn numel(&self, timeline: u32, call: &Call) -> i64 {
        self.timelines[timeline as usize].events[call.event as usize].communication.numel
    }

    fn rank(&self, member: Member) -> Rank {
        self.dumped[member.timeline as usize]
    }

    /// Those that are dumped, and those that are not.
    fn parted(&self, ranks: impl Iterator<Item = Rank>) -> (Vec<Rank>, Vec<Rank>) {
        ranks.partition(|r| self.dumped.binary_search(r).is_ok())
    }

    fn world(&self) -> Vec<Rank> {
        let mut world = self.dumped.clone();
        for (t, calls) in self.timelines.iter().zip(self.calls) {
            world.extend(t.groups.iter().flat_map(|g| g.ranks.iter().copied()));
            world.extend(&calls.peers);
        }
        // Numbers that the folders skip are ranks too.
        let top = self.dumped.iter().copied().max().unwrap_or(0).min(1 << 20);
        world.extend(0..top);
        world.sort_unstable();
        world.dedup();
        world
    }

    /// The groups in order, with the collectives that each rank called in them.
    fn groups(&self, world: &[Rank]) -> Vec<Plan<'t>> {
        let mut groups: BTreeMap<&GroupKey, Vec<(u32, &[Call])>> = BTreeMap::new();
        for (at, (t, calls)) in self.timelines.iter().zip(self.calls).enumerate() {
            for (group, list) in t.groups.iter().zip(&calls.collectives).filter(|(_, list)| !list.is_empty()) {
                groups.entry(group).or_default().push((at as u32, list));
            }
        }
        let groups: Vec<_> = groups.into_iter().collect();
        groups.into_par_iter().map(|(key, lists)| Plan::Group(Group::new(self, world, key, &lists))).collect()
    }

    /// The channels in order; behind them those of calls that are left over, without the group.
    fn channels(&self) -> Vec<Plan<'t>> {
        let mut channels: BTreeMap<(Ends, &str), Sides<'t>> = BTreeMap::new();
        for (at, (&rank, calls)) in self.dumped.iter().zip(self.calls).enumerate() {
            for &((peer, tag, receives, group), ref list) in &calls.pairs {
                let ends = if receives { (peer, rank, tag) } else { (rank, peer, tag) };
                let name = calls.named[group as usize].as_ref().map_or("", |n| &n.name);
                let side = &mut channels.entry((ends, name)).or_default()[usize::from(receives)];
                side.extend(list.iter().map(|&call| (at as u32, call)));
            }
        }
        let mut left: BTreeMap<Ends, Sides<'t>> = BTreeMap::new();
        let mut plans = Vec::new();
        for ((ends, _), sides) in channels {
            let len = sides[0].len().min(sides[1].len());
            let rest = left.entry(ends).or_default();
            for (rest, side) in rest.iter_mut().zip(&sides) {
                rest.extend(&side[len..]);
            }
            plans.push(Plan::Channel(Channel { ends, sides, len }));
        }
        for (ends, mut sides) in left {
            for side in &mut sides {
                side.sort_by_key(|(timeline, call)| (*timeline, call.event));
            }
            let len = sides[0].len().max(sides[1].len());
            plans.push(Plan::Channel(Channel { ends, sides, len }));
        }
        plans
    }
}

fn members(calls: &[Placed]) -> SmallVec<[Member; 2]> {
    calls.iter().map(|&(timeline, call)| Member { timeline, event: call.event }).collect()
}

fn state(missing: &[Rank], absent: &[Rank]) -> MatchState {
    if !absent.is_empty() {
        MatchState::Unmatched
    } else if !missing.is_empty() {
        MatchState::MissingRanks
    } else {
        MatchState::FullyMatched
    }
}

// --- collectives ------------------------------------------------------------------------------------------------------

/// The collectives of one group, aligned.
struct Group<'t> {
    key: Arc<GroupKey>,
    lists: Vec<List<'t>>,
    /// Length of the longest list.
    rows: usize,
    /// Calls that align with none of that list.
    alone: Vec<Placed<'t>>,
    expected: Vec<Rank>,
    /// Expected ranks without a call in the group: dumped ones and others.
    absent: Vec<Rank>,
    missing: Vec<Rank>,
}

/// The calls of one rank in a group.
struct List<'t> {
    timeline: u32,
    calls: &'t [Call<'t>],
    /// For each row the call that stands in it; `None` where every call stands in its own row.
    places: Option<Vec<Option<u32>>>,
}

impl<'t> List<'t> {
    fn call(&self, row: usize) -> Option<Placed<'t>> {
        let call = match &self.places {
            None => row,
            Some(places) => places[row]? as usize,
        };
        Some((self.timeline, self.calls[call]))
    }
}

impl<'t> Group<'t> {
    fn new(ranks: &Ranks<'t>, world: &[Rank], key: &GroupKey, lists: &[(u32, &'t [Call<'t>])]) -> Self {
        let here = || lists.iter().map(|(at, _)| ranks.dumped[*at as usize]);
        let expected: Vec<Rank> = match (key.ranks.is_empty(), key.id.is_empty()) {
            (false, _) => key.ranks.clone(),
            // Without ranks the default group holds everybody, an id alone those that recorded it.
            (true, true) => world.to_vec(),
            (true, false) => here().collect(),
        };
        let there: FxHashSet<Rank> = here().collect();
        let (absent, missing) = ranks.parted(expected.iter().copied().filter(|r| !there.contains(r)));
        let longest = lists.iter().enumerate().max_by_key(|(i, (_, l))| (l.len(), std::cmp::Reverse(*i)));
        let (reference_at, reference) = longest.map_or((0, &[][..]), |(_, &list)| list);
        let placed = |&(timeline, calls): &(u32, &'t [Call<'t>])| {
            let same = calls.len() == reference.len() && calls.iter().zip(reference).all(|(a, b)| a.api == b.api);
            let places = (!same).then(|| {
                let a: Vec<_> = reference.iter().map(|c| (&**c.api, ranks.numel(reference_at, c))).collect();
                let b: Vec<_> = calls.iter().map(|c| (&**c.api, ranks.numel(timeline, c))).collect();
                align(&a, &b)
            });
            (timeline, calls, places)
        };
        let mut alone = Vec::new();
        let placed: Vec<_> = lists.par_iter().with_min_len(8).map(placed).collect();
        let list = |(timeline, calls, places): (u32, &'t [Call<'t>], Option<Vec<Option<usize>>>)| {
            let places = places.map(|places| {
                let mut rows = vec![None; reference.len()];
                for (i, place) in places.into_iter().enumerate() {
                    match place {
                        Some(row) => rows[row] = Some(i as u32),
                        None => alone.push((timeline, calls[i])),
                    }
                }
                rows
            });
            List { timeline, calls, places }
        };
        let lists = placed.into_iter().map(list).collect();
        Self { key: Arc::new(key.clone()), lists, rows: reference.len(), alone, expected, absent, missing }
    }

    fn matched(&self, ranks: &Ranks, row: usize) -> Match {
        let calls: SmallVec<[Placed; 2]> = match self.alone.get(row.wrapping_sub(self.rows)) {
            Some(&alone) => SmallVec::from_slice(&[alone]),
            None => self.lists.iter().filter_map(|list| list.call(row)).collect(),
        };
        let members = members(&calls);
        // PERF: nearly all rows hold everybody.
        let (absent, missing) = if members.len() == self.lists.len() {
            (self.absent.clone(), self.missing.clone())
        } else {
            let is_there = |r: &Rank| members.binary_search_by_key(r, |&m| ranks.rank(m)).is_ok();
            ranks.parted(self.expected.iter().copied().filter(|r| !is_there(r)))
        };
        let (_, first) = calls[0];
        Match {
            group: Arc::clone(&self.key),
            seq: row as u32,
            api: Arc::clone(first.api),
            flow: first.flow,
            root: first.root,
            pair: None,
            members,
            state: state(&missing, &absent),
            missing,
            absent,
        }
    }
}

/// For each element of `b` its partner in `a`: common ends first, then the longest common subsequence between them.
fn align<T: PartialEq>(a: &[T], b: &[T]) -> Vec<Option<usize>> {
    let mut places = vec![None; b.len()];
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    for (i, place) in places.iter_mut().enumerate().take(head) {
        *place = Some(i);
    }
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    for k in 0..tail {
        places[b.len() - 1 - k] = Some(a.len() - 1 - k);
    }
    let (a_mid, b_mid) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    if a_mid.is_empty() || b_mid.is_empty() || a_mid.len().saturating_mul(b_mid.len()) > ALIGN_CELLS {
        return places;
    }
    let width = b_mid.len() + 1;
    let mut table = vec![0u32; (a_mid.len() + 1) * width];
    for i in (0..a_mid.len()).rev() {
        for j in (0..b_mid.len()).rev() {
            table[i * width + j] = if a_mid[i] == b_mid[j] {
                table[(i + 1) * width + j + 1] + 1
            } else {
                table[(i + 1) * width + j].max(table[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < a_mid.len() && j < b_mid.len() {
        if a_mid[i] == b_mid[j] {
            places[head + j] = Some(head + i);
            (i, j) = (i + 1, j + 1);
        } else if table[(i + 1) * width + j] >= table[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    places
}

// --- pairs ------------------------------------------------------------------------------------------------------------

/// Source, destination, tag.
type Ends = (Rank, Rank, i64);

/// Sends and receives.
type Sides<'t> = [Vec<Placed<'t>>; 2];

/// Point-to-point calls that are matched in order of issue.
struct Channel<'t> {
    ends: Ends,
    sides: Sides<'t>,
    /// How many of them are matched here.
    len: usize,
}

impl Channel<'_> {
    fn matched(&self, ranks: &Ranks, seq: usize) -> Match {
        let (source, destination, _) = self.ends;
        let calls: SmallVec<[Placed; 2]> = self.sides.iter().filter_map(|side| side.get(seq).copied()).collect();
        let members = members(&calls);
        let is_left = |r: &Rank| members.iter().all(|&m| ranks.rank(m) != *r);
        let (absent, missing) = ranks.parted([source, destination].into_iter().filter(is_left));
        let (timeline, first) = calls[0];
        let named = &ranks.calls[timeline as usize].named[first.group as usize];
        Match {
            group: named.as_ref().map_or_else(Arc::default, |named| Arc::clone(&named.key)),
            seq: seq as u32,
            api: Arc::clone(first.api),
            flow: Flow::Send,
            root: None,
            pair: Some((source, destination)),
            members,
            state: state(&missing, &absent),
            missing,
            absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_keeps_common_ends_and_what_is_between() {
        assert_eq!(align(&[1, 2, 3], &[1, 2, 3]), [Some(0), Some(1), Some(2)]);
        assert_eq!(align(&[1, 2, 3], &[1, 2]), [Some(0), Some(1)]);
        assert_eq!(align(&[1, 2, 3], &[2, 3]), [Some(1), Some(2)]);
        assert_eq!(align(&[1, 2, 3, 4, 5], &[1, 9, 3, 5]), [Some(0), None, Some(2), Some(4)]);
        assert_eq!(align(&[1, 2, 4, 3, 5], &[1, 9, 3, 8, 5]), [Some(0), None, Some(3), None, Some(4)]);
        assert_eq!(align::<i32>(&[], &[1]), [None]);
    }
}
