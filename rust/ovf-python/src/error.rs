//! Errors of the core as Python exceptions: one tree, one conversion.

use ovf_core::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;

create_exception!(ovf, OvfError, PyException, "Base of ovf's own errors.");
create_exception!(ovf, DumpFormatError, OvfError, "The path holds no msProbe dump, or not what was asked for.");
create_exception!(ovf, RulesError, OvfError, "The rules file is not valid.");

/// The exception for an error: builtins where Python has one, with `path`, `line`, `column` and `help` attached.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
pub(crate) fn to_python(error: Error) -> PyErr {
    let text = error.to_string();
    let made = match error.kind {
        ErrorKind::NotFound => PyFileNotFoundError::new_err(text),
        ErrorKind::Io(_) => PyOSError::new_err(text),
        ErrorKind::NotADump | ErrorKind::Format => DumpFormatError::new_err(text),
        ErrorKind::Rules => RulesError::new_err(text),
        ErrorKind::Selection => PyValueError::new_err(text),
        _ => OvfError::new_err(text),
    };
    Python::attach(|py| {
        let value = made.value(py);
        // Attributes are a service; an exception without them is still the right exception.
        let _ = value.setattr("path", error.path.display().to_string());
        let _ = value.setattr("line", error.position.map(|p| p.line));
        let _ = value.setattr("column", error.position.map(|p| p.column));
        let _ = value.setattr("help", error.help);
    });
    made
}
