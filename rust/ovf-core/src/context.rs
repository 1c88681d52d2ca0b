//! Where in the user's program an op stands: its module chain and code frames.
//!
//! In: the bytes of `construct.json` and `stack.json` (either may be absent, older or newer than the dump), and the
//! names of a few ops. Out: a [`Context`] each. One pass over each file; nothing is kept but what was asked for.
//!
//! Both files name forward records only (backward and `parameters_grad` names are looked up as the forward of the
//! same number, and a `parameters_grad` without one as number 0). Layouts: `docs/dump-format.md`, stack and construct.

use std::borrow::Cow;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::op::{Direction, OpName};
use crate::rules::Rules;
use crate::token::{Cursor, Read, unescape};

/// Longest module chain that is followed.
const CHAIN_LIMIT: usize = 1000;

/// One line of the call stack, innermost first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Path as recorded; the whole line when it has another shape.
    pub file: String,
    /// Line number.
    pub line: Option<u32>,
    /// Function.
    pub function: Option<String>,
    /// Source line.
    pub code: Option<String>,
    /// Whether it is a library's frame, by the rules table.
    pub library: bool,
}

impl Frame {
    /// `file:line in function`.
    fn place(&self) -> String {
        let line = self.line.map(|n| format!(":{n}")).unwrap_or_default();
        let function = self.function.as_ref().map(|f| format!(" in {f}")).unwrap_or_default();
        format!("{}{line}{function}", self.file)
    }
}

/// Where an op stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// The op, its module, that one's module, ... up to the root.
    pub chain: Vec<String>,
    /// Call stack as recorded, innermost first; empty when not recorded.
    pub stack: Vec<String>,
}

/// The parent of each record that has a line in `construct.json`.
///
/// PERF: a large rank has millions of lines, and few are asked for: only where each begins is kept, sorted by its key's
/// hash. A table of hashes would be waited for at each entry.
struct Parents<'b> {
    bytes: &'b [u8],
    lines: Vec<(u64, usize)>,
}

impl<'b> Parents<'b> {
    /// A cut file gives what stands before the cut.
    fn of(construct: Option<&'b [u8]>) -> Self {
        let mut parents = Self { bytes: construct.unwrap_or_default(), lines: Vec::new() };
        let _ = parents.read();
        parents.lines.sort_unstable();
        parents
    }

    fn read(&mut self) -> Read<()> {
        let mut cursor = Cursor::new(self.bytes, 0);
        cursor.expect(b'{', "an object")?;
        if cursor.eat(b'}')? {
            return Ok(());
        }
        loop {
            let start = cursor.at;
            let (key, _) = line(&mut cursor)?;
            self.lines.push((xxh3_64(key.as_bytes()), start));
            if !cursor.eat(b',')? {
                return cursor.expect(b'}', "'}'");
            }
        }
    }

    /// The line of a record; nothing where the file has none.
    fn line(&self, name: &str) -> Option<Line<'b>> {
        let hash = xxh3_64(name.as_bytes());
        // Of two lines for one record the last counts.
        let behind = self.lines.partition_point(|line| line.0 <= hash);
        let &(_, start) = self.lines[..behind].last().filter(|line| line.0 == hash)?;
        line(&mut Cursor::new(self.bytes, start)).ok().filter(|(key, _)| key == name)
    }
}

/// A record and its parent.
type Line<'b> = (Cow<'b, str>, Option<Cow<'b, str>>);

fn line<'b>(cursor: &mut Cursor<'b>) -> Read<Line<'b>> {
    let key = cursor.long_string()?;
    cursor.expect(b':', "':'")?;
    // `[parent, micro_step]` since Megatron support; null and "" both mean no parent.
    let listed = cursor.peek()? == b'[';
    if listed {
        cursor.at += 1;
    }
    let parent = if cursor.peek()? == b'"' {
        let range = cursor.long_string()?;
        Some(unescape(&cursor.bytes[range])).filter(|p| !p.is_empty())
    } else {
        if !(listed && cursor.peek()? == b']') {
            cursor.skip_value()?;
        }
        None
    };
    if listed {
        while cursor.eat(b',')? {
            cursor.skip_value()?;
        }
        cursor.expect(b']', "']'")?;
    }
    Ok((unescape(&cursor.bytes[key]), parent))
}

/// Looks up all `names` in one pass over each file.
#[must_use]
pub(crate) fn contexts(construct: Option<&[u8]>, stack: Option<&[u8]>, names: &[&str]) -> Vec<Context> {
    let parents = Parents::of(construct);
    let forwards: Vec<Vec<String>> = names.iter().map(|n| spellings(n)).collect();
    let wanted: FxHashSet<&str> = forwards.iter().flatten().map(String::as_str).collect();
    let mut lines: FxHashMap<String, Vec<String>> = FxHashMap::default();
    if let Some(bytes) = stack {
        let _ = read_stack(bytes, &|name| wanted.contains(name), &mut |names, stack| {
            lines.extend(names.into_iter().map(|name| (name, stack.clone())));
        });
    }
    names
        .iter()
        .zip(&forwards)
        .map(|(name, spellings)| {
            let stack = spellings.iter().find_map(|s| lines.get(s)).cloned().unwrap_or_default();
            Context { chain: chain(&parents, name, spellings), stack }
        })
        .collect()
}

