//! What a rank's files say about one op: its record, its forward call's record, module chain and stack, as they stand
//! there.
//!
//! In a local analysis details are read once the findings are known: each file is opened again, once a rank, and only
//! for ranks that have a finding; a file that has gone by then leaves its details empty. Where a summary leaves the
//! machine, the details of every op that may be asked for ([`asked`]) are read at once, by the same function, and
//! travel with it ([`crate::encoding`]).

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::context::contexts;
use crate::op::{Direction, OpName};
use crate::timeline::Timeline;
use crate::token::Cursor;

/// The bytes of one rank's files.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Files<'b> {
    pub(crate) dump: &'b [u8],
    pub(crate) construct: Option<&'b [u8]>,
    pub(crate) stack: Option<&'b [u8]>,
}

/// An op whose details are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'t> {
    /// Index in the rank's file order.
    pub(crate) op: u32,
    /// Key in `data`.
    pub(crate) name: &'t str,
    /// Where its record stands in the dump, offset and length; `(0, 0)` where not known.
    pub(crate) record: (u64, u64),
    /// Whether the forward call's record is asked for, too.
    pub(crate) forward: bool,
}

/// What the files say about one op.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    /// The record as it stands in the dump; empty where there is none.
    pub(crate) record: Vec<u8>,
    /// Of a backward op: the record of the forward call it belongs to.
    pub(crate) forward: Vec<u8>,
    /// The op, its module, that one's module, ... up to the root.
    pub(crate) chain: Vec<String>,
    /// Stack lines as recorded.
    pub(crate) stack: Vec<String>,
}

/// What the files say about each of the asked ops, in one pass over each file.
pub(crate) fn of(files: Files, asked: &[Asked]) -> Vec<Detail> {
    let names: Vec<&str> = asked.iter().map(|a| a.name).collect();
    let found = contexts(files.construct, files.stack, &names);
    let details = asked.iter().zip(found).map(|(a, context)| {
        let (at, len) = a.record;
        let record = at.checked_add(len).and_then(|end| files.dump.get(at as usize..end as usize)).unwrap_or_default();
        let name = OpName::parse(a.name);
        let forward = a.forward && name.direction == Direction::Backward && !record.is_empty();
        let forward = if forward { forward_record(files.dump, &name) } else { None };
        Detail {
            record: record.to_vec(),
            forward: forward.unwrap_or_default().to_vec(),
            chain: context.chain,
            stack: context.stack,
        }
    });
    details.collect()
}

/// The ops of a rank that a report or a trace may ask for, ascending: roots, the ops before the first ones, and
/// communications that delivered something bad.
pub(crate) fn asked(timeline: &Timeline) -> Vec<Asked<'_>> {
    let mut forward: Vec<u32> = timeline.candidates().map(|m| timeline.marks[m].at.op).collect();
    forward.sort_unstable();
    let mut all: Vec<Asked> = Vec::new();
    let marks = timeline.marks.iter().map(|m| (m.at.op, m.at.name.as_str(), m.record));
    let before =
        timeline.marks.iter().flat_map(|m| m.before.iter().map(|(at, record)| (at.op, at.name.as_str(), *record)));
    let got = timeline.events.iter().filter(|e| e.got.as_ref().is_some_and(|s| !s.kinds.is_finite()));
    let got = got.map(|e| (e.communication.op, timeline.names.name(e.communication.op), (0, 0)));
    for (op, name, record) in marks.chain(before).chain(got) {
        all.push(Asked { op, name, record, forward: forward.binary_search(&op).is_ok() });
    }
    // Marks stand first, so of one op the place of its record is kept.
    all.sort_by_key(|a| a.op);
    all.dedup_by_key(|a| a.op);
    all
}

/// Where the details of a rank's ops are to be had.
pub(crate) trait Source: Sync {
    /// What is known of each asked op, in that order.
    fn details(&self, asked: &[Asked]) -> Vec<Detail>;
}

/// The forward call of a backward op: a derivative goes bad where the forward input is special.
fn forward_record<'b>(bytes: &'b [u8], name: &OpName) -> Option<&'b [u8]> {
    let number = name.call_index?;
    let forward = if name.is_module() {
        format!("\"{}.forward.{number}\"", name.base)
    } else {
        format!("\"{}.{number}.forward\"", name.base)
    };
    let find = |key: &str| Some(memchr::memmem::find(bytes, key.as_bytes())? + key.len());
    let behind = find(&forward).or_else(|| if forward.is_ascii() { None } else { find(&in_ascii(&forward)) })?;
    let mut cursor = Cursor::new(bytes, behind);
    cursor.expect(b':', "':'").ok()?;
    cursor.skip_space();
    let start = cursor.at;
    cursor.skip_value().ok()?;
    bytes.get(start..cursor.at)
}

/// A text as Python's `json` writes it by default: what is not ASCII as UTF-16 in `\u` escapes.
fn in_ascii(text: &str) -> String {
    let mut out = String::with_capacity(2 * text.len());
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forward_call_is_found_however_its_name_is_written() {
        let name = OpName::parse("Module.模😀.L.backward.0");
        let plain = "{\"Module.模😀.L.forward.0\": {\"a\": 1}}";
        assert_eq!(forward_record(plain.as_bytes(), &name), Some(&b"{\"a\": 1}"[..]));
        let escaped = r#"{"Module.\u6a21\ud83d\ude00.L.forward.0": {"a": 1}}"#;
        assert_eq!(forward_record(escaped.as_bytes(), &name), Some(&b"{\"a\": 1}"[..]));
        assert_eq!(forward_record(b"{}", &name), None);
    }
}
