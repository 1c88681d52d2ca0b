//! Tables for Python: Arrow's `PyCapsule` interface, and text.
//!
//! A [`Table`] is a recipe: each `__arrow_c_stream__` or `text` starts over, so that a table may be read several
//! times and by several readers. Rows are made while they are read.
//!
//! The capsules follow the Arrow `PyCapsule` interface: the pointer's release callback frees what nobody took, and is
//! null after a consumer has moved the struct out (which `FFI_ArrowArrayStream` and `FFI_ArrowSchema` check when they
//! are dropped).

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
    RecordBatchIterator, StringArray, UInt32Array, UInt64Array,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use ovf_core::{
    Batch, COMMUNICATIONS, Column, ColumnField, ColumnKind, FINDINGS, OPS, OpTable, Options, Step, TextForm, Values,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};

use crate::error::{OvfError, to_python};
use crate::{Paths, steps};

/// Where the rows come from.
enum Source {
    /// Made while they are read.
    Ops { path: Paths, indices: Vec<usize>, options: Box<Options> },
    /// There already.
    Ready(Batch),
}

/// A table that Arrow readers take as it is.
#[pyclass(frozen, module = "ovf._core")]
pub(crate) struct Table {
    schema: &'static [ColumnField],
    source: Source,
    unreadable: Arc<Mutex<Vec<String>>>,
}

impl Table {
    pub(crate) fn of_ops(path: Paths, indices: Vec<usize>, options: Options) -> Self {
        Self {
            schema: &OPS,
            source: Source::Ops { path, indices, options: Box::new(options) },
            unreadable: Arc::default(),
        }
    }

    pub(crate) fn of_report(report: &str, name: &str) -> PyResult<Self> {
        let report: serde_json::Value = serde_json::from_str(report).map_err(|e| OvfError::new_err(e.to_string()))?;
        let (schema, batch): (&'static [ColumnField], Batch) = match name {
            "findings" => (&FINDINGS, ovf_core::findings(&report)),
            "communications" => (&COMMUNICATIONS, ovf_core::communications(&report)),
            _ => {
                return Err(PyValueError::new_err(format!("no table {name:?}; there are findings and communications")));
            }
        };
        Ok(Self { schema, source: Source::Ready(batch), unreadable: Arc::default() })
    }

    fn batches(&self) -> PyResult<Batches> {
        Ok(match &self.source {
            Source::Ready(batch) => Batches::Ready(Some(batch.clone())),
            Source::Ops { path, indices, options } => {
                self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clear();
                let all = steps(path)?;
                let mut steps: Vec<Step> = Vec::new();
                for &index in indices.iter().rev() {
                    steps.push(all.get(index).ok_or_else(|| PyValueError::new_err("no such step"))?.clone());
                }
                let (options, unreadable) = (options.clone(), Arc::clone(&self.unreadable));
                let mut ops = OpSteps { left: steps, options, current: None, unreadable };
                ops.advance().map_err(to_python)?; // what was asked for wrongly is said now
                Batches::Ops(ops)
            }
        })
    }
}

#[pymethods]
impl Table {
    /// The columns: name, Arrow type as text, nullable.
    #[getter]
    fn columns(&self) -> Vec<(&'static str, String, bool)> {
        self.schema.iter().map(|f| (f.name, data_type(f.kind).to_string(), f.nullable)).collect()
    }

    /// Dumps that the last reading could not read, or not to their end, a line each.
    #[getter]
    fn unreadable(&self) -> Vec<String> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Arrow `PyCapsule` interface: the schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(schema(self.schema).as_ref()).map_err(|e| arrow_error(&e))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// Arrow `PyCapsule` interface: the rows. The requested schema is ignored, as the interface allows.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let schema = schema(self.schema);
        let to_record = {
            let schema = Arc::clone(&schema);
            move |batch: Result<Batch, ovf_core::Error>| {
                record(&schema, batch.map_err(|e| ArrowError::ExternalError(Box::new(e)))?)
            }
        };
        let reader = RecordBatchIterator::new(self.batches()?.map(to_record), schema);
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }

    /// The table as text in pieces: `csv` or `jsonl`.
    fn text(&self, form: &str) -> PyResult<TableText> {
        let form = match form {
            "csv" => TextForm::Csv,
            "jsonl" => TextForm::Jsonl,
            _ => return Err(PyValueError::new_err(format!("no text form {form:?}; there are csv and jsonl"))),
        };
        let head = form.head(self.schema);
        Ok(TableText { form, schema: self.schema, state: Mutex::new((Some(head), self.batches()?)) })
    }
}