/// Where every op of a rank stands: its innermost module, and the innermost frame of the user's code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Site {
    /// Name of the innermost module's record around the op.
    pub module: Option<String>,
    /// `file:line in function`.
    pub place: Option<String>,
    /// Source line.
    pub code: Option<String>,
}

/// Looks up the site of every op, in one pass over each file; the default where nothing is recorded.
pub(crate) fn sites<'n>(
    construct: Option<&[u8]>,
    stack: Option<&[u8]>,
    names: impl Iterator<Item = String> + 'n,
    rules: &Rules,
    mut each: impl FnMut(Site),
) {
    let parents = Parents::of(construct);
    let mut codes: FxHashMap<String, Rc<Site>> = FxHashMap::default();
    if let Some(bytes) = stack {
        let _ = read_stack(bytes, &|_| true, &mut |names, lines| {
            let frames = frames(&lines, rules);
            let inner = frames.iter().find(|f| !f.library).or(frames.first());
            let place = inner.map(Frame::place);
            let site = Rc::new(Site { module: None, place, code: inner.and_then(|f| f.code.clone()) });
            codes.extend(names.into_iter().map(|name| (name, Rc::clone(&site))));
        });
    }
    for name in names {
        let spellings = spellings(&name);
        let module = spellings.iter().find_map(|s| parents.line(s)).and_then(|(_, parent)| parent).map(Cow::into_owned);
        let inner = spellings.iter().find_map(|s| codes.get(s)).map(|s| (**s).clone()).unwrap_or_default();
        each(Site { module, ..inner });
    }
}

/// The name itself, then the forward it belongs to.
fn spellings(name: &str) -> Vec<String> {
    let parsed = OpName::parse(name);
    let number = parsed.call_index.unwrap_or(0);
    let forward = if parsed.is_module() {
        format!("{}.forward.{number}", parsed.base)
    } else {
        format!("{}.{number}.forward", parsed.base)
    };
    let mut all = vec![name.to_owned()];
    if matches!(parsed.direction, Direction::Backward | Direction::ParametersGrad) {
        all.push(forward);
    }
    all
}

fn chain(parents: &Parents, name: &str, spellings: &[String]) -> Vec<String> {
    let mut chain = vec![name.to_owned()];
    let Some((start, mut next)) = spellings.iter().find_map(|s| parents.line(s)) else {
        return chain;
    };
    let mut seen = FxHashSet::from_iter([start]);
    while let Some(parent) = next {
        if chain.len() > CHAIN_LIMIT || !seen.insert(parent.clone()) {
            break; // a circle in the file
        }
        next = parents.line(&parent).and_then(|(_, parent)| parent);
        chain.push(parent.into_owned());
    }
    chain
}

fn read_stack(
    bytes: &[u8],
    wanted: &dyn Fn(&str) -> bool,
    found: &mut dyn FnMut(Vec<String>, Vec<String>),
) -> Read<()> {
    let mut cursor = Cursor::new(bytes, 0);
    cursor.expect(b'{', "an object")?;
    if cursor.eat(b'}')? {
        return Ok(());
    }
    loop {
        let key = cursor.string()?;
        cursor.expect(b':', "':'")?;
        if cursor.peek()? == b'[' {
            let start = cursor.at;
            cursor.at += 1;
            if cursor.peek()? == b'[' {
                // New layout: [[names...], [lines...]].
                let hits = texts(&mut cursor, wanted)?;
                let more = cursor.eat(b',')?;
                if !hits.is_empty() {
                    let mut ahead = cursor;
                    let lines = if more && ahead.peek()? == b'[' { texts(&mut ahead, &|_| true)? } else { Vec::new() };
                    found(hits, lines);
                }
                if more {
                    cursor.skip_value()?;
                    while cursor.eat(b',')? {
                        cursor.skip_value()?;
                    }
                }
                cursor.expect(b']', "']'")?;
            } else {
                cursor.at = start;
                let name = unescape(&bytes[key]);
                if wanted(&name) {
                    let lines = texts(&mut cursor, &|_| true)?;
                    found(vec![name.into_owned()], lines);
                } else {
                    cursor.skip_value()?;
                }
            }
        } else {
            cursor.skip_value()?;
        }
        if !cursor.eat(b',')? {
            return cursor.expect(b'}', "'}'");
        }
    }
}

