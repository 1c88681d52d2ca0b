//! What a rank does, one after the other, and what of it the other ranks' replay has to know.
//!
//! In: a timeline and the matching. Out: [`Acts`]. The replay waits for memory more than for anything else, so the
//! little it needs of each communication is gathered here, rank by rank in parallel, in arrays that it runs through.

use crate::collective::Matching;
use crate::order::{Receipt, sides};
use crate::rules::Flow;
use crate::timeline::{Cause, Mark, Timeline};

/// What is done. At one op: what it reads arrives first, then its root, then its communication; a register is read
/// when the call is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// Leave an asynchronous communication.
    Leave,
    /// A root of the rank.
    Root,
    /// Enter a communication (and leave it, if it is synchronous).
    Enter,
    /// A root that a register tells of.
    Register,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Act {
    pub(super) op: u32,
    pub(super) what: What,
    /// The event, or the mark of a root.
    pub(super) index: u32,
    /// The communication to enter or leave, or [`Self::UNMATCHED`].
    pub(super) id: u32,
}

impl Act {
    const UNMATCHED: u32 = u32::MAX;

    pub(super) fn matched(&self) -> Option<u32> {
        (self.id != Self::UNMATCHED).then_some(self.id)
    }
}

/// What a rank does in a communication.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Role(u8);

impl Role {
    /// Its data flows into the communication.
    pub(super) const GIVES: Self = Self(1);
    /// Data flows out to it.
    pub(super) const GETS: Self = Self(2);
    /// Those that get wait for it.
    pub(super) const AWAITED: Self = Self(4);
    /// It gets when it enters.
    pub(super) const AT_ONCE: Self = Self(8);
    /// What it got is not finite.
    pub(super) const BAD: Self = Self(16);
    /// Whether it gave an overflow depends on what was delivered to it.
    pub(super) const CONDITIONAL: Self = Self(32);

    pub(super) fn is(self, what: Self) -> bool {
        self.0 & what.0 == what.0
    }

    fn also(&mut self, what: Self, holds: bool) {
        self.0 |= if holds { what.0 } else { 0 };
    }
}

/// A rank's acts in order, and for each of its events what is known before the replay.
pub(super) struct Acts {
    pub(super) list: Vec<Act>,
    pub(super) roles: Vec<Role>,
    pub(super) receipts: Vec<Receipt>,
    /// Whether what was given is from an overflow, as far as the rank knows.
    pub(super) given_real: Vec<bool>,
    /// Communications out of which something bad came.
    pub(super) bad: Vec<u32>,
}

impl Acts {
    pub(super) fn of(t: &Timeline, matching: &Matching, ids: &[Option<u32>]) -> Self {
        let mut all = Self {
            list: Vec::with_capacity(t.events.len() * 2),
            roles: vec![Role::default(); t.events.len()],
            receipts: vec![Receipt::Nothing; t.events.len()],
            given_real: vec![false; t.events.len()],
            bad: Vec::new(),
        };
        let mut open: Vec<Act> = Vec::new();
        for (i, event) in t.events.iter().enumerate().filter(|(_, e)| !e.communication.superseded) {
            let (c, index) = (&event.communication, i as u32);
            // Without a known reader an asynchronous call is left before the next communication of another op.
            open.retain(|&leave| {
                let stays = leave.op >= c.op;
                if !stays {
                    all.list.push(Act { op: c.op, ..leave });
                }
                stays
            });
            let role = &mut all.roles[i];
            if let Some(id) = ids[i] {
                let entry = &matching.matches[id as usize];
                let (gives, gets) = sides(entry, t.rank, c.flow);
                let bad = event.got.as_ref().is_some_and(|side| !side.kinds.is_finite());
                role.also(Role::GIVES, gives);
                role.also(Role::GETS, gets);
                role.also(Role::AWAITED, gives || entry.flow == Flow::All);
                role.also(Role::AT_ONCE, gets && !c.is_async);
                role.also(Role::BAD, bad);
                if bad {
                    all.bad.push(id);
                }
                if let Some(side) = &event.given {
                    role.also(Role::CONDITIONAL, !side.conditions().is_empty());
                    all.given_real[i] = side.real;
                }
            }
            let id = ids[i].unwrap_or(Act::UNMATCHED);
            all.list.push(Act { op: c.op, what: What::Enter, index, id });
            if c.is_async && c.flow != Flow::Send {
                // Nothing arrives at the root of a broadcast, at a giver of a reduce.
                let id = if role.is(Role::GETS) { id } else { Act::UNMATCHED };
                let leave = Act { op: c.op, what: What::Leave, index, id };
                match event.visible_at {
                    Some(read) => all.list.push(Act { op: read.max(c.op + 1), ..leave }),
                    None => open.push(leave),
                }
            }
        }
        all.list.extend(open.into_iter().map(|leave| Act { op: u32::MAX, ..leave }));
        let what = |m: &Mark| if m.cause == Cause::Register { What::Register } else { What::Root };
        all.list.extend(t.candidates().map(|i| {
            let mark = &t.marks[i];
            Act { op: mark.at.op, what: what(mark), index: i as u32, id: Act::UNMATCHED }
        }));
        all.list.sort_by_key(|act| (act.op, act.what, act.index));
        all
    }
}
