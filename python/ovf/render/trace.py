"""Report -> a trace for Perfetto and chrome://tracing (Trace Event Format, JSON object form).

A process is a rank. Its threads are `execution` (runs of ops in one state, drawn from the report's strips),
`communication` (the listed communications that carried or made something bad) and `findings` (findings, and the ops of
the path). One op takes one microsecond.

*Order as time.* Ranks have no common clock in a dump, only an order. Each rank's clock is the place of an op in its
file plus an offset; at each listed communication, taken in order, the members that are behind are moved forward to the
latest one. So a cause never stands right of its effect, and the gaps are waits. Flow arrows lead from a giver to those
that got something bad, and along the path. The origin is an instant event; its values, code and hint are its arguments.

The size is bounded: at most `_RUNS` slices of execution and `_COMMUNICATIONS` of communications, whatever the number
of ranks; what was left out is said in `otherData`.
"""

from __future__ import annotations

import bisect
import json
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ovf.evidence import RankSummary
    from ovf.finding import Finding, Value
    from ovf.report import Report
    from ovf.spread import Communication

_EXECUTION, _COMMUNICATION, _FINDINGS = 1, 2, 3
_THREADS = {_EXECUTION: "execution", _COMMUNICATION: "communication", _FINDINGS: "findings and path"}
_RUNS = 65_536
_COMMUNICATIONS = 20_000
_WORST = ".ugiapo"
_STATES = {
    "o": "origin",
    "p": "propagated",
    "a": "absorbed",
    "i": "intended",
    "g": "never written",
    "u": "not judged",
    ".": "clean",
}
_COLORS = {
    "o": "terrible",
    "p": "bad",
    "a": "yellow",
    "i": "olive",
    "g": "grey",
    "u": "grey",
    ".": "good",
}
"""Reserved colour names of the format."""

_Event = dict[str, Any]


