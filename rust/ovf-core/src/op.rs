//! The vocabulary of a dump: names, values, slots. No logic but reading its own names.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Global rank of a process.
pub type Rank = u32;

/// Which way a recorded call went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// A forward call.
    Forward,
    /// A backward call: `input` holds the gradients that come in.
    Backward,
    /// `parameters_grad` of a module: the gradients of its weights.
    ParametersGrad,
    /// A value a user recorded by name (`debug.json`).
    Debug,
}

/// The parts of an op's name. Borrowed: a name is only read, never stored in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpName<'a> {
    /// `Torch`, `Tensor`, `Functional`, `Module`, `Cell`, `Distributed`, or a user's (dotted) prefix.
    pub prefix: &'a str,
    /// API name (`matmul`), or for modules the class (`Linear`).
    pub api: &'a str,
    /// Dotted module path (`layers.0.mlp`); empty for APIs.
    pub module_path: &'a str,
    /// The call number in the name, if it has one. It is not the order of execution.
    pub call_index: Option<u64>,
    /// Forward, backward, ...
    pub direction: Direction,
    /// Everything before direction and number: what a forward and its backward share (with the number).
    pub base: &'a str,
}

impl<'a> OpName<'a> {
    /// Reads a name. Unknown shapes are kept whole as `api` of a forward call, never refused.
    ///
    /// ```
    /// use ovf_core::{Direction, OpName};
    /// let op = OpName::parse("Module.layers.0.mlp.down.Linear.backward.3");
    /// assert_eq!((op.module_path, op.api, op.call_index), ("layers.0.mlp.down", "Linear", Some(3)));
    /// assert_eq!(op.direction, Direction::Backward);
    /// assert_eq!(OpName::parse("Distributed.all_reduce_0_0").api, "all_reduce");
    /// ```
    #[must_use]
    pub fn parse(name: &'a str) -> Self {
        let (prefix, rest) = split_first(name).unwrap_or(("", name));
        if matches!(prefix, "Module" | "Cell") {
            return Self::parse_module(name, prefix, rest);
        }
        let mut direction = Direction::Forward;
        let mut body = name;
        let mut known = false;
        for (suffix, way) in
            [(".forward", Direction::Forward), (".backward", Direction::Backward), (".debug", Direction::Debug)]
        {
            if let Some(head) = name.strip_suffix(suffix) {
                (body, direction, known) = (head, way, true);
                break;
            }
        }
        let (mut base, mut call_index) = (body, None);
        if let Some((head, number)) = split_last(body)
            && let Some(n) = call_number(number)
        {
            (base, call_index) = (head, Some(n));
        }
        let (prefix, mut api) = split_last(base).unwrap_or(("", base));
        if !known && call_index.is_none() {
            // The shape of the skill seed: `all_reduce_0_0`, `linear_0_0`.
            let trimmed = api.trim_end_matches(|c: char| c.is_ascii_digit());
            if let Some(head) = trimmed.strip_suffix('_').filter(|_| trimmed.len() < api.len()) {
                let head = head.trim_end_matches(|c: char| c.is_ascii_digit());
                api = head.strip_suffix('_').unwrap_or(head);
            }
        }
        Self { prefix, api, module_path: "", call_index, direction, base }
    }

    fn parse_module(name: &'a str, prefix: &'a str, rest: &'a str) -> Self {
        let (mut body, mut call_index) = (rest, None);
        if let Some((head, number)) = split_last(rest)
            && let Some(n) = call_number(number)
        {
            (body, call_index) = (head, Some(n));
        }
        let mut direction = Direction::Forward;
        for (suffix, way) in [
            (".forward", Direction::Forward),
            (".backward", Direction::Backward),
            (".parameters_grad", Direction::ParametersGrad),
        ] {
            if let Some(head) = body.strip_suffix(suffix) {
                (body, direction) = (head, way);
                break;
            }
        }
        let (module_path, api) = split_last(body).unwrap_or(("", body));
        let base = &name[..prefix.len() + 1 + body.len()];
        Self { prefix, api, module_path, call_index, direction, base }
    }

