//! Tables: named columns of plain data, row batches, and their text forms.
//!
//! In: rows, cell by cell. Out: [`Batch`]es of columns, laid out so that an Arrow array is made of them without a
//! copy of the numbers; CSV and JSON Lines as text. Knows nothing of ops; the tables themselves are
//! [`crate::op_table`] and [`crate::report_table`].
//!
//! CSV: a header line, fields quoted where needed (RFC 4180), null is an empty field and an empty text `""`, lists are
//! JSON text, non-finite numbers `nan`, `inf`, `-inf`. JSON Lines: one strict JSON object a row, every column, null as
//! null, non-finite numbers the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. Both end each line with a line feed.

use rustc_hash::FxHashMap;
use std::fmt::Write;

use crate::number;

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// True or false.
    Bool,
    /// An unsigned 32-bit number.
    Whole,
    /// An unsigned 64-bit number.
    Large,
    /// A 64-bit float.
    Real,
    /// UTF-8 text.
    Text,
    /// UTF-8 text of a small vocabulary, dictionary-encoded.
    Word,
    /// A list of 64-bit integers.
    List,
}

/// One column's name, type and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnField {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: ColumnKind,
    /// Whether it may be null.
    pub nullable: bool,
}

/// Shorthand for schemas: not nullable.
pub(crate) const fn always(name: &'static str, kind: ColumnKind) -> ColumnField {
    ColumnField { name, kind, nullable: false }
}

/// Shorthand for schemas: nullable.
pub(crate) const fn perhaps(name: &'static str, kind: ColumnKind) -> ColumnField {
    ColumnField { name, kind, nullable: true }
}

/// One value on its way into a table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    /// Nothing.
    Null,
    /// For [`ColumnKind::Bool`].
    Bool(bool),
    /// For [`ColumnKind::Whole`] and [`ColumnKind::Large`].
    Whole(u64),
    /// For [`ColumnKind::Real`].
    Real(f64),
    /// For [`ColumnKind::Text`] and [`ColumnKind::Word`].
    Text(&'a str),
    /// For [`ColumnKind::List`].
    List(&'a [i64]),
}

impl From<Option<f64>> for Cell<'_> {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Null, |n| Self::Real(n + 0.0)) // -0.0 is 0.0 however it was spelled
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(value: Option<&'a str>) -> Self {
        value.map_or(Self::Null, Self::Text)
    }
}

/// The values of a column; null slots hold a default.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// True or false.
    Bool(Vec<bool>),
    /// 32-bit numbers.
    Whole(Vec<u32>),
    /// 64-bit numbers.
    Large(Vec<u64>),
    /// Floats.
    Real(Vec<f64>),
    /// Text: all bytes, and where each row ends.
    Text(String, Vec<i32>),
    /// The vocabulary in order of first use, and each row's place in it.
    Word(Vec<String>, Vec<i32>),
    /// Lists: all elements, and where each row ends.
    List(Vec<i64>, Vec<i32>),
}

/// One column of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its values.
    pub values: Values,
    /// Which rows are not null.
    pub valid: Vec<bool>,
}

/// Some rows of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The columns, as the schema has them.
    pub columns: Vec<Column>,
    /// Number of rows.
    pub rows: usize,
    words: Vec<FxHashMap<String, i32>>,
}

impl Batch {
    pub(crate) fn new(schema: &[ColumnField]) -> Self {
        let column = |field: &ColumnField| Column {
            values: match field.kind {
                ColumnKind::Bool => Values::Bool(Vec::new()),
                ColumnKind::Whole => Values::Whole(Vec::new()),
                ColumnKind::Large => Values::Large(Vec::new()),
                ColumnKind::Real => Values::Real(Vec::new()),
                ColumnKind::Text => Values::Text(String::new(), Vec::new()),
                ColumnKind::Word => Values::Word(Vec::new(), Vec::new()),
                ColumnKind::List => Values::List(Vec::new(), Vec::new()),
            },
            valid: Vec::new(),
        };
        Self { columns: schema.iter().map(column).collect(), rows: 0, words: vec![FxHashMap::default(); schema.len()] }
    }

