//! The bytes of one file, mapped or read.
//!
//! In: a path. Out: [`Bytes`], and whether the file is still the one that was opened. A map costs no memory and no copy,
//! but a file that another process truncates while it is mapped ends ours with SIGBUS, and a network file system may be
//! slow or stale under a map. So a file is mapped only where that is safe as far as anybody can know, and read otherwise:
//!
//! | read instead of mapped | because |
//! | --- | --- |
//! | below 1 MiB | a map costs more than it saves |
//! | on NFS, Lustre, FUSE, CIFS, ... | another host may truncate it unseen; pages come one by one |
//! | written in the last ten seconds | msProbe rewrites a dump in place at each flush: it may be at it |
//! | [`Options::map`](crate::Options::map) is false | the user knows better |
//!
//! A packed file ([`crate::unpack`]) is unpacked into memory in any case.
//!
//! Either way the system is told that the file is read from front to back. Of files that are read, one a thread is in
//! memory at a time. Never writes.

use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

#[cfg(target_os = "linux")]
use rayon::prelude::*;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Watch;
use crate::unpack::{PACKED, unpack};

/// Files below this size are read.
const MAP_FROM: u64 = 1 << 20;

/// Read at once, between two words with the watch: some 10 ms of a network disk.
const CHUNK: u64 = 2 << 20;

/// Given back at once: a few milliseconds during which the map cannot grow.
#[cfg(target_os = "linux")]
const RELEASED: usize = 32 << 20;

/// How long after its last change a file counts as being written.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// The bytes of one file, mapped or owned; unpacked where it is packed.
pub struct Bytes {
    inner: Inner,
    path: PathBuf,
    stamp: Stamp,
    problem: Option<String>,
}

enum Inner {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Inner {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: Option<SystemTime>,
    /// Device and number of the file, where the system has them.
    identity: (u64, u64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        #[cfg(unix)]
        let identity = {
            use std::os::unix::fs::MetadataExt;
            (meta.dev(), meta.ino())
        };
        #[cfg(not(unix))]
        let identity = (0, 0);
        Self { size: meta.len(), modified: meta.modified().ok(), identity }
    }
}

impl Bytes {
    /// Maps or reads `path`. A leading UTF-8 byte order mark is skipped by [`Bytes::deref`], so offsets count from
    /// behind it. `map` says whether the file may be mapped.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] or [`ErrorKind::Io`].
    pub fn open(path: &Path, map: bool) -> Result<Self> {
        Self::read(path, map, &Watch::switch(&AtomicBool::new(false)))
    }

    /// As [`Bytes::open`], telling `watch` what is read.
    ///
    /// # Errors
    /// As [`Bytes::open`], and [`ErrorKind::Cancelled`] when the watch is stopped while the file is read.
    pub(crate) fn read(path: &Path, map: bool, watch: &Watch) -> Result<Self> {
        let fail = |e: std::io::Error| Error::io(path, &e);
        // Asked before opening: opening a pipe waits for its writer.
        let kind = std::fs::metadata(path).map_err(fail)?;
        if kind.is_dir() {
            return Err(Error::new(ErrorKind::Io(None), path, "is a folder, expected a file"));
        }
        if !kind.is_file() {
            return Err(Error::new(ErrorKind::Io(None), path, "is no regular file"));
        }
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        let stamp = Stamp::of(&meta);
        watch.begin(stamp.size);
        if map
            && stamp.size >= MAP_FROM
            && is_settled(&stamp, SystemTime::now())
            && is_local(&file)
            && let Some(mapped) = map_file(&file)
        {
            return Ok(Self::of(Inner::Mapped(mapped), path, stamp));
        }
        // Not beyond the size it had: a writer may append faster than we read.
        let limit = stamp.size.max(MAP_FROM);
        advise(&file);
        let mut bytes = Vec::new();
        let no_room = |_| Error::new(ErrorKind::Io(None), path, "does not fit in memory");
        bytes.try_reserve_exact(stamp.size as usize + 1).map_err(no_room)?;
        while (bytes.len() as u64) < limit {
            if watch.stopped() {
                return Err(Error::new(ErrorKind::Cancelled, path, "reading was stopped"));
            }
            let chunk = CHUNK.min(limit - bytes.len() as u64);
            let read = (&file).take(chunk).read_to_end(&mut bytes).map_err(fail)?;
            watch.advance(read as u64);
            if (read as u64) < chunk {
                break;
            }
        }
        Ok(Self::of(Inner::Owned(bytes), path, stamp))
    }

