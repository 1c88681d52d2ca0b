//! The keys of a record that mean something, and what the object that has them is.

use crate::op::{GroupRef, P2pRef, Shape, TensorStat, Value};
use crate::parse::Numbers;
use crate::token::{number, quoted_number};

/// A key that means something, if its value has the right form ([`Key::takes`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// `Max`, `Min`, `Mean`, `Norm`: 0 to 3.
    Statistic(u8),
    Type,
    ClassType,
    Dtype,
    Op,
    GroupId,
    Shape,
    GroupRanks,
    Peer,
    Tag,
    Value,
    /// A tensor whose statistics were not flushed.
    StatIndex,
    /// Not needed.
    Other,
}

impl Key {
    pub(crate) fn of(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"Max" => Self::Statistic(0),
            b"Min" => Self::Statistic(1),
            b"Mean" => Self::Statistic(2),
            b"Norm" => Self::Statistic(3),
            b"type" => Self::Type,
            b"class_type" => Self::ClassType,
            b"dtype" => Self::Dtype,
            b"op" => Self::Op,
            b"group_id" => Self::GroupId,
            b"shape" => Self::Shape,
            b"group_ranks" => Self::GroupRanks,
            b"peer" => Self::Peer,
            b"tag" => Self::Tag,
            b"value" => Self::Value,
            b"tensor_stat_index" => Self::StatIndex,
            b"requires_grad" | b"md5" | b"data_name" | b"md5_index" | b"dirty_valid_len" => Self::Other,
            _ => return None,
        })
    }

    /// Whether a value that starts with this byte is the key's; else key and value are the user's.
    pub(crate) fn takes(self, first: u8) -> bool {
        match self {
            Self::Type | Self::ClassType | Self::Dtype | Self::Op | Self::GroupId => first == b'"',
            Self::Shape | Self::GroupRanks => first == b'[',
            Self::Peer | Self::Tag => !matches!(first, b'{' | b'[' | b'"'),
            Self::Statistic(_) | Self::Value | Self::StatIndex | Self::Other => !matches!(first, b'{' | b'['),
        }
    }
}

/// A value as it stands in the file.
#[derive(Debug)]
pub(crate) enum Raw<'a> {
    /// Between the quotes, escapes kept.
    Text(&'a [u8]),
    /// A bare word or number.
    Word(&'a [u8]),
    /// A list of integers.
    List(Shape),
}

/// `Max`, `Min`, `Mean`, `Norm` as they stand in the file, and whether as text.
pub(crate) type Raws<'a> = [Option<(&'a [u8], bool)>; 4];

/// What the known keys of one object said.
#[derive(Debug, Default)]
pub(crate) struct Known<'a> {
    kind: &'a [u8],
    class: &'a [u8],
    dtype: &'a [u8],
    shape: Shape,
    pub(super) raws: Raws<'a>,
    has_shape: bool,
    has_stat: bool,
    value: Option<Value<'a>>,
    p2p: P2pRef<'a>,
    group_ranks: Option<Vec<u32>>,
    group_id: &'a [u8],
}

/// Raw text, escapes kept. Names with bytes that are not UTF-8 are cut there: they are only compared.
pub(crate) fn text(raw: &[u8]) -> &str {
    match std::str::from_utf8(raw) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&raw[..error.valid_up_to()]).unwrap_or(""),
    }
}

