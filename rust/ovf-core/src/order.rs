//! Happens-before over matched communications: which origins come first, which are concurrent.
//!
//! In: timelines and their [`Matching`]. Out: an [`Ordering`]: what each received value means (rule 7), the candidate
//! origins with everything that happened before each, and where a received value came from.
//!
//! There is no shared clock. The ranks are replayed against each other: every rank walks through its own events in
//! file order and waits where data has to arrive first.
//!
//! ```text
//! for each rank: knowledge = {}            the candidates that happened before this point
//! walk a rank until it must wait:
//!   candidate c:            before(c) = knowledge; knowledge += c
//!   enter communication m:  m.knowledge += knowledge        (if the rank gives)
//!   leave communication m:  wait until all givers entered; knowledge += m.knowledge   (if the rank gets)
//! ```
//!
//! A synchronous call is left where it is entered; an asynchronous one where its value is first read (rule 8).
//! Givers and getters follow the data: in a broadcast only the root gives, in a reduce only the root gets. A replay
//! that cannot go on (an assumed place, lists cut differently, calls that do not match) first moves assumed places of
//! the circle behind the next communication; where there is none, all ranks of the circle pass without what
//! it waited for; no order is invented. One pass, so cost grows with the number of events.

use std::collections::VecDeque;

use rayon::prelude::*;
use smallvec::SmallVec;

use crate::collective::{Match, MatchState, Matching};
use crate::op::{Kinds, Rank};
use crate::rules::Flow;
use crate::timeline::{Cause, Timeline};

/// A set of candidates by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CandidateSet(Vec<u64>);

impl CandidateSet {
    fn insert(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn union(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    /// Whether candidate `i` is in the set.
    #[must_use]
    pub fn contains(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// The candidates of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(w, &word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| w * 64 + b))
    }
}

/// What a received non-finite value is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Receipt {
    /// Finite, or nothing received.
    #[default]
    Nothing,
    /// A giver's value was bad: which timeline and event (the lowest rank of them).
    Propagated(u32, u32),
    /// All bad givers sent masks.
    Intended,
    /// Every contribution was finite: the communication itself is the origin (candidate index).
    Origin(usize),
    /// Contributions are not in the dump (candidate index).
    Entered(usize),
    /// A buffer that nobody read, of a call whose data was not there yet.
    Garbage,
}

/// Where a candidate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A root of a rank: timeline, mark.
    Mark(u32, u32),
    /// A communication whose contributions are finite: match, first getter that shows it.
    Communication(u32, u32, u32),
    /// A communication with a giver that is not in the dump: match, getter (timeline, event).
    Missing(u32, u32, u32),
}

/// An origin that takes part in the order.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What it is.
    pub source: Source,
    /// Candidates that happened before it.
    pub before: CandidateSet,
    /// Communications on the longest chain that leads to it.
    pub depth: u32,
    /// Turned out to be the consequence of an overflow that a communication delivered.
    pub demoted: bool,
    /// Getters that show a communication's bad result: (timeline, event).
    pub getters: Vec<(u32, u32)>,
}

/// The order of a step.
#[derive(Debug, Default)]
pub struct Ordering {
    /// All candidates.
    pub candidates: Vec<Candidate>,
    /// For each timeline and event, what was received.
    pub receipts: Vec<Vec<Receipt>>,
    /// For each timeline and mark, the event whose delivery explains a demoted mark.
    pub demoted_by: Vec<Vec<Option<u32>>>,
    /// For each timeline and event, whether what was given is from an overflow.
    pub given_real: Vec<Vec<bool>>,
    /// How often the replay had to let a rank pass.
    pub undecided: u32,
    /// For each match, communications on the longest chain that leads to it.
    pub depths: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Leave an asynchronous communication.
    Leave(u32),
    /// A root of the rank.
    Root(u32),
    /// Enter a communication (and leave it, if it is synchronous).
    Enter(u32),
}

#[derive(Default)]
struct Walk {
    acts: Vec<(u32, Act)>,
    at: usize,
    entered: bool,
    knowledge: CandidateSet,
    depth: u32,
    queued: bool,
}

#[derive(Default, Clone)]
struct Meeting {
    knowledge: CandidateSet,
    depth: u32,
    entered: u32,
    decided: bool,
    waiting: SmallVec<[u32; 4]>,
}

