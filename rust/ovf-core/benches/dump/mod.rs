//! Text of a rank's dump in msProbe's shape, made without the Python generator so that benches run on a bare checkout.
#![allow(unreachable_pub)] // each bench takes in this file as a module of its own

use std::fmt::Write;

/// White space of a dump.
pub(crate) struct Layout {
    /// Spaces a level; `None` for one dense line.
    pub(crate) indent: Option<usize>,
}

impl Layout {
    /// What msProbe writes today.
    pub(crate) const MSPROBE: Self = Self { indent: Some(1) };
    /// No white space.
    pub(crate) const COMPACT: Self = Self { indent: None };
    /// Four spaces a level.
    pub(crate) const WIDE: Self = Self { indent: Some(4) };

    fn at(&self, level: usize) -> String {
        self.indent.map_or_else(String::new, |n| format!("\n{}", " ".repeat(n * level)))
    }

    fn colon(&self) -> &'static str {
        if self.indent.is_some() { ": " } else { ":" }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// A dump of about `bytes` bytes: matmuls and additions with a tensor-parallel `all_reduce` every twelfth op; the given
/// share of the ops is NaN, and at least one in the middle.
#[must_use]
pub(crate) fn of(bytes: usize, layout: &Layout, bad: f64) -> Vec<u8> {
    let mut dice = Dice(1);
    let colon = layout.colon();
    let mut out = format!(
        "{{{a}\"task\"{colon}\"statistics\",{a}\"level\"{colon}\"L1\",{a}\"framework\"{colon}\"pytorch\",{a}\"data\"{colon}{{",
        a = layout.at(1)
    );
    let mut op = 0u32;
    let mut planted = bad > 0.0;
    while out.len() < bytes {
        let now = !planted && out.len() > bytes / 2;
        planted |= now;
        let nan = now || dice.roll() < bad;
        let comma = if op == 0 { "" } else { "," };
        let name = match op % 12 {
            11 => format!("Distributed.all_reduce.{}.forward", op / 12),
            5 => format!("Tensor.__add__.{op}.forward"),
            _ => format!("Torch.matmul.{op}.forward"),
        };
        let _ = write!(out, "{comma}{}\"{name}\"{colon}{{{}\"input_args\"{colon}[", layout.at(2), layout.at(3));
        tensor(&mut out, layout, &mut dice, 4, false);
        out.push(',');
        tensor(&mut out, layout, &mut dice, 4, false);
        let _ = write!(out, "{}],{}\"input_kwargs\"{colon}", layout.at(3), layout.at(3));
        if op % 12 == 11 {
            let (a, b, c) = (layout.at(4), layout.at(5), layout.at(6));
            let _ = write!(
                out,
                "{{{a}\"group\"{colon}{{{b}\"type\"{colon}\"torch.ProcessGroup\",{b}\"group_ranks\"{colon}[{c}0,{c}1{b}],{b}\"group_id\"{colon}\"1a2b3c4d\"{a}}}{}}}",
                layout.at(3)
            );
        } else {
            out.push_str("{}");
        }
        let _ = write!(out, ",{}\"output\"{colon}[", layout.at(3));
        tensor(&mut out, layout, &mut dice, 4, nan);
        let _ = write!(out, "{}]{}}}", layout.at(3), layout.at(2));
        op += 1;
    }
    let _ = write!(out, "{}}}{}}}", layout.at(1), layout.at(0));
    out.into_bytes()
}

fn tensor(out: &mut String, layout: &Layout, dice: &mut Dice, level: usize, nan: bool) {
    let colon = layout.colon();
    let (a, b, c) = (layout.at(level), layout.at(level + 1), layout.at(level + 2));
    let mut number = |scale: f64| if nan { "NaN".to_owned() } else { format!("{}", (dice.roll() - 0.5) * scale) };
    let (max, min, mean, norm) = (number(8.0), number(8.0), number(0.1), number(300.0));
    let _ = write!(
        out,
        "{a}{{{b}\"type\"{colon}\"torch.Tensor\",{b}\"dtype\"{colon}\"torch.bfloat16\",{b}\"shape\"{colon}[{c}1,{c}2048,{c}4096{b}],\
         {b}\"Max\"{colon}{max},{b}\"Min\"{colon}{min},{b}\"Mean\"{colon}{mean},{b}\"Norm\"{colon}{norm},{b}\"requires_grad\"{colon}true{a}}}"
    );
}