    /// Whether this is a module record (stands at its exit, after its children).
    #[must_use]
    pub fn is_module(&self) -> bool {
        matches!(self.prefix, "Module" | "Cell")
    }

    /// Whether the call writes its first argument (`add_`, `__iadd__`), by torch's naming.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let api = self.api;
        (api.ends_with('_') && !api.ends_with("__")) || (api.starts_with("__i") && api.ends_with("__"))
    }
}

// PERF: every bad op's name is taken apart; these cost a third of `str`'s own searches on such short texts.
fn split_first(text: &str) -> Option<(&str, &str)> {
    let at = memchr::memchr(b'.', text.as_bytes())?;
    Some((&text[..at], &text[at + 1..]))
}

fn split_last(text: &str) -> Option<(&str, &str)> {
    let at = text.bytes().rposition(|b| b == b'.')?;
    Some((&text[..at], &text[at + 1..]))
}

fn call_number(text: &str) -> Option<u64> {
    if text.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) { None } else { text.parse().ok() }
}

/// Part of the step an op belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Forward calls, recomputed ones too.
    Forward,
    /// Gradients.
    Backward,
    /// After the last backward.
    Optimizer,
}

impl Phase {
    /// The word used in JSON and in rules.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["forward", "backward", "optimizer"][self as usize]
    }
}

/// Which kinds of non-finite number a value holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "u8")]
pub struct Kinds(u8);

impl From<u8> for Kinds {
    /// Other bits than the three are not a kind.
    fn from(bits: u8) -> Self {
        Self(bits & 7)
    }
}

impl Kinds {
    /// Nothing non-finite.
    pub const NONE: Self = Self(0);
    /// At least one `-inf`.
    pub const NEG_INF: Self = Self(1);
    /// At least one `+inf`.
    pub const POS_INF: Self = Self(2);
    /// At least one NaN.
    pub const NAN: Self = Self(4);

    /// The kinds of one number.
    #[must_use]
    pub fn of(number: f64) -> Self {
        if number.is_nan() {
            Self::NAN
        } else if number == f64::INFINITY {
            Self::POS_INF
        } else if number == f64::NEG_INFINITY {
            Self::NEG_INF
        } else {
            Self::NONE
        }
    }

    /// Both.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of `self` that `other` has not.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// True when nothing is non-finite.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in `self`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        other.minus(self).is_finite()
    }

    /// With `-inf` and `+inf` exchangeable, as after a multiplication by a negative number.
    #[must_use]
    pub fn with_either_sign(self) -> Self {
        if self.minus(Self::NAN).is_finite() { self } else { self.union(Self(3)) }
    }

    /// Severity for ranking: NaN 3, +Inf 2, -Inf 1, finite 0.
    #[must_use]
    pub fn severity(self) -> u8 {
        8u8.saturating_sub(self.0.leading_zeros() as u8)
    }

    /// All kinds, the worst first, with a space between: `nan +inf`; `None` when finite.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        let all = ["", "-inf", "+inf", "+inf -inf", "nan", "nan -inf", "nan +inf", "nan +inf -inf"];
        (self.0 > 0).then(|| all[usize::from(self.0 & 7)])
    }

    /// The name of the worst kind: `nan`, `+inf`, `-inf` or `finite`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["finite", "-inf", "+inf", "nan"][usize::from(self.severity())]
    }
}

/// Sizes by dimension; most tensors have at most four.
pub(crate) type Shape = SmallVec<[i64; 4]>;

/// Way to a value inside a record; most values stand two steps deep at most.
pub(crate) type Path<'a> = SmallVec<[Segment<'a>; 2]>;

/// Statistics of one tensor as the dump gives them. `None` is a missing or null statistic.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TensorStat<'a> {
    /// `torch.float16`, ...; empty when the record has none.
    pub dtype: &'a str,
    /// Sizes by dimension.
    pub shape: Shape,
    /// Largest element.
    pub max: Option<f64>,
    /// Smallest element.
    pub min: Option<f64>,
    /// Mean; never evidence, low precision overflows in it.
    pub mean: Option<f64>,
    /// L2 norm; never evidence.
    pub norm: Option<f64>,
    /// What [`crate::provenance`] looks it up by, where that was worked out before.
    pub(crate) keys: Option<Keys>,
}

