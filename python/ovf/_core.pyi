"""The compiled half of ovf; use the functions of `ovf` itself."""

import os
from collections.abc import Iterator, Sequence
from typing import TypeAlias, final

from typing_extensions import Self

from ovf.report import Verdict

__version__: str
DEBUG_BUILD: bool
DETAILED: int
"""Findings that a report gives details of."""
LARGEST: int
"""Bytes of one file that are held in memory."""

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
class Analysis:
    """A report, written out when it is asked for: many a caller wants the verdict alone."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def incomplete(self) -> bool: ...
    def answer(self) -> tuple[str, list[str], str | None]:
        """Write it out.

        Returns the report as JSON, the records of its findings, and with `chart` every op of every rank as JSON (the
        atlas of docs/report.md).
        """

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

def discover(path: _Path | Sequence[_Path]) -> list[tuple[int | None, str, list[int]]]:
    """Steps below `path` (or below all of several paths): number, label, ranks.

    Raises:
        FileNotFoundError: The path does not exist.
        DumpFormatError: It holds no dump in any known layout.
        OSError: The operating system refused.
    """

def layout(
    root: str | os.PathLike[str], names: list[str]
) -> list[tuple[int | None, str, bool, list[str], list[tuple[int, str, str]]]]:
    """Steps in a list of names, by the rules of `discover`; nothing is opened.

    Args:
        root: The path that stands for the folder the names are below.
        names: Relative to it, `/` between parts and behind a folder.

    Returns:
        Number, label, whether it is one rank's, remarks, and rank, label and name of the dump of each rank.

    Raises:
        DumpFormatError: No layout fits.
    """

@final
class Unpacker:
    """A file object of gzip, zstd or plain bytes, told by its first bytes; `read` gives what was packed."""

    def __new__(cls, file: object) -> Self:
        """Wrap an object with `read(size) -> bytes`.

        Raises:
            OSError: The packed data is damaged; anything that `file.read` raises.
        """
    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end.

        Raises:
            OSError: The packed data ends early, is damaged, or unpacks to more than a thousand times its size;
                anything that `file.read` raises.
        """
    @property
    def packed(self) -> int:
        """Bytes taken from the file so far."""

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
    chart: bool = False,
    progress: Progress | None = None,
    wants: list[str] = ...,
) -> Analysis:
    """Analyse one step of `discover(path)`."""

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
    wants: list[str] | None = None,
) -> bytes:
    """Summarise one rank: the bytes of its summary, details included.

    Args:
        dump: `dump.json`: a path, or its content.
        rank: Global rank.
        label: The rank's folder name, or what stands for one.
        path: How a report shows the dump; its path by default, or the label where it is given as content.
        construct: `construct.json`; beside the dump by default where that is a path, else none.
        stack: `stack.json`, likewise.
        step_number: The step's number.
        step_label: The step's folder below the dump root.
        notes: Remarks about the step's folder.
        rules: A rules file laid over the built-in ones.
        map: Whether a large file may be mapped; not where another process may still truncate it.
        progress: Counters; `cancel()` stops early.
        wants: What it holds beyond the answer: `near`, `levels`, `trend`, `strip`, `chart`; everything by default.

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

def with_context(
    summary: bytes,
    construct: bytes | None = None,
    stack: bytes | None = None,
    *,
    remarks: list[str] | None = None,
    chart: bool = False,
    rules: _Path | None = None,
) -> bytes:
    """The same summary with module chains and stacks.

    Args:
        summary: What `summarize` gave.
        construct: Content of construct.json; `None` leaves the module chains as they are.
        stack: Content of stack.json, likewise.
        remarks: Remarks about the rank's files.
        chart: Whether to look up where every op stands, too.
        rules: With `chart`: those that the summary was made under.

    Raises:
        DumpFormatError: `summary` is none, or of another version.
    """

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
    chart: bool = False,
    wants: list[str] = ...,
) -> tuple[str, list[str], str | None]:
    """Reduce the summaries of one step, in any order, to its report: JSON, the records of its findings, the atlas.

    Args:
        summaries: What `summarize` and `absent` gave, under the same rules.
        step_number: As for `summarize`.
        step_label: As there.
        notes: As there.
        chosen: The caller chose the ranks: those left out are no missing evidence.
        ranks: Only these ranks.
        rules: As there.
        threads: Threads; all processors by default.
        chart: Whether to give every op of every rank too, as JSON (the atlas of docs/report.md).
        wants: As for `analyze`.

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

def overview(
    path: _Path | Sequence[_Path],
    indices: list[int],
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    map: bool = True,
    progress: Progress | None = None,
) -> str:
    """Summarise the steps at `indices` of `discover(path)`, as JSON."""

def op_table(
    path: _Path | Sequence[_Path],
    indices: list[int],
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    map: bool = True,
) -> Table:
    """The table of all ops of the steps at `indices`."""

def report_table(report: str, name: str) -> Table:
    """The table `findings` or `communications` of a report, given as JSON."""

@final
class Table:
    """A table in Arrow's terms (the Arrow PyCapsule interface), and as text.

    Rows are made while it is read; each reading starts over.
    """

    @property
    def columns(self) -> list[tuple[str, str, bool]]:
        """The columns: name, Arrow type as text, whether it may be null."""
    @property
    def unreadable(self) -> list[str]:
        """Dumps that the last reading could not read, or not to their end, a line each."""
    def text(self, form: str) -> Iterator[bytes]:
        """The table as text in pieces.

        Args:
            form: `csv` or `jsonl`.

        Raises:
            ValueError: No such form.
        """
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

def trace_summary(summary: bytes, *, rules: _Path | None = None) -> tuple[str, list[str]]:
    """Trace one rank from its summary: as `trace`."""

def effective_rules(rules: str | os.PathLike[str] | None = None) -> str:
    """The operator table in force, as JSON."""
