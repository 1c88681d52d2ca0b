//! The ranks of a step replayed against each other.
//!
//! In: each rank's [`Acts`] and the matching. Out: an [`Ordering`] in which circles are not broken, and what was known
//! in each communication. Serial, so that candidates are numbered the same whatever the threads.

use std::collections::VecDeque;
use std::rc::Rc;

use rayon::prelude::*;
use smallvec::SmallVec;

use crate::collective::{Match, Matching, Member};
use crate::op::{Kinds, Rank};
use crate::order::acts::{Act, Acts, Role, What};
use crate::order::{Candidate, CandidateSet, Ordering, Receipt, Source};
use crate::rules::Flow;
use crate::timeline::{Event, Timeline};

/// The candidates that happened before a point. Shared: from one point to the next it is nearly always the same.
#[derive(Clone, Default)]
struct Knowledge(Option<Rc<CandidateSet>>);

impl Knowledge {
    fn insert(&mut self, i: usize) {
        Rc::make_mut(self.0.get_or_insert_default()).insert(i);
    }

    fn union(&mut self, other: &Self) {
        let Some(theirs) = &other.0 else { return };
        match &mut self.0 {
            Some(own) if Rc::ptr_eq(own, theirs) || own.contains_all(theirs) => {}
            Some(own) if !theirs.contains_all(own) => Rc::make_mut(own).union(theirs),
            own => *own = Some(Rc::clone(theirs)),
        }
    }

    fn contains(&self, i: usize) -> bool {
        self.0.as_ref().is_some_and(|own| own.contains(i))
    }

    fn set(&self) -> CandidateSet {
        self.0.as_deref().cloned().unwrap_or_default()
    }
}

struct Walk {
    acts: Vec<Act>,
    at: usize,
    entered: bool,
    knowledge: Knowledge,
    depth: u32,
    queued: bool,
}

struct Meeting {
    knowledge: Knowledge,
    depth: u32,
    /// How many members that are waited for have not entered.
    awaited: u32,
    /// Index into the waiting lists.
    waiting: Option<u32>,
    /// Whether something bad came out.
    bad: bool,
    decided: bool,
}

pub(super) struct Replay<'t> {
    timelines: &'t [Timeline],
    matching: &'t Matching,
    walks: Vec<Walk>,
    roles: Vec<Vec<Role>>,
    meetings: Vec<Meeting>,
    order: Ordering,
    /// Candidate, and what a getter knew and how deep it was when it arrived.
    pasts: Vec<(usize, Knowledge, u32)>,
    queue: VecDeque<u32>,
    /// Walks that wait for a communication; few at a time, so lists are used again.
    waiting: Vec<Vec<u32>>,
    unused: Vec<u32>,
}

/// A replayed step.
pub(super) struct Replayed {
    pub(super) order: Ordering,
    meetings: Vec<Meeting>,
}

impl Replayed {
    /// What was known in a communication, and its depth.
    pub(super) fn known_in(&self, id: u32) -> (CandidateSet, u32) {
        let meeting = &self.meetings[id as usize];
        (meeting.knowledge.set(), meeting.depth)
    }
}

