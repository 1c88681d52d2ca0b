"""How an overflow went on: the path, the hops between ranks, the communications (see docs/report.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ovf.finding import RankOp, take

if TYPE_CHECKING:
    from collections.abc import Mapping


class PathStep(NamedTuple):
    """One step from the origin outward: `via` is `origin`, `data` or `communication`."""

    rank: int
    op_name: str
    exec_order: int
    via: str
    omitted: int
    symptom: str | None


class Hop(NamedTuple):
    """A communication that brought the overflow to ranks that did not have it.

    Attributes:
        api: API name.
        from_rank: Rank that gave it.
        op_name, exec_order: Op of the giver.
        to: Ranks that got it for the first time.
        arrivals: `exec_order` of the op by which each of them got it.
    """

    api: str
    from_rank: int
    op_name: str
    exec_order: int
    to: tuple[int, ...]
    arrivals: tuple[int, ...]


class Spread(NamedTuple):
    """How far the first overflow went: ops after it, ranks, hops in order, and where somebody would notice."""

    ops: int
    ranks: tuple[int, ...]
    hops: tuple[Hop, ...]
    symptom: RankOp | None
    symptom_kind: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Spread:
        """From the JSON contract."""
        hops = tuple(
            Hop(h["api"], h["from"], h["op_name"], h["exec_order"], tuple(h["to"]), tuple(h["arrivals"]))
            for h in data["hops"]
        )
        symptom = take(RankOp, data["symptom"]) if data["symptom"] else None
        return cls(data["ops"], tuple(data["ranks"]), hops, symptom, data["symptom_kind"])


class Communication(NamedTuple):
    """One communication with a bad value or without all members.

    Attributes:
        api: API name.
        op_name: Key in the first member's dump.
        group_ranks, group_id: The process group; empty for the default group.
        seq: Order of issue within the group.
        members: Every member's op.
        source_ranks: Their contribution was bad.
        propagated_ranks: Clean contribution (or none), bad result.
        normal_ranks: Nothing bad.
        missing_ranks: Not dumped.
        unmatched_ranks: Dumped, but without this call.
        state: How well it matched.
        verdict: `overflow`, `origin`, `entered`, `absorbed`, `garbage`, `intended` or `clean`.
    """

    api: str
    op_name: str
    group_ranks: tuple[int, ...]
    group_id: str
    seq: int
    members: tuple[RankOp, ...]
    source_ranks: tuple[int, ...]
    propagated_ranks: tuple[int, ...]
    normal_ranks: tuple[int, ...]
    missing_ranks: tuple[int, ...]
    unmatched_ranks: tuple[int, ...]
    state: str
    verdict: str

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Communication:
        """From the JSON contract."""
        lists = (
            "group_ranks",
            "source_ranks",
            "propagated_ranks",
            "normal_ranks",
            "missing_ranks",
            "unmatched_ranks",
        )
        made: dict[str, Any] = {k: tuple(data[k]) for k in lists}
        return take(cls, data, members=tuple(take(RankOp, m) for m in data["members"]), **made)
