//! The map step: one rank's files -> a [`Summary`], all that leaves the rank.
//!
//! In: a rank folder, the bytes of its files, or a written summary. Out: a [`Summary`]: the [`Timeline`], what was
//! wrong with the dump, and where the details of its ops are to be had once the findings are known
//! ([`crate::detail`]): in the files of a local analysis, in the packed section of a written summary. Everything
//! behind this room ([`crate::reduce`]) is the same for both.

use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Options;
use crate::bytes::Bytes;
use crate::context::contexts;
use crate::detail::{Asked, Detail, Files, Source, asked, of};
use crate::encoding::{Body, Head, Packed, decode, encode, is_summary};
use crate::error::{Error, ErrorKind, Position, Result};
use crate::op::Rank;
use crate::progress::{Progress, Watch};
use crate::report::Unreadable;
use crate::rules::Rules;
use crate::source::{RankSource, Step};
use crate::timeline::{Completeness, Timeline, build_until};
use crate::unpack::unpack;

/// One rank, reduced.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Global rank.
    pub rank: Rank,
    /// Folder name.
    pub label: String,
    /// The dump file, as the report shows it.
    pub path: String,
    /// Where it was read: the dump, or the written summary.
    pub found_at: String,
    /// The step it was made of, told by a written summary.
    pub step: Option<StepName>,
    /// Communications, roots, counts; `None` where the dump says nothing (unreadable, not a single op).
    pub timeline: Option<Timeline>,
    /// What was wrong with the dump.
    pub unreadable: Option<Unreadable>,
    /// Where the details of its ops are to be had.
    pub(crate) records: Records,
}

/// Where the details of a rank's ops are to be had.
#[derive(Debug, Clone)]
pub(crate) enum Records {
    /// In its files; whether large ones may be mapped.
    Files(RankSource, bool),
    /// In the summary, packed.
    Kept(Packed),
    /// Nowhere: the dump says nothing.
    Nowhere,
}

/// The bytes of one rank's files, and its names.
#[derive(Debug, Clone, Copy)]
pub struct RankBytes<'b> {
    /// Global rank.
    pub rank: Rank,
    /// Folder name, or what stands for one.
    pub label: &'b str,
    /// The dump file, as the report shows it.
    pub path: &'b str,
    /// Content of `dump.json`.
    pub dump: &'b [u8],
    /// Content of `construct.json`.
    pub construct: Option<&'b [u8]>,
    /// Content of `stack.json`.
    pub stack: Option<&'b [u8]>,
}

/// The step a written summary belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepName {
    /// Its number.
    pub number: Option<u64>,
    /// Its folder below the dump root.
    pub label: String,
    /// Remarks about its folder.
    pub notes: Vec<String>,
}

impl StepName {
    /// The name of a step on disk.
    #[must_use]
    pub fn of(step: &Step) -> Self {
        Self { number: step.number, label: step.label.clone(), notes: step.notes.clone() }
    }
}

impl Summary {
    /// Summarises a rank on disk, details staying in its files, or reads its written summary.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Io`] for its file; [`ErrorKind::Format`] for a written summary that
    /// cannot be used ([`Summary::decode`]) or is another rank's.
    pub fn read(source: &RankSource, options: &Options, progress: &Progress) -> Result<Self> {
        let watch = Watch::new(progress);
        let bytes = Bytes::read(&source.dump, options.map, &watch)?;
        let beside = |path| options.wanted.chart.then(|| Bytes::open_any(path, options.map).ok()).flatten();
        let (construct, stack) = (beside(&source.construct), beside(&source.stack));
        let summary = Self::from_open(source, &bytes, [construct.as_ref(), stack.as_ref()], options, &watch)?;
        watch.end();
        progress.ranks.fetch_add(1, Ordering::Relaxed);
        Ok(summary)
    }

    /// A rank from its open file; `beside` are its `construct.json` and `stack.json`, where the chart needs them.
    fn from_open(
        source: &RankSource,
        bytes: &Bytes,
        beside: [Option<&Bytes>; 2],
        options: &Options,
        watch: &Watch,
    ) -> Result<Self> {
        if source.is_summary() || is_summary(bytes) {
            let summary = Self::decode(bytes, &source.dump, &options.rules)?;
            return if summary.rank == source.rank {
                Ok(summary)
            } else {
                let text = format!("a summary of rank {} under the name of rank {}", summary.rank, source.rank);
                Err(Error::new(ErrorKind::Format, &source.dump, text).with_help("give the file its own name again"))
            };
        }
        let path = source.dump.display().to_string();
        let dump = RankBytes {
            rank: source.rank,
            label: &source.label,
            path: &path,
            dump: bytes,
            construct: beside[0].map(|b| &**b),
            stack: beside[1].map(|b| &**b),
        };
        let mut summary = Self::of(&dump, options, &|| bytes.release(), watch);
        summary.spoiled(bytes.problem());
        if let Some(timeline) = &mut summary.timeline
            && let Some(change) = bytes.change()
        {
            timeline.notes.push(format!("the file changed while it was read ({change}): {STILL_WRITTEN}"));
        }
        if summary.timeline.is_some() {
            summary.records = Records::Files(source.clone(), options.map);
        }
        Ok(summary)
    }

