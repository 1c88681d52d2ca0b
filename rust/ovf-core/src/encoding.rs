//! The bytes of a written summary: one rank, small, versioned, checked.
//!
//! ```text
//!  0   8  magic  89 'O' 'V' 'F' 'S' 0D 0A 1A   (a text-mode copy breaks it)
//!  8   4  format version, little-endian like all numbers here
//! 12   8  xxh3 of everything from byte 20 on
//! 20   8  length of everything from byte 28 on
//! 28      head: length (4) and postcard of Head
//!         body: raw length (8), packed length (8), zstd of postcard of Body
//!         details: the same of a list of (op, Detail)
//! ```
//!
//! The body is what matching and ordering need, of every rank; details are looked at for the few ranks with a
//! finding, so they are a section of their own and stay packed until then.
//!
//! Same summary, same bytes: postcard has one spelling a value, and zstd is run with fixed parameters on one thread.
//! Postcard names no fields, so [`FORMAT`] is raised whenever the shape *or the meaning* of anything inside
//! changes (a test holds the shape); a file of another format is refused.
//!
//! Bytes from elsewhere are hostile: lengths are checked against what is there and against [`SECTION_LIMIT`] before
//! anything is reserved, the checksum comes before decoding, and decoding reserves no more than what it has read
//! accounts for.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::detail::Detail;
use crate::error::{Error, ErrorKind, Result};
use crate::op::Rank;
use crate::report::Unreadable;
use crate::timeline::Timeline;

/// Version of everything in this file.
pub const FORMAT: u32 = 3;

const MAGIC: [u8; 8] = *b"\x89OVFS\r\n\x1a";
/// Bytes in front of the head.
const PREFIX: usize = 28;
/// Raw bytes of a section: far more than a real rank needs, far less than a machine has.
const SECTION_LIMIT: u64 = 256 << 20;
/// Bytes of a head.
const HEAD_LIMIT: usize = 16 << 20;
/// Higher levels take several times as long and save a few percent.
const LEVEL: i32 = 6;

/// Who a summary is about, and under what it was made: readable without unpacking.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// Version of ovf that wrote it.
    pub(crate) written_by: String,
    /// Fingerprint of the rules it was made under.
    pub(crate) rules: u64,
    /// Step number, where the dump's path names one.
    pub(crate) step: Option<u64>,
    /// Folder of the step below the dump root.
    pub(crate) step_label: String,
    /// Remarks about the step's folder.
    pub(crate) notes: Vec<String>,
    /// Global rank.
    pub(crate) rank: Rank,
    /// Folder name of the rank.
    pub(crate) label: String,
    /// The dump file, as the report shows it.
    pub(crate) path: String,
}

/// What matching, ordering and the report need of every rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) timeline: Option<Timeline>,
    pub(crate) unreadable: Option<Unreadable>,
}

/// The details of a rank's ops, still packed.
#[derive(Debug, Clone)]
pub(crate) struct Packed {
    raw: u64,
    bytes: Vec<u8>,
}

