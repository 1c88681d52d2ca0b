//! Dumps of a few ops, spelled in all the ways that writers have used and some that none has.

use std::fmt::Write;

use super::dice::Dice;

struct Spelling {
    indent: Option<usize>,
    colon: &'static str,
    odd: bool,
}

impl Spelling {
    fn of(dice: &mut Dice) -> Self {
        let indent = [None, Some(1), Some(1), Some(4), Some(2)][dice.roll(5) as usize];
        Self { indent, colon: if indent.is_some() { ": " } else { ":" }, odd: dice.roll(8) == 0 }
    }

    fn line(&self, level: usize, dice: &mut Dice) -> String {
        if self.odd && dice.roll(6) == 0 {
            return [" ", "\t", "\r\n", "\n\n  ", ""][dice.roll(5) as usize].to_owned();
        }
        self.indent.map_or_else(String::new, |n| format!("\n{}", " ".repeat(n * level)))
    }
}

/// A `dump.json`.
#[must_use]
pub fn text(dice: &mut Dice) -> Vec<u8> {
    let spelling = Spelling::of(dice);
    let colon = spelling.colon;
    let mut out = String::from("{");
    let level = dice.pick(&["\"L1\"", "\"mix\"", "\"L0\"", "null", "1"]);
    let task = dice.pick(&["\"statistics\"", "\"statistics\"", "\"nan_check\"", "\"tensor\"", "{\"a\": [1]}"]);
    for (key, value) in [("task", task), ("level", level), ("framework", "\"pytorch\""), ("dump_data_dir", "null")] {
        if dice.roll(10) > 0 {
            let _ = write!(out, "{}\"{key}\"{colon}{value},", spelling.line(1, dice));
        }
    }
    let _ = write!(out, "{}\"data\"{colon}{{", spelling.line(1, dice));
    let mut calls = 0;
    let mut made: Vec<(u64, String)> = Vec::new();
    let most = [9, 9, 9, 30][dice.roll(4) as usize];
    for n in 0..dice.roll(most) {
        let comma = if n == 0 { "" } else { "," };
        if dice.roll(12) > 0 {
            calls += 1;
        }
        let _ = write!(out, "{comma}{}", spelling.line(2, dice));
        let again =
            (!made.is_empty() && dice.roll(2) == 0).then(|| made[dice.roll(made.len() as u64) as usize].clone());
        let (kind, body) = match again {
            Some((kind, body)) => (if dice.roll(8) == 0 { dice.roll(KINDS) } else { kind }, refilled(&body, dice)),
            None => op(&spelling, dice),
        };
        let _ = write!(out, "\"{}\"{colon}{body}", name(kind, calls));
        made.push((kind, body));
    }
    let _ = write!(out, "{}}}", spelling.line(1, dice));
    if dice.roll(8) == 0 {
        let _ = write!(out, ",{}\"end\"{colon}[1, \"]\"]", spelling.line(1, dice));
    }
    let _ = write!(out, "{}}}", spelling.line(0, dice));
    out.into_bytes()
}

/// Kinds of names.
const KINDS: u64 = 14;

fn name(kind: u64, n: u64) -> String {
    match kind {
        0 => format!("Distributed.all_reduce.{n}.forward"),
        1 => format!("Distributed.send.{n}.forward"),
        2 => format!("Distributed.irecv.{n}.forward"),
        3 => format!("Distributed.batch_isend_irecv.{n}.forward"),
        4 => format!("Module.layers.{n}.mlp.MLP.forward.0"),
        5 => format!("Module.layers.{n}.mlp.MLP.parameters_grad.0"),
        6 => format!("Tensor.masked_fill.{n}.forward"),
        7 => format!("Torch.matmul.{n}.backward"),
        8 => format!("Tensor.add_.{n}.forward"),
        9 => format!("Torch.empty.{n}.forward"),
        10 => format!("loss.{n}.debug"),
        11 => format!("a\\\"b\\u00e9é.{n}.forward"),
        _ => format!("Torch.matmul.{n}.forward"),
    }
}

/// The record with other words for the statistics that are bare.
fn refilled(body: &str, dice: &mut Dice) -> String {
    let mut out = String::new();
    let mut rest = body;
    while let Some((at, key)) =
        ["\"Max\"", "\"Min\"", "\"Mean\"", "\"Norm\""].iter().filter_map(|key| Some((rest.find(key)?, key.len()))).min()
    {
        let value = rest[at + key..].trim_start_matches(|c: char| c == ':' || c.is_whitespace());
        let word = value.len() - value.trim_start_matches(|c: char| c.is_alphanumeric() || "+-.".contains(c)).len();
        let start = rest.len() - value.len();
        out.push_str(&rest[..start]);
        if word > 0 {
            let usual = ["1.5", "-0.25", "2e-05", "7", "0.0", "123.5"];
            let other = ["NaN", "NaN", "Infinity", "-Infinity", "null", "1e400"];
            out.push_str(if dice.roll(3) > 0 { dice.pick(&usual) } else { dice.pick(&other) });
        }
        rest = &rest[start + word..];
    }
    out + rest
}

