//! Communications that repeat: the same call on the same group, with other finite numbers.
//!
//! A step's communications are a few calls made thousands of times, and nearly all of them are finite. What a finite
//! one says does not depend on its numbers, so of all records with one template and one name (but for the call number)
//! only the first is taken apart; the others have its events.

use crate::op::{Op, Value};
use crate::timeline::Event;

#[derive(Debug)]
struct Repeat {
    /// The name before and behind the call number.
    name: (Box<[u8]>, Box<[u8]>),
    /// Which statistics were there.
    present: Vec<bool>,
    events: Vec<Event>,
}

/// The repeating communications of a rank, by template.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    known: Vec<Option<Repeat>>,
}

impl Repeats {
    /// The events of the finite op, if one like it was met; their `op` is that one's.
    pub(super) fn find(&self, template: u32, name: &[u8], op: &Op) -> Option<&[Event]> {
        let repeat = self.known.get(template as usize)?.as_ref()?;
        let (head, tail) = around_number(name)?;
        let same_name = *head == *repeat.name.0 && *tail == *repeat.name.1;
        (same_name && present(op).eq(repeat.present.iter().copied())).then_some(&*repeat.events)
    }

    /// Remembers the events of a finite op.
    pub(super) fn learn(&mut self, template: u32, name: &[u8], op: &Op, events: &[Event]) {
        let Some((head, tail)) = around_number(name) else {
            return;
        };
        let place = template as usize;
        if self.known.len() <= place {
            self.known.resize_with(place + 1, || None);
        }
        let present = present(op).collect();
        self.known[place] = Some(Repeat { name: (head.into(), tail.into()), present, events: events.to_vec() });
    }
}

fn present(op: &Op) -> impl Iterator<Item = bool> {
    op.arguments.iter().filter_map(|a| match &a.value {
        Value::Tensor(t) => Some(t.has_statistics()),
        _ => None,
    })
}

/// A name before and behind its call number: `Distributed.all_reduce.` and `.forward`.
fn around_number(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = memchr::memrchr(b'.', name)?;
    let before = memchr::memrchr(b'.', &name[..last])?;
    let digits = &name[before + 1..last];
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then(|| (&name[..=before], &name[last..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_number_do_not_repeat() {
        assert_eq!(around_number(b"a.b.12.forward"), Some((b"a.b.".as_slice(), b".forward".as_slice())));
        for name in ["", "a", "a.b", "a.x.b", "a..b", "Distributed.all_reduce_0_0"] {
            assert_eq!(around_number(name.as_bytes()), None, "{name}");
        }
    }
}
