//! What is known about operators: one data table, built in and extendable by a user's file.
//!
//! In: `rules.json` beside this file, and perhaps a file of the same shape from the user. Out: a [`Rules`] that
//! answers by API name. No operator is named anywhere else in the code.

use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Position, Result};
use crate::hint::{HintFacts, HintRow, likely};
use crate::op::{Argument, OpName};
use crate::pattern::fits;

const BUILT_IN: &str = include_str!("rules.json");

/// The table as it stands in a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// Version of this shape.
    pub schema_version: u32,
    /// For the reader of the file.
    #[serde(default)]
    pub description: String,
    /// Rows about compute operators.
    #[serde(default)]
    pub operators: Vec<OperatorRow>,
    /// Rows about communication operators; the first that matches counts.
    #[serde(default)]
    pub communications: Vec<CommunicationRow>,
    /// Prefixes whose operators are communication.
    #[serde(default)]
    pub communication_prefixes: Vec<String>,
    /// Parts of a path that mark a stack frame as a library's.
    #[serde(default)]
    pub library_paths: Vec<String>,
    /// Where each dtype ends; the first row that matches counts.
    #[serde(default)]
    pub dtypes: Vec<DtypeRow>,
    /// What counts as near the end of a dtype.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<NearRow>,
    /// Levels of severity; the first row that matches counts.
    #[serde(default)]
    pub levels: Vec<LevelRow>,
    /// Likely causes; the first row that matches counts.
    #[serde(default)]
    pub hints: Vec<HintRow>,
}

/// The largest finite number of a dtype.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DtypeRow {
    /// Names without `torch.`, in lower case.
    #[serde(rename = "match")]
    pub names: Vec<String>,
    /// Largest finite number.
    pub max: f64,
    /// Where the knowledge is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// What counts as a near miss.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NearRow {
    /// From this part of the dtype's largest number on a value is near it.
    pub share: f64,
    /// From this factor between the largest input and an output on it is a sudden growth ...
    pub growth: f64,
    /// ... if the output passes the dtype's largest number to this power.
    pub exponent: f64,
    /// Where the numbers are from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// One level of severity; every given condition must hold.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LevelRow {
    /// The level.
    pub level: Level,
    /// Name of the situation.
    pub scene: String,
    /// Whether an input holds something non-finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_input: Option<bool>,
    /// Whether an output does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bad_output: Option<bool>,
    /// The largest output norm over the largest input norm passes this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_over: Option<f64>,
    /// Where the definition is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// msProbe's words for how bad an op is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Finite in, non-finite out.
    Critical,
    /// Non-finite in and out, or a jump of the norm.
    High,
    /// Non-finite in, finite out.
    Medium,
}

impl Level {
    /// The word used in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["critical", "high", "medium"][self as usize]
    }
}

/// What a row says of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Is {
    /// Returns memory as it was: its content proves nothing.
    Uninitialised,
    /// Makes a value from nothing: what it holds was asked for.
    Creates,
    /// Passes values on without arithmetic (views, copies, casts, concatenations).
    Carries,
    /// The named arguments are only written.
    Overwrites,
    /// Writes its argument, but the dump shows no output.
    WritesUnseen,
    /// May exchange `-inf` and `+inf`.
    FlipsSign,
    /// The named arguments are weights or module state.
    Parameters,
    /// Computes a norm (a gradient norm when it stands in the optimizer's part).
    Norm,
    /// Computes a loss.
    Loss,
}

/// One row about compute operators.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OperatorRow {
    /// What is said.
    pub is: Is,
    /// Of which names.
    #[serde(rename = "match")]
    pub names: Vec<String>,
    /// Positional arguments it concerns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<u32>,
    /// Keyword arguments it concerns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kwargs: Vec<String>,
    /// Takes the rule away instead.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub off: bool,
    /// Where the knowledge is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// How data flows in a communication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flow {
    /// Every member gives, every member gets.
    All,
    /// The root gives, the others get.
    FromRoot,
    /// Every member gives, the root gets.
    ToRoot,
    /// Point to point, giving side.
    Send,
    /// Point to point, getting side.
    Recv,
    /// A list of point-to-point calls.
    Batch,
}

/// An argument by position or keyword.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentRef {
    /// Position among the positional arguments.
    pub arg: u32,
    /// Name as keyword.
    pub kwarg: String,
}

