//! The table of all ops: one row an op of every rank, in rank order and file order.
//!
//! In: a step. Out: a stream of [`Batch`]es. Every op is parsed, so the table is made only when somebody asks for it.
//! Ranks are read in parallel a little ahead of the reader and handed over in order; what waits is bounded by
//! `threads + 1` ranks, so memory does not grow with the number of ranks. The rows do not depend on the number of
//! threads.
//!
//! The statistics of a row are those of the op's *worst output*: of the outputs (recorded values of a gradient or
//! debug record) the one with the worst kind of number, then the largest magnitude, then the first.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::bytes::Bytes;
use crate::classify::OpState;
use crate::encoding::is_summary;
use crate::error::{Error, ErrorKind, Result};
use crate::level::level;
use crate::op::{Direction, Kinds, Op, Phase, Rank, TensorStat, Value};
use crate::progress::Watch;
use crate::report::Unreadable;
use crate::rules::Rules;
use crate::scan::scan_until;
use crate::source::{RankSource, Step};
use crate::summary::{Summary, problem_of};
use crate::survey::Seen;
use crate::table::{Batch, Cell, ColumnField, ColumnKind, always, perhaps};
use crate::walk::Walk;
use crate::{Options, select};

/// Rows of a batch.
const ROWS: usize = 8192;
/// Bytes of text after which a batch is closed early.
const HEAVY: usize = 16 << 20;

/// Columns of the table `ops`.
pub const OPS: [ColumnField; 26] = [
    perhaps("step", ColumnKind::Large),
    always("step_label", ColumnKind::Word),
    always("rank", ColumnKind::Whole),
    always("exec_order", ColumnKind::Whole),
    always("op_name", ColumnKind::Text),
    always("api", ColumnKind::Word),
    always("direction", ColumnKind::Word),
    always("phase", ColumnKind::Word),
    always("state", ColumnKind::Word),
    perhaps("level", ColumnKind::Word),
    always("is_communication", ColumnKind::Bool),
    always("is_recompute", ColumnKind::Bool),
    perhaps("bad_inputs", ColumnKind::Word),
    perhaps("bad_outputs", ColumnKind::Word),
    perhaps("slot", ColumnKind::Word),
    perhaps("dtype", ColumnKind::Word),
    perhaps("shape", ColumnKind::List),
    perhaps("max", ColumnKind::Real),
    perhaps("min", ColumnKind::Real),
    perhaps("mean", ColumnKind::Real),
    perhaps("norm", ColumnKind::Real),
    perhaps("limit_share", ColumnKind::Real),
    perhaps("input_max", ColumnKind::Real),
    perhaps("input_min", ColumnKind::Real),
    perhaps("input_norm", ColumnKind::Real),
    perhaps("norm_ratio", ColumnKind::Real),
];

/// A rank's batches and what is wrong with its file.
type Read = (Vec<Batch>, Option<Unreadable>);

/// The ops of a step, batch by batch.
pub struct OpTable {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    ready: std::vec::IntoIter<Batch>,
    unreadable: Vec<Unreadable>,
}

struct Shared {
    ranks: Vec<RankSource>,
    step: Step,
    options: Options,
    cancel: AtomicBool,
    ahead: usize,
    progress: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Next rank to read, next to hand over.
    claimed: usize,
    handed: usize,
    waiting: BTreeMap<usize, Read>,
}

