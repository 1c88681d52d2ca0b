//! A plain reader of a dump, byte by byte, written from the format alone. Slow and obvious; the judge of the core.
//!
//! The index follows strings and brackets, as the core promises for damaged files too. The values are read from a tree,
//! and only where the record is JSON as Python writes it; of anything else nothing is promised but an error or a lenient
//! reading.

use std::collections::HashMap;
use std::ops::Range;

use ovf_core::bench::Seen;

/// How a file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// Closed.
    Complete,
    /// The bytes ended.
    Cut,
    /// This byte cannot stand there.
    Damaged(usize),
}

/// One op's place.
#[derive(Debug, Clone)]
pub struct Op {
    /// Raw name.
    pub name: Vec<u8>,
    /// Its record.
    pub body: Range<usize>,
}

/// What an index must say.
#[derive(Debug)]
pub struct Expected {
    /// Raw texts of the header.
    pub task: Option<String>,
    /// As `task`.
    pub level: Option<String>,
    /// As `task`.
    pub framework: Option<String>,
    /// Whether `data` was seen.
    pub has_data: bool,
    /// Ops in order, the last of equal names in the first's place.
    pub ops: Vec<Op>,
    /// Names that stood again.
    pub duplicates: usize,
    /// How the file ended.
    pub end: End,
    /// Whether the header is JSON and has each key once.
    pub plain: bool,
    header: Vec<(Vec<u8>, Option<Node>)>,
}

/// JSON, with keys, texts and words as they are written.
#[derive(Debug, Clone)]
pub enum Node {
    /// `null`, a number, ...
    Word(Vec<u8>),
    /// Between the quotes.
    Text(Vec<u8>),
    /// `[...]`
    List(Vec<Node>),
    /// `{...}`
    Object(Vec<(Vec<u8>, Node)>),
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

fn ends_word(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'{' | b'[')
}

