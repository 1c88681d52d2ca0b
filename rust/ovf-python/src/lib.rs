//! The extension module `ovf._core`: extract, detach, wrap. All work is in `ovf-core`; reports cross as JSON text.

// Python's arguments arrive owned.
#![allow(clippy::needless_pass_by_value)]

mod error;
mod progress;
mod summary;
mod table;
mod unpack;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ovf_core::{Options, Rank, Rules, Step, Wanted};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// The compiled half of ovf.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::error::{DumpFormatError, OvfError, RulesError};
    #[pymodule_export]
    use super::progress::Progress;
    #[pymodule_export]
    use super::summary::{about, absent, reduce, summarize, with_context};
    #[pymodule_export]
    use super::table::{Table, TableText};
    #[pymodule_export]
    use super::unpack::Unpacker;
    #[pymodule_export]
    use super::{
        Analysis, analyze, discover, effective_rules, layout, op_table, overview, report_table, sources, trace,
        trace_summary,
    };

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DETAILED", ovf_core::DETAILED)?;
        module.add("LARGEST", ovf_core::LARGEST)?;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))
    }
}

fn options(ranks: Option<Vec<Rank>>, rules: Option<PathBuf>, threads: Option<usize>, map: bool) -> PyResult<Options> {
    let rules = match rules {
        Some(path) => Rules::with_file(&path).map_err(error::to_python)?,
        None => Rules::built_in(),
    };
    Ok(Options { rules, ranks, threads, map, wanted: Wanted::default() })
}

