//! What can go wrong, as data: a kind, the path it concerns and, for bad content, the byte offset.
//!
//! Line and column are not carried through the hot path. [`Position::find`] counts newlines once, when the
//! error is made for a file that is already in memory.

use std::path::{Path, PathBuf};

/// A place in a text file, both numbers starting at 1. Columns count bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Position {
    /// 1-based line.
    pub line: u64,
    /// 1-based column, in bytes.
    pub column: u64,
}

impl Position {
    /// The position of byte `offset` in `bytes`.
    ///
    /// ```
    /// let at = ovf_core::Position::find(b"{\n \"a\": x", 8);
    /// assert_eq!((at.line, at.column), (2, 7));
    /// ```
    #[must_use]
    pub fn find(bytes: &[u8], offset: usize) -> Self {
        let before = &bytes[..offset.min(bytes.len())];
        let line = memchr::memchr_iter(b'\n', before).count() as u64 + 1;
        let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        Self { line, column: (before.len() - start) as u64 + 1 }
    }
}

/// The classes of failure a caller can tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The path does not exist.
    NotFound,
    /// The operating system refused; the number is `errno` where known.
    Io(Option<i32>),
    /// The path exists but holds no dump in any known layout.
    NotADump,
    /// A file is not the format it should be.
    Format,
    /// The caller asked for something that the dump does not have (a step, a rank).
    Selection,
    /// The rules file is not valid.
    Rules,
    /// The caller said to stop.
    Cancelled,
}

/// A failure that concerns one path.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", self.line())]
pub struct Error {
    /// What class of failure this is.
    pub kind: ErrorKind,
    /// The file or folder it concerns.
    pub path: PathBuf,
    /// Where in the file, for [`ErrorKind::Format`] and [`ErrorKind::Rules`].
    pub position: Option<Position>,
    /// Byte offset of `position`.
    pub offset: Option<u64>,
    /// One line: what was expected and what was found.
    pub message: String,
    /// One line: what the user can do, if anything.
    pub help: Option<&'static str>,
}

impl Error {
    /// An error without a place in a file.
    pub fn new(kind: ErrorKind, path: &Path, message: impl Into<String>) -> Self {
        Self { kind, path: path.to_path_buf(), position: None, offset: None, message: message.into(), help: None }
    }

    /// A format error at byte `offset` of `bytes`.
    pub fn at(path: &Path, bytes: &[u8], offset: usize, message: impl Into<String>) -> Self {
        Self {
            position: Some(Position::find(bytes, offset)),
            offset: Some(offset as u64),
            ..Self::new(ErrorKind::Format, path, message)
        }
    }

    /// From an operating-system error.
    #[must_use]
    pub fn io(path: &Path, error: &std::io::Error) -> Self {
        let kind = if error.kind() == std::io::ErrorKind::NotFound {
            ErrorKind::NotFound
        } else {
            ErrorKind::Io(error.raw_os_error())
        };
        let text = match error.kind() {
            std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        Self::new(kind, path, text)
    }

    /// The same error with a line of advice.
    #[must_use]
    pub fn with_help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }

    /// `path:line:column: message`, or `path: message`.
    fn line(&self) -> String {
        let path = self.path.display();
        match self.position {
            Some(at) => format!("{path}:{}:{}: {}", at.line, at.column, self.message),
            None => format!("{path}: {}", self.message),
        }
    }
}

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_counts_lines_and_columns_from_one() {
        let text = b"ab\ncd\n";
        let at = |o| {
            let p = Position::find(text, o);
            (p.line, p.column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(2), (1, 3));
        assert_eq!(at(3), (2, 1));
        assert_eq!(at(6), (3, 1));
        assert_eq!(at(99), (3, 1));
    }

    #[test]
    fn the_message_starts_with_the_place() {
        let error = Error::at(Path::new("r/dump.json"), b"{\n x", 3, "expected a string");
        assert_eq!(error.to_string(), "r/dump.json:2:2: expected a string");
    }
}
