//! Map and reduce for engines that move summaries themselves: `summarize`, `absent`, `reduce`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ovf_core::{Options, RankBytes, RankSource, StepFacts, StepName, Summary, Wanted};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::to_python;
use crate::{Answer, Rank, as_json, interruptible, options, progress, wanted};

/// A file on disk or its content.
enum Content {
    File(PathBuf),
    Memory(PyBackedBytes),
}

impl Content {
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(path) = value.extract::<PathBuf>() {
            return Ok(Self::File(path));
        }
        if let Ok(bytes) = value.extract::<PyBackedBytes>() {
            return Ok(Self::Memory(bytes));
        }
        // A memoryview or another buffer: the stable ABI has no buffer protocol before 3.11, so Python copies it.
        Ok(Self::Memory(value.py().get_type::<PyBytes>().call1((value,))?.extract()?))
    }

    fn memory(&self) -> Option<&[u8]> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::File(_) => None,
        }
    }
}

/// Summarises one rank: a dump on disk or in memory to the bytes of its summary.
#[pyfunction]
#[pyo3(signature = (dump, *, rank, label, path=None, construct=None, stack=None, step_number=None, step_label="", notes=None, rules=None, map=true, progress=None, wants=None))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
pub(crate) fn summarize(
    py: Python<'_>,
    dump: &Bound<'_, PyAny>,
    rank: Rank,
    label: &str,
    path: Option<String>,
    construct: Option<&Bound<'_, PyAny>>,
    stack: Option<&Bound<'_, PyAny>>,
    step_number: Option<u64>,
    step_label: &str,
    notes: Option<Vec<String>>,
    rules: Option<PathBuf>,
    map: bool,
    progress: Option<Py<progress::Progress>>,
    wants: Option<Vec<String>>,
) -> PyResult<Vec<u8>> {
    let wanted = wants.map_or(Ok(Wanted::ALL), |names| wanted(&names, false))?;
    let options = Options { wanted, ..options(None, rules, None, map)? };
    let step = StepName { number: step_number, label: step_label.to_owned(), notes: notes.unwrap_or_default() };
    let counters = progress.as_ref().map_or_else(Default::default, |p| p.get().counters());
    let dump = Content::of(dump)?;
    let construct = construct.map(Content::of).transpose()?;
    let stack = stack.map(Content::of).transpose()?;
    let stop = || counters.cancel.store(true, Ordering::Relaxed);
    let made = match &dump {
        Content::File(file) => {
            let beside = |given: &Option<Content>, name: &str| match given {
                Some(Content::File(path)) => path.clone(),
                _ => file.parent().unwrap_or(Path::new("")).join(name),
            };
            let source = RankSource {
                rank,
                label: label.to_owned(),
                dump: file.clone(),
                construct: beside(&construct, "construct.json"),
                stack: beside(&stack, "stack.json"),
            };
            interruptible(py, stop, || ovf_core::summarise_files(&source, path.as_deref(), &step, &options, &counters))?
        }
        Content::Memory(bytes) => {
            let path = path.unwrap_or_else(|| label.to_owned());
            let bytes = RankBytes {
                rank,
                label,
                path: &path,
                dump: bytes,
                construct: construct.as_ref().and_then(Content::memory),
                stack: stack.as_ref().and_then(Content::memory),
            };
            let cancel: &AtomicBool = &counters.cancel;
            interruptible(py, stop, || ovf_core::summarise_bytes(&bytes, &step, &options, cancel))?
        }
    };
    made.map_err(to_python)
}

