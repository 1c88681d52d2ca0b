//! How far the first overflow went: the path to where somebody would notice, and everything it leads to.

use smallvec::SmallVec;

use super::Assembler;
use crate::order::{Receipt, Source};
use crate::report::{Hop, PathStep, RankOp, Spread};
use crate::timeline::{OpRef, Symptom, Trail};

/// How a value came to a rank: giver's timeline and mark, its event, the getter's event.
type Arrival = (u32, u32, u32, u32);

/// Everything a finding leads to.
pub(super) struct Flood {
    /// For each timeline and mark, which root it is in the order they are reached; `u32::MAX` where it is not.
    places: Vec<Vec<u32>>,
    /// Timelines reached, ascending.
    pub(super) timelines: Vec<u32>,
    pub(super) hops: Vec<Hop>,
    /// Non-finite ops, the origin included.
    pub(super) ops: u64,
}

impl Assembler<'_> {
    /// Breadth-first over (rank, root): a root leads to the communications that its value enters, those to the roots
    /// of the ranks that got it. The first place with the strongest symptom ends the path.
    pub(super) fn path(&self, first: usize) -> Vec<PathStep> {
        let starts = self.starts(first);
        // Where each mark was reached from; the outer `None` says that it was not.
        let mut from: Vec<Vec<Option<Option<Arrival>>>> =
            self.timelines.iter().map(|t| vec![None; t.marks.len()]).collect();
        let mut met = vec![false; self.matching.matches.len()];
        let mut queue: Vec<(u32, u32)> = Vec::new();
        for start in starts {
            from[start.0 as usize][start.1 as usize] = Some(None);
            queue.push(start);
        }
        let mut ends: Vec<Vec<(u32, usize)>> = Vec::with_capacity(self.timelines.len());
        for timeline in self.timelines {
            let mut of_rank: Vec<_> = timeline.terminals.iter().enumerate().map(|(k, x)| (x.mark, k)).collect();
            of_rank.sort_unstable();
            ends.push(of_rank);
        }
        let mut best: Option<(Symptom, (u32, u32), usize)> = None;
        let mut at = 0;
        while at < queue.len() {
            let (t, m) = queue[at];
            at += 1;
            let ends = &ends[t as usize];
            let from_here = ends.partition_point(|(mark, _)| *mark < m);
            for &(_, k) in ends[from_here..].iter().take_while(|(mark, _)| *mark == m) {
                let symptom = self.timelines[t as usize].terminals[k].symptom;
                if best.as_ref().is_none_or(|b| symptom < b.0) {
                    best = Some((symptom, (t, m), k));
                }
            }
            if matches!(best, Some((Symptom::Loss, ..))) {
                break;
            }
            for &event in self.links[t as usize].givers(m) {
                let mut getters = self.getters_of(t, event, &mut met);
                getters.sort_by_key(|g| g.0 != t); // of equal ways the one that stays on its rank
                for (gt, ge) in getters {
                    let Some(mark) = self.links[gt as usize].got(ge) else { continue };
                    let slot = &mut from[gt as usize][mark as usize];
                    if slot.is_none() {
                        *slot = Some(Some((t, m, event, ge)));
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
        while let Some(Some((t, m, event, got))) = from[place.0 as usize][place.1 as usize] {
            hops.push((t, event, place.0, got));
            place = (t, m);
        }
        hops.reverse();
        let mut path = Vec::new();
        let mut entered_by = None;
        for (t, event, to, got) in hops {
            let side = self.timelines[t as usize].events[event as usize].given.as_ref();
            self.walk(&mut path, t, side.and_then(|s| s.way.as_ref()).map(|way| &way.trail), entered_by);
            let giving = self.event_op(t, event).0;
            if path.last().is_none_or(|p: &PathStep| p.rank != self.rank(t) || p.exec_order != giving.op) {
                let via = if path.is_empty() { "origin" } else { "data" };
                path.push(self.step(t, &giving, via, 0));
            }
            let arrival = self.event_op(to, got).0;
            if path.last().is_none_or(|p: &PathStep| p.rank != self.rank(to) || p.exec_order != arrival.op) {
                path.push(self.step(to, &arrival, "communication", 0));
            }
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

    fn step(&self, t: u32, at: &OpRef, via: &'static str, omitted: u32) -> PathStep {
        PathStep { rank: self.rank(t), op_name: at.name.clone(), exec_order: at.op, via, omitted, symptom: None }
    }

    /// Appends a trail; its first op is there already when a communication brought the value.
    fn walk(&self, path: &mut Vec<PathStep>, t: u32, trail: Option<&Trail>, entered: Option<()>) {
        let Some(trail) = trail else { return };
        let skip = usize::from(entered.is_some());
        let names = &self.timelines[t as usize].names;
        for (k, &op) in trail.head().iter().enumerate().skip(skip) {
            let via = if path.is_empty() && k == 0 { "origin" } else { "data" };
            path.push(self.step(t, &names.at(op), via, 0));
        }
        for (k, &op) in trail.tail().iter().enumerate() {
            path.push(self.step(t, &names.at(op), "data", if k == 0 { trail.omitted } else { 0 }));
        }
    }

    /// (timeline, mark) of a candidate: its own mark, or the received marks of the members that show it.
    pub(super) fn starts(&self, candidate: usize) -> Vec<(u32, u32)> {
        let c = &self.ordering.candidates[candidate];
        match c.source {
            Source::Mark(t, m) => vec![(t, m)],
            _ => c
                .getters
                .iter()
                .filter_map(|&(t, e)| Some((t, self.timelines[t as usize].events[e as usize].got.as_ref()?.mark()?)))
                .collect(),
        }
    }

    /// Members of the event's communication that got the overflow from it. Only the first giver of a communication
    /// is answered: the others lead to the same members.
    fn getters_of(&self, t: u32, event: u32, met: &mut [bool]) -> SmallVec<[(u32, u32); 4]> {
        let Some(id) = self.matching.of_event[t as usize][event as usize] else {
            return SmallVec::new();
        };
        if std::mem::replace(&mut met[id as usize], true) {
            return SmallVec::new();
        }
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
    pub(super) fn flood(&self, first: usize) -> Flood {
        let mut roots = self.starts(first);
        let mut places: Vec<Vec<u32>> = self.timelines.iter().map(|t| vec![u32::MAX; t.marks.len()]).collect();
        for (place, &(t, m)) in roots.iter().enumerate().rev() {
            places[t as usize][m as usize] = place as u32;
        }
        let mut timelines: Vec<u32> = roots.iter().map(|s| s.0).collect();
        let mut reached = vec![false; self.timelines.len()];
        for &t in &timelines {
            reached[t as usize] = true;
        }
        let mut met = vec![false; self.matching.matches.len()];
        let mut hops: Vec<Hop> = Vec::new();
        let mut at = 0;
        while at < roots.len() {
            let (t, m) = roots[at];
            at += 1;
            for &event in self.links[t as usize].givers(m) {
                let mut new = Vec::new();
                for (gt, ge) in self.getters_of(t, event, &mut met) {
                    let Some(mark) = self.links[gt as usize].got(ge) else { continue };
                    let place = &mut places[gt as usize][mark as usize];
                    if *place == u32::MAX {
                        *place = roots.len() as u32;
                        roots.push((gt, mark));
                    }
                    if !std::mem::replace(&mut reached[gt as usize], true) {
                        timelines.push(gt);
                        new.push((self.rank(gt), self.event_op(gt, ge).0.op));
                    }
                }
                if !new.is_empty() {
                    let op = self.event_op(t, event).0;
                    let api = self.timelines[t as usize].events[event as usize].communication.api.to_string();
                    let (to, arrivals) = new.into_iter().unzip();
                    let exec_order = op.op;
                    hops.push(Hop { api, from: self.rank(t), op_name: op.name, exec_order, to, arrivals });
                }
            }
        }
        timelines.sort_unstable();
        let ops = roots.iter().map(|&(t, m)| self.links[t as usize].reach(m)).sum();
        Flood { places, timelines, hops, ops }
    }

    pub(super) fn spread(&self, flood: &Flood) -> Spread {
        let reached = flood.timelines.iter().flat_map(|&t| {
            let places = &flood.places[t as usize];
            self.timelines[t as usize].terminals.iter().map(move |x| (t, x, places[x.mark as usize]))
        });
        let symptom = reached
            .filter(|(.., place)| *place != u32::MAX)
            .min_by_key(|(t, x, place)| (x.symptom, *t, *place))
            .map(|(t, x, _)| (t, x));
        Spread {
            ops: flood.ops.saturating_sub(1),
            ranks: flood.timelines.iter().map(|&t| self.rank(t)).collect(),
            hops: flood.hops.clone(),
            symptom: symptom.map(|(t, x)| RankOp::new(self.rank(t), &x.at)),
            symptom_kind: symptom.map(|(_, x)| x.symptom),
        }
    }
}
