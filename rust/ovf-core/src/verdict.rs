//! Ordered candidates -> the report: which finding is first, how far it went, what else there is to say.
//!
//! In: timelines, their matching and order. Out: a [`Report`] without the details that stand in the files (values,
//! module chain, code), which [`crate::detail`] fills in for the findings that are listed.
//!
//! Ranking (rule 10). Findings that another finding happened before come behind it. Among those that nothing
//! happened before: evidence class, then logical depth, then (only where no communication is dumped) part of the step
//! and place, then severity, reach, rank. The evidence class orders what happens-before cannot (hidden
//! communication): 0 a bad weight or batch that is itself visible; 1 an op; 2 a module that may hide a communication;
//! 3 a bad input that another rank's origin probably sent.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::collective::{Match, MatchState, Matching};
use crate::op::{Kinds, Rank};
use crate::order::{CANDIDATES_PER_RANK, Candidate, Ordering, Receipt, Source, sides};
use crate::report::{
    Certainty, CommunicationReport, Finding, FindingKind, Hop, Note, PathStep, RankOp, RankReport, Report,
    SCHEMA_VERSION, Spread, Unreadable, Verdict,
};
use crate::timeline::{Cause, Completeness, Mark, Phase, Symptom, Timeline, Trail};

/// Findings listed.
const FINDINGS_LISTED: usize = 200;
/// Communications listed.
const COMMUNICATIONS_LISTED: usize = 2000;
/// Ops named in a note.
const OPS_IN_NOTE: usize = 8;

/// What is known of the step besides its ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepFacts {
    pub(crate) number: Option<u64>,
    pub(crate) label: String,
    pub(crate) notes: Vec<String>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// The user chose the ranks: those left out are no missing evidence.
    pub(crate) chosen: bool,
}

/// A finding with where its details stand.
pub(crate) struct Located {
    /// Index into the timelines, and the record's place in that rank's dump.
    pub(crate) timeline: u32,
    pub(crate) record: (u64, u64),
}

struct Assembler<'t> {
    timelines: &'t [Timeline],
    matching: &'t Matching,
    ordering: &'t Ordering,
    /// Candidate each mark leads back to.
    cause_of: Vec<Vec<Option<usize>>>,
    reach: Vec<(u64, Vec<u32>)>,
    class: Vec<u8>,
    layer: Vec<u32>,
    hidden_order: bool,
}

pub(crate) fn assemble(
    step: &StepFacts,
    timelines: &[Timeline],
    matching: &Matching,
    ordering: &Ordering,
) -> (Report, Vec<Located>) {
    let mut a = Assembler {
        timelines,
        matching,
        ordering,
        cause_of: timelines.iter().map(|t| vec![None; t.marks.len()]).collect(),
        reach: vec![(0, Vec::new()); ordering.candidates.len()],
        class: Vec::new(),
        layer: vec![0; ordering.candidates.len()],
        hidden_order: timelines.len() > 1 && timelines.iter().all(|t| t.events.is_empty()),
    };
    a.trace_causes();
    a.classify();
    a.layers();
    let ranked = a.ranked();
    a.report(step, &ranked)
}

