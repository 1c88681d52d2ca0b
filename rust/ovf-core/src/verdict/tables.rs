//! The tables of the report: ranks and communications.

use rayon::prelude::*;

use super::spread::Flood;
use super::{Assembler, COMMUNICATIONS_LISTED};
use crate::collective::{Match, MatchState, Member};
use crate::order::{Receipt, sides};
use crate::report::{CommunicationReport, RankOp, RankReport};

impl Assembler<'_> {
    pub(super) fn ranks(&self, first: usize, flood: Option<&Flood>, strips: bool) -> Vec<RankReport> {
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
                strip: timeline.strip.clone().filter(|_| strips),
                first_bad: timeline.first_bad.as_ref().map(|at| RankOp::new(timeline.rank, at)),
                reached_by: if own == Some(t as u32) {
                    Some("origin")
                } else {
                    flood.is_some_and(|f| f.timelines.binary_search(&(t as u32)).is_ok()).then_some("communication")
                },
            })
            .collect()
    }

    pub(super) fn communications(&self) -> (Vec<CommunicationReport>, u32) {
        let matches = &self.matching.matches;
        let verdicts: Vec<Option<&str>> = matches.par_iter().map(|entry| self.communication_verdict(entry)).collect();
        let told: Vec<(usize, &str)> =
            verdicts.into_iter().enumerate().filter_map(|(id, verdict)| Some((id, verdict?))).collect();
        let listed = &told[..told.len().min(COMMUNICATIONS_LISTED)];
        let report = |&(id, verdict)| (self.ordering.depths[id], self.communication(&matches[id], verdict));
        let mut found: Vec<_> = listed.par_iter().map(report).collect();
        found.sort_by_key(|(depth, c)| (*depth, c.members.first().map(|m| (m.exec_order, m.rank))));
        (found.into_iter().map(|(_, c)| c).collect(), (told.len() - listed.len()) as u32)
    }

    fn communication_verdict(&self, entry: &Match) -> Option<&'static str> {
        let of_member = |m: &Member| {
            let received = match self.ordering.receipts[m.timeline as usize][m.event as usize] {
                Receipt::Propagated(..) => (6, "overflow"),
                Receipt::Origin(_) => (5, "origin"),
                Receipt::Entered(_) => (4, "entered"),
                Receipt::Garbage => (2, "garbage"),
                Receipt::Intended => (1, "intended"),
                Receipt::Nothing => return None,
            };
            Some(received)
        };
        let given_real = |m: &Member| self.ordering.given_real[m.timeline as usize][m.event as usize];
        let received = entry.members.iter().filter_map(of_member).max();
        let absorbed = entry.members.iter().any(given_real).then_some((3, "absorbed"));
        if let Some((_, verdict)) = received.max(absorbed) {
            return Some(verdict);
        }
        let given = |m: &Member| self.timelines[m.timeline as usize].events[m.event as usize].given.as_ref();
        if entry.members.iter().filter_map(given).any(|side| !side.kinds.is_finite()) {
            return Some("intended");
        }
        // A rank that is not dumped leaves every call of its groups without a member; a note says that once.
        (entry.state == MatchState::Unmatched).then_some("clean")
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
            .map(|m| RankOp::new(self.rank(m.timeline), &self.timelines[m.timeline as usize].event_ref(m.event)))
            .collect();
        CommunicationReport {
            api: entry.api.to_string(),
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
}
