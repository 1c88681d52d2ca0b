"""What a report holds when it is asked for: near misses, levels as msProbe has them (see docs/report.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ovf.finding import Number, number, take

if TYPE_CHECKING:
    from collections.abc import Mapping


class NearMiss(NamedTuple):
    """A finite value close to the end of its dtype (`limit`), or one that grew suddenly (`growth`).

    Attributes:
        rank, op_name, exec_order: Where.
        kind: `limit` or `growth`.
        slot, dtype, shape: The tensor.
        value: Max or Min, whichever is larger in magnitude.
        limit: Largest finite number of the dtype.
        share: Magnitude over `limit`.
        growth: Magnitude over the largest input's; `None` without one.
        before_first: It stands before the first op of its rank that shows an overflow.
    """

    rank: int
    op_name: str
    exec_order: int
    kind: Literal["limit", "growth"]
    slot: str
    dtype: str
    shape: tuple[int, ...]
    value: float
    limit: float
    share: float
    growth: float | None
    before_first: bool


class LevelCount(NamedTuple):
    """Ops that msProbe's graph view marks for one reason: `scene`, `level`, `count`."""

    scene: str
    level: str
    count: int  # type: ignore[assignment]  # a field that a tuple has as a method


class LeveledOp(NamedTuple):
    """An op that msProbe's graph view marks; `norm_ratio` is its largest output norm over its largest input norm."""

    rank: int
    op_name: str
    exec_order: int
    level: Literal["critical", "high", "medium"]
    scene: str
    norm_ratio: Number


class Levels(NamedTuple):
    """The step in the words of msProbe's graph view: counts by reason, and the worst ops."""

    counts: tuple[LevelCount, ...]
    ops: tuple[LeveledOp, ...]
    ops_omitted: int

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Levels:
        """From the JSON contract."""
        ops = tuple(take(LeveledOp, o, norm_ratio=number(o["norm_ratio"])) for o in data["ops"])
        return cls(tuple(take(LevelCount, c) for c in data["counts"]), ops, data["ops_omitted"])