impl Assembler<'_> {
    fn rank(&self, timeline: u32) -> Rank {
        self.timelines[timeline as usize].rank
    }

    fn mark(&self, candidate: &Candidate) -> Option<&Mark> {
        match candidate.source {
            Source::Mark(t, m) => Some(&self.timelines[t as usize].marks[m as usize]),
            _ => None,
        }
    }

    fn place(&self, candidate: &Candidate) -> (u32, u32) {
        match candidate.source {
            Source::Mark(t, m) => (t, self.timelines[t as usize].marks[m as usize].at.op),
            Source::Communication(_, t, e) | Source::Missing(_, t, e) => {
                (t, self.timelines[t as usize].events[e as usize].communication.op)
            }
        }
    }

    // --- causes across ranks --------------------------------------------------------------------------------------

    /// Follows every mark back to the candidate it is a consequence of.
    fn trace_causes(&mut self) {
        let mut own: FxHashMap<(u32, u32), usize> = FxHashMap::default();
        for (i, c) in self.ordering.candidates.iter().enumerate() {
            if let Source::Mark(t, m) = c.source
                && !c.demoted
            {
                own.insert((t, m), i);
            }
        }
        for t in 0..self.timelines.len() as u32 {
            for m in 0..self.timelines[t as usize].marks.len() as u32 {
                let mut chain = Vec::new();
                let (mut at_t, mut at_m) = (t, m);
                let cause = loop {
                    if let Some(known) = self.cause_of[at_t as usize][at_m as usize] {
                        break Some(known);
                    }
                    if let Some(&c) = own.get(&(at_t, at_m)) {
                        chain.push((at_t, at_m));
                        break Some(c);
                    }
                    if chain.contains(&(at_t, at_m)) || chain.len() > 100_000 {
                        break None;
                    }
                    chain.push((at_t, at_m));
                    match self.before(at_t, at_m) {
                        Before::Candidate(c) => break Some(c),
                        Before::Mark(t, m) => (at_t, at_m) = (t, m),
                        Before::Nothing => break None,
                    }
                };
                for (t, m) in chain {
                    self.cause_of[t as usize][m as usize] = cause;
                }
            }
        }
        for (t, timeline) in self.timelines.iter().enumerate() {
            for (m, mark) in timeline.marks.iter().enumerate() {
                let Some(c) = self.cause_of[t][m] else {
                    continue;
                };
                self.reach[c].0 += u64::from(mark.reach);
                if self.reach[c].1.last() != Some(&(t as u32)) {
                    self.reach[c].1.push(t as u32);
                }
            }
        }
    }

    fn before(&self, t: u32, m: u32) -> Before {
        let timeline = &self.timelines[t as usize];
        let event = self.ordering.demoted_by[t as usize][m as usize].or(timeline.marks[m as usize].event);
        let Some(event) = event else { return Before::Nothing };
        match self.ordering.receipts[t as usize][event as usize] {
            Receipt::Origin(c) | Receipt::Entered(c) => Before::Candidate(c),
            Receipt::Propagated(gt, ge) => {
                let given = self.timelines[gt as usize].events[ge as usize].given.as_ref();
                if let Some(mark) = given.and_then(|g| g.mark) {
                    return Before::Mark(gt, mark);
                }
                // Given as a mask that had been delivered: its delivery is the way back.
                let condition = given.and_then(|g| g.conditions.first().copied());
                let delivered = condition
                    .and_then(|c| self.timelines[gt as usize].events[c as usize].got.as_ref().and_then(|s| s.mark));
                delivered.map_or(Before::Nothing, |mark| Before::Mark(gt, mark))
            }
            _ => Before::Nothing,
        }
    }

    // --- ranking --------------------------------------------------------------------------------------------------

    fn classify(&mut self) {
        let several = self.timelines.len() > 1;
        let explained = |c: &Candidate| match self.mark(c) {
            Some(m) => !c.demoted && !matches!(m.cause, Cause::Input | Cause::Unrecorded),
            None => matches!(c.source, Source::Communication(..)),
        };
        let explained_at: Vec<(usize, u32)> = self
            .ordering
            .candidates
            .iter()
            .enumerate()
            .filter(|(_, c)| explained(c))
            .map(|(i, c)| (i, self.place(c).0))
            .collect();
        let class = |i: usize, c: &Candidate| -> u8 {
            let (t, _) = self.place(c);
            let timeline = &self.timelines[t as usize];
            let silent = several && timeline.events.is_empty();
            // Another rank's origin could have sent it, unless this one happened before all of them.
            let elsewhere = || {
                let mut others = explained_at.iter().filter(|(_, at)| *at != t).peekable();
                others.peek().is_some() && !others.all(|&(o, _)| self.ordering.candidates[o].before.contains(i))
            };
            let if_sent = |class: u8| if elsewhere() { 3 } else { class };
            match self.mark(c) {
                None if matches!(c.source, Source::Missing(..)) => if_sent(1),
                None => 1,
                Some(m) => match m.cause {
                    Cause::Parameter => u8::from(!self.hidden_order || m.slot.is_none()),
                    Cause::Input if silent => {
                        let sent = m.bad_in.as_ref().is_some_and(|shape| {
                            self.timelines
                                .iter()
                                .enumerate()
                                .any(|(o, other)| o as u32 != t && other.bad_shapes.contains(shape))
                        });
                        if sent { 3 } else { if_sent(u8::from(!self.hidden_order)) }
                    }
                    Cause::Unrecorded => if_sent(1),
                    _ if m.container && silent => 2,
                    _ => 1,
                },
            }
        };
        let classes: Vec<u8> = self.ordering.candidates.iter().enumerate().map(|(i, c)| class(i, c)).collect();
        self.class = classes;
    }

    fn layers(&mut self) {
        // Candidates are numbered as the replay met them, which is their order but for communications; those may
        // learn of their getter's past later, so passes are repeated until nothing moves.
        let mut moved = true;
        let mut passes = 0;
        while moved && passes <= self.ordering.candidates.len() {
            moved = self.layers_once();
            passes += 1;
        }
    }

    fn layers_once(&mut self) -> bool {
        let mut moved = false;
        for i in 0..self.ordering.candidates.len() {
            let before = &self.ordering.candidates[i].before;
            let deepest =
                before.iter().filter(|&b| !self.ordering.candidates[b].demoted).map(|b| self.layer[b] + 1).max();
            moved |= self.layer[i] != deepest.unwrap_or(0);
            self.layer[i] = deepest.unwrap_or(0);
        }
        moved
    }

    fn severity(&self, c: &Candidate) -> Kinds {
        match self.mark(c) {
            Some(m) => m.kinds,
            None => c
                .getters
                .iter()
                .filter_map(|&(t, e)| self.timelines[t as usize].events[e as usize].got.as_ref())
                .fold(Kinds::NONE, |k, side| k.union(side.kinds)),
        }
    }

    fn phase(&self, c: &Candidate) -> Phase {
        if let Some(mark) = self.mark(c) {
            return mark.phase;
        }
        let (t, op) = self.place(c);
        let received = |m: &&Mark| m.at.op == op;
        self.timelines[t as usize].marks.iter().find(received).map_or(Phase::Forward, |m| m.phase)
    }

    fn ranked(&self) -> Vec<usize> {
        let candidates = &self.ordering.candidates;
        let mut ranked: Vec<usize> = (0..candidates.len()).filter(|&i| !candidates[i].demoted).collect();
        ranked.sort_by_key(|&i| {
            let c = &candidates[i];
            let (t, op) = self.place(c);
            let place = if self.hidden_order { (Some(self.phase(c)), op) } else { (None, 0) };
            (
                self.class[i] == 3,
                self.layer[i],
                self.class[i],
                c.depth,
                place,
                std::cmp::Reverse(self.severity(c).severity()),
                std::cmp::Reverse(self.reach[i].1.len()),
                std::cmp::Reverse(self.reach[i].0),
                self.rank(t),
                op,
            )
        });
        ranked
    }

    // --- findings -------------------------------------------------------------------------------------------------

    fn finding(&self, i: usize, first: usize, step: Option<u64>) -> (Finding, Located) {
        let c = &self.ordering.candidates[i];
        let (t, op) = self.place(c);
        let timeline = &self.timelines[t as usize];
        let kinds = self.severity(c);
        let mut doubts: Vec<String> = Vec::new();
        let mut members: Vec<RankOp> = Vec::new();
        let mut missing: Vec<Rank> = Vec::new();
        let mut record = (0, 0);
        let (at, kind, reason) = match c.source {
            Source::Mark(_, m) => {
                let mark = &timeline.marks[m as usize];
                record = mark.record;
                let kind = match mark.cause {
                    Cause::Parameter => FindingKind::Parameter,
                    Cause::Input => FindingKind::Input,
                    Cause::Corruption => FindingKind::Corruption,
                    _ => FindingKind::Compute,
                };
                (mark.at.clone(), kind, reason(mark, kinds, &mut doubts))
            }
            Source::Communication(id, _, event) | Source::Missing(id, _, event) => {
                let entry = &self.matching.matches[id as usize];
                let communication = &timeline.events[event as usize].communication;
                let named = self.event_op(t, event);
                record = named.1.unwrap_or(record);
                members =
                    c.getters.iter().skip(1).map(|&(t, e)| RankOp::new(self.rank(t), &self.event_op(t, e).0)).collect();
                if let Source::Missing(..) = c.source {
                    missing.clone_from(&entry.missing);
                    missing.extend(&entry.absent);
                    let from = if missing.is_empty() { "another rank".to_owned() } else { ranks_text(&missing) };
                    doubts.push("the giver's side is not in the dump".to_owned());
                    (
                        named.0,
                        FindingKind::MissingRank,
                        format!("{} entered from {from}, whose values are not in the dump", kinds.name()),
                    )
                } else if communication.is_async && entry.pair.is_some() {
                    members.extend(self.sender(entry));
                    doubts.push("an asynchronous record may have been made before the data was there".to_owned());
                    (
                        named.0,
                        FindingKind::Corruption,
                        format!(
                            "{} in the receive buffer although what was sent is finite, and it was read",
                            kinds.name()
                        ),
                    )
                } else {
                    members.extend(self.sender(entry));
                    let reason = match entry.pair {
                        Some((source, _)) => {
                            format!("{} arrived although what rank {source} sent is finite", kinds.name())
                        }
                        None => format!("{} out of finite contributions of all members", kinds.name()),
                    };
                    (named.0, FindingKind::Communication, reason)
                }
            }
        };
        if self.class[i] == 3 {
            doubts.push(
                "probably received: another rank has an origin, and the communication between them is not in the dump"
                    .to_owned(),
            );
        } else if self.hidden_order && self.several_first() {
            doubts.push("no communication is in the dump, so the order of ranks is inferred".to_owned());
        }
        if let Some(mark) = self.mark(c) {
            if mark.container && timeline.events.is_empty() {
                doubts.push("the module may hide a communication".to_owned());
            }
            if mark.one_sided {
                doubts.push("inputs or outputs are not in the dump (data_mode)".to_owned());
            }
            if mark.cause == Cause::Input && timeline.modules_only {
                doubts.push("code outside of modules is not in the dump (level L0)".to_owned());
            }
        }
        if let Source::Communication(id, ..) = c.source
            && self.is_shifted(&self.matching.matches[id as usize])
        {
            doubts.push(
                "calls of this group are missing on some ranks, so it may be matched to the wrong one".to_owned(),
            );
        }
        if !self.is_whole(t) {
            doubts.push(format!("the dump of rank {} is incomplete", timeline.rank));
        }
        let finding = Finding {
            rank: timeline.rank,
            step,
            op_name: at.name,
            exec_order: op,
            kind,
            certainty: if doubts.is_empty() { Certainty::Certain } else { Certainty::Likely },
            why_not_certain: doubts,
            severity: if kinds.is_finite() { "unknown".to_owned() } else { kinds.name().to_owned() },
            phase: self.phase(c),
            reason,
            slot: self.mark(c).and_then(|m| m.slot.clone()),
            inputs: Vec::new(),
            forward_inputs: Vec::new(),
            outputs: Vec::new(),
            scalars: Vec::new(),
            module: None,
            construct_chain: Vec::new(),
            stack: Vec::new(),
            stack_info: Vec::new(),
            hint: None,
            only_in_recompute: self.mark(c).is_some_and(|m| m.recompute),
            members,
            missing_ranks: missing,
            concurrent: i != first && !c.before.contains(first) && self.class[i] != 3,
            layer: self.layer[i],
            depth: c.depth,
            reach_ops: self.reach[i].0,
            reach_ranks: self.reach[i].1.len() as u32,
            record: String::new(),
        };
        (finding, Located { timeline: t, record })
    }

    /// Whether some member of the same group lacks a call.
    fn is_shifted(&self, entry: &Match) -> bool {
        let same = |m: &&Match| m.group == entry.group && m.pair == entry.pair;
        self.matching.matches.iter().filter(same).any(|m| !m.absent.is_empty() || m.state == MatchState::TypeMismatch)
    }

    /// The sending side of a pair.
    fn sender(&self, entry: &Match) -> Option<RankOp> {
        entry.pair?;
        let m = entry.members.first()?;
        Some(RankOp::new(self.rank(m.timeline), &self.timelines[m.timeline as usize].event_refs[m.event as usize]))
    }

    fn is_whole(&self, t: u32) -> bool {
        self.timelines[t as usize].completeness == Completeness::Complete
    }

    fn several_first(&self) -> bool {
        self.ordering.candidates.iter().filter(|c| !c.demoted).count() > 1
    }

    /// Name and record of a communication's op: its received mark knows them.
    fn event_op(&self, t: u32, event: u32) -> (crate::timeline::OpRef, Option<(u64, u64)>) {
        let timeline = &self.timelines[t as usize];
        let op = timeline.events[event as usize].communication.op;
        match timeline.marks.iter().find(|m| m.at.op == op) {
            Some(mark) => (mark.at.clone(), Some(mark.record)),
            None => (timeline.event_refs[event as usize].clone(), None),
        }
    }

    /// One finding for a weight that is bad on many ranks.
    fn merge_shared(&self, ranked: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let mut merged: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut by_key: FxHashMap<(String, Option<String>, bool), usize> = FxHashMap::default();
        for &i in ranked {
            let c = &self.ordering.candidates[i];
            if let Some(mark) = self.mark(c).filter(|m| m.cause == Cause::Parameter) {
                let key = (mark.at.name.clone(), mark.slot.clone(), self.class[i] == 3);
                if let Some(&at) = by_key.get(&key)
                    && !c.before.contains(merged[at].0)
                {
                    merged[at].1.push(i);
                    continue;
                }
                by_key.insert(key, merged.len());
            }
            merged.push((i, Vec::new()));
        }
        merged
    }

    fn report(&self, step: &StepFacts, ranked: &[usize]) -> (Report, Vec<Located>) {
        let merged = self.merge_shared(ranked);
        let first = ranked.first().copied().unwrap_or(usize::MAX);
        let mut findings = Vec::new();
        let mut located = Vec::new();
        for (i, others) in merged.iter().take(FINDINGS_LISTED) {
            let (mut finding, at) = self.finding(*i, first, step.number);
            for &o in others {
                let c = &self.ordering.candidates[o];
                if let Some(mark) = self.mark(c) {
                    finding.members.push(RankOp::new(self.rank(self.place(c).0), &mark.at));
                }
                finding.reach_ops += self.reach[o].0;
            }
            if !others.is_empty() {
                finding.reach_ranks = (others.len() + 1).max(finding.reach_ranks as usize) as u32;
                finding.members.sort();
            }
            findings.push(finding);
            located.push(at);
        }
        let flood = (!findings.is_empty()).then(|| self.flood(first));
        if let (Some(head), Some(flood)) = (findings.first_mut(), &flood) {
            head.reach_ops = head.reach_ops.max(flood.ops);
            head.reach_ranks = head.reach_ranks.max(flood.timelines.len() as u32);
        }
        if let Some((head, rest)) = findings.split_first_mut() {
            head.concurrent = rest.iter().any(|f| f.concurrent);
        }
        let unordered = |t: &Timeline| {
            let harmful = t.marks.iter().filter(|m| m.harm && m.cause != Cause::Received).count();
            harmful.saturating_sub(CANDIDATES_PER_RANK) as u32
        };
        let omitted: u32 = self.timelines.iter().map(|t| t.marks_omitted + unordered(t)).sum();
        let judged = self.timelines.iter().any(|t| t.has_statistics);
        let verdict = match (findings.is_empty(), judged) {
            (false, _) => Verdict::Overflow,
            (true, true) => Verdict::Clean,
            (true, false) => Verdict::NoEvidence,
        };
        let (communications, communications_omitted) = self.communications();
        let missing = self.missing_ranks(step);
        let mut unreadable = step.unreadable.clone();
        unreadable.sort_by_key(|u| u.rank);
        let silent = self.timelines.iter().any(|t| !t.has_statistics && t.completeness == Completeness::Complete);
        let report = Report {
            schema_version: SCHEMA_VERSION,
            verdict,
            incomplete: !unreadable.is_empty() || (!missing.is_empty() && !step.chosen) || silent,
            step: step.number,
            step_label: step.label.clone(),
            first: findings.first().cloned(),
            path: if findings.is_empty() { Vec::new() } else { self.path(first) },
            spread: flood.as_ref().map(|f| self.spread(f)),
            findings,
            findings_omitted: omitted + merged.len().saturating_sub(FINDINGS_LISTED) as u32,
            notes: self.notes(step, &missing),
            ranks: self.ranks(first, flood.as_ref()),
            communications,
            communications_omitted,
            unreadable,
            total_communications: self.timelines.iter().map(|t| t.events.len() as u64).sum(),
            total_ops: self.timelines.iter().map(|t| u64::from(t.ops)).sum(),
            total_bytes: self.timelines.iter().map(|t| t.bytes).sum(),
        };
        (report, located)
    }

    // --- path and spread ------------------------------------------------------------------------------------------

    /// Breadth-first over (rank, root): a root leads to the communications that its value enters, those to the roots
    /// of the ranks that got it. The first place with the strongest symptom ends the path.
    fn path(&self, first: usize) -> Vec<PathStep> {
        let starts = self.starts(first);
        let mut from: FxHashMap<(u32, u32), Option<Arrival>> = FxHashMap::default();
        let mut queue: Vec<(u32, u32)> = Vec::new();
        for start in starts {
            from.insert(start, None);
            queue.push(start);
        }
        let mut best: Option<(Symptom, (u32, u32), usize)> = None;
        let given = self.given_by_mark();
        let mut at = 0;
        while at < queue.len() {
            let (t, m) = queue[at];
            at += 1;
            for (k, terminal) in self.timelines[t as usize].terminals.iter().enumerate() {
                if terminal.mark == m && best.as_ref().is_none_or(|b| terminal.symptom < b.0) {
                    best = Some((terminal.symptom, (t, m), k));
                }
            }
            if matches!(best, Some((Symptom::Loss, ..))) {
                break;
            }
            for &event in given.get(&(t, m)).into_iter().flatten() {
                for (gt, ge) in self.getters_of(t, event) {
                    let Some(mark) = self.timelines[gt as usize].events[ge as usize].got.as_ref().and_then(|g| g.mark)
                    else {
                        continue;
                    };
                    if let std::collections::hash_map::Entry::Vacant(slot) = from.entry((gt, mark)) {
                        slot.insert(Some((t, m, event, ge)));
                        queue.push((gt, mark));
                    }
                }
            }
        }
        let Some((symptom, end, terminal)) = best else {
            return self.path_without_end(first);
        };
        let mut hops = Vec::new();
        let mut place = end;
        while let Some(Some((t, m, event, got))) = from.get(&place) {
            hops.push((*t, *event, place.0, *got));
            place = (*t, *m);
        }
        hops.reverse();
        let mut path = Vec::new();
        let mut entered_by = None;
        for (t, event, to, got) in hops {
            let side = self.timelines[t as usize].events[event as usize].given.as_ref();
            self.walk(&mut path, t, side.map(|s| &s.trail), entered_by);
            let giving = self.event_op(t, event).0;
            if path.last().is_none_or(|p: &PathStep| p.rank != self.rank(t) || p.exec_order != giving.op) {
                let via = if path.is_empty() { "origin" } else { "data" };
                path.push(self.step(t, &giving, via, 0));
            }
            path.push(self.step(to, &self.event_op(to, got).0, "communication", 0));
            entered_by = Some(());
        }
        let last = &self.timelines[end.0 as usize].terminals[terminal];
        self.walk(&mut path, end.0, Some(&last.trail), entered_by);
        if let Some(step) = path.last_mut() {
            step.symptom = Some(symptom);
        }
        path
    }

    fn path_without_end(&self, first: usize) -> Vec<PathStep> {
        let c = &self.ordering.candidates[first];
        let (t, _) = self.place(c);
        let at = match c.source {
            Source::Mark(_, m) => self.timelines[t as usize].marks[m as usize].at.clone(),
            Source::Communication(_, _, e) | Source::Missing(_, _, e) => self.event_op(t, e).0,
        };
        vec![self.step(t, &at, "origin", 0)]
    }

    fn step(&self, t: u32, at: &crate::timeline::OpRef, via: &'static str, omitted: u32) -> PathStep {
        PathStep { rank: self.rank(t), op_name: at.name.clone(), exec_order: at.op, via, omitted, symptom: None }
    }

    /// Appends a trail; its first op is there already when a communication brought the value.
    fn walk(&self, path: &mut Vec<PathStep>, t: u32, trail: Option<&Trail>, entered: Option<()>) {
        let Some(trail) = trail else { return };
        let skip = usize::from(entered.is_some());
        for (k, at) in trail.head.iter().enumerate().skip(skip) {
            let via = if path.is_empty() && k == 0 { "origin" } else { "data" };
            path.push(self.step(t, at, via, 0));
        }
        for (k, at) in trail.tail.iter().enumerate() {
            path.push(self.step(t, at, "data", if k == 0 { trail.omitted } else { 0 }));
        }
    }

    /// (timeline, mark) of a candidate: its own mark, or the received marks of the members that show it.
    fn starts(&self, candidate: usize) -> Vec<(u32, u32)> {
        let c = &self.ordering.candidates[candidate];
        match c.source {
            Source::Mark(t, m) => vec![(t, m)],
            _ => c
                .getters
                .iter()
                .filter_map(|&(t, e)| Some((t, self.timelines[t as usize].events[e as usize].got.as_ref()?.mark?)))
                .collect(),
        }
    }

    fn given_by_mark(&self) -> FxHashMap<(u32, u32), Vec<u32>> {
        let mut given: FxHashMap<(u32, u32), Vec<u32>> = FxHashMap::default();
        for (t, timeline) in self.timelines.iter().enumerate() {
            for (e, event) in timeline.events.iter().enumerate() {
                if let Some(mark) = event.given.as_ref().and_then(|g| g.mark) {
                    given.entry((t as u32, mark)).or_default().push(e as u32);
                }
            }
        }
        given
    }

    /// Members of the event's communication that got the overflow from it.
    fn getters_of(&self, t: u32, event: u32) -> Vec<(u32, u32)> {
        let Some(id) = self.matching.of_event[t as usize][event as usize] else {
            return Vec::new();
        };
        self.matching.matches[id as usize]
            .members
            .iter()
            .filter(|m| {
                matches!(self.ordering.receipts[m.timeline as usize][m.event as usize], Receipt::Propagated(..))
            })
            .map(|m| (m.timeline, m.event))
            .collect()
    }

    /// Everything the first overflow leads to: roots in the order they are reached, and the communications that
    /// brought it to ranks that did not have it.
    fn flood(&self, first: usize) -> Flood {
        let mut roots = self.starts(first);
        let mut seen: FxHashSet<(u32, u32)> = roots.iter().copied().collect();
        let mut timelines: Vec<u32> = roots.iter().map(|s| s.0).collect();
        let mut hops: Vec<Hop> = Vec::new();
        let given = self.given_by_mark();
        let mut at = 0;
        while at < roots.len() {
            let (t, m) = roots[at];
            at += 1;
            for &event in given.get(&(t, m)).into_iter().flatten() {
                let mut new = Vec::new();
                for (gt, ge) in self.getters_of(t, event) {
                    let got = self.timelines[gt as usize].events[ge as usize].got.as_ref();
                    let Some(mark) = got.and_then(|g| g.mark) else { continue };
                    if seen.insert((gt, mark)) {
                        roots.push((gt, mark));
                    }
                    if !timelines.contains(&gt) {
                        timelines.push(gt);
                        new.push(self.rank(gt));
                    }
                }
                if !new.is_empty() {
                    let op = self.event_op(t, event).0;
                    let api = self.timelines[t as usize].events[event as usize].communication.api.clone();
                    hops.push(Hop { api, from: self.rank(t), op_name: op.name, to: new });
                }
            }
        }
        timelines.sort_unstable();
        let reach = |&(t, m): &(u32, u32)| u64::from(self.timelines[t as usize].marks[m as usize].reach);
        Flood { ops: roots.iter().map(reach).sum(), roots, timelines, hops }
    }

    fn spread(&self, flood: &Flood) -> Spread {
        let symptom = flood
            .roots
            .iter()
            .flat_map(|&(t, m)| {
                self.timelines[t as usize].terminals.iter().filter(move |x| x.mark == m).map(move |x| (t, x))
            })
            .min_by_key(|(t, x)| (x.symptom, *t));
        Spread {
            ops: flood.ops.saturating_sub(1),
            ranks: flood.timelines.iter().map(|&t| self.rank(t)).collect(),
            hops: flood.hops.clone(),
            symptom: symptom.map(|(t, x)| RankOp::new(self.rank(t), &x.at)),
            symptom_kind: symptom.map(|(_, x)| x.symptom),
        }
    }

    // --- tables ---------------------------------------------------------------------------------------------------

    fn ranks(&self, first: usize, flood: Option<&Flood>) -> Vec<RankReport> {
        let own = self.ordering.candidates.get(first).map(|c| self.place(c).0);
        self.timelines
            .iter()
            .enumerate()
            .map(|(t, timeline)| RankReport {
                rank: timeline.rank,
                label: timeline.label.clone(),
                completeness: timeline.completeness,
                has_statistics: timeline.has_statistics,
                task: timeline.task.clone(),
                level: timeline.level.clone(),
                ops: timeline.ops,
                counts: timeline.counts,
                first_bad: timeline.first_bad.as_ref().map(|at| RankOp::new(timeline.rank, at)),
                reached_by: if own == Some(t as u32) {
                    Some("origin")
                } else {
                    flood.is_some_and(|f| f.timelines.binary_search(&(t as u32)).is_ok()).then_some("communication")
                },
            })
            .collect()
    }

    fn communications(&self) -> (Vec<CommunicationReport>, u32) {
        let mut found = Vec::new();
        let mut omitted = 0;
        for (id, entry) in self.matching.matches.iter().enumerate() {
            let Some(verdict) = self.communication_verdict(entry) else {
                continue;
            };
            if found.len() == COMMUNICATIONS_LISTED {
                omitted += 1;
                continue;
            }
            found.push((self.ordering.depths[id], self.communication(entry, verdict)));
        }
        found.sort_by_key(|(depth, c)| (*depth, c.members.first().map(|m| (m.exec_order, m.rank))));
        (found.into_iter().map(|(_, c)| c).collect(), omitted)
    }

    fn communication_verdict(&self, entry: &Match) -> Option<&'static str> {
        let mut verdict = None;
        let mut rank_of = |v: &'static str, order: u8| {
            if verdict.is_none_or(|(o, _)| order > o) {
                verdict = Some((order, v));
            }
        };
        for m in &entry.members {
            let event = &self.timelines[m.timeline as usize].events[m.event as usize];
            if self.ordering.given_real[m.timeline as usize][m.event as usize] {
                rank_of("absorbed", 3);
            }
            if event.given.as_ref().is_some_and(|g| !g.kinds.is_finite()) {
                rank_of("intended", 1);
            }
            match self.ordering.receipts[m.timeline as usize][m.event as usize] {
                Receipt::Propagated(..) => rank_of("overflow", 6),
                Receipt::Origin(_) => rank_of("origin", 5),
                Receipt::Entered(_) => rank_of("entered", 4),
                Receipt::Garbage => rank_of("garbage", 2),
                Receipt::Intended => rank_of("intended", 1),
                Receipt::Nothing => {}
            }
        }
        // A rank that is not dumped leaves every call of its groups without a member; a note says that once.
        if matches!(entry.state, MatchState::Unmatched | MatchState::TypeMismatch) {
            rank_of("clean", 0);
        }
        verdict.map(|(_, v)| v)
    }

    fn communication(&self, entry: &Match, verdict: &'static str) -> CommunicationReport {
        let (mut sources, mut propagated, mut normal) = (Vec::new(), Vec::new(), Vec::new());
        for m in &entry.members {
            let rank = self.rank(m.timeline);
            let event = &self.timelines[m.timeline as usize].events[m.event as usize];
            let (gives, gets) = sides(entry, rank, event.communication.flow);
            let bad_in = gives && self.ordering.given_real[m.timeline as usize][m.event as usize];
            let bad_out = gets
                && matches!(
                    self.ordering.receipts[m.timeline as usize][m.event as usize],
                    Receipt::Propagated(..) | Receipt::Origin(_) | Receipt::Entered(_)
                );
            if bad_in {
                sources.push(rank);
            } else if bad_out {
                propagated.push(rank);
            } else {
                normal.push(rank);
            }
        }
        for list in [&mut sources, &mut propagated, &mut normal] {
            list.sort_unstable();
        }
        let members: Vec<RankOp> = entry
            .members
            .iter()
            .map(|m| {
                RankOp::new(self.rank(m.timeline), &self.timelines[m.timeline as usize].event_refs[m.event as usize])
            })
            .collect();
        CommunicationReport {
            api: entry.api.clone(),
            op_name: members.first().map(|m| m.op_name.clone()).unwrap_or_default(),
            group_ranks: entry.group.ranks.clone(),
            group_id: entry.group.id.clone(),
            seq: entry.seq,
            members,
            source_ranks: sources,
            propagated_ranks: propagated,
            normal_ranks: normal,
            missing_ranks: entry.missing.clone(),
            unmatched_ranks: entry.absent.clone(),
            state: entry.state,
            verdict,
        }
    }

    // --- notes ----------------------------------------------------------------------------------------------------

    /// Ranks that records name, or that the numbering skips, without a dump.
    fn missing_ranks(&self, step: &StepFacts) -> Vec<Rank> {
        let mut known: Vec<Rank> = self.timelines.iter().map(|t| t.rank).collect();
        known.extend(step.unreadable.iter().map(|u| u.rank));
        known.sort_unstable();
        let mut missing: Vec<Rank> =
            self.matching.world.iter().copied().filter(|r| known.binary_search(r).is_err()).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    fn notes(&self, step: &StepFacts, missing: &[Rank]) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut note = |kind: &str, text: String, ranks: Vec<Rank>, ops: Vec<RankOp>, count: u64| {
            notes.push(Note { kind: kind.to_owned(), text, ranks, ops, count });
        };
        for text in &step.notes {
            note("layout", text.clone(), Vec::new(), Vec::new(), 1);
        }
        if !missing.is_empty() {
            note(
                "missing_ranks",
                format!("{} {}", ranks_text(missing), if step.chosen { "not looked at" } else { "not dumped" }),
                missing.to_vec(),
                Vec::new(),
                missing.len() as u64,
            );
        }
        let masks: u64 = self.timelines.iter().map(|t| u64::from(t.masks)).sum();
        if masks > 0 {
            let ranks = self.timelines.iter().filter(|t| t.masks > 0).map(|t| t.rank).collect();
            let text = format!(
                "{masks} {} on purpose (masks)",
                if masks == 1 { "op writes a non-finite value" } else { "ops write a non-finite value" }
            );
            note("intended", text, ranks, Vec::new(), masks);
        }
        let healed: Vec<(Rank, &Mark)> = self
            .timelines
            .iter()
            .flat_map(|t| t.marks.iter().filter(|m| !m.harm && m.cause != Cause::Received).map(move |m| (t.rank, m)))
            .collect();
        if !healed.is_empty() {
            let mut ranks: Vec<Rank> = healed.iter().map(|h| h.0).collect();
            ranks.dedup();
            let ops = healed.iter().take(OPS_IN_NOTE).map(|(r, m)| RankOp::new(*r, &m.at)).collect();
            let n = healed.len() as u64;
            let text = format!(
                "{n} non-finite {} on {} rank and {} no loss, gradient or communication (healed)",
                if n == 1 { "value ends" } else { "values end" },
                if n == 1 { "its" } else { "their" },
                if n == 1 { "reaches" } else { "reach" }
            );
            note("healed", text, ranks, ops, n);
        }
        let mut garbage: Vec<RankOp> = Vec::new();
        let mut garbage_count = 0;
        for (t, receipts) in self.ordering.receipts.iter().enumerate() {
            for (e, receipt) in receipts.iter().enumerate() {
                if *receipt == Receipt::Garbage {
                    garbage_count += 1;
                    if garbage.len() < OPS_IN_NOTE {
                        garbage.push(RankOp::new(self.rank(t as u32), &self.timelines[t].event_refs[e]));
                    }
                }
            }
        }
        if garbage_count > 0 {
            let mut ranks: Vec<Rank> = garbage.iter().map(|g| g.rank).collect();
            ranks.dedup();
            let text = format!(
                "{garbage_count} receive {} recorded before the data was there and never read bad",
                if garbage_count == 1 { "buffer was" } else { "buffers were" }
            );
            note("garbage", text, ranks, garbage, garbage_count);
        }
        let demoted = self.ordering.candidates.iter().filter(|c| c.demoted).count() as u64;
        if demoted > 0 {
            note(
                "order",
                format!("{demoted} ops turned a delivered overflow into another kind; they are consequences"),
                Vec::new(),
                Vec::new(),
                demoted,
            );
        }
        let unmatched: Vec<&Match> = self
            .matching
            .matches
            .iter()
            .filter(|m| matches!(m.state, MatchState::Unmatched | MatchState::TypeMismatch))
            .collect();
        if !unmatched.is_empty() {
            let mut ranks: Vec<Rank> = unmatched.iter().flat_map(|m| m.absent.iter().copied()).collect();
            ranks.sort_unstable();
            ranks.dedup();
            let ops = unmatched
                .iter()
                .take(OPS_IN_NOTE)
                .filter_map(|m| m.members.first())
                .map(|m| {
                    RankOp::new(
                        self.rank(m.timeline),
                        &self.timelines[m.timeline as usize].event_refs[m.event as usize],
                    )
                })
                .collect();
            let n = unmatched.len() as u64;
            note(
                "unmatched",
                format!(
                    "{n} {} without a partner in another rank's dump",
                    if n == 1 { "communication is" } else { "communications are" }
                ),
                ranks,
                ops,
                n,
            );
        }
        let silent: Vec<Rank> = self
            .timelines
            .iter()
            .filter(|t| !t.has_statistics && t.completeness == Completeness::Complete)
            .map(|t| t.rank)
            .collect();
        if !silent.is_empty() {
            note(
                "no_statistics",
                format!(
                    "{} no Max and Min to judge (set task \"statistics\" and summary_mode \"statistics\")",
                    if silent.len() == 1 {
                        format!("rank {} has", silent[0])
                    } else {
                        format!("{} have", ranks_text(&silent))
                    }
                ),
                silent.clone(),
                Vec::new(),
                silent.len() as u64,
            );
        }
        for t in self.timelines {
            for text in &t.notes {
                note("file", format!("{}: {text}", t.label), vec![t.rank], Vec::new(), 1);
            }
        }
        notes
    }
}

