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
use serde::Serialize;

use crate::communication::{Communication, GroupKey};
use crate::op::Rank;
use crate::rules::Flow;
use crate::timeline::Timeline;

/// Cells of the alignment table beyond which lists are compared index by index.
const ALIGN_CELLS: usize = 4_000_000;

/// How well a communication was matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MatchState {
    /// Every member is here and says the same.
    FullyMatched,
    /// A member's rank is not dumped.
    MissingRanks,
    /// A member's rank is dumped, but this call is not in its record (cut list, scope).
    Unmatched,
    /// The members called different operations.
    TypeMismatch,
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
    pub members: Vec<Member>,
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
    let world = world(timelines);
    let mut matching = Matching {
        matches: Vec::new(),
        of_event: timelines.iter().map(|t| vec![None; t.events.len()]).collect(),
        world,
    };
    match_collectives(timelines, &mut matching);
    match_pairs(timelines, &mut matching);
    for (id, entry) in matching.matches.iter().enumerate() {
        for member in &entry.members {
            matching.of_event[member.timeline as usize][member.event as usize] = Some(id as u32);
        }
    }
    matching
}

fn world(timelines: &[Timeline]) -> Vec<Rank> {
    let mut world: Vec<Rank> = timelines.iter().map(|t| t.rank).collect();
    for t in timelines {
        world.extend(t.groups.iter().flat_map(|g| g.ranks.iter().copied()));
        world.extend(t.events.iter().filter_map(|e| e.communication.peer));
    }
    // Numbers that the folders skip are ranks too.
    let top = timelines.iter().map(|t| t.rank).max().unwrap_or(0).min(1 << 20);
    world.extend(0..top);
    world.sort_unstable();
    world.dedup();
    world
}

fn events(t: &Timeline) -> impl Iterator<Item = (u32, &Communication)> {
    t.events.iter().enumerate().filter(|(_, e)| !e.communication.superseded).map(|(i, e)| (i as u32, &e.communication))
}

// --- collectives ------------------------------------------------------------------------------------------------------

fn match_collectives(timelines: &[Timeline], matching: &mut Matching) {
    let of_rank = |t: &Timeline| {
        let mut lists: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (event, c) in events(t) {
            if !matches!(c.flow, Flow::Send | Flow::Recv | Flow::Batch) {
                lists.entry(c.group).or_default().push(event);
            }
        }
        lists
    };
    let of_ranks: Vec<_> = timelines.par_iter().map(of_rank).collect();
    let mut groups: BTreeMap<&GroupKey, Vec<(u32, Vec<u32>)>> = BTreeMap::new();
    for (at, (t, lists)) in timelines.iter().zip(of_ranks).enumerate() {
        for (group, list) in lists {
            groups.entry(&t.groups[group as usize]).or_default().push((at as u32, list));
        }
    }
    let dumped: Vec<Rank> = timelines.iter().map(|t| t.rank).collect();
    let of_group = |(group, lists): (&GroupKey, Vec<(u32, Vec<u32>)>)| {
        let expected: Vec<Rank> = if group.ranks.is_empty() {
            // Without ranks the default group holds everybody, an id alone those that recorded it.
            if group.id.is_empty() {
                matching.world.clone()
            } else {
                lists.iter().map(|(at, _)| timelines[*at as usize].rank).collect()
            }
        } else {
            group.ranks.clone()
        };
        match_group(timelines, &dumped, group, &expected, &lists)
    };
    let groups: Vec<_> = groups.into_iter().collect();
    let matched: Vec<Vec<Match>> = groups.into_par_iter().map(of_group).collect();
    matching.matches = matched.into_iter().flatten().collect();
}

