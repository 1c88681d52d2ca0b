//! How far an analysis is, and the switch that stops it.
//!
//! In: nothing. Out: [`Progress`], shared with whoever waits, and for each file a [`Watch`]: the rooms that go through a
//! file's bytes tell it how far they are and ask it whether to go on. A byte counts once, whoever tells of it first:
//! reading a file from a slow disk, or the scan of a mapped one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::source::RankSource;

/// Counters that another thread may read, and a switch it may set.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes read so far.
    pub bytes: AtomicU64,
    /// Bytes in all, known from the start.
    pub total: AtomicU64,
    /// Ranks read so far.
    pub ranks: AtomicU64,
    /// Set to stop early: ranks not begun are left out and the result must be thrown away.
    pub cancel: AtomicBool,
}

impl Progress {
    /// These are to be read; gives their bytes, as far as the files can be asked for their size.
    pub(crate) fn expect(&self, sources: &[RankSource]) -> u64 {
        let sizes = sources.iter().filter_map(|s| std::fs::metadata(&s.dump).ok()).map(|m| m.len()).sum();
        self.total.fetch_add(sizes, Ordering::Relaxed);
        sizes
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// One file's share of a [`Progress`].
#[derive(Debug)]
pub(crate) struct Watch<'p> {
    cancel: &'p AtomicBool,
    bytes: Option<&'p AtomicU64>,
    size: AtomicU64,
    told: AtomicU64,
}

impl<'p> Watch<'p> {
    /// Tells `progress` of one file.
    pub(crate) fn new(progress: &'p Progress) -> Self {
        Self { bytes: Some(&progress.bytes), ..Self::switch(&progress.cancel) }
    }

    /// Tells nobody.
    pub(crate) fn switch(cancel: &'p AtomicBool) -> Self {
        Self { cancel, bytes: None, size: AtomicU64::new(0), told: AtomicU64::new(0) }
    }

    /// Whether to stop.
    #[inline]
    pub(crate) fn stopped(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// The file has so many bytes.
    pub(crate) fn begin(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }

    /// So many more bytes were gone through, by any thread. Bytes told of before do not count again.
    pub(crate) fn advance(&self, bytes: u64) {
        if let Some(all) = self.bytes {
            let before = self.told.fetch_add(bytes, Ordering::Relaxed);
            let left = self.size.load(Ordering::Relaxed).saturating_sub(before);
            all.fetch_add(bytes.min(left), Ordering::Relaxed);
        }
    }

    /// The file is done.
    pub(crate) fn end(&self) {
        self.advance(self.size.load(Ordering::Relaxed).saturating_sub(self.told.load(Ordering::Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_counts_once() {
        let progress = Progress::default();
        let watch = Watch::new(&progress);
        watch.begin(100);
        let seen = |expected: u64| assert_eq!(progress.bytes.load(Ordering::Relaxed), expected);
        for expected in [60, 100, 100] {
            watch.advance(60);
            seen(expected);
        }
        watch.end();
        seen(100);
        let other = Watch::new(&progress);
        other.begin(50);
        other.advance(20);
        other.end();
        seen(150);
    }
}