impl OpTable {
    /// Starts reading.
    ///
    /// # Errors
    /// As [`crate::analyze`]. Ranks that cannot be read are [`OpTable::unreadable`].
    pub fn open(step: &Step, options: &Options) -> Result<Self> {
        let ranks = select(step, options)?;
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or_else(available).clamp(1, ranks.len().max(1));
        let shared = Arc::new(Shared {
            ranks,
            step: step.clone(),
            options: options.clone(),
            cancel: AtomicBool::new(false),
            ahead: threads + 1,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut table = Self { shared, workers: Vec::new(), ready: Vec::new().into_iter(), unreadable: Vec::new() };
        for i in 0..threads {
            let shared = Arc::clone(&table.shared);
            let named = std::thread::Builder::new().name(format!("ovf-ops-{i}")).stack_size(16 << 20);
            let worker = named.spawn(move || shared.work());
            let failed = |e| crate::Error::io(&step.path, &e);
            table.workers.push(worker.map_err(failed)?);
        }
        Ok(table)
    }

    /// Dumps that could not be read, or not to their end, among the ranks handed over so far.
    #[must_use]
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }
}

impl Iterator for OpTable {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        loop {
            if let Some(batch) = self.ready.next() {
                return Some(batch);
            }
            let (batches, problem) = self.shared.take()?;
            self.ready = batches.into_iter();
            self.unreadable.extend(problem);
        }
    }
}

impl Drop for OpTable {
    fn drop(&mut self) {
        self.shared.cancel.store(true, Ordering::Relaxed);
        drop(self.shared.lock()); // whoever waits has seen the switch, or will
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'q>(&self, queue: MutexGuard<'q, Queue>) -> MutexGuard<'q, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut queue = self.lock();
            while queue.claimed < self.ranks.len() && queue.claimed >= queue.handed + self.ahead && !self.cancelled() {
                queue = self.wait(queue);
            }
            if queue.claimed >= self.ranks.len() || self.cancelled() {
                return;
            }
            let at = queue.claimed;
            queue.claimed += 1;
            drop(queue);
            let source = &self.ranks[at];
            let read = || read_rank(source, &self.step, &self.options, &self.cancel);
            // A reader that waits for a rank must not wait for ever: a panic is a rank that cannot be read.
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
            let read = caught.unwrap_or_else(|_| {
                let message = "an internal error stopped the reading";
                let path = source.dump.display().to_string();
                let rank = Summary::absent(source.rank, &source.label, &path, message, "please report the file");
                (Vec::new(), rank.unreadable)
            });
            self.lock().waiting.insert(at, read);
            self.changed.notify_all();
        }
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The next rank, when it is there; `None` behind the last.
    fn take(&self) -> Option<Read> {
        let mut queue = self.lock();
        loop {
            let next = queue.handed;
            if next >= self.ranks.len() {
                return None;
            }
            if let Some(read) = queue.waiting.remove(&next) {
                queue.handed += 1;
                drop(queue);
                self.changed.notify_all();
                return Some(read);
            }
            queue = self.wait(queue);
        }
    }
}

fn read_rank(source: &RankSource, step: &Step, options: &Options, cancel: &AtomicBool) -> Read {
    let bytes = match Bytes::open(&source.dump, options.map) {
        Ok(bytes) => bytes,
        Err(error) => return (Vec::new(), Summary::not_opened(source, &error).unreadable),
    };
    if source.is_summary() || is_summary(&bytes) {
        let error = Error::new(ErrorKind::Format, &source.dump, "a written summary does not hold every op")
            .with_help("export the table where the dump lies");
        return (Vec::new(), Summary::not_opened(source, &error).unreadable);
    }
    let watch = &Watch::switch(cancel);
    let (batches, mut timeline) = rows(&bytes, source, step, &options.rules, watch);
    (batches, problem_of(&mut timeline, &source.dump.display().to_string()))
}

fn rows(
    bytes: &Bytes,
    source: &RankSource,
    step: &Step,
    rules: &Rules,
    watch: &Watch,
) -> (Vec<Batch>, crate::Timeline) {
    let index = scan_until(bytes, &|name| rules.is_communication_name(name), watch);
    let mut walk = Walk::new(bytes, &index, rules, source.rank, None);
    walk.over_ops(watch);
    let timeline = walk.finish(source.rank, &source.label);
    let phases: Vec<Phase> = (0..timeline.ops).map(|op| walk.phase(op)).collect();
    let mut batches: Vec<Batch> = Vec::new();
    walk.each(watch, &mut |seen| {
        if batches.last().is_none_or(|b| b.rows >= ROWS || b.heaviest() >= HEAVY) {
            batches.push(Batch::new(&OPS));
        }
        if let Some(batch) = batches.last_mut() {
            push(batch, step, source.rank, seen, phases[seen.i as usize], rules);
        }
    });
    (batches, timeline)
}

