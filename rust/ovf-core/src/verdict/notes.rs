//! The remarks of the report: what was intended, healed, missing, unmatched, unreadable.

use super::{Assembler, OPS_IN_NOTE, StepFacts, ranks_text};
use crate::collective::{Match, MatchState};
use crate::op::Rank;
use crate::order::Receipt;
use crate::report::{Note, RankOp};
use crate::timeline::{Cause, Completeness, Mark};

impl Assembler<'_> {
    /// Ranks that records name, or that the numbering skips, without a dump.
    pub(super) fn missing_ranks(&self, step: &StepFacts) -> Vec<Rank> {
        let mut known: Vec<Rank> = self.timelines.iter().map(|t| t.rank).collect();
        known.extend(step.unreadable.iter().map(|u| u.rank));
        known.sort_unstable();
        let mut missing: Vec<Rank> =
            self.matching.world.iter().copied().filter(|r| known.binary_search(r).is_err()).collect();
        missing.sort_unstable();
        missing.dedup();
        missing
    }

    pub(super) fn notes(&self, step: &StepFacts, missing: &[Rank]) -> Vec<Note> {
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
                format!(
                    "{} {}",
                    ranks_text(missing),
                    if step.chosen {
                        "not looked at, though these ranks' communications name them"
                    } else {
                        "not dumped"
                    }
                ),
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
                        garbage.push(RankOp::new(self.rank(t as u32), &self.timelines[t].event_ref(e as u32)));
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
        let unmatched: Vec<&Match> =
            self.matching.matches.iter().filter(|m| m.state == MatchState::Unmatched).collect();
        if !unmatched.is_empty() {
            let mut ranks: Vec<Rank> = unmatched.iter().flat_map(|m| m.absent.iter().copied()).collect();
            ranks.sort_unstable();
            ranks.dedup();
            let ops = unmatched
                .iter()
                .take(OPS_IN_NOTE)
                .filter_map(|m| m.members.first())
                .map(|m| RankOp::new(self.rank(m.timeline), &self.timelines[m.timeline as usize].event_ref(m.event)))
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