fn match_group(
    timelines: &[Timeline],
    dumped: &[Rank],
    group: &GroupKey,
    expected: &[Rank],
    lists: &[(u32, Vec<u32>)],
) -> Vec<Match> {
    let call = |at: u32, event: u32| &timelines[at as usize].events[event as usize].communication;
    let Some(longest) =
        lists.iter().enumerate().max_by_key(|(i, (_, l))| (l.len(), std::cmp::Reverse(*i))).map(|(i, _)| i)
    else {
        return Vec::new();
    };
    let (reference_at, reference) = &lists[longest];
    let row = |&event: &u32| {
        let mut row = Vec::with_capacity(lists.len());
        row.push(Member { timeline: *reference_at, event });
        row
    };
    let mut rows: Vec<Vec<Member>> = reference.iter().map(row).collect();
    let mut alone: Vec<Member> = Vec::new();
    for (i, (at, list)) in lists.iter().enumerate() {
        if i == longest {
            continue;
        }
        let same = |r: usize, l: usize| call(*reference_at, reference[r]).api == call(*at, list[l]).api;
        let places: Vec<Option<usize>> = if list.len() == reference.len() && (0..list.len()).all(|k| same(k, k)) {
            (0..list.len()).map(Some).collect()
        } else {
            let key = |at: u32, event: u32| (&*call(at, event).api, call(at, event).numel);
            let a: Vec<_> = reference.iter().map(|&e| key(*reference_at, e)).collect();
            let b: Vec<_> = list.iter().map(|&e| key(*at, e)).collect();
            align(&a, &b)
        };
        for (event, place) in list.iter().zip(places) {
            let member = Member { timeline: *at, event: *event };
            match place {
                Some(row) => rows[row].push(member),
                None => alone.push(member),
            }
        }
    }
    rows.extend(alone.into_iter().map(|m| vec![m]));
    let group = Arc::new(group.clone());
    let rank = |m: &Member| dumped[m.timeline as usize];
    let matched = |(seq, mut members): (usize, Vec<Member>)| {
        members.sort_by_key(rank);
        let is_there = |r: &Rank| members.binary_search_by_key(r, rank).is_ok();
        let left = expected.iter().copied().filter(|r| !is_there(r));
        let (absent, missing): (Vec<Rank>, Vec<Rank>) = left.partition(|r| dumped.binary_search(r).is_ok());
        let first = call(members[0].timeline, members[0].event);
        let mixed = members.iter().any(|m| call(m.timeline, m.event).api != first.api);
        let state = if mixed {
            MatchState::TypeMismatch
        } else if !absent.is_empty() {
            MatchState::Unmatched
        } else if !missing.is_empty() {
            MatchState::MissingRanks
        } else {
            MatchState::FullyMatched
        };
        Match {
            group: Arc::clone(&group),
            seq: seq as u32,
            api: Arc::clone(&first.api),
            flow: first.flow,
            root: first.root,
            pair: None,
            members,
            missing,
            absent,
            state,
        }
    };
    rows.into_iter().enumerate().map(matched).collect()
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

type Channel = (Rank, Rank, i64);

fn match_pairs(timelines: &[Timeline], matching: &mut Matching) {
    let mut channels: BTreeMap<(Channel, String), [Vec<Member>; 2]> = BTreeMap::new();
    for (at, t) in timelines.iter().enumerate() {
        for (event, c) in events(t) {
            let Some(peer) = c.peer else { continue };
            let (channel, side) = match c.flow {
                Flow::Send => ((t.rank, peer, c.tag), 0),
                Flow::Recv => ((peer, t.rank, c.tag), 1),
                _ => continue,
            };
            let group = &t.groups[c.group as usize];
            let name = if group.id.is_empty() { format!("{:?}", group.ranks) } else { group.id.clone() };
            channels.entry((channel, name)).or_default()[side].push(Member { timeline: at as u32, event });
        }
    }
    let mut left: BTreeMap<Channel, [Vec<Member>; 2]> = BTreeMap::new();
    for ((channel, _), [sends, receives]) in channels {
        let n = sends.len().min(receives.len());
        for k in 0..n {
            matching.matches.push(pair(timelines, channel, k as u32, &[sends[k], receives[k]]));
        }
        let rest = left.entry(channel).or_default();
        rest[0].extend(&sends[n..]);
        rest[1].extend(&receives[n..]);
    }
    for (channel, [mut sends, mut receives]) in left {
        let by_place = |m: &Member| (m.timeline, m.event);
        sends.sort_by_key(by_place);
        receives.sort_by_key(by_place);
        let n = sends.len().min(receives.len());
        for k in 0..n {
            matching.matches.push(pair(timelines, channel, k as u32, &[sends[k], receives[k]]));
        }
        for (k, member) in sends[n..].iter().chain(&receives[n..]).enumerate() {
            matching.matches.push(pair(timelines, channel, (n + k) as u32, &[*member]));
        }
    }
}

fn pair(timelines: &[Timeline], channel: Channel, seq: u32, members: &[Member]) -> Match {
    let rank = |m: &Member| timelines[m.timeline as usize].rank;
    let first = &timelines[members[0].timeline as usize].events[members[0].event as usize].communication;
    let (source, destination, _) = channel;
    let left: Vec<Rank> = [source, destination].into_iter().filter(|r| members.iter().all(|m| rank(m) != *r)).collect();
    let (absent, missing): (Vec<Rank>, Vec<Rank>) =
        left.into_iter().partition(|r| timelines.iter().any(|t| t.rank == *r));
    let state = if !absent.is_empty() {
        MatchState::Unmatched
    } else if !missing.is_empty() {
        MatchState::MissingRanks
    } else {
        MatchState::FullyMatched
    };
    Match {
        group: Arc::new(timelines[members[0].timeline as usize].groups[first.group as usize].clone()),
        seq,
        api: Arc::clone(&first.api),
        flow: Flow::Send,
        root: None,
        pair: Some((source, destination)),
        members: members.to_vec(),
        missing,
        absent,
        state,
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