impl Reader<'_> {
    fn next(&mut self) -> Result<u8, End> {
        while self.at < self.bytes.len() && is_space(self.bytes[self.at]) {
            self.at += 1;
        }
        self.bytes.get(self.at).copied().ok_or(End::Cut)
    }

    fn expect(&mut self, byte: u8) -> Result<(), End> {
        if self.next()? != byte {
            return Err(End::Damaged(self.at));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<Range<usize>, End> {
        self.expect(b'"')?;
        let start = self.at;
        while self.at < self.bytes.len() {
            match self.bytes[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at - 1);
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        Err(End::Cut)
    }

    fn word(&mut self) -> Result<Range<usize>, End> {
        self.next()?;
        let start = self.at;
        while self.at < self.bytes.len() && !ends_word(self.bytes[self.at]) {
            self.at += 1;
        }
        if self.at == self.bytes.len() {
            return Err(End::Cut);
        }
        if self.at == start {
            return Err(End::Damaged(start));
        }
        Ok(start..self.at)
    }

    /// Past a value of the header: tokens, with brackets counted.
    fn pass(&mut self) -> Result<(), End> {
        let mut depth = 0;
        loop {
            match self.next()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' if depth == 0 => return Err(End::Damaged(self.at)),
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.word()?;
                }
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Past a record: strings and brackets alone.
    fn pass_record(&mut self) -> Result<(), End> {
        match self.next()? {
            b'"' => return self.string().map(drop),
            b'{' | b'[' => {}
            _ => return self.word().map(drop),
        }
        let mut depth = 0;
        let mut inside = false;
        while self.at < self.bytes.len() {
            let byte = self.bytes[self.at];
            if byte == b'\\' && (inside || matches!(self.bytes.get(self.at + 1), Some(b'"' | b'\\'))) {
                self.at += 2;
                continue;
            }
            self.at += 1;
            match byte {
                b'"' => inside = !inside,
                b'{' | b'[' if !inside => depth += 1,
                b'}' | b']' if !inside => {
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err(End::Cut)
    }

    fn file(&mut self, out: &mut Expected) -> Result<(), End> {
        self.expect(b'{')?;
        if self.next()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            let key = self.bytes[key].to_vec();
            self.expect(b':')?;
            out.plain &= out.header.iter().all(|(k, _)| *k != key);
            if key == b"data" && self.next()? == b'{' {
                out.has_data = true;
                out.ops.clear();
                out.header.push((key, None));
                self.data(out)?;
            } else {
                let quoted = self.next()? == b'"';
                let start = self.at;
                self.pass()?;
                let raw = &self.bytes[start..self.at];
                let text = quoted.then(|| String::from_utf8_lossy(&raw[1..raw.len() - 1]).into_owned());
                match &key[..] {
                    b"task" => out.task = text,
                    b"level" => out.level = text,
                    b"framework" => out.framework = text,
                    _ => {}
                }
                let node = tree(raw);
                out.plain &= node.is_some();
                out.header.push((key, node));
            }
            if self.next()? != b',' {
                return self.expect(b'}');
            }
            self.at += 1;
        }
    }

    fn data(&mut self, out: &mut Expected) -> Result<(), End> {
        self.expect(b'{')?;
        if self.next()? == b'}' {
            self.at += 1;
            return Ok(());
        }
        loop {
            let name = self.string()?;
            self.expect(b':')?;
            self.next()?;
            let start = self.at;
            self.pass_record()?;
            out.ops.push(Op { name: self.bytes[name].to_vec(), body: start..self.at });
            if self.next()? != b',' {
                return self.expect(b'}');
            }
            self.at += 1;
        }
    }
}

/// Reads a dump.
#[must_use]
pub fn index(bytes: &[u8]) -> Expected {
    let mut out = Expected {
        task: None,
        level: None,
        framework: None,
        has_data: false,
        ops: Vec::new(),
        duplicates: 0,
        end: End::Complete,
        plain: true,
        header: Vec::new(),
    };
    let mut reader = Reader { bytes, at: 0 };
    out.end = match reader.file(&mut out) {
        Err(end) => end,
        Ok(()) if reader.next().is_ok() => End::Damaged(reader.at),
        Ok(()) => End::Complete,
    };
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut kept: Vec<Op> = Vec::new();
    for op in std::mem::take(&mut out.ops) {
        if let Some(&place) = places.get(&op.name) {
            kept[place] = op;
            out.duplicates += 1;
        } else {
            places.insert(op.name.clone(), kept.len());
            kept.push(op);
        }
    }
    out.ops = kept;
    out
}

/// A value, if it is JSON as Python writes it and nothing stands behind it.
#[must_use]
pub fn tree(raw: &[u8]) -> Option<Node> {
    let mut at = 0;
    let node = node(raw, &mut at, 0)?;
    skip(raw, &mut at);
    (at == raw.len()).then_some(node)
}

fn skip(raw: &[u8], at: &mut usize) {
    while raw.get(*at).is_some_and(|b| is_space(*b)) {
        *at += 1;
    }
}

fn node(raw: &[u8], at: &mut usize, depth: usize) -> Option<Node> {
    if depth > 100 {
        return None;
    }
    skip(raw, at);
    match *raw.get(*at)? {
        b'"' => text(raw, at).map(Node::Text),
        b'[' => {
            let mut items = Vec::new();
            *at += 1;
            skip(raw, at);
            if raw.get(*at) == Some(&b']') {
                *at += 1;
                return Some(Node::List(items));
            }
            loop {
                items.push(node(raw, at, depth + 1)?);
                if !more(raw, at, b']')? {
                    return Some(Node::List(items));
                }
            }
        }
        b'{' => {
            let mut pairs = Vec::new();
            *at += 1;
            skip(raw, at);
            if raw.get(*at) == Some(&b'}') {
                *at += 1;
                return Some(Node::Object(pairs));
            }
            loop {
                skip(raw, at);
                let key = text(raw, at)?;
                skip(raw, at);
                if raw.get(*at) != Some(&b':') {
                    return None;
                }
                *at += 1;
                pairs.push((key, node(raw, at, depth + 1)?));
                if !more(raw, at, b'}')? {
                    return Some(Node::Object(pairs));
                }
            }
        }
        _ => {
            let start = *at;
            while raw.get(*at).is_some_and(|b| !ends_word(*b)) {
                *at += 1;
            }
            let word = &raw[start..*at];
            is_json_word(word).then(|| Node::Word(word.to_vec()))
        }
    }
}

/// Past a comma (true) or the closing bracket (false).
fn more(raw: &[u8], at: &mut usize, close: u8) -> Option<bool> {
    skip(raw, at);
    let byte = *raw.get(*at)?;
    *at += 1;
    (byte == b',' || byte == close).then_some(byte == b',')
}

fn text(raw: &[u8], at: &mut usize) -> Option<Vec<u8>> {
    if raw.get(*at) != Some(&b'"') {
        return None;
    }
    *at += 1;
    let start = *at;
    loop {
        match *raw.get(*at)? {
            b'"' => {
                *at += 1;
                return Some(raw[start..*at - 1].to_vec());
            }
            b'\\' => *at += 2,
            _ => *at += 1,
        }
    }
}

fn is_json_word(word: &[u8]) -> bool {
    if matches!(word, b"null" | b"true" | b"false" | b"NaN" | b"Infinity" | b"-Infinity") {
        return true;
    }
    let digits = |w: &[u8]| w.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut rest = word.strip_prefix(b"-").unwrap_or(word);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let n = digits(fraction);
        if n == 0 {
            return false;
        }
        rest = &fraction[n..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = exponent.strip_prefix(b"-").or(exponent.strip_prefix(b"+")).unwrap_or(exponent);
        return !exponent.is_empty() && digits(exponent) == exponent.len();
    }
    rest.is_empty()
}

/// The values of a record, in the order in which they are met, an object before what is in it.
#[must_use]
pub fn values(record: &Node) -> Vec<(String, Seen)> {
    let mut out = Vec::new();
    match record {
        Node::List(_) => value(record, String::new(), &mut out),
        Node::Object(pairs) => {
            for (key, node) in pairs {
                let field = String::from_utf8_lossy(key).into_owned();
                if matches!(&key[..], b"input_args" | b"input_kwargs" | b"input" | b"parameters" | b"output") {
                    value(node, field, &mut out);
                }
            }
        }
        _ => {}
    }
    out
}

fn value(node: &Node, path: String, out: &mut Vec<(String, Seen)>) {
    match node {
        Node::Word(word) => out.push((path, number(word).filter(|_| !is_flag(word)).map_or(Seen::Other, Seen::Number))),
        Node::Text(_) => out.push((path, Seen::Other)),
        Node::List(items) => {
            for (i, item) in items.iter().enumerate() {
                value(item, format!("{path}[{i}]"), out);
            }
        }
        Node::Object(pairs) => {
            let mine: Vec<&(Vec<u8>, Node)> = pairs.iter().filter(|(k, v)| is_known(k, v)).collect();
            if let Some(seen) = object(&mine) {
                out.push((path.clone(), seen));
            }
            for (key, item) in pairs.iter().filter(|(k, v)| !is_known(k, v)) {
                value(item, format!("{path}.{}", readable(key)), out);
            }
        }
    }
}

/// Whether a key is msProbe's, by its value.
fn is_known(key: &[u8], value: &Node) -> bool {
    match key {
        b"type" | b"class_type" | b"dtype" | b"op" | b"group_id" => matches!(value, Node::Text(_)),
        b"shape" | b"group_ranks" => matches!(value, Node::List(_)),
        b"peer" | b"tag" => matches!(value, Node::Word(_)),
        b"Max" | b"Min" | b"Mean" | b"Norm" | b"value" | b"requires_grad" | b"md5" | b"data_name"
        | b"tensor_stat_index" | b"md5_index" | b"dirty_valid_len" => matches!(value, Node::Word(_) | Node::Text(_)),
        _ => false,
    }
}

/// What an object is, by its own keys; of two equal keys the later counts.
fn object(pairs: &[&(Vec<u8>, Node)]) -> Option<Seen> {
    let get = |key: &str| pairs.iter().rev().find(|(k, _)| k == key.as_bytes()).map(|(_, v)| v);
    let text_of = |key: &str| match get(key) {
        Some(Node::Text(raw)) => raw.clone(),
        _ => Vec::new(),
    };
    let is_peer = matches!(get("peer"), Some(Node::Word(w)) if number(w).is_some_and(|n| n >= 0.0));
    if text_of("class_type").ends_with(b"P2POp") || (is_peer && !readable(&text_of("op")).is_empty()) {
        return Some(Seen::Other);
    }
    if get("group_ranks").is_some() || text_of("type").ends_with(b"ProcessGroup") {
        return Some(Seen::Other);
    }
    let statistics = ["Max", "Min", "Mean", "Norm"].map(get);
    let dtype = readable(&text_of("dtype"));
    let counted = statistics.iter().any(Option::is_some) || get("tensor_stat_index").is_some();
    if counted || (get("shape").is_some() && !dtype.is_empty()) {
        let of = |node: Option<&Node>| match node {
            Some(Node::Text(raw)) => quoted(raw),
            Some(Node::Word(word)) => number(word),
            _ => None,
        };
        return Some(Seen::Tensor(dtype, get("shape").map(integers).unwrap_or_default(), statistics.map(of)));
    }
    // A type counts for the values behind it.
    let mut kind: &[u8] = b"";
    let mut seen = None;
    for (key, node) in pairs {
        match (&key[..], node) {
            (b"type", Node::Text(raw)) => kind = raw,
            (b"value", Node::Text(raw)) => {
                let is_number = [&b"float"[..], b"int", b"double", b"numpy."].iter().any(|k| kind.starts_with(k));
                seen = Some(quoted(raw).filter(|_| is_number).map_or(Seen::Other, Seen::Number));
            }
            (b"value", Node::Word(w)) => {
                seen = Some(number(w).filter(|_| !is_flag(w)).map_or(Seen::Other, Seen::Number));
            }
            _ => {}
        }
    }
    seen
}

fn is_flag(word: &[u8]) -> bool {
    matches!(word, b"true" | b"false")
}

fn integers(node: &Node) -> Vec<i64> {
    let Node::List(items) = node else { return Vec::new() };
    let one = |n: &Node| match n {
        Node::Word(w) => std::str::from_utf8(w).ok()?.parse().ok(),
        _ => None,
    };
    items.iter().filter_map(one).collect()
}

fn readable(raw: &[u8]) -> String {
    raw.utf8_chunks().next().map_or_else(String::new, |c| c.valid().to_owned())
}

fn number(word: &[u8]) -> Option<f64> {
    match word {
        b"NaN" => Some(f64::NAN),
        b"Infinity" => Some(f64::INFINITY),
        b"-Infinity" => Some(f64::NEG_INFINITY),
        b"true" => Some(1.0),
        b"false" => Some(0.0),
        b"null" => None,
        _ => {
            let text = std::str::from_utf8(word).ok()?;
            let value: f64 = text.parse().ok()?;
            let fraction = text.contains(['.', 'e', 'E']);
            Some(if fraction { value } else { value.clamp(f64::MIN, f64::MAX) })
        }
    }
}

fn quoted(raw: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(raw).ok()?.replace("\\t", " ").replace("\\n", " ").replace("\\r", " ");
    let text = text.trim();
    let bare = text.strip_prefix(['+', '-']).unwrap_or(text);
    match bare.to_ascii_lowercase().as_str() {
        "nan" => Some(f64::NAN),
        "inf" | "infinity" => Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }),
        _ if bare.starts_with(|c: char| c.is_ascii_digit() || c == '.') => {
            text.parse().ok().map(|value: f64| value.clamp(f64::MIN, f64::MAX))
        }
        _ => None,
    }
}

/// What is added to every record; it means nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    Nothing,
    /// A text that looks non-finite: every op is read whole.
    Token,
    /// A key that no other record has: each is read by itself.
    Key,
}

/// The same dump in another layout, with something added to every op.
#[must_use]
pub fn spelled(expected: &Expected, ops: &[(Vec<u8>, Node)], indent: Option<usize>, added: Added) -> Vec<u8> {
    let mut data = ops.to_vec();
    for (n, (_, record)) in data.iter_mut().enumerate() {
        if let Node::Object(pairs) = record {
            match added {
                Added::Nothing => {}
                Added::Token => pairs.push((b"zz".to_vec(), Node::Text(b" nan".to_vec()))),
                Added::Key => pairs.push((format!("z{n}").into_bytes(), Node::Text(Vec::new()))),
            }
        }
    }
    let data = Node::Object(data);
    let header = |(key, node): &(Vec<u8>, Option<Node>)| (key.clone(), node.clone().unwrap_or_else(|| data.clone()));
    let mut out = Vec::new();
    write(&Node::Object(expected.header.iter().map(header).collect()), indent, 0, &mut out);
    out
}

fn write(node: &Node, indent: Option<usize>, level: usize, out: &mut Vec<u8>) {
    let line = |level: usize, out: &mut Vec<u8>| {
        if let Some(n) = indent {
            out.push(b'\n');
            out.extend(std::iter::repeat_n(b' ', n * level));
        }
    };
    match node {
        Node::Word(word) => out.extend(word),
        Node::Text(text) => {
            out.push(b'"');
            out.extend(text);
            out.push(b'"');
        }
        Node::List(items) => {
            out.push(b'[');
            for (i, item) in items.iter().enumerate() {
                out.extend((i > 0).then_some(b','));
                line(level + 1, out);
                write(item, indent, level + 1, out);
            }
            if !items.is_empty() {
                line(level, out);
            }
            out.push(b']');
        }
        Node::Object(pairs) => {
            out.push(b'{');
            for (i, (key, item)) in pairs.iter().enumerate() {
                out.extend((i > 0).then_some(b','));
                line(level + 1, out);
                out.push(b'"');
                out.extend(key);
                out.extend(if indent.is_some() { &b"\": "[..] } else { &b"\":"[..] });
                write(item, indent, level + 1, out);
            }
            if !pairs.is_empty() {
                line(level, out);
            }
            out.push(b'}');
        }
    }
}