/// A kind of name, and a record.
fn op(spelling: &Spelling, dice: &mut Dice) -> (u64, String) {
    let colon = spelling.colon;
    let mut record = String::new();
    let out = &mut record;
    let kind = dice.roll(KINDS);
    let name = name(kind, 0);
    if dice.roll(40) == 0 {
        out.push_str(dice.pick(&["null", "NaN", "\"-inf\"", "[]", "1e999", "{}"]));
        return (kind, record);
    }
    out.push('{');
    let backward = name.ends_with("backward");
    let mut first = true;
    let mut field = |out: &mut String, key: &str, dice: &mut Dice| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        let _ = write!(out, "{comma}{}\"{key}\"{colon}", spelling.line(3, dice));
    };
    if name.contains("parameters_grad") || name.ends_with("debug") {
        for key in ["weight", "bias"] {
            field(out, key, dice);
            value(out, spelling, dice, 4, 2);
        }
    } else {
        field(out, if backward { "input" } else { "input_args" }, dice);
        list(out, spelling, dice, 4, 2);
        if !backward {
            field(out, "input_kwargs", dice);
            keywords(out, spelling, dice);
        }
        if dice.roll(16) > 0 {
            field(out, "output", dice);
            list(out, spelling, dice, 4, 2);
        }
        match dice.roll(20) {
            0 => {
                field(out, "is_nan", dice);
                out.push_str(dice.pick(&["true", "false", "1", "0", "null", "\"x\""]));
            }
            1 => {
                field(out, "is_recompute", dice);
                out.push_str("true");
            }
            2 => {
                field(out, "note", dice);
                value(out, spelling, dice, 4, 1);
            }
            3 => {
                field(out, "parameters", dice);
                out.push_str("{\"weight\": ");
                value(out, spelling, dice, 5, 0);
                out.push('}');
            }
            _ => {}
        }
    }
    let _ = write!(out, "{}}}", spelling.line(2, dice));
    (kind, record)
}

fn keywords(out: &mut String, spelling: &Spelling, dice: &mut Dice) {
    let colon = spelling.colon;
    match dice.roll(5) {
        0 => {
            let ranks = dice.pick(&["[0, 1]", "[1,0]", "[]", "[0, 1, 2, 3]", "[\n0,\n1\n]"]);
            let _ = write!(
                out,
                "{{{}\"group\"{colon}{{\"type\"{colon}\"torch.ProcessGroup\",\"group_ranks\"{colon}{ranks},\"group_id\"{colon}\"1a2b\"}}}}",
                spelling.line(4, dice)
            );
        }
        1 => {
            let _ = write!(out, "{{{}\"out\"{colon}", spelling.line(4, dice));
            value(out, spelling, dice, 5, 1);
            out.push('}');
        }
        _ => out.push_str("{}"),
    }
}

fn list(out: &mut String, spelling: &Spelling, dice: &mut Dice, level: usize, depth: u64) {
    let count = dice.roll(4);
    if count == 0 {
        out.push_str("[]");
        return;
    }
    out.push('[');
    for i in 0..count {
        let _ = write!(out, "{}{}", if i == 0 { "" } else { "," }, spelling.line(level, dice));
        value(out, spelling, dice, level + 1, depth);
    }
    let _ = write!(out, "{}]", spelling.line(level - 1, dice));
}

fn value(out: &mut String, spelling: &Spelling, dice: &mut Dice, level: usize, depth: u64) {
    let colon = spelling.colon;
    match dice.roll(16) {
        0 => out.push_str(dice.pick(&[
            "null",
            "true",
            "false",
            "3",
            "-0.5",
            "NaN",
            "-Infinity",
            "1e999",
            "12345678901234567890",
        ])),
        1 => {
            out.push_str(dice.pick(&[
                "\"text\"",
                "\"nan\"",
                "\"info\"",
                "\"\"",
                "\"Nando\"",
                "\"a\\\\\"",
                "\"]}\"",
                "\"\\n-inf\\t\"",
            ]));
        }
        2 => {
            let value = dice.pick(&["2", "-Infinity", "NaN", "\"-inf\"", "true", "\"x\"", "1e400"]);
            let kind = dice.pick(&["float", "int", "bool", "str", "slice"]);
            let _ = write!(out, "{{\"type\"{colon}\"{kind}\",{}\"value\"{colon}{value}}}", spelling.line(level, dice));
        }
        3 if depth > 0 => list(out, spelling, dice, level, depth - 1),
        4 if depth > 0 => {
            let key = dice.pick(&["k", "Max", "shape", "type", "value", "é", "a.b"]);
            let _ = write!(out, "{{\"{key}\"{colon}");
            value(out, spelling, dice, level, depth - 1);
            out.push('}');
        }
        5 => {
            let (op, peer, tag) = (dice.pick(&["isend", "irecv"]), dice.roll(4), dice.roll(2));
            let _ = write!(out, "{{\"class_type\"{colon}\"torch.distributed.P2POp\",\"tensor\"{colon}");
            tensor(out, spelling, dice, level);
            let _ = write!(
                out,
                ",\"op\"{colon}\"{op}\",\"peer\"{colon}{peer},\"tag\"{colon}{tag},\"group_id\"{colon}\"ff\"}}"
            );
        }
        _ => tensor(out, spelling, dice, level),
    }
}

