//! Packed bytes -> the bytes that were packed: gzip and zstd, told by their first bytes and not by a name.
//!
//! In: a whole file in memory ([`unpack`]) or a reader ([`Unpacker`]). Out: plain bytes. A JSON file begins with
//! neither magic number, so nothing that is not packed is taken for it, and an object that a server unpacked on the
//! way is read all the same.
//!
//! Packed bytes are hostile: a few kilobytes may stand for terabytes. What comes out is bounded by
//! [`FREE`] + [`RATIO`] × what went in (dumps pack 10 to 60 times, gzip cannot pass 1,032), and what is held in memory
//! also by [`LARGEST`]. A stream that ends early or fails its checksum gives what stands before that, and says so:
//! a dump cut by a full disk is as good packed as it is plain.

use std::io::{self, BufReader, Chain, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

/// Unpacked bytes that are never too many.
const FREE: u64 = 256 << 20;
/// Unpacked bytes allowed for each packed one beyond [`FREE`].
const RATIO: u64 = 1000;
/// Unpacked bytes held in memory for one file.
pub const LARGEST: u64 = 8 << 30;
/// Bytes asked of a source at once.
const CHUNK: usize = 1 << 20;

/// How a packed file's name goes on.
pub(crate) const PACKED: [&str; 2] = [".gz", ".zst"];

const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// How bytes are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gzip,
    Zstd,
}

impl Packing {
    fn of(start: &[u8]) -> Option<Self> {
        if start.starts_with(&GZIP) {
            Some(Self::Gzip)
        } else if start.starts_with(&ZSTD) {
            Some(Self::Zstd)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}

/// What came out of packed bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The bytes, as far as they could be had.
    pub bytes: Vec<u8>,
    /// Why they are not all, or not to be trusted.
    pub problem: Option<String>,
}

/// Unpacks a file; `None` where it is not packed.
#[must_use]
pub fn unpack(packed: &[u8]) -> Option<Unpacked> {
    let packing = Packing::of(packed)?;
    let mut bytes = Vec::new();
    // A hint only: what it says is hostile, too.
    let hint = told_size(packing, packed).min(packed.len() as u64 * RATIO).min(LARGEST);
    let _ = bytes.try_reserve_exact(hint as usize + 1);
    let mut unpacker = match Unpacker::new(packed) {
        Ok(unpacker) => unpacker.take(LARGEST + 1),
        Err(error) => return Some(Unpacked { bytes, problem: Some(error.to_string()) }),
    };
    let problem = match unpacker.read_to_end(&mut bytes) {
        Err(error) => Some(error.to_string()),
        Ok(_) if bytes.len() as u64 > LARGEST => Some(format!("is more than {} GiB when unpacked", LARGEST >> 30)),
        Ok(_) => None,
    };
    Some(Unpacked { bytes, problem })
}

/// The unpacked size that packed bytes tell of; 0 where they do not.
fn told_size(packing: Packing, packed: &[u8]) -> u64 {
    match packing {
        Packing::Gzip => packed.last_chunk::<4>().map_or(0, |b| u64::from(u32::from_le_bytes(*b))),
        Packing::Zstd => zstd::zstd_safe::get_frame_content_size(packed).ok().flatten().unwrap_or(0),
    }
}

/// A reader that counts.
struct Counted<R> {
    reader: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(into)?;
        self.count.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

type Start<R> = Chain<Cursor<Vec<u8>>, Counted<R>>;

enum Decoder<R: Read> {
    Plain(Start<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Start<R>>>>),
    Zstd(zstd::stream::read::Decoder<'static, BufReader<Start<R>>>),
}

/// A reader of what a reader's bytes were packed from; plain bytes pass.
pub struct Unpacker<R: Read> {
    decoder: Decoder<R>,
    packing: Option<Packing>,
    packed: Arc<AtomicU64>,
    out: u64,
}

impl<R: Read> Unpacker<R> {
    /// Looks at the first bytes of `reader`.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn new(reader: R) -> io::Result<Self> {
        let packed = Arc::new(AtomicU64::new(0));
        let mut reader = Counted { reader, count: Arc::clone(&packed) };
        let mut start = Vec::new();
        reader.by_ref().take(ZSTD.len() as u64).read_to_end(&mut start)?;
        let packing = Packing::of(&start);
        let whole = Cursor::new(start).chain(reader);
        let decoder = match packing {
            None => Decoder::Plain(whole),
            Some(Packing::Gzip) => Decoder::Gzip(Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, whole)))),
            Some(Packing::Zstd) => {
                Decoder::Zstd(zstd::stream::read::Decoder::with_buffer(BufReader::with_capacity(CHUNK, whole))?)
            }
        };
        Ok(Self { decoder, packing, packed, out: 0 })
    }

    /// Bytes taken from the reader so far.
    #[must_use]
    pub fn packed(&self) -> u64 {
        self.packed.load(Ordering::Relaxed)
    }
}

