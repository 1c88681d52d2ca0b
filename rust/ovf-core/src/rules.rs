//! What is known about operators: one data table, built in and extendable by a user's file.
//!
//! In: `rules.json` beside this file, and perhaps a file of the same shape from the user. Out: a [`Rules`] that
//! answers by API name. No operator is named anywhere else in the code.

use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Position, Result};
use crate::op::{Argument, Direction, Kinds, OpName};

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
    /// Likely causes; the first row that matches counts.
    #[serde(default)]
    pub hints: Vec<HintRow>,
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

/// When a hint applies; every given condition must hold.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HintCondition {
    /// API names (patterns).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api: Vec<String>,
    /// Kind of finding.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// Worst kind of number in the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// `forward`, `backward`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub direction: Vec<String>,
    /// dtype of a bad output, without `torch.`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_dtype: Vec<String>,
    /// An input holds one of these kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_has: Vec<String>,
    /// Every finite input magnitude is below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_below: Option<f64>,
}

/// One likely cause.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HintRow {
    /// When it applies.
    pub when: HintCondition,
    /// What likely happened.
    pub text: String,
    /// What to look at next.
    pub check: String,
    /// Where the knowledge is from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

/// What a hint is judged by.
#[derive(Debug, Clone)]
pub struct HintFacts<'a> {
    /// The op.
    pub name: OpName<'a>,
    /// Kind of finding.
    pub kind: &'a str,
    /// Kinds in the outputs (or, without outputs, the inputs).
    pub kinds: Kinds,
    /// dtypes of the bad outputs.
    pub output_dtypes: Vec<&'a str>,
    /// Kinds in the inputs.
    pub input_kinds: Kinds,
    /// Largest finite magnitude among the inputs.
    pub input_magnitude: f64,
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
        self.table.communications.iter().find(|row| row.names.iter().any(|p| matches(p, name)))
    }

    /// All rows about a compute op.
    #[must_use]
    pub fn operator(&self, name: &OpName) -> OperatorRules<'_> {
        let mut rows: Vec<&OperatorRow> = Vec::new();
        for row in &self.table.operators {
            if !row.names.iter().any(|p| matches(p, name)) {
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

    /// The first hint that fits.
    #[must_use]
    pub fn hint(&self, facts: &HintFacts) -> Option<&HintRow> {
        self.table.hints.iter().find(|row| row.when.holds(facts))
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

impl HintCondition {
    fn holds(&self, facts: &HintFacts) -> bool {
        let any = |list: &[String], test: &dyn Fn(&str) -> bool| list.is_empty() || list.iter().any(|s| test(s));
        let has = |kinds: Kinds, name: &str| {
            kinds.contains(match name {
                "nan" => Kinds::NAN,
                "+inf" => Kinds::POS_INF,
                "-inf" => Kinds::NEG_INF,
                _ => return false,
            })
        };
        let direction = match facts.name.direction {
            Direction::Forward | Direction::Debug => "forward",
            Direction::Backward | Direction::ParametersGrad => "backward",
        };
        any(&self.api, &|p| matches(p, &facts.name))
            && any(&self.kind, &|k| k == facts.kind)
            && any(&self.kinds, &|k| has(facts.kinds, k))
            && any(&self.direction, &|d| d == direction)
            && any(&self.output_dtype, &|d| facts.output_dtypes.iter().any(|o| o.rsplit('.').next() == Some(d)))
            && any(&self.input_has, &|k| has(facts.input_kinds, k))
            && self.input_below.is_none_or(|limit| facts.input_magnitude < limit)
    }
}

fn matches(pattern: &str, name: &OpName) -> bool {
    if let Some(dot) = memchr::memrchr(b'.', pattern.as_bytes()) {
        glob(&pattern[dot + 1..], name.api) && glob(&pattern[..dot], name.prefix)
    } else {
        glob(pattern, name.api)
    }
}

/// `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    // PERF: every pattern of the table is tried on every name.
    let Some(star) = memchr::memchr(b'*', pattern.as_bytes()) else {
        return pattern == text;
    };
    let (head, rest) = (&pattern[..star], &pattern[star + 1..]);
    let Some(mut tail) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return tail.ends_with(part);
        }
        match tail.find(part) {
            Some(at) => tail = &tail[at + part.len()..],
            None => return false,
        }
    }
    true
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
    fn globs() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("*_empty", "npu_empty", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
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
