//! Bytes -> the values of one op. The only room that knows the shape of a record.
//!
//! In: one record's bytes. Out: an [`Op`] that borrows from them. Containers are searched to any depth up to
//! [`MAX_DEPTH`] (msProbe itself stops at 400), keyword arguments, parameters and P2P records too. Keys may stand in
//! any order; a key that means something to us (`Max`, `shape`, ...) but holds a container is a user's dict key.

mod known;
mod template;

use std::ops::Range;

use self::known::{Key, Known, Raw};
use self::template::Templates;
pub(crate) use self::template::TensorNumbers;
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

    /// The part with all there is.
    fn whole(self) -> Self {
        if self == Self::Inputs { Self::ALL } else { self }
    }
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
    Ok(read(body, part, Numbers::All)?.op)
}

fn read(body: &[u8], part: Part, numbers: Numbers) -> Read<Reader<'_>> {
    let op = Op { arguments: Vec::with_capacity(ARGUMENTS), ..Op::default() };
    let cursor = Cursor::new(body, 0);
    let mut reader = Reader { cursor, op, path: Path::new(), field: Field::Recorded, numbers, tensors: Vec::new() };
    reader.record(part)?;
    Ok(reader)
}

/// Reads many records of one file, the fast way: the same answers as [`parse_op`], but for the numbers nobody asks for.
#[derive(Debug)]
pub(crate) struct Parser<'a> {
    templates: Templates<'a>,
    numbers: Numbers,
    /// The last op that has no template.
    single: Op<'a>,
}

impl<'a> Parser<'a> {
    pub(crate) fn new(numbers: Numbers) -> Self {
        Self { templates: Templates::default(), numbers, single: Op::default() }
    }

    /// Reads the record `body`.
    ///
    /// # Errors
    /// As [`parse_op`].
    pub(crate) fn op(&mut self, body: &'a [u8], part: Part) -> Read<&Op<'a>> {
        if let Some(id) = self.templates.find(body, part, self.numbers) {
            return Ok(self.templates.op(id));
        }
        if self.templates.learns()
            && let Some(reader) = read(body, part.whole(), self.numbers).ok().map(|r| r.only(part))
        {
            match self.templates.learn(body, part, reader.op, reader.tensors) {
                Ok(id) => return Ok(self.templates.op(id)),
                Err(op) => self.single = op,
            }
        } else {
            self.single = read(body, part, self.numbers)?.op;
        }
        Ok(&self.single)
    }
}

/// The op of a record, and where the statistics of its tensors stand. Nothing where it is no record.
pub(crate) fn parse_with_places(body: &[u8], part: Part) -> Option<(Op<'_>, Vec<TensorNumbers<'_>>)> {
    let reader = read(body, part.whole(), Numbers::OfNonFinite).ok()?.only(part);
    Some((reader.op, reader.tensors))
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
    numbers: Numbers,
    /// Where the numbers of each tensor stand.
    tensors: Vec<TensorNumbers<'a>>,
}

impl<'a> Reader<'a> {
    /// Without what [`Part::Inputs`] passes over; where its numbers stand is kept.
    fn only(mut self, part: Part) -> Self {
        if part == Part::Inputs {
            let arguments = &self.op.arguments;
            let is_output = |at: usize| arguments[at].slot.field == Field::Output;
            for tensor in &mut self.tensors {
                tensor.argument = tensor
                    .argument
                    .filter(|&at| !is_output(at))
                    .map(|at| at - (0..at).filter(|&i| is_output(i)).count());
            }
            self.op.arguments.retain(|a| a.slot.field != Field::Output);
        }
        self
    }

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
        self.cursor.at += 1;
        if self.cursor.eat(b'}')? {
            return Ok(());
        }
        let mut known = Known::default();
        let mut places = [const { None }; 4];
        loop {
            let range = self.cursor.string()?;
            self.cursor.expect(b':', "':' after a key")?;
            let first = self.cursor.peek()?;
            let start = self.cursor.at;
            let key = Key::of(&self.cursor.bytes[range.clone()]).filter(|key| key.takes(first));
            if let Some(key) = key {
                let raw = self.raw(first)?;
                if let Key::Statistic(which) = key {
                    places[usize::from(which)] = (first != b'"').then_some(start..self.cursor.at);
                }
                known.set(key, raw);
            } else {
                self.path.push(Segment::Key(self.text(range)));
                self.value(depth + 1)?;
                self.path.pop();
            }
            if !self.cursor.eat(b',')? {
                break;
            }
        }
        self.cursor.expect(b'}', "',' or '}'")?;
        let raws = known.raws;
        if let Some(value) = known.judge(self.numbers) {
            if place < self.op.arguments.len() {
                let moved = self.tensors.iter_mut().filter(|t| t.argument >= Some(place));
                moved.for_each(|t| t.argument = t.argument.map(|at| at + 1));
            }
            if matches!(value, Value::Tensor(_)) {
                self.tensors.push(TensorNumbers { argument: Some(place), raws, places });
            }
            let slot = Slot { field: self.field, path: Path::from_slice(&self.path) };
            self.op.arguments.insert(place, Argument { slot, value });
        }
        Ok(())
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

    /// Records of a few kinds with other numbers, spacing and damage each time: the templates must never show.
    #[test]
    fn templates_never_show() {
        let mut state = 1u64;
        let mut roll = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % sides
        };
        let numbers = ["1.5", "NaN", "-Infinity", "null", "1e5", "\"nan\"", "[1]", "", "1.2.3", "-0.0", "true", "7 "];
        let mut records = Vec::new();
        for _ in 0..4000 {
            let mut n = || numbers[if roll(3) > 0 { roll(2) } else { roll(numbers.len()) }];
            let tensor = format!(
                r#"{{"type": "torch.Tensor", "dtype": "torch.float16", "shape": [2, 3], "Max": {}, "Min": {}, "Mean": {}, "Norm": {}, "requires_grad": true}}"#,
                n(),
                n(),
                n(),
                n()
            );
            let nested = format!(r#"{{"Max": {}, "inner": {tensor}, "Min": {}}}"#, n(), n());
            let p2p =
                format!(r#"{{"class_type": "torch.distributed.P2POp", "tensor": {tensor}, "op": "isend", "peer": 3}}"#);
            let argument = [&tensor, &tensor, &nested, &p2p][roll(4)];
            let mut record = format!(r#"{{"input_args": [{argument}, {tensor}, {}], "output": [{tensor}]}}"#, "1");
            match roll(12) {
                0 => record = record.replace(", ", ",\n   "),
                1 => record.truncate(roll(record.len())),
                2 => record.insert(roll(record.len()), ['"', '{', ']', '\\', ' ', 'x'][roll(6)]),
                _ => {}
            }
            records.push(record);
        }
        let mut parser = Parser::new(Numbers::All);
        let mut hits = 0;
        for record in &records {
            for part in [Part::ALL, Part::Inputs, Part::All { recorded: true }] {
                let expected = format!("{:?}", parse_op(record.as_bytes(), part));
                let known = parser.templates.hits();
                let found = format!("{:?}", parser.op(record.as_bytes(), part));
                hits += parser.templates.hits() - known;
                assert_eq!(found, expected, "{record}");
            }
        }
        assert!(hits > 2000, "{hits}");
    }
}
