//! Inside one rank: which earlier op a non-finite value came from.
//!
//! Dumps hold statistics, not values, so identity is inferred. Every non-finite value that is written (an output, a
//! received tensor, an outside value met for the first time) is *seen*; a non-finite input is looked up among them:
//!
//! 1. `Exact`: same dtype, shape and all four statistics; the most recent such value.
//! 2. `Reshaped`: same statistics and element count (views), or, where the statistics tell something (not all NaN),
//!    the same statistics alone (slices of one tensor, casts).
//! 3. `Near`: the most recent live value at all. msProbe's default risk level leaves out casts, views, creators and
//!    concatenations, so a value may reach an op with other shape and statistics. A value is *live* until an op took
//!    it in and gave finite numbers out (then what comes later is not explained by it).
//!
//! What finds nothing is *unexplained*: nobody on this rank produced it.

use rustc_hash::FxHashMap;

use crate::op::{Keys, Kinds, TensorStat};

/// Index of a node of the rank's graph of non-finite ops.
pub(crate) type NodeId = u32;

/// What a value's non-finite numbers mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// From an overflow, or not known to be anything else.
    Real,
    /// Asked for by the program (masks).
    Intended,
    /// Content of memory nobody wrote.
    Garbage,
}

/// How sure the link to a producer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// Same dtype, shape and statistics.
    Exact,
    /// Same statistics under another shape.
    Reshaped,
    /// The most recent live value.
    Near,
}

/// A non-finite value somebody wrote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) node: NodeId,
    pub(crate) meaning: Meaning,
    pub(crate) kinds: Kinds,
    live: bool,
    read: bool,
    /// Overwritten: explains nothing any more.
    gone: bool,
    /// The value that this one hides in each map of [`Maps`].
    hides: [Option<u32>; 3],
}

/// How a value is entered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) node: NodeId,
    pub(crate) meaning: Meaning,
    /// Whether [`Link::Near`] may end here.
    pub(crate) near: bool,
    pub(crate) from_communication: bool,
    /// Whether it is the gradient of a weight: no gradient is computed from it.
    pub(crate) of_weight: bool,
}

impl Entry {
    /// An overflow's value that the rank itself computed, or had from outside.
    pub(crate) fn real(node: NodeId) -> Self {
        Self { node, meaning: Meaning::Real, near: true, from_communication: false, of_weight: false }
    }
}

/// Values by what identifies them, the most recent of each.
#[derive(Debug, Default)]
struct Maps {
    /// By [`Keys::exact`].
    exact: Vec<Option<u32>>,
    same_count: FxHashMap<u64, u32>,
    same_statistics: FxHashMap<u64, u32>,
    /// What is still to be entered into these two, in order: most values are found as they are.
    pending: Vec<Pending>,
    /// Live real values that `Near` may end at, oldest first.
    near: Vec<u32>,
    near_communications: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    id: u32,
    same_count: u64,
    same_statistics: Option<u64>,
}

impl Maps {
    /// The last value of the same dtype, statistics and shape that is not gone.
    fn exact(&self, seen: &[Seen], keys: Keys) -> Option<u32> {
        not_gone(seen, self.exact.get(keys.exact as usize).copied().flatten(), 0)
    }

    fn settle(&mut self, seen: &mut [Seen]) {
        for Pending { id, same_count, same_statistics } in self.pending.drain(..) {
            let hides = &mut seen[id as usize].hides;
            hides[1] = self.same_count.insert(same_count, id);
            hides[2] = same_statistics.and_then(|key| self.same_statistics.insert(key, id));
        }
    }
}

/// All non-finite values seen so far on one rank.
#[derive(Debug, Default)]
pub(crate) struct Values {
    seen: Vec<Seen>,
    /// Number of each dtype, statistics and shape that was met, by their key.
    numbers: FxHashMap<u64, u32>,
    usual: Maps,
    weight_gradients: Maps,
}

fn bits(stat: Option<f64>) -> u64 {
    match stat {
        None => 1,
        Some(n) if n.is_nan() => 2,     // NaNs of any payload are one
        Some(n) => (n + 0.0).to_bits(), // -0.0 is 0.0
    }
}

/// A key stands for what it was made of, so it must not collide: a good hash of all of it (Fx, for one, has the same
/// for (inf, -1.0) and (1.0, -inf)).
///
/// Both halves of a 128-bit product go into each step, as in wyhash: every bit of every number reaches every bit.
#[derive(Debug, Clone, Copy)]
struct Key(u64);

impl Key {
    /// Of what all keys of a tensor begin with: dtype and statistics.
    fn of(t: &TensorStat) -> Self {
        statistics(t).into_iter().fold(Self(xxhash_rust::xxh3::xxh3_64(t.dtype.as_bytes())), Self::with)
    }

    fn with(self, number: u64) -> Self {
        let mixed = fold(self.0 ^ 0xa076_1d64_78bd_642f, number ^ 0xe703_7ed1_a0b4_28db);
        Self(mixed.rotate_left(23) ^ self.0)
    }

    fn end(self) -> u64 {
        fold(self.0 ^ 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3)
    }