    /// Adds a row; one cell a column.
    pub(crate) fn push(&mut self, row: &[Cell]) {
        debug_assert_eq!(row.len(), self.columns.len(), "one cell a column");
        for ((column, cell), words) in self.columns.iter_mut().zip(row).zip(&mut self.words) {
            column.valid.push(!matches!(cell, Cell::Null));
            match (&mut column.values, *cell) {
                (Values::Bool(all), cell) => all.push(cell == Cell::Bool(true)),
                (Values::Whole(all), cell) => all.push(if let Cell::Whole(n) = cell { n as u32 } else { 0 }),
                (Values::Large(all), cell) => all.push(if let Cell::Whole(n) = cell { n } else { 0 }),
                (Values::Real(all), cell) => all.push(if let Cell::Real(n) = cell { n } else { 0.0 }),
                (Values::Text(bytes, ends), cell) => {
                    if let Cell::Text(text) = cell {
                        bytes.push_str(text);
                    }
                    ends.push(bytes.len() as i32);
                }
                (Values::Word(vocabulary, codes), cell) => {
                    let Cell::Text(text) = cell else {
                        codes.push(0);
                        continue;
                    };
                    let known = words.get(text).copied();
                    codes.push(known.unwrap_or_else(|| {
                        vocabulary.push(text.to_owned());
                        words.insert(text.to_owned(), vocabulary.len() as i32 - 1);
                        vocabulary.len() as i32 - 1
                    }));
                }
                (Values::List(elements, ends), cell) => {
                    if let Cell::List(list) = cell {
                        elements.extend(list);
                    }
                    ends.push(elements.len() as i32);
                }
            }
        }
        self.rows += 1;
    }

    /// Bytes of text and list elements: offsets are 32 bits wide, so a batch is closed well before they end.
    pub(crate) fn heaviest(&self) -> usize {
        let weight = |column: &Column| match &column.values {
            Values::Text(bytes, _) => bytes.len(),
            Values::List(elements, _) => elements.len(),
            _ => 0,
        };
        self.columns.iter().map(weight).max().unwrap_or(0)
    }

    fn cell(&self, column: usize, row: usize) -> Cell<'_> {
        let Column { values, valid } = &self.columns[column];
        if !valid[row] {
            return Cell::Null;
        }
        let range = |ends: &[i32]| (if row == 0 { 0 } else { ends[row - 1] as usize })..ends[row] as usize;
        match values {
            Values::Bool(all) => Cell::Bool(all[row]),
            Values::Whole(all) => Cell::Whole(u64::from(all[row])),
            Values::Large(all) => Cell::Whole(all[row]),
            Values::Real(all) => Cell::Real(all[row]),
            Values::Text(bytes, ends) => Cell::Text(&bytes[range(ends)]),
            Values::Word(vocabulary, codes) => Cell::Text(&vocabulary[codes[row] as usize]),
            Values::List(elements, ends) => Cell::List(&elements[range(ends)]),
        }
    }
}

/// A text form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextForm {
    /// Comma-separated values.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

impl TextForm {
    /// What stands in front of the rows.
    #[must_use]
    pub fn head(self, schema: &[ColumnField]) -> String {
        match self {
            Self::Csv => schema.iter().map(|f| f.name).collect::<Vec<_>>().join(",") + "\n",
            Self::Jsonl => String::new(),
        }
    }

    /// The rows of a batch.
    #[must_use]
    pub fn rows(self, schema: &[ColumnField], batch: &Batch) -> String {
        let mut out = String::new();
        for row in 0..batch.rows {
            match self {
                Self::Csv => csv_row(batch, row, &mut out),
                Self::Jsonl => jsonl_row(schema, batch, row, &mut out),
            }
            out.push('\n');
        }
        out
    }
}

