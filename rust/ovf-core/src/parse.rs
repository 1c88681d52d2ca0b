//! Bytes -> the values of one op. The only room that knows the shape of a record.
//!
//! In: one record's bytes. Out: an [`Op`] that borrows from them. Containers are searched to any depth up to
//! [`MAX_DEPTH`] (msProbe itself stops at 400), keyword arguments, parameters and P2P records too. Keys may stand in
//! any order; a key that means something to us (`Max`, `shape`, ...) but holds a container is a user's dict key.

use std::ops::Range;

use crate::op::{Argument, Field, GroupRef, Op, P2pRef, Path, Segment, Shape, Slot, TensorStat, Value};
use crate::structural::{Skipped, skip_container};
use crate::token::{Cursor, Read, Stop, number, quoted_number};

/// Deepest nesting that is searched.
pub(crate) const MAX_DEPTH: usize = 1024;

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

/// Reads the record `body`.
///
/// # Errors
/// A [`Stop`] with an offset relative to `body`.
pub(crate) fn parse_op(body: &[u8], part: Part) -> Read<Op<'_>> {
    let mut reader =
        Reader { cursor: Cursor::new(body, 0), op: Op::default(), path: Path::new(), field: Field::Recorded };
    reader.record(part)?;
    Ok(reader.op)
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

struct Reader<'a> {
    cursor: Cursor<'a>,
    op: Op<'a>,
    path: Path<'a>,
    field: Field,
}

/// What the known keys of one object said.
#[derive(Default)]
struct Known<'a> {
    kind: &'a [u8],
    class: &'a [u8],
    stat: TensorStat<'a>,
    has_shape: bool,
    has_stat: bool,
    value: Option<Value<'a>>,
    p2p: P2pRef<'a>,
    group_ranks: Option<Vec<u32>>,
    group_id: &'a str,
}

impl<'a> Reader<'a> {
    fn text(&self, range: Range<usize>) -> &'a str {
        // Raw text, escapes kept. Names with bytes that are not UTF-8 are cut there: they are only compared.
        let raw = &self.cursor.bytes[range];
        match std::str::from_utf8(raw) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&raw[..error.valid_up_to()]).unwrap_or(""),
        }
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
        self.cursor.at += 1;
        if self.cursor.eat(b'}')? {
            return Ok(());
        }
        let whole_is_a_value = recorded && self.looks_like_a_tensor();
        if whole_is_a_value {
            self.cursor.at = self.cursor.bytes.iter().position(|&b| b == b'{').unwrap_or(0);
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
        self.cursor.at += 1;
        if self.cursor.eat(b'}')? {
            return Ok(());
        }
        // A P2P record's own entry must stand before its tensor, which is met on the way.
        let place = self.op.arguments.len();
        let mut known = Known::default();
        loop {
            let range = self.cursor.string()?;
            self.cursor.expect(b':', "':' after a key")?;
            let bytes = self.cursor.bytes;
            if !self.known_key(&bytes[range.clone()], &mut known)? {
                self.path.push(Segment::Key(self.text(range)));
                self.value(depth + 1)?;
                self.path.pop();
            }
            if !self.cursor.eat(b',')? {
                break;
            }
        }
        self.cursor.expect(b'}', "',' or '}'")?;
        if let Some(value) = known.judge() {
            let slot = Slot { field: self.field, path: self.path.clone() };
            self.op.arguments.insert(place, Argument { slot, value });
        }
        Ok(())
    }

    /// Reads the value of a key that means something; false when the key or its value is the user's.
    fn known_key(&mut self, key: &[u8], known: &mut Known<'a>) -> Read<bool> {
        let first = self.cursor.peek()?;
        let is_container = matches!(first, b'{' | b'[');
        match key {
            b"Max" | b"Min" | b"Mean" | b"Norm" if !is_container => {
                let stat = self.statistic(first)?;
                known.has_stat = true;
                match key {
                    b"Max" => known.stat.max = stat,
                    b"Min" => known.stat.min = stat,
                    b"Mean" => known.stat.mean = stat,
                    _ => known.stat.norm = stat,
                }
            }
            b"type" | b"class_type" | b"dtype" | b"op" | b"group_id" if first == b'"' => {
                let range = self.cursor.string()?;
                match key {
                    b"type" => known.kind = &self.cursor.bytes[range],
                    b"class_type" => known.class = &self.cursor.bytes[range],
                    b"dtype" => known.stat.dtype = self.text(range),
                    b"op" => known.p2p.op = self.text(range),
                    _ => known.group_id = self.text(range),
                }
            }
            b"shape" if first == b'[' => {
                known.has_shape = true;
                known.stat.shape = self.integers()?;
            }
            b"group_ranks" if first == b'[' => {
                known.group_ranks = Some(self.integers()?.into_iter().filter_map(|n| n.try_into().ok()).collect());
            }
            b"peer" | b"tag" if !is_container && first != b'"' => {
                let word = self.cursor.word()?;
                let n = number(word);
                if key == b"peer" {
                    known.p2p.peer = n.filter(|n| *n >= 0.0).map(|n| n as u32);
                } else {
                    known.p2p.tag = n.map_or(0, |n| n as i64);
                }
            }
            b"value" if !is_container => {
                known.value = Some(if first == b'"' {
                    let range = self.cursor.string()?;
                    let text = self.text(range.clone());
                    // A float scalar may be written as text too; other texts stay text.
                    match quoted_number(&self.cursor.bytes[range]) {
                        Some(n) if is_number_type(known.kind) => Value::Number(n),
                        _ => Value::Text(text),
                    }
                } else {
                    let word = self.cursor.word()?;
                    match word {
                        b"true" | b"false" => Value::Flag(word == b"true"),
                        _ => number(word).map_or(Value::Null, Value::Number),
                    }
                });
            }
            b"requires_grad" | b"md5" | b"data_name" | b"tensor_stat_index" | b"md5_index" | b"dirty_valid_len"
                if !is_container =>
            {
                if key == b"tensor_stat_index" {
                    known.has_stat = true; // a tensor whose statistics were not flushed: unknown, not absent
                }
                self.cursor.skip_value()?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn statistic(&mut self, first: u8) -> Read<Option<f64>> {
        if first == b'"' {
            let range = self.cursor.string()?;
            return Ok(quoted_number(&self.cursor.bytes[range]));
        }
        Ok(number(self.cursor.word()?))
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

fn is_number_type(kind: &[u8]) -> bool {
    [b"float".as_slice(), b"int", b"double", b"numpy."].iter().any(|k| kind.starts_with(k))
}

impl<'a> Known<'a> {
    /// What the object is, if it is more than a container.
    fn judge(self) -> Option<Value<'a>> {
        if self.class.ends_with(b"P2POp") || (self.p2p.peer.is_some() && !self.p2p.op.is_empty()) {
            return Some(Value::P2p(P2pRef { group_id: self.group_id, ..self.p2p }));
        }
        if self.group_ranks.is_some() || self.kind.ends_with(b"ProcessGroup") {
            return Some(Value::Group(GroupRef { ranks: self.group_ranks.unwrap_or_default(), id: self.group_id }));
        }
        if self.has_stat || (self.has_shape && !self.stat.dtype.is_empty()) {
            return Some(Value::Tensor(self.stat));
        }
        if self.kind.ends_with(b"ReduceOp") {
            return self.value;
        }
        self.value
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