    /// Summarises a dump in memory. Its details are not kept: [`summarise_bytes`] does both.
    fn of(dump: &RankBytes, options: &Options, left_over: &(dyn Fn() + Sync), watch: &Watch) -> Self {
        let mut timeline =
            build_until(dump.dump, dump.rank, dump.label, &options.rules, options.wanted, left_over, watch);
        if let Some(chart) = &mut timeline.chart {
            chart.take_sites(dump.construct, dump.stack, &options.rules);
        }
        let unreadable = problem_of(&mut timeline, dump.path);
        Self {
            rank: dump.rank,
            label: dump.label.to_owned(),
            path: dump.path.to_owned(),
            found_at: dump.path.to_owned(),
            step: None,
            // A file without a single op says nothing, not even what its rank took part in.
            timeline: (timeline.ops > 0).then_some(timeline),
            unreadable,
            records: Records::Nowhere,
        }
    }

    /// Takes note that a packed dump could not be unpacked to its end, or not as it was packed.
    fn spoiled(&mut self, problem: Option<&str>) {
        let Some(message) = problem else {
            return;
        };
        let mut ops_used = 0;
        if let Some(timeline) = &mut self.timeline {
            ops_used = timeline.ops;
            if timeline.completeness == Completeness::Complete {
                timeline.completeness = Completeness::Damaged;
            }
        }
        self.unreadable = Some(Unreadable {
            rank: self.rank,
            path: self.path.clone(),
            line: None,
            column: None,
            message: message.to_owned(),
            help: Some("pack or copy the dump again, or leave the rank out with --ranks".to_owned()),
            ops_used,
        });
    }

    /// The summary of a rank whose dump cannot be had.
    #[must_use]
    pub fn absent(rank: Rank, label: &str, path: &str, message: &str, help: &str) -> Self {
        let unreadable = Unreadable {
            rank,
            path: path.to_owned(),
            line: None,
            column: None,
            message: message.to_owned(),
            help: Some(help.to_owned()),
            ops_used: 0,
        };
        Self {
            rank,
            label: label.to_owned(),
            path: path.to_owned(),
            found_at: path.to_owned(),
            step: None,
            timeline: None,
            unreadable: Some(unreadable),
            records: Records::Nowhere,
        }
    }

    /// As [`Summary::absent`], for a file that cannot be used.
    pub(crate) fn not_opened(source: &RankSource, error: &Error) -> Self {
        let help = error.help.unwrap_or(if error.kind == ErrorKind::NotFound {
            "the rank's dump was not written: was PrecisionDebugger.stop() reached?"
        } else {
            "check the permissions, or leave the rank out with --ranks"
        });
        let path = source.dump.display().to_string();
        Self::absent(source.rank, &source.label, &path, &error.message, help)
    }

    /// Leaves nothing of the summary but why it cannot be used.
    pub(crate) fn refuse(&mut self, message: &str, help: &str) {
        *self = Self::absent(self.rank, &self.label, &self.found_at, message, help);
    }