/// What a value is looked up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Number of its dtype, statistics and shape among those that were met.
    pub(crate) exact: u32,
    /// Key of dtype, statistics and number of elements.
    pub(crate) same_count: u64,
}

impl TensorStat<'_> {
    /// What the value holds, by `Max` and `Min` alone.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let of = |s: Option<f64>| s.map_or(Kinds::NONE, Kinds::of);
        of(self.max).union(of(self.min))
    }

    /// Whether `Max` or `Min` can be judged at all.
    #[must_use]
    pub fn has_statistics(&self) -> bool {
        self.max.is_some() || self.min.is_some()
    }

    /// Number of elements.
    #[must_use]
    pub fn numel(&self) -> i64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Whether the dtype can hold a non-finite number (unknown dtypes can).
    #[must_use]
    pub fn is_floating(&self) -> bool {
        let d = split_last(self.dtype).map_or(self.dtype, |(_, d)| d).as_bytes();
        let starts = |with: &[u8]| d.get(..with.len()).is_some_and(|head| head.eq_ignore_ascii_case(with));
        !(starts(b"int") || starts(b"uint") || starts(b"bool"))
    }
}

/// The part of a record a value stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Field {
    /// Positional inputs of a forward call.
    InputArgs,
    /// Keyword inputs of a forward call.
    InputKwargs,
    /// Gradients that enter a backward call.
    Input,
    /// What the call returned; for communication the arguments after the call.
    Output,
    /// Weights of a module record.
    Parameters,
    /// Weight gradients of a `parameters_grad` record, values of a debug record.
    Recorded,
}

impl Field {
    /// The key in `dump.json`.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::InputArgs => "input_args",
            Self::InputKwargs => "input_kwargs",
            Self::Input => "input",
            Self::Output => "output",
            Self::Parameters => "parameters",
            Self::Recorded => "",
        }
    }

    /// Whether the value went in.
    #[must_use]
    pub fn is_input(self) -> bool {
        matches!(self, Self::InputArgs | Self::InputKwargs | Self::Input | Self::Parameters)
    }
}

/// One step into a nested container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Element of a list.
    Index(u32),
    /// Entry of a dict, key as written in the file (escapes kept).
    Key(&'a str),
}

/// Where in an op a value stands: `input_args[0]`, `input_kwargs.mask`, `output[0][1]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot<'a> {
    /// Part of the record.
    pub field: Field,
    /// Path below it; empty when the field itself is the value.
    pub path: Path<'a>,
}

impl Slot<'_> {
    /// Position among the positional arguments, if the slot is one.
    #[must_use]
    pub fn position(&self) -> Option<u32> {
        match self.path.first() {
            Some(&Segment::Index(i)) => Some(i),
            None => Some(0),
            _ => None,
        }
    }

    /// Name of the keyword, if the slot is one.
    #[must_use]
    pub fn keyword(&self) -> Option<&str> {
        match self.path.first() {
            Some(&Segment::Key(k)) => Some(k),
            _ => None,
        }
    }
}

impl std::fmt::Display for Slot<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.field.key())?;
        for (i, segment) in self.path.iter().enumerate() {
            match segment {
                Segment::Index(n) => write!(f, "[{n}]")?,
                Segment::Key(k) if i == 0 && self.field == Field::Recorded => f.write_str(k)?,
                Segment::Key(k) => write!(f, ".{k}")?,
            }
        }
        Ok(())
    }
}