impl<R: Read> Read for Unpacker<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = match &mut self.decoder {
            Decoder::Plain(reader) => return reader.read(into),
            Decoder::Gzip(reader) => reader.read(into),
            Decoder::Zstd(reader) => reader.read(into),
        };
        let name = self.packing.map_or("packed", Packing::name);
        let n = n.map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(e.kind(), format!("the {name} data ends early; {} bytes came out of it", self.out))
            }
            io::ErrorKind::Interrupted => e,
            // What the source says about itself (a lost connection) passes as it is.
            _ if matches!(e.get_ref(), Some(inner) if inner.is::<Foreign>()) => e,
            kind => io::Error::new(
                kind,
                format!("the {name} data is damaged behind {} bytes that came out of it: {e}", self.out),
            ),
        })?;
        self.out += n as u64;
        if self.out > FREE + RATIO.saturating_mul(self.packed()) {
            let text = format!("unpacks to more than {RATIO} times its size, which no dump does: refused");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        Ok(n)
    }
}

/// An error of the source under an [`Unpacker`], not of what it holds.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Foreign(pub String);

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("in memory");
        encoder.finish().expect("in memory")
    }

    fn zstd_of(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 1).expect("in memory")
    }

    fn text() -> Vec<u8> {
        (0..20_000).flat_map(|i| format!("{{\"op.{i}\": {}}}\n", i * 7919 % 1013).into_bytes()).collect()
    }

    #[test]
    fn both_kinds_come_back_and_plain_bytes_are_not_taken_for_packed() {
        let text = text();
        for packed in [gzip(&text), zstd_of(&text)] {
            assert_eq!(unpack(&packed), Some(Unpacked { bytes: text.clone(), problem: None }));
            let mut out = Vec::new();
            Unpacker::new(packed.as_slice()).expect("starts").read_to_end(&mut out).expect("whole");
            assert!(out == text);
        }
        assert_eq!(unpack(&text), None);
        assert_eq!(unpack(b""), None);
        assert_eq!(unpack(b"\x1f\x8b"), None);
        let mut out = Vec::new();
        Unpacker::new(b"{}".as_slice()).expect("starts").read_to_end(&mut out).expect("plain");
        assert_eq!(out, b"{}");
    }

    #[test]
    fn several_members_one_after_the_other_are_one_file() {
        for pack in [gzip, zstd_of] {
            let both: Vec<u8> = [pack(b"{\"a\": 1,"), pack(b"\"b\": 2}")].concat();
            assert_eq!(unpack(&both).expect("packed").bytes, b"{\"a\": 1,\"b\": 2}");
        }
    }

    #[test]
    fn cut_and_changed_bytes_give_what_stands_before_them() {
        let text = text();
        for packed in [gzip(&text), zstd_of(&text)] {
            let cut = unpack(&packed[..packed.len() - 9]).expect("packed");
            assert!(text.starts_with(&cut.bytes));
            assert!(cut.problem.expect("said").contains("ends early"));
            for at in (4..packed.len()).step_by(1009) {
                let mut changed = packed.clone();
                changed[at] ^= 0x41;
                let _ = unpack(&changed); // any answer, no panic
                let _ = unpack(&packed[..at]);
            }
        }
        // Checksums are looked at: the last byte but four of a gzip file is one.
        let mut changed = gzip(&text);
        let at = changed.len() - 6;
        changed[at] ^= 1;
        assert!(unpack(&changed).expect("packed").problem.is_some());
    }

    #[test]
    fn a_bomb_is_refused_and_costs_little() {
        let zeros = vec![0_u8; 1 << 20];
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("starts");
        for _ in 0..400 {
            encoder.write_all(&zeros).expect("in memory");
        }
        let bomb = encoder.finish().expect("in memory");
        assert!(bomb.len() < 100_000);
        let out = unpack(&bomb).expect("packed");
        assert!(out.problem.expect("refused").contains("1000 times"));
        assert!(out.bytes.len() < 500 << 20);
    }
}
