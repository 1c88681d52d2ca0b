"""The analyzer: finds the steps of a dump, analyses them in order, hands out a `Report`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovf import _core
from ovf.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    StrPath = str | os.PathLike[str]
    StrPaths = StrPath | Sequence[StrPath]

if _core.DEBUG_BUILD:
    import warnings

    warnings.warn("ovf was built without optimisation and is slow", RuntimeWarning, stacklevel=2)

#: Seconds between two calls of a progress function.
_PROGRESS_SECONDS = 0.1


def find_first_overflow(
    path: StrPaths,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    allow_incomplete_ranks: bool = False,
    mmap: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Name the first overflow of a dump.

    Args:
        path: A dump root (steps are analysed in order until one has an overflow), a step directory with one folder a
            rank, a rank folder, or one `dump.json`; summaries of ranks (`ovf summarize`) may stand in place of rank
            folders. Or several such paths that hold one dump together, such as the disks of several hosts.
        step: Only this step: its number, or its folder below the root (`"actor_train/step0"`).
        ranks: Only these global ranks; all by default.
        rules: A JSON file of operator rules laid over the built-in ones (`ovf rules` prints the shape).
        threads: Threads; all processors by default.
        allow_incomplete_ranks: Whether `Report.exit_code` accepts missing, cut and unreadable ranks.
        mmap: Whether large files may be mapped. By default they are, unless the environment variable `OVF_NO_MMAP` is
            set to something but `0`; files on network file systems and files written in the last ten seconds are read
            in any case, because another process could cut them short under a map.
        progress: Called about ten times a second with (bytes read, bytes in all), from another thread.

    Returns:
        The report of the first step with an overflow; without one, of the last step. `Report.steps` names all that
        were looked at.

    Raises:
        FileNotFoundError: The path does not exist.
        ovf.DumpFormatError: The path holds no dump in any known layout.
        ovf.RulesError: The rules file is not valid.
        ValueError: The step or a rank that was asked for is not there.
        OSError: The operating system refused. Single unreadable ranks are no error but part of the report.
    """
    paths = listed(path)
    found = _core.discover(paths)
    chosen = choose([row[:2] for row in found], step, paths)
    wanted = sorted(set(ranks)) if ranks is not None else None
    may_map = os.environ.get("OVF_NO_MMAP", "0") in {"", "0"} if mmap is None else mmap
    counters = _core.Progress()
    seen: list[dict[str, Any]] = []
    with _Ticker(counters, progress):
        for index in chosen:
            text, records = _core.analyze(
                paths, index, ranks=wanted, rules=rules, threads=threads, map=may_map, progress=counters
            )
            data = json.loads(text)
            seen.append({"step": data["step"], "step_label": data["step_label"], "verdict": data["verdict"]})
            if data["verdict"] == "overflow":
                break
    if data["verdict"] == "no_evidence" and any(s["verdict"] == "clean" for s in seen):
        data["verdict"], data["incomplete"] = "clean", True
    data["steps"] = seen
    return Report(data, records, source=[Path(p) for p in paths], allow_incomplete_ranks=allow_incomplete_ranks)


def cross_rank(path: StrPaths, *, step: int | str | None = None, rules: StrPath | None = None) -> dict[str, Any]:
    """For each communication with a bad value: who sent it, who got it, who has nothing bad.

    Args:
        path: As for `find_first_overflow`.
        step: As there.
        rules: As there.

    Returns:
        `{op_name: {"source_ranks", "propagated_ranks", "normal_ranks", "total_ranks"}}`, sorted lists of global
        ranks, communications in order. The op name is the first member's; where it stands for several groups, the
        group is added behind `@`.

    Raises:
        FileNotFoundError, ovf.DumpFormatError, ValueError, OSError: As for `find_first_overflow`.
    """
    report = find_first_overflow(path, step=step, rules=rules)
    table: dict[str, Any] = {}
    for c in report.communications:
        if not c.source_ranks and not c.propagated_ranks:
            continue
        name = c.op_name
        if name in table:
            group = c.group_id or "-".join(map(str, c.group_ranks)) or "-".join(str(m.rank) for m in c.members)
            name = f"{name}@{group}"
        row = {
            "source_ranks": list(c.source_ranks),
            "propagated_ranks": list(c.propagated_ranks),
            "normal_ranks": list(c.normal_ranks),
        }
        table.setdefault(name, {**row, "total_ranks": sorted(m.rank for m in c.members)})
    return table


