"""The compiled half of ovf; use the functions of `ovf` itself."""

import os
from collections.abc import Iterator
from typing import final

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

def discover(path: str | os.PathLike[str]) -> list[tuple[int | None, str, os.PathLike[str], list[int]]]:
    """Steps below `path`: number, label, folder, ranks.

    Raises:
        FileNotFoundError: The path does not exist.
        DumpFormatError: It holds no dump in any known layout.
        OSError: The operating system refused.
    """

def analyze(
    path: str | os.PathLike[str],
    index: int,
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    map: bool = True,
    progress: Progress | None = None,
    wants: list[str] = [],
) -> tuple[str, list[str]]:
    """Analyse one step of `discover(path)`: the report as JSON, and the records of its findings."""

def trace(
    path: str | os.PathLike[str],
    index: int,
    rank: int,
    *,
    rules: str | os.PathLike[str] | None = None,
) -> tuple[str, list[str]]:
    """Trace one rank: the trace as JSON, and the outputs of its candidates as JSON text."""

def overview(
    path: str | os.PathLike[str],
    indices: list[int],
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Summarise the steps at `indices` of `discover(path)`, as JSON."""

def op_table(
    path: str | os.PathLike[str],
    indices: list[int],
    *,
    ranks: list[int] | None = None,
    rules: str | os.PathLike[str] | None = None,
    threads: int | None = None,
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

def effective_rules(rules: str | os.PathLike[str] | None = None) -> str:
    """The operator table in force, as JSON."""
