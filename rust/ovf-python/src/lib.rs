//! The extension module `ovf._core`: extract, detach, wrap. All work is in `ovf-core`; reports cross as JSON text.

// Python's arguments arrive owned.
#![allow(clippy::needless_pass_by_value)]

mod error;
mod progress;
mod summary;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ovf_core::{Options, Rank, Rules, Step};
use pyo3::prelude::*;

/// The compiled half of ovf.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::error::{DumpFormatError, OvfError, RulesError};
    #[pymodule_export]
    use super::progress::Progress;
    #[pymodule_export]
    use super::summary::{about, absent, reduce, summarize};
    #[pymodule_export]
    use super::{analyze, discover, effective_rules, sources, trace};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))
    }
}

fn options(ranks: Option<Vec<Rank>>, rules: Option<PathBuf>, threads: Option<usize>, map: bool) -> PyResult<Options> {
    let rules = match rules {
        Some(path) => Rules::with_file(&path).map_err(error::to_python)?,
        None => Rules::built_in(),
    };
    Ok(Options { rules, ranks, threads, map })
}

/// One path, or several that hold one dump together.
#[derive(FromPyObject)]
pub(crate) enum Paths {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

fn steps(paths: Paths) -> PyResult<Vec<Step>> {
    match paths {
        Paths::One(path) => ovf_core::discover(&path),
        Paths::Several(paths) => ovf_core::discover_all(&paths),
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

/// Number, label, folder and ranks of a step.
type StepRow = (Option<u64>, String, PathBuf, Vec<Rank>);

/// Steps below `path`: number, label, folder, ranks.
#[pyfunction]
fn discover(path: Paths) -> PyResult<Vec<StepRow>> {
    Ok(steps(path)?
        .into_iter()
        .map(|s| (s.number, s.label, s.path, s.ranks.iter().map(|r| r.rank).collect()))
        .collect())
}

/// Rank, folder name, dump file or written summary, `construct.json` and `stack.json`.
type SourceRow = (Rank, String, PathBuf, PathBuf, PathBuf);

/// Number, label, whether the path names one rank of it, remarks about its folder, and its ranks with their files.
type SourcesRow = (Option<u64>, String, bool, Vec<String>, Vec<SourceRow>);

/// Steps below `path` with the files of their ranks.
#[pyfunction]
fn sources(path: Paths) -> PyResult<Vec<SourcesRow>> {
    let row = |r: ovf_core::RankSource| (r.rank, r.label, r.dump, r.construct, r.stack);
    let rows = steps(path)?.into_iter().map(|s| {
        let ranks = s.ranks.into_iter().map(row).collect();
        (s.number, s.label, s.single, s.notes, ranks)
    });
    Ok(rows.collect())
}

/// Analyses the step at `index` of `discover(path)`: the report as JSON, and the records of its findings.
#[pyfunction]
#[pyo3(signature = (path, index, *, ranks=None, rules=None, threads=None, map=true, progress=None))]
#[allow(clippy::too_many_arguments)] // keyword arguments of one Python function
fn analyze(
    py: Python<'_>,
    path: Paths,
    index: usize,
    ranks: Option<Vec<Rank>>,
    rules: Option<PathBuf>,
    threads: Option<usize>,
    map: bool,
    progress: Option<Py<progress::Progress>>,
) -> PyResult<(String, Vec<String>)> {
    let options = options(ranks, rules, threads, map)?;
    let all = steps(path)?;
    let step = all.get(index).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such step"))?;
    let counters = progress.as_ref().map_or_else(Default::default, |p| p.get().counters());
    let stop = || counters.cancel.store(true, Ordering::Relaxed);
    let report = interruptible(py, stop, || ovf_core::analyze(step, &options, &counters))?;
    as_json(&report.map_err(error::to_python)?)
}

/// The report as JSON, and the records of its findings.
fn as_json(report: &ovf_core::Report) -> PyResult<(String, Vec<String>)> {
    let records = report.findings.iter().map(|f| f.record.clone()).collect();
    let text = serde_json::to_string(report).map_err(|e| OvfError::new_err(e.to_string()))?;
    Ok((text, records))
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
    let all = steps(path)?;
    let step = all.get(index).ok_or_else(|| pyo3::exceptions::PyIndexError::new_err("no such step"))?;
    let source =
        step.ranks.iter().find(|r| r.rank == rank).ok_or_else(|| {
            pyo3::exceptions::PyKeyError::new_err(format!("no rank {rank} in {}", step.path.display()))
        })?;
    let traced = interruptible(py, || (), || ovf_core::trace(source, &options))?.map_err(error::to_python)?;
    let outputs = traced.anomalies.iter().map(|a| a.output.clone()).collect();
    let text = serde_json::to_string(&traced).map_err(|e| OvfError::new_err(e.to_string()))?;
    Ok((text, outputs))
}

/// The effective operator table as JSON.
#[pyfunction]
#[pyo3(signature = (rules=None))]
fn effective_rules(rules: Option<PathBuf>) -> PyResult<String> {
    Ok(options(None, rules, None, true)?.rules.to_json())
}

use error::OvfError;