def trace_rank(
    path: StrPath,
    rank: int | None = None,
    *,
    step: int | str | None = None,
    rules: StrPath | None = None,
) -> dict[str, Any]:
    """Trace one rank to its root cause, every candidate in order.

    Args:
        path: As for `find_first_overflow`; of a dump root the first step, unless `step` says otherwise.
        rank: Global rank; may be left out when there is only one.
        step: As for `find_first_overflow`.
        rules: As there.

    Returns:
        `{"rank", "rank_path", "anomaly_count", "first_anomaly", "all_anomalies", "warnings"}`. An anomaly has
        `op_name`, `exec_order` (place in the file, from 0), `output` (as dumped, non-finite numbers as text), `output_has_nan`, `output_class`, `input_has_nan`,
        `input_info` (`[{"shape", "Max", "Min", "dtype"}]`, statistics as text), `construct_chain` (the op up to the root), `stack_info`, `cause`
        and `harm` (whether it reaches loss, gradient, state or communication). `first_anomaly` is `None` when the
        rank is clean.

    Raises:
        ValueError: No such rank or step.
        FileNotFoundError, ovf.DumpFormatError, ValueError, OSError: As for `find_first_overflow`.
    """
    found = _core.discover(path)
    index = choose([row[:2] for row in found], step, [path])[0]
    there = found[index][3]
    if rank is None:
        if len(there) != 1:
            msg = f"{path}: has ranks {there}; say which one (rank=, --rank)"
            raise ValueError(msg)
        rank = there[0]
    if rank not in there:
        msg = f"{path}: no rank {rank}; it has {there}"
        raise ValueError(msg)
    text, outputs = _core.trace(path, index, rank, rules=rules)
    data = json.loads(text)
    anomalies = [_anomaly(a, o) for a, o in zip(data["anomalies"], outputs, strict=True)]
    warnings = []
    if anomalies and anomalies[0]["input_has_nan"]:
        warnings.append(
            "the first candidate's input is bad already: it was bad before the dump began, an op left out of the "
            "dump made it, or a previous step did"
        )
    if data["problem"]:
        place, message = data["problem"]
        warnings.append(f"line {place['line']}, column {place['column']}: {message}" if place else message)
    if not data["has_statistics"]:
        warnings.append("the dump has no Max and Min: nothing can be judged")
    return {
        "rank": data["rank"],
        "rank_path": data["rank_path"],
        "anomaly_count": len(anomalies) + data["anomalies_omitted"],
        "first_anomaly": anomalies[0] if anomalies else None,
        "all_anomalies": anomalies,
        "warnings": warnings,
    }


def _anomaly(data: dict[str, Any], output: str) -> dict[str, Any]:
    info = [{"shape": shape, "Max": top, "Min": low, "dtype": dtype} for shape, top, low, dtype in data["input_info"]]
    try:
        parsed = json.loads(output, parse_constant=str)  # bare NaN as "NaN": the trace is strict JSON
    except (ValueError, RecursionError):
        parsed = output
    return {
        "op_name": data["op_name"],
        "exec_order": data["exec_order"],
        "output": parsed,
        "output_has_nan": data["output_has_nan"],
        "output_class": data["output_class"],
        "input_has_nan": data["input_has_nan"],
        "input_info": info,
        "construct_chain": data["construct_chain"],
        "stack_info": data["stack_info"],
        "cause": data["cause"],
        "harm": data["harm"],
    }


def listed(path: StrPaths) -> list[StrPath]:
    """One path or several as a list."""
    if isinstance(path, str) or not isinstance(path, Sequence):
        return [path]
    if not path:
        msg = "no path was given"
        raise ValueError(msg)
    return list(path)


def choose(found: Sequence[tuple[int | None, str]], step: int | str | None, paths: Sequence[StrPath]) -> list[int]:
    """Indices of the steps (number, label) that were asked for.

    Raises:
        ValueError: None is that one.
    """
    if step is None:
        return list(range(len(found)))
    wanted = str(step)
    chosen = [i for i, (number, label) in enumerate(found) if label == wanted or str(number) == wanted]
    if not chosen:
        labels = ", ".join(label for _, label in found)
        msg = f"{', '.join(map(str, paths))}: no step {wanted}; it has {labels}"
        raise ValueError(msg)
    return chosen


class _Ticker:
    """Calls the progress function from a thread of its own while the analysis runs."""

    def __init__(self, counters: _core.Progress, call: Callable[[int, int], None] | None) -> None:
        self._counters = counters
        self._call = call
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._call is not None:
            self._thread = threading.Thread(target=self._run, name="ovf-progress", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._done.wait(_PROGRESS_SECONDS):
            self._tell()

    def _tell(self) -> None:
        if self._call is not None:
            self._call(self._counters.bytes, self._counters.total)

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        self._tell()
