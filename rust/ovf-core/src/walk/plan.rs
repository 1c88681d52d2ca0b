//! Ops that are alike: what is to be done with them, worked out once.
//!
//! A layer is called again and again, so most ops that are looked at differ from an earlier one in their call number and
//! in numbers of which few matter. The scan tells which records are alike ([`crate::scan::Notable::form`]): they have the
//! same bytes but for finite statistics, so the same tensors are bad in the same way. A [`Plan`] is such an op with all
//! that follows from its record and its name alone: the rules that hold for it, its bad inputs and outputs, what it
//! exchanges with whom. Of the next op of the form only the call number is read from its name, and the finite numbers
//! that stand beside non-finite ones (they tell one masked tensor from another) are taken from the scan: neither the
//! record nor the rules are looked at again.
//!
//! What cannot be planned - records that repeat nothing, names with escapes - is read one by one ([`super::records`]).

use std::rc::Rc;

use smallvec::SmallVec;

use super::call::Call;
use super::compute::Taken;
use super::exchange::Prepared;
use super::records::part_of;
use super::{Walk, recorded};
use crate::op::{Op, OpName, TensorStat, Value};
use crate::parse::{TensorNumbers, parse_with_places};
use crate::provenance::Values;
use crate::rules::OperatorRules;
use crate::scan::{Notable, kept_numbers};

/// Plans of one form: calls of different functions may look alike.
const PLANS: usize = 8;

/// Digits of a call number that surely fit.
const DIGITS: usize = 18;

/// A kept number, and where it belongs.
#[derive(Debug, Clone, Copy)]
struct Kept {
    argument: u32,
    /// `Max`, `Min`, `Mean` or `Norm`.
    which: u8,
    /// Among the numbers that are kept of the record.
    number: u8,
}

#[derive(Debug)]
enum Work {
    Compute(Taken),
    Exchange(Vec<Prepared>),
}

#[derive(Debug)]
struct Plan<'a> {
    /// The name before and behind the call number, where all others with such a name are read alike.
    stem: Option<(&'a str, &'a str)>,
    call: Call<'a>,
    op: Op<'a>,
    kept: SmallVec<[Kept; 4]>,
    rules: Rc<OperatorRules<'a>>,
    work: Work,
}

/// The plans of a rank.
#[derive(Debug, Default)]
pub(super) struct Plans<'a> {
    /// By form.
    known: Vec<OfForm<'a>>,
}

#[derive(Debug, Default)]
struct OfForm<'a> {
    plans: Vec<Plan<'a>>,
    /// No further one is made.
    is_full: bool,
}

impl<'a> Plans<'a> {
    /// The plan of an op, its numbers set.
    fn find(&mut self, op: &Notable<'a>, values: &mut Values) -> Option<(Call<'a>, &Plan<'a>)> {
        let name = op.name?;
        let plans = &mut self.known.get_mut(op.form? as usize)?.plans;
        let by_stem = plans.iter().enumerate().find_map(|(at, plan)| Some((at, plan.call_of(name)?)));
        let (at, call) = match by_stem {
            Some(found) => found,
            None if plans.is_empty() => return None,
            None => {
                // A module of another layer.
                let call = Call::of(name);
                (plans.iter().position(|plan| plan.is_like(&call.name))?, call)
            }
        };
        plans[at].set(op.numbers, values)?;
        Some((call, &plans[at]))
    }

    fn takes(&mut self, form: u32) -> bool {
        let form = form as usize;
        if self.known.len() <= form {
            self.known.resize_with(form + 1, OfForm::default);
        }
        !self.known[form].is_full
    }

    fn push(&mut self, form: u32, plan: Option<Plan<'a>>) -> bool {
        let of = &mut self.known[form as usize];
        of.is_full |= plan.is_none() || of.plans.len() + 1 >= PLANS;
        let made = plan.is_some();
        of.plans.extend(plan);
        made
    }
}

impl<'a> Plan<'a> {
    /// The call of that name, if it has the plan's stem.
    fn call_of<'n>(&self, name: &'n str) -> Option<Call<'n>>
    where
        'a: 'n,
    {
        let (head, tail) = self.stem?;
        let number = name.strip_prefix(head)?.strip_suffix(tail)?;
        if number.is_empty() || number.len() > DIGITS {
            return None;
        }
        let digit = |number: u64, b: u8| b.is_ascii_digit().then(|| number * 10 + u64::from(b - b'0'));
        Some(self.call.numbered(number.bytes().try_fold(0, digit)?))
    }

    /// Whether the call is of the same function or class.
    fn is_like(&self, name: &OpName) -> bool {
        let own = &self.call.name;
        (own.api, own.prefix, own.direction) == (name.api, name.prefix, name.direction)
    }

    /// Sets the numbers that differ from op to op; nothing where the scan kept none.
    fn set(&mut self, numbers: &[f64], values: &mut Values) -> Option<()> {
        for kept in self.kept.chunk_by(|a, b| a.argument == b.argument) {
            let Value::Tensor(t) = &mut self.op.arguments[kept[0].argument as usize].value else {
                return None;
            };
            for kept in kept {
                *statistic(t, kept.which) = Some(*numbers.get(usize::from(kept.number))?);
            }
            t.keys = Some(values.keys_of(t));
        }
        Some(())
    }
}

