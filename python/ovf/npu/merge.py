"""Probe files of all ranks put into one order: who overflowed first, as far as the clocks can tell.

An interval says "after begin, before end". One rank is certainly before another only where its
end, with the clock uncertainty between the two, lies before the other's begin; everything else is
undecided, and said to be.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ovf.npu.intervals import STOPPED, Interval, ProbeFormatError, ProbeRecord, read_probe

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class RankOverflow:
    """A rank with an overflow, in the merged order.

    Attributes:
        place: 1 for the first; ranks whose order is undecided against the first of their place
            share it.
        rank: Global rank.
        host: Its host's name.
        begin_wall_ns: Wall clock of the interval's begin.
        end_wall_ns: Wall clock of its end.
        step_begin: Training step at the begin.
        step_end: Training step at the end.
        intervals: How many intervals the rank has.
    """

    place: int
    rank: int
    host: str
    begin_wall_ns: int
    end_wall_ns: int
    step_begin: int | None
    step_end: int | None
    intervals: int


@dataclass(frozen=True)
class MergedProbes:
    """The answer of :func:`merge`.

    Attributes:
        first: Ranks that can have been first: no other rank is certainly before them.
        overflows: Ranks with an overflow, by first interval.
        clean: Ranks watched without one.
        not_watched: Ranks whose probe did not run, or not to the end, with the reason.
        crashed: Ranks whose file has no last line, with the wall time at which they were last seen.
        uncertainty_ns: The largest clock uncertainty between two ranks with an overflow; None
            where unknown.
        uncertainty: The same in words.
        notes: What else to know.
    """

    first: tuple[int, ...]
    overflows: tuple[RankOverflow, ...]
    clean: tuple[int, ...]
    not_watched: dict[int, str]
    crashed: dict[int, int]
    uncertainty_ns: int | None
    uncertainty: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give the answer as plain data for JSON."""
        return {"schema_version": 1, **asdict(self)}


def _uncertainty(a: ProbeRecord, b: ProbeRecord, given: int | None) -> int | None:
    own = a.clock.uncertainty_ns(b.clock)
    return own if given is None or own == 0 else given


def _certainly_before(a: ProbeRecord, b: ProbeRecord, given: int | None) -> bool:
    uncertainty = _uncertainty(a, b, given)
    if uncertainty is None:
        return False
    a_end, b_begin = a.clock.wall(a.intervals[0].end_ns), b.clock.wall(b.intervals[0].begin_ns)
    if a.clock.host == b.clock.host:
        a_end, b_begin = a.intervals[0].end_ns, b.intervals[0].begin_ns
    return a_end + uncertainty < b_begin


def _begin(record: ProbeRecord) -> tuple[int, int, int]:
    """Order by the middle of the first interval, then by its end, then by rank."""
    first = record.intervals[0]
    begin, end = record.clock.wall(first.begin_ns), record.clock.wall(first.end_ns)
    return (begin + end) // 2, end, record.rank


def _row(place: int, record: ProbeRecord) -> RankOverflow:
    first: Interval = record.intervals[0]
    return RankOverflow(
        place,
        record.rank,
        str(record.header.get("host", "")),
        record.clock.wall(first.begin_ns),
        record.clock.wall(first.end_ns),
        first.step_begin,
        first.step_end,
        len(record.intervals),
    )


def _state_uncertainty(records: list[ProbeRecord], given: int | None) -> tuple[int | None, str]:
    pairs = [_uncertainty(a, b, given) for i, a in enumerate(records) for b in records[i + 1 :]]
    if None in pairs:
        return None, (
            "unknown: ranks of different hosts, and a host's kernel gives no bound for its clock; "
            "orders between hosts are undecided (state one with --clock-uncertainty)"
        )
    largest = max((pair for pair in pairs if pair is not None), default=0)
    if largest == 0:
        return 0, "none: all ranks with an overflow share one host's clock"
    source = "as given" if given is not None else "sum of the two kernels' bounds"
    return largest, f"{largest / 1e6:.3f} ms between hosts ({source})"


def merge(records: list[ProbeRecord], *, clock_uncertainty_ns: int | None = None) -> MergedProbes:
    """Put the ranks into one order.

    Args:
        records: One a rank.
        clock_uncertainty_ns: How far the clocks of two hosts may be apart, where the user knows
            better than the kernels. Ranks of one host always share a clock.

    Returns:
        The order, with what is certain and what is not.

    Raises:
        ProbeFormatError: Two files claim the same rank.
    """
    ranks = [record.rank for record in records]
    for rank in ranks:
        if ranks.count(rank) > 1:
            raise ProbeFormatError(f"rank {rank} has more than one probe file")
    # A probe that gave up half way has not shown its rank to be clean either.
    idle = {
        r.rank: str(r.end.get("reason", "no reason given"))
        for r in records
        if r.end is not None and r.end.get("reason") != STOPPED
    }
    hit = sorted((record for record in records if record.intervals), key=_begin)
    first = tuple(
        sorted(b.rank for b in hit if not any(_certainly_before(a, b, clock_uncertainty_ns) for a in hit if a is not b))
    )
    rows: list[RankOverflow] = []
    head: ProbeRecord | None = None
    for index, record in enumerate(hit):
        if head is None or _certainly_before(head, record, clock_uncertainty_ns):
            head, place = record, index + 1
        rows.append(_row(place, record))
    uncertainty_ns, words = _state_uncertainty(hit, clock_uncertainty_ns)
    notes = [
        f"rank {r.rank}: {r.end['dropped']} intervals did not fit its file"
        for r in records
        if r.end is not None and r.end.get("dropped")
    ]
    return MergedProbes(
        first,
        tuple(rows),
        tuple(sorted(r.rank for r in records if not r.intervals and r.rank not in idle)),
        dict(sorted(idle.items())),
        {r.rank: r.clock.wall(r.last_seen_ns) for r in sorted(records, key=lambda r: r.rank) if r.end is None},
        uncertainty_ns,
        words,
        tuple(notes),
    )


def merge_probes(folder: Path, *, clock_uncertainty_ns: int | None = None) -> MergedProbes:
    """Read all probe files of a folder and merge them.

    Args:
        folder: Folder with ``probe_rank*.jsonl``.
        clock_uncertainty_ns: See :func:`merge`.

    Returns:
        The order.

    Raises:
        FileNotFoundError: There is no such folder, or no probe file in it.
        ProbeFormatError: A file is not a probe's.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    paths = sorted(folder.glob("probe_rank*.jsonl"))
    if not paths:
        raise FileNotFoundError(f"{folder}: no probe_rank*.jsonl in it")
    return merge([read_probe(path) for path in paths], clock_uncertainty_ns=clock_uncertainty_ns)