impl<'t> Replay<'t> {
    pub(super) fn new(timelines: &'t [Timeline], matching: &'t Matching) -> Self {
        let of_rank = |(t, ids): (&Timeline, &Vec<Option<u32>>)| Acts::of(t, matching, ids);
        let ranks: Vec<Acts> = timelines.par_iter().zip(&matching.of_event).map(of_rank).collect();
        let awaited = |entry: &Match| {
            let role = |m: &&Member| ranks[m.timeline as usize].roles[m.event as usize].is(Role::AWAITED);
            entry.members.iter().filter(role).count() as u32
        };
        let awaited: Vec<u32> = matching.matches.par_iter().with_min_len(1024).map(awaited).collect();
        let meeting = |awaited| Meeting {
            knowledge: Knowledge::default(),
            depth: 0,
            awaited,
            waiting: None,
            bad: false,
            decided: false,
        };
        let mut meetings: Vec<Meeting> = awaited.into_iter().map(meeting).collect();
        let mut order = Ordering {
            demoted_by: timelines.iter().map(|t| vec![None; t.marks.len()]).collect(),
            ..Ordering::default()
        };
        let mut walks = Vec::with_capacity(ranks.len());
        let mut roles = Vec::with_capacity(ranks.len());
        for rank in ranks {
            for id in rank.bad {
                meetings[id as usize].bad = true;
            }
            order.receipts.push(rank.receipts);
            order.given_real.push(rank.given_real);
            roles.push(rank.roles);
            let knowledge = Knowledge::default();
            walks.push(Walk { acts: rank.list, at: 0, entered: false, knowledge, depth: 0, queued: true });
        }
        Self {
            timelines,
            matching,
            walks,
            roles,
            meetings,
            order,
            pasts: Vec::new(),
            queue: (0..timelines.len() as u32).collect(),
            waiting: Vec::new(),
            unused: Vec::new(),
        }
    }