fn push(batch: &mut Batch, step: &Step, rank: Rank, seen: &Seen, phase: Phase, rules: &Rules) {
    let nothing = Op::default();
    let op = seen.op.unwrap_or(&nothing);
    let leveled = level(seen.i, &seen.name, op, seen.operator, rules);
    let side = |input: bool| {
        op.arguments.iter().filter_map(move |a| match &a.value {
            Value::Tensor(t) if a.slot.field.is_input() == input => Some((a, t)),
            _ => None,
        })
    };
    let kinds = |input: bool| side(input).fold(Kinds::NONE, |k, (_, t)| k.union(t.kinds()));
    let (bad_in, bad_out) = (kinds(true).words(), kinds(false).words());
    let mut worst: Option<(&crate::op::Argument, &TensorStat)> = None;
    for (argument, t) in side(false).filter(|(_, t)| t.has_statistics()) {
        if worst.is_none_or(|(_, w)| rank_of(t) > rank_of(w)) {
            worst = Some((argument, t));
        }
    }
    let slot = worst.map(|(argument, _)| argument.slot.to_string());
    let t = worst.map(|(_, t)| t);
    let dtype = t.map(|t| t.dtype.strip_prefix("torch.").unwrap_or(t.dtype));
    let share = t.and_then(|t| Some(finite_magnitude(t)? / rules.largest(t.dtype)?));
    let over_inputs = |pick: fn(&TensorStat) -> Option<f64>, largest: bool| {
        let all = side(true).filter(|(_, t)| t.is_floating()).filter_map(|(_, t)| pick(t));
        all.reduce(|a, b| {
            if a.is_nan() || b.is_nan() {
                f64::NAN
            } else if (a > b) == largest {
                a
            } else {
                b
            }
        })
    };
    batch.push(&[
        step.number.map_or(Cell::Null, Cell::Whole),
        Cell::Text(&step.label),
        Cell::Whole(u64::from(rank)),
        Cell::Whole(u64::from(seen.i)),
        Cell::Text(seen.raw),
        Cell::Text(seen.name.api),
        Cell::Text(match seen.name.direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
            Direction::ParametersGrad => "parameters_grad",
            Direction::Debug => "debug",
        }),
        Cell::Text(phase.name()),
        Cell::Text(if seen.op.is_none() { OpState::Unknown } else { seen.state }.name()),
        leveled.level.map_or(Cell::Null, |l| Cell::Text(l.name())),
        Cell::Bool(rules.is_communication(&seen.name)),
        Cell::Bool(op.is_recompute),
        bad_in.into(),
        bad_out.into(),
        slot.as_deref().into(),
        dtype.into(),
        t.map_or(Cell::Null, |t| Cell::List(&t.shape)),
        t.and_then(|t| t.max).into(),
        t.and_then(|t| t.min).into(),
        t.and_then(|t| t.mean).into(),
        t.and_then(|t| t.norm).into(),
        share.into(),
        over_inputs(|t| t.max, true).into(),
        over_inputs(|t| t.min, false).into(),
        over_inputs(|t| t.norm, true).into(),
        leveled.norm_ratio.into(),
    ]);
}

/// Order of badness of an output.
fn rank_of(t: &TensorStat) -> (u8, f64) {
    (t.kinds().severity(), finite_magnitude(t).unwrap_or(0.0))
}

/// Largest finite magnitude; `None` when Max and Min are not both finite.
fn finite_magnitude(t: &TensorStat) -> Option<f64> {
    let all = [t.max, t.min];
    let known = || all.iter().flatten();
    (t.kinds().is_finite() && t.has_statistics()).then(|| known().fold(0.0, |m: f64, n| m.max(n.abs())))
}
