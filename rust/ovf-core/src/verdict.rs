//! Ordered candidates -> the report: which finding is first, how far it went, what else there is to say.
//!
//! In: timelines, their matching and order. Out: a [`Report`]. The details that stand in the files (values, module
//! chain, code) are filled in by whom it is given, for the findings that are listed, while the rest is assembled.
//!
//! Ranking (rule 10). Findings that another finding happened before come behind it. Among those that nothing
//! happened before: evidence class, then logical depth, then (only where no communication is dumped) part of the step
//! and place, then severity, reach, rank. The evidence class orders what happens-before cannot (hidden
//! communication): 0 a bad weight or batch that is itself visible; 1 an op; 2 a module that may hide a communication;
//! 3 a bad input that another rank's origin probably sent.

mod asked;
mod links;
mod notes;
mod spread;
mod tables;

use rustc_hash::FxHashMap;

use crate::collective::{Match, Matching};
use crate::op::{Kinds, Rank};
use crate::order::{Candidate, Ordering, Receipt, Source};
use crate::report::{Certainty, Finding, FindingKind, RankOp, Report, SCHEMA_VERSION, Unreadable, Verdict};
use crate::survey::Wanted;
use crate::timeline::{CANDIDATES_PER_RANK, Cause, Completeness, Mark, OpRef, Phase, Timeline};
use links::Links;

/// Findings listed.
const FINDINGS_LISTED: usize = 200;
/// Communications listed.
const COMMUNICATIONS_LISTED: usize = 2000;
/// Ops named in a note.
const OPS_IN_NOTE: usize = 8;

/// What is known of the step besides its ranks.
#[derive(Debug, Clone, Default)]
pub struct StepFacts {
    /// Its number; `None` where its path names none.
    pub number: Option<u64>,
    /// Its folder below the dump root.
    pub label: String,
    /// Remarks about its folder.
    pub notes: Vec<String>,
    /// Dumps that could not be read, or not to their end, besides those that the summaries tell of.
    pub unreadable: Vec<Unreadable>,
    /// The user chose the ranks: those left out are no missing evidence.
    pub chosen: bool,
}

/// A finding with where its details stand.
pub(crate) struct Located {
    /// Index into the timelines, and the record's place in that rank's dump.
    pub(crate) timeline: u32,
    pub(crate) record: (u64, u64),
    /// Slot of an input and the op that made it.
    pub(crate) makers: Vec<(String, String)>,
    /// The ops before it, where they are kept, and the places of their records.
    pub(crate) before: Vec<(OpRef, (u64, u64))>,
}

struct Assembler<'t> {
    timelines: &'t [Timeline],
    matching: &'t Matching,
    ordering: &'t Ordering,
    /// Candidate each mark leads back to.
    cause_of: Vec<Vec<Option<usize>>>,
    links: Vec<Links>,
    reach: Vec<(u64, Vec<u32>)>,
    class: Vec<u8>,
    layer: Vec<u32>,
    hidden_order: bool,
    /// Communications that lack a call of a dumped rank; looked for where a communication is a candidate.
    lacking: Vec<&'t Match>,
}