impl ArgumentRef {
    /// Whether `argument` (an input) is, or is inside, the argument this names.
    #[must_use]
    pub fn matches(&self, argument: &Argument) -> bool {
        use crate::op::Field;
        match argument.slot.field {
            Field::InputArgs | Field::Input => argument.slot.position() == Some(self.arg),
            Field::InputKwargs => argument.slot.keyword() == Some(&self.kwarg),
            _ => false,
        }
    }
}

/// Some arguments, or all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ArgumentRefs {
    /// These.
    Some(Vec<ArgumentRef>),
    /// The word `all`.
    All(String),
}

/// One row about communication operators.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommunicationRow {
    /// API names.
    #[serde(rename = "match")]
    pub names: Vec<String>,
    /// Data flow.
    pub flow: Flow,
    /// Arguments whose values are sent.
    pub contributes: ArgumentRefs,
    /// Arguments that are written: buffers before the call, results after it.
    pub receives: ArgumentRefs,
    /// Root of a rooted collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<ArgumentRef>,
    /// Other side of a point-to-point call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<ArgumentRef>,
    /// Message tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<ArgumentRef>,
    /// The flag that makes the call return before the data is there.
    #[serde(default, rename = "async", skip_serializing_if = "Option::is_none")]
    pub async_flag: Option<ArgumentRef>,
    /// Always returns before the data is there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always_async: bool,
    /// Where the knowledge is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// The effective table.
#[derive(Debug, Clone)]
pub struct Rules {
    table: Table,
    fingerprint: OnceLock<u64>,
}

/// What the table says of one operator, looked up once per API name.
#[derive(Debug, Clone, Default)]
pub struct OperatorRules<'r> {
    rows: Vec<&'r OperatorRow>,
}

impl Rules {
    /// The built-in table.
    ///
    /// # Panics
    /// Never: the table is part of the build and a test reads it.
    #[must_use]
    pub fn built_in() -> Self {
        let table = serde_json::from_str(BUILT_IN).unwrap_or_else(|e| panic!("rules.json: {e}"));
        Self { table, fingerprint: OnceLock::new() }
    }

    /// The built-in table with the user's file on top.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Io`] or [`ErrorKind::Rules`] with the place.
    pub fn with_file(path: &Path) -> Result<Self> {
        let bytes = crate::bytes::Bytes::open(path, false)?;
        let user: Table = serde_json::from_slice(&bytes).map_err(|e| {
            let text = e.to_string();
            let text = text.split(" at line ").next().unwrap_or("not a rules table").to_owned();
            let mut error = Error::new(ErrorKind::Rules, path, text);
            error.position = Some(Position { line: e.line() as u64, column: e.column() as u64 });
            error.with_help("`ovf rules` prints the table in the shape that is expected")
        })?;
        if user.schema_version != 1 {
            let text = format!("schema_version {} is not known, expected 1", user.schema_version);
            return Err(Error::new(ErrorKind::Rules, path, text));
        }
        Ok(Self::built_in().merged(user))
    }

    fn merged(mut self, user: Table) -> Self {
        self.fingerprint = OnceLock::new();
        // The user's rows come first where the first match counts, last where rows add up.
        self.table.operators.extend(user.operators);
        self.table.communications.splice(0..0, user.communications);
        self.table.communication_prefixes.extend(user.communication_prefixes);
        self.table.library_paths.extend(user.library_paths);
        self.table.dtypes.splice(0..0, user.dtypes);
        self.table.near = user.near.or(self.table.near);
        self.table.levels.splice(0..0, user.levels);
        self.table.hints.splice(0..0, user.hints);
        self
    }

