//! Bad values that ranks only pass on to each other in a circle.
//!
//! In: a replayed step. Out: the same, in which such values came from somewhere: the earliest delivery of each circle
//! is said to have entered.

use rayon::prelude::*;

use crate::collective::Matching;
use crate::order::replay::Replayed;
use crate::order::{Candidate, Receipt, Source};
use crate::timeline::Timeline;

/// Makes a candidate of the earliest delivery of each circle.
pub(super) fn break_circles(timelines: &[Timeline], matching: &Matching, replayed: &mut Replayed) {
    let back = Back::new(timelines, &replayed.order.demoted_by);
    let mut settled: Vec<Vec<bool>> = timelines.iter().map(|t| vec![false; t.events.len()]).collect();
    let mut path: Vec<(u32, u32)> = Vec::new();
    for (t, timeline) in timelines.iter().enumerate() {
        for e in 0..timeline.events.len() {
            path.clear();
            let mut at = Some((t as u32, e as u32));
            while let Some((t, e)) = at
                && let Receipt::Propagated(giver, event) = replayed.order.receipts[t as usize][e as usize]
                && !std::mem::replace(&mut settled[t as usize][e as usize], true)
            {
                path.push((t, e));
                at = back.delivery(giver, event).map(|delivery| (giver, delivery));
            }
            let Some(start) = at.and_then(|again| path.iter().position(|p| *p == again)) else { continue };
            let op = |&(t, e): &(u32, u32)| timelines[t as usize].events[e as usize].communication.op;
            let Some(&(t, e)) = path[start..].iter().min_by_key(|p| (op(p), p.0)) else { continue };
            let Some(id) = matching.of_event[t as usize][e as usize] else { continue };
            let (before, depth) = replayed.known_in(id);
            let order = &mut replayed.order;
            order.receipts[t as usize][e as usize] = Receipt::Entered(order.candidates.len());
            let source = Source::Missing(id, t, e);
            order.candidates.push(Candidate { source, before, depth, demoted: false, getters: vec![(t, e)] });
        }
    }
}

/// For each timeline and event, the delivery on that rank that what was given goes back to, if it goes back to one.
struct Back(Vec<Vec<u32>>);

impl Back {
    const NOWHERE: u32 = u32::MAX;

    fn new(timelines: &[Timeline], demoted_by: &[Vec<Option<u32>>]) -> Self {
        let of_rank = |(timeline, demoted_by): (&Timeline, &Vec<Option<u32>>)| {
            let delivery = |event: &crate::timeline::Event| {
                let given = event.given.as_ref()?;
                match given.mark() {
                    Some(mark) => timeline.marks[mark as usize].delivered_by(demoted_by[mark as usize]),
                    None => given.conditions().first().copied(),
                }
            };
            timeline.events.iter().map(|event| delivery(event).unwrap_or(Self::NOWHERE)).collect()
        };
        Self(timelines.par_iter().zip(demoted_by).map(of_rank).collect())
    }

    fn delivery(&self, timeline: u32, event: u32) -> Option<u32> {
        Some(self.0[timeline as usize][event as usize]).filter(|&delivery| delivery != Self::NOWHERE)
    }
}