struct Replay<'t> {
    timelines: &'t [Timeline],
    matching: &'t Matching,
    walks: Vec<Walk>,
    meetings: Vec<Meeting>,
    order: Ordering,
    /// Candidate, and what a getter knew and how deep it was when it arrived.
    pasts: Vec<(usize, CandidateSet, u32)>,
    queue: VecDeque<u32>,
}

/// Orders the origins of a step.
#[must_use]
pub fn order(timelines: &[Timeline], matching: &Matching) -> Ordering {
    let mut replay = Replay::new(timelines, matching);
    replay.run();
    replay.settle_getters_pasts();
    replay.order.depths = replay.meetings.iter().map(|m| m.depth).collect();
    replay.break_circles();
    replay.order
}

/// Whether this member's data flows into the communication, and whether data flows out to it.
#[must_use]
pub(crate) fn sides(entry: &Match, rank: Rank, flow: Flow) -> (bool, bool) {
    match flow {
        Flow::All | Flow::Batch => (true, true),
        Flow::FromRoot => (entry.root == Some(rank), entry.root != Some(rank)),
        Flow::ToRoot => (true, entry.root == Some(rank)),
        Flow::Send => (true, false),
        Flow::Recv => (false, true),
    }
}

impl<'t> Replay<'t> {
    fn new(timelines: &'t [Timeline], matching: &'t Matching) -> Self {
        let walks = timelines.par_iter().map(walk_of).collect();
        let order = Ordering {
            receipts: timelines.iter().map(|t| vec![Receipt::Nothing; t.events.len()]).collect(),
            given_real: timelines.iter().map(|t| vec![false; t.events.len()]).collect(),
            demoted_by: timelines.iter().map(|t| vec![None; t.marks.len()]).collect(),
            ..Ordering::default()
        };
        Self {
            timelines,
            matching,
            walks,
            meetings: vec![Meeting::default(); matching.matches.len()],
            order,
            pasts: Vec::new(),
            queue: (0..timelines.len() as u32).collect(),
        }
    }

    fn run(&mut self) {
        for walk in &mut self.walks {
            walk.queued = true;
        }
        loop {
            while let Some(t) = self.queue.pop_front() {
                self.walks[t as usize].queued = false;
                self.advance(t);
            }
            // Whoever is left waits in a circle, or for somebody who does.
            let circle = self.circle();
            if circle.is_empty() {
                break;
            }
            let assumed: Vec<u32> = circle.iter().copied().filter(|&t| self.waits_where_assumed(t)).collect();
            for &t in &assumed {
                self.postpone(t);
            }
            if assumed.is_empty() {
                self.order.undecided += 1;
                for &t in &circle {
                    self.pass(t);
                }
            }
            for t in circle {
                self.wake(t);
            }
        }
    }

    /// The ranks that wait for each other.
    fn circle(&self) -> Vec<u32> {
        let n = self.walks.len();
        let ahead: Vec<Vec<u32>> = (0..n as u32).map(|t| self.waits_for(t)).collect();
        let mut back: Vec<Vec<u32>> = vec![Vec::new(); n];
        for (t, waited) in ahead.iter().enumerate() {
            for &other in waited {
                back[other as usize].push(t as u32);
            }
        }
        // Strongly connected: ranks in the order their search ends, then components against the edges.
        let mut ended: Vec<u32> = Vec::new();
        let mut seen = vec![false; n];
        for start in 0..n as u32 {
            let mut path: Vec<(u32, usize)> = Vec::new();
            if !std::mem::replace(&mut seen[start as usize], true) {
                path.push((start, 0));
            }
            while let Some((t, at)) = path.last_mut() {
                let next = ahead[*t as usize].get(*at).copied();
                *at += 1;
                match next {
                    Some(next) if std::mem::replace(&mut seen[next as usize], true) => {}
                    Some(next) => path.push((next, 0)),
                    None => {
                        ended.push(*t);
                        path.pop();
                    }
                }
            }
        }
        let mut component: Vec<Option<u32>> = vec![None; n];
        let mut size = vec![0u32; n];
        for &root in ended.iter().rev() {
            let mut left = vec![root];
            while let Some(t) = left.pop() {
                if component[t as usize].is_none() {
                    component[t as usize] = Some(root);
                    size[root as usize] += 1;
                    left.extend(&back[t as usize]);
                }
            }
        }
        let in_circle =
            |&t: &u32| component[t as usize].is_some_and(|c| size[c as usize] > 1) || ahead[t as usize].contains(&t);
        (0..n as u32).filter(in_circle).collect()
    }

