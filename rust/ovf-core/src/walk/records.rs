//! The records of one rank that are read one by one.

use super::recorded;
use crate::op::{Op, OpName};
use crate::parse::{Numbers, Parser, Part};
use crate::scan::{Class, Index};
use crate::token::{Read, unescape};

pub(super) struct Records<'a> {
    bytes: &'a [u8],
    index: &'a Index,
    /// Communications are read whole: registers are judged.
    all: bool,
    /// Whether a name may hold escapes.
    has_escapes: bool,
    parser: Parser<'a>,
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8], index: &'a Index, all: bool) -> Self {
        let has_escapes = index.entries.has_odd_names();
        Self { bytes, index, all, has_escapes, parser: Parser::new(Numbers::OfNonFinite) }
    }

    /// Reads an op.
    ///
    /// # Errors
    /// The record is no record.
    pub(super) fn op(&mut self, i: u32) -> Read<&Op<'a>> {
        let part = self.part(i);
        self.parser.op(self.index.entries.at(i as usize).body(self.bytes), part)
    }

    fn part(&self, i: u32) -> Part {
        let entry = self.index.entries.at(i as usize);
        // PERF: only names that end so can be records of values; reading them all would cost as much as the record.
        let name = entry.name(self.bytes);
        let may_be = self.index.classes[i as usize] == Class::Gradient
            || name.ends_with(b".debug")
            || (self.has_escapes && name.contains(&b'\\'));
        let recorded = || may_be && recorded(&OpName::parse(&unescape(name)));
        part_of(entry.asked && !self.all, entry.non_finite, recorded)
    }
}

/// How much of an op is read. What a finite communication (`asked`) gave back is not needed: its inputs say who takes part.
pub(super) fn part_of(asked: bool, non_finite: bool, recorded: impl FnOnce() -> bool) -> Part {
    if asked && !non_finite { Part::Inputs } else { Part::All { recorded: recorded() } }
}
