"""The compiled half of ovf; use the functions of `ovf` itself."""

import os
from collections.abc import Sequence
from typing import TypeAlias, final

from typing_extensions import Self

__version__: str
DEBUG_BUILD: bool

class OvfError(Exception):
    """Base of ovf's own errors.

    Attributes:
        path: The file or folder it concerns.
        line: 1-based line, where known.
        column: 1-based column in bytes, where known.
        help: What can be done about it, if anything.
    """

    path: str
    line: int | None
    column: int | None
    help: str | None

class DumpFormatError(OvfError):
    """The path holds no msProbe dump, or not what was asked for."""

class RulesError(OvfError):
    """The rules file is not valid."""

@final
class Progress:
    """Counters of a running analysis, readable from any thread."""

    def __new__(cls) -> Self: ...
    @property
    def bytes(self) -> int:
        """Bytes read so far."""
    @property
    def total(self) -> int:
        """Bytes in all."""
    @property
    def ranks(self) -> int:
        """Ranks read so far."""
    def cancel(self) -> None:
        """Stop the analysis early."""

_Path: TypeAlias = str | os.PathLike[str]

def discover(path: _Path | Sequence[_Path]) -> list[tuple[int | None, str, os.PathLike[str], list[int]]]:
    """Steps below `path` (or below all of several paths): number, label, folder, ranks.

    Raises:
        FileNotFoundError: The path does not exist.
        DumpFormatError: It holds no dump in any known layout.
        OSError: The operating system refused.
    """

def sources(
    path: _Path | Sequence[_Path],
) -> list[
    tuple[
        int | None,
        str,
        bool,
        list[str],
        list[tuple[int, str, os.PathLike[str], os.PathLike[str], os.PathLike[str]]],
    ]
]:
    """Steps below `path` with the files of their ranks, in the order of `discover`.

    A step is its number, its label, whether `path` names one rank of it, remarks about its folder, and its ranks; a
    rank is its number, its folder's name, its `dump.json` or written summary, its `construct.json` and `stack.json`,
    whether they exist or not.
    """

def analyze(
    path: _Path | Sequence[_Path],
    index: int,
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    map: bool = True,
    progress: Progress | None = None,
) -> tuple[str, list[str]]:
    """Analyse one step of `discover(path)`: the report as JSON, and the records of its findings."""

def summarize(
    dump: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    rank: int,
    label: str,
    path: str | None = None,
    construct: str | os.PathLike[str] | bytes | bytearray | memoryview | None = None,
    stack: str | os.PathLike[str] | bytes | bytearray | memoryview | None = None,
    step_number: int | None = None,
    step_label: str = "",
    notes: list[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
    map: bool = True,
    progress: Progress | None = None,
) -> bytes:
    """Summarise one rank: the bytes of its summary, details included.

    Args:
        dump: `dump.json`: a path, or its content.
        rank: Global rank.
        label: The rank's folder name, or what stands for one.
        path: How a report shows a dump that is given as content.
        construct: `construct.json`; beside the dump by default where that is a path, else none.
        stack: `stack.json`, likewise.
        step_number: The step's number.
        step_label: The step's folder below the dump root.
        notes: Remarks about the step's folder.
        rules: A rules file laid over the built-in ones.
        map: Whether a large file may be mapped; not where another process may still truncate it.
        progress: Counters; `cancel()` stops early.

    Raises:
        DumpFormatError: The summary would be larger than a reader accepts. A dump that cannot be read is no error
            but part of the summary.
    """

def absent(
    *,
    rank: int,
    label: str,
    path: str,
    message: str,
    help: str,
    step_number: int | None = None,
    step_label: str = "",
    notes: list[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
) -> bytes:
    """The summary of a rank whose dump cannot be had; the report names it among the unreadable ones."""

def about(summary: bytes, *, path: str = "summary", rules: _Path | None = None) -> str:
    """What a summary is about, as JSON.

    `rank`, `label`, `step`, `step_label`, `ops`, `bytes` of the dump, `completeness`, and `unreadable` (`null` or as
    in a report).

    Raises:
        DumpFormatError: As for `reduce`; `path` names the summary then.
    """

def reduce(
    summaries: list[bytes],
    *,
    step_number: int | None = None,
    step_label: str = "",
    notes: list[str] | None = None,
    chosen: bool = False,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
) -> tuple[str, list[str]]:
    """Reduce the summaries of one step, in any order, to its report: JSON, and the records of its findings.

    Args:
        summaries: What `summarize` and `absent` gave, under the same rules.
        step_number: As for `summarize`.
        step_label: As there.
        notes: As there.
        chosen: The caller chose the ranks: those left out are no missing evidence.
        ranks: Only these ranks.
        rules: As there.
        threads: Threads; all processors by default.

    Raises:
        DumpFormatError: Bytes that are no summary, of another version, damaged, or made under other rules.
        ValueError: An asked rank without a summary. Two different summaries of one rank are no error: the rank is
            reported as unreadable.
    """

def trace(
    path: _Path | Sequence[_Path],
    index: int,
    rank: int,
    *,
    rules: str | os.PathLike[str] | None = None,
) -> tuple[str, list[str]]:
    """Trace one rank: the trace as JSON, and the outputs of its candidates as JSON text."""

def effective_rules(rules: str | os.PathLike[str] | None = None) -> str:
    """The operator table in force, as JSON."""