/// One path, or several that hold one dump together.
#[derive(Debug, FromPyObject)]
pub(crate) enum Paths {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

pub(crate) fn steps(paths: &Paths) -> PyResult<Vec<Step>> {
    match paths {
        Paths::One(path) => ovf_core::discover(path),
        Paths::Several(paths) => ovf_core::discover_all(paths),
    }
    .map_err(error::to_python)
}

/// Runs `work` on another thread; this one keeps listening for Ctrl-C.
fn interruptible<T: Send>(py: Python<'_>, cancel: impl Fn() + Sync, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    std::thread::scope(|scope| {
        let waiting = std::thread::current();
        let handle = scope.spawn(move || {
            let value = work();
            waiting.unpark();
            value
        });
        while !handle.is_finished() {
            py.detach(|| std::thread::park_timeout(Duration::from_millis(2)));
            if let Err(stop) = py.check_signals() {
                cancel();
                let _ = py.detach(|| handle.join());
                return Err(stop);
            }
        }
        match handle.join() {
            Ok(value) => Ok(value),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Number, label and ranks of a step. No path: Python's `pathlib` would be imported to hold it.
type StepRow = (Option<u64>, String, Vec<Rank>);

/// Steps below `path`: number, label, ranks.
#[pyfunction]
fn discover(path: Paths) -> PyResult<Vec<StepRow>> {
    Ok(steps(&path)?.into_iter().map(|s| (s.number, s.label, s.ranks.iter().map(|r| r.rank).collect())).collect())
}

/// Number, label, whether it is one rank's, remarks, and the ranks of a step: rank, label, name of the dump.
type NamedStep = (Option<u64>, String, bool, Vec<String>, Vec<(Rank, String, String)>);

/// Steps in a list of names below `root`.
#[pyfunction]
fn layout(root: PathBuf, names: Vec<String>) -> PyResult<Vec<NamedStep>> {
    let steps = ovf_core::layout(&root, &names).map_err(error::to_python)?;
    let named = |source: &ovf_core::RankSource| {
        let below = source.dump.strip_prefix(&root).unwrap_or(&source.dump);
        (source.rank, source.label.clone(), below.to_string_lossy().into_owned())
    };
    Ok(steps.into_iter().map(|s| (s.number, s.label, s.single, s.notes, s.ranks.iter().map(named).collect())).collect())
}

/// Rank, folder name, dump file or written summary, `construct.json` and `stack.json`.
type SourceRow = (Rank, String, PathBuf, PathBuf, PathBuf);

/// Number, label, whether the path names one rank of it, remarks about its folder, and its ranks with their files.
type SourcesRow = (Option<u64>, String, bool, Vec<String>, Vec<SourceRow>);

/// Steps below `path` with the files of their ranks.
#[pyfunction]
fn sources(path: Paths) -> PyResult<Vec<SourcesRow>> {
    let row = |r: ovf_core::RankSource| (r.rank, r.label, r.dump, r.construct, r.stack);
    let rows = steps(&path)?.into_iter().map(|s| {
        let ranks = s.ranks.into_iter().map(row).collect();
        (s.number, s.label, s.single, s.notes, ranks)
    });
    Ok(rows.collect())
}

/// What else is wanted than the answer, by name.
fn wanted(names: &[String], chart: bool) -> PyResult<Wanted> {
    let mut wanted = Wanted { chart, ..Wanted::default() };
    for name in names {
        *match name.as_str() {
            "near" => &mut wanted.near,
            "levels" => &mut wanted.levels,
            "trend" => &mut wanted.trend,
            "strip" => &mut wanted.strip,
            "chart" => &mut wanted.chart,
            _ => return Err(pyo3::exceptions::PyValueError::new_err(format!("nothing called {name:?} can be wanted"))),
        } = true;
    }
    Ok(wanted)
}

/// Analyses the step at `index` of `discover(path)`.
#[pyfunction]
#[pyo3(signature = (path, index, *, ranks=None, rules=None, threads=None, map=true, chart=false, progress=None, wants=Vec::new()))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
fn analyze(
    py: Python<'_>,
    path: Paths,
    index: usize,
    ranks: Option<Vec<Rank>>,
    rules: Option<PathBuf>,
    threads: Option<usize>,
    map: bool,
    chart: bool,
    progress: Option<Py<progress::Progress>>,
    wants: Vec<String>,
) -> PyResult<Analysis> {
    let options = Options { wanted: wanted(&wants, chart)?, ..options(ranks, rules, threads, map)? };
    let all = steps(&path)?;
    let step = all.get(index).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such step"))?;
    let counters = progress.as_ref().map_or_else(Default::default, |p| p.get().counters());
    let stop = || counters.cancel.store(true, Ordering::Relaxed);
    let report = interruptible(py, stop, || ovf_core::analyze(step, &options, &counters))?;
    Ok(Analysis(report.map_err(error::to_python)?))
}

/// A report, written out when it is asked for: many a caller wants the verdict alone.
#[pyclass(frozen, module = "ovf._core")]
struct Analysis(ovf_core::Report);

#[pymethods]
impl Analysis {
    /// The report's `verdict`.
    #[getter]
    fn verdict(&self) -> &'static str {
        self.0.verdict.name()
    }

    /// The report's `incomplete`.
    #[getter]
    fn incomplete(&self) -> bool {
        self.0.incomplete
    }

    /// The report as JSON, the records of its findings, and every op of every rank as JSON where it was asked for.
    fn answer(&self) -> PyResult<Answer> {
        as_json(&self.0)
    }
}

/// The report as JSON, the records of its findings, and every op of every rank as JSON where it was asked for.
type Answer = (String, Vec<String>, Option<String>);

fn as_json(report: &ovf_core::Report) -> PyResult<Answer> {
    let records = report.findings.iter().map(|f| f.record.clone()).collect();
    let json_error = |e: serde_json::Error| OvfError::new_err(e.to_string());
    let atlas = report.atlas.as_ref().map(serde_json::to_string).transpose().map_err(json_error)?;
    let text = serde_json::to_string(report).map_err(json_error)?;
    Ok((text, records, atlas))
}

/// Traces one rank of the step at `index`: the trace as JSON, and the outputs of its candidates as JSON text.
#[pyfunction]
#[pyo3(signature = (path, index, rank, *, rules=None))]
fn trace(
    py: Python<'_>,
    path: Paths,
    index: usize,
    rank: Rank,
    rules: Option<PathBuf>,
) -> PyResult<(String, Vec<String>)> {
    let options = options(None, rules, None, true)?;
    let all = steps(&path)?;
    let step = all.get(index).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such step"))?;
    let source =
        step.ranks.iter().find(|r| r.rank == rank).ok_or_else(|| {
            pyo3::exceptions::PyKeyError::new_err(format!("no rank {rank} in {}", step.path.display()))
        })?;
    let traced = interruptible(py, || (), || ovf_core::trace(source, &options))?;
    trace_as_json(&traced.map_err(error::to_python)?)
}

/// Traces a rank from its written summary: as `trace`.
#[pyfunction]
#[pyo3(signature = (summary, *, rules=None))]
fn trace_summary(summary: PyBackedBytes, rules: Option<PathBuf>) -> PyResult<(String, Vec<String>)> {
    let options = options(None, rules, None, true)?;
    trace_as_json(&ovf_core::trace_written(&summary, "summary".as_ref(), &options).map_err(error::to_python)?)
}

/// The trace as JSON, and the outputs of its candidates as JSON text.
fn trace_as_json(traced: &ovf_core::Trace) -> PyResult<(String, Vec<String>)> {
    let outputs = traced.anomalies.iter().map(|a| a.output.clone()).collect();
    let text = serde_json::to_string(traced).map_err(|e| OvfError::new_err(e.to_string()))?;
    Ok((text, outputs))
}

/// Summarises the steps at `indices` of `discover(path)`, as JSON.
#[pyfunction]
#[pyo3(signature = (path, indices, *, ranks=None, rules=None, threads=None, map=true, progress=None))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
fn overview(
    py: Python<'_>,
    path: Paths,
    indices: Vec<usize>,
    ranks: Option<Vec<Rank>>,
    rules: Option<PathBuf>,
    threads: Option<usize>,
    map: bool,
    progress: Option<Py<progress::Progress>>,
) -> PyResult<String> {
    let options = options(ranks, rules, threads, map)?;
    let all = steps(&path)?;
    let chosen: Vec<Step> = indices.iter().filter_map(|&i| all.get(i).cloned()).collect();
    let counters = progress.as_ref().map_or_else(Default::default, |p| p.get().counters());
    let stop = || counters.cancel.store(true, Ordering::Relaxed);
    let summaries = interruptible(py, stop, || ovf_core::overview(&chosen, &options, &counters))?;
    serde_json::to_string(&summaries.map_err(error::to_python)?).map_err(|e| OvfError::new_err(e.to_string()))
}

/// The table of all ops of the steps at `indices`.
#[pyfunction]
#[pyo3(signature = (path, indices, *, ranks=None, rules=None, threads=None, map=true))]
fn op_table(
    path: Paths,
    indices: Vec<usize>,
    ranks: Option<Vec<Rank>>,
    rules: Option<PathBuf>,
    threads: Option<usize>,
    map: bool,
) -> PyResult<table::Table> {
    Ok(table::Table::of_ops(path, indices, options(ranks, rules, threads, map)?))
}

/// The table `findings` or `communications` of a report.
#[pyfunction]
fn report_table(report: &str, name: &str) -> PyResult<table::Table> {
    table::Table::of_report(report, name)
}

/// The effective operator table as JSON.
#[pyfunction]
#[pyo3(signature = (rules=None))]
fn effective_rules(rules: Option<PathBuf>) -> PyResult<String> {
    Ok(options(None, rules, None, true)?.rules.to_json())
}

use error::OvfError;
