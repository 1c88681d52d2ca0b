"""The analyzer: finds the steps of a dump, analyses them in order, hands out a `Report`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence

from ovf import _core
from ovf.report import Report
from ovf.seen import seen_of, settled

TYPE_CHECKING = False  # typing itself takes longer to import than a small dump to read
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Literal

    from ovf.step import StepSummary
    from ovf.ticker import Counting

    Extra = Literal["near", "levels", "strip"]
    StrPath = str | os.PathLike[str]
    StrPaths = StrPath | Sequence[StrPath]

if _core.DEBUG_BUILD:
    import warnings

    warnings.warn("ovf was built without optimisation and is slow", RuntimeWarning, stacklevel=2)


def find_first_overflow(
    path: StrPaths | None,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    allow_incomplete_ranks: bool = False,
    mmap: bool | None = None,
    chart: bool = False,
    progress: Callable[[int, int], None] | None = None,
    also: Iterable[Extra] = (),
    engine: Literal["local", "ray"] = "local",
    hosts: Mapping[str, StrPath] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Name the first overflow of a dump.

    Args:
        path: A dump root (steps are analysed in order until one has an overflow), a step directory with one folder a
            rank, a rank folder, or one `dump.json`; summaries of ranks (`ovf summarize`) may stand in place of rank
            folders. Any of them plain or packed (`dump.json.gz`, `.zst`), in an archive (`.tar`, `.tar.gz`, `.tar.zst`,
            `.zip`), or behind a URL that fsspec knows (`s3://bucket/dump/step0`). Or several local folders that hold one
            dump together, such as the disks of several hosts. `None` with `hosts`.
        step: Only this step: its number, or its folder below the root (`"actor_train/step0"`).
        ranks: Only these global ranks; all by default.
        rules: A JSON file of operator rules laid over the built-in ones (`ovf rules` prints the shape).
        threads: Threads; all processors by default.
        allow_incomplete_ranks: Whether `Report.exit_code` accepts missing, cut and unreadable ranks.
        mmap: Whether large files may be mapped. By default they are, unless the environment variable `OVF_NO_MMAP` is
            set to something but `0`; files on network file systems and files written in the last ten seconds are read
            in any case, because another process could cut them short under a map.
        chart: Whether to keep the name and state of every op, which `Report.atlas` and `Report.to_html` draw from;
            without it they read the dump again.
        progress: Called about ten times a second with (bytes read, bytes in all), from another thread.
        also: What else the report shall hold: `near` (near misses: finite values close to the end of their dtype),
            `levels` (critical, high, medium, as msProbe's graph view has them), `strip` (each rank's execution drawn
            small). `near` and `levels` parse every op.
        engine: `local`, or `ray`: ranks are summarised by a Ray cluster, the running one (`RAY_ADDRESS`) or a
            local one. The report is the same.
        hosts: With `ray`: node -> dump root or step directory on that node's own disk, in place of `path`. A node is
            named by Ray's node name, node id, address or host name.
        storage_options: Options of the URL's fsspec file system.

    Returns:
        The report of the first step with an overflow; without one, of the last step. `Report.steps` names all that
        were looked at.

    Raises:
        FileNotFoundError: The path does not exist.
        ovf.DumpFormatError: The path holds no dump in any known layout.
        ovf.RulesError: The rules file is not valid.
        ValueError: The step or a rank that was asked for is not there; a scheme is not known, or the package that it or
            the engine needs is not installed; no such node.
        OSError: The operating system, a store or a cluster refused. Single unreadable ranks are no error but part of
            the report.
    """
    wanted = sorted(set(ranks)) if ranks is not None else None
    mapped = may_map(mmap)
    if engine != "local" or hosts is not None or path is None or any(is_elsewhere(p) for p in listed(path)):
        from ovf.remote.analysis import first_overflow  # noqa: PLC0415 - only for these places

        return first_overflow(
            path,
            step=step,
            ranks=wanted,
            rules=rules,
            threads=threads,
            allow_incomplete_ranks=allow_incomplete_ranks,
            mmap=mapped,
            chart=chart,
            progress=progress,
            also=tuple(sorted(set(also))),
            engine=engine,
            hosts=hosts,
            storage_options=storage_options,
        )
    paths = listed(path)
    found = _core.discover(paths)
    chosen = choose([row[:2] for row in found], step, paths)
    wants = [*sorted(set(also)), *(["trend"] if len(chosen) > 1 else [])]
    counters = _core.Progress()
    seen: list[dict[str, Any]] = []
    how: dict[str, Any] = {"ranks": wanted, "rules": rules, "threads": threads, "map": mapped, "wants": wants}
    index = chosen[0]
    with telling(counters, progress):
        for index in chosen:
            analysis = _core.analyze(paths, index, **how, chart=chart, progress=counters)
            answer = functools.cache(analysis.answer)  # with a chart it is large: written out once
            if len(chosen) == 1:
                break
            seen.append(seen_of(_loaded(answer()[0])))
            if analysis.verdict == "overflow":
                break

    def told() -> tuple[dict[str, Any], list[str]]:
        """The report; a caller may want the verdict alone."""
        text, records, _ = answer()
        data = _loaded(text)
        return settled(data, seen or [seen_of(data)], len(chosen)), records

    return Report(
        told,
        head=None if seen else (analysis.verdict, analysis.incomplete),
        ops=functools.partial(_core.op_table, paths, [index], ranks=wanted, rules=rules, threads=threads, map=mapped),
        source=paths,
        allow_incomplete_ranks=allow_incomplete_ranks,
        atlas=(answer()[2] if chart else None) or functools.partial(_atlas, paths, index, how, answer),
    )