    fn awaited(&self, t: u32) -> Option<u32> {
        let walk = &self.walks[t as usize];
        match walk.acts.get(walk.at) {
            Some(&(_, Act::Enter(event) | Act::Leave(event))) => self.matching.of_event[t as usize][event as usize],
            _ => None,
        }
    }

    fn waits_for(&self, t: u32) -> Vec<u32> {
        let Some(id) = self.awaited(t) else { return Vec::new() };
        let mut givers: Vec<u32> = self.givers_missing(id).map(|m| m.timeline).collect();
        givers.dedup();
        givers
    }

    /// Whether a rank waits at a place where an asynchronous call is only assumed to end.
    fn waits_where_assumed(&self, t: u32) -> bool {
        let walk = &self.walks[t as usize];
        match walk.acts.get(walk.at) {
            Some(&(_, Act::Leave(event))) => self.timelines[t as usize].events[event as usize].visible_at.is_none(),
            _ => false,
        }
    }

    /// Moves an assumed end behind the next communication.
    fn postpone(&mut self, t: u32) {
        let walk = &mut self.walks[t as usize];
        let (op, act) = walk.acts.remove(walk.at);
        let Act::Leave(event) = act else { return };
        let later = walk.acts[walk.at..].iter().find(|(o, a)| *o > op && matches!(a, Act::Enter(_)));
        let place = later.map_or(u32::MAX, |&(o, _)| o);
        let before = |&(o, a): &(u32, Act)| o < place || (o == place && matches!(a, Act::Leave(e) if e < event));
        let at = walk.at + walk.acts[walk.at..].iter().take_while(|a| before(a)).count();
        walk.acts.insert(at, (place, act));
    }

    fn wake(&mut self, t: u32) {
        let walk = &mut self.walks[t as usize];
        if !walk.queued {
            walk.queued = true;
            self.queue.push_back(t);
        }
    }

    fn advance(&mut self, t: u32) {
        while let Some(&(_, act)) = self.walks[t as usize].acts.get(self.walks[t as usize].at) {
            let done = match act {
                Act::Root(mark) => {
                    self.root(t, mark);
                    true
                }
                Act::Enter(event) => self.enter(t, event),
                Act::Leave(event) => self.leave(t, event),
            };
            if !done {
                return;
            }
            self.walks[t as usize].at += 1;
            self.walks[t as usize].entered = false;
        }
    }

    fn root(&mut self, t: u32, mark: u32) {
        let walk = &mut self.walks[t as usize];
        let id = self.order.candidates.len();
        let conditions = &self.timelines[t as usize].marks[mark as usize].conditions;
        let receipts = &self.order.receipts[t as usize];
        let cause = conditions.iter().copied().find(|&c| {
            matches!(receipts[c as usize], Receipt::Propagated(..) | Receipt::Origin(_) | Receipt::Entered(_))
        });
        self.order.candidates.push(Candidate {
            source: Source::Mark(t, mark),
            before: walk.knowledge.clone(),
            depth: walk.depth,
            demoted: cause.is_some(),
            getters: Vec::new(),
        });
        if cause.is_none() {
            walk.knowledge.insert(id);
        }
        self.order.demoted_by[t as usize][mark as usize] = cause;
    }

    fn enter(&mut self, t: u32, event: u32) -> bool {
        let communication = &self.timelines[t as usize].events[event as usize].communication;
        let Some(id) = self.matching.of_event[t as usize][event as usize] else {
            return true;
        };
        let entry = &self.matching.matches[id as usize];
        let (gives, gets) = sides(entry, self.timelines[t as usize].rank, communication.flow);
        if !self.walks[t as usize].entered {
            self.walks[t as usize].entered = true;
            self.given(t, event);
            let walk = &self.walks[t as usize];
            let meeting = &mut self.meetings[id as usize];
            meeting.entered += 1;
            if gives {
                meeting.knowledge.union(&walk.knowledge);
                meeting.depth = meeting.depth.max(walk.depth);
            }
            if self.givers_left(id) == 0 {
                let woken = std::mem::take(&mut self.meetings[id as usize].waiting);
                for other in woken {
                    self.wake(other);
                }
            }
        }
        if communication.is_async || !gets {
            return true;
        }
        self.leave(t, event)
    }

