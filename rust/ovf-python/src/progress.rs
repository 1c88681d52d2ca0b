//! Progress of an analysis, readable from any Python thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;

/// Counters of a running analysis.
#[pyclass(frozen, module = "ovf._core")]
#[derive(Default)]
pub(crate) struct Progress {
    counters: Arc<ovf_core::Progress>,
}

impl Progress {
    pub(crate) fn counters(&self) -> Arc<ovf_core::Progress> {
        Arc::clone(&self.counters)
    }
}

#[pymethods]
impl Progress {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Bytes read so far.
    #[getter]
    fn bytes(&self) -> u64 {
        self.counters.bytes.load(Ordering::Relaxed)
    }

    /// Bytes in all.
    #[getter]
    fn total(&self) -> u64 {
        self.counters.total.load(Ordering::Relaxed)
    }

    /// Ranks read so far.
    #[getter]
    fn ranks(&self) -> u64 {
        self.counters.ranks.load(Ordering::Relaxed)
    }

    /// Stops the analysis early.
    fn cancel(&self) {
        self.counters.cancel.store(true, Ordering::Relaxed);
    }
}
