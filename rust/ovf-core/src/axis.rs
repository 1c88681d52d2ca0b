//! One axis for all ranks: what happened before something on another rank stands to its left.
//!
//! In: timelines and their matching. Out: for each rank the ops that have to move right, and by how much. There is no
//! clock in a dump; an op takes one unit, and a rank waits where data has to arrive:
//!
//! ```text
//! x(op) = op + shift of the rank so far
//! enter communication m (giver):   at(m) = max(at(m), x)
//! leave it (getter):               wait until all givers entered; x = max(x, at(m)), one more for a pair
//! ```
//!
//! So a collective stands at one place on all its members, a receive right of its send, and the idle time of a
//! pipeline shows as a gap. Entries of a batched call all enter before any of them is left. A walk that cannot go
//! on (calls that do not match, asynchronous calls recorded where they are issued) lets the rank that stands
//! furthest left pass without waiting: the picture is then off there, the analysis is not made from it.

use std::collections::VecDeque;

use crate::collective::Matching;
use crate::order::sides;
use crate::rules::Flow;
use crate::timeline::Timeline;

/// Ops of one rank that move right: (op, by how many units more than the op before).
pub(crate) type Gaps = Vec<(u32, u32)>;

#[derive(Default)]
struct Lane {
    /// Ops that communicate, with the range of their events.
    stops: Vec<(u32, std::ops::Range<u32>)>,
    at: usize,
    entered: bool,
    queued: bool,
    shift: u64,
    gaps: Gaps,
}

#[derive(Default, Clone)]
struct Meeting {
    /// Givers that have not entered.
    left: u32,
    at: u64,
    waiting: Vec<u32>,
}

struct Walk<'t> {
    timelines: &'t [Timeline],
    matching: &'t Matching,
    lanes: Vec<Lane>,
    meetings: Vec<Meeting>,
    queue: VecDeque<u32>,
}

/// Where each rank's ops have to move.
pub(crate) fn align(timelines: &[Timeline], matching: &Matching) -> Vec<Gaps> {
    let lanes: Vec<Lane> =
        timelines.iter().map(|t| Lane { stops: stops(t), queued: true, ..Lane::default() }).collect();
    let gives = |entry: &crate::collective::Match, m: &crate::collective::Member| {
        let timeline = &timelines[m.timeline as usize];
        sides(entry, timeline.rank, timeline.events[m.event as usize].communication.flow).0
    };
    let meetings = matching
        .matches
        .iter()
        .map(|entry| Meeting {
            left: entry.members.iter().filter(|m| gives(entry, m)).count() as u32,
            ..Meeting::default()
        })
        .collect();
    let queue = (0..timelines.len() as u32).collect();
    let mut walk = Walk { timelines, matching, lanes, meetings, queue };
    walk.run();
    walk.lanes.into_iter().map(|lane| lane.gaps).collect()
}

fn stops(timeline: &Timeline) -> Vec<(u32, std::ops::Range<u32>)> {
    let mut stops: Vec<(u32, std::ops::Range<u32>)> = Vec::new();
    for (e, event) in timeline.events.iter().enumerate() {
        let (op, e) = (event.communication.op, e as u32);
        match stops.last_mut() {
            Some((last, range)) if *last == op => range.end = e + 1,
            _ => stops.push((op, e..e + 1)),
        }
    }
    stops
}