/// Pieces of a table's text, as bytes.
#[pyclass(frozen, module = "ovf._core")]
pub(crate) struct TableText {
    form: TextForm,
    schema: &'static [ColumnField],
    state: Mutex<(Option<String>, Batches)>,
}

#[pymethods]
impl TableText {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        py.check_signals()?;
        let piece = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(head) = state.0.take() {
                return Ok(Some(head));
            }
            state.1.next().transpose().map(|batch| batch.map(|batch| self.form.rows(self.schema, &batch)))
        });
        let piece = piece.map_err(to_python)?;
        Ok(piece.map(|text| PyBytes::new(py, text.as_bytes())))
    }
}

/// The rows of one reading.
enum Batches {
    Ready(Option<Batch>),
    Ops(OpSteps),
}

/// The ops of several steps, one after the other.
struct OpSteps {
    /// Steps to come, the next one last.
    left: Vec<Step>,
    options: Box<Options>,
    current: Option<OpTable>,
    unreadable: Arc<Mutex<Vec<String>>>,
}

impl OpSteps {
    /// Opens the next step, if there is one.
    fn advance(&mut self) -> Result<(), ovf_core::Error> {
        if let Some(done) = self.current.take() {
            let line = |u: &ovf_core::Unreadable| match (u.line, u.column) {
                (Some(line), Some(column)) => format!("{}:{line}:{column}: {}", u.path, u.message),
                _ => format!("{}: {}", u.path, u.message),
            };
            let mut lines = self.unreadable.lock().unwrap_or_else(PoisonError::into_inner);
            lines.extend(done.unreadable().iter().map(line));
        }
        if let Some(step) = self.left.pop() {
            self.current = Some(OpTable::open(&step, &self.options)?);
        }
        Ok(())
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, ovf_core::Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Ready(batch) => batch.take().map(Ok),
            Self::Ops(ops) => loop {
                if let Some(batch) = ops.current.as_mut()?.next() {
                    return Some(Ok(batch));
                }
                if let Err(error) = ops.advance() {
                    return Some(Err(error));
                }
            },
        }
    }
}

fn data_type(kind: ColumnKind) -> DataType {
    match kind {
        ColumnKind::Bool => DataType::Boolean,
        ColumnKind::Whole => DataType::UInt32,
        ColumnKind::Large => DataType::UInt64,
        ColumnKind::Real => DataType::Float64,
        ColumnKind::Text => DataType::Utf8,
        ColumnKind::Word => DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        ColumnKind::List => DataType::List(Arc::new(Field::new("item", DataType::Int64, false))),
    }
}

fn schema(fields: &[ColumnField]) -> SchemaRef {
    let field = |f: &ColumnField| Field::new(f.name, data_type(f.kind), f.nullable);
    Arc::new(Schema::new(fields.iter().map(field).collect::<Vec<_>>()))
}

fn record(schema: &SchemaRef, batch: Batch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns.into_iter().map(array).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns)
}

fn array(column: Column) -> Result<ArrayRef, ArrowError> {
    let nulls = column.valid.contains(&false).then(|| NullBuffer::from(column.valid));
    Ok(match column.values {
        Values::Bool(all) => Arc::new(BooleanArray::new(all.into(), nulls)),
        Values::Whole(all) => Arc::new(UInt32Array::try_new(all.into(), nulls)?),
        Values::Large(all) => Arc::new(UInt64Array::try_new(all.into(), nulls)?),
        Values::Real(all) => Arc::new(Float64Array::try_new(all.into(), nulls)?),
        Values::Text(bytes, ends) => {
            Arc::new(StringArray::try_new(offsets(ends), Buffer::from_vec(bytes.into_bytes()), nulls)?)
        }
        Values::Word(vocabulary, codes) => {
            let keys = Int32Array::try_new(codes.into(), nulls)?;
            let words = Arc::new(StringArray::from_iter_values(vocabulary));
            Arc::new(DictionaryArray::<Int32Type>::try_new(keys, words)?)
        }
        Values::List(elements, ends) => {
            let item = Arc::new(Field::new("item", DataType::Int64, false));
            Arc::new(ListArray::try_new(item, offsets(ends), Arc::new(Int64Array::from(elements)), nulls)?)
        }
    })
}

/// Where each row begins, from where each ends.
fn offsets(mut ends: Vec<i32>) -> OffsetBuffer<i32> {
    ends.insert(0, 0);
    OffsetBuffer::new(ScalarBuffer::from(ends))
}

fn arrow_error(error: &ArrowError) -> PyErr {
    OvfError::new_err(error.to_string())
}
