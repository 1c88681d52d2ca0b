//! One rank alone: every op that could be the root cause, in order (the single-rank step of the skill seed).
//!
//! In: one rank's files. Out: a [`Trace`]: all candidates in file order, harmful ones first in rank of suspicion, so
//! that when the first is ruled out the next is at hand.

use std::path::Path;

use serde::Serialize;

use crate::detail::{Asked, Detail, Source};
use crate::error::Result;
use crate::op::{Direction, Field, OpName, Rank, Value};
use crate::parse::{Part, parse_op};
use crate::source::RankSource;
use crate::summary::Summary;
use crate::timeline::{Cause, Mark};
use crate::{Options, Position, Progress};

/// Candidates listed.
const LISTED: usize = 1000;

/// Shape, Max, Min and dtype of an input; statistics as text, as the skill seed has them.
pub(crate) type InputInfo = (Vec<i64>, Option<String>, Option<String>, String);

/// One op that may be the root cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Anomaly {
    /// Key in `data`.
    pub op_name: String,
    /// Place in the file, from 0.
    pub exec_order: u32,
    /// Why it is listed: `computed`, `from_intended`, `parameter`, `input`, `corruption`, `unrecorded`, `received`,
    /// `register`.
    pub cause: Cause,
    /// Whether its value reaches loss, gradient, state or communication.
    pub harm: bool,
    /// The record's output, as JSON text.
    #[serde(skip)]
    pub output: String,
    /// Whether its output holds NaN.
    pub output_has_nan: bool,
    /// Whether one of its inputs is non-finite.
    pub input_has_nan: bool,
    /// Worst kind in its output: `nan`, `+inf`, `-inf`, `finite`.
    pub output_class: &'static str,
    /// Inputs: shape, Max, Min, dtype.
    pub input_info: Vec<InputInfo>,
    /// The op, its module, ... up to the root.
    pub construct_chain: Vec<String>,
    /// Stack lines as recorded.
    pub stack_info: Vec<String>,
}

/// The trace of one rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// Global rank.
    pub rank: Rank,
    /// The rank's folder or file.
    pub rank_path: String,
    /// Number of ops read.
    pub ops: u32,
    /// Candidates, the likeliest first: harmful before healed, then file order.
    pub anomalies: Vec<Anomaly>,
    /// Candidates beyond those listed.
    pub anomalies_omitted: u32,
    /// What is wrong with the file: place and message.
    pub problem: Option<(Option<Position>, String)>,
    /// Whether anything can be judged.
    pub has_statistics: bool,
}

/// Traces one rank.
///
/// # Errors
/// [`crate::ErrorKind::NotFound`] or [`crate::ErrorKind::Io`] for its dump file.
pub fn trace(source: &RankSource, options: &Options) -> Result<Trace> {
    Summary::read(source, options, &Progress::default()).map(of)
}

/// The trace of a written summary.
///
/// # Errors
/// As [`Summary::decode`].
pub fn trace_written(summary: &[u8], path: &Path, options: &Options) -> Result<Trace> {
    Summary::decode(summary, path, &options.rules).map(of)
}

/// The trace of a summarised rank.
fn of(summary: Summary) -> Trace {
    let folder = Path::new(&summary.path).parent().unwrap_or(Path::new(&summary.path)).display().to_string();
    let problem = summary.unreadable.map(|u| {
        let position = u.line.zip(u.column).map(|(line, column)| Position { line, column });
        (position, u.message)
    });
    let mut trace = Trace {
        rank: summary.rank,
        rank_path: folder,
        ops: 0,
        anomalies: Vec::new(),
        anomalies_omitted: 0,
        problem,
        has_statistics: false,
    };
    let Some(timeline) = summary.timeline else {
        return trace;
    };
    let mut marks: Vec<_> = timeline.marks.iter().collect();
    marks.sort_by_key(|m| (!m.harm && m.cause != Cause::Received, m.at.op));
    marks.truncate(LISTED);
    let asked: Vec<Asked> =
        marks.iter().map(|m| Asked { op: m.at.op, name: &m.at.name, record: m.record, forward: false }).collect();
    let found = summary.records.details(&asked);
    let anomaly = |(mark, detail): (&&Mark, Detail)| {
        let mut anomaly = Anomaly {
            op_name: mark.at.name.clone(),
            exec_order: mark.at.op,
            cause: mark.cause,
            harm: mark.harm || mark.cause == Cause::Received,
            output: "null".to_owned(),
            output_has_nan: false,
            output_class: mark.kinds.name(),
            input_has_nan: false,
            input_info: Vec::new(),
            construct_chain: detail.chain,
            stack_info: detail.stack,
        };
        read_values(&mut anomaly, &detail.record);
        anomaly
    };
    trace.anomalies = marks.iter().zip(found).map(anomaly).collect();
    trace.ops = timeline.ops;
    trace.anomalies_omitted =
        timeline.marks_omitted + timeline.marks.len().saturating_sub(trace.anomalies.len()) as u32;
    trace.has_statistics = timeline.has_statistics;
    trace
}

fn read_values(anomaly: &mut Anomaly, body: &[u8]) {
    let direction = OpName::parse(&anomaly.op_name).direction;
    let recorded = matches!(direction, Direction::ParametersGrad | Direction::Debug);
    let Ok(op) = parse_op(body, Part::All { recorded }) else {
        return;
    };
    let mut out = crate::op::Kinds::NONE;
    for argument in &op.arguments {
        let Value::Tensor(t) = &argument.value else {
            continue;
        };
        if argument.slot.field.is_input() {
            anomaly.input_has_nan |= !t.kinds().is_finite();
            let text = |s: Option<f64>| s.map(|m| if m.is_nan() { "nan".to_owned() } else { m.to_string() });
            anomaly.input_info.push((
                t.shape.to_vec(),
                text(t.max),
                text(t.min),
                t.dtype.strip_prefix("torch.").unwrap_or(t.dtype).to_owned(),
            ));
        } else {
            out = out.union(t.kinds());
            anomaly.output_has_nan |= t.kinds().contains(crate::op::Kinds::NAN);
        }
    }
    anomaly.output_class = out.name();
    let output = if recorded { body } else { crate::parse::field_text(body, Field::Output.key()).unwrap_or(b"null") };
    anomaly.output = String::from_utf8_lossy(output).into_owned();
}