/// Writes a summary.
///
/// # Errors
/// [`ErrorKind::Format`] where it is larger than a reader accepts.
pub(crate) fn encode(head: &Head, body: &Body, details: &[(u32, Detail)]) -> Result<Vec<u8>> {
    let path = Path::new(&head.path);
    let failed = |what: &str| Error::new(ErrorKind::Format, path, format!("no summary can be written: {what}"));
    let head = postcard::to_stdvec(head).map_err(|e| failed(&e.to_string()))?;
    if head.len() > HEAD_LIMIT {
        return Err(failed("its names are too long"));
    }
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(FORMAT.to_le_bytes());
    out.extend([0; 16]);
    out.extend((head.len() as u32).to_le_bytes());
    out.extend(head);
    let body = postcard::to_stdvec(body).map_err(|e| failed(&e.to_string()))?;
    let details = postcard::to_stdvec(details).map_err(|e| failed(&e.to_string()))?;
    for raw in [body, details] {
        if raw.len() as u64 > SECTION_LIMIT {
            return Err(failed("it is too large; analyse this dump where it lies"));
        }
        let packed = zstd::bulk::compress(&raw, LEVEL).map_err(|e| failed(&e.to_string()))?;
        out.extend((raw.len() as u64).to_le_bytes());
        out.extend((packed.len() as u64).to_le_bytes());
        out.extend(packed);
    }
    let behind = (out.len() - PREFIX) as u64;
    out[20..28].copy_from_slice(&behind.to_le_bytes());
    let sum = xxh3_64(&out[20..]);
    out[12..20].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Reads a summary; its details stay packed.
///
/// # Errors
/// [`ErrorKind::Format`]: no summary, another version, cut, or changed since it was written.
pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<(Head, Body, Packed)> {
    let (head, mut rest) = checked(bytes, path)?;
    let body = section(&mut rest).ok_or_else(|| damaged(path))?;
    let details = section(&mut rest).filter(|_| rest.is_empty()).ok_or_else(|| damaged(path))?;
    let fits = |b: &Body| b.timeline.as_ref().is_none_or(|t| t.rank == head.rank && t.is_sound());
    let body: Body = unpack(&body).filter(fits).ok_or_else(|| damaged(path))?;
    Ok((head, body, details.to_owned()))
}

/// Whether the bytes begin as a summary does.
pub(crate) fn is_summary(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Reads only who a summary is about.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_head(bytes: &[u8], path: &Path) -> Result<Head> {
    checked(bytes, path).map(|(head, _)| head)
}

impl Packed {
    /// The details; nothing where the section is damaged (the checksum has said that it is as written).
    pub(crate) fn open(&self) -> Vec<(u32, Detail)> {
        unpack(&Section { raw: self.raw, packed: &self.bytes }).unwrap_or_default()
    }
}

/// Checks prefix, length and sum; gives the head and what follows it.
fn checked<'b>(bytes: &'b [u8], path: &Path) -> Result<(Head, &'b [u8])> {
    let failed = |text: String, help: &'static str| Error::new(ErrorKind::Format, path, text).with_help(help);
    if bytes.len() < 12 || bytes[..8] != MAGIC {
        let same = bytes.iter().zip(&MAGIC).all(|(a, b)| a == b);
        return Err(if same && !bytes.is_empty() {
            failed(format!("the summary ends early, after {} bytes", bytes.len()), COPY_AGAIN)
        } else {
            failed("expected an ovf summary, found something else".to_owned(), "`ovf summarize` writes summaries")
        });
    }
    let format = number(&bytes[8..], 4) as u32;
    if format != FORMAT {
        return Err(failed(
            format!("a summary of format {format}; this ovf ({}) reads format {FORMAT}", env!("CARGO_PKG_VERSION")),
            "use the same ovf on all hosts, or summarise the rank again",
        ));
    }
    let behind = if bytes.len() < PREFIX { None } else { Some(number(&bytes[20..], 8)) };
    let here = bytes.len().saturating_sub(PREFIX) as u64;
    match behind {
        Some(behind) if behind == here => {}
        Some(behind) if behind < here => return Err(damaged(path)),
        _ => return Err(failed(format!("the summary ends early, after {} bytes", bytes.len()), COPY_AGAIN)),
    }
    if xxh3_64(&bytes[20..]) != number(&bytes[12..], 8) {
        return Err(damaged(path));
    }
    let rest = &bytes[PREFIX..];
    let (len, rest) = rest.split_at_checked(4).ok_or_else(|| damaged(path))?;
    let len = number(len, 4) as usize;
    let (head, rest) = rest.split_at_checked(len).filter(|_| len <= HEAD_LIMIT).ok_or_else(|| damaged(path))?;
    Ok((whole(head).ok_or_else(|| damaged(path))?, rest))
}

const COPY_AGAIN: &str = "copy it again, or summarise the rank again";

fn damaged(path: &Path) -> Error {
    Error::new(ErrorKind::Format, path, "the summary is damaged: its checksum does not fit its bytes")
        .with_help(COPY_AGAIN)
}

struct Section<'b> {
    raw: u64,
    packed: &'b [u8],
}

impl Section<'_> {
    fn to_owned(&self) -> Packed {
        Packed { raw: self.raw, bytes: self.packed.to_vec() }
    }
}

fn section<'b>(rest: &mut &'b [u8]) -> Option<Section<'b>> {
    let (lengths, behind) = rest.split_at_checked(16)?;
    let (raw, len) = (number(lengths, 8), number(&lengths[8..], 8));
    if raw > SECTION_LIMIT {
        return None;
    }
    let (packed, behind) = behind.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = behind;
    Some(Section { raw, packed })
}

fn unpack<T: DeserializeOwned>(section: &Section) -> Option<T> {
    // Never more than `raw` bytes, whatever the frame says.
    let raw = zstd::bulk::decompress(section.packed, section.raw as usize).ok()?;
    if raw.len() as u64 == section.raw { whole(&raw) } else { None }
}

/// Decodes a value that takes up all of `bytes`.
fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