    /// Leaves a communication if all its givers have entered.
    fn leave(&mut self, t: u32, event: u32) -> bool {
        let Some(id) = self.matching.of_event[t as usize][event as usize] else {
            return true;
        };
        let timeline = &self.timelines[t as usize];
        let flow = timeline.events[event as usize].communication.flow;
        if !sides(&self.matching.matches[id as usize], timeline.rank, flow).1 {
            return true; // the root of a broadcast, a giver of a reduce: nothing arrives
        }
        if self.givers_left(id) > 0 {
            if !self.meetings[id as usize].waiting.contains(&t) {
                self.meetings[id as usize].waiting.push(t);
            }
            return false;
        }
        self.decide(id);
        self.add_getters_past(t, event);
        let meeting = &self.meetings[id as usize];
        let walk = &mut self.walks[t as usize];
        walk.knowledge.union(&meeting.knowledge);
        walk.depth = walk.depth.max(meeting.depth + 1);
        true
    }

    /// Notes what a getter that shows a communication's finding knew when it arrived.
    fn add_getters_past(&mut self, t: u32, event: u32) {
        if let Receipt::Origin(c) | Receipt::Entered(c) = self.order.receipts[t as usize][event as usize] {
            let walk = &self.walks[t as usize];
            self.pasts.push((c, walk.knowledge.clone(), walk.depth));
        }
    }

    /// What happened before each getter that shows a communication's finding happened before the finding.
    fn settle_getters_pasts(&mut self) {
        self.pasts.sort_by_key(|p| p.0);
        for past in self.pasts.chunk_by(|a, b| a.0 == b.0) {
            let candidate = &mut self.order.candidates[past[0].0];
            let shared = past[0].1.iter().filter(|&i| i != past[0].0 && past.iter().all(|p| p.1.contains(i)));
            for i in shared {
                candidate.before.insert(i);
            }
            let depth = past.iter().map(|p| p.2).min();
            candidate.depth = candidate.depth.max(depth.unwrap_or(0));
        }
    }

    /// Lets a waiting rank go on without what it waited for.
    fn pass(&mut self, t: u32) {
        let walk = &mut self.walks[t as usize];
        let (_, act) = walk.acts[walk.at];
        if let Act::Enter(event) | Act::Leave(event) = act
            && let Some(id) = self.matching.of_event[t as usize][event as usize]
        {
            self.decide(id);
            self.add_getters_past(t, event);
        }
        let walk = &mut self.walks[t as usize];
        walk.at += 1;
        walk.entered = false;
    }

    /// How many members that give have not entered.
    fn givers_left(&self, id: u32) -> u32 {
        let entry = &self.matching.matches[id as usize];
        if entry.flow == Flow::All && entry.state != MatchState::TypeMismatch {
            return (entry.members.len() as u32).saturating_sub(self.meetings[id as usize].entered);
        }
        self.givers_missing(id).count() as u32
    }

    /// Members that give and have not entered.
    fn givers_missing(&self, id: u32) -> impl Iterator<Item = &crate::collective::Member> {
        let entry = &self.matching.matches[id as usize];
        entry.members.iter().filter(move |m| {
            let rank = self.timelines[m.timeline as usize].rank;
            let flow = self.timelines[m.timeline as usize].events[m.event as usize].communication.flow;
            sides(entry, rank, flow).0 && !self.has_entered(**m)
        })
    }

    fn has_entered(&self, member: crate::collective::Member) -> bool {
        let walk = &self.walks[member.timeline as usize];
        let op = self.timelines[member.timeline as usize].events[member.event as usize].communication.op;
        match walk.acts.get(walk.at) {
            None => true,
            Some(&(_, Act::Enter(e))) if e == member.event => walk.entered,
            Some(&(at, Act::Enter(e))) if at == op => e > member.event,
            Some(&(at, _)) => at > op,
        }
    }