impl<'a> Known<'a> {
    /// Takes the value of a key; of two with one key the later counts.
    pub(crate) fn set(&mut self, key: Key, raw: Raw<'a>) {
        match (key, raw) {
            (Key::Statistic(which), Raw::Text(text)) => self.statistic(which, text, true),
            (Key::Statistic(which), Raw::Word(word)) => self.statistic(which, word, false),
            (Key::Type, Raw::Text(text)) => self.kind = text,
            (Key::ClassType, Raw::Text(text)) => self.class = text,
            (Key::Dtype, Raw::Text(text)) => self.dtype = text,
            (Key::Op, Raw::Text(op)) => self.p2p.op = text(op),
            (Key::GroupId, Raw::Text(text)) => self.group_id = text,
            (Key::Shape, Raw::List(shape)) => (self.has_shape, self.shape) = (true, shape),
            (Key::GroupRanks, Raw::List(ranks)) => {
                self.group_ranks = Some(ranks.into_iter().filter_map(|n| n.try_into().ok()).collect());
            }
            (Key::Peer, Raw::Word(word)) => {
                self.p2p.peer = number(word).filter(|n| *n >= 0.0).map(|n| n as u32);
            }
            (Key::Tag, Raw::Word(word)) => self.p2p.tag = number(word).map_or(0, |n| n as i64),
            // A float scalar may be written as text too; other texts stay text.
            (Key::Value, Raw::Text(raw)) => {
                self.value = Some(match quoted_number(raw) {
                    Some(n) if is_number_type(self.kind) => Value::Number(n),
                    _ => Value::Text(text(raw)),
                });
            }
            (Key::Value, Raw::Word(word)) => {
                self.value = Some(match word {
                    b"true" | b"false" => Value::Flag(word == b"true"),
                    _ => number(word).map_or(Value::Null, Value::Number),
                });
            }
            (Key::StatIndex, _) => self.has_stat = true, // unknown, not absent
            _ => {}
        }
    }

    fn statistic(&mut self, which: u8, text: &'a [u8], quoted: bool) {
        self.has_stat = true;
        self.raws[usize::from(which)] = Some((text, quoted));
    }

    /// What the object is, if it is more than a container.
    pub(crate) fn judge(self, numbers: Numbers) -> Option<Value<'a>> {
        if self.class.ends_with(b"P2POp") || (self.p2p.peer.is_some() && !self.p2p.op.is_empty()) {
            return Some(Value::P2p(P2pRef { group_id: text(self.group_id), ..self.p2p }));
        }
        if self.group_ranks.is_some() || self.kind.ends_with(b"ProcessGroup") {
            return Some(Value::Group(GroupRef {
                ranks: self.group_ranks.unwrap_or_default(),
                id: text(self.group_id),
            }));
        }
        if self.has_stat || (self.has_shape && !text(self.dtype).is_empty()) {
            return Some(Value::Tensor(self.tensor(numbers)));
        }
        self.value
    }

    fn tensor(self, numbers: Numbers) -> TensorStat<'a> {
        let [max, min, mean, norm] = statistics(&self.raws, numbers);
        TensorStat { dtype: text(self.dtype), shape: self.shape, max, min, mean, norm, keys: None }
    }
}

/// Max, Min, Mean and Norm.
pub(crate) fn statistics(raws: &Raws, numbers: Numbers) -> [Option<f64>; 4] {
    let finite = |raw: &Option<(&[u8], bool)>| raw.is_none_or(|(text, quoted)| !quoted && is_plainly_finite(text));
    let wanted = numbers == Numbers::All || !(finite(&raws[0]) && finite(&raws[1]));
    let mut out = [None; 4];
    for (out, raw) in out.iter_mut().zip(raws) {
        *out = match *raw {
            Some((b"NaN", false)) => Some(f64::NAN),
            Some((text, true)) => quoted_number(text),
            Some((text, false)) if !wanted && is_plainly_finite(text) => (text != b"null").then_some(0.0),
            Some((text, false)) => number(text),
            None => None,
        };
    }
    out
}

/// Whether a bare word is a decimal number far from any limit (or `null`), by its looks.
fn is_plainly_finite(word: &[u8]) -> bool {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if !digits.first().is_some_and(u8::is_ascii_digit) {
        return word == b"null";
    }
    let mut points = 0;
    let mut in_mantissa = |b: &u8| {
        points += usize::from(*b == b'.');
        b.is_ascii_digit() || (*b == b'.' && points == 1)
    };
    let mantissa = digits.iter().take_while(|&b| in_mantissa(b)).count();
    match &digits[mantissa..] {
        [] => mantissa < 64,
        [b'e' | b'E', exponent @ ..] => {
            let exponent = exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent);
            mantissa < 64 && matches!(exponent.len(), 1 | 2) && exponent.iter().all(u8::is_ascii_digit)
        }
        _ => false,
    }
}

fn is_number_type(kind: &[u8]) -> bool {
    [b"float".as_slice(), b"int", b"double", b"numpy."].iter().any(|k| kind.starts_with(k))
}