/// A value of an op.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// A tensor record, or anything with statistics.
    Tensor(TensorStat<'a>),
    /// A number given as an argument.
    Number(f64),
    /// A process group.
    Group(GroupRef<'a>),
    /// One entry of a batched point-to-point call; its tensor follows as a value of its own below it.
    P2p(P2pRef<'a>),
    /// A text argument (raw, escapes kept).
    Text(&'a str),
    /// A boolean argument.
    Flag(bool),
    /// `null`: None, or a slot that was not recorded.
    Null,
}

/// A process group as a record names it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupRef<'a> {
    /// Global ranks; empty when the record does not list them.
    pub ranks: Vec<Rank>,
    /// Identity of the group; empty when absent.
    pub id: &'a str,
}

/// A `P2POp` record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct P2pRef<'a> {
    /// `isend` or `irecv`.
    pub op: &'a str,
    /// The other rank.
    pub peer: Option<Rank>,
    /// Message tag.
    pub tag: i64,
    /// Identity of the group; empty when absent.
    pub group_id: &'a str,
}

/// One argument or result of an op, with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument<'a> {
    /// Where.
    pub slot: Slot<'a>,
    /// What.
    pub value: Value<'a>,
}

/// One entry of `data`: everything the analysis reads of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Op<'a> {
    /// All values, in file order.
    pub arguments: Vec<Argument<'a>>,
    /// Whether the record says it ran inside activation recomputation.
    pub is_recompute: bool,
    /// The overflow register after the op (`nan_check` dumps): `Some(true)` set, `Some(false)` clear.
    pub register: Option<bool>,
    /// Whether the record has any input field at all.
    pub has_inputs: bool,
    /// Whether the record has an output field.
    pub has_output: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_grammar() {
        let cases = [
            ("Torch.matmul.5.forward", "Torch", "matmul", "", Some(5), Direction::Forward),
            ("Tensor.__add__.0.backward", "Tensor", "__add__", "", Some(0), Direction::Backward),
            ("my_pkg.ops.foo.3.forward", "my_pkg.ops", "foo", "", Some(3), Direction::Forward),
            ("Primitive.conv2d.Conv2d.1.forward", "Primitive.conv2d", "Conv2d", "", Some(1), Direction::Forward),
            ("Module.0.emb.Emb.forward.0", "Module", "Emb", "0.emb", Some(0), Direction::Forward),
            ("Cell.net.Dense.backward.2", "Cell", "Dense", "net", Some(2), Direction::Backward),
            ("Module.fc.Linear.parameters_grad", "Module", "Linear", "fc", None, Direction::ParametersGrad),
            ("Module.fc.Linear.parameters_grad.1", "Module", "Linear", "fc", Some(1), Direction::ParametersGrad),
            ("Module.a.forward.L.forward.1", "Module", "L", "a.forward", Some(1), Direction::Forward),
            ("loss.0.debug", "", "loss", "", Some(0), Direction::Debug),
            ("Torch.ops.aten.linear_0_0", "Torch.ops.aten", "linear", "", None, Direction::Forward),
        ];
        for (name, prefix, api, path, number, direction) in cases {
            let op = OpName::parse(name);
            assert_eq!(
                (op.prefix, op.api, op.module_path, op.call_index, op.direction),
                (prefix, api, path, number, direction),
                "{name}"
            );
        }
        for odd in ["", ".", "..", "Module", "Module.", "x", "a.1", "forward", ".forward"] {
            let _ = OpName::parse(odd);
        }
    }

    #[test]
    fn kinds_are_sets() {
        let both = Kinds::NEG_INF.union(Kinds::NAN);
        assert_eq!(both.severity(), 3);
        assert_eq!(both.minus(Kinds::NAN), Kinds::NEG_INF);
        assert!(both.contains(Kinds::NEG_INF) && !Kinds::NEG_INF.contains(both));
        assert_eq!(Kinds::NEG_INF.with_either_sign().name(), "+inf");
        assert_eq!(Kinds::NONE.name(), "finite");
    }

    #[test]
    fn in_place_by_name() {
        for (name, expected) in [("add_", true), ("__iadd__", true), ("__add__", false), ("add", false)] {
            let full = format!("Tensor.{name}.0.forward");
            assert_eq!(OpName::parse(&full).is_in_place(), expected, "{name}");
        }
    }
}