    fn of(inner: Inner, path: &Path, stamp: Stamp) -> Self {
        let (inner, problem) = match unpack(inner.bytes()) {
            Some(unpacked) => (Inner::Owned(unpacked.bytes), unpacked.problem),
            None => (inner, None),
        };
        Self { inner, path: path.to_path_buf(), stamp, problem }
    }

    /// As [`Bytes::open`], or the packed file that stands for one that is not there.
    ///
    /// # Errors
    /// As there, of the plain file.
    pub(crate) fn open_any(path: &Path, map: bool) -> Result<Self> {
        let plain = Self::open(path, map);
        if !matches!(&plain, Err(e) if e.kind == ErrorKind::NotFound) {
            return plain;
        }
        let mut packed = PACKED.iter().map(|end| {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        });
        packed.find(|p| p.is_file()).map_or(plain, |p| Self::open(&p, map))
    }

    /// Why a packed file could not be unpacked to its end, or as it was packed.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Gives the pages of a mapped file back; those that are looked at again come back by themselves.
    ///
    /// PERF: undoing a map costs some 50 ms a gigabyte. Threads of the caller's pool that have nothing else to do may do it
    /// beforehand.
    pub(crate) fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Inner::Mapped(map) = &self.inner {
            let release = |piece: usize| {
                let at = piece * RELEASED;
                let length = RELEASED.min(map.len() - at);
                // SAFETY: the map is read-only and shared with the file, so nothing is lost: its pages are read again.
                #[allow(unsafe_code)]
                let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, length) };
            };
            (0..map.len().div_ceil(RELEASED)).into_par_iter().with_max_len(1).for_each(release);
        }
    }

    /// What happened to the file since it was opened, in words; `None` when it is as it was.
    #[must_use]
    pub fn change(&self) -> Option<String> {
        let Ok(meta) = std::fs::metadata(&self.path) else {
            return Some("it is gone".to_owned());
        };
        let (then, now) = (&self.stamp, Stamp::of(&meta));
        if then.identity != now.identity {
            Some("another file has taken its place".to_owned())
        } else if then.size != now.size {
            Some(format!("it had {} bytes and now has {}", then.size, now.size))
        } else if then.modified != now.modified {
            Some("it was written again".to_owned())
        } else {
            None
        }
    }
}

/// Whether nobody seems to be writing the file. A clock that is behind the file system's says "no".
fn is_settled(stamp: &Stamp, now: SystemTime) -> bool {
    stamp.modified.is_none_or(|m| now.duration_since(m).is_ok_and(|age| age >= SETTLED_AFTER))
}

/// Whether the file is on a disk of this machine, as far as the system says.
#[cfg(target_os = "linux")]
fn is_local(file: &File) -> bool {
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)] // the type differs between targets
    rustix::fs::fstatfs(file).map_or(true, |fs| !REMOTE.contains(&(fs.f_type as u64 as u32)))
}

#[cfg(not(target_os = "linux"))]
fn is_local(_: &File) -> bool {
    true
}

/// Magic numbers of file systems whose files other machines write (linux/magic.h, and their own headers).
#[cfg(target_os = "linux")]
const REMOTE: [u32; 15] = [
    0x6969,      // NFS
    0x0bd0_0bd0, // Lustre
    0x6573_5546, // FUSE, and what stands on it: sshfs, s3fs, JuiceFS, virtiofs
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x517b,      // SMB
    0x00c3_6400, // Ceph
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x0102_1997, // 9P
    0x5346_414f, // AFS
    0x6b41_4653, // AFS of the kernel
    0x7461_636f, // OCFS2
    0x0116_1970, // GFS2
    0xaad7_aaea, // PanFS
];

