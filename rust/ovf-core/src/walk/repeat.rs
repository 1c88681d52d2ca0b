//! Communications that repeat: the same call on the same group, with other finite numbers.
//!
//! A step's communications are a few calls made thousands of times, and nearly all of them are finite. What a finite
//! one says does not depend on its numbers, so its record is cut at the numbers of `Max`, `Min`, `Mean` and `Norm`, and
//! a record with the same pieces of text between other (plainly finite) numbers has the same events. The comparison is
//! byte by byte: anything else goes the way of all ops.

use std::ops::Range;

use crate::parse::{is_plainly_finite, statistics};
use crate::timeline::Event;

/// Repeating records kept for a rank.
const REPEATS_KEPT: usize = 64;

#[derive(Debug)]
struct Repeat {
    /// The name before and behind the call number.
    name: (Box<[u8]>, Box<[u8]>),
    /// The record's text before, between and behind its numbers.
    pieces: Vec<Box<[u8]>>,
    events: Vec<Event>,
}

/// The repeating communications of a rank.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    known: Vec<Repeat>,
}

impl Repeats {
    /// The events of a record that differs from a known one only by finite numbers; their `op` is the known one's.
    pub(super) fn find(&mut self, name: &[u8], body: &[u8]) -> Option<&[Event]> {
        let (head, tail) = around_number(name)?;
        let found = self.known.iter().position(|r| {
            let (known_head, known_tail) = &r.name;
            *head == **known_head && *tail == **known_tail && r.fits(body)
        })?;
        if found > 0 {
            self.known.swap(found, found - 1); // what is met often comes first
        }
        Some(&self.known[found.saturating_sub(1)].events)
    }

    /// Remembers a finite record and its events.
    pub(super) fn learn(&mut self, name: &[u8], body: &[u8], events: &[Event]) {
        if self.known.len() >= REPEATS_KEPT {
            return;
        }
        let (Some((head, tail)), Some(numbers)) = (around_number(name), statistics(body)) else {
            return;
        };
        let mut pieces = Vec::with_capacity(numbers.len() + 1);
        let mut from = 0;
        for Range { start, end } in numbers {
            if is_plainly_finite(&body[start..end]) && &body[start..end] != b"null" {
                pieces.push(body[from..start].into());
                from = end;
            }
        }
        pieces.push(body[from..].into());
        self.known.push(Repeat { name: (head.into(), tail.into()), pieces, events: events.to_vec() });
    }
}

impl Repeat {
    fn fits(&self, body: &[u8]) -> bool {
        let Some((last, pieces)) = self.pieces.split_last() else {
            return false;
        };
        let mut rest = body;
        for piece in pieces {
            let Some(behind) = rest.strip_prefix(&**piece) else {
                return false;
            };
            let end = behind.iter().position(|b| !matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E'));
            let (number, behind) = behind.split_at(end.unwrap_or(behind.len()));
            if !is_plainly_finite(number) {
                return false;
            }
            rest = behind;
        }
        rest == &**last
    }
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

    const BODY: &str = r#"{"input_args": [{"Max": 1.5, "Min": -2, "Mean": null, "Norm": 1e5}], "output": [{"Max": 7}]}"#;

    #[test]
    fn only_finite_numbers_may_differ() {
        let mut repeats = Repeats::default();
        repeats.learn(b"Distributed.all_reduce.0.forward", BODY.as_bytes(), &[]);
        let mut fits = |name: &str, body: &str| repeats.find(name.as_bytes(), body.as_bytes()).is_some();
        let name = "Distributed.all_reduce.71.forward";
        assert!(fits(name, BODY));
        assert!(fits(name, &BODY.replace("1.5", "-0.25").replace("1e5", "3.5e-07")));
        assert!(!fits("Distributed.broadcast.71.forward", BODY));
        assert!(!fits("Distributed.all_reduce.71.backward", BODY));
        for other in ["NaN", "null", "1e999", "\"1.5\"", "true", "", "1.5.2", "-", " 1.5", "1.5 "] {
            assert!(!fits(name, &BODY.replace("1.5", other)), "{other}");
        }
        assert!(!fits(name, &BODY.replace("null", "2.0")));
        assert!(!fits(name, &BODY.replace("output", "outputs")));
        assert!(!fits(name, &format!("{BODY} ")));
    }

    #[test]
    fn names_without_a_number_do_not_repeat() {
        assert_eq!(around_number(b"a.b.12.forward"), Some((b"a.b.".as_slice(), b".forward".as_slice())));
        for name in ["", "a", "a.b", "a.x.b", "a..b", "Distributed.all_reduce_0_0"] {
            assert_eq!(around_number(name.as_bytes()), None, "{name}");
        }
    }
}