    /// Bad values that ranks only pass on to each other in a circle came from somewhere: the earliest delivery of each
    /// circle is said to have entered.
    fn break_circles(&mut self) {
        let mut settled: Vec<Vec<bool>> = self.timelines.iter().map(|t| vec![false; t.events.len()]).collect();
        for t in 0..self.timelines.len() as u32 {
            for e in 0..self.timelines[t as usize].events.len() as u32 {
                let mut path: Vec<(u32, u32)> = Vec::new();
                let mut at = Some((t, e));
                while let Some((t, e)) = at.filter(|&(t, e)| !settled[t as usize][e as usize]) {
                    settled[t as usize][e as usize] = true;
                    path.push((t, e));
                    at = self.delivered_by(t, e);
                }
                let Some(start) = at.and_then(|again| path.iter().position(|p| *p == again)) else { continue };
                let op = |&(t, e): &(u32, u32)| self.timelines[t as usize].events[e as usize].communication.op;
                let Some(&(t, e)) = path[start..].iter().min_by_key(|p| (op(p), p.0)) else { continue };
                let Some(id) = self.matching.of_event[t as usize][e as usize] else { continue };
                let candidate = self.order.candidates.len();
                self.order.receipts[t as usize][e as usize] = Receipt::Entered(candidate);
                self.order.candidates.push(Candidate {
                    source: Source::Missing(id, t, e),
                    before: self.meetings[id as usize].knowledge.clone(),
                    depth: self.meetings[id as usize].depth,
                    demoted: false,
                    getters: vec![(t, e)],
                });
            }
        }
    }

    /// The delivery on the giver's rank that a propagated value goes back to, if it goes back to one.
    fn delivered_by(&self, t: u32, e: u32) -> Option<(u32, u32)> {
        let Receipt::Propagated(gt, ge) = self.order.receipts[t as usize][e as usize] else { return None };
        let giver = &self.timelines[gt as usize];
        let given = giver.events[ge as usize].given.as_ref()?;
        let event = match given.mark() {
            Some(mark) => {
                let demoted = self.order.demoted_by[gt as usize][mark as usize];
                demoted.or(giver.marks[mark as usize].event)
            }
            None => given.conditions().first().copied(),
        };
        event.map(|event| (gt, event))
    }

    /// Notes whether what a member gives is from an overflow.
    fn given(&mut self, t: u32, event: u32) {
        let Some(side) = &self.timelines[t as usize].events[event as usize].given else {
            return;
        };
        let receipts = &self.order.receipts[t as usize];
        let delivered = side.conditions().iter().any(|&c| {
            matches!(receipts[c as usize], Receipt::Propagated(..) | Receipt::Origin(_) | Receipt::Entered(_))
        });
        self.order.given_real[t as usize][event as usize] = side.real || delivered;
    }

