//! The records of one rank that matter, each read once.
//!
//! Records with one [`crate::scan::FormId`] have NaN in the same statistics. Where that says all there is to know of their
//! values - a tensor is NaN in everything, or its `Max` and `Min` are finite, and then its numbers are not asked for -
//! they are one op, and only the first of them is taken apart: a dump that is NaN from end to end costs little more than
//! its scan.

use super::recorded;
use crate::op::{Op, OpName, TensorStat, Value};
use crate::parse::{Numbers, Parser, Part};
use crate::provenance::keys_of;
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
    /// By form: the part that was read, and the op, where it is the same for all records of the form.
    known: Vec<Option<(Part, Option<Op<'a>>)>>,
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8], index: &'a Index, all: bool, has_escapes: bool) -> Self {
        Self { bytes, index, all, has_escapes, parser: Parser::new(Numbers::OfNonFinite), known: Vec::new() }
    }

    /// Reads an op.
    ///
    /// # Errors
    /// The record is no record.
    pub(super) fn op(&mut self, i: u32) -> Read<&Op<'a>> {
        let part = self.part(i);
        let Some(form) = self.learn(i, part)? else {
            return self.parser.op(self.index.entries[i as usize].body(self.bytes), part);
        };
        match &self.known[form] {
            Some((_, Some(op))) => Ok(op),
            _ => self.parser.op(self.index.entries[i as usize].body(self.bytes), part),
        }
    }

    /// Where the form of an op stands in `known`, if `part` of it is known there.
    fn learn(&mut self, i: u32, part: Part) -> Read<Option<usize>> {
        let entry = &self.index.entries[i as usize];
        let Some(form) = entry.form.get().map(|form| form as usize) else {
            return Ok(None);
        };
        if self.known.len() <= form {
            self.known.resize_with(form + 1, || None);
        }
        if let Some((known, _)) = &self.known[form] {
            return Ok((*known == part).then_some(form));
        }
        let op = self.parser.op(entry.body(self.bytes), part)?;
        let one = op.arguments.iter().all(|a| if let Value::Tensor(t) = &a.value { is_settled(t) } else { true });
        let op = one.then(|| with_keys(op.clone()));
        self.known[form] = Some((part, op));
        Ok(Some(form))
    }

    /// How much of an op is read. What a finite communication gave back is not needed: its inputs say who takes part.
    fn part(&self, i: u32) -> Part {
        let entry = &self.index.entries[i as usize];
        if entry.asked && !entry.non_finite && !self.all {
            return Part::Inputs;
        }
        // PERF: only names that end so can be records of values; reading them all would cost as much as the record.
        let name = self.index.name(self.bytes, i as usize);
        let may_be =
            entry.class == Class::Gradient || name.ends_with(b".debug") || (self.has_escapes && name.contains(&b'\\'));
        Part::All { recorded: may_be && recorded(&OpName::parse(&unescape(name))) }
    }
}

/// Whether a tensor's numbers follow from which of its statistics are NaN.
fn is_settled(t: &TensorStat) -> bool {
    t.kinds().is_finite() || [t.max, t.min, t.mean, t.norm].into_iter().flatten().all(f64::is_nan)
}

fn with_keys(mut op: Op<'_>) -> Op<'_> {
    for argument in &mut op.arguments {
        if let Value::Tensor(t) = &mut argument.value
            && !t.kinds().is_finite()
        {
            t.keys = Some(keys_of(t));
        }
    }
    op
}
