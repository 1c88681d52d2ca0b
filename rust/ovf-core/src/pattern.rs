//! Patterns of operator names, as the rules table writes them.
//!
//! In: a pattern and a name. Out: whether the one names the other. With a dot the part before it names the prefix.

use crate::op::OpName;

/// Whether a pattern of the rules table names the op: `softmax`, `*_empty`, `Torch.log*`.
pub(crate) fn fits(pattern: &str, name: &OpName) -> bool {
    // PERF: every pattern of the table is tried on every new name.
    if let Some(dot) = memchr::memrchr(b'.', pattern.as_bytes()) {
        glob(&pattern[dot + 1..], name.api) && glob(&pattern[..dot], name.prefix)
    } else {
        glob(pattern, name.api)
    }
}

/// `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some(star) = memchr::memchr(b'*', pattern.as_bytes()) else {
        return pattern == text;
    };
    let (head, rest) = (&pattern[..star], &pattern[star + 1..]);
    let Some(mut tail) = text.strip_prefix(head) else {
        return false;
    };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return tail.ends_with(part);
        }
        match tail.find(part) {
            Some(at) => tail = &tail[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("*_empty", "npu_empty", true),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
