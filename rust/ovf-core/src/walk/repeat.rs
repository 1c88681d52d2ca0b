//! Communications that repeat: the same call on the same group, with other finite numbers.
//!
//! A step's communications are a few calls made thousands of times, and nearly all of them are finite. What a finite
//! one says does not depend on its numbers, so of all records with one form ([`crate::scan::FormId`]) and one name (but
//! for the call number) only the first is taken apart; the others have its events.

use crate::timeline::Event;

#[derive(Debug)]
struct Repeat {
    /// The name before and behind the call number.
    name: (Box<[u8]>, Box<[u8]>),
    events: Vec<Event>,
}

/// The repeating communications of a rank, by form.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    known: Vec<Option<Repeat>>,
}

impl Repeats {
    /// The events of the finite communication, if one like it was met; their `op` is that one's.
    pub(super) fn find(&self, form: u32, name: &[u8]) -> Option<&[Event]> {
        let repeat = self.known.get(form as usize)?.as_ref()?;
        let (head, tail) = around_number(name)?;
        (*head == *repeat.name.0 && *tail == *repeat.name.1).then_some(&*repeat.events)
    }

    /// Remembers the events of a finite communication.
    pub(super) fn learn(&mut self, form: u32, name: &[u8], events: &[Event]) {
        let Some((head, tail)) = around_number(name) else {
            return;
        };
        let place = form as usize;
        if self.known.len() <= place {
            self.known.resize_with(place + 1, || None);
        }
        self.known[place] = Some(Repeat { name: (head.into(), tail.into()), events: events.to_vec() });
    }
}

/// A name before and behind its call number: `Distributed.all_reduce.` and `.forward`.
fn around_number(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let last = name.iter().rposition(|&b| b == b'.')?;
    let before = name[..last].iter().rposition(|b| !b.is_ascii_digit())?;
    (name[before] == b'.' && before + 1 < last).then(|| (&name[..=before], &name[last..]))
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