    /// A number that changes with the part of the table that a summary depends on (hints and library paths are
    /// only looked at when the report is made).
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let t = &self.table;
            let part = serde_json::to_vec(&(&t.operators, &t.communications, &t.communication_prefixes));
            xxhash_rust::xxh3::xxh3_64(&part.unwrap_or_default())
        })
    }

    /// The effective table as JSON with two-space indentation.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.table).unwrap_or_default()
    }

    /// Whether an op is a communication.
    #[must_use]
    pub fn is_communication(&self, name: &OpName) -> bool {
        self.table.communication_prefixes.iter().any(|p| p == name.prefix)
    }

    /// Whether a raw name is a communication's, without parsing it.
    #[must_use]
    pub fn is_communication_name(&self, raw: &[u8]) -> bool {
        self.table
            .communication_prefixes
            .iter()
            .any(|p| raw.len() > p.len() && raw[p.len()] == b'.' && raw.starts_with(p.as_bytes()))
    }

    /// The row of a communication op.
    #[must_use]
    pub fn communication(&self, name: &OpName) -> Option<&CommunicationRow> {
        self.table.communications.iter().find(|row| row.names.iter().any(|p| fits(p, name)))
    }

    /// All rows about a compute op.
    #[must_use]
    pub fn operator(&self, name: &OpName) -> OperatorRules<'_> {
        let mut rows: Vec<&OperatorRow> = Vec::new();
        for row in &self.table.operators {
            if !row.names.iter().any(|p| fits(p, name)) {
                continue;
            }
            if row.off {
                rows.retain(|r| r.is != row.is);
            } else {
                rows.push(row);
            }
        }
        OperatorRules { rows }
    }

    /// Whether a stack frame's file is a library's.
    #[must_use]
    pub fn is_library(&self, file: &str) -> bool {
        self.table.library_paths.iter().any(|p| file.contains(p.as_str()))
    }

    /// The largest finite number of a dtype (`torch.float16`, `Float16`); `None` for integers and unknown ones.
    #[must_use]
    pub fn largest(&self, dtype: &str) -> Option<f64> {
        let name = dtype.rsplit('.').next().unwrap_or(dtype);
        let row = self.table.dtypes.iter().find(|r| r.names.iter().any(|n| n.eq_ignore_ascii_case(name)))?;
        Some(row.max)
    }

    pub(crate) fn near(&self) -> Option<&NearRow> {
        self.table.near.as_ref()
    }

    pub(crate) fn levels(&self) -> &[LevelRow] {
        &self.table.levels
    }

    /// The first hint that fits.
    #[must_use]
    pub fn hint(&self, facts: &HintFacts) -> Option<&HintRow> {
        likely(&self.table.hints, facts)
    }
}

impl OperatorRules<'_> {
    /// Whether the table says this of the op.
    #[must_use]
    pub fn says(&self, is: Is) -> bool {
        self.rows.iter().any(|r| r.is == is)
    }

    /// Whether `argument` is one that the rule `is` names.
    #[must_use]
    pub fn names(&self, is: Is, argument: &Argument) -> bool {
        let slot = &argument.slot;
        self.rows.iter().filter(|r| r.is == is).any(|row| match slot.field {
            crate::op::Field::InputArgs => slot.position().is_some_and(|p| row.args.contains(&p)),
            crate::op::Field::InputKwargs => slot.keyword().is_some_and(|k| row.kwargs.iter().any(|n| n == k)),
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(name: &str, what: Is) -> bool {
        Rules::built_in().operator(&OpName::parse(name)).says(what)
    }

    #[test]
    fn the_table_is_narrow() {
        assert!(is("Torch.empty.0.forward", Is::Uninitialised));
        assert!(is("NPU.npu_empty.0.forward", Is::Uninitialised));
        assert!(is("Tensor.to.0.forward", Is::Carries));
        assert!(!is("Tensor.topk.0.forward", Is::Carries));
        assert!(!is("Tensor.tolist.0.forward", Is::Carries));
    }

    #[test]
    fn a_user_can_switch_a_rule_off_and_add_one() {
        let user = r#"{"schema_version": 1, "operators": [
            {"is": "carries", "match": ["clone"], "off": true},
            {"is": "uninitialised", "match": ["my_pool.alloc"]}]}"#;
        let rules = Rules::built_in().merged(serde_json::from_str(user).expect("a table"));
        assert!(!rules.operator(&OpName::parse("Tensor.clone.0.forward")).says(Is::Carries));
        assert!(rules.operator(&OpName::parse("my_pool.alloc.0.forward")).says(Is::Uninitialised));
        assert!(rules.to_json().contains("my_pool.alloc"));
    }

    #[test]
    fn communications_have_a_fallback() {
        let rules = Rules::built_in();
        let row = |n: &str| rules.communication(&OpName::parse(n)).map(|r| r.flow);
        assert_eq!(row("Distributed.broadcast.0.forward"), Some(Flow::FromRoot));
        assert_eq!(row("Distributed.my_collective.0.forward"), Some(Flow::All));
        assert!(rules.is_communication_name(b"Distributed.x.0.forward"));
        assert!(!rules.is_communication_name(b"Distributed2.x"));
    }
}