    fn exact(self, t: &TensorStat) -> u64 {
        t.shape.iter().fold(self, |key, &size| key.with(size as u64)).end()
    }

    fn same_count(self, t: &TensorStat) -> u64 {
        self.with(t.numel() as u64).end()
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

fn statistics(t: &TensorStat) -> [u64; 4] {
    [bits(t.max), bits(t.min), bits(t.mean), bits(t.norm)]
}

/// `None` when the statistics are the same for any such value (NaN everywhere, infinite everywhere).
fn statistics_key(t: &TensorStat) -> Option<u64> {
    let tells = |s: Option<f64>| s.is_some_and(|n| n.is_finite() && n != 0.0);
    (tells(t.max) || tells(t.min)).then(|| Key(0).with(bits(t.max)).with(bits(t.min)).end())
}

/// Identity of a value for [`crate::timeline`]'s search of the first reader of an asynchronous receive.
pub(crate) fn identity(t: &TensorStat) -> u64 {
    Key::of(t).same_count(t)
}

/// Whether two records show the same value, as far as dtype, shape and statistics tell.
pub(crate) fn same(a: &TensorStat, b: &TensorStat) -> bool {
    a.dtype == b.dtype && a.shape == b.shape && statistics(a) == statistics(b)
}

impl Values {
    /// Makes room for the values of so many ops.
    pub(crate) fn reserve(&mut self, ops: usize) {
        self.seen.reserve(ops);
    }

    /// What a value is looked up by; for one that will be looked up often.
    pub(crate) fn keys_of(&mut self, t: &TensorStat) -> Keys {
        let key = Key::of(t);
        let next = self.numbers.len() as u32;
        Keys { exact: *self.numbers.entry(key.exact(t)).or_insert(next), same_count: key.same_count(t) }
    }

    /// Enters a written value.
    pub(crate) fn enter(&mut self, t: &TensorStat, entry: Entry) {
        let id = self.seen.len() as u32;
        let keys = t.keys.unwrap_or_else(|| self.keys_of(t));
        let maps = if entry.of_weight { &mut self.weight_gradients } else { &mut self.usual };
        let exact = keys.exact as usize;
        if maps.exact.len() <= exact {
            maps.exact.resize(exact + 1, None);
        }
        let hides = [maps.exact[exact].replace(id), None, None];
        maps.pending.push(Pending { id, same_count: keys.same_count, same_statistics: statistics_key(t) });
        if entry.near && entry.meaning == Meaning::Real {
            maps.near.push(id);
            if entry.from_communication {
                maps.near_communications.push(id);
            }
        }
        let kinds = t.kinds();
        let Entry { node, meaning, .. } = entry;
        self.seen.push(Seen { node, meaning, kinds, live: true, read: false, gone: false, hides });
    }

    /// The value `t` came from. A weight (`is_parameter`) is not explained by just any value that is near: only by
    /// one that a communication delivered (gathered shards). A gradient (`is_gradient`) is not computed from the
    /// gradient of a weight; all else looks there last.
    pub(crate) fn find(&mut self, t: &TensorStat, is_parameter: bool, is_gradient: bool) -> Option<(u32, Link)> {
        let keys = t.keys.unwrap_or_else(|| self.keys_of(t));
        let mut found = Self::find_in(&mut self.seen, &mut self.usual, t, keys, is_parameter);
        if !is_gradient && found.is_none_or(|(id, _)| self.seen[id as usize].meaning == Meaning::Garbage) {
            found = Self::find_in(&mut self.seen, &mut self.weight_gradients, t, keys, is_parameter).or(found);
        }
        if let Some((id, _)) = found {
            self.seen[id as usize].read = true;
        }
        found
    }

    fn find_in(
        seen: &mut [Seen],
        maps: &mut Maps,
        t: &TensorStat,
        keys: Keys,
        is_parameter: bool,
    ) -> Option<(u32, Link)> {
        let found = Self::find_recorded(seen, maps, t, keys);
        if found.is_some_and(|(id, _)| seen[id as usize].meaning != Meaning::Garbage) {
            return found;
        }
        // Garbage explains a value only where nothing real that came later could.
        let near = Self::near(seen, maps, t, is_parameter).filter(|&id| found.is_none_or(|(g, _)| id > g));
        near.map(|id| (id, Link::Near)).or(found)
    }

    fn find_recorded(seen: &mut [Seen], maps: &mut Maps, t: &TensorStat, keys: Keys) -> Option<(u32, Link)> {
        if let Some(id) = maps.exact(seen, keys) {
            return Some((id, Link::Exact));
        }
        maps.settle(seen);
        let by_statistics =
            || statistics_key(t).and_then(|key| not_gone(seen, maps.same_statistics.get(&key).copied(), 2));
        let by_count = not_gone(seen, maps.same_count.get(&keys.same_count).copied(), 1);
        by_count.or_else(by_statistics).map(|id| (id, Link::Reshaped))
    }

    fn near(seen: &[Seen], maps: &mut Maps, t: &TensorStat, is_parameter: bool) -> Option<u32> {
        let list = if is_parameter { &mut maps.near_communications } else { &mut maps.near };
        while list.last().is_some_and(|&id| !seen[id as usize].live) {
            list.pop();
        }
        let only_neg_inf = t.kinds() == Kinds::NEG_INF;
        if !only_neg_inf {
            return list.last().copied();
        }
        // A lone -inf looks like a mask that a left-out creator made, unless a -inf of ours was never read.
        list.iter().rev().copied().find(|&id| {
            let s = &seen[id as usize];
            s.live && s.kinds == Kinds::NEG_INF && !s.read
        })
    }

    pub(crate) fn get(&self, id: u32) -> &Seen {
        &self.seen[id as usize]
    }

    /// An op took the value in and gave finite numbers out.
    pub(crate) fn absorb(&mut self, id: u32) {
        self.seen[id as usize].live = false;
    }

    /// The buffer was overwritten: garbage in it is gone.
    pub(crate) fn overwrite(&mut self, t: &TensorStat) {
        let keys = t.keys.unwrap_or_else(|| self.keys_of(t));
        if let Some(id) = self.usual.exact(&self.seen, keys)
            && self.seen[id as usize].meaning == Meaning::Garbage
        {
            self.seen[id as usize].gone = true;
        }
    }
}

/// The value, or the first that it hides, that is not gone.
fn not_gone(seen: &[Seen], mut at: Option<u32>, which: usize) -> Option<u32> {
    while let Some(id) = at.filter(|&id| seen[id as usize].gone) {
        at = seen[id as usize].hides[which];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(shape: &[i64], max: f64, min: f64) -> TensorStat<'static> {
        TensorStat {
            dtype: "torch.float32",
            shape: shape.into(),
            max: Some(max),
            min: Some(min),
            mean: None,
            norm: None,
            keys: None,
        }
    }

    #[test]
    fn the_most_recent_equal_value_is_the_source() {
        let mut values = Values::default();
        let nan = value(&[2, 3], f64::NAN, f64::NAN);
        values.enter(&nan, Entry::real(1));
        values.enter(&nan, Entry::real(2));
        let (id, link) = values.find(&nan, false, false).expect("found");
        assert_eq!((values.get(id).node, link), (2, Link::Exact));
        let view = value(&[6], f64::NAN, f64::NAN);
        assert_eq!(values.find(&view, false, false).map(|f| f.1), Some(Link::Reshaped));
        assert_eq!(values.find(&value(&[7], f64::NAN, f64::NAN), false, false).map(|f| f.1), Some(Link::Near));
    }

    #[test]
    fn absorbed_values_explain_nothing_near() {
        let mut values = Values::default();
        values.enter(&value(&[3], f64::NAN, f64::NAN), Entry::real(1));
        let (id, _) = values.find(&value(&[3], f64::NAN, f64::NAN), false, false).expect("found");
        values.absorb(id);
        assert!(values.find(&value(&[8], f64::NAN, f64::NAN), false, false).is_none());
    }

    #[test]
    fn weights_and_masks_are_not_explained_by_what_is_near() {
        let mut values = Values::default();
        values.enter(&value(&[3], f64::NAN, f64::NAN), Entry::real(1));
        assert!(values.find(&value(&[8, 8], f64::NAN, f64::NAN), true, false).is_none());
        assert!(values.find(&value(&[5, 5], 0.0, f64::NEG_INFINITY), false, false).is_none());
        values.enter(&value(&[9], f64::NAN, 1.0), Entry { from_communication: true, ..Entry::real(2) });
        assert!(values.find(&value(&[8, 8], f64::NAN, f64::NAN), true, false).is_some());
    }

    #[test]
    fn slices_keep_telling_statistics() {
        let mut values = Values::default();
        values.enter(&value(&[8], f64::INFINITY, -0.5), Entry::real(4));
        assert_eq!(values.find(&value(&[4], f64::INFINITY, -0.5), false, false).map(|f| f.1), Some(Link::Reshaped));
    }

    #[test]
    fn what_overwritten_garbage_hid_is_found_again() {
        let mut values = Values::default();
        let nan = value(&[2, 3], f64::NAN, f64::NAN);
        values.enter(&nan, Entry::real(1));
        values.enter(&nan, Entry { meaning: Meaning::Garbage, ..Entry::real(2) });
        values.overwrite(&nan);
        let (id, link) = values.find(&nan, false, false).expect("found");
        assert_eq!((values.get(id).node, link), (1, Link::Exact));
    }

    #[test]
    fn gradients_are_not_computed_from_gradients_of_weights() {
        let mut values = Values::default();
        let nan = value(&[2, 3], f64::NAN, f64::NAN);
        values.enter(&nan, Entry { of_weight: true, ..Entry::real(1) });
        assert!(values.find(&nan, false, true).is_none());
        assert!(values.find(&nan, false, false).is_some());
    }

    #[test]
    fn statistics_that_mirror_each_other_are_told_apart() {
        let mut values = Values::default();
        values.enter(&value(&[4], 1.0, f64::NEG_INFINITY), Entry { meaning: Meaning::Intended, ..Entry::real(1) });
        assert!(values.find(&value(&[7], f64::INFINITY, -1.0), false, false).is_none());
    }
}