fn csv_row(batch: &Batch, row: usize, out: &mut String) {
    for column in 0..batch.columns.len() {
        if column > 0 {
            out.push(',');
        }
        match batch.cell(column, row) {
            Cell::Null => {}
            Cell::Bool(b) => out.push_str(if b { "true" } else { "false" }),
            Cell::Whole(n) => _ = write!(out, "{n}"),
            Cell::Real(n) if n.is_nan() => out.push_str("nan"),
            Cell::Real(n) if n.is_infinite() => out.push_str(if n > 0.0 { "inf" } else { "-inf" }),
            Cell::Real(n) => finite(n, out),
            Cell::Text(text) => quoted(text, out),
            Cell::List(list) => quoted(&list_text(list), out),
        }
    }
}

fn jsonl_row(schema: &[ColumnField], batch: &Batch, row: usize, out: &mut String) {
    for (column, field) in schema.iter().enumerate() {
        out.push(if column == 0 { '{' } else { ',' });
        _ = write!(out, "\"{}\":", field.name);
        match batch.cell(column, row) {
            Cell::Null => out.push_str("null"),
            Cell::Bool(b) => out.push_str(if b { "true" } else { "false" }),
            Cell::Whole(n) => _ = write!(out, "{n}"),
            Cell::Real(n) => match number::word(n) {
                Some(word) => _ = write!(out, "\"{word}\""),
                None => finite(n, out),
            },
            Cell::Text(text) => out.push_str(&serde_json::to_string(text).unwrap_or_default()),
            Cell::List(list) => out.push_str(&list_text(list)),
        }
    }
    out.push('}');
}

/// The shortest digits that read back as the same number.
fn finite(n: f64, out: &mut String) {
    if let Some(number) = serde_json::Number::from_f64(n) {
        _ = write!(out, "{number}");
    }
}

fn quoted(text: &str, out: &mut String) {
    if text.is_empty() || text.contains([',', '"', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ') {
        out.push('"');
        out.push_str(&text.replace('"', "\"\""));
        out.push('"');
    } else {
        out.push_str(text);
    }
}

fn list_text(list: &[i64]) -> String {
    let parts: Vec<String> = list.iter().map(i64::to_string).collect();
    format!("[{}]", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: [ColumnField; 5] = [
        always("name", ColumnKind::Text),
        perhaps("max", ColumnKind::Real),
        perhaps("kind", ColumnKind::Word),
        perhaps("shape", ColumnKind::List),
        perhaps("flag", ColumnKind::Bool),
    ];

    fn batch() -> Batch {
        let mut batch = Batch::new(&SCHEMA);
        batch.push(&[
            Cell::Text("a,\"b\"\n"),
            Cell::Real(f64::NAN),
            Cell::Text("x"),
            Cell::List(&[2, -1]),
            Cell::Bool(true),
        ]);
        batch.push(&[Cell::Text(""), Cell::Real(1e300), Cell::Null, Cell::Null, Cell::Null]);
        batch.push(&[
            Cell::Text("c"),
            Cell::Real(f64::NEG_INFINITY),
            Cell::Text("x"),
            Cell::List(&[]),
            Cell::Bool(false),
        ]);
        batch
    }

    #[test]
    fn csv_keeps_every_sign() {
        assert_eq!(TextForm::Csv.head(&SCHEMA), "name,max,kind,shape,flag\n");
        assert_eq!(
            TextForm::Csv.rows(&SCHEMA, &batch()),
            "\"a,\"\"b\"\"\n\",nan,x,\"[2,-1]\",true\n\"\",1e+300,,,\nc,-inf,x,[],false\n"
        );
    }

    #[test]
    fn json_lines_are_strict() {
        let text = TextForm::Jsonl.rows(&SCHEMA, &batch());
        let rows: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).expect("strict JSON")).collect();
        assert_eq!(rows[0]["max"], "NaN");
        assert_eq!(rows[1]["max"], 1e300);
        assert_eq!(rows[2]["max"], "-Infinity");
        assert_eq!(rows[0]["name"], "a,\"b\"\n");
        assert!(rows[1]["kind"].is_null() && rows[2]["shape"] == serde_json::json!([]));
    }

    #[test]
    fn words_are_kept_once() {
        let batch = batch();
        assert_eq!(batch.columns[2].values, Values::Word(vec!["x".to_owned()], vec![0, 0, 0]));
        assert_eq!(batch.columns[2].valid, [true, false, true]);
    }
}
