//! Records that differ only in the numbers of their statistics: most of a dump.
//!
//! A layer is called again and again, so the same record stands in the file many times with other `Max`, `Min`, `Mean`
//! and `Norm`. A [`Template`] is such a record, learnt when the exact reader met it: the bytes before, between and
//! behind those numbers, and the op that came of it. A record whose bytes are the same, whatever bare words stand in
//! the gaps, is that op with other statistics. All other bytes are compared one by one, white space and keys included,
//! so the layout is a guess that is checked and never decides anything.
//!
//! ```text
//! {"input_args": [{"type": "torch.Tensor", "shape": [2, 3], "Max": |1.5|, "Min": |-1.0|, ...|}], "output": [...
//! ```

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::known::{Raws, statistics};
use super::{Numbers, Part};
use crate::op::{Op, Value};
use crate::token::word_end;

/// Templates kept for one file.
const KEPT: usize = 2048;
/// Templates with one beginning that are compared.
const COMPARED: usize = 8;
/// Records without a template after which nothing is learnt any more, unless as many had one.
const MISSES: usize = 8192;

/// The numbers of one tensor of a record: its place in [`Op::arguments`] and its statistics as they stand there.
#[derive(Debug, Clone)]
pub(crate) struct TensorNumbers<'a> {
    /// Nothing for one that is passed over.
    pub(crate) argument: Option<usize>,
    pub(crate) raws: Raws<'a>,
    /// Where the bare words among them stand.
    pub(crate) places: [Option<Range<usize>>; 4],
}

#[derive(Debug)]
struct Template<'a> {
    part: Part,
    /// Text and, behind it, the statistic that follows: tensor and which of the four.
    pieces: Vec<(&'a [u8], usize, usize)>,
    end: &'a [u8],
    tensors: Vec<(Option<usize>, Raws<'a>)>,
    op: Op<'a>,
}

/// The templates of one file.
#[derive(Debug)]
pub(crate) struct Templates<'a> {
    max: memchr::memmem::Finder<'static>,
    known: Vec<Template<'a>>,
    /// By the bytes before the first statistic: those that begin so, the last used first.
    by_beginning: FxHashMap<&'a [u8], Vec<u32>>,
    /// For each template, the one that followed it last.
    next: Vec<Option<u32>>,
    last: usize,
    hits: usize,
    misses: usize,
}

impl Default for Templates<'_> {
    fn default() -> Self {
        let max = memchr::memmem::Finder::new(b"\"Max\"");
        Self {
            known: Vec::new(),
            by_beginning: FxHashMap::default(),
            next: Vec::new(),
            last: 0,
            hits: 0,
            misses: 0,
            max,
        }
    }
}

impl<'a> Templates<'a> {
    /// The bytes before the first statistic.
    fn beginning(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        self.max.find(body).map(|at| &body[..at])
    }

    /// The template that fits, with its op's numbers set to those of `body`.
    pub(crate) fn find(&mut self, body: &'a [u8], part: Part, numbers: Numbers) -> Option<u32> {
        // PERF: layers repeat, so after one record comes mostly the one that came after it the last time.
        if let Some(&Some(id)) = self.next.get(self.last)
            && self.known[id as usize].fits(body, part)
        {
            return Some(self.hit(id, numbers));
        }
        let beginning = self.beginning(body)?;
        let list = self.by_beginning.get_mut(beginning)?;
        let place = list.iter().position(|&id| self.known[id as usize].fits(body, part))?;
        list[..=place].rotate_right(1);
        let id = list[0];
        if let Some(next) = self.next.get_mut(self.last) {
            *next = Some(id);
        }
        Some(self.hit(id, numbers))
    }

    fn hit(&mut self, id: u32, numbers: Numbers) -> u32 {
        self.known[id as usize].convert(numbers);
        self.hits += 1;
        self.last = id as usize;
        id
    }

    pub(crate) fn op(&self, id: u32) -> &Op<'a> {
        &self.known[id as usize].op
    }

    #[cfg(test)]
    pub(crate) fn hits(&self) -> usize {
        self.hits
    }

    /// Whether [`Templates::learn`] still takes anything.
    pub(crate) fn learns(&self) -> bool {
        self.known.len() < KEPT && (self.misses < MISSES || self.hits > self.misses)
    }

    /// Remembers a record; its id, or the op where it is none to remember.
    pub(crate) fn learn(
        &mut self,
        body: &'a [u8],
        part: Part,
        op: Op<'a>,
        tensors: Vec<TensorNumbers<'a>>,
    ) -> Result<u32, Op<'a>> {
        self.misses += 1;
        let Some(beginning) = self.beginning(body) else {
            return Err(op);
        };
        let mut gaps: Vec<(&Range<usize>, usize, usize)> = Vec::new();
        for (tensor, numbers) in tensors.iter().enumerate() {
            for (which, place) in numbers.places.iter().enumerate() {
                gaps.extend(place.as_ref().map(|at| (at, tensor, which)));
            }
        }
        gaps.sort_unstable_by_key(|gap| gap.0.start);
        let id = self.known.len() as u32;
        let list = self.by_beginning.entry(beginning).or_default();
        if list.len() >= COMPARED {
            return Err(op);
        }
        list.insert(0, id);
        let mut from = 0;
        let mut pieces = Vec::with_capacity(gaps.len());
        for (at, tensor, which) in gaps {
            pieces.push((&body[from..at.start], tensor, which));
            from = at.end;
        }
        let end = &body[from..];
        let tensors = tensors.into_iter().map(|t| (t.argument, t.raws)).collect();
        self.next.push(None);
        self.known.push(Template { part, pieces, end, tensors, op });
        Ok(id)
    }
}

impl<'a> Template<'a> {
    /// Whether `body` is this record but for its numbers, which are picked up on the way.
    fn fits(&mut self, body: &'a [u8], part: Part) -> bool {
        if self.part != part {
            return false;
        }
        let mut at = 0;
        for &(piece, tensor, which) in &self.pieces {
            if !body[at..].starts_with(piece) {
                return false;
            }
            let start = at + piece.len();
            let Some(end) = word_end(body, start).filter(|&end| end > start) else {
                return false;
            };
            self.tensors[tensor].1[which] = Some((&body[start..end], false));
            at = end;
        }
        &body[at..] == self.end
    }

    fn convert(&mut self, numbers: Numbers) {
        for (argument, raws) in &self.tensors {
            if let Some(argument) = argument
                && let Value::Tensor(stat) = &mut self.op.arguments[*argument].value
            {
                [stat.max, stat.min, stat.mean, stat.norm] = statistics(raws, numbers);
            }
        }
    }
}
