"""The probe's file: JSON lines, one file a rank, that a crash leaves readable.

    {"kind": "probe", "schema_version": 1, "rank": 3, "device": 3, "period_s": 0.05, "clock": {...}}
    {"kind": "interval", "begin_ns": 5, "end_ns": 9, "step_begin": 12, "step_end": 12, "reads": 1}
    {"kind": "alive", "at_ns": 60, "step": 400, "reads": 8000, "failures": 0}
    {"kind": "end", "at_ns": 99, "step": 900, "reads": 18000, "failures": 0, "reason": "stopped",
     "intervals": 2, "dropped": 0}

(a record is one line; the last one is broken here for the page).

Times are the monotonic clock of the header's ``clock``. An interval says: the register was seen
set, and the overflow happened after ``begin_ns`` (the last moment known to be clean) and before
``end_ns``. Neighbouring intervals, set at one read after another, are written as one. Each line
is one ``write`` call on a file opened for appending; a cut-off last line is what a crash can
leave, and readers drop it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ovf.npu.clock import Clock

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1
#: The reason in the last line of a probe that ran to its end.
STOPPED = "stopped"
#: Kept free in a bounded file so that its last line always fits.
_RESERVE = 512


class ProbeFormatError(ValueError):
    """A file that is not a probe's; the message says where and why."""


@dataclass(frozen=True)
class Interval:
    """A time in which the register was found set.

    Attributes:
        begin_ns: Last moment known to be without overflow.
        end_ns: Moment by which the overflow had happened.
        step_begin: Training step at ``begin_ns``; None where steps are not counted.
        step_end: Training step at ``end_ns``.
        reads: How many reads in a row found it set.
    """

    begin_ns: int
    end_ns: int
    step_begin: int | None
    step_end: int | None
    reads: int = 1


def probe_path(folder: Path, rank: int) -> Path:
    """Give the file of a rank."""
    return folder / f"probe_rank{rank}.jsonl"


class IntervalFile:
    """Writes a rank's file, bounded in size; intervals beyond the bound are only counted."""

    def __init__(self, path: Path, header: dict[str, Any], *, max_bytes: int) -> None:
        """Open the file and write its header.

        Args:
            path: The file; an older one of that name is kept beside it as ``*.1``.
            header: Fields of the first line.
            max_bytes: Size that the file never exceeds.

        Raises:
            OSError: The file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.replace(path.with_name(f"{path.name}.1"))
        self._fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._room = max_bytes - _RESERVE
        self._pending: Interval | None = None
        self.written = 0
        self.dropped = 0
        self._line({"kind": "probe", "schema_version": SCHEMA_VERSION, **header}, bounded=False)

    def _line(self, record: dict[str, Any], *, bounded: bool = True) -> bool:
        data = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if bounded and len(data) > self._room:
            return False
        self._room -= len(data)
        os.write(self._fd, data)
        return True

    def add(self, interval: Interval) -> None:
        """Take an interval; it is on disk at once, and again in full when its neighbours are known.

        The first read of an overflow is what a crash must not lose, so it is written immediately.
        Reads that follow without a clean one in between only lengthen it; the longer form is
        written when it ends, and readers take the last line of a ``begin_ns``.
        """
        if self._pending is not None and interval.begin_ns <= self._pending.end_ns:
            last = self._pending
            self._pending = Interval(
                last.begin_ns,
                interval.end_ns,
                last.step_begin,
                interval.step_end,
                last.reads + interval.reads,
            )
            return
        self.clean()
        self._pending = interval
        if self._write(interval):
            self.written += 1
        else:
            self.dropped += 1

    def clean(self) -> None:
        """Say that a read found the register clear: a lengthened interval is written in full."""
        if self._pending is not None and self._pending.reads > 1:
            self._write(self._pending)
        self._pending = None

    def _write(self, interval: Interval) -> bool:
        done = self._line({"kind": "interval", **interval.__dict__})
        if done:
            with contextlib.suppress(OSError):
                os.fdatasync(self._fd)
        return done

    def alive(self, record: dict[str, Any]) -> None:
        """Note that the probe runs, where there is room."""
        self._line({"kind": "alive", **record})

    def close(self, record: dict[str, Any]) -> None:
        """Write the last line and close the file."""
        self.clean()
        self._line(
            {"kind": "end", **record, "intervals": self.written, "dropped": self.dropped},
            bounded=False,
        )
        os.close(self._fd)


#: No moment is later (nanoseconds; about the year 2262).
_LATEST_NS = 2**63


@dataclass(frozen=True)
class ProbeRecord:
    """One rank's file, read.

    Attributes:
        path: Where it was read.
        rank: Global rank.
        header: Its first line.
        clock: Its clock.
        intervals: Its intervals in time order.
        end: Its last line; None where the process ended without one (a crash).
        last_seen_ns: Last moment at which the probe is known to have run.
    """

    path: Path
    rank: int
    header: dict[str, Any]
    clock: Clock
    intervals: tuple[Interval, ...]
    end: dict[str, Any] | None
    last_seen_ns: int


def _moment(value: object) -> int:
    """Take nanoseconds: a whole number within a few centuries.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= _LATEST_NS:
        raise ValueError(f"{value!r} is no moment in nanoseconds")
    return value


def _interval(record: dict[str, Any]) -> Interval:
    """Take an interval's line.

    Raises:
        KeyError: A field is missing.
        ValueError: A field is not what it should be.
    """
    interval = Interval(**{name: record[name] for name in Interval.__dataclass_fields__})
    steps = (interval.step_begin, interval.step_end)
    if _moment(interval.end_ns) < _moment(interval.begin_ns) or not all(s is None or isinstance(s, int) for s in steps):
        raise ValueError("an interval ends before it begins, or its steps are no numbers")
    return interval


def read_probe(path: Path) -> ProbeRecord:
    """Read a rank's file.

    Args:
        path: The file; a cut-off last line is dropped.

    Returns:
        The record.

    Raises:
        ProbeFormatError: It is not a probe's file, or a line other than the last is damaged.
        OSError: It cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    complete, tail = lines[:-1], lines[-1]
    records: list[dict[str, Any]] = []
    for number, line in enumerate([*complete, *([tail] if tail else [])], 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > len(complete):
                break
            raise ProbeFormatError(f"{path}:{number}: expected a JSON line") from error
        if not isinstance(record, dict):
            if number > len(complete):
                break
            raise ProbeFormatError(f"{path}:{number}: expected an object")
        records.append(record)
    header = records[0] if records else {}
    if header.get("kind") != "probe" or header.get("schema_version") != SCHEMA_VERSION:
        raise ProbeFormatError(f"{path}:1: expected the header of a probe, schema version {SCHEMA_VERSION}")
    try:
        rank, clock = int(header["rank"]), Clock.from_dict(header["clock"])
        by_begin: dict[int, Interval] = {}
        for record in records:
            if record.get("kind") == "interval":
                interval = _interval(record)
                by_begin[interval.begin_ns] = interval
        moments = [record.get("at_ns", record.get("end_ns")) for record in records[1:]]
        last_seen = max((_moment(m) for m in moments if m is not None), default=clock.monotonic_ns)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProbeFormatError(f"{path}: a field is missing or not a number: {error}") from error
    ends = [record for record in records if record.get("kind") == "end"]
    ordered = tuple(by_begin[begin] for begin in sorted(by_begin))
    return ProbeRecord(path, rank, header, clock, ordered, ends[-1] if ends else None, last_seen)