fn tensor(out: &mut String, spelling: &Spelling, dice: &mut Dice, level: usize) {
    let colon = spelling.colon;
    let line = |dice: &mut Dice| spelling.line(level, dice);
    let dtype = dice.pick(&["torch.bfloat16", "torch.float16", "torch.float32", "torch.int64", "torch.bool"]);
    let shape = match dice.roll(4) {
        0 => "[]".to_owned(),
        1 => "[2,3]".to_owned(),
        2 => format!("[{}4{}]", line(dice), line(dice)),
        _ => format!("[{}2,{}3{}]", line(dice), line(dice), line(dice)),
    };
    let number = |dice: &mut Dice| {
        dice.pick(&[
            "1.5",
            "-0.25",
            "0.0",
            "3",
            "NaN",
            "Infinity",
            "-Infinity",
            "null",
            "1e+38",
            "3.4E38",
            "1e400",
            "-1e-400",
            "\"nan\"",
            "\"Infinity\\t\"",
            "\" -inf\"",
            "\"0.5\"",
            "true",
            "1.5",
            "1.5",
            "0.125",
            "2.0",
            "-3.0",
            "7",
        ])
    };
    let mut pairs: Vec<(&str, String)> = vec![
        ("type", "\"torch.Tensor\"".to_owned()),
        ("dtype", format!("\"{dtype}\"")),
        ("shape", shape),
        ("Max", number(dice).to_owned()),
        ("Min", number(dice).to_owned()),
        ("Mean", number(dice).to_owned()),
        ("Norm", number(dice).to_owned()),
        ("requires_grad", "true".to_owned()),
    ];
    match dice.roll(24) {
        0 => pairs.reverse(),
        1 => drop(pairs.remove(dice.roll(8) as usize)),
        2 => pairs.push(("Max", number(dice).to_owned())),
        3 => pairs.push(("md5", "\"00ff\"".to_owned())),
        4 => pairs.insert(0, ("extra", "[{\"Max\": NaN}]".to_owned())),
        5 => pairs.truncate(4),
        _ => {}
    }
    out.push('{');
    for (i, (key, value)) in pairs.iter().enumerate() {
        let _ = write!(out, "{}{}\"{key}\"{colon}{value}", if i == 0 { "" } else { "," }, line(dice));
    }
    let _ = write!(out, "{}}}", spelling.line(level - 1, dice));
}

/// A `construct.json`: parents in a line, in a circle, or absent.
#[must_use]
pub fn construct(dice: &mut Dice) -> Vec<u8> {
    let mut out = String::from("{");
    for n in 0..dice.roll(6) {
        let parent = match dice.roll(4) {
            0 => "null".to_owned(),
            1 => format!("\"Torch.matmul.{n}.forward\""),
            2 => format!("[\"Module.layers.{n}.mlp.MLP.forward.0\", null]"),
            _ => format!("\"Module.layers.{}.mlp.MLP.forward.0\"", dice.roll(4)),
        };
        let _ = write!(out, "{}\"Torch.matmul.{n}.forward\": {parent}", if n == 0 { "" } else { ", " });
    }
    out.push('}');
    out.into_bytes()
}

/// A `stack.json` in its old or new shape.
#[must_use]
pub fn stack(dice: &mut Dice) -> Vec<u8> {
    let frames = r#"["File /train/a.py, line 3, in f, \n y = x.log()", "no frame", ""]"#;
    match dice.roll(3) {
        0 => format!(r#"{{"Torch.matmul.1.forward": {frames}, "x": 3}}"#).into_bytes(),
        1 => format!(r#"{{"0": [["Torch.matmul.1.forward", "Torch.empty.2.forward"], {frames}], "1": [[], []]}}"#)
            .into_bytes(),
        _ => b"{}".to_vec(),
    }
}