/// The summary of a rank whose dump cannot be had: it is reported as unreadable.
#[pyfunction]
#[pyo3(signature = (*, rank, label, path, message, help, step_number=None, step_label="", notes=None, rules=None))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
pub(crate) fn absent(
    rank: Rank,
    label: &str,
    path: &str,
    message: &str,
    help: &str,
    step_number: Option<u64>,
    step_label: &str,
    notes: Option<Vec<String>>,
    rules: Option<PathBuf>,
) -> PyResult<Vec<u8>> {
    let options = options(None, rules, None, true)?;
    let step = StepName { number: step_number, label: step_label.to_owned(), notes: notes.unwrap_or_default() };
    let summary = Summary::absent(rank, label, path, message, help);
    summary.encode_absent(&step, &options.rules).map_err(to_python)
}

/// A summary with module chains and stacks from the content of construct.json and stack.json.
#[pyfunction]
#[pyo3(signature = (summary, construct=None, stack=None, *, remarks=None, chart=false, rules=None))]
pub(crate) fn with_context(
    py: Python<'_>,
    summary: PyBackedBytes,
    construct: Option<PyBackedBytes>,
    stack: Option<PyBackedBytes>,
    remarks: Option<Vec<String>>,
    chart: bool,
    rules: Option<PathBuf>,
) -> PyResult<Vec<u8>> {
    let rules = if chart { Some(options(None, rules, None, true)?.rules) } else { None };
    let made = py.detach(|| {
        let (construct, stack) = (construct.as_deref(), stack.as_deref());
        ovf_core::with_context(&summary, construct, stack, remarks.unwrap_or_default(), rules.as_ref())
    });
    made.map_err(to_python)
}

/// What a summary is about, as JSON: rank, label, step, ops, size and state of the dump, what was wrong with it.
#[pyfunction]
#[pyo3(signature = (summary, *, path="summary", rules=None))]
pub(crate) fn about(summary: PyBackedBytes, path: &str, rules: Option<PathBuf>) -> PyResult<String> {
    let options = options(None, rules, None, true)?;
    let summary = Summary::decode(&summary, Path::new(path), &options.rules).map_err(to_python)?;
    let timeline = summary.timeline.as_ref();
    let step = summary.step.unwrap_or_default();
    let told = serde_json::json!({
        "rank": summary.rank,
        "label": summary.label,
        "step": step.number,
        "step_label": step.label,
        "ops": timeline.map_or(0, |t| t.ops),
        "bytes": timeline.map_or(0, |t| t.bytes),
        "completeness": timeline.map_or(ovf_core::Completeness::Empty, |t| t.completeness),
        "unreadable": summary.unreadable,
    });
    Ok(told.to_string())
}

/// Reduces the summaries of one step to its report: JSON, the records of its findings, and with `chart` every op of
/// every rank.
#[pyfunction]
#[pyo3(signature = (summaries, *, step_number=None, step_label="", notes=None, chosen=false, ranks=None, rules=None, threads=None, chart=false, wants=Vec::new()))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
pub(crate) fn reduce(
    py: Python<'_>,
    summaries: Vec<PyBackedBytes>,
    step_number: Option<u64>,
    step_label: &str,
    notes: Option<Vec<String>>,
    chosen: bool,
    ranks: Option<Vec<Rank>>,
    rules: Option<PathBuf>,
    threads: Option<usize>,
    chart: bool,
    wants: Vec<String>,
) -> PyResult<Answer> {
    let options = Options { wanted: wanted(&wants, chart)?, ..options(ranks, rules, threads, true)? };
    let facts = StepFacts {
        number: step_number,
        label: step_label.to_owned(),
        notes: notes.unwrap_or_default(),
        unreadable: Vec::new(),
        chosen,
    };
    let report = interruptible(
        py,
        || (),
        || {
            let decode = |(i, bytes): (usize, &PyBackedBytes)| {
                let name = format!("summary {i}");
                Summary::decode(bytes, Path::new(&name), &options.rules)
            };
            let summaries: ovf_core::Result<Vec<Summary>> = summaries.iter().enumerate().map(decode).collect();
            ovf_core::reduce(summaries?, facts, &options)
        },
    )?;
    as_json(&report.map_err(to_python)?)
}
