//! A door for benches and fuzzers to rooms that are private otherwise (feature `bench`). No promise of any kind.
//!
//! `benches/` times each room alone; `fuzz/` compares what the fast path says of a dump with a plain reader's answer.

use std::hint::black_box;

use crate::op::{Argument, Kinds, Op, Value};
use crate::parse::{Numbers, Parser, Part, parse_op};
use crate::scan::Index;
use crate::structural::{Engine, Skipped};
use crate::token::Stop;

/// Names of the structural engines that this processor can run, the fastest last.
#[must_use]
pub fn engines() -> Vec<String> {
    Engine::available().iter().map(|e| format!("{e:?}")).collect()
}

/// Where the container that opens at `at` ends, whether a token in it may be non-finite, and whether it is all ASCII,
/// by the engine of that name; `None` when the bytes end first (or there is no such engine).
#[must_use]
pub fn skip(engine: &str, bytes: &[u8], at: usize) -> Option<(usize, bool, bool)> {
    let engine = Engine::available().into_iter().find(|e| format!("{e:?}") == engine)?;
    match engine.skip(bytes, at) {
        Skipped::End(end, telling, ascii) => Some((end, telling, ascii)),
        Skipped::Open => None,
    }
}

/// Parses every record of an index; the number of values they hold.
#[must_use]
pub fn parse_all(bytes: &[u8], index: &Index) -> usize {
    let values = |body| black_box(parse_op(body, Part::ALL)).map_or(0, |op| op.arguments.len());
    index.entries.iter().map(|e| values(e.body(bytes))).sum()
}

/// What [`parse_record`] found at one place of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// dtype, shape, and Max, Min, Mean, Norm.
    Tensor(String, Vec<i64>, [Option<f64>; 4]),
    /// A number.
    Number(f64),
    /// Anything else: a text, a flag, null, a group, a point-to-point entry.
    Other,
}

/// The values of one record in file order: field, path below it, value. An error is the offset where reading stopped.
///
/// # Errors
/// The offset of the byte that cannot stand there; the record's length when it ends early.
#[allow(clippy::type_complexity)]
pub fn parse_record(body: &[u8]) -> Result<Vec<(String, Seen)>, usize> {
    let op = parse_op(body, Part::ALL).map_err(|stop| match stop {
        Stop::End => body.len(),
        Stop::Unexpected { at, .. } => at,
    })?;
    let seen = |a: Argument| {
        let value = match a.value {
            Value::Tensor(t) => Seen::Tensor(t.dtype.to_owned(), t.shape.to_vec(), [t.max, t.min, t.mean, t.norm]),
            Value::Number(n) => Seen::Number(n),
            _ => Seen::Other,
        };
        (a.slot.to_string(), value)
    };
    Ok(op.arguments.into_iter().map(seen).collect())
}

/// Reads all records of an index by spellings learnt on the way and exactly, and compares.
///
/// # Errors
/// The first record whose answers differ.
pub fn learnt_equals_exact(bytes: &[u8], index: &Index) -> Result<(), String> {
    for part in [Part::ALL, Part::All { recorded: true }, Part::Inputs] {
        for numbers in [Numbers::All, Numbers::OfNonFinite] {
            let mut learnt = Parser::new(numbers);
            for body in index.entries.iter().map(|e| e.body(bytes)) {
                let mut exact = parse_op(body, part);
                if let (Ok(op), Numbers::OfNonFinite) = (&mut exact, numbers) {
                    forget_finite(op);
                }
                let fast = learnt.op(body, part).map(|op| {
                    let mut op = op.clone();
                    if numbers == Numbers::OfNonFinite {
                        forget_finite(&mut op);
                    }
                    op
                });
                // NaN is equal to itself here.
                let (fast, exact) = (format!("{fast:?}"), format!("{exact:?}"));
                if fast != exact {
                    let body = String::from_utf8_lossy(body);
                    return Err(format!("{part:?} {numbers:?}: {body}\nlearnt {fast}\nexact  {exact}"));
                }
            }
        }
    }
    Ok(())
}

/// Makes statistics of finite tensors zero.
fn forget_finite(op: &mut Op) {
    for argument in &mut op.arguments {
        if let Value::Tensor(t) = &mut argument.value
            && t.kinds() == Kinds::NONE
        {
            for number in [&mut t.max, &mut t.min, &mut t.mean, &mut t.norm] {
                *number = number.map(|_| 0.0);
            }
        }
    }
}