impl Walk<'_> {
    fn run(&mut self) {
        loop {
            while let Some(t) = self.queue.pop_front() {
                self.lanes[t as usize].queued = false;
                self.advance(t, false);
            }
            let place = |t: &u32| {
                let lane = &self.lanes[*t as usize];
                (u64::from(lane.stops[lane.at].0) + lane.shift, *t)
            };
            let stuck = |t: &u32| self.lanes[*t as usize].at < self.lanes[*t as usize].stops.len();
            let Some(first) = (0..self.lanes.len() as u32).filter(stuck).min_by_key(place) else { return };
            self.advance(first, true);
        }
    }

    /// Goes on until the rank has to wait; `pass` lets it through once.
    fn advance(&mut self, t: u32, mut pass: bool) {
        while let Some((op, events)) = self.lanes[t as usize].stops.get(self.lanes[t as usize].at).cloned() {
            let mut x = u64::from(op) + self.lanes[t as usize].shift;
            if !std::mem::replace(&mut self.lanes[t as usize].entered, true) {
                events.clone().for_each(|event| self.enter(t, event, x));
            }
            for event in events {
                let Some((id, _, true, pair)) = self.side(t, event) else { continue };
                let meeting = &mut self.meetings[id as usize];
                if meeting.left == 0 {
                    x = x.max(meeting.at + u64::from(pair));
                } else if !pass {
                    meeting.waiting.push(t);
                    return;
                }
            }
            pass = false;
            let lane = &mut self.lanes[t as usize];
            let gap = x - u64::from(op) - lane.shift;
            if gap > 0 {
                lane.shift += gap;
                lane.gaps.push((op, u32::try_from(gap).unwrap_or(u32::MAX)));
            }
            lane.at += 1;
            lane.entered = false;
        }
    }

    fn enter(&mut self, t: u32, event: u32, x: u64) {
        let Some((id, true, ..)) = self.side(t, event) else { return };
        let meeting = &mut self.meetings[id as usize];
        meeting.at = meeting.at.max(x);
        meeting.left = meeting.left.saturating_sub(1);
        if meeting.left == 0 {
            for other in std::mem::take(&mut meeting.waiting) {
                if !std::mem::replace(&mut self.lanes[other as usize].queued, true) {
                    self.queue.push_back(other);
                }
            }
        }
    }

    /// The match of an event, whether the rank gives, whether it gets, whether it is a pair.
    fn side(&self, t: u32, event: u32) -> Option<(u32, bool, bool, bool)> {
        let id = self.matching.of_event[t as usize][event as usize]?;
        let entry = &self.matching.matches[id as usize];
        let timeline = &self.timelines[t as usize];
        let flow: Flow = timeline.events[event as usize].communication.flow;
        let (gives, gets) = sides(entry, timeline.rank, flow);
        Some((id, gives, gets, entry.pair.is_some()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::match_communications;
    use crate::rules::Rules;
    use crate::timeline::build;

    const TENSOR: &str =
        r#"{"type":"torch.Tensor","dtype":"torch.float32","shape":[2],"Max":1.0,"Min":0.0,"Mean":0.5,"Norm":1.0}"#;

    fn compute(n: usize) -> String {
        format!(r#""Torch.exp.{n}.forward":{{"input_args":[{TENSOR}],"input_kwargs":{{}},"output":[{TENSOR}]}}"#)
    }

    fn call(api: &str, peer: &str) -> String {
        let output = if peer.is_empty() { TENSOR } else { "null" };
        let peer = if peer.is_empty() { String::new() } else { format!(r#",{{"type":"int","value":{peer}}}"#) };
        format!(
            r#""Distributed.{api}.0.forward":{{"input_args":[{TENSOR}{peer}],"input_kwargs":{{}},"output":[{output}]}}"#
        )
    }

    fn aligned(ranks: &[Vec<String>]) -> Vec<Gaps> {
        let timelines: Vec<Timeline> = ranks
            .iter()
            .enumerate()
            .map(|(r, ops)| {
                let text = format!(r#"{{"task":"statistics","level":"L1","data":{{{}}}}}"#, ops.join(","));
                build(text.as_bytes(), r as u32, &format!("rank{r}"), &Rules::built_in())
            })
            .collect();
        align(&timelines, &match_communications(&timelines))
    }

    #[test]
    fn a_collective_stands_at_one_place() {
        let slow = vec![compute(0), compute(1), compute(2), call("all_reduce", "")];
        let fast = vec![compute(0), call("all_reduce", "")];
        assert_eq!(aligned(&[slow, fast]), [vec![], vec![(1, 2)]]);
    }

    #[test]
    fn a_receive_stands_right_of_its_send() {
        let sender = vec![compute(0), compute(1), call("send", "1")];
        let receiver = vec![call("recv", "0"), compute(0)];
        assert_eq!(aligned(&[sender, receiver]), [vec![], vec![(0, 3)]]);
    }

    #[test]
    fn ranks_that_wait_for_each_other_go_on() {
        let a = vec![call("recv", "1"), call("send", "1")];
        let b = vec![compute(0), call("recv", "0"), call("send", "0")];
        assert_eq!(aligned(&[a, b]), [vec![], vec![(1, 1)]]);
    }
}