def _loaded(text: str, parse_constant: Callable[[str], str] | None = None) -> Any:  # noqa: ANN401 - any data
    """The data of a JSON text."""
    import json  # noqa: PLC0415 - a caller may want the verdict alone

    return json.loads(text, parse_constant=parse_constant)


def telling(counters: Counting, call: Callable[[int, int], None] | None) -> contextlib.AbstractContextManager[None]:
    """Calls the progress function, if there is one, from a thread of its own while the analysis runs."""
    if call is None:
        return contextlib.nullcontext()
    from ovf.ticker import Ticker  # noqa: PLC0415 - only where somebody looks

    return Ticker(counters, call)


def _atlas(
    paths: list[StrPath], index: int, how: dict[str, Any], told: Callable[[], tuple[str, list[str], str | None]]
) -> str:
    """The atlas of a step that was analysed without it."""
    text, _, atlas = _core.analyze(paths, index, **how, chart=True).answer()
    if text != told()[0]:
        msg = f"{', '.join(map(str, paths))}: the dump has changed since it was analysed; analyse it again"
        raise ValueError(msg)
    return atlas or ""


def steps(
    path: StrPaths,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    mmap: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[StepSummary]:
    """Summarise every step of a dump root: verdict, first overflow, loss, gradient norm.

    Args:
        path: As for `find_first_overflow`.
        step: As there.
        ranks: As there; every step must have them.
        rules: As there.
        threads: As there. As many steps are held in memory as there are threads.
        mmap: As there.
        progress: As there.

    Returns:
        One summary a step, in order.

    Raises:
        FileNotFoundError, ovf.DumpFormatError, ovf.RulesError, ValueError, OSError: As for `find_first_overflow`.
    """
    paths = local(path)
    chosen = choose([row[:2] for row in _core.discover(paths)], step, paths)
    wanted = sorted(set(ranks)) if ranks is not None else None
    how: dict[str, Any] = {"ranks": wanted, "rules": rules, "threads": threads, "map": may_map(mmap)}
    counters = _core.Progress()
    with telling(counters, progress):
        text = _core.overview(paths, chosen, **how, progress=counters)
    from ovf.step import StepSummary  # noqa: PLC0415 - only for this question

    return [StepSummary.from_json(data) for data in _loaded(text)]


def op_table(
    path: StrPaths,
    *,
    step: int | str | None = None,
    ranks: Iterable[int] | None = None,
    rules: StrPath | None = None,
    threads: int | None = None,
    mmap: bool | None = None,
) -> _core.Table:
    """The table of all ops, for any reader of the Arrow PyCapsule interface: `polars.DataFrame(ovf.op_table(path))`.

    Args:
        path: As for `find_first_overflow`; all its steps.
        step: Only this step.
        ranks: As there.
        rules: As there.
        threads: As there. As many ranks (and one more) are held in memory.
        mmap: As there.

    Returns:
        The table; its columns are described in `docs/tables.md`. Rows are made while it is read, anew each time.
        `unreadable` names the dumps that the last reading could not read to their end.

    Raises:
        FileNotFoundError, ovf.DumpFormatError, ovf.RulesError, ValueError, OSError: As for `find_first_overflow`;
            what concerns the files themselves, when the table is read.
    """
    paths = local(path)
    chosen = choose([row[:2] for row in _core.discover(paths)], step, paths)
    wanted = sorted(set(ranks)) if ranks is not None else None
    return _core.op_table(paths, chosen, ranks=wanted, rules=rules, threads=threads, map=may_map(mmap))


def cross_rank(
    path: StrPaths, *, step: int | str | None = None, rules: StrPath | None = None, threads: int | None = None
) -> dict[str, Any]:
    """For each communication with a bad value: who sent it, who got it, who has nothing bad.

    Args:
        path: As for `find_first_overflow`.
        step: As there.
        rules: As there.
        threads: As there.

    Returns:
        `{op_name: {"source_ranks", "propagated_ranks", "normal_ranks", "total_ranks"}}`, sorted lists of global
        ranks, communications in order. The op name is the first member's; where it stands for several groups, the
        group is added behind `@`.

    Raises:
        FileNotFoundError, ovf.DumpFormatError, ValueError, OSError: As for `find_first_overflow`.
    """
    report = find_first_overflow(path, step=step, rules=rules, threads=threads)
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
    others = ""
    if is_elsewhere(path):
        from ovf.remote.analysis import trace  # noqa: PLC0415 - only for these places

        text, outputs = trace(path, rank, step=step, rules=rules)
    else:
        found = _core.discover(path)
        index = choose([row[:2] for row in found], step, [path])[0]
        if step is None and len(found) > 1:
            others = f"only {found[index][1]} was traced, of {len(found)} steps: choose another with step"
        text, outputs = _core.trace(path, index, one_rank(found[index][-1], rank, path), rules=rules)
    data = _loaded(text)
    anomalies = [_anomaly(a, o) for a, o in zip(data["anomalies"], outputs, strict=True)]
    warnings = [others] if others else []
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
        parsed = _loaded(output, parse_constant=str)  # bare NaN as "NaN": the trace is strict JSON
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


def local(path: StrPaths) -> list[StrPath]:
    """The paths, if all are local files and folders.

    Raises:
        ValueError: One is a URL or an archive.
    """
    paths = listed(path)
    for one in paths:
        if is_elsewhere(one):
            msg = f"{os.fspath(one)}: only local files and folders can be read here; copy or unpack the dump first"
            raise ValueError(msg)
    return paths


def may_map(mmap: bool | None) -> bool:  # noqa: FBT001 - what was asked, or None
    """Whether large files are mapped: as asked, else as `OVF_NO_MMAP` says."""
    return os.environ.get("OVF_NO_MMAP", "0") in {"", "0"} if mmap is None else mmap


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


def one_rank(there: Sequence[int], rank: int | None, path: StrPath) -> int:
    """The rank that was asked for, or the only one.

    Raises:
        ValueError: It is not there; there are several.
    """
    if rank is None:
        if len(there) != 1:
            msg = f"{path}: has ranks {list(there)}; say which one (rank=, --rank)"
            raise ValueError(msg)
        return there[0]
    if rank not in there:
        msg = f"{path}: no rank {rank}; it has {list(there)}"
        raise ValueError(msg)
    return rank


#: How the names of archives end.
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".zip")


def is_elsewhere(path: StrPath) -> bool:
    """Whether a path is a URL or an archive."""
    text = os.fspath(path)
    return "://" in text or "::" in text or (text.lower().endswith(_ARCHIVES) and os.path.isfile(text))  # noqa: PTH113 - no Path for a URL