class _Clock:
    """A rank's time: place in the file plus an offset that grows at communications."""

    def __init__(self) -> None:
        self._from = [0]
        self._offset = [0]

    def at(self, op: int) -> int:
        """Time of an op, in microseconds."""
        return op + self._offset[bisect.bisect_right(self._from, op) - 1]

    def wait(self, op: int, time: int) -> None:
        """Move `op` and all behind it forward to `time`; an op behind an earlier wait stays where it is."""
        if op >= self._from[-1] and time > self.at(op):
            if op == self._from[-1]:
                self._offset[-1] = time - op
            else:
                self._from.append(op)
                self._offset.append(time - op)

    def pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ops from `start` up to `end`, cut where the clock jumps: (first op, number of ops)."""
        cuts = [c for c in self._from if start < c < end]
        for low, high in zip([start, *cuts], [*cuts, end], strict=True):
            yield low, high - low


def trace(report: Report) -> str:
    """The trace as JSON text; the same bytes for the same report."""
    data = report.to_dict()
    clocks = {r.rank: _Clock() for r in report.ranks}
    for communication in report.communications:
        _synchronise(communication, clocks)
    events: list[_Event] = []
    for rank in report.ranks:
        events.extend(_names(rank))
    cells = max(1, _RUNS // max(1, len(report.ranks)))
    for rank in report.ranks:
        events.extend(_runs(rank, clocks[rank.rank], cells))
    flows = _Flows(events)
    omitted = _communications(report, clocks, events, flows)
    for place, finding in enumerate(report.findings):
        events.extend(_finding(finding, place, clocks))
    _path(report, clocks, events, flows)
    other = {
        "verdict": report.verdict,
        "step": report.step_label,
        "time": "one op is one microsecond; ranks are aligned at the communications shown",
        "communications_omitted": data["communications_omitted"] + omitted,
        "findings_omitted": data["findings_omitted"],
    }
    shape = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}
    return json.dumps(shape, separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n"


def _synchronise(communication: Communication, clocks: dict[int, _Clock]) -> None:
    members = [m for m in communication.members if m.rank in clocks]
    if not members:
        return
    latest = max(clocks[m.rank].at(m.exec_order) for m in members)
    for m in members:
        clocks[m.rank].wait(m.exec_order, latest)


def _names(rank: RankSummary) -> Iterator[_Event]:
    def named(what: str, tid: int, **args: object) -> _Event:
        return {"ph": "M", "name": what, "pid": rank.rank, "tid": tid, "ts": 0, "args": args}

    yield named("process_name", 0, name=f"rank {rank.rank}")
    yield named("process_sort_index", 0, sort_index=rank.rank)
    yield named("process_labels", 0, labels=f"{rank.ops} ops, {rank.completeness}")
    for tid, name in _THREADS.items():
        yield named("thread_name", tid, name=name)
        yield named("thread_sort_index", tid, sort_index=tid)


def _slice(rank: int, tid: int, name: str, ts: int, dur: int, **more: object) -> _Event:
    return {"ph": "X", "name": name, "pid": rank, "tid": tid, "ts": ts, "dur": dur, **more}


def _runs(rank: RankSummary, clock: _Clock, most: int) -> Iterator[_Event]:
    """Runs of cells in one state; neighbours are merged first where the rank has more cells than its share."""
    strip = rank.strip or ""
    cells = len(strip)
    merge = -(-cells // most) if cells else 1
    merged = [max(strip[i : i + merge], key=_WORST.index) for i in range(0, cells, merge)]
    at = 0
    for state, run in groupby(merged):
        start, at = at, at + len(list(run))
        first = start * merge * rank.ops // cells
        end = min(at * merge, cells) * rank.ops // cells
        for low, count in clock.pieces(first, end):
            args = {"first_exec_order": low, "ops": count, "exact": cells == rank.ops and merge == 1}
            name, color = _STATES.get(state, "?"), _COLORS.get(state, "grey")
            yield _slice(rank.rank, _EXECUTION, name, clock.at(low), count, cat="state", cname=color, args=args)


class _Flows:
    """Arrows between slices, numbered as they come."""

    def __init__(self, events: list[_Event]) -> None:
        self._events = events
        self._next = 1

    def arrow(self, cat: str, name: str, start: tuple[int, int, float], end: tuple[int, int, float]) -> None:
        """From (rank, thread, time) to (rank, thread, time); none that would lead back in time."""
        if end[2] < start[2]:
            return
        shared = {"cat": cat, "name": name, "id": self._next}
        self._next += 1
        for phase, (pid, tid, ts), more in (("s", start, {}), ("f", end, {"bp": "e"})):
            self._events.append({"ph": phase, "pid": pid, "tid": tid, "ts": ts, **shared, **more})


def _communications(report: Report, clocks: dict[int, _Clock], events: list[_Event], flows: _Flows) -> int:
    """Slices and arrows of the communications that show something bad; how many did not fit."""
    room = _COMMUNICATIONS
    omitted = 0
    for c in report.communications:
        bad = {*c.source_ranks, *c.propagated_ranks}
        shown = {m.rank: m for m in c.members if m.rank in bad and m.rank in clocks}
        if not shown:
            continue
        if len(shown) > room:
            omitted += 1
            continue
        room -= len(shown)
        for m in shown.values():
            role = "source" if m.rank in c.source_ranks else "propagated"
            args = {
                "exec_order": m.exec_order,
                "role": role,
                "verdict": c.verdict,
                "group": c.group_id or "default group",
                "source_ranks": len(c.source_ranks),
                "propagated_ranks": len(c.propagated_ranks),
            }
            ts = clocks[m.rank].at(m.exec_order)
            events.append(_slice(m.rank, _COMMUNICATION, m.op_name, ts, 1, cat=f"communication,{role}", args=args))
        givers = [shown[r] for r in c.source_ranks if r in shown]
        for got in c.propagated_ranks if givers else ():
            if got in shown:
                start, end = (clocks[m.rank].at(m.exec_order) for m in (givers[0], shown[got]))
                # Inside both slices, and not before the start where both ranks reach it at once.
                flows.arrow("spread", c.api, (givers[0].rank, _COMMUNICATION, start), (got, _COMMUNICATION, end + 0.5))
    return omitted


def _value(value: Value) -> str:
    shape = ", ".join(map(str, value.shape))
    return f"{value.slot}: {value.dtype}[{shape}] max {value.max} min {value.min}"


def _finding(finding: Finding, place: int, clocks: dict[int, _Clock]) -> Iterator[_Event]:
    if finding.rank not in clocks:
        return
    ts = clocks[finding.rank].at(finding.exec_order)
    frame = next((f for f in finding.stack if not f.library), None)
    args = {
        "exec_order": finding.exec_order,
        "place": place,
        "kind": finding.kind,
        "certainty": finding.certainty,
        "reason": finding.reason,
        "module": finding.module,
        "code": f"{frame.file}:{frame.line} {frame.code or ''}" if frame else None,
        "inputs": [_value(v) for v in finding.inputs],
        "outputs": [_value(v) for v in finding.outputs],
        "likely": finding.hint.likely if finding.hint else None,
        "check": finding.hint.check if finding.hint else None,
    }
    cat = "finding,first" if place == 0 else "finding"
    yield _slice(finding.rank, _FINDINGS, finding.op_name, ts, 1, cat=cat, cname="terrible", args=args)
    if place == 0:
        title = f"FIRST OVERFLOW {finding.op_name}"
        where = {"pid": finding.rank, "tid": _FINDINGS, "ts": ts}
        yield {"ph": "i", "s": "g", "name": title, "cat": "origin", **where, "args": args}


def _path(report: Report, clocks: dict[int, _Clock], events: list[_Event], flows: _Flows) -> None:
    before: tuple[int, int, float] | None = None
    placed = {(f.rank, f.exec_order) for f in report.findings}
    for step in report.path:
        if step.rank not in clocks:
            continue
        ts = clocks[step.rank].at(step.exec_order)
        if (step.rank, step.exec_order) not in placed:
            args = {"exec_order": step.exec_order, "via": step.via, "omitted": step.omitted, "symptom": step.symptom}
            events.append(_slice(step.rank, _FINDINGS, step.op_name, ts, 1, cat="path", args=args))
            placed.add((step.rank, step.exec_order))
        here = (step.rank, _FINDINGS, ts + 0.5)
        if before is not None:
            flows.arrow("path", "path", before, here)
        before = (step.rank, _FINDINGS, ts + 0.5)
