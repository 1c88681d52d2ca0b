//! What a rank's marks and events have to do with each other, as the verdict follows it from rank to rank.
//!
//! In: a timeline. Out: [`Links`]. Marks and events are large and there may be many of both; the few numbers that are
//! asked for in no particular order stand side by side here.

use rayon::prelude::*;

use crate::timeline::{Side, Timeline};

/// The links of one rank.
#[derive(Default)]
pub(super) struct Links {
    /// For each mark its op.
    ops: Vec<u32>,
    /// For each mark the event that delivered it, else [`NONE`].
    delivered: Vec<u32>,
    /// For each mark the ops it leads to.
    reach: Vec<u32>,
    /// For each event the mark of what it gave and of what it got, else [`NONE`].
    given: Vec<u32>,
    got: Vec<u32>,
    /// Where each mark's events begin in `givers`, the events that give what goes back to it; one more at the end.
    starts: Vec<u32>,
    givers: Vec<u32>,
}

const NONE: u32 = u32::MAX;

fn known(number: u32) -> Option<u32> {
    (number != NONE).then_some(number)
}

impl Links {
    /// The links of all ranks; `demoted_by` names the event whose delivery explains a mark.
    pub(super) fn of(timelines: &[Timeline], demoted_by: &[Vec<Option<u32>>]) -> Vec<Self> {
        timelines.par_iter().zip(demoted_by).map(|(timeline, demoted_by)| Self::new(timeline, demoted_by)).collect()
    }

    fn new(timeline: &Timeline, demoted_by: &[Option<u32>]) -> Self {
        // Nothing leads anywhere.
        if timeline.marks.is_empty() {
            return Self::default();
        }
        let mark = |side: &Option<Side>| side.as_ref().and_then(Side::mark).unwrap_or(NONE);
        let (given, got): (Vec<u32>, Vec<u32>) = timeline.events.iter().map(|e| (mark(&e.given), mark(&e.got))).unzip();
        let by_mark = || given.iter().enumerate().filter(|(_, mark)| **mark != NONE);
        let mut starts = vec![0; timeline.marks.len() + 1];
        by_mark().for_each(|(_, &mark)| starts[mark as usize + 1] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut next = starts.clone();
        let mut givers = vec![0; sum as usize];
        for (event, &mark) in by_mark() {
            givers[next[mark as usize] as usize] = event as u32;
            next[mark as usize] += 1;
        }
        let delivered =
            |(mark, demoted): (&crate::timeline::Mark, &Option<u32>)| mark.delivered_by(*demoted).unwrap_or(NONE);
        Self {
            ops: timeline.marks.iter().map(|mark| mark.at.op).collect(),
            delivered: timeline.marks.iter().zip(demoted_by).map(delivered).collect(),
            reach: timeline.marks.iter().map(|mark| mark.reach).collect(),
            given,
            got,
            starts,
            givers,
        }
    }

    /// The first mark of an op.
    pub(super) fn mark_of(&self, op: u32) -> Option<usize> {
        self.ops.iter().position(|&at| at == op)
    }

    pub(super) fn delivered(&self, mark: u32) -> Option<u32> {
        known(self.delivered[mark as usize])
    }

    pub(super) fn reach(&self, mark: u32) -> u64 {
        u64::from(self.reach[mark as usize])
    }

    pub(super) fn given(&self, event: u32) -> Option<u32> {
        self.given.get(event as usize).copied().and_then(known)
    }

    pub(super) fn got(&self, event: u32) -> Option<u32> {
        self.got.get(event as usize).copied().and_then(known)
    }

    /// The events that give what goes back to a mark, in order.
    pub(super) fn givers(&self, mark: u32) -> &[u32] {
        &self.givers[self.starts[mark as usize] as usize..self.starts[mark as usize + 1] as usize]
    }
}
