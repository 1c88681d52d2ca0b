//! Bytes -> the values of one op. The only room that knows the shape of a record.
//!
//! In: one record's bytes. Out: an [`Op`] that borrows from them. Containers are searched to any depth up to
//! [`MAX_DEPTH`] (msProbe itself stops at 400), keyword arguments, parameters and P2P records too. Keys may stand in
//! any order; a key that means something to us (`Max`, `shape`, ...) but holds a container is a user's dict key.

mod form;
mod known;

use std::ops::Range;

use self::form::{Forms, Spelling};
pub(crate) use self::known::is_plainly_finite;
use self::known::{Key, Known, Raw};
use crate::op::{Argument, Field, Op, Path, Segment, Shape, Slot, Value};
use crate::structural::{Skipped, skip_container};
use crate::token::{Cursor, Read, Stop, number};

/// Deepest nesting that is searched.
pub(crate) const MAX_DEPTH: usize = 1024;

/// Room for the arguments of most ops.
const ARGUMENTS: usize = 8;

/// How much of a record is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything; `recorded` says that unknown keys are values themselves (`parameters_grad`, debug).
    All {
        /// See above.
        recorded: bool,
    },
    /// All but `output`, which is passed over.
    Inputs,
}

impl Part {
    /// A whole record of a forward or backward call.
    pub(crate) const ALL: Self = Self::All { recorded: false };
}

/// Which numbers are converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// All.
    All,
    /// Statistics of tensors whose `Max` and `Min` are finite are 0.0: whether they are there still shows.
    OfNonFinite,
}

/// Reads the record `body`.
///
/// # Errors
/// A [`Stop`] with an offset relative to `body`.
pub(crate) fn parse_op(body: &[u8], part: Part) -> Read<Op<'_>> {
    read(body, part, Numbers::All, None)
}

fn read<'a>(body: &'a [u8], part: Part, numbers: Numbers, forms: Option<&mut Forms>) -> Read<Op<'a>> {
    let op = Op { arguments: Vec::with_capacity(ARGUMENTS), ..Op::default() };
    let cursor = Cursor::new(body, 0);
    let mut reader = Reader { cursor, op, path: Path::new(), field: Field::Recorded, numbers, forms };
    reader.record(part)?;
    Ok(reader.op)
}

/// Reads many records, the fast way: the same answers as [`parse_op`], but for the numbers nobody asks for.
#[derive(Debug)]
pub(crate) struct Parser {
    forms: Forms,
    numbers: Numbers,
}

impl Parser {
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self { forms: Forms::default(), numbers }
    }

    /// Reads the record `body`.
    ///
    /// # Errors
    /// As [`parse_op`].
    pub(crate) fn op<'a>(&mut self, body: &'a [u8], part: Part) -> Read<Op<'a>> {
        read(body, part, self.numbers, Some(&mut self.forms))
    }
}

/// The text of one field of a record, if it has it.
pub(crate) fn field_text<'a>(body: &'a [u8], field: &str) -> Option<&'a [u8]> {
    let mut cursor = Cursor::new(body, 0);
    cursor.expect(b'{', "an object").ok()?;
    if cursor.eat(b'}').ok()? {
        return None;
    }
    loop {
        let key = cursor.string().ok()?;
        cursor.expect(b':', "':'").ok()?;
        cursor.skip_space();
        let start = cursor.at;
        cursor.skip_value().ok()?;
        if &body[key] == field.as_bytes() {
            return Some(&body[start..cursor.at]);
        }
        if !cursor.eat(b',').ok()? {
            return None;
        }
    }
}

/// Places of the bare words behind `Max`, `Min`, `Mean` and `Norm`, wherever they stand; nothing when a record is
/// damaged.
pub(crate) fn statistics(body: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut found = Vec::new();
    let mut cursor = Cursor::new(body, 0);
    while let Ok(byte) = cursor.peek() {
        match byte {
            b'"' => {
                let key = cursor.string().ok()?;
                let is_statistic = matches!(Key::of(&body[key]), Some(Key::Statistic(_)));
                if is_statistic && cursor.peek().ok()? == b':' {
                    cursor.at += 1;
                    if !matches!(cursor.peek().ok()?, b'"' | b'{' | b'[') {
                        let word = cursor.word().ok()?;
                        found.push(cursor.at - word.len()..cursor.at);
                    }
                }
            }
            b'{' | b'}' | b'[' | b']' | b',' | b':' => cursor.at += 1,
            _ => {
                cursor.word().ok()?;
            }
        }
    }
    Some(found)
}