    /// Rule 7: what the getters of a communication received.
    fn decide(&mut self, id: u32) {
        if std::mem::replace(&mut self.meetings[id as usize].decided, true) {
            return;
        }
        let entry = &self.matching.matches[id as usize];
        let event_of = |m: &crate::collective::Member| &self.timelines[m.timeline as usize].events[m.event as usize];
        let rank_of = |m: &crate::collective::Member| self.timelines[m.timeline as usize].rank;
        let is_bad = |m: &&crate::collective::Member| event_of(m).got.as_ref().is_some_and(|g| !g.kinds.is_finite());
        // PERF: nearly all of them.
        if !entry.members.iter().any(|m| is_bad(&m)) {
            return;
        }
        let givers: Vec<_> =
            entry.members.iter().filter(|m| sides(entry, rank_of(m), event_of(m).communication.flow).0).collect();
        let getters: Vec<_> = entry
            .members
            .iter()
            .filter(|m| sides(entry, rank_of(m), event_of(m).communication.flow).1)
            .filter(is_bad)
            .copied()
            .collect();
        if getters.is_empty() {
            return;
        }
        // A giver that has not entered (a circle) gives what it gives all the same.
        for giver in &givers {
            self.given(giver.timeline, giver.event);
        }
        let real = givers.iter().find(|m| self.order.given_real[m.timeline as usize][m.event as usize]);
        let intended =
            givers.iter().filter_map(|m| event_of(m).given.as_ref()).fold(Kinds::NONE, |k, side| k.union(side.kinds));
        let giver_ranks: Vec<Rank> = givers.iter().map(|m| rank_of(m)).collect();
        let should_give: Vec<Rank> = match (entry.flow, entry.pair, entry.root) {
            (_, Some((source, _)), _) => vec![source],
            (Flow::FromRoot, _, Some(root)) => vec![root],
            _ => giver_ranks.iter().chain(&entry.missing).chain(&entry.absent).copied().collect(),
        };
        // The default group does not list its members: sizes and the lone record say whether some are not here.
        let listed = !entry.group.ranks.is_empty() || !entry.group.id.is_empty();
        let expected = entry.members.iter().map(|m| event_of(m).communication.parts).max().unwrap_or(1).max(2);
        let unlisted = entry.flow == Flow::All && !listed && (entry.members.len() as u32) < expected;
        let unseen = unlisted
            || should_give.iter().any(|r| !giver_ranks.contains(r))
            || givers.iter().any(|m| event_of(m).given.as_ref().is_some_and(|g| !g.judged))
            || givers.iter().all(|m| event_of(m).given.is_none())
            || entry.state == MatchState::TypeMismatch;
        let mut shown: Vec<(u32, u32)> = Vec::new();
        for getter in &getters {
            let event = event_of(getter);
            let got = event.got.as_ref().map_or(Kinds::NONE, |g| g.kinds);
            let receipt = if let Some(giver) = real {
                Receipt::Propagated(giver.timeline, giver.event)
            } else if !intended.is_finite() && intended.contains(got) {
                Receipt::Intended
            } else if event.communication.is_async && !event.got.as_ref().is_some_and(|g| g.read) {
                Receipt::Garbage
            } else {
                shown.push((getter.timeline, getter.event));
                continue;
            };
            self.order.receipts[getter.timeline as usize][getter.event as usize] = receipt;
        }
        let Some(&(t, event)) = shown.first() else {
            return;
        };
        let candidate = self.order.candidates.len();
        let (source, receipt) = if unseen {
            (Source::Missing(id, t, event), Receipt::Entered(candidate))
        } else {
            (Source::Communication(id, t, event), Receipt::Origin(candidate))
        };
        for &(t, event) in &shown {
            self.order.receipts[t as usize][event as usize] = receipt.clone();
        }
        let meeting = &mut self.meetings[id as usize];
        self.order.candidates.push(Candidate {
            source,
            before: meeting.knowledge.clone(),
            depth: meeting.depth,
            demoted: false,
            getters: shown,
        });
        meeting.knowledge.insert(candidate);
    }
}

/// A rank's acts in order. At one op: what it reads arrives first, then its root, then its communication.
fn walk_of(t: &Timeline) -> Walk {
    let mut acts: Vec<(u32, u8, Act)> = Vec::new();
    let events = t.events.iter().enumerate().filter(|(_, e)| !e.communication.superseded);
    let mut open: Vec<(u32, u32)> = Vec::new();
    for (i, event) in events {
        let (i, op) = (i as u32, event.communication.op);
        // Without a known reader an asynchronous call is left before the next communication of another op.
        open.retain(|&(earlier, issued)| {
            if issued < op {
                acts.push((op, 0, Act::Leave(earlier)));
            }
            issued >= op
        });
        acts.push((op, 2, Act::Enter(i)));
        if event.communication.is_async && event.communication.flow != Flow::Send {
            match event.visible_at {
                Some(read) => acts.push((read.max(op + 1), 0, Act::Leave(i))),
                None => open.push((i, op)),
            }
        }
    }
    acts.extend(open.into_iter().map(|(i, _)| (u32::MAX, 0, Act::Leave(i))));
    // A register is read when the call is over.
    let class = |m: &crate::timeline::Mark| if m.cause == Cause::Register { 3 } else { 1 };
    acts.extend(t.candidates().map(|i| (t.marks[i].at.op, class(&t.marks[i]), Act::Root(i as u32))));
    acts.sort_by_key(|&(op, class, act)| {
        (
            op,
            class,
            match act {
                Act::Leave(i) | Act::Root(i) | Act::Enter(i) => i,
            },
        )
    });
    Walk { acts: acts.into_iter().map(|(op, _, act)| (op, act)).collect(), ..Walk::default() }
}