pub(crate) fn assemble(
    step: &StepFacts,
    timelines: &[Timeline],
    matching: &Matching,
    ordering: &Ordering,
    wanted: Wanted,
    fill: impl FnOnce(&mut [Finding], &[Located]) + Send,
) -> Report {
    let lacks = |m: &&Match| !m.absent.is_empty();
    let asked = ordering.candidates.iter().any(|c| matches!(c.source, Source::Communication(..)));
    let mut a = Assembler {
        timelines,
        matching,
        ordering,
        cause_of: timelines.iter().map(|t| vec![None; t.marks.len()]).collect(),
        links: Links::of(timelines, &ordering.demoted_by),
        reach: vec![(0, Vec::new()); ordering.candidates.len()],
        class: Vec::new(),
        layer: vec![0; ordering.candidates.len()],
        hidden_order: timelines.len() > 1 && timelines.iter().all(|t| t.events.is_empty()),
        lacking: if asked { matching.matches.iter().filter(lacks).collect() } else { Vec::new() },
    };
    a.trace_causes();
    a.classify();
    a.layers();
    let ranked = a.ranked();
    a.report(step, &ranked, wanted, fill)
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
        for (i, c) in self.ordering.candidates.iter().enumerate() {
            if let Source::Mark(t, m) = c.source
                && !c.demoted
            {
                self.cause_of[t as usize][m as usize] = Some(i);
            }
        }
        let mut followed: Vec<Vec<bool>> = self.timelines.iter().map(|t| vec![false; t.marks.len()]).collect();
        let mut chain = Vec::new();
        for t in 0..self.timelines.len() as u32 {
            for m in 0..self.timelines[t as usize].marks.len() as u32 {
                let (mut at_t, mut at_m) = (t, m);
                let cause = loop {
                    if let Some(known) = self.cause_of[at_t as usize][at_m as usize] {
                        break Some(known);
                    }
                    // A circle, or a mark whose way back is known to end nowhere.
                    if std::mem::replace(&mut followed[at_t as usize][at_m as usize], true) {
                        break None;
                    }
                    chain.push((at_t, at_m));
                    match self.before(at_t, at_m) {
                        Before::Candidate(c) => break Some(c),
                        Before::Mark(t, m) => (at_t, at_m) = (t, m),
                        Before::Nothing => break None,
                    }
                };
                for (t, m) in chain.drain(..) {
                    self.cause_of[t as usize][m as usize] = cause;
                }
            }
        }
        for (t, causes) in self.cause_of.iter().enumerate() {
            for (m, cause) in causes.iter().enumerate() {
                let &Some(c) = cause else {
                    continue;
                };
                self.reach[c].0 += self.links[t].reach(m as u32);
                if self.reach[c].1.last() != Some(&(t as u32)) {
                    self.reach[c].1.push(t as u32);
                }
            }
        }
    }

    fn before(&self, t: u32, m: u32) -> Before {
        let Some(event) = self.links[t as usize].delivered(m) else { return Before::Nothing };
        match self.ordering.receipts[t as usize][event as usize] {
            Receipt::Origin(c) | Receipt::Entered(c) => Before::Candidate(c),
            Receipt::Propagated(gt, ge) => {
                if let Some(mark) = self.links[gt as usize].given(ge) {
                    return Before::Mark(gt, mark);
                }
                // Given as a mask that had been delivered: its delivery is the way back.
                let given = self.timelines[gt as usize].events[ge as usize].given.as_ref();
                let condition = given.and_then(|g| g.conditions().first().copied());
                let delivered = condition.and_then(|c| self.links[gt as usize].got(c));
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
                                .any(|(o, other)| o as u32 != t && other.bad_shapes.contains(&**shape))
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
        self.first_mark(t, op).map_or(Phase::Forward, |m| m.phase)
    }

    /// The first mark of an op.
    fn first_mark(&self, t: u32, op: u32) -> Option<&Mark> {
        self.links[t as usize].mark_of(op).map(|m| &self.timelines[t as usize].marks[m])
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
            before: Vec::new(),
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
        let makers = self.mark(c).map(|m| m.makers.clone()).unwrap_or_default();
        let before = self.first_mark(t, op).map(|m| m.before.clone()).unwrap_or_default();
        (finding, Located { timeline: t, record, makers, before })
    }

    /// Whether some member of the same group lacks a call.
    fn is_shifted(&self, entry: &Match) -> bool {
        self.lacking.iter().any(|m| m.group == entry.group && m.pair == entry.pair)
    }

    /// The sending side of a pair.
    fn sender(&self, entry: &Match) -> Option<RankOp> {
        entry.pair?;
        let m = entry.members.first()?;
        Some(RankOp::new(self.rank(m.timeline), &self.timelines[m.timeline as usize].event_ref(m.event)))
    }

    fn is_whole(&self, t: u32) -> bool {
        self.timelines[t as usize].completeness == Completeness::Complete
    }

    fn several_first(&self) -> bool {
        self.ordering.candidates.iter().filter(|c| !c.demoted).count() > 1
    }

    /// Name and record of a communication's op: its received mark knows them.
    fn event_op(&self, t: u32, event: u32) -> (OpRef, Option<(u64, u64)>) {
        let timeline = &self.timelines[t as usize];
        let op = timeline.events[event as usize].communication.op;
        match self.first_mark(t, op) {
            Some(mark) => (mark.at.clone(), Some(mark.record)),
            None => (timeline.event_ref(event), None),
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

    fn report(
        &self,
        step: &StepFacts,
        ranked: &[usize],
        wanted: Wanted,
        fill: impl FnOnce(&mut [Finding], &[Located]) + Send,
    ) -> Report {
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
        let missing = self.missing_ranks(step);
        let spread = || {
            let flood = (verdict == Verdict::Overflow).then(|| self.flood(first));
            let path = if flood.is_some() { self.path(first) } else { Vec::new() };
            (flood, path)
        };
        let tables = || (self.communications(), self.notes(step, &missing));
        let ((), ((flood, path), ((communications, communications_omitted), notes))) =
            rayon::join(|| fill(&mut findings, &located), || rayon::join(spread, tables));
        if let (Some(head), Some(flood)) = (findings.first_mut(), &flood) {
            head.reach_ops = head.reach_ops.max(flood.ops);
            head.reach_ranks = head.reach_ranks.max(flood.timelines.len() as u32);
        }
        let mut unreadable = step.unreadable.clone();
        unreadable.sort_by_key(|u| u.rank);
        let silent = self.timelines.iter().any(|t| !t.has_statistics && t.completeness == Completeness::Complete);
        let mut spread = flood.as_ref().map(|f| self.spread(f));
        // Of several ranks that show the same symptom, the one that the path leads to is named.
        if let (Some(spread), Some(end)) = (&mut spread, path.last())
            && end.symptom.is_some()
            && end.symptom == spread.symptom_kind
        {
            spread.symptom = Some(RankOp { rank: end.rank, op_name: end.op_name.clone(), exec_order: end.exec_order });
        }
        Report {
            schema_version: SCHEMA_VERSION,
            verdict,
            incomplete: !unreadable.is_empty() || (!missing.is_empty() && !step.chosen) || silent,
            step: step.number,
            step_label: step.label.clone(),
            first: findings.first().cloned(),
            path,
            spread,
            findings,
            findings_omitted: omitted + merged.len().saturating_sub(FINDINGS_LISTED) as u32,
            notes,
            ranks: self.ranks(first, flood.as_ref(), wanted.strip),
            communications,
            communications_omitted,
            unreadable,
            total_communications: self.timelines.iter().map(|t| t.events.len() as u64).sum(),
            total_ops: self.timelines.iter().map(|t| u64::from(t.ops)).sum(),
            total_bytes: self.timelines.iter().map(|t| t.bytes).sum(),
            near: wanted.near.then(|| self.near()),
            levels: if wanted.levels { self.levels() } else { None },
            trend: if wanted.trend { self.trend() } else { None },
            atlas: None,
        }
    }
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