/// How a value came to a rank: giver's timeline and mark, its event, the getter's event.
type Arrival = (u32, u32, u32, u32);

struct Flood {
    /// Roots (timeline, mark) in the order they are reached.
    roots: Vec<(u32, u32)>,
    /// Timelines reached, ascending.
    timelines: Vec<u32>,
    hops: Vec<Hop>,
    /// Non-finite ops, the origin included.
    ops: u64,
}

enum Before {
    Candidate(usize),
    Mark(u32, u32),
    Nothing,
}

fn reason(mark: &Mark, kinds: Kinds, doubts: &mut Vec<String>) -> String {
    let kind = kinds.name();
    let slot = mark.slot.as_deref().unwrap_or("an input");
    match mark.cause {
        Cause::Computed => format!("{kind} out of finite inputs"),
        Cause::FromIntended => format!("{kind} out of intended non-finite values (a mask)"),
        Cause::Parameter if mark.slot.is_some() => {
            format!("{slot} was {kind} before any op of this dump wrote it")
        }
        Cause::Parameter => {
            format!("a weight's gradient is {kind} although its module's backward is clean")
        }
        Cause::Input => {
            format!("{slot} was {kind} when it entered; no op of this rank produced it")
        }
        Cause::Corruption => {
            doubts.push("an op left out of the dump may have written it".to_owned());
            format!("{slot} is {kind} here, but every op that could have produced it gave finite values")
        }
        Cause::Unrecorded => {
            doubts.push("the op that made it is not in the dump".to_owned());
            format!("{slot} is {kind} and no op in the dump produced it: first op that shows it")
        }
        Cause::Received => format!("{kind} was received"),
        Cause::Register => {
            doubts.push("the register also reports overflows inside an op whose output is finite".to_owned());
            "the overflow register was set by this op".to_owned()
        }
    }
}

/// `rank 3`, `ranks 0-2, 5`.
pub(crate) fn ranks_text(ranks: &[Rank]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut at = 0;
    while at < ranks.len() {
        let mut end = at;
        while end + 1 < ranks.len() && ranks[end + 1] == ranks[end] + 1 {
            end += 1;
        }
        parts.push(if end > at { format!("{}-{}", ranks[at], ranks[end]) } else { ranks[at].to_string() });
        at = end + 1;
    }
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_fold_runs() {
        assert_eq!(ranks_text(&[3]), "rank 3");
        assert_eq!(ranks_text(&[0, 1, 2, 5, 7, 8]), "ranks 0-2, 5, 7-8");
    }
}