struct Reader<'a, 'p> {
    cursor: Cursor<'a>,
    op: Op<'a>,
    path: Path<'a>,
    field: Field,
    numbers: Numbers,
    forms: Option<&'p mut Forms>,
}

impl<'a> Reader<'a, '_> {
    fn text(&self, range: Range<usize>) -> &'a str {
        known::text(&self.cursor.bytes[range])
    }

    fn record(&mut self, part: Part) -> Read<()> {
        let recorded = part == Part::All { recorded: true };
        match self.cursor.peek()? {
            b'{' => {}
            b'[' => {
                self.field = Field::Recorded;
                return self.value(0);
            }
            _ => return Ok(()), // `null` or another bare word in place of a record: nothing was recorded
        }
        let whole = self.cursor;
        self.cursor.at += 1;
        if self.cursor.eat(b'}')? {
            return Ok(());
        }
        if recorded && self.looks_like_a_tensor() {
            self.cursor = whole;
            self.field = Field::Recorded;
            return self.value(0);
        }
        loop {
            let range = self.cursor.string()?;
            self.cursor.expect(b':', "':' after a key")?;
            match &self.cursor.bytes[range.clone()] {
                b"input_args" => self.enter(Field::InputArgs)?,
                b"input_kwargs" => self.enter(Field::InputKwargs)?,
                b"input" => self.enter(Field::Input)?,
                b"parameters" => self.enter(Field::Parameters)?,
                b"output" if part == Part::Inputs => {
                    self.op.has_output = true;
                    self.skip()?;
                }
                b"output" => self.enter(Field::Output)?,
                b"is_recompute" => self.op.is_recompute = self.flag()? == Some(true),
                b"is_nan" => self.op.register = self.flag()?,
                b"is_nan_index" => self.cursor.skip_value()?,
                _ if recorded => {
                    self.field = Field::Recorded;
                    self.path.push(Segment::Key(self.text(range)));
                    self.value(0)?;
                    self.path.pop();
                }
                _ => self.cursor.skip_value()?,
            }
            if !self.cursor.eat(b',')? {
                return self.cursor.expect(b'}', "',' or '}'");
            }
        }
    }

    /// Whether the object just entered is a tensor record itself (its first key is `type`).
    fn looks_like_a_tensor(&self) -> bool {
        let mut ahead = self.cursor;
        ahead.string().is_ok_and(|r| matches!(&ahead.bytes[r], b"type" | b"class_type" | b"dtype"))
    }

    fn enter(&mut self, field: Field) -> Read<()> {
        if field.is_input() {
            self.op.has_inputs |= field != Field::Parameters;
        } else {
            self.op.has_output = true;
        }
        self.field = field;
        self.value(0)
    }

    /// Moves past a value.
    fn skip(&mut self) -> Read<()> {
        if !matches!(self.cursor.peek()?, b'{' | b'[') {
            return self.cursor.skip_value();
        }
        match skip_container(self.cursor.bytes, self.cursor.at) {
            Skipped::End(end, ..) => self.cursor.at = end,
            Skipped::Open => return Err(Stop::End),
        }
        Ok(())
    }

    /// `true`/`false`, or a number compared with zero; `None` for anything else.
    fn flag(&mut self) -> Read<Option<bool>> {
        if matches!(self.cursor.peek()?, b'"' | b'{' | b'[') {
            self.cursor.skip_value()?;
            return Ok(None);
        }
        Ok(number(self.cursor.word()?).map(|n| n != 0.0))
    }

    fn push(&mut self, value: Value<'a>) {
        self.op.arguments.push(Argument { slot: Slot { field: self.field, path: self.path.clone() }, value });
    }

    fn value(&mut self, depth: usize) -> Read<()> {
        match self.cursor.peek()? {
            b'{' | b'[' if depth >= MAX_DEPTH => {
                Err(Stop::Unexpected { at: self.cursor.at, expected: "values nested at most 1024 deep" })
            }
            b'{' => self.object(depth),
            b'[' => self.list(depth),
            b'"' => {
                let range = self.cursor.string()?;
                let text = self.text(range);
                self.push(Value::Text(text));
                Ok(())
            }
            _ => {
                let word = self.cursor.word()?;
                match word {
                    b"null" => self.push(Value::Null),
                    b"true" | b"false" => self.push(Value::Flag(word == b"true")),
                    _ => self.push(number(word).map_or(Value::Null, Value::Number)),
                }
                Ok(())
            }
        }
    }

    fn list(&mut self, depth: usize) -> Read<()> {
        self.cursor.at += 1;
        if self.cursor.eat(b']')? {
            return Ok(());
        }
        for index in 0.. {
            self.path.push(Segment::Index(index));
            self.value(depth + 1)?;
            self.path.pop();
            if !self.cursor.eat(b',')? {
                break;
            }
        }
        self.cursor.expect(b']', "',' or ']'")
    }

    fn object(&mut self, depth: usize) -> Read<()> {
        // A P2P record's own entry must stand before its tensor, which is met on the way.
        let place = self.op.arguments.len();
        if let Some(forms) = &mut self.forms
            && let Some(known) = forms.read(&mut self.cursor)
        {
            self.insert(place, known);
            return Ok(());
        }
        let start = self.cursor.at;
        self.cursor.at += 1;
        if self.cursor.eat(b'}')? {
            return Ok(());
        }
        let mut known = Known::default();
        let mut spelling = Spelling::default();
        loop {
            let range = self.cursor.string()?;
            self.cursor.expect(b':', "':' after a key")?;
            let first = self.cursor.peek()?;
            let value_at = self.cursor.at;
            let key = Key::of(&self.cursor.bytes[range.clone()]).filter(|key| key.takes(first));
            if let Some(key) = key {
                let raw = self.raw(first)?;
                known.set(key, raw);
                spelling.push(key, first, value_at..self.cursor.at);
            } else {
                spelling.spoil();
                self.path.push(Segment::Key(self.text(range)));
                self.value(depth + 1)?;
                self.path.pop();
            }
            if !self.cursor.eat(b',')? {
                break;
            }
        }
        self.cursor.expect(b'}', "',' or '}'")?;
        if let Some(forms) = &mut self.forms {
            forms.learn(&self.cursor.bytes[start..self.cursor.at], start, &spelling);
        }
        self.insert(place, known);
        Ok(())
    }

    fn insert(&mut self, place: usize, known: Known<'a>) {
        if let Some(value) = known.judge(self.numbers) {
            let slot = Slot { field: self.field, path: Path::from_slice(&self.path) };
            self.op.arguments.insert(place, Argument { slot, value });
        }
    }

    /// The value of a known key as it stands there.
    fn raw(&mut self, first: u8) -> Read<Raw<'a>> {
        Ok(match first {
            b'"' => Raw::Text(&self.cursor.bytes[self.cursor.string()?]),
            b'[' => Raw::List(self.integers()?),
            _ => Raw::Word(self.cursor.word()?),
        })
    }

    /// A flat list of integers; anything else in it is left out.
    fn integers(&mut self) -> Read<Shape> {
        let mut out = Shape::new();
        self.cursor.at += 1;
        if self.cursor.eat(b']')? {
            return Ok(out);
        }
        loop {
            if matches!(self.cursor.peek()?, b'"' | b'{' | b'[') {
                self.cursor.skip_value()?;
            } else {
                let word = self.cursor.word()?;
                out.extend(std::str::from_utf8(word).ok().and_then(|w| w.parse::<i64>().ok()));
            }
            if !self.cursor.eat(b',')? {
                break;
            }
        }
        self.cursor.expect(b']', "',' or ']'")?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Kinds;

    fn slots(body: &str) -> Vec<(String, Value<'_>)> {
        let op = parse_op(body.as_bytes(), Part::ALL).expect("a record");
        op.arguments.into_iter().map(|a| (a.slot.to_string(), a.value)).collect()
    }

    #[test]
    fn nested_containers_keywords_and_p2p_records() {
        let body = r#"{"input_args": [[{"type": "torch.Tensor", "dtype": "torch.float16", "shape": [2, 3], "Max": Infinity, "Min": -1}],
            {"k": {"Max": {"type": "torch.Tensor", "Max": 1.0, "Min": 0}}}],
            "input_kwargs": {"ops": [{"class_type": "torch.distributed.P2POp", "tensor": {"type": "torch.Tensor", "Max": "nan\t", "Min": 0},
              "op": "irecv", "peer": 3, "tag": 1, "group_id": "g"}], "group": {"type": "torch.ProcessGroup", "group_ranks": [0, 2], "group_id": "x"}}}"#;
        let found = slots(body);
        let names: Vec<&str> = found.iter().map(|(s, _)| s.as_str()).collect();
        assert_eq!(
            names,
            [
                "input_args[0][0]",
                "input_args[1].k.Max",
                "input_kwargs.ops[0]",
                "input_kwargs.ops[0].tensor",
                "input_kwargs.group"
            ]
        );
        assert!(matches!(&found[0].1, Value::Tensor(t) if t.kinds() == Kinds::POS_INF && t.numel() == 6));
        assert!(matches!(&found[2].1, Value::P2p(p) if p.peer == Some(3) && p.op == "irecv" && p.tag == 1));
        assert!(matches!(&found[3].1, Value::Tensor(t) if t.kinds() == Kinds::NAN));
        assert!(matches!(&found[4].1, Value::Group(g) if g.ranks == [0, 2] && g.id == "x"));
    }

    #[test]
    fn a_whole_output_may_be_one_tensor_or_a_dict() {
        let found = slots(r#"{"output": {"type": "torch.Tensor", "Max": NaN, "Min": NaN}}"#);
        assert_eq!(found[0].0, "output");
        let found = slots(r#"{"output": {"0": {"Max": "inf", "Min": "inf"}}}"#);
        assert!(matches!(&found[0].1, Value::Tensor(t) if t.kinds() == Kinds::POS_INF));
    }

    #[test]
    fn recorded_values() {
        let op = parse_op(
            br#"{"weight": [{"type": "torch.Tensor", "Max": NaN, "Min": NaN}], "bias": [null]}"#,
            Part::All { recorded: true },
        );
        let slots: Vec<String> = op.expect("a record").arguments.iter().map(|a| a.slot.to_string()).collect();
        assert_eq!(slots, ["weight[0]", "bias[0]"]);
        let op = parse_op(br#"{"type": "torch.Tensor", "Max": NaN, "Min": NaN}"#, Part::All { recorded: true })
            .expect("a record");
        assert_eq!(op.arguments.len(), 1);
        assert!(parse_op(b"null", Part::All { recorded: true }).is_ok());
    }

    #[test]
    fn registers_and_scalars() {
        let op = parse_op(
            br#"{"input_args": [{"type": "float", "value": -Infinity}, {"type": "str", "value": "nan"}], "is_nan": 1}"#,
            Part::ALL,
        );
        let op = op.expect("a record");
        assert_eq!(op.register, Some(true));
        assert_eq!(op.arguments[0].value, Value::Number(f64::NEG_INFINITY));
        assert_eq!(op.arguments[1].value, Value::Text("nan"));
        assert_eq!(parse_op(br#"{"is_nan": null}"#, Part::ALL).expect("a record").register, None);
    }

    #[test]
    fn depth_is_bounded_not_fatal() {
        let deep = |n: usize| format!("{{\"output\": {}{}}}", "[".repeat(n), "]".repeat(n));
        assert!(parse_op(deep(400).as_bytes(), Part::ALL).is_ok());
        assert!(matches!(parse_op(deep(100_000).as_bytes(), Part::ALL), Err(Stop::Unexpected { .. })));
    }

    #[test]
    fn no_bytes_panic() {
        let body = br#"{"input_args": [{"type": "torch.Tensor", "shape": [2], "Max": 1e5}, "\u00"], "is_nan": 0}"#;
        for cut in 0..body.len() {
            let _ = parse_op(&body[..cut], Part::All { recorded: cut % 2 == 0 });
            let mut broken = body.to_vec();
            broken[cut] = b'"';
            let _ = parse_op(&broken, Part::ALL);
        }
    }
}