/// The strings of a list that are wanted (numbers as text, anything else left out).
fn texts(cursor: &mut Cursor, wanted: &dyn Fn(&str) -> bool) -> Read<Vec<String>> {
    let mut out = Vec::new();
    cursor.expect(b'[', "a list")?;
    if cursor.eat(b']')? {
        return Ok(out);
    }
    loop {
        match cursor.peek()? {
            b'"' => {
                let range = cursor.string()?;
                let text = unescape(&cursor.bytes[range]);
                if wanted(&text) {
                    out.push(text.into_owned());
                }
            }
            b'[' | b'{' => cursor.skip_value()?,
            _ => {
                let word = String::from_utf8_lossy(cursor.word()?);
                if word != "null" && wanted(&word) {
                    out.push(word.into_owned());
                }
            }
        }
        if !cursor.eat(b',')? {
            cursor.expect(b']', "']'")?;
            return Ok(out);
        }
    }
}

/// Stack lines taken apart.
pub(crate) fn frames(lines: &[String], rules: &Rules) -> Vec<Frame> {
    lines.iter().map(|line| frame(line, rules)).collect()
}

/// `File p, line n, in f, \n code`
fn frame(line: &str, rules: &Rules) -> Frame {
    let whole = || Frame {
        file: line.trim().to_owned(),
        line: None,
        function: None,
        code: None,
        library: rules.is_library(line),
    };
    let Some(rest) = line.trim_start().strip_prefix("File ") else {
        return whole();
    };
    let Some((file, rest)) = rest.split_once(", line ") else {
        return whole();
    };
    let (number, rest) = rest.split_once(", in ").unwrap_or((rest, ""));
    let (function, code) = rest.split_once('\n').unwrap_or((rest, ""));
    let some = |text: &str| Some(text.trim().trim_end_matches(',').trim().to_owned()).filter(|t| !t.is_empty());
    Frame {
        file: file.trim_matches('"').to_owned(),
        line: number.trim().parse().ok(),
        function: some(function),
        code: some(code),
        library: rules.is_library(file),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(construct: &str, stack: &str, name: &str) -> Context {
        contexts(Some(construct.as_bytes()), Some(stack.as_bytes()), &[name]).remove(0)
    }

    const CONSTRUCT: &str = r#"{"megatron_micro_step_number": 3, "Module.0.a.L.forward.0": [null, 0],
        "Torch.exp.0.forward": ["Module.0.a.L.forward.0", 0], "optimizer": [null, 2], "Tensor.mul_.9.forward": ["optimizer", 2],
        "old": "", "x": "y", "y": "x"}"#;
    const NEW: &str = r#"{"0": [["Torch.exp.0.forward", "Torch.exp.1.forward"], ["File model.py, line 41, in act, \n y = torch.exp(x)"]], "1": [["Tensor.mul_.9.forward"], []], "bad": 7, "2": []}"#;

    #[test]
    fn every_layout_of_both_files() {
        let context = of(CONSTRUCT, NEW, "Torch.exp.0.forward");
        assert_eq!(context.chain, ["Torch.exp.0.forward", "Module.0.a.L.forward.0"]);
        let frame = &frames(&context.stack, &Rules::built_in())[0];
        assert_eq!((frame.file.as_str(), frame.line, frame.function.as_deref()), ("model.py", Some(41), Some("act")));
        assert_eq!(frame.code.as_deref(), Some("y = torch.exp(x)"));
        assert_eq!(of(CONSTRUCT, NEW, "Tensor.mul_.9.forward").chain[1], "optimizer");
        let old =
            r#"{"Torch.exp.0.forward": ["File a.py, line 1, in f, \n c"], "linear": ["linear", "forward.py", 123]}"#;
        assert_eq!(frames(&of("{}", old, "Torch.exp.0.forward").stack, &Rules::built_in())[0].file, "a.py");
        assert_eq!(of("{}", old, "linear").stack, ["linear", "forward.py", "123"]);
    }

    #[test]
    fn gradients_are_found_as_their_forward() {
        let context = of(CONSTRUCT, NEW, "Torch.exp.0.backward");
        assert_eq!(context.chain, ["Torch.exp.0.backward", "Module.0.a.L.forward.0"]);
        assert_eq!(context.stack.len(), 1);
    }

    #[test]
    fn circles_cuts_and_absence() {
        assert_eq!(of(CONSTRUCT, NEW, "x").chain, ["x", "y"]);
        assert_eq!(of(CONSTRUCT, NEW, "unknown").chain, ["unknown"]);
        for cut in 0..CONSTRUCT.len() {
            let _ = of(&CONSTRUCT[..cut], &NEW[..cut.min(NEW.len())], "Torch.exp.0.forward");
        }
        let none = contexts(None, None, &["a"]);
        assert_eq!(none[0].chain, ["a"]);
    }
}
