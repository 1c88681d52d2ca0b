"""The compiled half of ovf; use the functions of `ovf` itself."""

import os
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
    chart: bool = False,
    progress: Progress | None = None,
) -> tuple[str, list[str], str | None]:
    """Analyse one step of `discover(path)`.

    Returns the report as JSON, the records of its findings, and with `chart` every op of every rank as JSON (the
    atlas of docs/report.md).
    """

def trace(
    path: str | os.PathLike[str],
    index: int,
    rank: int,
    *,
    rules: str | os.PathLike[str] | None = None,
) -> tuple[str, list[str]]:
    """Trace one rank: the trace as JSON, and the outputs of its candidates as JSON text."""

def effective_rules(rules: str | os.PathLike[str] | None = None) -> str:
    """The operator table in force, as JSON."""