/// The first `n` bytes as a little-endian number; the caller has checked that they are there.
fn number(bytes: &[u8], n: usize) -> u64 {
    bytes[..n].iter().rev().fold(0, |value, &b| value << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, RankBytes, StepFacts, StepName, Summary, reduce, summarise_bytes};

    const GROUP: &str = r#"{"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "a"}"#;

    fn tensor(max: &str) -> String {
        format!(
            r#"{{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": {max}, "Min": -1.0, "Mean": 0.0, "Norm": 1.0}}"#
        )
    }

    /// A dump with something in every list of a timeline.
    fn written() -> Vec<u8> {
        let (fine, bad, low) = (tensor("1.0"), tensor("NaN"), tensor("-Infinity"));
        let group = format!(r#""input_kwargs": {{"group": {GROUP}}}"#);
        let dump = format!(
            r#"{{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {{
            "Torch.full.0.forward": {{"input_args": [], "input_kwargs": {{}}, "output": [{low}]}},
            "Torch.log.0.forward": {{"input_args": [{fine}], "input_kwargs": {{}}, "output": [{bad}]}},
            "Distributed.all_reduce.0.forward": {{"input_args": [{bad}], {group}, "output": [{bad}]}},
            "Torch.mul.0.forward": {{"input_args": [{bad}], "input_kwargs": {{}}, "output": [{bad}]}},
            "Functional.linear.0.forward": {{"input_args": [{fine}, {low}], "input_kwargs": {{}}, "output": [{bad}]}},
            "Functional.linear.0.backward": {{"input": [{fine}], "output": [{bad}]}}}}}}"#
        );
        let stack = br#"{"0": [["Torch.log.0.forward"], ["File a.py, line 1, in f, \n x"]]}"#;
        let bytes = RankBytes {
            rank: 1,
            label: "rank1",
            path: "d/rank1/dump.json",
            dump: dump.as_bytes(),
            construct: Some(br#"{"Torch.log.0.forward": "Module.a.L.forward.0"}"#),
            stack: Some(stack),
        };
        let step = StepName { number: Some(3), label: "step3".to_owned(), notes: vec!["a remark".to_owned()] };
        summarise_bytes(&bytes, &step, &Options::default(), &false.into()).expect("a summary")
    }

    fn sign(bytes: &mut [u8]) {
        let behind = (bytes.len() - PREFIX) as u64;
        bytes[20..28].copy_from_slice(&behind.to_le_bytes());
        let sum = xxh3_64(&bytes[20..]);
        bytes[12..20].copy_from_slice(&sum.to_le_bytes());
    }

    fn raw(section: &Section) -> Vec<u8> {
        zstd::bulk::decompress(section.packed, section.raw as usize).expect("zstd")
    }

    #[test]
    fn the_shape_is_that_of_this_format() {
        let bytes = written();
        let (_, mut rest) = checked(&bytes, Path::new("s")).expect("whole");
        let sections = [section(&mut rest).expect("body"), section(&mut rest).expect("details")].map(|s| raw(&s));
        // When this number changes, old files are read wrongly: raise FORMAT, then put the new number here.
        assert_eq!((FORMAT, xxh3_64(&sections.concat())), (3, 10_488_958_024_806_100_967));
    }

    /// Bytes with a right checksum are not to be trusted either.
    #[test]
    fn hostile_bytes_end_in_an_error_or_a_report() {
        let good = written();
        let (head, mut rest) = checked(&good, Path::new("s")).expect("whole");
        let [body, details] =
            [section(&mut rest).expect("body"), section(&mut rest).expect("details")].map(|s| raw(&s));
        let head = postcard::to_stdvec(&head).expect("head");
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below.max(1)
        };
        let mut read = 0;
        for round in 0..4000 {
            let mut parts = [head.clone(), body.clone(), details.clone()];
            let part = &mut parts[[1, 1, 1, 2, 0][round % 5]];
            for _ in 0..=random(3) {
                let at = random(part.len());
                part[at] = [0, 1, 0x7f, 0x80, 0xff, random(256) as u8][random(6)];
            }
            let mut out = good[..PREFIX].to_vec();
            out.extend((parts[0].len() as u32).to_le_bytes());
            out.extend(&parts[0]);
            for raw in &parts[1..] {
                let packed = zstd::bulk::compress(raw, 1).expect("zstd");
                out.extend((raw.len() as u64).to_le_bytes());
                out.extend((packed.len() as u64).to_le_bytes());
                out.extend(packed);
            }
            sign(&mut out);
            let options = Options::default();
            if let Ok(summary) = Summary::decode(&out, Path::new("s"), &options.rules) {
                read += 1;
                let report = reduce(vec![summary], StepFacts::default(), &options).expect("a report");
                serde_json::to_string(&report).expect("JSON");
            }
        }
        assert!(read > 100, "only {read} were read: nothing was tested");
    }

    #[test]
    fn lengths_are_not_believed() {
        let good = written();
        let head = number(&good[PREFIX..], 4) as usize;
        let at = PREFIX + 4 + head;
        for (place, value) in [(at, u64::MAX), (at, SECTION_LIMIT + 1), (at, 1 << 27), (at + 8, u64::MAX), (at + 8, 1)]
        {
            let mut bytes = good.clone();
            bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
            sign(&mut bytes);
            assert!(decode(&bytes, Path::new("s")).is_err());
        }
        let mut bytes = good.clone();
        bytes[PREFIX..PREFIX + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        sign(&mut bytes);
        assert!(decode(&bytes, Path::new("s")).is_err());
    }
}
