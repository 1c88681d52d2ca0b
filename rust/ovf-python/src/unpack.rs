//! `Unpacker`: a Python file object of packed bytes, read unpacked.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use ovf_core::{Foreign, Unpacker as Stream};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// Bytes asked of the Python object at once.
const CHUNK: usize = 1 << 20;

/// What the Python object raised, so that it comes out as itself.
type Raised = Arc<Mutex<Option<PyErr>>>;

/// A Python object with `read(n)` as a reader.
struct Source {
    object: Py<PyAny>,
    left: Option<PyBackedBytes>,
    used: usize,
    raised: Raised,
}

impl Source {
    fn fetch(&self) -> PyResult<PyBackedBytes> {
        Python::attach(|py| Ok(self.object.call_method1(py, "read", (CHUNK,))?.extract(py)?))
    }
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left.as_ref().is_none_or(|left| self.used == left.len()) {
            self.used = 0;
            match self.fetch() {
                Ok(bytes) => self.left = Some(bytes),
                Err(error) => {
                    let text = error.to_string();
                    *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return Err(io::Error::other(Foreign(text)));
                }
            }
        }
        let left = self.left.as_deref().unwrap_or_default();
        let n = (left.len() - self.used).min(into.len());
        into[..n].copy_from_slice(&left[self.used..self.used + n]);
        self.used += n;
        Ok(n)
    }
}

/// A file object of gzip, zstd or plain bytes, told by its first bytes; `read` gives what was packed.
#[pyclass(frozen, module = "ovf._core")]
pub(crate) struct Unpacker {
    state: Mutex<State>,
    raised: Raised,
}

struct State {
    stream: Stream<Source>,
    /// What ended the stream behind bytes that had come out of it: told by the next `read`.
    failed: Option<io::Error>,
}

impl State {
    fn read(&mut self, size: usize) -> io::Result<Vec<u8>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut out = Vec::new();
        match self.stream.by_ref().take(size as u64).read_to_end(&mut out) {
            Err(error) if out.is_empty() => return Err(error),
            Err(error) => self.failed = Some(error),
            Ok(_) => {}
        }
        Ok(out)
    }
}

impl Unpacker {
    /// What the source raised, or else what is wrong with what it holds.
    fn failed(raised: &Raised, error: &io::Error) -> PyErr {
        let own = raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        own.unwrap_or_else(|| PyOSError::new_err(error.to_string()))
    }
}

#[pymethods]
impl Unpacker {
    #[new]
    fn new(py: Python<'_>, file: Py<PyAny>) -> PyResult<Self> {
        let raised = Raised::default();
        let source = Source { object: file, left: None, used: 0, raised: Arc::clone(&raised) };
        match py.detach(|| Stream::new(source)) {
            Ok(stream) => Ok(Self { state: Mutex::new(State { stream, failed: None }), raised }),
            Err(error) => Err(Self::failed(&raised, &error)),
        }
    }

    /// Up to `size` bytes; fewer only at the end, or where the stream is broken behind them.
    fn read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        // Locked without the interpreter, which the source needs while the lock is held.
        let read = py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).read(size));
        read.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| Self::failed(&self.raised, &error))
    }

    /// Bytes taken from the file so far.
    #[getter]
    fn packed(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.state.lock().unwrap_or_else(PoisonError::into_inner).stream.packed())
    }
}