    pub(super) fn run(mut self) -> Replayed {
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
        self.settle_getters_pasts();
        self.order.depths = self.meetings.iter().map(|m| m.depth).collect();
        Replayed { order: self.order, meetings: self.meetings }
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

    fn act(&self, t: u32) -> Option<Act> {
        let walk = &self.walks[t as usize];
        walk.acts.get(walk.at).copied()
    }

    fn role(&self, member: Member) -> Role {
        self.roles[member.timeline as usize][member.event as usize]
    }

    /// The ranks of members that give and have not entered.
    fn waits_for(&self, t: u32) -> Vec<u32> {
        let Some(id) = self.act(t).and_then(|act| act.matched()) else { return Vec::new() };
        let members = self.matching.matches[id as usize].members.iter().copied();
        let missing = members.filter(|&m| self.role(m).is(Role::GIVES) && !self.has_entered(m));
        let mut givers: Vec<u32> = missing.map(|m| m.timeline).collect();
        givers.dedup();
        givers
    }

    fn has_entered(&self, member: Member) -> bool {
        let op = self.timelines[member.timeline as usize].events[member.event as usize].communication.op;
        match self.act(member.timeline) {
            None => true,
            Some(Act { what: What::Enter, index, .. }) if index == member.event => {
                self.walks[member.timeline as usize].entered
            }
            Some(Act { op: at, what: What::Enter, index, .. }) if at == op => index > member.event,
            Some(Act { op: at, .. }) => at > op,
        }
    }

    /// Whether a rank waits at a place where an asynchronous call is only assumed to end.
    fn waits_where_assumed(&self, t: u32) -> bool {
        self.act(t).is_some_and(|act| {
            act.what == What::Leave && self.timelines[t as usize].events[act.index as usize].visible_at.is_none()
        })
    }

    /// Moves an assumed end behind the next communication.
    fn postpone(&mut self, t: u32) {
        let walk = &mut self.walks[t as usize];
        let leave = walk.acts.remove(walk.at);
        let later = walk.acts[walk.at..].iter().find(|act| act.op > leave.op && act.what == What::Enter);
        let leave = Act { op: later.map_or(u32::MAX, |act| act.op), ..leave };
        let before = |act: &&Act| {
            act.op < leave.op || (act.op == leave.op && act.what == What::Leave && act.index < leave.index)
        };
        let at = walk.at + walk.acts[walk.at..].iter().take_while(before).count();
        walk.acts.insert(at, leave);
    }

    fn wake(&mut self, t: u32) {
        let walk = &mut self.walks[t as usize];
        if !walk.queued {
            walk.queued = true;
            self.queue.push_back(t);
        }
    }

    fn advance(&mut self, t: u32) {
        while let Some(act) = self.act(t) {
            let done = match act.what {
                What::Root | What::Register => {
                    self.root(t, act.index);
                    true
                }
                What::Enter => act.matched().is_none_or(|id| self.enter(t, act.index, id)),
                What::Leave => act.matched().is_none_or(|id| self.leave(t, act.index, id)),
            };
            if !done {
                return;
            }
            let walk = &mut self.walks[t as usize];
            walk.at += 1;
            walk.entered = false;
        }
    }

    fn root(&mut self, t: u32, mark: u32) {
        let conditions = &self.timelines[t as usize].marks[mark as usize].conditions;
        let cause = self.overflow_of(t, conditions);
        let walk = &mut self.walks[t as usize];
        let id = self.order.candidates.len();
        self.order.candidates.push(Candidate {
            source: Source::Mark(t, mark),
            before: walk.knowledge.set(),
            depth: walk.depth,
            demoted: cause.is_some(),
            getters: Vec::new(),
        });
        if cause.is_none() {
            walk.knowledge.insert(id);
        }
        self.order.demoted_by[t as usize][mark as usize] = cause;
    }

    /// The first of these events of a rank that delivered an overflow.
    fn overflow_of(&self, t: u32, events: &[u32]) -> Option<u32> {
        let receipts = &self.order.receipts[t as usize];
        events.iter().copied().find(|&e| {
            matches!(receipts[e as usize], Receipt::Propagated(..) | Receipt::Origin(_) | Receipt::Entered(_))
        })
    }

    fn enter(&mut self, t: u32, event: u32, id: u32) -> bool {
        let role = self.roles[t as usize][event as usize];
        if !self.walks[t as usize].entered {
            self.walks[t as usize].entered = true;
            self.given(t, event);
            let walk = &self.walks[t as usize];
            let meeting = &mut self.meetings[id as usize];
            if role.is(Role::GIVES) {
                meeting.knowledge.union(&walk.knowledge);
                meeting.depth = meeting.depth.max(walk.depth);
            }
            if role.is(Role::AWAITED) {
                meeting.awaited -= 1;
            }
            if meeting.awaited == 0
                && let Some(list) = meeting.waiting.take()
            {
                let mut woken = std::mem::take(&mut self.waiting[list as usize]);
                for other in woken.drain(..) {
                    self.wake(other);
                }
                self.waiting[list as usize] = woken;
                self.unused.push(list);
            }
        }
        !role.is(Role::AT_ONCE) || self.leave(t, event, id)
    }

    /// Leaves a communication if all its givers have entered.
    fn leave(&mut self, t: u32, event: u32, id: u32) -> bool {
        if self.meetings[id as usize].awaited > 0 {
            self.wait(t, id);
            return false;
        }
        self.arrive(t, event, id);
        let meeting = &self.meetings[id as usize];
        let walk = &mut self.walks[t as usize];
        walk.knowledge.union(&meeting.knowledge);
        walk.depth = walk.depth.max(meeting.depth + 1);
        true
    }

    fn wait(&mut self, t: u32, id: u32) {
        let list = *self.meetings[id as usize].waiting.get_or_insert_with(|| {
            self.unused.pop().unwrap_or_else(|| {
                self.waiting.push(Vec::new());
                self.waiting.len() as u32 - 1
            })
        });
        self.waiting[list as usize].push(t);
    }

    /// Decides what came out of a communication, and notes what a getter that shows its finding knew when it arrived.
    fn arrive(&mut self, t: u32, event: u32, id: u32) {
        let meeting = &mut self.meetings[id as usize];
        if !meeting.bad {
            return;
        }
        if !std::mem::replace(&mut meeting.decided, true) {
            self.decide(id);
        }
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
            let first = past[0].1.set();
            let shared = first.iter().filter(|&i| i != past[0].0 && past.iter().all(|p| p.1.contains(i)));
            for i in shared {
                candidate.before.insert(i);
            }
            let depth = past.iter().map(|p| p.2).min();
            candidate.depth = candidate.depth.max(depth.unwrap_or(0));
        }
    }

    /// Lets a waiting rank go on without what it waited for.
    fn pass(&mut self, t: u32) {
        if let Some(act) = self.act(t)
            && let Some(id) = act.matched()
        {
            self.arrive(t, act.index, id);
        }
        let walk = &mut self.walks[t as usize];
        walk.at += 1;
        walk.entered = false;
    }