    /// Whether two summaries of a rank are interchangeable.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        let same = match (&self.timeline, &other.timeline) {
            (Some(a), Some(b)) => a.bare() == b.bare(),
            (None, None) => true,
            _ => false,
        };
        same && (&self.path, &self.unreadable) == (&other.path, &other.unreadable)
    }

    /// Reads a written summary; [`Summary::step`] is the step it belongs to.
    ///
    /// # Errors
    /// [`ErrorKind::Format`]: no summary, another version, cut, damaged, or made under other rules than `rules`.
    pub fn decode(bytes: &[u8], path: &Path, rules: &Rules) -> Result<Self> {
        let (head, body, packed) = decode(bytes, path)?;
        if head.rules != rules.fingerprint() {
            let text = "a summary made under other rules than those in force now";
            return Err(Error::new(ErrorKind::Format, path, text)
                .with_help("give the same --rules as to `ovf summarize`, or summarise the rank again"));
        }
        let records = if body.timeline.is_some() { Records::Kept(packed) } else { Records::Nowhere };
        Ok(Self {
            rank: head.rank,
            label: head.label,
            path: head.path,
            found_at: path.display().to_string(),
            step: Some(StepName { number: head.step, label: head.step_label, notes: head.notes }),
            timeline: body.timeline,
            unreadable: body.unreadable,
            records,
        })
    }

    /// Writes a summary whose details are in `files`.
    fn encode(self, step: &StepName, rules: &Rules, files: Option<Files>) -> Result<Vec<u8>> {
        let details = match (&self.timeline, files) {
            (Some(timeline), Some(files)) => {
                let asked = asked(timeline);
                asked.iter().map(|a| a.op).zip(of(files, &asked)).collect()
            }
            _ => Vec::new(),
        };
        let head = Head {
            written_by: env!("CARGO_PKG_VERSION").to_owned(),
            rules: rules.fingerprint(),
            step: step.number,
            step_label: step.label.clone(),
            notes: step.notes.clone(),
            rank: self.rank,
            label: self.label,
            path: self.path,
        };
        encode(&head, &Body { timeline: self.timeline, unreadable: self.unreadable }, &details)
    }

    /// Writes the summary of a rank whose dump cannot be had ([`Summary::absent`]).
    ///
    /// # Errors
    /// [`ErrorKind::Format`] where it is larger than a reader accepts.
    pub fn encode_absent(self, step: &StepName, rules: &Rules) -> Result<Vec<u8>> {
        self.encode(step, rules, None)
    }
}

const STILL_WRITTEN: &str = "the job is still writing; analyse again when it is done";

/// What is wrong with a rank's file, taken out of its timeline.
pub(crate) fn problem_of(timeline: &mut Timeline, path: &str) -> Option<Unreadable> {
    timeline.problem.take().map(|problem| {
        let help = match timeline.completeness {
            Completeness::Cut => "the job was stopped while msProbe wrote the file; the ops after the cut are lost",
            Completeness::Empty => "nothing was recorded: was the step reached, and PrecisionDebugger.stop() called?",
            _ => "dump the rank again, or leave it out with --ranks",
        };
        Unreadable {
            rank: timeline.rank,
            path: path.to_owned(),
            line: problem.position.map(|p: Position| p.line),
            column: problem.position.map(|p| p.column),
            message: problem.message,
            help: Some(help.to_owned()),
            ops_used: timeline.ops,
        }
    })
}

/// Summarises a dump in memory, details included, as the bytes of a summary. A report can be asked for what
/// [`Options::wanted`] named then: [`Wanted::ALL`](crate::Wanted::ALL) where that is not known yet. Soon after `cancel` is set it stops, and
/// the result must be thrown away.
///
/// # Errors
/// [`ErrorKind::Format`] where the summary is larger than a reader accepts. A dump that cannot be read is part of it.
pub fn summarise_bytes(dump: &RankBytes, step: &StepName, options: &Options, cancel: &AtomicBool) -> Result<Vec<u8>> {
    let (content, problem) = plain(dump.dump);
    let construct = dump.construct.map(|b| plain(b).0);
    let stack = dump.stack.map(|b| plain(b).0);
    let files = Files { dump: &content, construct: construct.as_deref(), stack: stack.as_deref() };
    let dump = RankBytes { dump: files.dump, construct: files.construct, stack: files.stack, ..*dump };
    let mut summary = Summary::of(&dump, options, &|| (), &Watch::switch(cancel));
    summary.spoiled(problem.as_deref());
    summary.encode(step, &options.rules, Some(files))
}

/// A file's content, unpacked where it is packed, without a byte order mark; and what was wrong with it.
fn plain(bytes: &[u8]) -> (Cow<'_, [u8]>, Option<String>) {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let Some(unpacked) = unpack(bytes) else {
        return (Cow::Borrowed(bytes.strip_prefix(MARK).unwrap_or(bytes)), None);
    };
    let mut content = unpacked.bytes;
    if content.starts_with(MARK) {
        content.drain(..MARK.len());
    }
    (Cow::Owned(content), unpacked.problem)
}