fn statistic<'s>(t: &'s mut TensorStat, which: u8) -> &'s mut Option<f64> {
    match which {
        0 => &mut t.max,
        1 => &mut t.min,
        2 => &mut t.mean,
        _ => &mut t.norm,
    }
}

impl<'a> Walk<'a> {
    /// Whether op was entered as its plan says.
    pub(super) fn follow(&mut self, plans: &mut Plans<'a>, op: &Notable<'a>) -> bool {
        let Some((call, plan)) = plans.find(op, &mut self.values) else {
            return false;
        };
        match &plan.work {
            Work::Compute(taken) => self.compute(op.op, &call, &plan.op, &plan.rules, taken),
            Work::Exchange(exchanges) => self.exchange_all(op.op, &plan.op, exchanges),
        }
        true
    }

    /// Whether a plan was made for an op and those that are like it.
    pub(super) fn learn(&mut self, plans: &mut Plans<'a>, op: &Notable<'a>) -> bool {
        let (Some(form), Some(name)) = (op.form, op.name) else {
            return false;
        };
        plans.takes(form) && {
            let plan = self.plan(op, name);
            plans.push(form, plan)
        }
    }

    fn plan(&mut self, notable: &Notable<'a>, name: &'a str) -> Option<Plan<'a>> {
        let body = self.index.entries.at(notable.op as usize).body(self.bytes);
        let call = Call::of(name);
        let part = part_of(notable.asked, notable.non_finite, || recorded(&call.name));
        let (mut op, tensors) = parse_with_places(body, part)?;
        let kept = kept_of(body, &mut op, &tensors, &mut self.values)?;
        let rules = self.rules_of(&call.name);
        let work = if notable.asked {
            Work::Exchange(self.prepare(&call.name, &op)?)
        } else {
            Work::Compute(Taken::of(&op, &call.name, &rules))
        };
        Some(Plan { stem: stem_of(name), call, op, kept, rules, work })
    }
}

/// The kept numbers that `op` needs, and its bad tensors' keys set. Nothing where a number that it needs is not kept.
fn kept_of(body: &[u8], op: &mut Op, tensors: &[TensorNumbers], values: &mut Values) -> Option<SmallVec<[Kept; 4]>> {
    let places = kept_numbers(body)?;
    let mut kept = SmallVec::new();
    for tensor in tensors {
        let Some(argument) = tensor.argument else { continue };
        let Value::Tensor(t) = &mut op.arguments[argument].value else { continue };
        if t.kinds().is_finite() {
            continue;
        }
        for (which, place) in (0u8..).zip(&tensor.places) {
            let Some(place) = place else { continue };
            let word = &body[place.clone()];
            let is_number = word.strip_prefix(b"-").unwrap_or(word).first().is_some_and(u8::is_ascii_digit);
            if is_number {
                let number = places.iter().position(|&at| at == place.start)?;
                kept.push(Kept { argument: argument as u32, which, number: u8::try_from(number).ok()? });
            }
        }
        t.keys = Some(values.keys_of(t));
    }
    Some(kept)
}

/// A name before and behind its call number, where another number makes no other difference.
fn stem_of(name: &str) -> Option<(&str, &str)> {
    let last = name.rfind('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (head, tail) = if is_number(&name[last + 1..]) {
        (&name[..=last], "")
    } else {
        let before = name[..last].rfind('.')?;
        if !is_number(&name[before + 1..last]) {
            return None;
        }
        (&name[..=before], &name[last..])
    };
    let with = |number: u64| format!("{head}{number}{tail}");
    let read = |name: &str, number: u64| {
        let call = OpName::parse(name);
        (call.call_index == Some(number)).then(|| {
            let OpName { prefix, api, module_path, direction, base, .. } = call;
            (prefix.to_owned(), api.to_owned(), module_path.to_owned(), direction, base.to_owned())
        })
    };
    let (one, other) = (read(&with(7), 7)?, read(&with(1234), 1234)?);
    (one == other).then_some((head, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_end_at_the_call_number() {
        for (name, stem) in [
            ("Torch.matmul.5.forward", Some(("Torch.matmul.", ".forward"))),
            ("Module.0.emb.Emb.forward.0", Some(("Module.0.emb.Emb.forward.", ""))),
            ("Distributed.all_reduce.12.forward", Some(("Distributed.all_reduce.", ".forward"))),
            ("Module.x.3.forward", None),
            ("Distributed.all_reduce_0_0", None),
            ("loss.0.debug", Some(("loss.", ".debug"))),
            ("a.b", None),
            ("", None),
            ("a..b", None),
        ] {
            assert_eq!(stem_of(name), stem, "{name}");
        }
    }
}
