//! Happens-before over matched communications: which origins come first, which are concurrent.
//!
//! In: timelines and their [`Matching`]. Out: an [`Ordering`]: what each received value means (rule 7), the candidate
//! origins with everything that happened before each, and where a received value came from.
//!
//! There is no shared clock. The ranks are replayed against each other: every rank walks through its own events in
//! file order and waits where data has to arrive first.
//!
//! ```text
//! for each rank: knowledge = {}            the candidates that happened before this point
//! walk a rank until it must wait:
//!   candidate c:            before(c) = knowledge; knowledge += c
//!   enter communication m:  m.knowledge += knowledge        (if the rank gives)
//!   leave communication m:  wait until all givers entered; knowledge += m.knowledge   (if the rank gets)
//! ```
//!
//! A synchronous call is left where it is entered; an asynchronous one where its value is first read (rule 8).
//! Givers and getters follow the data: in a broadcast only the root gives, in a reduce only the root gets. A replay
//! that cannot go on (an assumed place, lists cut differently, calls that do not match) first moves assumed places of
//! the circle behind the next communication; where there is none, all ranks of the circle pass without what
//! it waited for; no order is invented. One pass, so cost grows with the number of events.
//!
//! A rank alone is looked at first, all ranks in parallel ([`acts`]); the [`replay`] goes over what that leaves, and
//! [`circles`] settles what no replay can.

mod acts;
mod circles;
mod replay;

use crate::collective::{Match, Matching};
use crate::op::Rank;
use crate::rules::Flow;
use crate::timeline::Timeline;
use replay::Replay;

/// A set of candidates by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CandidateSet(Vec<u64>);

impl CandidateSet {
    fn insert(&mut self, i: usize) {
        if self.0.len() <= i / 64 {
            self.0.resize(i / 64 + 1, 0);
        }
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn contains_all(&self, other: &Self) -> bool {
        self.0.len() >= other.0.len() && self.0.iter().zip(&other.0).all(|(a, b)| a & b == *b)
    }

    fn union(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            *a |= b;
        }
    }

    /// Whether candidate `i` is in the set.
    #[must_use]
    pub fn contains(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// The candidates of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0
            .iter()
            .enumerate()
            .flat_map(|(w, &word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| w * 64 + b))
    }
}

/// What a received non-finite value is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Receipt {
    /// Finite, or nothing received.
    #[default]
    Nothing,
    /// A giver's value was bad: which timeline and event (the lowest rank of them).
    Propagated(u32, u32),
    /// All bad givers sent masks.
    Intended,
    /// Every contribution was finite: the communication itself is the origin (candidate index).
    Origin(usize),
    /// Contributions are not in the dump (candidate index).
    Entered(usize),
    /// A buffer that nobody read, of a call whose data was not there yet.
    Garbage,
}

/// Where a candidate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A root of a rank: timeline, mark.
    Mark(u32, u32),
    /// A communication whose contributions are finite: match, first getter that shows it.
    Communication(u32, u32, u32),
    /// A communication with a giver that is not in the dump: match, getter (timeline, event).
    Missing(u32, u32, u32),
}

/// An origin that takes part in the order.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What it is.
    pub source: Source,
    /// Candidates that happened before it.
    pub before: CandidateSet,
    /// Communications on the longest chain that leads to it.
    pub depth: u32,
    /// Turned out to be the consequence of an overflow that a communication delivered.
    pub demoted: bool,
    /// Getters that show a communication's bad result: (timeline, event).
    pub getters: Vec<(u32, u32)>,
}

/// The order of a step.
#[derive(Debug, Default)]
pub struct Ordering {
    /// All candidates.
    pub candidates: Vec<Candidate>,
    /// For each timeline and event, what was received.
    pub receipts: Vec<Vec<Receipt>>,
    /// For each timeline and mark, the event whose delivery explains a demoted mark.
    pub demoted_by: Vec<Vec<Option<u32>>>,
    /// For each timeline and event, whether what was given is from an overflow.
    pub given_real: Vec<Vec<bool>>,
    /// How often the replay had to let a rank pass.
    pub undecided: u32,
    /// For each match, communications on the longest chain that leads to it.
    pub depths: Vec<u32>,
}

/// Orders the origins of a step.
#[must_use]
pub fn order(timelines: &[Timeline], matching: &Matching) -> Ordering {
    let mut ordering = Replay::new(timelines, matching).run();
    circles::break_circles(timelines, matching, &mut ordering);
    ordering.order
}

/// Whether this member's data flows into the communication, and whether data flows out to it.
#[must_use]
pub(crate) fn sides(entry: &Match, rank: Rank, flow: Flow) -> (bool, bool) {
    match flow {
        Flow::All | Flow::Batch => (true, true),
        Flow::FromRoot => (entry.root == Some(rank), entry.root != Some(rank)),
        Flow::ToRoot => (true, entry.root == Some(rank)),
        Flow::Send => (true, false),
        Flow::Recv => (false, true),
    }
}