/// Says that the file is read from front to back: the system then reads further ahead.
#[cfg(target_os = "linux")]
fn advise(file: &File) {
    // Advice alone: a system that does not take it reads all the same.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &File) {}

/// Maps a file read-only and advises sequential reading; `None` where the system refuses (the caller then reads).
fn map_file(file: &File) -> Option<memmap2::Mmap> {
    // SAFETY: the contract of a map cannot be kept by us alone: another process may truncate the file, and reading
    // past the new end raises SIGBUS. What can be known is asked before (see the table above), and a changed file is
    // reported after the analysis. Content changes are harmless: the bytes are only parsed, never trusted to be UTF-8
    // or stable.
    #[allow(unsafe_code)]
    let mapped = unsafe { memmap2::Mmap::map(file) }.ok()?;
    #[cfg(unix)]
    let _ = mapped.advise(memmap2::Advice::Sequential);
    Some(mapped)
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all = self.inner.bytes();
        all.strip_prefix(b"\xef\xbb\xbf").unwrap_or(all)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::progress::Progress;

    fn file(name: &str, content: &[u8], age: Duration) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ovf-bytes-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("write");
        let then = SystemTime::now() - age;
        File::options().write(true).open(&path).and_then(|f| f.set_modified(then)).expect("set the time");
        path
    }

    const OLD: Duration = Duration::from_secs(3600);

    #[test]
    fn large_settled_files_are_mapped_and_others_read() {
        let large = vec![b'x'; 3 << 20];
        let is_mapped = |bytes: &Bytes| matches!(bytes.inner, Inner::Mapped(_));
        let path = file("large", &large, OLD);
        let mapped = Bytes::open(&path, true).expect("opens");
        assert_eq!(is_mapped(&mapped), is_local(&File::open(&path).expect("opens")));
        let read = Bytes::open(&path, false).expect("opens");
        assert!(!is_mapped(&read));
        assert!(*mapped == *read && *read == large[..]);
        let fresh = file("fresh", &large, Duration::ZERO);
        assert!(!is_mapped(&Bytes::open(&fresh, true).expect("opens")));
        let small = file("small", b"\xef\xbb\xbf{}", OLD);
        assert_eq!(&*Bytes::open(&small, true).expect("opens"), b"{}");
        let empty = file("empty", b"", OLD);
        assert_eq!(&*Bytes::open(&empty, true).expect("opens"), b"");
        for path in [path, fresh, small, empty] {
            std::fs::remove_file(path).expect("remove");
        }
    }

    #[test]
    fn reading_tells_and_stops() {
        let path = file("watched", &vec![b'x'; 5 << 20], OLD);
        let progress = Progress::default();
        let watch = Watch::new(&progress);
        let bytes = Bytes::read(&path, false, &watch).expect("opens");
        assert_eq!((bytes.len(), progress.bytes.load(Ordering::Relaxed)), (5 << 20, 5 << 20));
        progress.cancel.store(true, Ordering::Relaxed);
        let stopped = Bytes::read(&path, false, &watch).err().map(|e| e.kind);
        assert_eq!(stopped, Some(ErrorKind::Cancelled));
        std::fs::remove_file(path).expect("remove");
    }

    #[test]
    fn a_change_is_told() {
        let path = file("changed", b"{}", OLD);
        let bytes = Bytes::open(&path, true).expect("opens");
        assert_eq!(bytes.change(), None);
        let again = file("changed", b"[]", Duration::ZERO);
        assert_eq!(bytes.change().as_deref(), Some("it was written again"));
        std::fs::write(&again, "{} ").expect("write");
        assert_eq!(bytes.change().as_deref(), Some("it had 2 bytes and now has 3"));
        let other = file("other", b"{}", OLD);
        std::fs::rename(other, &path).expect("rename");
        assert_eq!(bytes.change().as_deref(), Some("another file has taken its place"));
        std::fs::remove_file(&path).expect("remove");
        assert_eq!(bytes.change().as_deref(), Some("it is gone"));
    }

    #[test]
    fn a_packed_file_stands_for_a_plain_one_that_is_not_there() {
        let packed = zstd::encode_all(&b"\xef\xbb\xbf{}"[..], 1).expect("packs");
        let path = file("stack.json.zst", &packed, OLD);
        let plain = path.with_extension("");
        assert_eq!(&*Bytes::open_any(&plain, true).expect("packed"), b"{}");
        std::fs::write(&plain, "[]").expect("write");
        assert_eq!(&*Bytes::open_any(&plain, true).expect("plain"), b"[]");
        for path in [path, plain.clone()] {
            std::fs::remove_file(path).expect("remove");
        }
        assert!(Bytes::open_any(&plain, true).is_err_and(|e| e.path == plain));
    }

    #[test]
    fn a_file_being_written_is_not_settled() {
        let now = SystemTime::now();
        let of = |modified| Stamp { size: 0, modified: Some(modified), identity: (0, 0) };
        assert!(!is_settled(&of(now), now));
        assert!(!is_settled(&of(now + OLD), now)); // another machine's clock
        assert!(is_settled(&of(now - OLD), now));
    }
}