    /// Notes whether what a member gives is from an overflow, where that depends on what was delivered to it.
    fn given(&mut self, t: u32, event: u32) {
        if !self.roles[t as usize][event as usize].is(Role::CONDITIONAL) {
            return;
        }
        if let Some(side) = &self.timelines[t as usize].events[event as usize].given {
            let delivered = self.overflow_of(t, side.conditions()).is_some();
            self.order.given_real[t as usize][event as usize] = side.real || delivered;
        }
    }

    /// Rule 7: what the getters of a communication received.
    fn decide(&mut self, id: u32) {
        let entry = &self.matching.matches[id as usize];
        let bad_getter = |m: &Member| self.role(*m).is(Role::GETS) && self.role(*m).is(Role::BAD);
        let getters: SmallVec<[Member; 8]> = entry.members.iter().copied().filter(bad_getter).collect();
        if getters.is_empty() {
            return;
        }
        let givers: SmallVec<[Member; 8]> =
            entry.members.iter().copied().filter(|&m| self.role(m).is(Role::GIVES)).collect();
        // A giver that has not entered (a circle) gives what it gives all the same.
        for giver in &givers {
            self.given(giver.timeline, giver.event);
        }
        // PERF: nearly all bad ones; without a look at the events.
        if let Some(giver) = givers.iter().find(|m| self.order.given_real[m.timeline as usize][m.event as usize]) {
            for getter in &getters {
                self.order.receipts[getter.timeline as usize][getter.event as usize] =
                    Receipt::Propagated(giver.timeline, giver.event);
            }
            return;
        }
        let event_of = |m: &Member| &self.timelines[m.timeline as usize].events[m.event as usize];
        let intended =
            givers.iter().filter_map(|m| event_of(m).given.as_ref()).fold(Kinds::NONE, |k, side| k.union(side.kinds));
        let mut shown: Vec<(u32, u32)> = Vec::new();
        for getter in &getters {
            let event = event_of(getter);
            let got = event.got.as_ref().map_or(Kinds::NONE, |g| g.kinds);
            let receipt = if !intended.is_finite() && intended.contains(got) {
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
        let (source, receipt) = if self.is_unseen(entry, &givers) {
            (Source::Missing(id, t, event), Receipt::Entered(candidate))
        } else {
            (Source::Communication(id, t, event), Receipt::Origin(candidate))
        };
        for &(t, event) in &shown {
            self.order.receipts[t as usize][event as usize] = receipt.clone();
        }
        let meeting = &mut self.meetings[id as usize];
        let before = meeting.knowledge.set();
        self.order.candidates.push(Candidate { source, before, depth: meeting.depth, demoted: false, getters: shown });
        meeting.knowledge.insert(candidate);
    }

    /// Whether a contribution to a communication is not in the dump.
    fn is_unseen(&self, entry: &Match, givers: &[Member]) -> bool {
        let event_of = |m: &Member| -> &Event { &self.timelines[m.timeline as usize].events[m.event as usize] };
        let giver_ranks: Vec<Rank> = givers.iter().map(|m| self.timelines[m.timeline as usize].rank).collect();
        let should_give: Vec<Rank> = match (entry.flow, entry.pair, entry.root) {
            (_, Some((source, _)), _) => vec![source],
            (Flow::FromRoot, _, Some(root)) => vec![root],
            _ => giver_ranks.iter().chain(&entry.missing).chain(&entry.absent).copied().collect(),
        };
        // The default group does not list its members: sizes and the lone record say whether some are not here.
        let listed = !entry.group.ranks.is_empty() || !entry.group.id.is_empty();
        let expected = entry.members.iter().map(|m| event_of(m).communication.parts).max().unwrap_or(1).max(2);
        let unlisted = entry.flow == Flow::All && !listed && (entry.members.len() as u32) < expected;
        unlisted
            || should_give.iter().any(|r| !giver_ranks.contains(r))
            || givers.iter().any(|m| event_of(m).given.as_ref().is_some_and(|g| !g.judged))
            || givers.iter().all(|m| event_of(m).given.is_none())
    }
}
