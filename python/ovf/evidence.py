"""What an answer rests on: ranks, what could not be read, remarks (see docs/report.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ovf.finding import RankOp, take

if TYPE_CHECKING:
    from collections.abc import Mapping

Verdict = Literal["overflow", "clean", "no_evidence"]
"""Of a step; the last where nothing in the dump can be judged."""


class Note(NamedTuple):
    """One remark: kind, sentence, ranks and ops it concerns, how often."""

    kind: str
    text: str
    ranks: tuple[int, ...]
    ops: tuple[RankOp, ...]
    count: int  # type: ignore[assignment]  # a field that a tuple has as a method

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Note:
        """From the JSON contract."""
        return take(cls, data, ranks=tuple(data["ranks"]), ops=tuple(take(RankOp, o) for o in data["ops"]))


class Unreadable(NamedTuple):
    """A dump that could not be read, or not to its end; `ops_used` of it were used all the same."""

    rank: int
    path: str
    line: int | None
    column: int | None
    message: str
    help: str | None
    ops_used: int

    def __str__(self) -> str:
        """`path:line:column: message`."""
        place = self.path if self.line is None else f"{self.path}:{self.line}:{self.column}"
        return f"{place}: {self.message}"


class RankSummary(NamedTuple):
    """One rank in numbers: ops by state, first bad op, completeness.

    `strip`, where it was asked for, is the rank's execution drawn small: the worst state in each of at most 256 equal
    parts of its ops, a letter each (`o`rigin, `p`ropagated, `a`bsorbed, `i`ntended, `g`arbage, `u`nknown, `.` clean).
    """

    rank: int
    label: str
    completeness: str
    has_statistics: bool
    task: str | None
    level: str | None
    ops: int
    counts: Mapping[str, int]
    first_bad: RankOp | None
    reached_by: str | None
    strip: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankSummary:
        """From the JSON contract."""
        bad = data["first_bad"]
        return take(cls, data, first_bad=take(RankOp, bad) if bad else None)
