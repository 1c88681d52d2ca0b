//! Where the ops of a part stand, in few bytes each.
//!
//! PERF: a file has millions of ops, and of most nothing but their place is ever kept. New memory costs a page fault
//! every 4 KiB, of all threads at once, so twelve bytes an op instead of forty are a tenth of the time of a large file.
//! Whatever does not fit into these - long names, much white space, parts of more than 4 GiB - is kept as it is.

use super::entry::Entry;

const NON_FINITE: u8 = 1;
const ASKED: u8 = 2;
/// [`Short::name_at`] is an index into [`Places::long`].
const LONG: u8 = 4;

#[derive(Debug, Clone, Copy)]
struct Short {
    /// From [`Places::start`].
    name_at: u32,
    body_len: u32,
    name_len: u16,
    /// From the end of the name to the body.
    body_gap: u8,
    flags: u8,
}

/// The ops of a part in file order.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    start: usize,
    short: Vec<Short>,
    long: Vec<Entry>,
}

impl Places {
    /// For ops behind `start`, with room for some.
    pub(super) fn new(start: usize, room: usize) -> Self {
        Self { start, short: Vec::with_capacity(room), long: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.short.len()
    }

    pub(super) fn push(&mut self, entry: Entry) {
        let short = self.shorten(&entry).unwrap_or_else(|| {
            self.long.push(entry);
            Short { name_at: (self.long.len() - 1) as u32, body_len: 0, name_len: 0, body_gap: 0, flags: LONG }
        });
        self.short.push(short);
    }

    pub(super) fn at(&self, op: usize) -> Entry {
        self.full(&self.short[op])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        self.short.iter().map(|short| self.full(short))
    }

    fn shorten(&self, entry: &Entry) -> Option<Short> {
        Some(Short {
            name_at: u32::try_from(entry.name_at.checked_sub(self.start)?).ok()?,
            body_len: u32::try_from(entry.body_len).ok()?,
            name_len: u16::try_from(entry.name_len).ok()?,
            body_gap: u8::try_from(entry.body_gap).ok()?,
            flags: if entry.non_finite { NON_FINITE } else { 0 } | if entry.asked { ASKED } else { 0 },
        })
    }

    fn full(&self, short: &Short) -> Entry {
        if short.flags & LONG != 0 {
            return self.long[short.name_at as usize];
        }
        Entry {
            name_at: self.start + short.name_at as usize,
            body_len: short.body_len as usize,
            name_len: u32::from(short.name_len),
            body_gap: u32::from(short.body_gap),
            non_finite: short.flags & NON_FINITE != 0,
            asked: short.flags & ASKED != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_comes_back_as_it_was() {
        let plain = Entry { name_at: 1000, body_len: 17, name_len: 9, body_gap: 3, non_finite: false, asked: true };
        let entries = [
            plain,
            Entry { name_len: 70_000, ..plain },
            Entry { non_finite: true, ..plain },
            Entry { body_gap: 256, asked: false, ..plain },
            Entry { body_len: 5 << 30, ..plain },
            Entry { name_at: 5 << 30, ..plain },
            Entry { name_at: 10, ..plain },
            Entry { name_at: 1000 + u32::MAX as usize, ..plain },
        ];
        let mut places = Places::new(1000, 0);
        for entry in entries {
            places.push(entry);
        }
        assert_eq!(places.iter().collect::<Vec<_>>(), entries);
        assert_eq!(places.long.len(), 5);
    }
}
