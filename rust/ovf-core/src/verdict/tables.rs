//! The tables of the report: ranks and communications.

use super::spread::Flood;
use super::{Assembler, COMMUNICATIONS_LISTED};
use crate::collective::{Match, MatchState};
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