/// The same written summary with module chains and stacks from `construct` and `stack`, where given, and with remarks
/// about the rank's files. A summary that has nothing to look up stays as it is. With `chart`, where every op stands is
/// looked up too, by the rules it was made under.
///
/// # Errors
/// As [`Summary::decode`], and as [`summarise_bytes`].
pub fn with_context(
    summary: &[u8],
    construct: Option<&[u8]>,
    stack: Option<&[u8]>,
    remarks: Vec<String>,
    chart: Option<&Rules>,
) -> Result<Vec<u8>> {
    let (head, mut body, packed) = decode(summary, Path::new("summary"))?;
    let Some(timeline) = &mut body.timeline else {
        return Ok(summary.to_vec());
    };
    let charted = chart.is_some() && timeline.chart.as_ref().is_some_and(|c| c.is_sound(timeline.ops));
    let (construct, stack) = (construct.map(|b| plain(b).0), stack.map(|b| plain(b).0));
    if let (true, Some(rules), Some(chart)) = (charted, chart, &mut timeline.chart) {
        chart.take_sites(construct.as_deref(), stack.as_deref(), rules);
    }
    let asked = asked(timeline);
    if asked.is_empty() && remarks.is_empty() && !charted {
        return Ok(summary.to_vec());
    }
    let names: Vec<&str> = asked.iter().map(|a| a.name).collect();
    let found = contexts(construct.as_deref(), stack.as_deref(), &names);
    let mut details = packed.open();
    for (at, context) in asked.iter().zip(found) {
        if let Ok(i) = details.binary_search_by_key(&at.op, |d| d.0) {
            let detail = &mut details[i].1;
            if construct.is_some() {
                detail.chain = context.chain;
            }
            if stack.is_some() {
                detail.stack = context.stack;
            }
        }
    }
    timeline.notes.extend(remarks);
    encode(&head, &body, &details)
}

/// Summarises a rank on disk, details included, as the bytes of a summary; a written summary is given as it is. `shown`
/// is the dump file as the report shows it, where that is not its path.
///
/// # Errors
/// As [`summarise_bytes`], and as [`Summary::decode`] for a written one.
pub fn summarise_files(
    source: &RankSource,
    shown: Option<&str>,
    step: &StepName,
    options: &Options,
    progress: &Progress,
) -> Result<Vec<u8>> {
    let rules = &options.rules;
    let watch = Watch::new(progress);
    let renamed = |mut summary: Summary| {
        if let Some(shown) = shown {
            shown.clone_into(&mut summary.path);
            if let Some(unreadable) = &mut summary.unreadable {
                shown.clone_into(&mut unreadable.path);
            }
        }
        summary
    };
    let bytes = match Bytes::read(&source.dump, options.map, &watch) {
        Ok(bytes) => bytes,
        Err(error) => return renamed(Summary::not_opened(source, &error)).encode(step, rules, None),
    };
    let open = |path| Bytes::open_any(path, options.map).ok();
    let beside = || (open(&source.construct), open(&source.stack));
    let (mut construct, mut stack) = if options.wanted.chart { beside() } else { (None, None) };
    let summary = Summary::from_open(source, &bytes, [construct.as_ref(), stack.as_ref()], options, &watch)?;
    watch.end();
    progress.ranks.fetch_add(1, Ordering::Relaxed);
    if summary.step.is_some() {
        return Ok(bytes.to_vec());
    }
    let summary = renamed(summary);
    if !options.wanted.chart && summary.timeline.as_ref().is_some_and(|t| !asked(t).is_empty()) {
        (construct, stack) = beside();
    }
    let files = Files { dump: &bytes, construct: construct.as_deref(), stack: stack.as_deref() };
    summary.encode(step, rules, Some(files))
}

/// Opens a rank's files; one that has gone is empty.
fn opened<T>(source: &RankSource, map: bool, look: impl FnOnce(Files) -> T) -> T {
    let open = |path| Bytes::open_any(path, map).ok();
    let (dump, construct, stack) = (open(&source.dump), open(&source.construct), open(&source.stack));
    look(Files { dump: dump.as_deref().unwrap_or_default(), construct: construct.as_deref(), stack: stack.as_deref() })
}

impl Source for Records {
    fn details(&self, asked: &[Asked]) -> Vec<Detail> {
        match self {
            Self::Files(source, map) => opened(source, *map, |files| of(files, asked)),
            Self::Kept(packed) => {
                let kept = packed.open();
                let unknown = |name: &str| Detail { chain: vec![name.to_owned()], ..Detail::default() };
                let take = |a: &Asked| match kept.binary_search_by_key(&a.op, |d| d.0) {
                    Ok(at) => kept[at].1.clone(),
                    Err(_) => unknown(a.name),
                };
                asked.iter().map(take).collect()
            }
            Self::Nowhere => of(Files { dump: &[], construct: None, stack: None }, asked),
        }
    }
}
